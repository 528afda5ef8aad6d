"""Goal: each known fault of 4.9.3 has an answer here, the right one, or its own on purpose.
Method: one small scene each; docs/differs.md says which answer it is."""

from __future__ import annotations

import shutil
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import oracle
import pyrocketstore
from broken_env import broken
from cleaned_stores import SETTINGS, SetEnv, fill, message, opened
from gates import unclean
from pyrocketstore import GetMessageStatus, MessageExtBrokerInner, PutError, PutMessageStatus
from pyrocketstore._dispatch import Dispatcher
from pyrocketstore.env import Env
from test_recovery import halt

LOG = "commitlog/" + "0" * 20
WAIT_S = 30


def halted(path: Path, target: Path) -> Path:
    """A copy of a store as a crash would leave it."""
    shutil.copytree(path, target)
    halt(target)
    return target


def test_properties_that_were_not_written_do_not_end_the_log(tmp_path: Path) -> None:
    """The CRC is the body's alone: a record whose last bytes are zeros is a record."""
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SETTINGS) as store:
        store.put("t", b"first", tags="A", keys="k")
        last = store.put("t", b"last", tags="B", keys="k2", properties={"a": "b"})
        size = last.wrote_bytes
    data = (path / LOG).read_bytes()
    end = last.phy_offset + size
    record = oracle.decode_record(data[last.phy_offset : end])
    for count in range(1, len(record.properties) + 1):
        damaged = halted(path, tmp_path / str(count))
        (damaged / LOG).write_bytes(data[: end - count] + bytes(count) + data[end:])
        with pyrocketstore.open(damaged, **SETTINGS) as store:
            assert store.message_store.get_max_phy_offset() == end
            assert [m.body for m in store.read("t")] == [b"first", b"last"]
            assert [m.body for m in store.read("t", tags="A")] == [b"first"]
            store.put("t", b"more")
            assert store.max_offset("t") == 3
        shutil.rmtree(damaged)


def test_a_crc_of_zero_is_a_crc(tmp_path: Path) -> None:
    body = bytes.fromhex("9d0ad96d")
    assert zlib.crc32(body) == 0
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SETTINGS) as store:
        store.put("t", b"first")
        at = store.put("t", body).phy_offset
    data = bytearray((path / LOG).read_bytes())
    where = data.index(body, at)
    for bit in (0, 7, 18, 31):
        damaged = halted(path, tmp_path / str(bit))
        flipped = bytearray(data)
        flipped[where + bit // 8] ^= 1 << bit % 8
        (damaged / LOG).write_bytes(flipped)
        with pyrocketstore.open(damaged, **SETTINGS) as store:
            assert store.message_store.get_max_phy_offset() == at
        shutil.rmtree(damaged)


def test_what_is_in_the_log_is_seen_before_it_is_forced(tmp_path: Path) -> None:
    go_on = threading.Event()
    env = Env()

    def blocked(original: Any, *arguments: Any) -> int:
        go_on.wait(WAIT_S)
        return int(original(*arguments))

    with opened(tmp_path, env, flush_disk_type="SYNC_FLUSH") as store:
        fill(store, 1)
        forced = store.services.log_flush.flushed_where
        putter = threading.Thread(target=store.put_message, args=(message(b"x"),))
        with broken(env, "msync", blocked), broken(env, "fdatasync", blocked):
            putter.start()
            try:
                deadline = time.monotonic() + WAIT_S
                while store.get_max_offset_in_queue("t", 0) == 1 and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert putter.is_alive()
                assert store.services.log_flush.flushed_where == forced
                pulled = store.get_message("g", "t", 0, 1, 1)
                assert pulled.status is GetMessageStatus.FOUND
                pulled.release()
            finally:
                go_on.set()
                putter.join()


def test_a_dispatcher_that_dies_ends_the_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unclean(pyrocketstore.open(tmp_path, **SETTINGS)) as face:
        store = face.message_store
        face.put("t", b"before")
        face.wait_dispatched()

        def fails() -> bool:
            raise MemoryError("no memory for the dispatcher")

        monkeypatch.setattr(store.services.reput_service, "do_reput", fails)
        reput = store.services.reput_service
        deadline = time.monotonic() + WAIT_S
        while reput.is_alive and time.monotonic() < deadline:
            reput.wakeup()
            time.sleep(0.001)
        assert not reput.is_alive
        with pytest.raises(PutError, match="no memory for the dispatcher") as caught:
            face.put("t", b"x")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert isinstance(store.failure.__cause__, MemoryError)
        monkeypatch.undo()
    assert (tmp_path / "abort").exists(), "not everything was seen to"
    assert isinstance(store.dispatcher, Dispatcher)


def test_a_deleted_topic_comes_back_from_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5, "kept")
        fill(store, 5, "gone")
        store.clean_unused_topic(["kept"])
        assert sorted(store.get_consume_queue_table()) == ["kept"]
    assert not (tmp_path / "consumequeue" / "gone" / "0").exists()
    halt(tmp_path)
    with opened(tmp_path) as store:
        assert store.get_max_offset_in_queue("gone", 0) == 5
        fill(store, 1, "gone", start=5)
        assert store.get_max_offset_in_queue("gone", 0) == 6


