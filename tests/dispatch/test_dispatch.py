"""Goal: the dispatch loop reports a record whose stored physical offset is wrong, and signals its
progress. Method: the dispatcher of an open store over the store's own log file, with right and
wrong offsets of the file; the signals of its event are counted."""

from __future__ import annotations

from pathlib import Path

import pyrocketstore
from pyrocketstore.commit_log._scan import status_name

COUNT = 3000
ELSEWHERE = "stored physicalOffset differs from the position of the record"


def test_a_record_at_another_place_is_not_dispatched(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 20) as store:
        store.put_many("t", [b"body"] * 10, queue_ids=0)
        store.wait_dispatched()
        engine = store.message_store
        path = str(tmp_path / "s/commitlog/00000000000000000000")
        end = engine.get_max_phy_offset()
        second = store.get(0).size
        dispatched = engine.dispatcher.dispatch_file
        assert dispatched(engine.env, path, 0, 0, end) == (0, end)  # they are in the queue: no more
        assert store.max_offset("t", 0) == 10
        for base, position, at in ((8, 0, 0), (-second, second, second)):
            status, reached = dispatched(engine.env, path, base, position, end)
            assert (status_name(status), reached) == (ELSEWHERE, at), base
        assert store.max_offset("t", 0) == 10


def test_progress_is_signalled(tmp_path: Path) -> None:
    """A waiter for one of many messages need not wait for all of them."""
    with pyrocketstore.open(tmp_path / "s") as store:
        store.put_many("t", [b"body"] * COUNT, queue_ids=0)
        store.wait_dispatched()
        engine = store.message_store
        path = str(tmp_path / "s/commitlog/00000000000000000000")
        seen = engine.moved.sequence()
        engine.dispatcher.dispatch_file(engine.env, path, 0, 0, engine.get_max_phy_offset())
        assert engine.moved.sequence() - seen > COUNT // 1024
