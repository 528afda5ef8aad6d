"""Goal: with a transient store pool the log has the same bytes as without, readers see only
committed bytes, and failed commits and missing buffers are reported.
Method: settings delay commits, writes are cut short and made to fail, a process is killed."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, MessageStoreConfig, PutError, PutMessageStatus
from pyrocketstore.config.message_store_config import BrokerRole, FlushDiskType
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.files.transient_store_pool import TransientStorePool
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.gates import wait_until
from support.sizes import SIZES

S = SIZES["mapped_file_size_commit_log"]
POOL = {**SIZES, "transient_store_pool_enable": True, "transient_store_pool_size": 3}
#: Nothing is committed but by those who ask for it.
HELD_BACK = {
    **POOL,
    "commit_interval_commit_log": 600_000,
    "commit_commit_log_least_pages": 1 << 20,
    "commit_commit_log_thorough_interval": 600_000,
    "flush_interval_commit_log": 20,
    "flush_commit_log_thorough_interval": 0,
}


def log_of(store: pyrocketstore.Store) -> MappedFileQueue:
    return store.message_store.commit_log.mapped_file_queue


def held_back(path: Path, env: Env | None = None, **settings: Any) -> pyrocketstore.Store:
    store = pyrocketstore.open(path, env=env, **{**HELD_BACK, **settings})
    service = store.message_store.services.commit_service
    assert service is not None
    # The first round of the thread is over, and commits once.
    wait_until(lambda: service._last_ms > 0, "the thread did not start")
    return store


# ---- the buffers --------------------------------------------------------------------------------
def test_buffers_are_lent_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    pool = TransientStorePool(Env(), 3, S)
    lent = [pool.borrow_buffer() for _ in range(3)]
    assert pool.borrow_buffer() is None
    assert pool.available_buffer_nums() == 0
    assert "0 of 3 buffers" in caplog.text
    for buffer in lent[:2]:
        assert buffer is not None
        buffer.free()
    assert pool.borrow_buffer() is lent[1]
    pool.destroy()
    assert lent[2] is not None
    lent[2].free()
    assert pool.available_buffer_nums() == 0


def test_memory_that_cannot_be_locked_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    env = Env()
    with failing(env, "mlock", errno.ENOMEM) as calls:
        pool = TransientStorePool(env, 3, S)
    assert len(calls) == 1
    assert calls[0][1:] == (S, 1)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "RLIMIT_MEMLOCK" in caplog.text
    assert pool.available_buffer_nums() == 3
    with failing(env, "mmap", errno.ENOMEM), pytest.raises(StoreIOError):
        TransientStorePool(env, 3, S)


def test_only_an_empty_file_takes_a_buffer(tmp_path: Path) -> None:
    env = Env()
    pool = TransientStorePool(env, 1, 8192)
    buffer = pool.borrow_buffer()
    assert buffer is not None
    for size, wrote in ((4096, 0), (8192, 1)):
        queue = MappedFileQueue(env, str(tmp_path / str(size)), size)
        file = queue.get_last_mapped_file(0)
        assert file is not None
        file.append_message(b"x" * wrote)
        with pytest.raises(StoreStateError):
            file.use_buffer(buffer)


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_with_buffers_is_a_bytearray(tmp_path: Path, seed: int) -> None:
    """The appended bytes, and those that readers see, against a bytearray and three numbers."""
    rng = random.Random(seed)
    env = Env()
    size = 16384
    pool = TransientStorePool(env, 3, size)
    queue = MappedFileQueue(
        env,
        str(tmp_path),
        size,
        allocate_service=AllocateMappedFileService(env, pool=pool),
        confirm_step=4096,
    )
    content = bytearray()
    committed = 0
    for _ in range(120):
        step = rng.random()
        if step < 0.6:
            data = rng.randbytes(rng.choice((1, 100, 3000, 9000)))
            while data:
                file = queue.get_last_mapped_file(0)
                assert file is not None
                if not file.has_buffer:
                    while not queue.commit(0):
                        pass
                room = size - file.appended
                assert file.append_message(data[:room])
                content += data[:room]
                data = data[room:]
                if not file.has_buffer:
                    committed = len(content)
        elif step < 0.8:
            pages = rng.choice((0, 1, 2))
            while not queue.commit(pages):
                pass
            if pages == 0:
                committed = len(content)
            assert committed <= queue.committed_where <= len(content)
            assert len(content) - queue.committed_where < 4096 * max(pages, 1) * 2
            committed = queue.committed_where
        else:
            while not queue.flush(0):
                pass
            assert queue.flushed_where <= queue.get_max_offset()
        assert queue.get_max_offset() >= committed
        assert queue.get_max_wrote_position() == len(content)
        seen = queue.get_max_offset()
        assert b"".join(f.read(0, f.wrote) for f in queue.mapped_files)[:seen] == content[:seen]
    while not queue.commit(0):
        pass
    assert queue.get_max_offset() == len(content)
    assert b"".join(f.read(0, f.wrote) for f in queue.mapped_files) == content
    assert pool.available_buffer_nums() >= 1


# ---- a store with a pool ------------------------------------------------------------------------
def test_what_is_not_committed_is_not_read(tmp_path: Path) -> None:
    """4.9.3's answers stop at what is in the file; `Store` commits first."""
    with held_back(tmp_path) as store:
        low = store.message_store
        result = store.put("t", b"one", keys="k")
        assert low.get_max_phy_offset() == result.phy_offset == 0
        assert low.look_message_by_offset(0) is None
        assert low.select_one_message_by_offset(0) is None
        assert low.get_commit_log_data(0) is None
        assert low.dispatch_behind_bytes() == 0
        assert low.get_max_offset_in_queue("t", 0) == 0
        assert log_of(store).remain_how_many_data_to_commit() == result.wrote_bytes
        assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[:4] == bytes(4)
        message = store.get(0)
        assert message is not None
        assert message.body == b"one"
        assert low.get_max_phy_offset() == result.wrote_bytes
        store.put("t", b"two", keys="k")
        assert [m.body for m in store.query("t", "k")] == [b"one", b"two"]
        store.put("t", b"three", keys="k")
        assert store.max_offset("t") == 3
        store.put_many("t", [b"four", b"five"])
        assert [m.body for m in store.read("t")] == [b"one", b"two", b"three", b"four", b"five"]
        assert store.verify().ok
        store.put("t", b"six")
        store.flush()
        assert low.services.log_flush.flushed_where == low.get_max_phy_offset()
        assert log_of(store).remain_how_many_data_to_commit() == 0


