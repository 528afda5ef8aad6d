"""Goal: the plans of a stream are exact: they have all messages of the log, no others, and continue
at the last offset.
Method: small stores that the test damages; the reader is called as Spark calls it, without
Spark."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyrocketstore
from pyrocketstore import Store, StoreFormatError
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE as UNIT
from pyrocketstore.spark.options import STREAM, read_options
from pyrocketstore.spark.plan.offsets import INITIAL, decode_offset, encode_offset, share
from pyrocketstore.spark.plan.stream_store import StreamStore
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.task_types import DataLossError
from pyrocketstore.system.env import Env

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import (
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from pyrocketstore.spark.source.stream import StoreStreamReader
from streams import (
    ALL,
    COLUMNS,
    live,
    next_batch,
    open_store,
    put,
    queue_file,
    reader,
    rows,
    write_at,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened


# ---- shares --------------------------------------------------------------------------------------

KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 3))


@given(st.dictionaries(KEYS, st.integers(0, 2**40)), st.integers(1, 2**41))
def test_no_queue_starves_and_the_limit_holds(behind: dict[Any, int], limit: int) -> None:
    taken = share(behind, limit)
    waiting = {key: count for key, count in behind.items() if count}
    assert taken.keys() == waiting.keys()
    assert all(1 <= taken[key] <= waiting[key] for key in taken)
    assert sum(taken.values()) == min(sum(waiting.values()), max(limit, len(waiting)))
    if limit > len(waiting) and sum(waiting.values()) > limit:
        spare, rest = limit - len(waiting), sum(waiting.values()) - len(waiting)
        assert all(abs(taken[k] - 1 - spare * (waiting[k] - 1) / rest) <= 1.001 for k in taken)


@given(
    st.dictionaries(KEYS, st.integers(0, 2**62)),
    st.dictionaries(KEYS, st.integers(0, 2**62)),
)
def test_an_offset_comes_back_from_json(ends: dict[Any, int], begins: dict[Any, int]) -> None:
    text = json.dumps(encode_offset(ends, begins))
    assert decode_offset(json.loads(text)) == (ends, begins)


@pytest.mark.parametrize(
    "offset", [{"v": 2, "q": {}}, {}, {"v": 1, "q": 3}, {"v": 1, "q": {"b": {"t": {"x": 1}}}}]
)
def test_an_invalid_offset_is_reported(offset: dict[str, Any]) -> None:
    with pytest.raises(StoreFormatError, match="checkpoint"):
        decode_offset(offset)


# ---- what is seen --------------------------------------------------------------------------------


def test_ends_follow_puts_over_files(store: Store) -> None:
    seen = live(store.path)
    assert seen.ends() == {}
    for count in (1, 8, 1, 1, 25, 4):
        put(store, "t", count)
        put(store, "t", 1, queue_id=3)
        for queue in (seen, live(store.path)):
            assert queue.ends(now=True) == {
                ("t", i): store.max_offset("t", i) for i in store.queues("t")
            }
    assert seen.min_offset(("t", 0)) == 0


def test_ends_are_looked_up_at_most_a_tenth_of_the_time(store: Store) -> None:
    put(store, "t", 3)
    calls = []

    class Counting(Env):
        def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
            calls.append(path)
            return super().open(path, flags, mode)

    options = read_options({"path": store.path}, STREAM)
    seen = StreamStore(options.places[0], options, Counting())
    seen.ends()
    seen.ends()
    first = len(calls)
    for _ in range(100):
        seen.ends()
    assert len(calls) - first <= 40  # 3 at a time: 100 calls take well under 13 looks


def test_units_whose_records_do_not_verify_do_not_count(store: Store) -> None:
    put(store, "t", 7)
    put(store, "u", 2)
    path = queue_file(store.path, "t")
    good = path.read_bytes()
    other = queue_file(store.path, "u").read_bytes()
    wrong = {
        "another queue's": other[:UNIT],
        "its own, again": good[6 * UNIT : 7 * UNIT],
        "beyond the log": (1 << 40).to_bytes(8, "big") + good[8:UNIT],
        "another size": good[:8] + (200).to_bytes(4, "big") + good[12:UNIT],
        "inside of a record": (8).to_bytes(8, "big") + good[8:UNIT],
    }
    for name, unit in wrong.items():
        write_at(path, 7 * UNIT, unit * 3)  # also 3 to step back over
        assert live(store.path).ends() == {("t", 0): 7, ("u", 0): 2}, name
        seen = live(store.path, topic="t")
        assert seen.ends() == {("t", 0): 7}
        assert seen.ends(now=True) == {("t", 0): 7}
    write_at(path, 7 * UNIT, bytes(3 * UNIT))


@pytest.mark.parametrize("at", [4, 0, 28, 12, 88 + 4])
def test_a_record_is_looked_at_field_by_field(tmp_path: Path, at: int) -> None:
    """magic, size, physical offset, queue id, topic"""
    with open_store(tmp_path / "s") as store:
        put(store, "t", 2)
        second = int.from_bytes(queue_file(store.path, "t").read_bytes()[UNIT : UNIT + 8], "big")
        log = Path(store.path) / "commitlog" / f"{0:020d}"
        position = second + at + (1 if at == 92 else 0)
        byte = log.read_bytes()[position]
        write_at(log, position, bytes([byte ^ 1]))
        assert live(store.path).ends()["t", 0] == 1
        write_at(log, position, bytes([byte]))
        assert live(store.path).ends() == {("t", 0): 2}


def test_the_owner_puts_over_stale_units(tmp_path: Path) -> None:
    """Units of an earlier run are in the files behind the owner's end."""
    with open_store(tmp_path / "s", mapped_file_size_consume_queue=100_000 * UNIT) as store:
        put(store, "t", 1000)
        path = queue_file(store.path, "t")
        stale = path.read_bytes()[:UNIT]
        write_at(path, 1000 * UNIT, stale * 90_000)
        stream = reader(store.path, startingOffsets="earliest")
        first = next_batch(stream, INITIAL)
        assert len(rows(stream, INITIAL, first)) == 1000
        for stop in (1001, 1003):
            put(store, "t", stop - store.max_offset("t"))
            stream.plan.look(now=True)
            second = next_batch(stream, first)
            start = 1000 if stop == 1001 else 1001
            assert rows(stream, first, second) == [("t", 0, i) for i in range(start, stop)]
            first = second
        write_at(path, 1003 * UNIT, bytes(90_000 * UNIT))


