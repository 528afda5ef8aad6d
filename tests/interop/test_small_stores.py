"""Goal: 4.9.3 and pyrocketstore continue the log, the queues and the index of a small store, also
after `trim`.
Method: both put in turn into one directory; 4.9.3 gets the sizes that docs/retention.md names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from support.java_store import require_java

pytestmark = pytest.mark.java

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"
COUNT = 1500


def sizes_of_the_page() -> dict[str, int]:
    """The keys of a broker.conf that the page gives for the preset."""
    found = re.findall(r"`(\w+)=(\d+)`", PAGE.read_text("utf-8"))
    return {name: int(value) for name, value in found}


def spec(number: int) -> dict[str, Any]:
    return {
        "topic": "t",
        "queue_id": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:2",
        "reconsume_times": 0,
        "sys_flag": 0,
        "flag": 0,
        "body": b"%d" % number + bytes(200),
        "properties": [("KEYS", f"k{number}")],
    }


def put(store: pyrocketstore.Store, first: int) -> None:
    numbers = range(first, first + COUNT)
    bodies, keys = [b"%d" % i + bytes(200) for i in numbers], [f"k{i}" for i in numbers]
    store.put_many("t", bodies, keys=keys)
    store.wait_dispatched()


@pytest.mark.parametrize("trims", [False, True])
def test_4_9_3_continues_a_small_store(tmp_path: Path, trims: bool) -> None:
    java, sizes, path = require_java(), sizes_of_the_page(), tmp_path / "store"
    assert len(sizes) == 4
    with pyrocketstore.open(path, preset="small") as store:
        put(store, 0)
        if trims:
            assert store.trim(before=1 << 62).files > 0
        first = store.min_offset("t")
        assert (first > 0) == trims
    done = java.put(path, [spec(i) for i in range(COUNT, 2 * COUNT)], sizes)
    assert [line["logics_offset"] for line in done] == list(range(COUNT, 2 * COUNT))
    with pyrocketstore.open(path) as store:
        put(store, 2 * COUNT)
        found = [(m.queue_offset, int(m.body[:-200])) for m in store.read("t")]
        assert found == [(i, i) for i in range(first, 3 * COUNT)]
        for i in (first, COUNT, 2 * COUNT, 3 * COUNT - 1):
            assert [m.queue_offset for m in store.query("t", f"k{i}")] == [i]
        report = store.verify()
        assert report.ok, report.problems[:5]
    shutil.copytree(path, tmp_path / "theirs")
    lines = [json.loads(line) for line in java.dump(tmp_path / "theirs", sizes)]
    offsets = [line["message"]["cq_offset"] for line in lines if "message" in line]
    assert offsets == list(range(first, 3 * COUNT))
