"""Goal: `sync_point`, which 4.9.3 ignores, hides no key when 4.9.3 opens the store, puts, and is
killed or closes it between two of our runs.
Method: our process is killed after a flush (a copy of the live store) or closes the store; 4.9.3
puts and ends in either way; then each key must find its message."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.index.sync_point import SYNC_POINT
from support.java_store import require_java

pytestmark = pytest.mark.java

OURS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 15,
    "mapped_file_size_consume_queue": 4000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
THEIRS = {
    "mappedFileSizeCommitLog": 1 << 15,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
}


def put(store: pyrocketstore.Store, first: int, count: int, keyed: bool) -> None:
    for number in range(first, first + count):
        store.put("t", b"%d" % number, keys=f"k{number}" if keyed else None)
    store.wait_dispatched()


def spec(number: int) -> dict[str, Any]:
    return {
        "topic": "t",
        "queue_id": 0,
        "born_timestamp": 1_700_000_000_000 + number,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:2",
        "reconsume_times": 0,
        "sys_flag": 0,
        "flag": 0,
        "body": b"%d" % number,
        "properties": [("KEYS", f"k{number}")],
    }


def check(path: Path, count: int, keyless: int, read_only: bool) -> None:
    with pyrocketstore.open(path, read_only=read_only, **OURS) as store:
        assert [int(message.body) for message in store.read("t")] == list(range(count))
        for number in range(keyless, count):
            assert [int(hit.body) for hit in store.query("t", f"k{number}")] == [number]
        if not read_only:
            report = store.verify()
            assert report.ok, report.problems[:3]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("ending", ["halt", "clean"])
@pytest.mark.parametrize("killed", [True, False])
def test_4_9_3_between_two_of_our_runs(
    tmp_path: Path, killed: bool, ending: str, keyed: bool
) -> None:
    java = require_java()
    path = tmp_path / "store"
    with pyrocketstore.open(path, **OURS) as store:
        put(store, 0, 230, keyed)
        store.flush()
        put(store, 230, 20, keyed)
        if killed:
            shutil.copytree(path, tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
    if killed:
        path = tmp_path / "killed"
    noted = (path / SYNC_POINT).read_bytes()
    results = java.put(path, [spec(number) for number in range(250, 300)], THEIRS, ending=ending)
    assert {result["status"] for result in results} == {"PUT_OK"}
    assert (path / SYNC_POINT).read_bytes() == noted
    keyless = 0 if keyed else 250
    for read_only in (True, False, True):
        check(path, 300, keyless, read_only)
    # Once more, after a kill that leaves only what 4.9.3 and our last opening have written.
    (path / "abort").touch()
    for read_only in (True, False):
        check(path, 300, keyless, read_only)
