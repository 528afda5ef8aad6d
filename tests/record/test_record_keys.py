"""Goal: the scan of the log, verify, dispatch and the index service split KEYS alike.
Method: records with odd KEYS and UNIQ_KEY in one log, each caller's hashes against
tests/oracle.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.columns._record_walk import RecordWalk
from pyrocketstore.commit_log._chunk_scan import LogScanner
from pyrocketstore.commit_log._scan import FileWindow
from pyrocketstore.index._entries import index_key_hashes
from pyrocketstore.system.env import Env
from support import oracle

FILE_SIZE = 1 << 16
KEYS = [None, "a", "a b", " a", "a ", "  ", " ", "a  b   c ", "a\tb", "\u00e4 \u20ac", "a a"]
UNIQ_KEYS = [None, "u", "u v", " "]


def records() -> list[oracle.Record]:
    found = []
    for uniq_key in UNIQ_KEYS:
        for keys in KEYS:
            pairs = {"KEYS": keys, "UNIQ_KEY": uniq_key}
            text = "".join(f"{k}\1{v}\2" for k, v in pairs.items() if v is not None)
            found.append(
                oracle.Record(
                    queue_offset=len(found),
                    store_timestamp=1_700_000_000_000,
                    properties=text.encode(),
                )
            )
    return found


def hashes_of(record: oracle.Record) -> list[int]:
    return [oracle.index_key_hash(*pair) for pair in oracle.index_keys(record)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    (data,) = oracle.write_log(records(), FILE_SIZE)
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.write_bytes(data)
    return path


def test_every_caller_splits_alike(path: Path) -> None:
    expected = [hash_ for record in records() for hash_ in hashes_of(record)]
    for record in records():
        found = record.properties_map()
        assert index_key_hashes("T", found.get("UNIQ_KEY"), found.get("KEYS")) == hashes_of(record)
    env = Env()
    chunk = LogScanner(env, {}, True).scan(str(path), 0, 0, FILE_SIZE, FILE_SIZE)
    assert chunk.key_columns()[1].tolist() == expected
    walk = RecordWalk({}, FILE_SIZE)
    window = FileWindow(env, str(path))
    walk.walk(window, str(path), 0, 0, FILE_SIZE)
    window.close()
    assert walk.column("key_hash").tolist() == expected


def test_the_index_has_exactly_these_keys(path: Path) -> None:
    settings = {"max_hash_slot_num": 100, "max_index_num": 400, "topics_json": False}
    root = path.parents[1]
    with pyrocketstore.open(root, mapped_file_size_commit_log=FILE_SIZE, **settings) as store:
        store.wait_dispatched()
        report = store.verify()
        assert report.ok and report.not_indexed == 0, report.problems
        assert report.index_entries == sum(len(hashes_of(record)) for record in records())
