"""Goal: verify on Spark finds the problems that `pyrocketstore verify` finds, in valid and damaged
stores.
Method: both over the golden stores, and over small stores with one change each; counts and
positions are compared."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import DataFrame, SparkSession

from pyrocketstore.spark.jobs import verify as verify_job
from pyrocketstore.spark.jobs.expected_entries import LogFileTask
from pyrocketstore.spark.task_types import LogFile
from pyrocketstore.spark.verify import verify
from pyrocketstore.verify.report import PROBLEMS_MAX, VerifyReport

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
#: Counts that both have, with equal values.
COUNTED = (
    "records keys bad_properties skipped_properties unqueued unnameable units pre_blank expired "
    "queues messages other_offsets units_in_damage repeated ext_units index_expired "
    "entries_in_damage not_indexed missing_units missing_keys problem_count missing_count"
).split()
VERDICT = ("consistent", "complete", "ok")
TOPIC = "t"
UNIT = struct.Struct(">qiq")


def compare(spark: SparkSession, store: Path, conf: str | None) -> tuple[VerifyReport, set[str]]:
    """Both answers must agree; the plain one, and the kinds of problems found on Spark."""
    with pyrocketstore.open(store, config=conf, read_only=True) as opened:
        report = opened.verify()
    result = verify(spark, {"b": str(store)}, broker_conf=conf)
    try:
        found = {name: result.counts.get(name, 0) for name in COUNTED}
        assert found == {name: getattr(report, name) for name in COUNTED}
        for name in VERDICT:
            assert getattr(result, name) == getattr(report, name), name
        assert bool(result.index_unchecked) == bool(report.index_unchecked)
        problems = result.problems.collect()
    finally:
        result.close()
    assert (
        sum(row["count"] for row in problems if row.kind == "queue")
        == sum(problem.count for problem in report.problems if problem.kind == "queue")
        or len(report.problems) == PROBLEMS_MAX
    )  # of which the plain one keeps no more
    assert {row.kind for row in problems} == {problem.kind for problem in report.problems}
    ours = {(row.kind, row.path, row.position) for row in problems}
    theirs = {(each.kind, each.path, each.position) for each in report.problems}
    assert theirs <= ours  # neighbours are one problem there
    return report, {row.text for row in problems}


@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(spark, tmp_path, name):
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    report, _ = compare(spark, tmp_path / name, str(GOLDEN / f"{name}.conf"))
    assert report.records > 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of many log files that was stopped cleanly: recovery looks at the last ones only."""
    with pyrocketstore.open(
        tmp_path / "store", mapped_file_size_commit_log=4096, max_hash_slot_num=100,
        max_index_num=2000,
    ) as opened:  # fmt: skip
        for number in range(300):
            keys = f"k{number} k{number % 7}"
            opened.put(TOPIC, b"body %d" % number, queue_id=number % 2, keys=keys, tags="a")
    return tmp_path / "store"


def conf_of(store: Path) -> str:
    path = store.parent / "broker.conf"
    path.write_text("mappedFileSizeCommitLog=4096\nmaxHashSlotNum=100\nmaxIndexNum=2000\n")
    return str(path)


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def queue_file(store: Path, queue_id: int = 0) -> Path:
    return store / "consumequeue" / TOPIC / str(queue_id) / ("0" * 20)


def unit(store: Path, number: int) -> tuple[int, int, int]:
    return UNIT.unpack_from(queue_file(store).read_bytes(), 20 * number)


def other_size(store: Path) -> None:
    place, size, code = unit(store, 5)
    change(queue_file(store), 100, UNIT.pack(place, size + 1, code))


def other_tags(store: Path) -> None:
    place, size, code = unit(store, 5)
    change(queue_file(store), 100, UNIT.pack(place, size, code + 1))


def other_place(store: Path) -> None:
    change(queue_file(store), 100, UNIT.pack(*unit(store, 6)))


def no_units(store: Path) -> None:
    """Recovery builds these in memory."""
    change(queue_file(store), 100, bytes(60))


def blank_units(store: Path) -> None:
    change(queue_file(store), 100, 3 * UNIT.pack(0, 0x7FFFFFFF, 0))


def mismatched_units(store: Path) -> None:
    """A queue without any message in the log."""
    path = store / "consumequeue" / "unexpected" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(queue_file(store).read_bytes())


