"""Goal: a queue that cannot be deleted remains usable, and loses no message that is put afterwards.
Method: each system call that deletes fails, for ever or once; a kill interrupts the removal."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import PutError, StoreCorruptionError, StoreIOError
from pyrocketstore.cleaning import queue_removal
from pyrocketstore.system.env import Env
from support import cleaned_stores
from support.broken_env import broken, failing
from support.cleaned_stores import opened
from support.damaged_stores import halt
from support.far_stores import BEGINS, begin_log_at
from support.gates import wait_until

#: 100 units in a file.
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
COUNT = 250


def nth(number: int, then: Callable[[], int]) -> Callable[..., int]:
    """A system call that is `then()` from its call `number` on."""
    calls = [0]

    def call(original: Callable[..., int], *arguments: Any) -> int:
        calls[0] += 1
        return then() if calls[0] >= number else original(*arguments)

    return call


def fill(store: pyrocketstore.Store) -> None:
    store.put_many("gone", [b"old"] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
    store.put("kept", b"x")
    store.wait_dispatched()


def put_and_read(store: pyrocketstore.Store, count: int = 5) -> list[int]:
    """Put, and find each in its place; the queue offsets."""
    offsets = [store.put("gone", b"new%d" % i, keys=f"n{i}").queue_offset for i in range(count)]
    assert_there(store, offsets)
    return offsets


def assert_there(store: pyrocketstore.Store, offsets: list[int]) -> None:
    assert store.wait_dispatched(20)
    for i, offset in enumerate(offsets):
        (found, *_) = store.read("gone", 0, start=offset)
        assert (found.queue_offset, found.body) == (offset, b"new%d" % i)
        assert offset in [m.queue_offset for m in store.query("gone", f"n{i}")]
    assert store.max_offset("gone") == offsets[-1] + 1
    assert store.message_store.failure is None


def assert_whole(store: pyrocketstore.Store) -> None:
    report = store.verify()
    assert report.ok, report.problems[:5]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("begin", [0, BEGINS[1]])
def test_a_queue_whose_files_stay_goes_on(
    tmp_path: Path, begin: int, code: int, number: int
) -> None:
    env = Env()
    begin_log_at(tmp_path / "store", begin, SIZES["mapped_file_size_commit_log"])
    store = pyrocketstore.open(tmp_path / "store", env=env, **SIZES)
    fill(store)
    with (
        broken(env, "unlink", nth(number, lambda: -code)),
        pytest.raises(StoreIOError, match="unlink failed"),
    ):
        store.message_store.clean_unused_topic(["kept"])
    left = [100 * i for i in range(number - 1, 3)]
    assert [m.queue_offset for m in store.read("gone")] == list(range(left[0], COUNT))
    assert store.min_offset("gone") == left[0]
    assert store.message_store.get_min_offset_in_queue("gone", 0) == left[0]
    offsets = put_and_read(store)
    assert offsets == list(range(COUNT, COUNT + 5))
    shutil.copytree(tmp_path / "store", tmp_path / "killed", ignore=lambda *_: {"lock"})
    store.close()
    for path in (tmp_path / "store", tmp_path / "killed"):
        for _ in range(2):
            with pyrocketstore.open(path, **SIZES) as store:
                assert_there(store, offsets)
                if number == 1:  # else the log has messages that were deleted
                    assert_whole(store)
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        store.message_store.clean_unused_topic(["kept"])
        assert store.topics() == ["kept"]
        assert put_and_read(store) == [0, 1, 2, 3, 4]


def test_a_queue_whose_directory_stays_is_empty(tmp_path: Path) -> None:
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        fill(store)
        with failing(env, "rmdir", errno.EIO), pytest.raises(StoreIOError, match="rmdir failed"):
            store.message_store.clean_unused_topic(["kept"])
        assert list(store.read("gone")) == []
        assert put_and_read(store) == [0, 1, 2, 3, 4]
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert_there(store, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_a_queue_whose_ext_files_stay_goes_on(tmp_path: Path, number: int) -> None:
    """Those go last: no unit names an ext unit that is gone."""
    env = Env()
    ext = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096}
    with pyrocketstore.open(tmp_path, env=env, **SIZES, **ext) as store:
        fill(store)
        with (
            broken(env, "unlink", nth(number, lambda: -errno.EIO)),
            pytest.raises(StoreIOError, match="unlink failed"),
        ):
            store.message_store.clean_unused_topic(["kept"])
        first = COUNT if number <= 3 else 0
        offsets = put_and_read(store)
        assert offsets == list(range(first, first + 5))
        queue = store.message_store.get_consume_queue("gone", 0)
        assert queue is not None
        units = queue.read_units(offsets[0], 5)
        assert all(queue.get_ext(int(code)) is not None for code in units.tags_code)
    with pyrocketstore.open(tmp_path, **SIZES, **ext) as store:
        assert_there(store, offsets)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_while_a_queue_is_deleted(tmp_path: Path, number: int) -> None:
    """The queue is there, as the log has it."""
    env = Env()

    def kill() -> int:
        if not (tmp_path / "killed").exists():
            shutil.copytree(tmp_path / "store", tmp_path / "killed", ignore=lambda *_: {"lock"})
        return -errno.EIO

    with pyrocketstore.open(tmp_path / "store", env=env, **SIZES) as store:
        fill(store)
        with broken(env, "unlink", nth(number, kill)), pytest.raises(StoreIOError):
            store.message_store.clean_unused_topic(["kept"])
    for _ in range(2):
        with pyrocketstore.open(tmp_path / "killed", **SIZES) as store:
            assert [m.queue_offset for m in store.read("gone")][:COUNT] == list(range(COUNT))
            assert put_and_read(store)[0] == store.max_offset("gone") - 5
            assert_whole(store)


def test_a_foreign_file_in_a_queues_place_stops_the_queue_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher lives, the store says why, and repairs itself when the file is gone."""
    monkeypatch.setattr("pyrocketstore.recovery.repair.REPAIR_INTERVAL_MS", 20)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("gone", b"x")
        store.wait_dispatched()
        foreign = tmp_path / "consumequeue" / "gone" / "0" / f"{2000:020d}"
        foreign.write_bytes(b"not ours")
        store.put_many("gone", [b"y"] * 150, keys=[f"k{i}" for i in range(150)])
        low = store.message_store
        wait_until(lambda: low.why_not_writeable is not None, "nobody noticed")
        assert low.services.reput_service.is_alive
        assert isinstance(low.why_not_writeable, StoreCorruptionError)
        with pytest.raises(PutError, match=f"{2000:020d}"):
            store.put("kept", b"z")
        os.unlink(foreign)
        wait_until(lambda: low.why_not_writeable is None, "it was not repaired")
        assert store.put("gone", b"z").queue_offset == 151
        assert len(list(store.read("gone"))) == 152
        assert len(store.query("gone", "k149")) == 1
        assert_whole(store)
    assert not (tmp_path / "abort").exists()


