"""Goal: no damage of topicMinOffset.json brings removed messages back or hides others silently
while its backup is intact, and none does so without a warning that names the file.
Method: flip each bit of the file, with its backup intact and with the same damage in both; put
something else in its place; and open stores with files of both versions."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreIOError
from pyrocketstore.commit_log.topic_min_offset_file import (
    RecordProof,
    TopicMinimum,
    TopicMinOffsetFile,
)
from pyrocketstore.files import fastjson
from pyrocketstore.files.checked_file import CHECKSUM
from pyrocketstore.system.env import Env
from support.sizes import SIZES
from support.snapshot import snapshot

FILE = "config/topicMinOffset.json"
TABLE = "topicMinOffsetTable"


class EveryLog:
    """A log that has each record."""

    def get_min_offset(self) -> int:
        return 0

    def flush_deletions(self) -> None:
        """No file is deleted."""

    def record_mark(self, phy_offset: int) -> tuple[int, int]:
        return 101, 3325173484


@pytest.fixture
def made(tmp_path: Path) -> Path:
    file = TopicMinOffsetFile(Env(), str(tmp_path))
    file.read()
    for topic, end in (("t", 2020), ("d", 1010)):
        proof = RecordProof(end - 101, 101, 3325173484)
        file.put(topic, TopicMinimum(end, proof, False), EveryLog())
    path = tmp_path / FILE
    assert path.read_bytes() == Path(f"{path}.bak").read_bytes()
    return path


def content_of(path: Path) -> dict[str, Any]:
    file = TopicMinOffsetFile(Env(), str(path.parent.parent))
    file.read()
    return file._content


def flips(data: bytes) -> Iterator[bytes]:
    for at, bit in itertools.product(range(len(data)), range(8)):
        yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def without_checksum(data: bytes) -> bytes:
    content = fastjson.parse(data)
    del content[CHECKSUM]
    return fastjson.encode(content)


def test_no_flipped_bit_counts_while_the_backup_is_intact(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, wanted = made.read_bytes(), content_of(made)
    assert sorted(wanted) == ["d", "t"]
    used = 0
    for damaged in flips(data):
        made.write_bytes(damaged)
        caplog.clear()
        assert content_of(made) == wanted, damaged
        said = "its backup is used" in caplog.text
        used += said
        assert said or fastjson.parse(damaged) == fastjson.parse(data), damaged
    assert used > len(data) * 7


def test_no_flipped_bit_of_both_is_silent(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, wanted = made.read_bytes(), content_of(made)
    judged = 0
    for damaged in flips(data):
        for path in (made, Path(f"{made}.bak")):
            path.write_bytes(damaged)
        caplog.clear()
        try:
            found = content_of(made)
        except StoreCorruptionError:
            continue
        if fastjson.parse(damaged) != fastjson.parse(data):
            assert f"{made}: " in caplog.text, damaged
            judged += found != wanted
    assert judged, "entries that are valid count on their own"


def test_a_damaged_backup_matters_to_no_intact_file(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = content_of(made)
    Path(f"{made}.bak").write_bytes(made.read_bytes().replace(b"1010", b"1011"))
    assert content_of(made) == wanted
    assert not caplog.records


@pytest.mark.parametrize("name", ["topicMinOffsetTablf", ""])
def test_an_older_file_counts_and_a_foreign_name_is_damage(
    made: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = content_of(made)
    older = without_checksum(made.read_bytes())
    for path in (made, Path(f"{made}.bak")):
        path.write_bytes(older)
    assert content_of(made) == wanted
    assert not caplog.records
    made.write_bytes(older.replace(TABLE.encode(), name.encode()))
    assert content_of(made) == wanted
    assert f"{made}: {TABLE} is missing; its backup is used" in caplog.text
    made.write_bytes(fastjson.encode({TABLE: {}, "other": {}}))
    assert content_of(made) == wanted
    assert "other: a name that this file does not have" in caplog.text


def test_a_write_keeps_the_intact_backup_of_a_damaged_file(made: Path) -> None:
    intact = made.read_bytes()
    made.write_bytes(intact.replace(b"1010", b"1011"))
    file = TopicMinOffsetFile(Env(), str(made.parent.parent))
    file.read()
    file._file.write({TABLE: {}})
    assert Path(f"{made}.bak").read_bytes() == intact


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


PLACES: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "FIFO": os.mkfifo,
    "link": lambda path: path.symlink_to("topicMinOffset.json.bak"),
    "loop": lambda path: path.symlink_to(path),
    "large": _large,
}


@pytest.mark.parametrize("kind", PLACES)
def test_the_backup_counts_where_the_file_cannot_be_read(
    made: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = content_of(made)
    made.unlink()
    PLACES[kind](made)
    assert content_of(made) == wanted
    assert f"{made}: cannot be read: " in caplog.text
    assert "its backup is used" in caplog.text
    Path(f"{made}.bak").unlink()
    if kind == "large":
        with pytest.raises(StoreCorruptionError, match="larger than"):
            content_of(made)
    elif kind != "link":
        with pytest.raises(StoreIOError, match=r"topicMinOffset\.json"):
            content_of(made)


def test_a_store_reads_the_backup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one character of a name, a number and a topic changed; before, the messages came back,
    or those of another topic were hidden."""
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SIZES) as store:
        for number in range(30):
            for topic in ("t", "d"):
                store.put(topic, b"%d" % number)
        store.drop_topic("t")
        store.put("t", b"new")
    intact = (path / FILE).read_bytes()
    shutil.copytree(path, tmp_path / "saved")
    for old, new in ((TABLE, "topicMinOffsetTablf"), ('Crc":', 'Crc":1'), ('"t"', '"d"')):
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "saved", path)
        damaged = intact.replace(old.encode(), new.encode())
        assert damaged != intact
        (path / FILE).write_bytes(damaged)
        shutil.rmtree(path / "consumequeue")
        (path / "abort").touch()
        caplog.set_level(logging.WARNING)
        for read_only in (True, False):
            caplog.clear()
            before = snapshot(path) if read_only else []
            with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
                assert [m.body for m in store.read("t")] == [b"new"]
                assert len(list(store.read("d"))) == 30
                assert store.verify().ok
            assert f"{path / FILE}: " in caplog.text
            assert "its backup is used" in caplog.text
            assert not read_only or snapshot(path) == before
