"""Goal: an export continues only where it can: another store under a label, a recreated topic or an
unfinished plan never loses a message without a report, and blocks no other queue.
Method: small stores whose directories are exchanged, recreated or lose topics between exports;
the tasks run in this process, from pickles, instead of on Spark."""

from __future__ import annotations

import json
import pickle
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from exports import export, run_here
from pyrocketstore.spark.lake import export as pipeline
from pyrocketstore.spark.lake.continuity import StoreMarks
from pyrocketstore.spark.lake.manifest import RUNNING
from pyrocketstore.spark.options import StorePlace
from pyrocketstore.spark.pipeline import ExportReport, read_manifest
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.task_types import DataLossError
from support.deliveries import no_deliveries
from support.golden_stores import KEPT

GOLDEN = Path(__file__).parent.parent / "golden"
STORES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
RECREATED = "of a recreated queue, while the lake has other messages at these offsets"

OTHERS = 300
OTHER_BODIES = Counter({"other": OTHERS})


class Stopped(Exception):
    """Stands for a kill of the driver before its tasks."""


def stop_here(*_: object) -> None:
    raise Stopped


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_run_tasks", run_here)


def export_until_tasks(stores: Any, out: Path, **options: object) -> None:
    """A plan is written, and none of its tasks has run."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(pipeline, "_run_tasks", stop_here)
        export(stores, out, **options)


def fill(store: Path, topic: str, count: int, *, first: int = 0, text: str = "body") -> None:
    """Put messages with bodies that say their number, of a length that does not depend on it."""
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 400}
    with pyrocketstore.open(store, **sizes) as opened:
        for number in range(first, first + count):
            opened.put(topic, f"{text} {number:06d}".encode())


def delete_b(store: Path, *, recreated: int = 0) -> None:
    """Delete the topic b, and create it again with so many messages. Other messages follow, because
    messages in the last files of a log get their queue back when the store opens."""
    topics = store / "config" / "topics.json"  # a broker takes it out of there first
    table = json.loads(topics.read_text())
    table["topicConfigTable"].pop("b")
    topics.write_text(json.dumps(table))
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        opened.message_store.clean_unused_topic(["a", "c"])
        for number in range(recreated):
            opened.put("b", f"new {number:06d}".encode())
        opened.put_many("c", [b"other"] * OTHERS)


def rows(out: Path) -> list[dict[str, Any]]:
    """All rows of the lake, each with its topic."""
    from pyarrow import parquet

    found = []
    for path in sorted((out / "messages").rglob("*.parquet")):
        topic = path.parent.parent.name.removeprefix("topic=")
        found += [{**row, "topic": topic} for row in parquet.ParquetFile(path).read().to_pylist()]
    return found


def bodies(out: Path) -> Counter[str]:
    return Counter(row["body"].decode() for row in rows(out))


def numbered(first: int, stop: int, text: str = "body") -> Counter[str]:
    return Counter(f"{text} {number:06d}" for number in range(first, stop))


def lost_of(report: ExportReport) -> list[tuple[str, int, int, str]]:
    return [(each.topic, each.start, each.stop, each.reason) for each in report.skipped]


# ---- another store -------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "is_other"), [(-1, False), (0, False), (2, True)])
def test_a_log_that_begins_behind_a_mark(tmp_path, hours, is_other):
    """Its first message cannot be much older than the one that was there before it."""
    fill(tmp_path / "store", "t", 200)
    with StoreSnapshot(StorePlace("store", str(tmp_path / "store"))) as snapshot:
        marks = StoreMarks(snapshot, snapshot.log_files())
        whole = snapshot.whole_range(snapshot.store.get_consume_queue("t", 0))
        known = marks.mark_at(whole, 0)
        assert known.phy_offset == 0
    (tmp_path / "store" / "commitlog" / ("0" * 20)).unlink()
    later = known._replace(store_timestamp=known.store_timestamp + hours * 3_600_000)
    with StoreSnapshot(StorePlace("store", str(tmp_path / "store"))) as snapshot:
        marks = StoreMarks(snapshot, snapshot.log_files())
        if is_other:
            with pytest.raises(
                DataLossError, match="and the log begins after it with a message of"
            ):
                marks.check_store({"t": {0: later}})
        else:
            marks.check_store({"t": {0: later}})


@pytest.mark.parametrize(
    ("topic", "text"), [("t", "body"), ("t", "a longer body"), ("other", "body")]
)
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_two_brokers_whose_directories_share_a_name(tmp_path, topic, text, fail_on_data_loss):
    one, other, out = tmp_path / "a" / "store", tmp_path / "b" / "store", tmp_path / "lake"
    fill(one, "t", 30)
    fill(other, topic, 100, first=100, text=text)
    assert export(one, out).rows == 30
    with pytest.raises(DataLossError, match="another store"):
        export(other, out, failOnDataLoss=fail_on_data_loss)
    assert bodies(out) == numbered(0, 30)
    assert len(read_manifest(out)) == 1
    fill(one, "t", 5, first=30)
    assert export({"store": one, "b": other}, out).rows == 105
    assert bodies(out) == numbered(0, 35) + numbered(100, 200, text)
    assert Counter(row["brokerName"] for row in rows(out)) == {"store": 35, "b": 100}


def test_a_recreated_store_that_has_grown_past_the_old_end(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "t", 20)
    export(store, out)
    shutil.rmtree(store)
    fill(store, "t", 50, first=1000)
    with pytest.raises(DataLossError, match="another store"):
        export(store, out)


def test_a_plan_is_not_carried_out_on_another_store(tmp_path):
    one, other, out = tmp_path / "a" / "store", tmp_path / "b" / "store", tmp_path / "lake"
    fill(one, "t", 30)
    fill(other, "t", 100, first=100)
    export_until_tasks(one, out)
    with pytest.raises(DataLossError, match="another store"):
        export(other, out)
    assert export(one, out).rows == 30
    assert bodies(out) == numbered(0, 30)


@pytest.mark.parametrize("name", STORES)
def test_a_store_is_known_again(tmp_path, name):
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    options = {"brokerConf": str(GOLDEN / f"{name}.conf"), "includeSystemTopics": True}
    store, out = tmp_path / name, tmp_path / "lake"
    assert export(store, out, **options).rows > 0
    assert export(store, out, **options).runs == []
    (run,) = read_manifest(out)
    for topic, queues in run.next[name].items():
        for queue_id, stop in queues.items():
            mark = run.marks[name][topic][queue_id]
            assert mark.queue_offset == stop - 1
            assert mark.store_timestamp is not None
    with (
        no_deliveries(),
        pyrocketstore.open(store, config=options["brokerConf"], **KEPT) as opened,  # recovers it
    ):
        opened.put("Topic-1", b"one more")
    assert export(store, out, **options).rows == 1


def test_the_last_message_was_damaged_since(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "t", 30)
    export(store, out)
    fill(store, "t", 200, first=30)
    # Its head, then its body: its unit says still that this is the store.
    for what, distance in ((b"body 000029", 60), (b"body 000029", 0)):
        for path in (store / "commitlog").iterdir():
            data = bytearray(path.read_bytes())
            place = data.find(what)
            if place > 0:
                data[place - distance] ^= 0xFF
                path.write_bytes(data)
    assert export(store, out).rows == 200
    assert bodies(out) == numbered(0, 230)


def test_the_last_message_was_deleted_with_its_file(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "t", 100)
    report = export(store, out)
    assert report.rows == 100
    last = read_manifest(out)[0].marks["store"]["t"][0]
    fill(store, "t", 300, first=100)
    files = sorted((store / "commitlog").iterdir())
    gone = [path for path in files if int(path.name) <= last.phy_offset]
    assert 0 < len(gone) < len(files) - 1
    for path in gone:
        path.unlink()
    with pyrocketstore.open(store, read_only=True) as opened:
        low = opened.min_offset("t")
    for path in (store / "consumequeue" / "t" / "0").iterdir():
        if int(path.name) + 400 <= 20 * low:
            path.unlink()
    report = export(store, out, failOnDataLoss=False)
    assert report.rows == 400 - low
    assert low > 100
    assert lost_of(report) == [("t", 100, low, "deleted before they were exported")]
    assert bodies(out) == numbered(0, 100) + numbered(low, 400)


def test_all_that_a_queue_has_was_deleted(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 30)
    export(store, out)
    fill(store, "a", 20, first=30)
    fill(store, "c", 300, text="other")
    for path in sorted((store / "commitlog").iterdir())[:-3]:
        path.unlink()
    report = export(store, out, topics="a", failOnDataLoss=False)
    assert lost_of(report) == [("a", 30, 50, "deleted before they were exported")]
    assert export(store, out, topics="a").runs == []  # it is reported once
    fill(store, "a", 4, first=50)
    report = export(store, out, topics="a")
    assert (report.rows, report.skipped) == (4, [])
    assert bodies(out) == numbered(0, 30) + numbered(50, 54)


def test_a_manifest_without_marks(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "t", 30)
    export(store, out)
    path = out / "_manifest" / "000001.jsonl"
    head, *splits = path.read_text().splitlines(keepends=True)
    old = json.loads(head)
    assert old.pop("marks")["store"]["t"]["0"][0] == 29
    del old["resumed"]
    path.write_text("".join([json.dumps(old) + "\n", *splits]))
    fill(store, "t", 5, first=30)
    assert export(store, out).rows == 5
    first, second = read_manifest(out)
    assert first.marks == {}
    assert second.marks["store"]["t"][0].queue_offset == 34
    assert bodies(out) == numbered(0, 35)


# ---- a topic that was deleted, or created again --------------------------------------------------


def exported(tmp_path):
    """A store of topics a and b, and the lake that has all of it."""
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 20)
    fill(store, "b", 20, text="old")
    export(store, out)
    return store, out


def test_a_recreated_topic_is_reported_and_blocks_no_other(tmp_path):
    store, out = exported(tmp_path)
    delete_b(store, recreated=5)
    fill(store, "a", 3, first=20)
    with pytest.raises(DataLossError, match="recreated"):
        export(store, out)
    report = export(store, out, failOnDataLoss=False)
    assert (report.rows, lost_of(report)) == (OTHERS + 3, [("b", 0, 5, RECREATED)])
    # It is reported once, and so are the messages before the old end.
    assert export(store, out).runs == []
    fill(store, "b", 7, first=5, text="new")
    with pytest.raises(DataLossError, match="recreated"):
        export(store, out)
    report = export(store, out, failOnDataLoss=False)
    assert (report.rows, lost_of(report)) == (0, [("b", 5, 12, RECREATED)])
    fill(store, "b", 13, first=12, text="new")
    report = export(store, out, failOnDataLoss=False)
    assert (report.rows, lost_of(report)) == (5, [("b", 12, 20, RECREATED)])
    fill(store, "b", 1, first=25, text="new")
    report = export(store, out)
    assert (report.rows, report.skipped) == (1, [])
    assert bodies(out) == (
        numbered(0, 23) + numbered(0, 20, "old") + numbered(20, 26, "new") + OTHER_BODIES
    )
    assert export({"recreated": store}, out, topics="b").rows == 26  # the error advises this


def test_a_recreated_topic_that_has_grown_past_the_old_end(tmp_path):
    store, out = exported(tmp_path)
    delete_b(store, recreated=50)
    with pytest.raises(DataLossError, match="recreated"):
        export(store, out)
    report = export(store, out, failOnDataLoss=False)
    assert (report.rows, lost_of(report)) == (OTHERS + 30, [("b", 0, 20, RECREATED)])
    assert bodies(out) == (
        numbered(0, 20) + numbered(0, 20, "old") + numbered(20, 50, "new") + OTHER_BODIES
    )


def test_a_topic_deleted_while_it_was_exported(tmp_path):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 20)
    fill(store, "b", 20)
    export_until_tasks(store, out)
    (run,) = read_manifest(out)
    assert run.task_count() == 1  # the loss of one split must not end the task of the other
    delete_b(store)
    with pytest.raises(DataLossError, match="deleted"):
        export(store, out)
    export_until_tasks(store, out, failOnDataLoss=False)
    assert [run.state for run in read_manifest(out)] == [RUNNING]
    fill(store, "a", 5, first=20)
    reported: list[tuple[int, int]] = []
    report = export(
        store, out, failOnDataLoss=False, progress=lambda *numbers: reported.append(numbers)
    )
    planned = [sum(split.planned_bytes for split in run.splits) for run in read_manifest(out)]
    assert [(total, total) for total in planned] == [
        each for each in reported if each[0] == each[1]
    ]
    reason = "while it was being exported, its queue was deleted"
    assert (report.rows, report.runs) == (OTHERS + 25, [1, 2])
    assert lost_of(report) == [("b", 0, 20, reason)]
    assert bodies(out) == numbered(0, 25) + OTHER_BODIES
    assert export(store, out).runs == []


@pytest.mark.parametrize("count", [5, 50])
def test_a_topic_recreated_while_it_was_exported(tmp_path, count):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 20)
    fill(store, "b", 20, text="old")
    export_until_tasks(store, out)
    delete_b(store, recreated=count)
    with pytest.raises(DataLossError, match="recreated"):
        export(store, out)
    report = export(store, out, failOnDataLoss=False)
    assert lost_of(report) == [
        ("b", 0, 20, "while it was being exported, its queue was recreated"),
        ("b", 0, min(count, 20), RECREATED),
    ]
    assert bodies(out) == numbered(0, 20) + numbered(20, count, "new") + OTHER_BODIES


@pytest.mark.parametrize("count", [5, 50])
def test_a_topic_recreated_between_the_plan_and_its_tasks(tmp_path, monkeypatch, count):
    """The next export compares the store with the lake again, and exports what it can."""
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 20)
    fill(store, "b", 20, text="old")

    def run_late(*planned: Any) -> None:
        if not (store / "consumequeue" / "c").exists():
            delete_b(store, recreated=count)
        run_here(*planned)

    monkeypatch.setattr(pipeline, "_run_tasks", run_late)
    report = export(store, out, failOnDataLoss=False)
    lost = ("b", 0, 20, "units of the queue are gone")
    assert lost_of(report) == [lost]
    assert bodies(out) == numbered(0, 20)
    assert lost_of(export(store, out, failOnDataLoss=False)) == [
        ("b", 0, min(count, 20), RECREATED)
    ]
    assert bodies(out) == numbered(0, 20) + numbered(20, count, "new") + OTHER_BODIES


def test_an_export_stops_where_a_topic_is_recreated_before_its_tasks(tmp_path, monkeypatch):
    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "a", 20)
    fill(store, "b", 20, text="old")

    def run_late(*planned: Any) -> None:
        delete_b(store, recreated=50)
        run_here(*planned)

    monkeypatch.setattr(pipeline, "_run_tasks", run_late)
    with pytest.raises(DataLossError, match="removed and made again"):
        export(store, out)


# ---- what a plan keeps ---------------------------------------------------------------------------


def test_a_plan_keeps_its_options(tmp_path):
    from pyrocketstore.record.message import MessageExtBrokerInner

    store, out = tmp_path / "store", tmp_path / "lake"
    fill(store, "t", 2)
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        message = MessageExtBrokerInner("t", b"no zlib", sys_flag=1)  # flagged as compressed
        opened.message_store.put_message(message)
    export_until_tasks(store, out, decompress=False, verifyCrc=False)
    report = export(store, out, onCorrupt="skip")
    assert (report.rows, report.skipped) == (3, [])
    assert bodies(out)["no zlib"] == 1
    (run,) = read_manifest(out)
    assert run.options == {"decompress": "False", "verifyCrc": "False"}
    assert run.resumed == [{"onCorrupt": "skip"}]
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        opened.message_store.put_message(MessageExtBrokerInner("t", b"no zlib", sys_flag=1))
    report = export(store, out, onCorrupt="skip")  # a plan of its own
    assert (report.rows, len(report.skipped)) == (0, 1)


def test_a_log_travels_once_whatever_the_number_of_splits(tmp_path, monkeypatch):
    store = tmp_path / "store"
    with pyrocketstore.open(store, mapped_file_size_commit_log=4096) as opened:
        for number in range(400):
            opened.put(f"t{number % 100}", b"x" * 800)
    files = len(list((store / "commitlog").iterdir()))
    sizes: list[int] = []

    def measured(spark: object, tasks: Any, options: Any) -> None:
        assert sum(len(task.splits) for task in tasks) == 100
        sizes.append(len(pickle.dumps((tasks, options))))
        run_here(spark, tasks, options)

    monkeypatch.setattr(pipeline, "_run_tasks", measured)
    assert export(store, tmp_path / "lake").rows == 400
    assert files >= 100
    assert sizes[0] < 400 * (100 + files)


# ---- pre-blank units -----------------------------------------------------------------------------


def test_pre_blank_units_are_no_messages_and_no_loss(tmp_path, monkeypatch):
    store, out = tmp_path / "store", tmp_path / "lake"
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 400}
    offsets = [3, 4, 9, 10, 45, 46]
    with pyrocketstore.open(store, **sizes) as opened:
        core = opened.message_store.commit_log.core
        for number, offset in enumerate(offsets):
            core.set_next_offset("t", 0, offset)
            opened.put("t", b"body %06d" % number)
            opened.wait_dispatched()
    units = b"".join(p.read_bytes() for p in sorted((store / "consumequeue/t/0").iterdir()))
    blank = bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)
    are_blank = [units[20 * n : 20 * n + 20] == blank for n in range(47)]
    assert are_blank == [n not in offsets for n in range(47)]
    monkeypatch.setattr(pipeline, "TASK_BYTES_MIN", 1)
    report = export(store, out, partitionBytes=200)  # one task or more has blanks alone
    assert (report.rows, report.skipped) == (6, [])
    assert sorted(row["queueOffset"] for row in rows(out)) == offsets
    assert bodies(out) == numbered(0, 6)
    (run,) = read_manifest(out)
    assert any(result.rows == 0 for result in run.results)
    assert run.next == {"store": {"t": {0: 47}}}
    assert export(store, out).runs == []