@pytest.mark.slow
def test_queues_are_destroyed_in_peace_while_messages_flow(tmp_path: Path) -> None:
    """Goal: taking queues away while they are written harms neither the dispatcher nor later
    messages. Method: one thread puts, the other destroys in a loop; not so many files that a slow
    device deletes them more slowly than they are made."""
    stop = threading.Event()
    failures: list[pyrocketstore.StoreError] = []

    with pyrocketstore.open(
        tmp_path, **{**SIZES, "mapped_file_size_consume_queue": 40_000}
    ) as store:

        def put() -> None:
            try:
                while not stop.is_set():
                    store.put_many("t", [b"x"] * 200, queue_ids=[i % 4 for i in range(200)])
                    for _ in range(20):
                        store.put("t", b"y", queue_id=1)
            except pyrocketstore.StoreError as error:
                failures.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            store.message_store.clean_unused_topic([])
        stop.set()
        thread.join()
        assert not failures
        assert store.message_store.failure is None
        store.message_store.clean_unused_topic([])
        for i in range(10):
            assert store.put("t", b"last", queue_id=1).queue_offset == i
        assert [m.body for m in store.read("t", 1)] == [b"last"] * 10


def test_a_close_waits_for_the_removal_of_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the removal would delete files of the next owner of the directory."""
    reached, proceed = threading.Event(), threading.Event()
    destroy = queue_removal._destroy_queue

    def destroy_later(*arguments: Any) -> None:
        reached.set()
        assert proceed.wait(20)
        destroy(*arguments)

    monkeypatch.setattr(queue_removal, "_destroy_queue", destroy_later)
    store = pyrocketstore.open(tmp_path, **SIZES)
    fill(store)
    below = store.message_store
    cleaning = threading.Thread(target=below.clean_unused_topic, args=(["kept"],))
    cleaning.start()
    assert reached.wait(20)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.5)
    with pytest.raises(pyrocketstore.StoreStateError, match="already open"):
        pyrocketstore.open(tmp_path, **SIZES)
    proceed.set()
    closing.join(20)
    cleaning.join(20)
    assert not (tmp_path / "consumequeue" / "gone" / "0").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert_whole(store)


@pytest.mark.parametrize("which", ["unused topics", "expired queues"])
def test_a_closed_store_removes_no_queue(tmp_path: Path, which: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
    below = store.message_store
    with pytest.raises(pyrocketstore.StoreStateError, match="closed"):
        if which == "expired queues":
            below.clean_expired_consumer_queue()
        else:
            below.clean_unused_topic(["kept"])
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.max_offset("gone") == COUNT


def test_a_deleted_topic_comes_back_from_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        cleaned_stores.fill(store, 5, "kept")
        cleaned_stores.fill(store, 5, "gone")
        store.clean_unused_topic(["kept"])
        assert sorted(store.get_consume_queue_table()) == ["kept"]
    assert not (tmp_path / "consumequeue" / "gone" / "0").exists()
    halt(tmp_path)
    with opened(tmp_path) as store:
        assert store.get_max_offset_in_queue("gone", 0) == 5
        cleaned_stores.fill(store, 1, "gone", start=5)
        assert store.get_max_offset_in_queue("gone", 0) == 6