def test_a_query_for_any_number_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for i in range(100):
            store.put_message(message(b"%d" % i, key="k"))
        store.wait_dispatched()
        for wanted, found in ((0, 0), (1, 1), (64, 64), (2**31 - 1, 64), (1 << 62, 64)):
            hits = store.query_message("t", "k", wanted, 0, 1 << 60)
            assert len(hits.phy_offsets) == found
            hits.release()


@pytest.mark.parametrize("born", ["10.0.0.1:1", "[2001:db8::1]:1"])
@pytest.mark.parametrize("stored", ["10.0.0.2:2", "[2001:db8::2]:2"])
def test_store_times_are_found_beside_any_addresses(tmp_path: Path, born: str, stored: str) -> None:
    with opened(tmp_path) as store:
        put = MessageExtBrokerInner("t", b"x", born_host=born, store_host=stored)
        result = store.put_message(put)
        store.wait_dispatched()
        assert result.store_timestamp > 0
        assert store.get_message_store_time_stamp("t", 0, 0) == result.store_timestamp
        assert store.get_earliest_message_time() == result.store_timestamp
        assert store.get_offset_in_queue_by_time("t", 0, result.store_timestamp) == 0
        assert store.newest_store_timestamp() == result.store_timestamp


def test_a_minimum_is_never_above_the_end(tmp_path: Path) -> None:
    """Where the log has nothing left of a queue: 4.9.3's minimum stays, the face's is the end."""
    env = SetEnv()
    env.used[""] = 86
    with pyrocketstore.open(tmp_path, env=env, file_reserved_time=72, **SETTINGS) as face:
        store = face.message_store
        fill(store, 15, "old")
        fill(store, 60)
        log = store.services.clean_commit_log
        cleaner = store.services.clean_resource
        assert log is not None
        assert cleaner is not None
        assert log.delete_expired_files() > 2
        cleaner.clean_consume_queue.run()
        assert store.get_min_offset_in_queue("old", 0) <= 15
        assert (face.min_offset("old"), face.max_offset("old")) == (15, 15)
        assert list(face.read("old")) == []
        answer = store.get_message("g", "old", 0, 0, 9)  # as 4.9.3: by way of the next file
        assert answer.status is GetMessageStatus.OFFSET_FOUND_NULL
        answer = store.get_message("g", "old", 0, answer.next_begin_offset, 9)
        assert (answer.status, answer.next_begin_offset) == (
            GetMessageStatus.MESSAGE_WAS_REMOVING,
            15,
        )
        queue = store.get_consume_queue("old", 0)
        assert queue is not None
    queue.truncate_dirty_logic_files(0)
    assert queue.get_min_offset_in_queue() <= queue.get_max_offset_in_queue()


def test_an_index_that_hangs_holds_no_put(tmp_path: Path) -> None:
    """Keys are put by the thread that dispatches: what the index costs is not part of a put."""
    go_on = threading.Event()
    held = threading.Event()
    env = Env()

    def blocked(original: Any, *arguments: Any) -> int:
        if b"/index/" in arguments[0]:
            held.set()
            go_on.wait(WAIT_S)
        return int(original(*arguments))

    with opened(tmp_path, env, flush_disk_type="SYNC_FLUSH") as store:
        with broken(env, "open", blocked):
            try:
                store.put_message(message(b"x", key="k"))
                assert held.wait(WAIT_S), "no index file was made"
                for _ in range(60):
                    result = store.put_message(message(b"x", key="k"))
                    assert result.status is PutMessageStatus.PUT_OK
                assert not store.wait_dispatched(0.01)
            finally:
                go_on.set()
            assert store.wait_dispatched(WAIT_S)
        assert store.get_max_offset_in_queue("t", 0) == 61


def test_a_retry_goes_to_the_queues_that_it_names(tmp_path: Path) -> None:
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with opened(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as store:
        for topic in ("t", "%RETRY%g", "t"):
            put = message(b"x", topic)
            put.properties.update(names)
            assert store.put_message(put).status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("%LMQ%a", 0) == 3
        assert store.get_max_offset_in_queue("%RETRY%g", 0) == 1
