"""Goal: a reader of a queue continues after damage, never returns damage as a message, and counts
it: damaged records and units, units of other messages, missing files of the log; by objects, merged
queues and batches. Method: stores of known messages; change bytes of units and of the log, delete
files, and compare the messages that were read with those that were put."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DamagedMessageError,
    MessageExtBrokerInner,
    MessagesRemovedError,
    StoreIOError,
)
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.reading._messages import MAX_RANGES
from pyrocketstore.reading.skipped import SkippedMessages, SkippedRange
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.record._record import QueueName
from pyrocketstore.system.env import Env
from support import oracle
from support.broken_env import broken

LOG_SIZE = 1 << 14
#: So short that an opening, which looks at the last three files, does not see the first ones.
QUEUE_SIZE = 400
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": QUEUE_SIZE,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
LIGHT: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
UNIT = struct.Struct(">qiq")
COUNT = 120


def body(topic: str, number: int) -> bytes:
    return b"%s %d " % (topic.encode(), number) + bytes(500)


def fill(root: Path, **settings: Any) -> None:
    """COUNT messages in T/0 and T/1, and 5 in Other/0, over about ten files of the log."""
    with pyrocketstore.open(root, **SETTINGS, **settings) as store:
        for i in range(COUNT):
            for queue_id in (0, 1):
                store.put("T", body("T", i), queue_id=queue_id, tags="AB"[i % 2])
            if i < 5:
                store.put("Other", body("Other", i))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "store"))


@pytest.fixture(params=[False, True], ids=["mapped", "read-only"])
def opened(root: Path, request: pytest.FixtureRequest) -> Callable[[], pyrocketstore.Store]:
    return lambda: pyrocketstore.open(root, read_only=request.param, **SETTINGS)


def unit_at(root: Path, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
    start = queue_offset * 20 // QUEUE_SIZE * QUEUE_SIZE
    data = (root / f"consumequeue/{topic}/{queue_id}/{start:020d}").read_bytes()
    found: tuple[int, int, int] = UNIT.unpack_from(data, queue_offset * 20 - start)
    return found


def write_unit(
    root: Path, queue_offset: int, unit: tuple[int, int, int], queue_id: int = 0
) -> None:
    with (root / f"consumequeue/T/{queue_id}/{0:020d}").open("r+b") as file:
        file.seek(queue_offset * 20)
        file.write(UNIT.pack(*unit))


def damage_record(root: Path, phy_offset: int, at: int = 4) -> None:
    with (root / "commitlog" / f"{phy_offset // LOG_SIZE * LOG_SIZE:020d}").open("r+b") as file:
        file.seek(phy_offset % LOG_SIZE + at)
        file.write(b"no")


def read_on(
    store: pyrocketstore.Store, queue_id: int | None = 0, **options: Any
) -> tuple[Any, ...]:
    """(messages, errors, iterator): everything, also behind errors."""
    reader = store.read("T", queue_id, **options)
    messages, errors = [], []
    while True:
        try:
            messages.append(next(reader))
        except StopIteration:
            return messages, errors, reader
        except pyrocketstore.StoreError as error:
            errors.append(error)


def batches(store: pyrocketstore.Store, **options: Any) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Bodies and skipped ranges of T/0 in batches of 50 units."""
    bodies: list[bytes] = []
    skipped: list[dict[str, Any]] = []
    start = store.min_offset("T")
    while start < store.max_offset("T"):
        batch = store.read_batch("T", start=start, max_count=50, on_corrupt="skip", **options)
        bodies += batch["body"].to_pylist()
        found = json.loads(batch.schema.metadata[b"skipped"])
        assert sum(f["stop"] - f["start"] for f in found) == int(
            batch.schema.metadata[b"skipped_count"]
        )
        skipped += found
        start = int(batch.schema.metadata[b"next_offset"])
    return bodies, skipped


UNITS = {
    "a message of its own twice": lambda root: unit_at(root, "T", 0, 3),
    "another topic's": lambda root: unit_at(root, "Other", 0, 2),
    "another queue's": lambda root: unit_at(root, "T", 1, 5),
    "a size that is too small": lambda root: _with_size(root, -1),
    "a size that is too large": lambda root: _with_size(root, 1),
    "zeros": lambda root: (0, 0, 0),
    "beyond the log": lambda root: (1 << 40, 600, 0),
    "before the log": lambda root: (-700, 600, 0),
    "the least": lambda root: (-(1 << 63), -(1 << 31), 0),
    "a huge size": lambda root: (unit_at(root, "T", 0, 5)[0], (1 << 31) - 2, 0),
}