def older_units(store: Path) -> None:
    """A queue that began again, with the files that it had before: their units name the old
    messages."""
    sizes = {"mapped_file_size_commit_log": 4096, "max_hash_slot_num": 100, "max_index_num": 2000}
    old = shutil.copytree(store / "consumequeue", store.with_name("old units"))
    with pyrocketstore.open(store, **sizes) as opened:
        opened.message_store.clean_unused_topic([])
        for _ in range(3):
            opened.put(TOPIC, b"new")
    shutil.rmtree(store / "consumequeue")
    shutil.move(old, store / "consumequeue")


def damaged_record(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[2]
    change(path, path.read_bytes().index(b"body"), b"BODY")


def damaged_last_record(store: Path) -> None:
    """The log ends before it, and no record follows."""
    path = sorted((store / "commitlog").iterdir())[-1]
    data = path.read_bytes()
    change(path, data.rindex(bytes.fromhex("daa320a7")), b"abcd")


def bad_properties(store: Path) -> None:
    """Two records, in one file and in the last: no checksum covers the properties."""
    files = sorted((store / "commitlog").iterdir())
    for path, key in ((files[1], b"KEYS\1k40"), (files[-1], b"KEYS\1k299")):
        data = path.read_bytes()
        at = data.index(bytes.fromhex("daa320a7"), data.index(key)) if path == files[1] else 0
        end = at - 4 if at else len(data.rstrip(b"\0"))
        change(path, end - 2, bytes(2))


def state_offset(store: Path, queue_offset: int, stated: int) -> None:
    """Let a record of the queue 0 state another queue offset, which no checksum covers."""
    place, *_ = unit(store, queue_offset)
    path = store / "commitlog" / f"{place // 4096 * 4096:020d}"
    change(path, place % 4096 + 20, stated.to_bytes(8, "big", signed=True))


def random_checkpoint(store: Path) -> None:
    change(store / "checkpoint", 0, random.Random(7).randbytes(4096))


def cut_checkpoint(store: Path) -> None:
    os.truncate(store / "checkpoint", 17)


def no_queue_file(store: Path) -> None:
    queue_file(store).unlink()


def short_queue_file(store: Path) -> None:
    os.truncate(queue_file(store), 700)


def no_index(store: Path) -> None:
    """The keys of all messages are not indexed, which is not a contradiction."""
    the_index(store).unlink()


def lost_entries(store: Path) -> None:
    """The index ends before the log does."""
    index = the_index(store)
    header = struct.Struct(">qqqqii")
    *most, slots, count = header.unpack_from(index.read_bytes())
    change(index, 0, header.pack(*most, slots, count - 5))


def garbage_index(store: Path) -> None:
    change(the_index(store), 40, random.Random(1).randbytes(3000))


def no_last_log_file(store: Path) -> None:
    no_index(store)  # the plain verify says too that its header names the lost messages
    sorted((store / "commitlog").iterdir())[-1].unlink()


def index_entry(number: int) -> int:
    return 40 + 4 * 100 + 20 * number


def the_index(store: Path) -> Path:
    return next((store / "index").iterdir())


def other_hash(store: Path) -> None:
    change(the_index(store), index_entry(17), b"\x11\x11\x11\x11")


def other_time(store: Path) -> None:
    change(the_index(store), index_entry(9) + 12, b"\0\0\1\0")


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (other_size, "has the size"),
        (other_tags, "has the tags code"),
        (other_place, "but its message is at"),
        (no_units, "missing or wrong on disk"),
        (blank_units, "is missing"),
        (mismatched_units, "are wrong on disk"),
        (older_units, "but a later message of it is at"),
        (damaged_record, "hold no record"),
        (damaged_last_record, "the log ends here, though the store was stopped cleanly"),
        (other_time, "s old, its record"),
        (bad_properties, "is not complete"),
        (random_checkpoint, "opening the store for writing makes it again"),
        (cut_checkpoint, "opening the store for writing makes it again"),
        (no_queue_file, "missing or wrong on disk"),
        (short_queue_file, "must have"),
        (no_index, None),
        (garbage_index, "rebuilds it from the log"),
        (no_last_log_file, "name messages after it"),
    ],
)
def test_damaged_stores(spark, store, damage: Callable[[Path], None], text: str | None):
    damage(store)
    report, texts = compare(spark, store, conf_of(store))
    assert not report.ok
    assert texts == set() if text is None else any(text in each for each in texts), texts


