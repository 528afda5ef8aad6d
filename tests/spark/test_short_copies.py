"""Goal: reading a copy without some of its files reports the loss, and no complete store is
refused.
Method: stores of many small files lose some of them, as an incomplete copy does; batches are
planned and read in this process."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exports import export, run_here
from pyrocketstore.config.message_store_config import detect_sizes
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.spark.options import BATCH, read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.plan.open_snapshot import TRIES, open_snapshot, retried
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.task_types import DataLossError
from pyrocketstore.system.env import Env

FILE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
COLUMNS = {"topic": "string", "queueId": "int", "queueOffset": "bigint"}
COUNT = 1500
OLD = 120
MODES = ["queue", "sequential", "auto"]
Positions = Counter[tuple[str, int, int]]


def fill(root: Path) -> None:
    """Topic `old`, of queues 0 to 2, then t/0 and t/1 up to the log's end."""
    with pyrocketstore.open(root, **SIZES) as store:
        for queue_id in range(3):
            store.put_many("old", [b"o" * 100] * OLD, queue_ids=queue_id)
        store.put_many("once", [b"once" * 25])
        for number in range(COUNT):
            store.put("t", b"%d" % number + b"." * 100, queue_id=number % 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "s"
    fill(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "s"))


def rows(root: Path, columns: dict[str, str] = COLUMNS, **options: object) -> Positions:
    texts = {name: str(value).lower() for name, value in options.items()}
    requested = read_options({"path": str(root), **texts}, BATCH)
    planned = plan(requested)
    return Counter(
        tuple(row.values())
        for part in planned.tasks
        for batch in read_task(part, columns, requested, planned.common)
        for row in batch.to_pylist()
    )


