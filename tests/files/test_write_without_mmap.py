"""Goal: with write_without_mmap nothing of the log or of a queue is stored into a mapping, and a
failed write is a status that loses no data and leaves no partial record.
Method: mappings are watched; writes are cut short and made to fail."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutError, PutMessageStatus
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.gates import unclean

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 17,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "write_without_mmap": True,
}


def open_store(path: Path, env: Env | None = None, **settings: Any) -> pyrocketstore.Store:
    return pyrocketstore.open(path, env=env, **{**SIZES, **settings})


def test_only_the_index_is_mapped_for_writing(tmp_path: Path) -> None:
    env = Env()
    sizes = {SIZES["mapped_file_size_commit_log"], SIZES["mapped_file_size_consume_queue"]}
    with (
        broken(env, "mmap", lambda original, *args: original(*args)) as maps,
        open_store(tmp_path, env, enable_consume_queue_ext=True) as store,
    ):
        for i in range(300):
            store.put("t", b"x" * 500, tags="T", keys=f"k{i}", queue_id=i % 2)
        store.put_many("u", [b"y"] * 5000)
        assert store.max_offset("t", 1) == 150
        assert store.max_offset("u") == 5000
        assert store.verify().ok
        writable = {size for fd, size, write, _ in maps if fd >= 0 and write}
        assert not writable & sizes
        assert {size for fd, size, write, _ in maps if fd >= 0 and not write} >= sizes
        assert len(writable) == 1, "the index"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("part", [0, 1000])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, code: int, part: int) -> None:
    """Also where a part came through before: recovery must not find what was refused."""
    env = Env()
    log = SIZES["mapped_file_size_commit_log"]
    fails = [part == 0]

    def half(pwrite: Any, fd: int, buffer: int, size: int, position: int) -> int:
        is_zero = not any(ctypes.string_at(buffer, size))
        if size == CQ_STORE_UNIT_SIZE or is_zero:  # what came through is overwritten with zeros
            return int(pwrite(fd, buffer, size, position))
        if fails[0]:
            return -code
        fails[0] = True
        return int(pwrite(fd, buffer, part, position))

    with open_store(tmp_path, env) as store:
        low = store.message_store
        store.put("t", b"before")
        before = low.get_max_phy_offset()
        with broken(env, "pwrite", half):
            refused = low.put_message(MessageExtBrokerInner("t", b"x" * 5000))
            assert refused.status is PutMessageStatus.UNKNOWN_ERROR
            assert isinstance(refused.error, pyrocketstore.StoreIOError)
            assert refused.error.errno == code
        assert low.get_max_phy_offset() == before
        again = store.put("t", b"y" * 5000)
        assert (again.queue_offset, again.phy_offset) == (1, before)
        assert low.get_max_phy_offset() < log
        assert store.verify().ok
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("number", [2, 5])
def test_a_run_that_fails_is_undone(tmp_path: Path, number: int) -> None:
    """Whole records of it may be in the file already: they would come back behind what follows."""
    env = Env()
    bodies = [b"%04d" % i * 250 for i in range(40)]
    calls = [0]

    def half(pwrite: Any, fd: int, buffer: int, size: int, position: int) -> int:
        if size < 10000:
            return int(pwrite(fd, buffer, size, position))
        calls[0] += 1  # 1 to 3 write the records without their starts
        return -errno.ENOSPC if calls[0] == number else int(pwrite(fd, buffer, size // 2, position))

    with open_store(tmp_path, env) as store:
        with broken(env, "pwrite", half), pytest.raises(PutError) as caught:
            store.put_many("t", bodies, queue_ids=[i % 2 for i in range(40)])
        assert caught.value.status is PutMessageStatus.UNKNOWN_ERROR
        assert caught.value.count == 0 and calls[0] == number
        assert store.message_store.get_max_phy_offset() == 0
        # A record of the same length: the bytes behind the first one would continue it.
        assert store.put("t", bodies[0]).phy_offset == 0
        log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
        assert not log[store.message_store.get_max_phy_offset() :].strip(b"\0")
    with open_store(tmp_path) as store:
        assert [m.body for m in store.read("t")] == [bodies[0]]
        assert store.max_offset("t", 1) == 0
        store.put_many("t", bodies, queue_ids=[i % 2 for i in range(40)])
        assert (store.max_offset("t", 0), store.max_offset("t", 1)) == (21, 20)
        assert store.verify().ok


def test_what_cannot_be_undone_ends_the_appends(tmp_path: Path) -> None:
    env = Env()
    calls = [0]

    def once(pwrite: Any, fd: int, buffer: int, size: int, position: int) -> int:
        calls[0] += 1
        return int(pwrite(fd, buffer, size // 2, position)) if calls[0] == 1 else -errno.EIO

    with open_store(tmp_path, env) as store:
        low = store.message_store
        assert store.put("t", b"before").queue_offset == 0
        assert store.max_offset("t") == 1
        end = low.get_max_phy_offset()
        with broken(env, "pwrite", once):
            low.put_message(MessageExtBrokerInner("t", b"x" * 5000))
        assert calls[0] > 2
        with pytest.raises(PutError) as caught:
            store.put("t", b"refused")
        assert caught.value.status is PutMessageStatus.UNKNOWN_ERROR
        assert low.get_max_phy_offset() == end
    with open_store(tmp_path) as store:
        assert store.put("t", b"x").queue_offset == 1
        assert store.verify().ok


def test_a_file_that_cannot_be_opened_for_writing(tmp_path: Path) -> None:
    env = Env()
    with open_store(tmp_path, env) as store:
        low = store.message_store
        store.put("t", b"x" * 60000)
        assert store.max_offset("t") == 1
        with failing(env, "open", errno.EIO):
            refused = low.put_message(MessageExtBrokerInner("t", b"y" * 90000))
            assert refused.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert store.put("t", b"y" * 90000).queue_offset == 1
        assert store.verify().ok


def test_queue_units_that_cannot_be_written_raise_the_flag(tmp_path: Path) -> None:
    env = Env()

    def not_units(pwrite: Any, fd: int, buffer: int, size: int, position: int) -> int:
        return -errno.EIO if size == 20 else int(pwrite(fd, buffer, size, position))

    with unclean(open_store(tmp_path, env)) as store:
        store.put("t", b"one")
        assert store.max_offset("t") == 1
        with broken(env, "pwrite", not_units):
            store.put("t", b"two")
            with pytest.raises(pyrocketstore.StoreIOError):
                store.wait_dispatched()
        assert store.message_store.running_flags.is_logics_queue_error()
        with pytest.raises(PutError) as caught:
            store.put("t", b"refused")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with open_store(tmp_path) as store:
        assert [m.body for m in store.read("t")] == [b"one", b"two"]