LAST = 149  # the last queue offset of each queue


@pytest.mark.parametrize(
    ("at", "stated"),
    [
        ([1], LAST + 17),  # behind the queue
        ([40], (1 << 63) - 1),
        ([0], 16),  # that of another record
        ([LAST - 60], -5),
        ([40, 41, 42, LAST], LAST + 100),
        ([40], 40 + (1 << 32)),
    ],
)
def test_records_that_state_another_queue_offset(
    spark: SparkSession, store: Path, at: list[int], stated: int
) -> None:
    for number, queue_offset in enumerate(at):
        state_offset(store, queue_offset, stated + number)
    conf = conf_of(store)
    report, texts = compare(spark, store, conf)
    assert report.other_offsets == report.problem_count == len(at)
    assert texts == {problem.text for problem in report.problems}


@pytest.mark.parametrize("stated", [16, -5, (1 << 63) - 1])
def test_the_only_unit_of_a_queue_proves_no_offset(
    spark: SparkSession, tmp_path: Path, stated: int
) -> None:
    store = tmp_path / "store"
    with pyrocketstore.open(
        store, mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=400
    ) as opened:
        opened.put(TOPIC, b"body", keys="k")
    state_offset(store, 0, stated)
    report, _ = compare(spark, store, None)
    assert report.other_offsets == 0 and not report.ok


@pytest.mark.parametrize("which", ["later", "earlier", "moved"])
def test_shifted_units_prove_no_offset(spark: SparkSession, store: Path, which: str) -> None:
    data = queue_file(store).read_bytes()[:3000]
    if which == "later":
        change(queue_file(store), 100, data[80:500])
    elif which == "earlier":
        change(queue_file(store), 100, data[120:500])
    else:  # they name records of queue 0
        change(queue_file(store, 1), 100, data[100:500])
    report, _ = compare(spark, store, conf_of(store))
    assert report.other_offsets == 0 and not report.ok


def test_another_queue_offset_beside_missing_units(spark: SparkSession, store: Path) -> None:
    state_offset(store, 40, 1 << 20)
    change(queue_file(store), 20 * 50, 3 * UNIT.pack(0, 0x7FFFFFFF, 0))
    report, _ = compare(spark, store, conf_of(store))
    assert (report.other_offsets, report.missing_units) == (1, 3)


def test_skipped_properties_are_counted(spark, store):
    """An item without a separator is skipped, as 4.9.3 does; the record has lost its key."""
    path = sorted((store / "commitlog").iterdir())[1]
    change(path, path.read_bytes().index(b"KEYS\1k40"), b"KEYS=")
    result = verify(spark, {"b": str(store)}, broker_conf=conf_of(store))
    result.close()
    assert result.counts["skipped_properties"] == 1 and "bad_properties" not in result.counts
    assert not result.ok


def test_an_entry_of_another_hash(spark, store):
    # The plain verify finds the broken chain too, which is not looked at here.
    other_hash(store)
    result = verify(spark, {"b": str(store)}, broker_conf=conf_of(store))
    problems = {row.text for row in result.problems.collect()}
    result.close()
    assert any("no record has such a key" in text for text in problems)
    assert any("are not in the index" in text for text in problems)
    assert result.counts["problem_count"] == 2
    assert not result.ok


def test_keys_that_are_missing(spark, store):
    # The plain verify finds slots that name entries after the end too.
    lost_entries(store)
    conf = conf_of(store)
    with pyrocketstore.open(store, config=conf, read_only=True) as opened:
        report = opened.verify()
    result = verify(spark, {"b": str(store)}, broker_conf=conf)
    result.close()
    assert result.counts["missing_keys"] == report.missing_keys > 0
    assert result.missing_count == report.missing_count == result.problem_count
    assert (result.consistent, result.complete, result.ok) == (True, False, False)


