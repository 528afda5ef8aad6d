"""Goal: a lake has each message of its stores once, whichever process is killed at any time, and
reports the messages that it lacks.
Method: golden stores compared with the data source row by row; stores that grow, are damaged or
lose files between exports; drivers and workers killed with SIGKILL and run again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from pyrocketstore.errors import StoreError, StoreFormatError, StoreStateError
from pyrocketstore.spark import register
from pyrocketstore.spark.lake import export as pipeline
from pyrocketstore.spark.lake import manifest as manifest_module
from pyrocketstore.spark.lake import writer as lake_writer
from pyrocketstore.spark.lake.manifest import (
    DONE,
    NO_DATE,
    RUNNING,
    Manifest,
    Run,
    Split,
    SplitResult,
    escaped,
    write_note,
)
from pyrocketstore.spark.pipeline import export, is_lake, read_lake, read_manifest
from pyrocketstore.spark.read.decode import NO_BODY, reason_of
from pyrocketstore.spark.task_types import DataLossError

GOLDEN = Path(__file__).parent.parent / "golden"
STORES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
DAY_MS = 86_400_000

Unpack = Callable[[str], Path]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    root = tmp_path_factory.mktemp("golden")

    def unpacked(name: str) -> Path:
        if not (root / name).exists():
            with tarfile.open(GOLDEN / f"{name}.tar.xz") as tar:
                tar.extractall(root, filter="data")
        return root / name

    return unpacked


def source_rows(spark: SparkSession, name: str, store: Path) -> DataFrame:
    register(spark)
    options = {
        "brokerConf": str(GOLDEN / f"{name}.conf"),
        "includeSystemTopics": "true",
        "readMode": "queue",
    }
    return spark.read.format("rocketmq-store").options(**options).load(str(store))


def by_place(frame: DataFrame) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The rows by queue and offset; no offset may occur twice."""
    rows = [row.asDict() for row in frame.collect()]
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def fill(store: Path, topic: str, count: int, *, first: int = 0, queues: int = 2) -> None:
    """Put messages with bodies that say their number."""
    with pyrocketstore.open(store) as opened:
        for number in range(first, first + count):
            opened.put(topic, b"body %d" % number, queue_id=number % queues, keys=f"k{number}")


def bodies(spark: SparkSession, out: Path) -> Counter[bytes]:
    return Counter(bytes(row.body) for row in read_lake(spark, out).select("body").collect())


def numbered(count: int) -> Counter[bytes]:
    return Counter(b"body %d" % number for number in range(count))


def left_over(out: Path) -> list[Path]:
    return list((out / "messages").rglob(".tmp-*"))


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(root.rglob("*"))}


# ---- what is in it -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_a_lake_has_the_rows_of_the_data_source(spark, golden, tmp_path, name):
    store = golden(name)
    before = tree(store)
    conf = str(GOLDEN / f"{name}.conf")
    report = export(spark, {name: store}, tmp_path, brokerConf=conf, includeSystemTopics=True)
    assert tree(store) == before
    lake = by_place(read_lake(spark, tmp_path).drop("date"))
    assert lake == by_place(source_rows(spark, name, store))
    assert report.rows == len(lake) > 0
    assert report.skipped == []


def test_days_are_those_of_the_store_time_in_utc(spark, golden, tmp_path):
    store = golden("mixed")
    export(spark, store, tmp_path, brokerConf=str(GOLDEN / "mixed.conf"))
    rows = read_lake(spark, tmp_path).selectExpr("date = to_date(storeTimestamp) as same").collect()
    assert rows and all(row.same for row in rows)


def test_a_clock_that_goes_back_at_midnight(spark, tmp_path, monkeypatch):
    import pyarrow as pa

    monkeypatch.setattr(lake_writer, "OPEN_FILES_MAX", 1)
    monkeypatch.setattr(lake_writer, "ROW_GROUP_ROWS", 1)
    split = Split(0, "b", "t", 0, 0, 4, 0)
    files = lake_writer.DayFiles(tmp_path / "topic=t", split, "zstd")
    for number, day in enumerate([1, 2, 1, 2]):
        time_us = pa.array([day * DAY_MS * 1000 + number], pa.timestamp("us", "UTC"))
        files.write(pa.record_batch({"storeTimestamp": time_us, "n": pa.array([number])}))
    paths = files.finish()
    files.discard()
    days = Counter(path.parent.name for path in paths)
    assert days == {"date=1970-01-02": 2, "date=1970-01-03": 2}
    assert len(set(paths)) == 4
    assert all(path.exists() for path in paths)