def everything() -> Positions:
    old = [("old", queue_id, offset) for queue_id in range(3) for offset in range(OLD)]
    return Counter(old + [("once", 0, 0)] + [("t", n % 2, n // 2) for n in range(COUNT)])


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())


def kill(root: Path) -> None:
    """The directory looks as if its process had been killed."""
    (root / "abort").touch()


def check_short(
    root: Path, what: str, caplog: pytest.LogCaptureFixture, **options: object
) -> Positions:
    """The copy is refused by default, and is read with one warning on request."""
    for mode in MODES:
        with pytest.raises(DataLossError, match=what):
            rows(root, readMode=mode, **options)
    caplog.clear()
    found = [rows(root, readMode=mode, failOnDataLoss=False, **options) for mode in MODES]
    reported = [line for line in caplog.messages if "the store is not complete" in line]
    assert len(reported) == len(MODES)
    assert found[1:] == found[:1] * 2
    return found[0]


# ---- the log's end -------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("missing", [1, 3])
def test_the_last_files_of_the_log_are_missing(root, caplog, killed, missing):
    gone = log_files(root)[-missing:]
    for path in gone:
        path.unlink()
    if killed:
        kill(root)
    left = check_short(root, "the log ends with this file, .* queues name messages", caplog)
    assert left < everything()
    with pytest.raises(DataLossError, match="not complete"):
        rows(root, view="commitlog", columns={"commitLogOffset": "bigint"})
    assert rows(root, topic="old") == Counter(p for p in everything() if p[0] == "old")


@pytest.mark.parametrize("killed", [False, True])
def test_the_log_is_empty(root, caplog, killed):
    for path in log_files(root):
        path.unlink()
    if killed:
        kill(root)
    assert not check_short(root, "the log has no file, and 6 queues name messages", caplog)
    for path in (root / "consumequeue").iterdir():
        shutil.rmtree(path)
    assert not check_short(root, "a flush has covered the log up to byte", caplog)
    (root / "sync_point").unlink()
    shutil.rmtree(root / "index")
    assert not rows(root)


def test_a_file_in_the_middle_is_missing(root):
    log_files(root)[4].unlink()
    for mode in MODES:
        with pytest.raises(DataLossError, match="gone, with"):
            rows(root, readMode=mode)
    with pytest.raises(DataLossError, match="log files from byte 65536 on are missing"):
        rows(root, view="commitlog", columns={"commitLogOffset": "bigint"})


def test_a_log_file_was_cut(root):
    """The missing bytes are damage, and the records after them are read."""
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        places = {
            (m.topic, m.queue_id, m.queue_offset): m.phy_offset + m.size
            for topic in store.topics() for m in store.read(topic, None)
        }  # fmt: skip
    cut = log_files(root)[2]
    os.truncate(cut, FILE // 2)
    lost = range(2 * FILE + FILE // 2 + 1, 3 * FILE + 1)
    kept = Counter(key for key, end in places.items() if end not in lost)
    assert 0 < len(kept) < len(places)
    for mode in MODES:
        with pytest.raises(StoreCorruptionError, match=cut.name):
            rows(root, readMode=mode)
        assert rows(root, readMode=mode, onCorrupt="skip") == kept


def test_an_export_over_a_short_copy(root, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("pyrocketstore.spark.lake.export._run_tasks", run_here)
    log_files(root)[-1].unlink()
    with pytest.raises(DataLossError, match="not complete"):
        export(root, tmp_path / "lake")
    assert export(root, tmp_path / "lake", failOnDataLoss=False).rows == sum(
        rows(root, failOnDataLoss=False).values()
    )


def test_the_tail_of_a_store_that_was_stopped_is_zeros(root, caplog):
    with pyrocketstore.open(root, read_only=True) as store:
        place = [message.phy_offset for message in store.read("t", 0)][-10]
    path = log_files(root)[-1]
    assert place > int(path.name)
    data = path.read_bytes()
    path.write_bytes(data[: place - int(path.name)].ljust(len(data), b"\0"))
    check_short(root, "the store was stopped cleanly, its log ends at byte", caplog)
    kill(root)
    check_short(root, "a flush has covered the log up to byte", caplog)
    # The state after a power cut before the first flush: there is no warning.
    (root / "sync_point").unlink()
    (root / "checkpoint").write_bytes(bytes(4096))
    assert rows(root) == everything() - Counter(
        ("t", n % 2, n // 2) for n in range(COUNT - 20, COUNT)
    )


def test_a_log_whose_first_files_have_expired(root):
    for path in log_files(root)[:5]:
        path.unlink()
    for mode in MODES:
        assert Counter() < rows(root, readMode=mode) < everything()


# ---- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_a_queue_has_lost_its_directory(root, caplog, killed):
    shutil.rmtree(root / "consumequeue" / "old" / "1")
    if killed:  # no page is known to be durable: recovery reads the whole log
        kill(root)
        (root / "checkpoint").write_bytes(bytes(4096))
        assert rows(root) == everything()
        return
    left = check_short(root, "old/1 has no files, and should have message 0", caplog)
    assert left == Counter(place for place in everything() if place[:2] != ("old", 1))
    assert rows(root, topic="t") == Counter(place for place in everything() if place[0] == "t")


def test_a_topic_has_lost_its_directory(root, caplog):
    shutil.rmtree(root / "consumequeue" / "old")
    left = check_short(root, "old/0 has no files", caplog)
    assert left == Counter(place for place in everything() if place[0] != "old")
    # A topic that was deleted has no entry either.
    topics = root / "config" / "topics.json"
    table = json.loads(topics.read_text())
    del table["topicConfigTable"]["old"]
    topics.write_text(json.dumps(table))
    assert rows(root) == left


@pytest.mark.parametrize(("number", "what"), [(0, "begins after"), (1, "ends before")])
def test_a_queue_has_lost_a_file(root, caplog, number, what):
    with pyrocketstore.open(root, **SIZES) as store:  # none is needed: the log begins with another
        store.put_many("t", [b"x"] * 10)
    files = sorted((root / "consumequeue" / "old" / "2").iterdir())
    assert len(files) == 2
    files[number].unlink()
    if number == 0:
        log_files(root)[0].unlink()
        shutil.rmtree(root / "consumequeue" / "once")
    check_short(root, f"old/2 {what} message", caplog)


def test_a_recreated_topic(root):
    with pyrocketstore.open(root, **SIZES) as store:
        store.message_store.clean_unused_topic(["t", "once"])
        store.put_many("old", [b"new"] * 10, queue_ids=2)
        store.put_many("t", [b"x" * 100] * 600)
    found = rows(root)
    assert [place for place in found if place[0] == "old"] == [("old", 2, n) for n in range(10)]


def test_a_damaged_record_is_no_lost_queue(root):
    with pyrocketstore.open(root, read_only=True) as store:
        places = [message.phy_offset for message in store.read("old", 0)]
    with log_files(root)[0].open("r+b") as log:
        for place, at in zip(places, (12, 20, 13), strict=False):  # queue id, queue offset
            log.seek(place + at)
            log.write(b"\0\0\0\x09")
    for mode in MODES:
        assert rows(root, readMode=mode, onCorrupt="skip") <= everything()


# ---- a store that is written meanwhile -----------------------------------------------------------


def test_a_live_store_is_never_short(tmp_path):
    """Files are begun all the time while it is planned."""
    ended = threading.Event()
    with pyrocketstore.open(tmp_path / "s", **{**SIZES, "mapped_file_size_commit_log": 4096}) as s:

        def write() -> None:
            while not ended.wait(0.01):  # some 3 MB: all of it is read each time
                s.put_many("t", [b"x" * 300] * 30)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            counts = [sum(rows(tmp_path / "s").values()) for _ in range(15)]
        finally:
            ended.set()
            writer.join()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_sizes_are_detected_again_where_a_store_creates_its_first_files(root, monkeypatch):
    """At the first detection a new store has no queue file yet."""
    answers = []

    def detect(env, path, given, **options):
        found = detect_sizes(env, path, given, **options)
        answers.append(found if answers else given)
        return answers[-1]

    monkeypatch.setattr("pyrocketstore.spark.plan.snapshot.detect_sizes", detect)
    assert rows(root) == everything()
    assert len(answers) == 3


def test_a_file_that_goes_while_it_is_planned_is_listed_again(root, monkeypatch):
    failed = []

    def open_later(place, options, topics):
        if len(failed) < 3:
            failed.append(place)
            raise StoreIOError(2, "open", "gone")
        return open_snapshot(place, options, topics)

    monkeypatch.setattr("pyrocketstore.spark.plan.batch.open_snapshot", open_later)
    assert rows(root) == everything()
    assert len(failed) == 3


def test_a_file_that_stays_away_ends_the_wait():
    calls, slept = [], []

    class Fast(Env):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    def make() -> None:
        calls.append(1)
        raise StoreIOError(2, "open", "gone")

    with pytest.raises(StoreIOError, match="gone"):
        retried(make, Fast())
    assert len(calls) == TRIES
    assert 5 < sum(slept) < 10


# ---- what Spark reports --------------------------------------------------------------------------


def test_spark_reports_the_error_itself(spark: SparkSession, root: Path) -> None:
    log_files(root)[-1].unlink()
    frame = spark.read.format("rocketmq-store").schema("queueOffset bigint").load(str(root))
    with pytest.raises(PySparkException) as reported:
        frame.count()
    assert "DataLossError: s: the store is not complete" in str(reported.value)
    assert "Pickling" not in str(reported.value)
    assert frame.sparkSession is spark
