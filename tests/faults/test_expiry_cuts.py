"""Goal: whichever rule deletes files of the log, and wherever they are, a power cut gives no queue
offset twice, no removed message back, and leaves no gap in the log.
Method: a simulated device is cut before each unlink and each flush of a directory while files
expire. Of what is not durable, only deletions survive: those in each set of directories."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from device import Captured
from fault_programs import DIRECTORY
from pyrocketstore.arguments.scalars import INT64_MAX
from removal_cuts import (
    DELETED,
    EXT,
    LMQ,
    READ_ONLY_PATH,
    SEVERAL_PATHS,
    WAYS,
    Cut,
    Way,
    check_whole,
    consume,
    open_at,
    put,
)

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "ext": EXT, "light": LMQ}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "several": SEVERAL_PATHS,
    "read-only": READ_ONLY_PATH,
}
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LONGEST_S = 30.0
LIGHT = frozenset({"%LMQ%t"})
#: A cut before one of these calls may leave another state than the one before.
CALLS = frozenset({"unlink", "fsync_directory"})

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")


class Case(NamedTuple):
    """A way of removal, and the settings of the store; the kind of its queues."""

    way: Way
    settings: dict[str, Any]
    kind: str


def cases(every: int = 1) -> list[Any]:
    """Return each pair of a way, a kind, a layout and a flush once at least; of `every` 3, each of
    them alone."""
    found = []
    for (i, way), (j, kind) in itertools.product(enumerate(WAYS), enumerate(KINDS)):
        layout = list(LAYOUTS)[(i + j) % 3]
        flush = ("SYNC_FLUSH", "ASYNC_FLUSH")[(i // 3 + j) % 2]
        settings = WAYS[way].settings | KINDS[kind] | LAYOUTS[layout] | {"flush_disk_type": flush}
        if (i // 3 + j + i) % every == 0:
            case = Case(WAYS[way], settings, kind)
            found.append(pytest.param(case, id=f"{way}-{kind}-{layout}-{flush}"))
    return found


def examine_images(
    cut: Cut,
    moments: list[Captured],
    *judges: Callable[[Any], object],
    prepare: Callable[[Path], object] = lambda root: None,
) -> int:
    """Open each image once for each judge; of the deletions, each set may be durable.

    `prepare` is called with the root of the store before.

    Returns the number of images.
    """
    seen = set()
    for number, moment in enumerate(moments):
        contents = tuple(durable for durable, _ in moment.files.values())
        deletions = [one for one in moment.changes if one.node is None]
        assert len(deletions) < 7, deletions
        for kept in itertools.product((False, True), repeat=len(deletions)):
            lost = [one for one, stays in zip(deletions, kept, strict=True) if not stays]
            changes = [one for one in moment.changes if one not in lost]
            if (state := (tuple(changes), contents)) in seen:
                continue
            seen.add(state)
            path = cut.image_path()
            try:
                cut.write(moment._replace(changes=changes), DELETED, path)
                prepare(path / DIRECTORY)
                for judge in judges:
                    with open_at(path, cut.settings, None) as store:
                        judge(store)
            except BaseException as error:
                error.add_note(f"moment {number}, before {moment.call}, lost: {lost}")
                raise
    return len(seen)


def begin(tmp_path: Path, settings: dict[str, Any], **more: Any) -> Cut:
    """Open a store; if one path of its log is only read, that one has got a file before."""
    settings = dict(settings)
    if not settings.items() >= READ_ONLY_PATH.items():
        return Cut(tmp_path, settings, **more)
    del settings["read_only_commit_log_store_paths"]
    cut = Cut(tmp_path, settings | SEVERAL_PATHS, **more)
    cut.fill(3)
    cut.open_again(READ_ONLY_PATH)
    return cut


def expire(cut: Cut, way: Way) -> list[Captured]:
    """Remove all files of the log but the last one; return the moments."""
    first, count = cut.log_files()[0], len(cut.log_files())
    assert count > 2
    moments = cut.moments(CALLS, lambda: way.remove(cut))
    assert len(cut.log_files()) == 1
    assert not Path(first).exists()
    assert {moment.call for moment in moments} > CALLS
    return moments


def delete_files_alone(cut: Cut, before_ms: int = INT64_MAX) -> None:
    """Delete files of the log as a rule does before it cleans the queues: the last deletion is not
    durable."""
    cut.store.message_store.services._log_retention().delete_older(before_ms)


def close(cut: Cut) -> None:
    """Close the store."""
    cut.store.close()


def keeps_offsets(topic: str) -> Callable[[Any], None]:
    """Return a judge: the topic has got 6 messages, which the group "g" has read."""

    def judge(store: Any) -> None:
        assert store.max_offset(topic, 0) == 6
        found = [int(message.body) for message in store.read(topic)]
        assert found == list(range(6 - len(found), 6))
        check_whole(store)
        for number in range(6, 9):
            if topic in LIGHT:
                store.put("wide", b"%d" % number, properties={"INNER_MULTI_DISPATCH": topic})
            else:
                store.put(topic, b"%d" % number)
        assert consume(store, "g", topic, 10) == [6, 7, 8]

    return judge


@pytest.mark.parametrize("case", cases())
def test_no_queue_offset_is_given_twice(tmp_path: Path, case: Case) -> None:
    """The units of a message are durable before its file of the log expires."""
    cut = begin(tmp_path, case.settings)
    topic = "%LMQ%t" if case.kind == "light" else "t"
    put(cut, topic, range(3))
    cut.store.flush()
    put(cut, topic, range(3, 6))
    assert consume(cut.store, "g", topic, 6) == list(range(6))
    cut.fill(2)
    moments = expire(cut, case.way)
    cut.end()
    assert examine_images(cut, moments, keeps_offsets(topic)) > 5


def decided(cut: Cut, numbers: range) -> None:
    """Prepare transactions, and commit the even ones."""
    for number in numbers:
        with cut.store.prepare("t", b"%d" % number, group="p") as transaction:
            if number % 2:
                transaction.rollback()
        cut.device.clock_ms += 1


@pytest.mark.parametrize("case", cases(every=3))
def test_no_transaction_is_passed_over(tmp_path: Path, case: Case) -> None:
    """The queues of half and op messages keep their ends, which a file of positions names."""
    cut = begin(tmp_path, case.settings)
    decided(cut, range(3))
    cut.store.flush()
    decided(cut, range(3, 6))
    assert consume(cut.store, "g", "t", 6) == [0, 2, 4]
    cut.store.message_store.services.transaction_service.persist()
    cut.fill(2)
    moments = expire(cut, case.way)
    cut.end()

    def prepare(store: Any) -> None:
        for topic, count in ((HALF, 6), (OP, 6), ("t", 3)):
            assert store.max_offset(topic, 0) == count, topic
        check_whole(store)
        assert not store.transactions()
        store.prepare("t", b"6", group="p")

    def commit(store: Any) -> None:
        (transaction,) = store.transactions()
        transaction.commit()
        assert consume(store, "g", "t", 10) == [6]

    assert examine_images(cut, moments, prepare, commit) > 5


@pytest.mark.parametrize("case", cases(every=3))
def test_no_decision_is_lost_before_its_half_message(tmp_path: Path, case: Case) -> None:
    """A half message comes back only with the op message that ends it, though no position is
    durable."""
    cut = begin(tmp_path, case.settings)
    transactions = [cut.store.prepare("t", b"%d" % number, group="p") for number in range(4)]
    cut.fill()
    for number, transaction in enumerate(transactions):
        transaction.rollback() if number % 2 else transaction.commit()
    cut.fill()
    cut.store.flush()
    moments = expire(cut, case.way)
    cut.end()

    def judge(store: Any) -> None:
        assert not store.transactions()
        assert store.max_offset("t", 0) == 2
        check_whole(store)

    assert examine_images(cut, moments, judge) > 3


@pytest.mark.parametrize("case", cases(every=3))
def test_no_delayed_message_is_passed_over(tmp_path: Path, case: Case) -> None:
    """The queue of a level keeps its end, which a file of positions names."""
    cut = begin(tmp_path, case.settings | {"message_delay_level": "0s"})
    for number in range(6):
        cut.store.put("t", b"%d" % number, delay_level=1)
        cut.device.clock_ms += 1
        if number == 2:
            deliver(cut.store)
            cut.store.flush()
    deliver(cut.store)
    assert consume(cut.store, "g", "t", 10) == list(range(6))
    cut.store.message_store.services.schedule_service.persist()
    cut.fill(2)
    moments = expire(cut, case.way)
    cut.end()

    def judge(store: Any) -> None:
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == store.max_offset("t", 0) == 6
        store.put("t", b"6", delay_level=1)
        deliver(store)
        assert consume(store, "g", "t", 10) == [6]
        check_whole(store)

    assert examine_images(cut, moments, judge) > 5


def deliver(store: Any) -> None:
    """Wait until nothing is left to deliver."""
    service = store.message_store.services.schedule_service
    store.wait_dispatched()
    end = time.monotonic() + LONGEST_S
    while service.has_messages():
        assert time.monotonic() < end, "messages that are due are not delivered"
        time.sleep(0.001)
    store.wait_dispatched()


def is_gone(store: Any) -> None:
    """Judge that the topic has no message."""
    assert "gone" not in store.topics() or not list(store.read("gone"))
    check_whole(store)


def forget_derived(root: Path) -> None:
    """Have queues and index built from the whole log: only a minimum hides removed messages."""
    for name in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(bytes(4096))


def trimmed_third(cut: Cut) -> list[Captured]:
    """Trim another topic, by which the minimums of expired messages leave; return the moments."""
    put(cut, "third", range(5))
    return cut.moments(CALLS, lambda: cut.store.trim("third", before=INT64_MAX))


@pytest.mark.parametrize("case", cases(every=3))
def test_a_minimum_stays_until_the_expiry_is_durable(tmp_path: Path, case: Case) -> None:
    cut = begin(tmp_path, case.settings)
    put(cut, "gone", range(5))
    cut.store.trim("gone", before=INT64_MAX)
    cut.fill(2)
    cut.store.flush()
    moments = [*expire(cut, case.way), *trimmed_third(cut)]
    assert (
        "gone"
        not in (Path(cut.store.message_store.root) / "config/topicMinOffset.json").read_text()
    )
    cut.end()
    assert examine_images(cut, moments, is_gone, prepare=forget_derived) > 5
    # A file that comes back has the units of its messages.
    assert examine_images(cut, moments, check_whole) > 5


def test_a_minimum_stays_while_a_path_that_is_only_read_has_the_file(tmp_path: Path) -> None:
    """The last file that was deleted is there."""
    cut = Cut(tmp_path, SEVERAL_PATHS)
    cut.fill(3)
    put(cut, "gone", range(5))
    cut.store.trim("gone", before=INT64_MAX)
    cut.fill()
    cut.open_again(READ_ONLY_PATH)
    assert "/c/" in cut.log_files()[-2]
    moments = [*expire(cut, WAYS["trim"]), *trimmed_third(cut)]
    cut.end()
    assert examine_images(cut, moments, is_gone, prepare=forget_derived) > 5


@pytest.mark.parametrize("ends", [Cut.kill, close], ids=["killed", "closed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_go_in_their_order_over_two_processes(
    tmp_path: Path, layout: str, ends: Callable[[Cut], object]
) -> None:
    """The last deletion of a process is durable before the first one of the next process."""
    cut = begin(tmp_path, LAYOUTS[layout])
    put(cut, "t", range(3))
    cut.fill()
    limit = cut.device.clock_ms
    put(cut, "t", range(3, 6))
    cut.fill(2)
    assert consume(cut.store, "g", "t", 6) == list(range(6))
    files = len(cut.log_files())
    delete_files_alone(cut, limit)
    assert 2 < len(cut.log_files()) < files, cut.log_files()
    ends(cut)
    cut.open()
    moments = expire(cut, WAYS["trim"])
    cut.end()
    assert examine_images(cut, moments, keeps_offsets("t")) > 3


def test_a_queue_that_begins_again_has_no_old_messages(tmp_path: Path) -> None:
    """The deletion of its messages is durable before the queue is removed."""
    cut = Cut(tmp_path, {})
    put(cut, "t", range(6))
    cut.fill()
    cut.store.flush()
    delete_files_alone(cut)

    def begin_again() -> None:
        cut.store.message_store.clean_expired_consumer_queue()
        put(cut, "t", range(10, 13))
        cut.store.flush()

    moments = cut.moments(CALLS, begin_again)
    last = moments[-1:]
    cut.end()

    def judge(store: Any) -> None:
        assert [int(message.body) for message in store.read("t")] == [10, 11, 12]
        check_whole(store)

    examine_images(cut, last, judge)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_minimum_stays_until_the_deletion_is_durable(tmp_path: Path, layout: str) -> None:
    """Another thread has deleted the file, and has not flushed the deletion yet."""
    cut = begin(tmp_path, LAYOUTS[layout])
    cut.fill(2)
    put(cut, "gone", range(5))  # in the last file that is deleted
    cut.store.trim("gone", before=INT64_MAX)
    cut.fill()
    cut.store.flush()
    put(cut, "third", range(5))

    def remove() -> None:
        delete_files_alone(cut)
        cut.store.trim("third", before=INT64_MAX)

    moments = cut.moments(CALLS, remove)
    cut.end()
    assert examine_images(cut, moments, is_gone, prepare=forget_derived) > 5


@pytest.mark.parametrize("ends", [Cut.kill, close], ids=["killed", "closed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_minimum_stays_over_two_processes(
    tmp_path: Path, layout: str, ends: Callable[[Cut], object]
) -> None:
    """The opening finds no file of the messages, and the deletion is not durable."""
    cut = begin(tmp_path, LAYOUTS[layout])
    put(cut, "gone", range(5))
    cut.store.trim("gone", before=INT64_MAX)
    cut.fill()
    cut.store.flush()
    delete_files_alone(cut)
    ends(cut)
    moments = [*cut.moments(CALLS, cut.open), *trimmed_third(cut)]
    cut.end()
    assert examine_images(cut, moments, is_gone, prepare=forget_derived) > 5