def test_files_are_fsynced_while_they_grow_and_when_they_are_complete(tmp_path, monkeypatch):
    import pyarrow as pa

    forced: dict[str, list[int]] = {}

    def force(path: Path) -> None:
        forced.setdefault(path.parent.name, []).append(path.stat().st_size)
        real(path)

    real = lake_writer._fsync
    monkeypatch.setattr(lake_writer, "_fsync", force)
    monkeypatch.setattr(lake_writer, "ROW_GROUP_ROWS", 1)
    files = lake_writer.DayFiles(tmp_path / "topic=t", Split(0, "b", "t", 0, 0, 9, 0), "zstd")
    for day in [1, 2, 1, 2, 1]:
        time_us = pa.array([day * DAY_MS * 1000], pa.timestamp("us", "UTC"))
        files.write(pa.record_batch({"storeTimestamp": time_us}))
        while not files._fsyncing.done():
            time.sleep(0.001)
    assert {day: len(sizes) for day, sizes in forced.items()} == {
        "date=1970-01-02": 3,
        "date=1970-01-03": 2,
    }
    for path in files.finish():
        assert forced[path.parent.name][-1] == path.stat().st_size
    files.discard()


def finishes_not(home: Path, error: type[Exception], match: str) -> None:
    """Three rows of a split that get no file."""
    import pyarrow as pa

    files = lake_writer.DayFiles(home / "topic=t", Split(0, "b", "t", 0, 0, 3, 0), "zstd")
    files.write(pa.record_batch({"storeTimestamp": pa.array([0, 1, 2], pa.timestamp("us"))}))
    with pytest.raises(error, match=match):
        files.finish()
    files.discard()
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_file_whose_fsync_fails_is_not_renamed(tmp_path, monkeypatch):
    def force(path: Path) -> None:
        monkeypatch.undo()  # the kernel reports it once
        raise OSError(errno.EIO, "device gone", str(path))

    monkeypatch.setattr(lake_writer, "_fsync", force)
    monkeypatch.setattr(lake_writer, "ROW_GROUP_ROWS", 1)
    finishes_not(tmp_path, OSError, "device gone")


@pytest.mark.parametrize("time_ms", [2**62, -(2**63), 2**48], ids=["late", "early", "in-11000"])
def test_a_store_time_that_is_none(spark, tmp_path, time_ms):
    store, out = tmp_path / "store", tmp_path / "out"
    fill_small_files(store, 300)
    damage_record(store, b"body 7", 56, struct.pack(">q", time_ms))
    report = export(spark, store, out)
    assert (report.rows, report.skipped) == (300, [])
    assert bodies(spark, out) == numbered(300)
    rows = read_lake(spark, out).where("date IS NULL").select("body").collect()
    assert [bytes(row.body) for row in rows] == [b"body 7"]
    (path,) = (out / "messages" / "topic=t" / f"date={NO_DATE}").iterdir()
    assert path.suffix == ".parquet"


def test_rows_that_no_day_takes_are_not_counted_as_written(tmp_path, monkeypatch):
    monkeypatch.setattr(lake_writer, "_by_date", lambda batch: [("1970-01-01", batch[1:])])
    finishes_not(tmp_path, StoreStateError, "got 3 rows, but its files have 2")


def test_topics_with_signs_and_numbers(spark, tmp_path):
    store = tmp_path / "store"
    for topic in ("%RETRY%g", "123", "a|b"):
        fill(store, topic, 3)
    export(spark, store, tmp_path / "out", includeSystemTopics=True)
    found = read_lake(spark, tmp_path / "out").groupBy("topic").count().collect()
    assert {(row[0], row[1]) for row in found} == {("%RETRY%g", 3), ("123", 3), ("a|b", 3)}
    assert escaped("%RETRY%g") == "%25RETRY%25g"


def test_two_stores_and_labels_that_spark_would_hide(spark, tmp_path):
    for number in range(2):
        fill(tmp_path / f"s{number}", "t", 5 + number)
    stores = {"_hidden": tmp_path / "s0", ".too": tmp_path / "s1"}
    export(spark, stores, tmp_path / "out")
    found = read_lake(spark, tmp_path / "out").groupBy("brokerName").count().collect()
    assert {(row[0], row[1]) for row in found} == {("_hidden", 5), (".too", 6)}
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreFormatError, match="two stores are named 's0'"):
        export(spark, [tmp_path / "s0", tmp_path / "other" / "s0"], tmp_path / "out")


