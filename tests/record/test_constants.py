"""Goal: constants of both Python and C have one value. Method: read csrc/rocketstore.h."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.config.message_store_config import CQ_STORE_UNIT_SIZE
from pyrocketstore.index._file import INDEX_HEADER_SIZE
from pyrocketstore.index.directory import INDEX_HEADER
from pyrocketstore.results import Status

HEADER = (Path(__file__).parents[2] / "csrc" / "rocketstore.h").read_text()


def test_status_numbers_are_those_of_the_header() -> None:
    (body,) = re.findall(r"typedef enum rs_status \{(.*?)\} rs_status;", HEADER, re.DOTALL)
    numbers = {name: int(value) for name, value in re.findall(r"RS_(\w+) = (\d+)", body)}
    assert numbers == {status.name: status.value for status in Status}
    assert len({status_name(status) for status in Status}) == len(Status)


def test_sizes_are_those_of_the_header() -> None:
    sizes = dict(re.findall(r"#define RS_(\w+) (\d+)$", HEADER, re.MULTILINE))
    assert CQ_STORE_UNIT_SIZE == int(sizes["CQ_STORE_UNIT_SIZE"]) == struct.calcsize(">qiq")
    assert INDEX_HEADER_SIZE == int(sizes["INDEX_HEADER_SIZE"]) == INDEX_HEADER.size
