"""Goal: `Store.follow` returns each message of a topic once and in order, whatever the owner of the
store does, and reports messages that were removed before they were read.
Method: owners in this process and in others that put, roll, clean, remove, close and die, beside a
store that follows; handlers and threads that end the wait."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DamagedMessageError,
    MessagesRemovedError,
    OffsetOutOfRange,
    Store,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
    StoreWarning,
)
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.store import following
from support.broken_env import broken
from support.processes import start as start_process
from support.sizes import SIZES

LIMIT_S = 30


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**SIZES, **settings})


def reader_of(path: Path, **settings: Any) -> Store:
    return opened(path, read_only=True, **settings)


def put(store: Store, first: int, count: int, topic: str = "t", queues: int = 2) -> None:
    for number in range(first, first + count):
        store.put(topic, b"%d" % number, queue_id=number % queues, tags="AB"[number % 2])


def numbers(messages: Any, count: int) -> list[int]:
    return [int(next(messages).body) for _ in range(count)]


def rest(messages: Any) -> list[int]:
    return [int(message.body) for message in messages]


def clean(store: Store, file_count: int) -> None:
    """Delete the first files of the log, and what has expired in the queues."""
    store.wait_dispatched()
    engine = store.message_store
    files = engine.commit_log.mapped_file_queue
    for file in files.mapped_files[:-1][:file_count]:
        stop = file.file_from_offset + file.file_size
        files.delete_expired_file_by_time(0, clean_immediately=True, before=stop)
    lowest = engine.commit_log.get_min_offset()
    for queue in engine.consume_queues():
        queue.delete_expired_file(lowest)


@pytest.mark.parametrize("read_only", (False, True))
def test_messages_that_come_later_follow(root: Path, read_only: bool) -> None:
    with opened(root) as owner:
        put(owner, 0, 50)
        store = reader_of(root) if read_only else owner
        messages = store.follow("t")
        assert numbers(messages, 50) == list(range(50))  # by store time, then offset
        put(owner, 50, 1)
        assert numbers(messages, 1) == [50]
        threading.Timer(0.05, put, (owner, 51, 3, "t", 3)).start()  # a further queue
        assert sorted(numbers(messages, 3)) == [51, 52, 53]
        put(owner, 0, 10, "another")
        put(owner, 54, 3000)
        assert sorted(numbers(messages, 3000)) == list(range(54, 3054))  # over several files
        assert not messages.skipped
        messages.close()
        assert rest(messages) == []
        store.close()


@pytest.mark.parametrize("read_only", (False, True))
def test_start_timeout_and_tags(root: Path, read_only: bool) -> None:
    with opened(root) as owner:
        put(owner, 0, 20)
        store = reader_of(root) if read_only else owner
        assert rest(store.follow("t", 1, timeout=0)) == list(range(1, 20, 2))
        assert rest(store.follow("t", 1, start=8, timeout=0)) == [17, 19]
        assert rest(store.follow("t", 1, start=10, timeout=0.01)) == []
        assert rest(store.follow("t", tags="A", timeout=0)) == list(range(0, 20, 2))
        latest = store.follow("t", start="latest", timeout=0.01)
        none = store.follow("none", start="latest", timeout=0.01)
        put(owner, 20, 3)
        put(owner, 23, 1, "none")
        assert rest(latest) == [20, 21, 22]
        assert rest(latest) == []  # it has ended
        assert rest(none) == [23]  # queues that are made later have no earlier end
        with pytest.raises(OffsetOutOfRange):
            store.follow("t", 1, start=13)
        with pytest.raises(OffsetOutOfRange):
            store.follow("t", 1, start=-1)
        store.close()


def test_arguments_are_checked(root: Path) -> None:
    with opened(root) as store:
        for given in (
            {"start": 3},
            {"start": "last"},
            {"on_loss": "ignore"},
            {"on_loss": 1},
            {"on_corrupt": "no"},
            {"timeout": float("nan")},
            {"queue_id": -1},
        ):
            with pytest.raises(StoreFormatError):
                store.follow("t", **given)  # type: ignore[arg-type]
        with pytest.raises(StoreTypeError):
            store.follow(7)  # type: ignore[arg-type]


def test_an_owner_that_is_opened_again(root: Path) -> None:
    with opened(root) as owner:
        put(owner, 0, 10)
        reader = reader_of(root)
        messages = reader.follow("t")
        assert numbers(messages, 10) == list(range(10))
    with opened(root) as owner:
        put(owner, 10, 10)
        assert numbers(messages, 10) == list(range(10, 20))
    reader.close()


KILLED = f"""
with open_store(**{SIZES}) as store:
    first = int(sys.argv[2])
    for number in range(first, first + 200):
        store.put("t", b"%d" % number, queue_id=number % 2, keys="k")
    print("up", flush=True)
    time.sleep(60)