def test_the_parquet_files_are_as_planned(spark, tmp_path):
    from pyarrow.parquet import ParquetFile

    fill(tmp_path / "store", "t", 100)
    report = export(spark, tmp_path / "store", tmp_path / "out")
    run = read_manifest(tmp_path / "out")[0]
    paths = [path for result in run.results for path in result.files]
    assert report.files == len(paths) == 2
    assert report.file_bytes == sum((tmp_path / "out" / path).stat().st_size for path in paths)
    with ParquetFile(tmp_path / "out" / paths[0]) as file:
        group = file.metadata.row_group(0)
        assert "topic" not in file.schema_arrow.names
        columns = map(group.column, range(group.num_columns))
        described = {column.path_in_schema: column for column in columns}
    assert described["body"].compression == "ZSTD"
    assert not described["body"].is_stats_set
    assert described["queueOffset"].is_stats_set
    assert "RLE_DICTIONARY" in described["tags"].encodings
    assert "RLE_DICTIONARY" not in described["body"].encodings


# ---- what is new ---------------------------------------------------------------------------------


def test_only_new_messages_are_exported(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 10)
    assert not is_lake(out)
    assert export(spark, store, out).rows == 10
    before = tree(out / "messages")
    assert export(spark, store, out).runs == []
    assert tree(out / "messages") == before
    fill(store, "t", 5, first=10)
    fill(store, "u", 2, first=15)
    report = export(spark, store, out)
    assert (report.rows, report.runs) == (7, [2])
    assert bodies(spark, out) == numbered(17)
    assert set(before.items()) - set(tree(out / "messages").items()) <= {
        item for item in before.items() if not item[0].endswith(".parquet")
    }
    first, second = read_manifest(out)
    assert first.next == {"store": {"t": {0: 5, 1: 5}}}
    assert second.next == {"store": {"t": {0: 8, 1: 7}, "u": {0: 1, 1: 1}}}
    assert [run.state for run in (first, second)] == [DONE, DONE]


def test_an_empty_store_exports_an_empty_lake(spark, tmp_path):
    with pyrocketstore.open(tmp_path / "store"):
        pass
    report = export(spark, tmp_path / "store", tmp_path / "out")
    assert (report.rows, report.runs) == (0, [])
    assert read_lake(spark, tmp_path / "out").count() == 0


def test_large_queues_are_cut(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "TASK_BYTES_MIN", 1000)
    fill(tmp_path / "store", "t", 200)
    export(spark, tmp_path / "store", tmp_path / "out", partitionBytes=2000)
    run = read_manifest(tmp_path / "out")[0]
    assert run.task_count() > 5
    ranges = sorted((s.queue_id, s.start, s.stop) for s in run.splits)
    for queue_id in (0, 1):
        edges = [(start, stop) for queue, start, stop in ranges if queue == queue_id]
        assert edges[0][0] == 0
        assert edges[-1][1] == 100
        assert all(a[1] == b[0] for a, b in pairwise(edges))
    assert bodies(spark, tmp_path / "out") == numbered(200)


# ---- what cannot be had --------------------------------------------------------------------------


def log_file(store: Path) -> Path:
    return min((store / "commitlog").iterdir())


def fill_small_files(store: Path, count: int) -> None:
    """A store of many log files, of which recovery checks only the last ones."""
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        for number in range(count):
            opened.put("t", b"body %d" % number, queue_id=number % 2)


def damage(store: Path, what: bytes, new: bytes) -> Path:
    """Change the first such bytes of the log."""
    for path in sorted((store / "commitlog").iterdir()):
        place = path.read_bytes().find(what)
        if place >= 0:
            with path.open("r+b") as file:
                file.seek(place)
                file.write(new)
            return path
    raise AssertionError(f"{what!r} is not in the log")


def damage_record(store: Path, body: bytes, position: int, new: bytes) -> None:
    """Change bytes of the head of the first record with this body."""
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        place = data.find(body)
        if place >= 0:
            begin = data.rindex(b"\xda\xa3\x20\xa7", 0, place) - 4
            with path.open("r+b") as file:
                file.seek(begin + position)
                file.write(new)
            return
    raise AssertionError(f"{body!r} is not in the log")


