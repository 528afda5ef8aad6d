"""Goal: a queue whose topic was removed and has received new messages has exactly the new ones
after every recovery, and a damaged queue offset never counts as such a start.
Method: copies of stores whose dispatcher was paused, that is of killed ones; queue files deleted by
hand; a failing and then repaired queue; queue offsets in the log overwritten."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.consume_queue import retries
from pyrocketstore.recovery.repair import repair
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.seed import SEED
from support.sizes import TINY_SIZES

QUEUE_OFFSET_POSITION = 20
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096}
LIGHT = {"enable_multi_dispatch": True}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    for path in (tmp_path / "store", tmp_path / "killed"):
        shutil.rmtree(path, ignore_errors=True)


def put(store: pyrocketstore.Store, text: str, count: int, **given: Any) -> None:
    for number in range(count):
        store.put("t", f"{text} {number}".encode(), keys="k", tags="A", **given)


def remove(store: pyrocketstore.Store, *topics: str) -> None:
    store.message_store.clean_unused_topic(set(store.topics()) - {"t", *topics})


def killed(root: Path) -> Path:
    """A copy of a live store: what a kill would leave."""
    copy = root.parent / "killed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("lock"))
    return copy


def bodies(store: pyrocketstore.Store, topic: str = "t") -> list[str]:
    return [message.body.decode() for message in store.read(topic)]


def problems(store: pyrocketstore.Store) -> list[str]:
    """Return the problems of existing units. Missing units are left out: verify also reports them
    for old messages of a topic with fewer new ones, and for queues that a reader built in memory.
    """
    found = [problem.text for problem in store.verify().problems]
    return [text for text in found if " missing" not in text]


def check(path: Path, wanted: list[str], settings: dict[str, Any], topic: str = "t") -> None:
    """A read-only store, the recovery, and the opening after it answer the same."""
    for read_only in (True, False, True, False):
        with pyrocketstore.open(path, read_only=read_only, **settings) as store:
            assert bodies(store, topic) == wanted
            if topic == "t":
                offsets = [message.queue_offset for message in store.read(topic)]
                assert offsets == list(range(len(wanted)))
            assert store.max_offset(topic) == len(wanted)
            assert not problems(store)
    with pyrocketstore.open(path, **settings) as store:
        if topic == "t":
            assert store.put("t", b"next").queue_offset == len(wanted)
            assert bodies(store) == [*wanted, "next"]
            assert not problems(store)


@pytest.mark.parametrize("settings", [{}, EXT, LIGHT], ids=["plain", "ext", "light"])
@pytest.mark.parametrize("old", [1, 3, 450])
@pytest.mark.parametrize("new", [1, 2, 3, 5, 500])
def test_a_kill_before_the_new_messages_are_queued(
    root: Path, old: int, new: int, settings: dict[str, Any]
) -> None:
    settings = {**TINY_SIZES, **settings}
    with pyrocketstore.open(root, **settings) as store:
        store.put("u", b"x")
        put(store, "old", old)
        store.wait_dispatched()
        remove(store)
        with store.message_store.dispatch_paused():
            put(store, "new", new)
            path = killed(root)
    check(path, [f"new {number}" for number in range(new)], settings)


def test_of_several_removals_the_last_one_counts(root: Path) -> None:
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        for count in (4, 1, 7, 1, 1, 3, 2):
            remove(store)
            with store.message_store.dispatch_paused():
                put(store, f"of {count}", count)
                path = killed(root)
            store.wait_dispatched()
            check(path, [f"of {count} {number}" for number in range(count)], TINY_SIZES)


def test_the_units_of_new_messages_that_a_queue_has_stay(root: Path) -> None:
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 10)
        store.wait_dispatched()
        remove(store)
        put(store, "new", 4)
        store.wait_dispatched()
        with store.message_store.dispatch_paused():
            put(store, "newer", 4)
            path = killed(root)
    wanted = [f"{text} {number}" for text in ("new", "newer") for number in range(4)]
    check(path, wanted, TINY_SIZES)


def test_files_of_removed_queues_that_a_power_cut_brings_back(root: Path) -> None:
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 450)
        store.flush()
        shutil.copytree(root / "consumequeue" / "t", root.parent / "t")
        remove(store)
        with store.message_store.dispatch_paused():
            put(store, "new", 7)
            path = killed(root)
    shutil.copytree(root.parent / "t", path / "consumequeue" / "t", dirs_exist_ok=True)
    check(path, [f"new {number}" for number in range(7)], TINY_SIZES)


def test_queues_that_are_built_from_the_whole_log(root: Path) -> None:
    """Old and new messages are both before the files that an opening scans."""
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        put(store, "old", 450)
        store.wait_dispatched()
        remove(store)
        put(store, "new", 300)
        store.put_many("u", [b"x" * 1000] * 200)
    shutil.rmtree(root / "consumequeue")
    check(root, [f"new {number}" for number in range(300)], TINY_SIZES)


def test_a_queue_that_continues_at_an_earlier_offset(root: Path) -> None:
    """As after 4.9.3 has lost the last units of a queue: newer messages have their offsets."""
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 10)
        store.wait_dispatched()
        with store.message_store.dispatch_paused():
            store.message_store.commit_log.core.set_next_offset("t", 0, 6)
            put(store, "new", 3)
            store.message_store.commit_log.core.set_next_offset("t", 0, 4)
            put(store, "newer", 2)
            store.message_store.commit_log.core.set_next_offset("t", 0, 5)
            put(store, "newest", 3)
            path = killed(root)
        shutil.rmtree(path / "consumequeue" / "t")
    wanted = [f"old {number}" for number in range(4)] + ["newer 0"]
    check(path, wanted + [f"newest {number}" for number in range(3)], TINY_SIZES)


def test_a_further_queue_starts_again(root: Path) -> None:
    settings = {**TINY_SIZES, **LIGHT}
    further = {"INNER_MULTI_DISPATCH": "u", "INNER_MULTI_QUEUE_OFFSET": "0"}
    with pyrocketstore.open(root, **settings) as store:
        engine = store.message_store
        store.put("v", b"x")

        def put_further(text: str, count: int) -> None:
            for number in range(count):
                message = pyrocketstore.MessageExtBrokerInner("v", f"{text} {number}".encode())
                message.properties.update(further)
                assert engine.put_message(message).status.name == "PUT_OK"

        put_further("old", 3)
        store.wait_dispatched()
        remove(store, "u")
        assert "u" not in store.topics()
        with engine.dispatch_paused():
            put_further("new", 5)
            path = killed(root)
    with pyrocketstore.open(path, **settings) as store:
        assert [m.body.decode() for m in store.read("v")][1:4] == [f"old {i}" for i in range(3)]
    check(path, [f"new {number}" for number in range(5)], settings, "u")


@pytest.mark.parametrize("number", [1, 5, 8, 9])
@pytest.mark.parametrize("value", [0, 1, 4])
@pytest.mark.parametrize("with_queue", [True, False])
def test_a_damaged_queue_offset_is_no_start(
    root: Path, number: int, value: int, with_queue: bool
) -> None:
    """The other messages keep their units."""
    if number == 9 and not with_queue and value == 0:
        pytest.skip("without units, the two cases cannot be distinguished")
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 9)
        store.wait_dispatched()
        with store.message_store.dispatch_paused():
            put(store, "last", 1)
            at = store.message_store.get_max_phy_offset()
            path = killed(root)
        at = [message.phy_offset for message in store.read("t")][number]
    if not with_queue:
        shutil.rmtree(path / "consumequeue" / "t")
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + QUEUE_OFFSET_POSITION)
        file.write(value.to_bytes(8, "big"))
    wanted = {f"old {i}" for i in range(9)} | {"last 0"}
    with pyrocketstore.open(path, **TINY_SIZES) as store:
        found = {message.body.decode() for message in store.read("t", on_corrupt="skip")}
    assert wanted - found <= {"last 0" if number == 9 else f"old {number}"}


def test_a_repaired_queue_has_the_new_messages_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "MAX_RETRIES", 1)
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 3)
        store.wait_dispatched()
        remove(store)
        in_the_way = root / "consumequeue" / "t"
        with store.message_store.dispatch_paused():
            put(store, "new", 5)
            shutil.rmtree(in_the_way, ignore_errors=True)
            in_the_way.write_bytes(b"a file where a directory must be")
        with pytest.raises(pyrocketstore.StoreIOError):
            store.wait_dispatched()
        in_the_way.unlink()
        assert repair(store.message_store.files, store.message_store.dispatch_paused())
        assert bodies(store) == [f"new {number}" for number in range(5)]
        assert store.verify().ok
    check(root, [f"new {number}" for number in range(5)], TINY_SIZES)


@pytest.mark.parametrize("call", ["open", "pread", "fallocate", "pwrite", "unlink"])
@pytest.mark.parametrize("how", ["killed", "failing"])
def test_a_recovery_that_is_cut_short_is_made_again(root: Path, call: str, how: str) -> None:
    """The next one has the same result, whichever system call was the last one or failed."""
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 30)
        store.wait_dispatched()
        remove(store)
        with store.message_store.dispatch_paused():
            put(store, "new", 15)
            killed(root)
    wanted = [f"new {number}" for number in range(15)]
    begin, snapshot = root.parent / "begin", root.parent / "snapshot"
    (root.parent / "killed").rename(begin)
    choose = random.Random(SEED)
    number = 0
    while True:
        number += choose.randrange(1, 12)
        path = root.parent / "killed"
        for old in (path, snapshot):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(begin, path)
        if not cut_short(path, call, number, snapshot if how == "killed" else None):
            break
        with pyrocketstore.open(snapshot if how == "killed" else path, **TINY_SIZES) as store:
            assert bodies(store) == wanted
            assert not problems(store)
    for old in (begin, snapshot):
        shutil.rmtree(old, ignore_errors=True)


def cut_short(path: Path, call: str, number: int, snapshot: Path | None) -> bool:
    """Open and close a store whose system call of that number fails, or at which its directory is
    copied; return False if it makes fewer."""
    env = Env()

    def meet(original: Callable[..., int], *arguments: Any) -> int:
        if len(calls) - 1 == number:
            if snapshot is None:
                return -errno.EIO
            with contextlib.suppress(shutil.Error):  # another thread has deleted a file meanwhile
                shutil.copytree(path, snapshot, ignore=shutil.ignore_patterns("lock"))
        return original(*arguments)

    with broken(env, call, meet) as calls, contextlib.suppress(pyrocketstore.StoreError):
        pyrocketstore.open(path, env=env, **TINY_SIZES).close()
    return len(calls) > number


@pytest.mark.parametrize("read_only", [True, False])
def test_a_negative_queue_offset_is_no_start(
    root: Path, caplog: pytest.LogCaptureFixture, read_only: bool
) -> None:
    """The next record seems to follow it."""
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        store.put("u", b"x")
        put(store, "old", 3)
        damaged = [message.phy_offset for message in store.read("t")][-1]
        remove(store)
        with store.message_store.dispatch_paused():
            put(store, "new", 5)
            path = killed(root)
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(damaged + QUEUE_OFFSET_POSITION)
        file.write((-1).to_bytes(8, "big", signed=True))
    with pyrocketstore.open(path, read_only=read_only, **TINY_SIZES) as store:
        assert bodies(store) == [f"new {number}" for number in range(5)]
        assert (store.min_offset("t"), store.max_offset("t")) == (0, 5)
    starts = [text for text in caplog.messages if "starts again" in text]
    assert len(starts) == 1 and "starts again at queue offset 0 " in starts[0]