def _with_size(root: Path, more: int) -> tuple[int, int, int]:
    phy_offset, size, code = unit_at(root, "T", 0, 5)
    return phy_offset, size + more, code


@pytest.mark.parametrize("kind", UNITS)
def test_a_damaged_unit_shows_no_other_message(
    root: Path, opened: Callable[[], pyrocketstore.Store], kind: str
) -> None:
    write_unit(root, 5, UNITS[kind](root))
    expected = [i for i in range(COUNT) if i != 5]
    with opened() as store:
        messages, (error,), reader = read_on(store)
        assert [m.queue_offset for m in messages] == expected
        assert [m.body for m in messages] == [body("T", i) for i in expected]
        assert isinstance(error, DamagedMessageError)
        assert (error.topic, error.queue_id, error.start, error.stop) == ("T", 0, 5, 6)
        assert "T/0, queue offset 5" in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert reader.skipped.count == 1
        # Skipped, and merged with another queue, and alone, and in batches.
        for queue_id, factor in ((0, 1), (None, 2)):
            messages, errors, reader = read_on(store, queue_id, on_corrupt="skip")
            assert (len(messages), errors) == (factor * COUNT - 1, [])
            (found,) = reader.skipped.ranges
            assert (found.topic, found.queue_id, found.start, found.stop) == ("T", 0, 5, 6)
        with pytest.raises(DamagedMessageError) as raised:
            store.read_batch("T", start=5)
        assert (raised.value.start, raised.value.stop) == (5, 6)
        bodies, skipped = batches(store)
        assert bodies == [body("T", i) for i in expected]
        assert [(f["start"], f["stop"]) for f in skipped] == [(5, 6)]


@pytest.mark.parametrize("at", [0, 4, 12, 20, 28, 84])
def test_damaged_records_are_counted(
    root: Path, opened: Callable[[], pyrocketstore.Store], at: int
) -> None:
    """Size, magic, queue id, queue offset, physical offset and body length of some records."""
    damaged_offsets = [5, 6, 7, 60]
    for queue_offset in damaged_offsets:
        damage_record(root, unit_at(root, "T", 0, queue_offset)[0], at)
    expected = [body("T", i) for i in range(COUNT) if i not in damaged_offsets]
    with opened() as store:
        messages, errors, reader = read_on(store)
        assert [m.body for m in messages] == expected
        assert [error.start for error in errors] == damaged_offsets
        assert reader.skipped.count == 4
        messages, errors, reader = read_on(store, on_corrupt="skip")
        assert ([m.body for m in messages], errors) == (expected, [])
        assert [(r.start, r.stop) for r in reader.skipped.ranges][-1] == (60, 61)
        assert sum(r.message_count for r in reader.skipped.ranges) == reader.skipped.count == 4
        assert bool(reader.skipped)
        bodies, skipped = batches(store, columns=["body"])
        assert bodies == expected
        assert sum(f["stop"] - f["start"] for f in skipped) == 4