def test_the_thread_commits_in_its_rhythm(tmp_path: Path) -> None:
    settings = {**POOL, "commit_interval_commit_log": 10, "flush_commit_log_timed": False}
    with pyrocketstore.open(tmp_path, **settings) as store:
        low = store.message_store
        put = low.put_message(MessageExtBrokerInner("t", b"x" * 100))
        wait_until(lambda: low.get_max_phy_offset() == put.wrote_bytes, "nothing was committed")
        wait_until(lambda: low.get_max_offset_in_queue("t", 0) == 1, "nothing was dispatched")
    quick = {"commit_interval_commit_log": 600_000, "commit_commit_log_least_pages": 2}
    with held_back(tmp_path / "b", **quick) as store:
        low = store.message_store
        store.put("t", b"x" * 4000)
        time.sleep(0.05)
        assert low.get_max_phy_offset() == 0
        end = store.put("t", b"x" * 6000)
        wait_until(lambda: low.get_max_phy_offset() > end.phy_offset, "two pages woke nobody")


def test_buffered_and_mapped_logs_have_the_same_bytes(tmp_path: Path) -> None:
    """One program with one clock: by mappings, by buffers, by pwrite, and with too few buffers."""
    ways: dict[str, dict[str, Any]] = {
        "mapped": {},
        "buffered": POOL,
        "one buffer": {**POOL, "transient_store_pool_size": 1},
        "written": {"write_without_mmap": True},
        "written sync": {"write_without_mmap": True, "flush_disk_type": "SYNC_FLUSH"},
        "warm": {"warm_maped_file_enable": True},
    }
    logs = {}
    for way, settings in ways.items():
        rng = random.Random(1)
        env = Env()
        path = tmp_path / way
        with broken(env, "now_ms", lambda original: 1_700_000_000_000):
            for _ in range(2):  # the second time over a file that was recovered
                with pyrocketstore.open(path, env=env, **{**SIZES, **settings}) as store:
                    for i in range(60):
                        store.put("t", rng.randbytes(rng.randrange(4000)), keys=f"k{i}")
                    store.put_many("u", [rng.randbytes(700) for _ in range(150)])
                    store.put_batch("t", [b"a" * 3000, b"b" * 9000])
                    assert store.max_offset("u") % 150 == 0
                    assert store.verify().ok, way
        files = sorted((path / "commitlog").iterdir())
        assert len(files) > 5
        logs[way] = b"".join(file.read_bytes() for file in files)
    assert [way for way, log in logs.items() if log != logs["mapped"]] == []


