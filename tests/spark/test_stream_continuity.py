"""Goal: a stream continues only over the store that it has read before: with another store, a store
that lost its end, or a recreated topic it skips no message without a report.
Method: directories are exchanged, put back and emptied between queries and during them; the
reader is called as Spark calls it, without Spark, and its offsets pass through JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.spark.options import STREAM, read_options
from pyrocketstore.spark.task_types import DataLossError
from pyrocketstore.system.env import Env

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.plan.offsets import INITIAL, decode_marks, decode_offset
from pyrocketstore.spark.source.stream import StoreStreamReader
from streams import COLUMNS, next_batch, reader, rows

FILE = 4096
SIZES = {"mapped_file_size_commit_log": FILE, "mapped_file_size_consume_queue": 400}
Offset = dict[str, Any]


def fill(root: Path, count: int, text: str, *topics: str, queue_id: int = 0) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(count):
            for topic in topics or ("t",):
                store.put(topic, f"{text} {number:06d}".encode().ljust(300), queue_id=queue_id)


def start(root: Path, **options: object) -> Offset:
    """Where a stream is that has read everything."""
    return next_batch(reader(root, startingOffsets="earliest", **options), INITIAL)


def check_mismatched(root: Path, known: Offset, what: str, caplog: Any, left: list[Any]) -> None:
    """The store is refused by default; on request the stream returns `left` with a warning."""
    with pytest.raises(DataLossError, match=what):
        next_batch(reader(root), known)
    caplog.clear()
    stream = reader(root, failOnDataLoss=False)
    end = next_batch(stream, known)
    assert sum("the stream continues" in line for line in caplog.messages) == 1
    assert rows(stream, known, end) == left
    assert next_batch(stream, end) == end
    assert next_batch(reader(root), end) == end


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store", 60, "old", "t", "u")
    return tmp_path / "store"


def every(count: int, *topics: str) -> list[tuple[str, int, int]]:
    return [(topic, 0, number) for topic in topics for number in range(count)]


# ---- another store -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 60, 150])
@pytest.mark.parametrize("text", ["new", "a longer new one"])
def test_another_store_under_the_path(root, caplog, count, text):
    known = start(root)
    shutil.rmtree(root)
    fill(root, count, text, "t", "u")
    check_mismatched(root, known, "is another store", caplog, every(count, "t", "u"))


@pytest.mark.parametrize("more", [5, 30, 100])
def test_a_store_that_lost_its_end(root, tmp_path, caplog, more):
    shutil.copytree(root, tmp_path / "copy")
    fill(root, 20, "lost")
    known = start(root)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    fill(root, more, "other")
    left = every(60 + more, "t") + every(60, "u")
    check_mismatched(root, known, "or has lost its end", caplog, left)


@pytest.mark.parametrize("more", [0, 5, 30, 100])
def test_a_store_that_continues_without_its_last_files(root, caplog, more):
    """The owner opens it for writing, which cuts the queues, and puts to it."""
    known = start(root)
    for path in sorted((root / "commitlog").iterdir())[-3:]:
        path.unlink()
    with pytest.warns(pyrocketstore.StoreWarning, match="these messages are missing"):
        store = pyrocketstore.open(root, **SIZES)
    with store:
        left = {topic: store.max_offset(topic) for topic in "tu"}
        assert 0 < max(left.values()) < 60
        for number in range(more):
            assert store.put("t", b"other %d" % number).queue_offset == left["t"] + number
    left["t"] += more
    everything = [(topic, 0, number) for topic in "tu" for number in range(left[topic])]
    check_mismatched(root, known, "or has lost its end", caplog, everything)


def follow(stream: StoreStreamReader, at: Offset, batches: int = 3) -> tuple[Offset, list[Any]]:
    """Where the stream is after some batches, also without new messages, and their rows."""
    found = []
    for _ in range(batches):
        end = next_batch(stream, at)
        found += [] if end == at else rows(stream, at, end)
        at = end
    return at, found


@pytest.mark.parametrize("before", [("t", "u"), ("u", "t")])  # the last of it has the latest mark
@pytest.mark.parametrize("again", ["t", "new"])
@pytest.mark.parametrize("count", [5, 60, 300])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_store_that_is_made_again_without_an_old_queue(
    tmp_path, caplog, before, again, count, restarts
):
    """The rows of the new store arrive once, and one warning does."""
    root = tmp_path / "store"
    fill(root, 60, "old", *before)
    stream = reader(root, startingOffsets="earliest", failOnDataLoss=False)
    at = next_batch(stream, INITIAL)
    shutil.rmtree(root)
    fill(root, count, "another", again)
    stream.plan.look(now=True)
    caplog.clear()
    found = []
    for first in (0, 7):
        if restarts:
            stream = reader(root, failOnDataLoss=False)
        if first:
            fill(root, first, "later", again)
            stream.plan.look(now=True)
        at, more = follow(stream, at)
        found += more
    assert sorted(found) == every(count + 7, again)
    assert sum("the stream continues" in line for line in caplog.messages) == 1, caplog.text
    # A queue with the old name is a new queue.
    fill(root, 70, "back", "u")
    stream.plan.look(now=True)
    assert follow(stream, at)[1] == every(70, "u")


def test_a_store_that_is_made_again_without_a_queue_that_is_no_longer_selected(tmp_path, caplog):
    root = tmp_path / "store"
    fill(root, 60, "old", "t", "u")
    at = next_batch(reader(root, startingOffsets="earliest"), INITIAL)
    shutil.rmtree(root)
    fill(root, 20, "new", "t")
    stream = reader(root, topic="t", failOnDataLoss=False)
    assert follow(stream, at)[1] == every(20, "t")
    assert sum("the stream continues" in line for line in caplog.messages) == 1, caplog.text


def test_a_store_that_is_exchanged_under_a_running_stream(root):
    stream = reader(root, startingOffsets="earliest")
    known = next_batch(stream, INITIAL)
    assert next_batch(stream, known) == known
    shutil.rmtree(root)
    fill(root, 100, "new", "t", "u")
    stream.plan.look(now=True)
    with pytest.raises(DataLossError, match="another store"):
        next_batch(stream, known)


def test_a_batch_that_was_planned_over_another_store(root, caplog):
    """Spark reads it again before any other call."""
    known = start(root)
    assert rows(reader(root), INITIAL, known) == every(60, "t", "u")
    shutil.rmtree(root)
    fill(root, 60, "new", "t", "u")
    with pytest.raises(DataLossError, match="and a batch was planned of it"):
        reader(root).partitions(INITIAL, known)
    caplog.clear()
    assert rows(reader(root, failOnDataLoss=False), INITIAL, known) == every(60, "t", "u")
    assert any("messages whose units have changed are omitted" in line for line in caplog.messages)


def test_the_log_is_empty_where_queues_are_left(root):
    known = start(root)
    for path in (root / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(DataLossError):
        next_batch(reader(root), known)


# ---- topics created again ------------------------------------------------------------------------


def recreate(root: Path, topic: str, count: int, others: int) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        store.message_store.clean_unused_topic({"t", "u"} - {topic})
        for number in range(count):
            store.put(topic, f"again {number:06d}".encode().ljust(300))
        store.put_many("others", [b"x" * 100] * others)


@pytest.mark.parametrize("count", [60, 61, 200])
def test_a_recreated_topic(root, caplog, count):
    known = start(root)
    recreate(root, "u", count, 200)
    left = every(200, "others") + every(count, "u")
    check_mismatched(root, known, "u/0 was recreated: its message 59", caplog, left)


# ---- the same store ------------------------------------------------------------------------------


def test_an_unchanged_store_continues(root, caplog):
    known = start(root)
    fill(root, 40, "more")
    stream = reader(root)
    end = next_batch(stream, known)
    assert rows(stream, known, end) == [("t", 0, number) for number in range(60, 100)]
    shutil.copytree(root, root.with_name("copy"))
    assert next_batch(reader(root.with_name("copy"), brokerName="store"), end) == end
    assert not caplog.messages


@pytest.mark.parametrize("files", [1, 3, 99])
def test_expired_messages_prove_nothing(root, files):
    """Also the marked message itself."""
    known = start(root)
    fill(root, 60, "more", "t", "u")
    names = sorted((root / "commitlog").iterdir())
    with_mark = int(decode_marks(known)["store", "u", 0].phy_offset) // FILE
    assert 3 < with_mark < len(names) - 3
    for path in names[: files if files < 99 else with_mark + 2]:
        path.unlink()
    if files < 99:
        end = next_batch(reader(root), known)
        assert rows(reader(root), known, end) == [(t, 0, n) for t in "tu" for n in range(60, 120)]
        return
    with pytest.raises(DataLossError, match="begins at"):
        next_batch(reader(root), known)


def test_a_log_that_begins_behind_the_mark_and_is_older(root, tmp_path):
    """Only the store times distinguish the stores."""
    known = start(root)
    mark = known["m"]["store"]["u"]["0"]
    assert len(mark) == 4
    fill(root, 60, "more", "t", "u")
    names = sorted((root / "commitlog").iterdir())
    for path in names[: mark[0] // FILE + 1]:
        path.unlink()
    mark[2] += 2 * 3_600_000
    with pytest.raises(DataLossError, match="and the log begins after it with a message of"):
        next_batch(reader(root), known)


def test_a_damaged_record_is_no_other_store(root):
    known = start(root)
    fill(root, 40, "more", "t", "u")
    place = decode_marks(known)["store", "u", 0].phy_offset
    path = root / "commitlog" / f"{place - place % FILE:020d}"
    data = bytearray(path.read_bytes())
    data[place % FILE : place % FILE + 60] = bytes(60)
    path.write_bytes(data)
    assert decode_offset(next_batch(reader(root), known))[0]["store", "t", 0] == 100


def test_units_that_recovery_removes_for_a_moment(root):
    """Units of other messages too, which a concurrent write may show."""
    known = start(root)
    fill(root, 10, "more", "u")
    path = root / "consumequeue" / "u" / "0" / f"{800:020d}"
    kept = path.read_bytes()
    env = Env()

    class Recovering(Env):
        def sleep(self, seconds: float) -> None:
            env.write_file(str(path), kept)

    path.write_bytes(kept[: 19 * 20] + kept[18 * 20 : 19 * 20] + kept[20 * 20 :])
    options = read_options({"path": str(root)}, STREAM)
    stream = StoreStreamReader(options, COLUMNS, env=Recovering())
    end = next_batch(stream, known)
    assert rows(stream, known, end) == [("u", 0, number) for number in range(60, 70)]


# ---- offsets -------------------------------------------------------------------------------------


def test_a_checkpoint_without_marks_continues_with_one_warning(root, caplog):
    known = start(root)
    del known["m"]
    stream = reader(root)
    for _ in range(3):
        assert next_batch(stream, known) == known
    fill(root, 40, "more")
    stream.plan.look(now=True)
    end = next_batch(stream, known)
    assert rows(stream, known, end) == [("t", 0, number) for number in range(60, 100)]
    assert sum("version without marks" in line for line in caplog.messages) == 1
    assert set(decode_marks(end)) == {("store", "t", 0), ("store", "u", 0)}


def test_marks_are_those_of_the_last_messages(root):
    stream = reader(root, startingOffsets="earliest")
    known, ends = INITIAL, []
    for _ in range(5):
        known = next_batch(stream, known, ReadMaxRows(30))
        marks = decode_marks(known)
        ends.append(decode_offset(known)[0])
        with pyrocketstore.open(root, read_only=True) as store:
            for (_, topic, queue_id), end in ends[-1].items():
                message = list(store.read(topic, queue_id))[end - 1]
                mark = marks["store", topic, queue_id]
                assert mark[:2] == (end - 1, message.phy_offset)
                if mark.store_timestamp is not None:
                    assert mark.store_timestamp == message.store_timestamp
        latest = max(marks.values(), key=lambda mark: mark.phy_offset)
        assert latest.store_timestamp is not None
    assert ends[-1] == {("store", "t", 0): 60, ("store", "u", 0): 60}


def test_a_mark_takes_few_bytes_and_few_reads(tmp_path):
    """They are in each offset, for each queue."""
    count = 300
    with pyrocketstore.open(tmp_path / "store") as store:
        for queue_id in range(count):
            store.put_many("t", [b"x"] * 3, queue_ids=queue_id)
    opened: list[object] = []

    class Counting(Env):
        def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
            opened.append(path)
            return super().open(path, flags, mode)

    options = read_options({"path": str(tmp_path / "store"), "startingOffsets": "earliest"}, STREAM)
    stream = StoreStreamReader(options, COLUMNS, env=Counting())
    end = next_batch(stream, INITIAL)
    with_marks = len(json.dumps(end, separators=(",", ":")))
    without = len(json.dumps({k: v for k, v in end.items() if k != "m"}, separators=(",", ":")))
    assert with_marks - without < 20 * count + 200
    opened.clear()
    assert next_batch(stream, end) == end
    assert len(opened) <= 5 * count  # compared once
    opened.clear()
    for _ in range(10):
        assert next_batch(stream, end) == end
    assert len(opened) <= 5 * count


@pytest.mark.parametrize(
    "marks",
    [
        3,
        {"store": 3},
        {"store": {"t": {"0": [1]}}},
        {"store": {"t": {"0": [1, "2"]}}},
        {"store": {"t": {"0": [1, 2, 3, 1 << 63]}}},
        {"store": {"t": {"x": [1, 2]}}},
        {"store": {"none": {"0": [1, 2]}}},
    ],
)
def test_invalid_marks_are_reported(root, marks):
    known = start(root)
    known["m"] = marks
    with pytest.raises(StoreFormatError, match="checkpoint"):
        next_batch(reader(root), known)