def test_a_missing_file_of_the_log_is_no_silence(
    root: Path, opened: Callable[[], pyrocketstore.Store]
) -> None:
    """One error for each file, and all of its messages are counted; the merged queues say both."""
    gone = root / "commitlog" / f"{2 * LOG_SIZE:020d}"
    lost = {
        q: [i for i in range(COUNT) if unit_at(root, "T", q, i)[0] // LOG_SIZE == 2] for q in (0, 1)
    }
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        before = len(list(store.read("T")))
    assert before == COUNT
    gone.unlink()
    expected = [body("T", i) for i in range(COUNT) if i not in lost[0]]
    with opened() as store:
        messages, (error,), reader = read_on(store)
        assert [m.body for m in messages] == expected
        assert (error.start, error.stop) == (lost[0][0], lost[0][-1] + 1)
        assert str(gone) in str(error)
        assert "missing" in str(error)
        assert reader.skipped.count == len(lost[0])
        messages, errors, reader = read_on(store, None)
        assert len(messages) == 2 * COUNT - len(lost[0]) - len(lost[1])
        assert sorted(error.queue_id for error in errors) == [0, 1]
        assert reader.skipped.count == len(lost[0]) + len(lost[1])
        messages, errors, reader = read_on(store, on_corrupt="skip")
        assert ([m.body for m in messages], errors) == (expected, [])
        assert [(r.start, r.stop, r.path) for r in reader.skipped.ranges] == [
            (lost[0][0], lost[0][-1] + 1, str(gone))
        ]
        with pytest.raises(DamagedMessageError, match="missing"):
            store.read_batch("T", start=0)
        bodies, skipped = batches(store)
        assert bodies == expected
        assert sum(f["stop"] - f["start"] for f in skipped) == len(lost[0])


def test_expired_files_are_no_damage(root: Path, opened: Callable[[], pyrocketstore.Store]) -> None:
    first = next(i for i in range(COUNT) if unit_at(root, "T", 0, i)[0] >= 3 * LOG_SIZE)
    for number in range(3):
        (root / "commitlog" / f"{number * LOG_SIZE:020d}").unlink()
    with opened() as store:
        messages, errors, reader = read_on(store)
        assert ([m.queue_offset for m in messages], errors) == (list(range(first, COUNT)), [])
        assert not reader.skipped
        # It expires while it is read.
        reader = store.read("T")
        assert next(reader).queue_offset == first
        store.message_store.commit_log.mapped_file_queue.mapped_files[0].destroy()
        assert next(reader).queue_offset > first
        assert not reader.skipped


def test_reading_goes_on_after_an_io_error(root: Path) -> None:
    """In either mode it is raised, and the message counts as one that could not be read."""
    env = Env()

    def fails(original: Any, table: Any, fd: int, *rest: Any) -> int:
        return -errno.EIO

    for mode in ("raise", "skip"):
        with pyrocketstore.open(root, read_only=True, env=env, **SETTINGS) as store:
            reader = store.read("T", on_corrupt=mode)
            given = [next(reader).queue_offset]
            while given[-1] < COUNT // 2:
                given.append(next(reader).queue_offset)
            with broken(env, "pread", fails), pytest.raises(StoreIOError):
                for message in reader:  # what is buffered comes first
                    given.append(message.queue_offset)
            given += [m.queue_offset for m in reader]
            assert len(given) == COUNT - 1
            assert reader.skipped.count == 1


def test_units_that_cannot_be_read_end_the_queue(
    root: Path,
) -> None:
    """In either mode it is raised once, and what is left of the queue is counted."""
    directory = str(root / "consumequeue" / "T" / "0")

    def fails(original: Any, fd: int, target: int, size: int, position: int) -> int:
        # One unit is the look at the first readable one.
        if size != CQ_STORE_UNIT_SIZE and os.readlink(f"/proc/self/fd/{fd}").startswith(directory):
            return -errno.EIO
        return int(original(fd, target, size, position))

    for mode in ("raise", "skip"):
        env = Env()
        with pyrocketstore.open(root, read_only=True, env=env, **SETTINGS) as store:
            reader = store.read("T", None, on_corrupt=mode)
            first = [next(reader) for _ in range(2)]
            with broken(env, "pread", fails):
                assert len([*first, *reader]) == 2 * COUNT  # its units were read already
                with pytest.raises(StoreIOError):
                    next(store.read("T", 0, on_corrupt=mode))
                reader = store.read("T", None, on_corrupt=mode)
                with pytest.raises(StoreIOError):
                    next(reader)
            assert [m.queue_id for m in reader] == [1] * COUNT
            assert reader.skipped.count == COUNT


def test_a_file_that_another_process_deletes(root: Path) -> None:
    """A read-only store's log: an error in one mode, a range in the other."""
    gone = root / "commitlog" / f"{2 * LOG_SIZE:020d}"
    lost = sum(unit_at(root, "T", 0, i)[0] // LOG_SIZE == 2 for i in range(COUNT))
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        gone.unlink()
        messages, (error,), reader = read_on(store)
        assert isinstance(error, DamagedMessageError)
        assert (error.path, error.stop - error.start) == (str(gone), lost)
        assert (len(messages), reader.skipped.count) == (COUNT - lost, lost)
        messages, errors, reader = read_on(store, on_corrupt="skip")
        assert (len(messages), errors, reader.skipped.count) == (COUNT - lost, [], lost)
        bodies, skipped = batches(store)
        assert len(bodies) == COUNT - lost
        assert sum(f["stop"] - f["start"] for f in skipped) == lost


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_what_the_owner_lets_expire_meanwhile_is_no_damage(root: Path, mode: str) -> None:
    """Its cleaner deletes the first files of the log while a read-only store has them open."""
    units = [unit_at(root, "T", 0, i)[0] for i in range(COUNT)]
    kept = sum(unit >= 2 * LOG_SIZE for unit in units)
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        early = store.read("T", 0, on_corrupt=mode)
        merged = store.read("T", None, on_corrupt=mode)
        assert [next(early).queue_offset, next(merged).queue_offset] == [0, 0]
        for number in range(2):
            (root / "commitlog" / f"{number * LOG_SIZE:020d}").unlink()
        assert store.get(units[0]) is None
        assert store.get_many(units[:2] + units[-1:])[:2] == [None, None]
        batch = store.read_batch("T", start=0, on_corrupt=mode)
        assert batch.num_rows == kept
        assert json.loads(batch.schema.metadata.get(b"skipped", b"[]")) == []
        again = store.read("T", 0, on_corrupt=mode)
        assert len(list(again)) == kept
        assert kept <= len(list(early)) < COUNT  # some were read ahead
        assert (again.skipped.count, early.skipped.count) == (0, 0)
        list(merged)
        assert merged.skipped.count == 0
        assert store.min_offset("T") == COUNT - kept
        with pytest.raises(pyrocketstore.OffsetOutOfRange):
            store.read("T", 0, start=0)


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_a_store_whose_owner_has_deleted_all_that_was_known(root: Path, mode: str) -> None:
    """Every message has expired, none is damaged; what came later is there after a refresh."""
    units = [unit_at(root, "T", 0, i)[0] for i in range(COUNT)]
    with (
        pyrocketstore.open(root, **SETTINGS) as owner,
        pyrocketstore.open(root, read_only=True, **SETTINGS) as store,
    ):
        early = store.read("T", 0, on_corrupt=mode)
        merged = store.read("T", None, on_corrupt=mode)
        followed = store.follow("T", 0, start=0, on_corrupt=mode, timeout=5)
        assert [next(each).queue_offset for each in (early, merged, followed)] == [0, 0, 0]
        end = owner.message_store.get_max_phy_offset()
        later = [owner.put("T", body("T", 0)).phy_offset for _ in range(2 * LOG_SIZE // 500)]
        owner.wait_dispatched()
        files = owner.message_store.commit_log.mapped_file_queue
        while owner.message_store.get_min_phy_offset() <= end:
            assert files.delete_first_file(files.mapped_files[0])
        begin = owner.message_store.get_min_phy_offset()
        assert store.get(units[0]) is None
        assert store.get_many(units) == [None] * COUNT
        assert store.message_store.get_message("g", "T", 0, 0, 32).message_count == 0
        assert store.read_batch("T", start=0, on_corrupt=mode).num_rows == 0
        list(early)  # some were read ahead
        list(merged)
        assert (early.skipped.count, merged.skipped.count) == (0, 0)
        assert store.min_offset("T") == store.max_offset("T") == COUNT
        store.refresh()
        assert [m.phy_offset for m in store.read("T", 0)] == [p for p in later if p >= begin]
        accounted = [0]
        while accounted[-1] < store.min_offset("T"):
            try:
                accounted.append(next(followed).queue_offset)
            except MessagesRemovedError as error:
                accounted.extend(range(error.start, error.stop))
        assert (accounted, followed.skipped.count) == (list(range(len(accounted))), 0)


def test_a_wrong_crc_is_damage_where_it_is_asked_for(
    root: Path, opened: Callable[[], pyrocketstore.Store]
) -> None:
    damage_record(root, unit_at(root, "T", 0, 5)[0], 200)
    with opened() as store:
        assert len(list(store.read("T"))) == COUNT
        assert store.read_batch("T", start=0).num_rows == COUNT
        messages, (error,), _ = read_on(store, check_crc=True)
        assert (len(messages), error.start) == (COUNT - 1, 5)
        assert "CRC" in str(error)
        with pytest.raises(DamagedMessageError, match="CRC"):
            store.read_batch("T", start=0, check_crc=True)
        bodies, skipped = batches(store, check_crc=True)
        assert (len(bodies), [f["start"] for f in skipped]) == (COUNT - 1, [5])


def test_bodies_that_do_not_inflate(tmp_path: Path) -> None:
    """A batch has no half body: it is an error, or passed over; its bounds stay."""
    bodies = [b"a" * 3000, b"no zlib", zlib.compress(b"x" * 5000), zlib.compress(b"y" * 9000)]
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        for i in range(40):
            stored = bodies[i % 4]
            store.message_store.put_message(
                MessageExtBrokerInner("T", stored, 0, sys_flag=1 if i % 4 else 0)
            )
        with pytest.raises(DamagedMessageError, match="inflate") as raised:
            store.read_batch("T", start=0)
        assert raised.value.start == 1
        for max_bytes in (1 << 20, 20_000, 1):
            start, lengths, skipped = 0, [], []
            while start < 40:
                batch = store.read_batch("T", start=start, on_corrupt="skip", max_bytes=max_bytes)
                lengths += [len(b) for b in batch["body"].to_pylist()]
                skipped += json.loads(batch.schema.metadata[b"skipped"])
                assert int(batch.schema.metadata[b"next_offset"]) > start
                start = int(batch.schema.metadata[b"next_offset"])
            assert lengths == [3000, 5000, 9000] * 10
            assert [f["start"] for f in skipped] == list(range(1, 40, 4))


# ---- whose message a record is -----------------------------------------------------------------


def queued(topic: str, queue_id: int, record: oracle.Record, queue_offset: int) -> bool:
    return QueueName(topic, queue_id).has(oracle.encode_record(record), queue_offset)


def multi(names: str, offsets: str, queue_id: int = 3) -> oracle.Record:
    text = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    return oracle.Record(topic=b"main", queue_id=queue_id, queue_offset=9, properties=text.encode())


@pytest.mark.parametrize(
    ("names", "offsets", "found"),
    [
        ("%LMQ%a,%LMQ%b", "5,6", {("%LMQ%a", 0, 5), ("%LMQ%b", 0, 6)}),
        ("%LMQ%a", "+5", {("%LMQ%a", 0, 5)}),
        ("%LMQ%", "5", {("%LMQ%", 0, 5)}),
        ("%LMQ%a", "\u0665", {("%LMQ%a", 0, 5)}),
        ("%LMQ%a,", "5,,", {("%LMQ%a", 0, 5)}),
        (",%LMQ%a", "x,5", {("%LMQ%a", 0, 5)}),
        ("%LMQ%a,%LMQ%a", "5,6", {("%LMQ%a", 0, 5), ("%LMQ%a", 0, 6)}),
        ("%LMQ%a,%LMQ%b", "5", set()),
        ("%LMQ%a", "5,6", set()),
        ("%LMQ%a", "", set()),
        ("", "5", set()),
        ("%LMQ%a", "-5", set()),
        ("%LMQ%a", "99999999999999999999", set()),
        ("%LMQ%a", "9223372036854775807", {("%LMQ%a", 0, 2**63 - 1)}),
        ("other", "5", {("other", 3, 5)}),
    ],
)
def test_queues_of_multi_dispatch(names: str, offsets: str, found: set[Any]) -> None:
    record = multi(names, offsets)
    for topic in ("%LMQ%", "%LMQ%a", "%LMQ%b", "other"):
        for queue_id in (0, 1):
            for queue_offset in (0, 5, 6, 9, 2**63 - 1):
                expected = (topic, queue_id, queue_offset) in found
                assert queued(topic, queue_id, record, queue_offset) == expected
        # A store without light queues puts them into the record's queue id.
        for name, _, queue_offset in found:
            assert queued(name, 3, record, queue_offset)
    assert queued("main", 3, record, 9)
    assert not queued("main", 3, record, 5)
    assert not queued("main", 0, record, 9)


def test_names_as_java_reads_them() -> None:
    record = oracle.Record(topic=b"a\xffb", queue_id=1, queue_offset=2)
    assert queued("a\ufffdb", 1, record, 2)
    assert not queued("a\ufffd", 1, record, 2)
    assert not queued("a\ufffdbc", 1, record, 2)
    assert not queued("a\udcffb", 1, record, 2)
    prepared = oracle.Record(topic=b"T", queue_id=1, queue_offset=2, sys_flag=0x4)
    assert not queued("T", 1, prepared, 2)
    committed = oracle.Record(topic=b"T", queue_id=1, queue_offset=2, sys_flag=0x8)
    assert queued("T", 1, committed, 2)


def test_light_queues_are_read_as_before(tmp_path: Path) -> None:
    """By the offset that INNER_MULTI_QUEUE_OFFSET has for them, also without their settings."""
    with pyrocketstore.open(tmp_path, **SETTINGS, **LIGHT) as store:
        for i in range(30):
            names = "%LMQ%a,%LMQ%b" if i % 3 else "%LMQ%b"
            properties = {"INNER_MULTI_DISPATCH": names, "TAGS": "AB"[i % 2]}
            store.message_store.put_message(
                MessageExtBrokerInner(
                    "busy",
                    b"%d" % i,
                    2,
                    properties=properties,
                    properties_string=properties_to_string(properties),
                )
            )
        store.put("busy", b"other", queue_id=1)
    unit = (tmp_path / f"consumequeue/busy/1/{0:020d}").read_bytes()[:20]
    with (tmp_path / f"consumequeue/%LMQ%b/0/{0:020d}").open("r+b") as file:
        file.seek(100)
        file.write(unit)
    expected = [b"%d" % i for i in range(30)]
    for settings in (LIGHT, {}, dict.fromkeys(LIGHT, False)):
        with pyrocketstore.open(tmp_path, read_only=True, **SETTINGS, **settings) as store:
            assert [m.body for m in store.read("%LMQ%a")] == [b for i, b in enumerate(expected)
                                                              if i % 3]  # fmt: skip
            reader = store.read("%LMQ%b", on_corrupt="skip")
            # Unless they are off, recovery knows what the unit must be, and builds it in memory.
            wrong = [] if all(settings.values()) else [5]
            assert [m.body for m in reader] == [b for i, b in enumerate(expected) if i not in wrong]
            assert [(r.start, r.stop) for r in reader.skipped.ranges] == [(i, i + 1) for i in wrong]
            assert store.read_batch("%LMQ%a", start=0).num_rows == 20


# ---- what is counted ---------------------------------------------------------------------------


def test_ranges_are_joined_and_bounded() -> None:
    skipped = SkippedMessages()
    for start in range(3 * MAX_RANGES):
        reason = "one" if start < 10 else f"{start}"
        skipped.add(SkippedRange("T", 0, start, start + 1, "path", start, reason))
    assert skipped.count == 3 * MAX_RANGES
    assert len(skipped.ranges) == MAX_RANGES
    assert (skipped.ranges[0].start, skipped.ranges[0].stop) == (0, 10)
    assert "12288" in repr(skipped)
    again = pickle.loads(pickle.dumps(skipped))
    assert (again.count, again.ranges) == (skipped.count, skipped.ranges)


@pytest.mark.parametrize("word", ["ignore", "", None, 1])
def test_words_that_on_corrupt_does_not_know(root: Path, word: Any) -> None:
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        for queue_id in (0, None):
            with pytest.raises(pyrocketstore.StoreFormatError, match="'raise' or 'skip'"):
                store.read("T", queue_id, on_corrupt=word)
        with pytest.raises(pyrocketstore.StoreFormatError, match="'raise' or 'skip'"):
            store.read_batch("T", start=0, on_corrupt=word)


# ---- tags --------------------------------------------------------------------------------------


def test_tags_of_ext_units_are_read_without_the_setting(tmp_path: Path) -> None:
    """An ext address is not a hash of a tag: the record decides, as with lost ext files."""
    ext = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1 << 12}
    fill(tmp_path / "store", **ext)
    expected = [body("T", i) for i in range(0, COUNT, 2)]
    for settings, lost in ((ext, False), ({}, False), (ext, True), ({}, True)):
        if lost:
            shutil.rmtree(tmp_path / "store/consumequeue_ext", ignore_errors=True)
        for read_only in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pyrocketstore.StoreWarning)  # of lost ext files
                store = pyrocketstore.open(
                    tmp_path / "store", read_only=read_only, **SETTINGS, **settings
                )
            with store:
                assert [m.body for m in store.read("T", tags="A")] == expected
                batch = store.read_batch("T", start=0, tags="A")
                assert batch["body"].to_pylist() == expected


def test_tags_of_delayed_messages(tmp_path: Path) -> None:
    """Their units hold delivery times."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        for i in range(6):
            properties = {"TAGS": "AB"[i % 2], "DELAY": "3"}
            store.message_store.put_message(
                MessageExtBrokerInner(
                    "T",
                    b"%d" % i,
                    0,
                    properties=properties,
                    properties_string=properties_to_string(properties),
                )
            )
        store.wait_dispatched()
        unit = unit_at(tmp_path, "SCHEDULE_TOPIC_XXXX", 2, 0)
        assert unit[2] > 1 << 32
        found = [m.body for m in store.read("SCHEDULE_TOPIC_XXXX", 2, tags="A")]
        assert found == [b"0", b"2", b"4"]
        batch = store.read_batch("SCHEDULE_TOPIC_XXXX", 2, start=0, tags="B")
        assert batch["body"].to_pylist() == [b"1", b"3", b"5"]