def test_short_commits_are_gone_on_with(tmp_path: Path) -> None:
    """4.9.3 counts what a short write left out as committed."""
    env = Env()

    def short(pwrite: Any, fd: int, buffer: int, size: int, position: int) -> int:
        return int(pwrite(fd, buffer, min(size, 77), position))

    with held_back(tmp_path, env) as store:
        results = [store.put("t", b"%d" % i * 99) for i in range(20)]
        with broken(env, "pwrite", short) as calls:
            store.message_store.commit_log.commit_buffers()
        assert len(calls) > 20
        assert store.message_store.get_max_phy_offset() == sum(r.wrote_bytes for r in results)
        assert [m.body for m in store.read("t")] == [b"%d" % i * 99 for i in range(20)]


def test_a_commit_that_fails_ends_the_puts_and_is_tried_again(tmp_path: Path) -> None:
    env = Env()
    store = held_back(tmp_path, env)
    low = store.message_store
    store.put("t", b"kept")
    with failing(env, "pwrite", errno.EIO):
        with pytest.raises(StoreIOError):
            low.flush()
        assert low.get_max_phy_offset() == low.services.log_flush.flushed_where == 0
        with pytest.raises(PutError) as caught:
            store.put("t", b"refused")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "pwrite" in str(caught.value)
    with pytest.raises(StoreIOError, match="pwrite"):
        store.close()
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [m.body for m in store.read("t")] == [b"kept"]


@pytest.mark.parametrize("fast_fail", [True, False])
def test_without_a_buffer_left(tmp_path: Path, fast_fail: bool) -> None:
    """With fastFailIfNoBufferInStorePool there is no next file; else it is written as without."""
    settings = {"transient_store_pool_size": 1, "fast_fail_if_no_buffer_in_store_pool": fast_fail}
    body = b"x" * 20000
    with held_back(tmp_path, **settings) as store:
        low = store.message_store
        assert low.remain_transient_store_buffer_numbs() == 1
        assert not low.is_transient_store_pool_deficient()
        for _ in range(3):
            store.put("t", body)
        assert low.is_transient_store_pool_deficient()
        assert low.get_max_phy_offset() == 0
        if not fast_fail:
            made = tmp_path / "commitlog" / f"{S:020d}"
            wait_until(made.exists, "the next file was not made ahead")
            time.sleep(0.05)
        # The full file's buffer is committed only when that is asked for, or the thread gets to it.
        with low.services.commit_service._lock:  # type: ignore[union-attr]
            if fast_fail:
                refused = low.put_message(MessageExtBrokerInner("t", body))
                assert refused.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
                with pytest.raises(PutError) as caught:
                    store.put("t", body)
                assert caught.value.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
                assert not caught.value.stored
                assert os.strerror(errno.ENOBUFS) in str(caught.value)
            else:
                with ThreadPoolExecutor(1) as other:
                    waits = other.submit(store.put, "t", body)
                    time.sleep(0.1)
                    # Readers must not pass over what is not in its file yet.
                    assert low.get_max_phy_offset() == 0
                    low.services.commit_service._lock.release()  # type: ignore[union-attr]
                    assert waits.result(20).phy_offset == S
                    low.services.commit_service._lock.acquire()  # type: ignore[union-attr]
        if fast_fail:
            store.wait_dispatched()
            wait_until(lambda: not low.is_transient_store_pool_deficient(), "it did not come back")
            store.put("t", body)
        assert log_of(store).mapped_files[-1].has_buffer is fast_fail
        assert low.get_max_phy_offset() >= S if fast_fail else low.get_max_phy_offset() > S
        store.put("t", b"last")
        assert store.max_offset("t") == 5
        assert store.verify().ok
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [len(m.body) for m in store.read("t")] == [20000] * 4 + [4]


def test_sync_flush_and_slaves_have_no_pool(tmp_path: Path) -> None:
    """4.9.3 with both, in a later version, times out each put; and on a slave it reads ahead."""
    for settings in (
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"broker_role": BrokerRole.SLAVE},
        {"transient_store_pool_enable": False},
    ):
        config = MessageStoreConfig(
            **{**POOL, "store_path_root_dir": str(tmp_path / str(len(settings))), **settings}
        )
        store = DefaultMessageStore(config)
        store.load()
        store.start()
        try:
            assert store.services.commit_service is None
            assert store.transient_store_pool is None
            assert store.remain_transient_store_buffer_numbs() == (1 << 31) - 1
            put = store.put_message(MessageExtBrokerInner("t", b"x"))
            if config.broker_role is BrokerRole.SLAVE:
                assert put.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
                continue
            assert put.status is PutMessageStatus.PUT_OK
            if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
                assert store.services.log_flush.flushed_where == put.wrote_bytes
        finally:
            store.shutdown()
            store.destroy()


