"""Goal: a flush of the log reports what is durable and ends with the first failed fsync;
`sync_point` names only what log, queues and index have on the device.
Method: parts of an open store whose services sleep; calls that fail once, or for ever."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreError, StoreFsyncError, StoreIOError
from pyrocketstore.flush.index_flush import IndexFlush
from pyrocketstore.flush.log_flush import CommitLogFlush, may_pass
from pyrocketstore.index.sync_point import SyncPoint, SyncPointFile
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from support.broken_env import failing
from support.gates import unclean
from support.sizes import SIZES

NEVER = 600_000
QUIET: dict[str, Any] = {
    **SIZES,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "flush_commit_log_timed": True,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[pyrocketstore.Store]:
    with pyrocketstore.open(tmp_path, **QUIET) as found:
        yield found


def put(store: pyrocketstore.Store, count: int) -> int:
    """Put messages with keys; return the physical offset of the last one."""
    for _ in range(count):
        last = store.put("t", b"body", keys="k")
    store.wait_dispatched()
    return last.phy_offset


# ---- the log -------------------------------------------------------------------------------------


def log_flush_of(engine: DefaultMessageStore, failures: list[BaseException]) -> CommitLogFlush:
    return CommitLogFlush(engine.commit_log, engine.checkpoint, failures.append)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreIOError(errno.ENOSPC, "open", "a"), True),
        (StoreFsyncError(errno.EIO, "fdatasync", "a"), False),
        (StoreError("other"), False),
    ],
)
def test_only_a_failed_fsync_is_final(error: StoreError, expected: bool) -> None:
    assert may_pass(error) is expected


def test_a_flush_reports_the_end_and_its_time(store: pyrocketstore.Store) -> None:
    engine, failures = store.message_store, []
    flush = log_flush_of(engine, failures)
    assert flush.flushed_where == flush.flush_to_end() == 0
    last = put(store, 200)  # over several files
    end = engine.get_max_phy_offset()
    assert flush.flush_to_end() == flush.flushed_where == flush.flushed_noted == end
    message = store.get(last)
    assert message is not None
    assert engine.checkpoint.physic_msg_timestamp == message.store_timestamp
    with flush.lock:
        assert flush.flush_step(0), "nothing is left"
    assert failures == []


def test_a_flush_stops_where_it_should(store: pyrocketstore.Store) -> None:
    flush = log_flush_of(store.message_store, [])
    put(store, 200)
    with flush.lock:
        flush.flush_to(1)
    assert 1 <= flush.flushed_where <= store.message_store.get_max_phy_offset()


def test_after_a_failed_fsync_nothing_is_flushed(tmp_path: Path) -> None:
    with unclean(pyrocketstore.open(tmp_path, **QUIET)) as store:
        put(store, 3)
        engine, failures = store.message_store, []
        flush = log_flush_of(engine, failures)
        with failing(engine.env, "msync", errno.EIO), pytest.raises(StoreFsyncError):
            flush.flush_to_end()
        assert len(failures) == 1 and isinstance(flush.error, StoreFsyncError)
        assert flush.flushed_where == 0 and flush.retried is None
        for call in (flush.check_fsyncs, flush.flush_to_end, lambda: flush.flush_step(0)):
            with pytest.raises(StoreFsyncError):
                call()
        assert len(failures) == 1


def test_a_group_commit_that_flushed_more_is_noted(store: pyrocketstore.Store) -> None:
    flush = log_flush_of(store.message_store, [])
    last = put(store, 3)
    flush.note_flushed(last, 77)
    assert (flush.flushed_noted, store.message_store.checkpoint.physic_msg_timestamp) == (last, 77)
    flush.note_flushed(last - 1, 99)
    assert (flush.flushed_noted, store.message_store.checkpoint.physic_msg_timestamp) == (last, 77)


# ---- sync_point ----------------------------------------------------------------------------------


class Index:
    """An IndexFlush of a store, whose dispatcher is where the test says."""

    def __init__(self, store: pyrocketstore.Store) -> None:
        self.engine = engine = store.message_store
        self.last, self.is_complete = -1, True
        self.flush = IndexFlush(
            engine.commit_log,
            engine.index_service,
            lambda: self.last,
            lambda: self.is_complete,
        )

    def written(self) -> SyncPoint | None:
        return SyncPointFile(self.engine.env, self.engine.root).read()

    def flush_log(self) -> None:
        self.engine.services.log_flush.flush_to_end()


def test_an_unknown_state_is_not_written(store: pyrocketstore.Store) -> None:
    index = Index(store)
    last = put(store, 3)
    assert index.flush.begin() is None, "nothing is known to be dispatched"
    index.last, index.is_complete = last, False
    assert index.flush.begin() is None, "units or keys are missing"
    index.is_complete = True
    index.last = last + 1
    assert index.flush.begin() is None, "no record begins there"
    index.flush.finish(None)
    index.flush_log()
    index.flush.write()
    assert index.written() is None


def test_the_state_of_a_moment(store: pyrocketstore.Store) -> None:
    index = Index(store)
    index.last = put(store, 3)
    state = index.flush.begin()
    assert state is not None and state.index_file is not None
    assert state.phy_offset == index.engine.get_max_phy_offset()
    assert (state.last_phy_offset, state.index_count) == (index.last, 4)
    put(store, 2)
    assert state.index_count == 4 and state.index_file.index_count == 6


def test_the_state_waits_for_the_log(store: pyrocketstore.Store) -> None:
    index = Index(store)
    index.last = put(store, 3)
    state = index.flush.begin()
    assert state is not None
    index.flush.finish(state)
    assert index.written() is None, "the log is not durable"
    index.flush_log()
    index.flush.write()
    found = index.written()
    assert found is not None and state.index_file is not None
    assert (found.phy_offset, found.last_phy_offset) == state[:2]
    assert (found.index_count, found.name) == (4, state.index_file.name)
    assert found.end_phy_offset == index.last


def test_an_older_state_does_not_replace_a_newer_one(store: pyrocketstore.Store) -> None:
    index = Index(store)
    index.last = put(store, 3)
    older = index.flush.begin()
    index.last = put(store, 3)
    newer = index.flush.begin()
    index.flush_log()
    for state in (newer, older, newer):
        index.flush.finish(state)
        found = index.written()
        assert found is not None and newer is not None
        assert found.phy_offset == newer.phy_offset


def test_without_keys_no_index_file_is_named(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, unique_key=False, **QUIET) as store:
        index = Index(store)
        index.last = store.put("t", b"body").phy_offset
        store.wait_dispatched()
        state = index.flush.begin()
        assert state is not None and state[3:] == (None, 1)
        index.flush_log()
        index.flush.finish(state)
        found = index.written()
        assert found is not None and (found.name, found.index_count) == ("", 1)


@pytest.mark.parametrize(("code", "is_error"), [(errno.ENOSPC, False), (errno.EROFS, True)])
def test_a_file_that_cannot_be_written_now(
    store: pyrocketstore.Store, code: int, is_error: bool, caplog: pytest.LogCaptureFixture
) -> None:
    index = Index(store)
    index.last = put(store, 3)
    state = index.flush.begin()
    index.flush_log()
    with failing(index.engine.env, "rename", code):
        if is_error:
            with pytest.raises(StoreIOError):
                index.flush.finish(state)
        else:
            index.flush.finish(state)
            assert "may read more of the log" in caplog.text
    assert index.written() is None
    index.flush.write()
    found = index.written()
    assert found is not None and state is not None and found.phy_offset == state.phy_offset