def test_an_index_that_cannot_be_checked_is_not_ok(spark, store):
    """Without the settings the count of slots in its files is unknown."""
    change(the_index(store), 32, struct.pack(">ii", 0, 1) + bytes(4 * 100 + 20 * 2000))
    (store / "sync_point").unlink()  # it names them; 4.9.3 does not write it
    report, _ = compare(spark, store, None)
    assert report.index_unchecked and report.consistent and not report.ok
    assert report.not_indexed is None


def test_a_valid_store_has_no_problems(spark, store):
    report, texts = compare(spark, store, conf_of(store))
    assert report.ok
    assert texts == set()


def test_removed_messages_are_not_required(spark, store):
    conf = conf_of(store)
    with pyrocketstore.open(store, config=conf) as opened:
        for topic in ("gone", "again", "trimmed"):
            for number in range(20):
                opened.put(topic, b"old", keys=f"k{number}", queue_id=number % 2)
        for topic in ("gone", "again"):
            opened.drop_topic(topic)
        opened.put("again", b"new", keys="k0")
        opened.trim("trimmed", before=1 << 62)
        opened.put("trimmed", b"new", keys="k0")
    report, texts = compare(spark, store, conf)
    assert report.ok
    assert texts == set()


def test_several_stores(spark, tmp_path):
    for label, count in (("a", 3), ("b", 4)):
        with pyrocketstore.open(tmp_path / label) as opened:
            for number in range(count):
                opened.put("u", b"x", keys=f"k{number}")
    result = verify(spark, {label: str(tmp_path / label) for label in "ab"})
    assert (result.counts["records"], result.counts["index_right"], result.ok) == (7, 7, True)
    result.close()


FILES = 2000
SIZE = 1000


def places(spark: SparkSession, offsets: list[int | None]) -> DataFrame:
    rows = [(label, offset) for label in ("a", "b", "c") for offset in offsets]
    return spark.createDataFrame(rows, "brokerName string, commitLogOffset bigint")


def test_thousands_of_damaged_ranges(spark):
    """The ranges begin anywhere in their files, some touch or overlap another, and none is of c."""
    ranges = [("a", SIZE * n + n % 7, SIZE * n + 500) for n in range(FILES)]
    ranges += [("b", SIZE * n, SIZE * (n + 1)) for n in range(1, FILES, 2)]
    ranges += [("b", SIZE + 10, SIZE + 20), ("b", 2 * SIZE, 2 * SIZE + 1), ("b", SIZE, SIZE + 5)]
    edges = {edge + d for _, *pair in ranges[:: FILES // 40] for edge in pair for d in (-1, 0, 1)}
    offsets = [None, -1, 0, 2 * SIZE, 2 * SIZE + 1, FILES * SIZE, 2**62, *sorted(edges)]
    frame = places(spark, offsets)
    found = frame.withColumn("is_damaged", verify_job._in_ranges(ranges, frame["commitLogOffset"]))
    for label, offset, is_damaged in found.collect():
        inside = [
            low for name, low, high in ranges if name == label and low <= (offset or 0) < high
        ]
        assert is_damaged is (offset is not None and bool(inside)), (label, offset)
    assert {row.is_damaged for row in found.collect()} == {True, False}


def test_thousands_of_log_files(spark):
    def task(label: str, base: int) -> LogFileTask:
        file = LogFile(f"/{label}/{base:020d}", base, SIZE)
        return LogFileTask(label, file, SIZE, False, {}, False, False)

    # Those of b begin at 50 files' length, and one is missing.
    tasks = [task("a", SIZE * n) for n in range(FILES)]
    tasks += [task("b", SIZE * n) for n in range(50, FILES) if n != 60]
    offsets = [0, 999, 1000, 49_999, 50_000, 60_500, 61_000, FILES * SIZE - 1, FILES * SIZE, None]
    frame = places(spark, offsets)
    found = frame.withColumn("place", verify_job._log_place(tasks, frame["commitLogOffset"]))
    known = {(each.broker_name, each.file.from_offset): each.file.path for each in tasks}
    for label, offset, place in found.collect():
        base = None if offset is None else offset // SIZE * SIZE
        path = known.get((label, base))
        assert place == (None if path is None else (path, offset - base)), (label, offset)


def test_no_damage_runs_no_python(spark):
    frame = places(spark, [1])
    assert frame.select(verify_job._in_ranges([], frame["commitLogOffset"])).first()[0] is False