def test_a_recovered_file_is_written_directly(tmp_path: Path) -> None:
    with held_back(tmp_path) as store:
        store.put("t", b"x" * 30000)
    with held_back(tmp_path) as store:
        low = store.message_store
        store.put("t", b"y" * 20000)
        assert not log_of(store).mapped_files[0].has_buffer
        assert low.get_max_phy_offset() > 50000
        store.put("t", b"z" * 20000)
        assert log_of(store).mapped_files[1].has_buffer
        assert low.get_max_phy_offset() == S
        assert store.max_offset("t") == 3
        assert store.verify().ok


def test_the_checkpoint_has_the_time_of_what_was_forced(tmp_path: Path) -> None:
    """Not of records in a buffer: recovery would begin behind it."""
    clock = [1_700_000_000_000]
    env = Env()
    with broken(env, "now_ms", lambda original: clock[0]):
        store = held_back(tmp_path, env, flush_interval_commit_log=600_000)
        low = store.message_store
        flush = low.services.log_flush

        def force() -> None:
            with flush.lock:
                while not flush.flush_step(0):
                    pass

        first = clock[0]
        store.put("t", b"one")
        force()
        assert low.checkpoint.physic_msg_timestamp == 0
        low.commit_log.commit_buffers()
        clock[0] += 1000
        store.put("t", b"two")
        force()
        assert low.checkpoint.physic_msg_timestamp == first
        low.services.flush_queue_service.do_flush(True)
        assert low.checkpoint.logics_msg_timestamp <= first
        store.flush()
        assert low.checkpoint.physic_msg_timestamp == clock[0]
        assert low.checkpoint.logics_msg_timestamp == clock[0]
        store.close()


KILLED = """
import os, signal, sys
import pyrocketstore
settings = eval(sys.argv[2])
store = pyrocketstore.open(sys.argv[1], **settings)
for i in range(60):
    store.put("t", b"%d" % i * 500, keys=f"k{i}")
store.message_store.commit_log.commit_buffers()
for i in range(60, 90):
    store.put("t", b"%d" % i * 500, keys=f"k{i}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_what_was_not_committed(tmp_path: Path) -> None:
    """And no more than that: what was committed is found by queue and by key."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), repr(HELD_BACK)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pyrocketstore.open(tmp_path, **POOL) as store:
        bodies = [m.body for m in store.read("t")]
        assert 60 <= len(bodies) <= 90
        assert bodies == [b"%d" % i * 500 for i in range(len(bodies))]
        assert [m.queue_offset for m in store.query("t", "k59")] == [59]
        assert store.put("t", b"next").queue_offset == len(bodies)
        assert store.verify().ok
    assert not (tmp_path / ".broken").exists()


@pytest.mark.parametrize(
    ("settings", "zero_fill", "populate"),
    [
        ({}, "folios", True),
        ({"transient_store_pool_enable": True}, "no", False),
        ({"write_without_mmap": True}, "no", False),
        ({"flush_disk_type": "SYNC_FLUSH"}, "pages", False),
        ({"flush_disk_type": "SYNC_FLUSH", "write_without_mmap": True}, "pages", False),
        ({"flush_disk_type": "SYNC_FLUSH", "transient_store_pool_enable": True}, "pages", False),
    ],
)
def test_pages_are_made_ready_where_they_are_stored_to(
    tmp_path: Path, settings: dict[str, Any], zero_fill: str, populate: bool
) -> None:
    with pyrocketstore.open(tmp_path, **{**SIZES, **settings}) as store:
        for i in range(300):
            store.put("t", bytes([i % 256]) * 1000)
        for file in store.message_store.commit_log.mapped_file_queue.mapped_files:
            assert (file.zero_fill, file.populate > 0) == (zero_fill, populate)
        assert [m.body[0] for m in store.read("t")] == [i % 256 for i in range(300)]
    with pyrocketstore.open(tmp_path, **{**SIZES, **settings}) as store:
        assert store.max_offset("t") == 300
        assert store.verify().ok