def test_pre_blank_units_are_passed_over(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        put(store, "t", 5)
    path = queue_file(tmp_path / "s", "t")
    units = path.read_bytes()
    blank = bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)
    write_at(path, 0, blank * 2)
    seen = live(tmp_path / "s")
    assert seen.ends() == {("t", 0): 5}
    assert seen.min_offset(("t", 0)) == 2
    write_at(path, 2 * UNIT, blank)
    write_at(path, 4 * UNIT, blank)
    assert seen.ends(now=True) == {("t", 0): 5}  # it was reported before
    assert live(tmp_path / "s").ends() == {("t", 0): 5}  # the log has them
    write_at(path, 0, units)


def test_min_offset_and_times_are_those_of_the_engine(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_store(root) as store:
        for number in range(60):
            store.put(("t", "u")[number % 2], b"x" * 100)
            if number % 7 == 0:
                store.wait_dispatched()
                store.message_store.env.sleep(0.002)
        put(store, "t", 1)
    for name in sorted(p.name for p in (root / "commitlog").iterdir())[:2]:
        (root / "commitlog" / name).unlink()
    with pyrocketstore.open(root, read_only=True) as store:
        seen = live(root)
        seen.ends()
        for topic in ("t", "u"):
            low = store.min_offset(topic)
            assert seen.min_offset((topic, 0)) == low > 0
            times = [m.store_timestamp for m in store.read(topic)]
            for time in {*times, times[0] - 1, times[-1] + 1, *(t + 1 for t in times)}:
                assert seen.lower_bound((topic, 0), time) == store.offset_at(topic, 0, time)


def test_removed_messages_are_before_the_minimum(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_store(root) as store:
        for topic in ("gone", "trimmed", "again"):
            put(store, topic, 60)
        seen = live(root)
        assert seen.ends() == {(topic, 0): 60 for topic in ("again", "gone", "trimmed")}
        store.trim("trimmed", before=1 << 62)
        store.drop_topic("gone")
        store.drop_topic("again")
        put(store, "trimmed", 2)
        put(store, "again", 2)
        for queues in (seen, live(root)):
            assert queues.ends(now=True) == {("again", 0): 2, ("trimmed", 0): 62}
            assert queues.min_offset(("trimmed", 0)) == 60
            assert queues.min_offset(("again", 0)) == 0
        stream = reader(root, startingOffsets="earliest")
        start = stream.initialOffset()
        assert rows(stream, start, next_batch(stream, start)) == [
            ("again", 0, 0), ("again", 0, 1), ("trimmed", 0, 60), ("trimmed", 0, 61),
        ]  # fmt: skip


def test_a_directory_without_a_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="not a directory"):
        live(tmp_path / "none")
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "a file").write_text("")
    (tmp_path / "consumequeue" / "t" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").write_bytes(b"")  # being made
    assert not any(live(tmp_path).ends().values())


# ---- batches -------------------------------------------------------------------------------------


def test_batches_follow_each_other(store: Store) -> None:
    stream = reader(store.path, startingOffsets="earliest")
    put(store, "t", 3)
    first = next_batch(stream, stream.initialOffset())
    assert set(first.pop("m")["store"]["t"]) == {"0"}
    assert first == {"v": 1, "from": {"store": {"t": {"0": 0}}}, "q": {"store": {"t": {"0": 3}}}}
    assert rows(stream, INITIAL, first) == [("t", 0, i) for i in range(3)]
    assert next_batch(stream, first) == first
    put(store, "t", 12)
    put(store, "late", 2, queue_id=1)
    stream = reader(store.path, startingOffsets="earliest")
    second = next_batch(stream, first)
    assert second["from"] == {"store": {"late": {"1": 0}}}
    expected = [("late", 1, 0), ("late", 1, 1), *(("t", 0, i) for i in range(3, 15))]
    assert rows(stream, first, second) == expected
    assert next_batch(stream, second) == second
    put(store, "t", 1)
    third = next_batch(reader(store.path), second)
    assert "from" not in third
    assert rows(reader(store.path), second, third) == [("t", 0, 15)]
    # A recorded batch returns the same rows again, whatever was put since.
    assert rows(reader(store.path), first, second) == expected


def test_the_start_is_pinned_by_the_first_batch(store: Store) -> None:
    put(store, "t", 5)
    stream = reader(store.path)
    first = next_batch(stream, stream.initialOffset())
    assert first["from"] == first["q"] == {"store": {"t": {"0": 5}}}
    put(store, "t", 4)
    stream.plan.look(now=True)
    again = next_batch(stream, stream.initialOffset())
    assert (again["from"], again["q"]) == (first["from"], {"store": {"t": {"0": 9}}})
    again = reader(store.path)
    assert rows(again, again.initialOffset(), first) == []
    second = next_batch(again, first)
    assert rows(again, first, second) == [("t", 0, i) for i in range(5, 9)]


def test_an_empty_store_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    stream = reader(tmp_path / "s")
    first = next_batch(stream, stream.initialOffset())
    assert first == {"v": 1, "q": {}}
    assert rows(stream, INITIAL, first) == []
    with open_store(tmp_path / "s") as store:
        put(store, "t", 2)
        stream.plan.look(now=True)
        second = next_batch(stream, first)
        assert rows(stream, first, second) == [("t", 0, 0), ("t", 0, 1)]


def test_starts_by_offset_and_time(store: Store) -> None:
    put(store, "t", 4)
    store.message_store.env.sleep(0.01)
    middle = store.message_store.env.now_ms()
    put(store, "t", 4)
    put(store, "u", 2)

    def start(**options: object) -> object:
        stream = reader(store.path, **options)
        return next_batch(stream, stream.initialOffset())["from"]["store"]

    assert start(startingTimestamp=middle) == {"t": {"0": 4}, "u": {"0": 0}}
    assert start(startingTimestamp=0) == {"t": {"0": 0}, "u": {"0": 0}}
    assert start(startingTimestamp=middle + 10**6) == {"t": {"0": 8}, "u": {"0": 2}}
    assert start(startingOffsets='{"t":{"0":3},"u":{"store":{"0":-1}}}') == {
        "t": {"0": 3},
        "u": {"0": 2},
    }
    assert start(startingOffsetsByTimestamp=f'{{"t":{{"0":{middle}}}}}', topic="t") == {
        "t": {"0": 4}
    }
    with pytest.raises(DataLossError, match="nothing was stored"):
        start(startingOffsetsByTimestamp=f'{{"t":{{"0":{middle + 10**6}}}}}')
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(DataLossError, match="nothing was stored"):
        start(startingTimestamp=middle + 10**6, **strict)
    assert start(startingTimestamp=middle, topic="t", **strict) == {"t": {"0": 4}}
    with pytest.raises(DataLossError, match="is outside of the queue"):
        start(startingOffsets='{"t":{"0":30}}')
    assert start(startingOffsets='{"t":{"0":30}}', failOnDataLoss=False)["t"] == {"0": 8}


def test_a_start_at_a_missing_queue_is_reported(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as a, open_store(tmp_path / "b") as b:
        put(a, "t", 4)
        put(a, "u", 4)
        put(b, "t", 5, queue_id=1)
        roots = json.dumps({"a": a.path, "b": b.path})

        def start(which: str, positions: dict[str, Any], **more: object) -> Any:
            options = {"stores": roots, which: json.dumps(positions), **more}
            texts = {name: str(value) for name, value in options.items()}
            stream = StoreStreamReader(read_options(texts, STREAM), COLUMNS, recovery_s=0)
            return next_batch(stream, stream.initialOffset())["from"]

        for which in ("startingOffsets", "startingOffsetsByTimestamp"):
            for positions, reported in (
                ({"t": {"c": {"0": 0}}}, "the broker 'c', the stores are a, b"),
                ({"t": {"0": 0}, "nosuch": {"0": 0}}, "no store has a queue 'nosuch'/0"),
                ({"t": {"0": 0, "2": 0}}, "no store has a queue 't'/2"),
                ({"t": {"b": {"0": 0}}}, "store 'b' has no queue 't'/0"),
            ):
                with pytest.raises(StoreFormatError, match=reported):
                    start(which, positions)
            named = {"t": {"0": 0, "1": 0}, "u": {"a": {"0": 0}}}
            at_0 = {"a": {"t": {"0": 0}, "u": {"0": 0}}, "b": {"t": {"1": 0}}}
            assert start(which, named) == at_0
            del at_0["a"]["u"]
            assert start(which, named, topic="t") == at_0  # it exists, but is not selected
        # From then on the checkpoint has the positions, but an unknown broker stays an error.
        known = {"v": 1, "q": {"a": {"t": {"0": 4}, "u": {"0": 4}}}}
        later = reader(a.path, startingOffsets='{"gone": {"0": 0}}')
        assert next_batch(later, known) == known
        with pytest.raises(StoreFormatError, match="the broker 'c'"):
            reader(a.path, startingOffsets='{"t": {"c": {"0": 0}}}')


def test_limits_are_obeyed(store: Store) -> None:
    put(store, "t", 30)
    put(store, "u", 2)
    put(store, "big", 3, body=b"x" * 1000)
    stream = reader(store.path, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    start, seen, sizes = INITIAL, [], []
    while (end := next_batch(stream, start, limit)) != start:
        seen += rows(stream, start, end)
        sizes.append(len(seen))
        start = end
    assert sizes == [7, 14, 21, 28, 35]
    assert sorted(seen) == sorted(
        [("t", 0, i) for i in range(30)]
        + [("u", 0, 0), ("u", 0, 1)]
        + [("big", 0, i) for i in range(3)]
    )
    assert len(rows(stream, INITIAL, next_batch(stream, INITIAL, ALL))) == 35
    assert len(rows(stream, INITIAL, next_batch(stream, INITIAL, ReadMaxRows(1)))) == 3
    none = next_batch(stream, INITIAL, ReadMinRows(36))
    assert rows(stream, INITIAL, none) == []
    assert len(rows(stream, INITIAL, next_batch(stream, INITIAL, ReadMinRows(35)))) == 35
    with pytest.raises(StoreFormatError, match="ReadMaxFiles"):
        stream.latestOffset(INITIAL, ReadMaxFiles(1))


def test_bytes_bound_a_batch(store: Store) -> None:
    put(store, "t", 30, body=b"x" * 300)
    put(store, "u", 3, body=b"x" * 2000)
    each = 91 + 1 + 300
    stream = reader(store.path, startingOffsets="earliest", maxBytesPerTrigger="4k", topic="t")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(4096)
    first = next_batch(stream, INITIAL, ReadMaxBytes(4096))
    assert len(rows(stream, INITIAL, first)) == 4096 // each
    assert len(rows(stream, INITIAL, next_batch(stream, INITIAL, ALL))) == 30
    for size in (1, 33 * 2100, 10**9):
        stream = reader(store.path, startingOffsets="earliest", maxBytesPerTrigger=size)
        start, seen = INITIAL, 0
        while (end := next_batch(stream, start, ReadMaxBytes(size))) != start:
            now = rows(stream, start, end)
            assert now
            seen += len(now)
            start = end
        assert seen == 33
    both = reader(
        store.path, startingOffsets="earliest", maxBytesPerTrigger="2k", maxOffsetsPerTrigger=20
    )
    assert both.getDefaultReadLimit() == ReadMaxRows(20)
    assert 2 <= len(rows(both, INITIAL, next_batch(both, INITIAL, ReadMaxRows(20)))) <= 6


def test_available_now_ends_where_it_was_frozen(store: Store) -> None:
    put(store, "t", 10)
    stream = reader(store.path, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    stream.prepareForTriggerAvailableNow()
    start, seen = INITIAL, []
    while (end := next_batch(stream, start, ReadMaxRows(4))) != start:
        seen += rows(stream, start, end)
        put(store, "t", 5)
        put(store, "late", 1)
        start = end
    assert seen == [("t", 0, i) for i in range(10)]
    assert decode_offset(stream.reportLatestOffset())[0].get(("store", "t", 0)) >= 10


def test_tasks_are_cut_and_hold_the_files_they_need(store: Store) -> None:
    put(store, "t", 200, body=b"x" * 100)
    stream = reader(store.path, startingOffsets="earliest", maxRecordsPerPartition=30)
    end = next_batch(stream, INITIAL)
    tasks = [part.value.task for part in stream.partitions(INITIAL, end)]
    assert [sum(r.stop - r.start for r in task.ranges) for task in tasks] == [30] * 6 + [20]
    assert all(task.is_live for task in tasks)
    log = stream.plan.stores()["store"].snapshot.log_files()
    assert [task.log_files[0] for task in tasks] == sorted(
        {task.log_files[0] for task in tasks}, key=lambda file: file.from_offset
    )
    # Neighbours share a file where they meet.
    assert sum(len(task.log_files) for task in tasks) <= len(log) + len(tasks) - 1
    assert rows(stream, INITIAL, end) == [("t", 0, i) for i in range(200)]
    later = encode_offset({("store", "t", 0): 190}, {})
    end = next_batch(reader(store.path), later)
    (task,) = [part.value.task for part in reader(store.path).partitions(later, end)]
    assert 1 <= len(task.log_files) <= 2


def test_a_damaged_unit_where_tasks_are_cut_takes_no_file_away(store: Store) -> None:
    put(store, "t", 200, body=b"x" * 100)
    options = {"startingOffsets": "earliest", "maxRecordsPerPartition": 30}
    stream = reader(store.path, **options, onCorrupt="skip", failOnDataLoss=False)
    end = next_batch(stream, INITIAL)
    path = queue_file(store.path, "t", number=5)  # the last unit of the second task
    good = path.read_bytes()[9 * UNIT :]
    write_at(path, 9 * UNIT, queue_file(store.path, "t", number=3).read_bytes()[:UNIT])
    seen = {offset for _, _, offset in rows(stream, INITIAL, end)}
    assert seen - {30, 59} == set(range(200)) - {30, 59}
    write_at(path, 9 * UNIT, good)


# ---- what is lost --------------------------------------------------------------------------------


def cleaned(root: Path) -> None:
    """The oldest files are deleted, as by retention."""
    for name in sorted(p.name for p in (root / "commitlog").iterdir())[:2]:
        (root / "commitlog" / name).unlink()


def test_retention_is_data_loss(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "t", 60, body=b"x" * 200)
    first = next_batch(reader(root, startingOffsets="earliest"), INITIAL, ReadMaxRows(5))
    cleaned(root)
    low = live(root)
    low.ends()
    begin = low.min_offset(("t", 0))
    assert begin > 5
    with pytest.raises(DataLossError, match=f"t/0 begins at {begin}, and 5 was the next"):
        next_batch(reader(root), first)
    stream = reader(root, failOnDataLoss=False)
    second = next_batch(stream, first)
    assert second["from"] == {"store": {"t": {"0": begin}}}
    assert rows(stream, first, second) == [("t", 0, i) for i in range(begin, 60)]
    # A batch that was planned before cannot be read again.
    with pytest.raises(DataLossError):
        rows(reader(root), INITIAL, first)
    assert rows(stream, INITIAL, first) == []


def test_a_queue_that_expired_as_a_whole_keeps_its_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "old", 5)
        put(store, "t", 60, body=b"x" * 200)
    read, unread = (
        encode_offset({("store", "old", 0): at, ("store", "t", 0): 60}, {}) for at in (5, 4)
    )
    cleaned(root)
    assert live(root).ends() == {("old", 0): 5, ("t", 0): 60}
    assert next_batch(reader(root), read) == read
    with pytest.raises(DataLossError, match="old/0 begins at 5, and 4 was the next"):
        next_batch(reader(root), unread)
    stream = reader(root, failOnDataLoss=False)
    assert rows(stream, unread, next_batch(stream, unread)) == []
    with open_store(root) as store:
        put(store, "old", 1)
        assert rows(stream, read, next_batch(reader(root), read)) == [("old", 0, 5)]


def test_a_queue_that_is_deleted_while_available_now_runs(store: Store) -> None:
    put(store, "t", 5)
    put(store, "u", 5)
    stream = reader(store.path, startingOffsets="earliest", failOnDataLoss=False)
    stream.prepareForTriggerAvailableNow()
    store.flush()  # otherwise closing misses the pages that it must flush
    shutil.rmtree(Path(store.path) / "consumequeue" / "u")
    stream.plan.look(now=True)
    first = next_batch(stream, INITIAL)
    # The log has its messages.
    assert rows(stream, INITIAL, first) == [(topic, 0, i) for topic in "tu" for i in range(5)]
    assert next_batch(stream, first) == first


def test_a_late_queue_begins_at_its_minimum(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "t", 60, body=b"x" * 200)
    cleaned(root)
    stream = reader(root)
    end = next_batch(stream, encode_offset({}, {}))
    begin = end["from"]["store"]["t"]["0"]
    assert rows(stream, encode_offset({}, {}), end) == [("t", 0, i) for i in range(begin, 60)]
    assert begin > 0


def test_a_queue_that_is_gone_or_went_back(store: Store) -> None:
    put(store, "t", 5)
    put(store, "u", 5)
    later = encode_offset({("store", "t", 0): 5, ("store", "u", 0): 8}, {})
    with pytest.raises(DataLossError, match="u/0 ends at 5, and 8 was the next"):
        next_batch(reader(store.path), later)
    stream = reader(store.path, failOnDataLoss=False)
    end = next_batch(stream, later)
    assert rows(stream, later, end) == [("u", 0, i) for i in range(5)]
    gone = encode_offset({("store", "t", 0): 5, ("store", "v", 0): 8, ("store", "u", 0): 5}, {})
    with pytest.raises(DataLossError, match="v/0 is gone"):
        next_batch(reader(store.path), gone)
    assert next_batch(stream, gone) == gone  # it keeps its position


def test_a_queue_may_be_short_while_the_store_recovers(store: Store) -> None:
    put(store, "t", 5)
    path = queue_file(store.path, "t")
    kept = path.read_bytes()
    env = Env()

    class Recovering(Env):
        def sleep(self, seconds: float) -> None:
            env.write_file(str(path), kept)

    options = read_options({"path": str(store.path)}, STREAM)
    start = encode_offset({("store", "t", 0): 5}, {})
    ranged = live(store.path).range_of(("t", 0), 0, 5)
    for available_now in (False, True):
        write_at(path, 3 * UNIT, bytes(2 * UNIT))
        stream = StoreStreamReader(options, COLUMNS, env=Recovering())
        if available_now:
            stream.prepareForTriggerAvailableNow()
        assert next_batch(stream, start) == start
    write_at(path, 3 * UNIT, bytes(2 * UNIT))
    units = RangeUnits(Recovering(), ranged, fail_on_data_loss=True, patience_s=5)
    assert (units.read(0, 5).size > 0).all()
    write_at(path, 3 * UNIT, bytes(2 * UNIT))
    with pytest.raises(DataLossError, match="2 units are gone, the first is 3"):
        RangeUnits(Env(), ranged, fail_on_data_loss=True).read(0, 5)
    lenient = RangeUnits(Env(), ranged, fail_on_data_loss=False)
    assert lenient.read(0, 5).is_pre_blank().tolist() == [False] * 3 + [True] * 2
    assert lenient.lost == 2
    write_at(path, 0, kept)


def test_messages_of_a_killed_store_arrive(tmp_path: Path) -> None:
    """Before an opening for writing puts their units."""
    with open_store(tmp_path / "owned") as store:
        put(store, "t", 25)
        shutil.copytree(tmp_path / "owned", tmp_path / "s")
    root = tmp_path / "s"
    (queue_file(root, "t", number=2)).unlink()
    write_at(queue_file(root, "t", number=1), 3 * UNIT, bytes(7 * UNIT))
    stream = reader(root, startingOffsets="earliest")
    first = next_batch(stream, INITIAL)
    everything = [("t", 0, i) for i in range(25)]
    assert rows(stream, INITIAL, first) == everything
    # A planned batch has the same rows before an opening for writing and after it.
    assert rows(reader(root), INITIAL, first) == everything
    open_store(root).close()
    assert rows(reader(root), INITIAL, first) == everything
    assert next_batch(reader(root), first) == first


def test_a_dropped_stream_leaves_no_open_store(store: Store) -> None:
    put(store, "t", 5)
    stream = reader(store.path)
    next_batch(stream, INITIAL)
    opened = stream.plan.stores()["store"].snapshot.store
    del stream
    gc.collect()
    assert opened.life.has_ended
    stream = reader(store.path)
    next_batch(stream, INITIAL)
    opened = stream.plan.stores()["store"].snapshot.store
    stream.stop()
    assert opened.life.has_ended


def test_queues_that_are_not_selected_keep_their_place(store: Store) -> None:
    put(store, "t", 5)
    put(store, "u", 5)
    first = next_batch(reader(store.path, startingOffsets="earliest"), INITIAL, ReadMaxRows(4))
    stream = reader(store.path, topic="u")
    second = next_batch(stream, first)
    assert second["q"] == {"store": {"t": {"0": 2}, "u": {"0": 5}}}
    assert rows(stream, first, second) == [("u", 0, i) for i in range(2, 5)]
    # A batch that was planned for both stores returns the rows of both.
    assert len(rows(stream, INITIAL, first)) == 4
    third = next_batch(reader(store.path), second)
    assert rows(stream, second, third) == [("t", 0, i) for i in range(2, 5)]


def test_stores_keep_their_names(store: Store, tmp_path: Path) -> None:
    put(store, "t", 5)
    first = next_batch(reader(store.path, startingOffsets="earliest"), INITIAL)
    renamed = reader(store.path, brokerName="other")
    with pytest.raises(StoreFormatError, match="has the stores store, the query has other"):
        next_batch(renamed, first)
    shutil.copytree(store.path, tmp_path / "b")
    stores = json.dumps({"store": store.path, "b": str(tmp_path / "b")})
    both = StoreStreamReader(read_options({"stores": stores}, STREAM), COLUMNS)
    second = next_batch(both, first)
    assert second["from"] == {"b": {"t": {"0": 0}}}
    assert len(rows(both, first, second)) == 5


def test_other_views_are_refused() -> None:
    for view in ("commitlog", "consumequeue", "index", "files"):
        with pytest.raises(StoreFormatError, match="cannot be streamed"):
            read_options({"path": "x", "view": view}, STREAM)