"""


def test_an_owner_that_is_killed_and_started_again(root: Path) -> None:
    opened(root).close()
    with reader_of(root) as reader:
        messages = reader.follow("t", timeout=LIMIT_S)
        for first in (0, 200, 400):
            owner = start_process(KILLED, root, first)
            try:
                assert sorted(numbers(messages, 200)) == list(range(first, first + 200))
            finally:
                owner.kill()
                owner.communicate()


def test_a_topic_that_is_made_again(root: Path) -> None:
    with opened(root) as owner, reader_of(root) as reader:
        put(owner, 0, 10)
        both = [store.follow("t", timeout=LIMIT_S) for store in (owner, reader)]
        for messages in both:
            assert numbers(messages, 10) == list(range(10))
        for first, count in ((100, 4), (200, 4), (300, 30)):  # fewer messages, as many, and more
            owner.wait_dispatched()
            owner.message_store.clean_unused_topic(set())
            put(owner, first, count)
            for messages in both:
                with pytest.warns(StoreWarning, match="made again"):
                    assert sorted(numbers(messages, count)) == list(range(first, first + count))


@pytest.mark.parametrize("read_only", (False, True))
@pytest.mark.parametrize("on_loss", ("raise", "skip"))
def test_messages_that_are_removed_first(root: Path, read_only: bool, on_loss: str) -> None:
    with opened(root) as owner:
        put(owner, 0, 10, queues=1)
        store = reader_of(root) if read_only else owner
        messages = store.follow("t", 0, on_loss=on_loss, timeout=LIMIT_S)
        assert numbers(messages, 10) == list(range(10))
        put(owner, 10, 2000, queues=1)
        clean(owner, 2)
        low = owner.min_offset("t")
        assert 10 < low < 2000
        if on_loss == "raise":
            with pytest.raises(MessagesRemovedError) as error:
                next(messages)
            assert (error.value.start, error.value.stop) == (10, low)
        assert numbers(messages, 2010 - low) == list(range(low, 2010))
        store.close()


@pytest.mark.parametrize("read_only", (False, True))
@pytest.mark.parametrize("on_loss", ("raise", "skip"))
@pytest.mark.parametrize("tags", ("*", "A"))
def test_cleaning_overtakes_a_round(root: Path, read_only: bool, on_loss: str, tags: str) -> None:
    with opened(root) as owner:
        put(owner, 0, 4000, queues=1)
        owner.wait_dispatched()
        store = reader_of(root) if read_only else owner
        messages = store.follow("t", 0, on_loss=on_loss, tags=tags, timeout=0)
        read = numbers(messages, 3)
        clean(owner, 4)
        lost: set[int] = set()
        stops: list[int] = []
        while True:
            try:
                read.append(int(next(messages).body))
            except MessagesRemovedError as error:
                lost.update(range(error.start, error.stop))
                stops.append(error.stop)
            except StopIteration:
                break
        wanted = set(range(0, 4000, 1 if tags == "*" else 2))
        assert read == sorted(set(read))
        assert read[-1] == max(wanted)
        assert len(read) < len(wanted)
        if on_loss == "raise":
            assert wanted - set(read) <= lost
            assert not lost & set(read)
            assert stops[-1] == owner.min_offset("t")
            assert read_only or len(stops) == 1
        else:
            assert not lost
        assert not messages.skipped
        store.close()


def test_an_offset_that_has_expired_is_a_loss(root: Path) -> None:
    with opened(root) as store:
        put(store, 0, 2000, queues=1)
        clean(store, 2)
        low = store.min_offset("t")
        messages = store.follow("t", 0, start=5, timeout=0)
        with pytest.raises(MessagesRemovedError, match="skip") as error:
            next(messages)
        assert (error.value.start, error.value.stop) == (5, low)
        assert rest(messages) == list(range(low, 2000))
        assert rest(store.follow("t", 0, start=5, timeout=0, on_loss="skip"))[0] == low


def test_a_record_that_is_being_written_is_not_there_yet(root: Path) -> None:
    with opened(root) as owner:
        put(owner, 0, 5, queues=1)
        owner.wait_dispatched()
        begin = owner.message_store.get_max_phy_offset()
        shutil.copytree(root, root.with_name("live"))
        put(owner, 5, 1, queues=1)
        owner.wait_dispatched()
        end = owner.message_store.get_max_phy_offset()
    name = f"commitlog/{0:020d}"
    record = (root / name).read_bytes()[begin:end]
    log = root.with_name("live") / name
    with reader_of(log.parent.parent) as reader, warnings.catch_warnings():
        warnings.simplefilter("error")
        messages = reader.follow("t", 0, timeout=LIMIT_S)
        assert numbers(messages, 5) == list(range(5))
        engine, fd = reader.message_store, os.open(log, os.O_WRONLY)
        for size in (4, 8, 40, 80):
            os.pwrite(fd, record[:size], begin)
            again = reader.follow("t", 0, timeout=0.02)
            assert numbers(again, 5) == list(range(5))
            assert rest(again) == []
            assert not again.skipped
            assert engine.get_max_phy_offset() == begin
        os.pwrite(fd, record, begin)
        os.close(fd)
        assert numbers(messages, 1) == [5]


def test_a_damaged_message(root: Path) -> None:
    with opened(root) as store:
        put(store, 0, 10, queues=1)
        store.wait_dispatched()
        third = list(store.read("t"))[3]
        with open(root / f"commitlog/{0:020d}", "r+b") as log:
            log.seek(third.phy_offset + 4)
            log.write(b"xxxx")
        messages = store.follow("t", timeout=0)
        assert numbers(messages, 3) == [0, 1, 2]
        with pytest.raises(DamagedMessageError):
            next(messages)
        assert rest(messages) == [4, 5, 6, 7, 8, 9]
        assert messages.skipped.count == 1
        skipping = store.follow("t", timeout=0, on_corrupt="skip")
        assert rest(skipping) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert skipping.skipped.count == 1


@pytest.mark.parametrize("call", ("pread", "open"))
def test_a_failed_system_call_is_an_error_and_no_gap(root: Path, call: str) -> None:
    """Each of the first calls of a round fails once; a message that it concerns is in `skipped`."""
    with opened(root) as owner, reader_of(root) as reader:
        messages = reader.follow("t", timeout=LIMIT_S)
        found: list[int] = []
        left = [-1]

        def fail(original: Any, *given: Any) -> int:
            left[0] -= 1
            return -errno.EIO if left[0] == 0 else int(original(*given))

        errors = 0
        with broken(reader.message_store.env, call, fail):
            for number in range(25):
                put(owner, 20 * number, 20)
                owner.wait_dispatched()
                left[0] = number + 1
                while len(found) + messages.skipped.count < 20 * (number + 1):
                    try:
                        found.append(int(next(messages).body))
                    except StoreIOError as error:
                        assert error.errno == errno.EIO
                        errors += 1
        assert errors
        skipped = messages.skipped
        lost = {
            2 * offset + part.queue_id
            for part in skipped.ranges
            for offset in range(part.start, part.stop)
        }
        assert sorted([*found, *lost]) == list(range(500))


@pytest.mark.parametrize("read_only", (False, True))
def test_a_wait_ends(root: Path, read_only: bool) -> None:
    with opened(root) as owner:
        store = reader_of(root) if read_only else owner
        messages = store.follow("t")
        threading.Timer(0.05, messages.close).start()
        assert rest(messages) == []
        messages = store.follow("t")
        closing = threading.Timer(0.05, store.close)
        closing.start()
        with pytest.raises(StoreStateError):
            next(messages)
        closing.join()
        with pytest.raises(StoreStateError):
            store.follow("t")


@pytest.mark.parametrize("read_only", (False, True))
@pytest.mark.parametrize("on_loss", ("raise", "skip"))
def test_a_close_during_a_read_is_no_loss(
    root: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool, on_loss: str
) -> None:
    """Files that the close has released look as if they were removed."""
    with opened(root) as owner:
        put(owner, 0, 400, queues=1)
        owner.wait_dispatched()
        store = reader_of(root) if read_only else owner
        messages = store.follow("t", 0, on_loss=on_loss, timeout=0)
        known = following._Chunks._low

        def closed(chunks: following._Chunks) -> int:
            monkeypatch.setattr(following._Chunks, "_low", known)
            store.close()
            return known(chunks)

        monkeypatch.setattr(following._Chunks, "_low", closed)
        with pytest.raises(StoreStateError):
            next(messages)
        with pytest.raises(StoreStateError):
            next(messages)


@pytest.mark.parametrize("read_only", (False, True))
def test_a_close_during_the_call_of_read_is_no_empty_queue(
    root: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    with opened(root) as owner:
        put(owner, 0, 40, queues=1)
        store = reader_of(root) if read_only else owner
        known = ConsumeQueue.first_readable_offset

        def closed(queue: ConsumeQueue, *arguments: Any) -> int:
            monkeypatch.setattr(ConsumeQueue, "first_readable_offset", known)
            store.close()
            return known(queue, *arguments)

        monkeypatch.setattr(ConsumeQueue, "first_readable_offset", closed)
        with pytest.raises(StoreStateError):
            store.read("t", 0, start=3, stop=4)


class Interrupted(Exception):
    """Raised by the handler."""


@pytest.mark.parametrize("read_only", (False, True))
def test_a_handler_that_raises_loses_no_message(root: Path, read_only: bool) -> None:
    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with opened(root) as owner:
            store = reader_of(root) if read_only else owner
            messages = store.follow("t")
            for number in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                with pytest.raises(Interrupted):
                    next(messages)
                put(owner, number, 1)
                assert numbers(messages, 1) == [number]
            store.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("read_only", (False, True))
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused(root: Path, read_only: bool) -> None:
    with opened(root) as owner:
        put(owner, 0, 3)
        store = reader_of(root) if read_only else owner
        messages = store.follow("t")
        assert numbers(messages, 3) == [0, 1, 2]
        child = os.fork()
        if child == 0:
            try:
                next(messages)
            except StoreStateError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        put(owner, 3, 1)
        assert numbers(messages, 1) == [3]
        store.close()


def test_a_consumer_of_a_reader_waits_for_the_owner(root: Path) -> None:
    with opened(root) as owner, reader_of(root) as reader:
        consumer = reader.consumer("g", "t")
        assert consumer.poll(1, 0) == []
        put(owner, 0, 3)
        assert {int(message.body) for message in consumer.poll(32, LIMIT_S)} == {0, 1, 2}
        threading.Timer(0.05, put, (owner, 3, 1)).start()
        assert [int(message.body) for message in consumer.poll(32, LIMIT_S)] == [3]
        threading.Timer(0.05, consumer.close).start()
        with pytest.raises(StoreStateError):
            consumer.poll()


def test_the_end_of_an_iteration_is_announced(root: Path) -> None:
    with opened(root) as store:
        put(store, 0, 2)
        messages = store.follow("t", timeout=0.01)
        waits: list[int] = []
        messages.on_wait = lambda: waits.append(1)
        assert numbers(messages, 2) == [0, 1]
        assert waits == []
        assert rest(messages) == []
        assert waits


@pytest.mark.parametrize("topic", ["", "o ", "a/b", "\0", "x" * 300, "\ud800"])
def test_a_name_that_is_no_topic_is_refused(root: Path, topic: str) -> None:
    """No put can make such a topic: there would be nothing to wait for."""
    with opened(root) as store, pytest.raises(StoreFormatError, match="a topic must be 1 to 127"):
        store.follow(topic)