def test_a_body_with_a_wrong_crc(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill_small_files(store, 300)
    path = damage(store, b"body 7", b"BODY 7")
    with pytest.raises(PythonException, match="CRC"):
        export(spark, store, out)
    report = export(spark, store, out, onCorrupt="skip")
    assert (report.rows, report.crc_failures) == (299, 1)
    (skipped,) = report.skipped
    assert (skipped.topic, skipped.queue_id, skipped.start, skipped.stop) == ("t", 1, 3, 4)
    assert (skipped.records, skipped.path) == (1, str(path))
    assert "CRC" in skipped.reason
    (run,) = read_manifest(out)
    assert [each for result in run.results for each in result.skipped] == [skipped]
    assert bodies(spark, out) == numbered(300) - Counter([b"body 7"])
    assert left_over(out) == []


def test_crc_need_not_be_looked_at(spark, tmp_path):
    store = tmp_path / "store"
    fill_small_files(store, 300)
    damage(store, b"body 7", b"BODY 7")
    report = export(spark, store, tmp_path / "out", verifyCrc=False)
    assert (report.rows, report.crc_failures) == (300, 0)


def test_a_record_with_another_magic_and_one_of_another_place(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill_small_files(store, 300)
    damage(store, b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xa8")
    unit = store / "consumequeue" / "t" / "1" / ("0" * 20)
    units = bytearray(unit.read_bytes())
    units[20:40] = units[40:60]  # the second message again is the third
    unit.write_bytes(units)
    report = export(spark, store, out, onCorrupt="skip")
    assert report.rows == 298
    assert [(s.queue_id, s.start, s.stop, s.records) for s in report.skipped] == [
        (0, 0, 1, 1),
        (1, 1, 2, 1),
    ]
    assert "another queue or queue offset" in report.skipped[1].reason


def test_damage_at_which_a_broker_would_end_the_log(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 20)
    damage(store, b"body 7", b"BODY 7")
    with pytest.raises(StoreError, match="but valid records follow"):
        export(spark, store, out)
    report = export(spark, store, out, onCorrupt="skip")
    assert (report.rows, report.crc_failures) == (19, 1)
    assert [(s.queue_id, s.start, s.records) for s in report.skipped] == [(1, 3, 1)]
    assert export(spark, store, out, onCorrupt="skip").runs == []


def test_a_body_that_does_not_inflate(spark, tmp_path):
    from pyrocketstore.record.message import MessageExtBrokerInner

    store, out = tmp_path / "store", tmp_path / "out"
    with pyrocketstore.open(store) as opened:
        opened.put("t", b"whole")
        flag = 1  # the body is compressed, it says
        opened.message_store.put_message(MessageExtBrokerInner("t", b"no zlib", sys_flag=flag))
    with pytest.raises(PythonException, match="inflate"):
        export(spark, store, out)
    report = export(spark, store, out, onCorrupt="skip")
    assert (report.rows, report.crc_failures) == (1, 0)
    assert [(s.start, s.reason) for s in report.skipped] == [(1, reason_of(NO_BODY))]
    raw = export(spark, store, tmp_path / "raw", decompress=False)
    assert (raw.rows, raw.skipped) == (2, [])


def test_messages_deleted_before_they_were_exported(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill_small_files(store, 50)
    assert export(spark, store, out).rows == 50
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        for number in range(50, 300):
            opened.put("t", b"body %d" % number, queue_id=number % 2)
    for path in sorted((store / "commitlog").iterdir())[:4]:
        path.unlink()
    with pytest.raises(DataLossError, match="deleted before they were exported"):
        export(spark, store, out)
    report = export(spark, store, out, failOnDataLoss=False)
    lost = sum(each.records for each in report.skipped)
    assert lost > 10
    assert report.rows + lost == 250
    assert {each.reason for each in report.skipped} == {"deleted before they were exported"}


def test_a_store_that_began_again(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 20)
    export(spark, store, out)
    shutil.rmtree(store)
    fill(store, "t", 4)
    with pytest.raises(DataLossError, match="another store"):
        export(spark, store, out)


def test_options_that_an_export_does_not_take(spark, tmp_path):
    with pytest.raises(StoreFormatError, match="no option 'view'"):
        export(spark, tmp_path, tmp_path, view="index")
    with pytest.raises(StoreFormatError, match="onCorrupt"):
        export(spark, tmp_path, tmp_path, onCorrupt="null")


# ---- kills ---------------------------------------------------------------------------------------


class Stopped(Exception):
    """Simulates a kill at one point of the driver."""


def stop_here(*_: object, **__: object) -> None:
    raise Stopped


@pytest.mark.parametrize("place", ["begin", "save", "sweep", "finish"])
def test_a_driver_that_ends_anywhere(spark, tmp_path, monkeypatch, place):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 30)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Manifest, place, stop_here)
        export(spark, store, out)
    fill(store, "t", 10, first=30)
    export(spark, store, out)
    assert bodies(spark, out) == numbered(40)
    assert [run.state for run in read_manifest(out)] == [DONE] * len(read_manifest(out))
    assert not list(out.glob("_manifest/*.tasks"))


def test_a_run_reads_no_more_of_a_lake_with_more_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With news and without them, finished, killed and taken over: the manifest alone."""
    out, read, original = tmp_path / "lake", [], manifest_module._read_text
    monkeypatch.setattr(
        manifest_module, "_read_text", lambda path: read.append(path.name) or original(path)
    )

    def run_of(number: int) -> Run:
        split = Split(0, "b", "t", 0, number, number + 1, 10)
        following = {"b": {"t": {0: number + 1}}}
        return Run(number, RUNNING, 0, 0.0, {}, following, [split], [], [])

    counts: dict[str, list[list[str]]] = {}
    for number in range(1, 31):
        with Manifest(out) as manifest:
            assert getattr(manifest.last(), "number", 0) == number - 1
            run = run_of(number)
            notes = manifest.begin(run)
            result = SplitResult(run.splits[0], 1, 1, 1, (), 0, ())
            write_note(notes, 0, [result])
            if number % 3:  # else killed before it was finished
                manifest.finish(run)
                assert not notes.exists()
        counts.setdefault("new" if number % 3 else "killed", []).append(read[:])
        read.clear()
        with Manifest(out) as manifest:
            last = manifest.last()
            assert last is not None and (last.state == RUNNING) == (number % 3 == 0)
            if last.state == RUNNING:
                manifest.resume(last)
                assert last.results == [result]
                manifest.finish(last)
        counts.setdefault("same" if number % 3 else "resumed", []).append(read[:])
        read.clear()
    assert not list(out.glob("_manifest/*.t*"))
    for kind, runs in counts.items():
        assert {len(names) for names in runs[1:]} == {len(runs[1])}, kind
        assert len(runs[1]) <= 3, kind
    # A driver that is killed between the last write and the removal leaves a directory.
    left = out / f"_manifest/000007.abcd{manifest_module.NOTES}"
    left.mkdir()
    (out / f"_manifest/000099.abcd{manifest_module.TAKEN}").mkdir()  # of no run
    with Manifest(out):
        assert not left.exists()
    assert read == ["000007.jsonl"]
    assert [run.number for run in Manifest(out).runs()] == list(range(1, 31))


@pytest.mark.parametrize("place", ["_carry_out", "_run_tasks"])
def test_a_resumed_run_that_ends_again(spark, tmp_path, monkeypatch, place):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 10)
    for count in (10, 20):
        fill(store, "t", count - 10, first=10)
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(pipeline, place, stop_here)
            export(spark, store, out)
        (run,) = read_manifest(out)
        assert run.next == {"store": {"t": {0: 5, 1: 5}}}
    report = export(spark, store, out)
    assert (report.rows, report.runs, report.skipped) == (20, [1, 2], [])
    assert bodies(spark, out) == numbered(20)
    assert export(spark, store, out).runs == []


def test_a_resumed_run_that_ends_again_and_a_loss(spark, tmp_path, monkeypatch):
    store, out = tmp_path / "store", tmp_path / "out"
    fill_small_files(store, 50)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(pipeline, "_run_tasks", stop_here)
        export(spark, store, out)
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        for number in range(50, 300):
            opened.put("t", b"body %d" % number, queue_id=number % 2)
    for path in sorted((store / "commitlog").iterdir())[:4]:
        path.unlink()
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(pipeline, "_run_tasks", stop_here)
        export(spark, store, out, failOnDataLoss=False)
    report = export(spark, store, out, failOnDataLoss=False)
    assert any(each.reason == "deleted before they were exported" for each in report.skipped)
    assert report.rows + sum(each.records for each in report.skipped) == 300
    assert sum(bodies(spark, out).values()) == report.rows


def test_leftovers_of_unfinished_splits_go(spark, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 30)
    export(spark, store, out)
    run = read_manifest(out)[0]
    with Manifest(out) as manifest:
        run.state = RUNNING
        results, run.results = run.results, []
        manifest.begin(run)
    # One file is complete, one was being written, and one is of another day now.
    first, second = (out / result.files[0] for result in results)
    (second.parent / f".tmp-0-{second.name}").write_bytes(b"half")
    other_day = first.parent.parent / "date=2001-01-01"
    other_day.mkdir()
    shutil.copy(first, other_day / first.name)
    report = export(spark, store, out)
    assert (report.rows, report.runs) == (30, [1])
    assert bodies(spark, out) == numbered(30)
    assert left_over(out) == []


def test_a_worker_that_outlives_its_driver_cannot_note_a_task(spark, tmp_path, monkeypatch):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 30)
    kept: list[Any] = []

    def remember(spark: SparkSession, tasks: Any, options: Any) -> None:
        kept.append((tasks, options))
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(pipeline, "_run_tasks", remember)
        export(spark, store, out)
    ((tasks, options),) = kept
    real = Manifest.sweep

    def late(self: Manifest, splits: Any, **words: Any) -> int:
        """The old worker is through just before its files are swept, and notes that after."""
        if not words:
            with pytest.raises(FileNotFoundError):
                lake_writer.write_task(tasks[0], options)
        return real(self, splits, **words)

    monkeypatch.setattr(Manifest, "sweep", late)
    assert export(spark, store, out).rows == 30
    assert bodies(spark, out) == numbered(30)


def test_two_exports_at_one_time(spark, tmp_path):
    fill(tmp_path / "store", "t", 3)
    with Manifest(tmp_path / "out"), pytest.raises(StoreStateError, match="another export"):
        export(spark, tmp_path / "store", tmp_path / "out")


def test_a_manifest_of_a_later_version(spark, tmp_path):
    fill(tmp_path / "store", "t", 3)
    export(spark, tmp_path / "store", tmp_path / "out")
    path = tmp_path / "out" / "_manifest" / "000001.jsonl"
    head, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(head), "version": 2}), *rest]))
    with pytest.raises(StoreFormatError, match="version 2"):
        export(spark, tmp_path / "store", tmp_path / "out")


CHILD = """
import sys
from pyspark.sql import SparkSession
from pyrocketstore.spark.lake import export as pipeline
from pyrocketstore.spark.lake import writer as lake_writer
pipeline.TASK_BYTES_MIN = 1
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.memory", "1g").config("spark.ui.showConsoleProgress", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
pipeline.export(spark, sys.argv[1], sys.argv[2], partitionBytes=20000)
"""


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = condition()
        if found or process.poll() is not None:
            return found
        time.sleep(0.005)
    raise AssertionError("nothing happened for 90 s")


def children(pid: int) -> list[int]:
    """The processes below one, by /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(text.rsplit(")", 1)[1].split()[1])
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_kill_9_in_the_middle(spark, tmp_path, victim):
    store, out = tmp_path / "store", tmp_path / "out"
    fill(store, "t", 8000)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_for(lambda: len(list(out.glob("_manifest/*.tasks/*.jsonl"))) > 3, child)
        below = children(child.pid)
        if victim == "driver":
            child.send_signal(signal.SIGKILL)
        else:
            for pid in filter(is_worker, below):
                os.kill(pid, signal.SIGKILL)
        child.wait(60)
    finally:
        child.kill()
        child.wait()
    (run,) = read_manifest(out)
    assert run.state == RUNNING, "it was through before it could be killed"
    report = export(spark, store, out)
    assert report.runs == [1]
    assert report.rows == 8000
    assert bodies(spark, out) == numbered(8000)
    assert left_over(out) == []


# ---- the command ---------------------------------------------------------------------------------


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyrocketstore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_command(spark, tmp_path):
    fill(tmp_path / "store", "t", 9)
    words = ("export", "--spark", "--json", "--master", "local[1]")
    done = run_command(*words, f"b={tmp_path / 'store'}", str(tmp_path / "out"), "-o", "topic=t")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["export"]["rows"] == 9
    assert read_lake(spark, tmp_path / "out").select("brokerName").distinct().collect()[0][0] == "b"


def test_the_command_names_missing_packages(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from pyrocketstore.cli import app

    found = CliRunner().invoke(app.app, ["export", str(tmp_path), str(tmp_path / "out")])
    assert "--spark" in found.output
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    words = ["export", "--spark", str(tmp_path), str(tmp_path / "out")]
    found = CliRunner().invoke(app.app, words)
    assert found.exit_code == 1
    assert "pip install 'pyrocketstore[spark]'" in found.output
