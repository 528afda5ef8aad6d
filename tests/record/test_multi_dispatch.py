"""Goal: dispatch, recovery's comparison, verify, Spark's verify job and the readers agree on the
further queues of a record. Method: texts that Java's split and parseLong take otherwise than
Python's split and int, in records of one log; the expected queues are written down by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.consume_queue.unit_check import _Record
from pyrocketstore.record._record import QueueName
from pyrocketstore.record.multi_dispatch import further_queues
from support import oracle

FILE_SIZE = 1 << 16
SETTINGS = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 2000,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "topics_json": False,
}
#: Names (with the record's number at the end of each), offsets, and the queues that get a unit.
CASES = [
    ("%LMQ%a,b", "0,0", ["%LMQ%a", "b"]),
    ("%LMQ%a,b,", "0,0", ["%LMQ%a", "b"]),
    ("%LMQ%a,b,,,", "0,0,", ["%LMQ%a", "b"]),
    ("%LMQ%a,b", "0", []),
    ("%LMQ%a,b", "0,0,1", []),
    ("%LMQ%a,b", ",0", ["b"]),
    (",b", "0,0", ["b"]),
    ("a", "1_0", []),
    ("a", " 0", []),
    ("a", "0 ", []),
    ("a", "+0", ["a"]),
    ("a", "-0", ["a"]),
    ("a", "--0", []),
    ("a", "000", ["a"]),
    ("a", "\u0660", ["a"]),
    ("a", "\U0001d7ce", []),
    ("a", "9223372036854775808", []),
    ("a,b", "x,0", ["b"]),
    (",", ",", []),
    ("a/b,c", "0,0", ["c"]),
]


def numbered(names: str, number: int) -> str:
    return ",".join(name and f"{name}-{number}" for name in names.split(","))


def expected() -> set[tuple[str, int]]:
    return {
        (f"{name}-{number}", 0 if name.startswith("%LMQ%") else 7)
        for number, (_, _, queues) in enumerate(CASES)
        for name in queues
    }


def records() -> list[oracle.Record]:
    return [
        oracle.Record(
            body=b"%d" % number,
            queue_id=7,
            queue_offset=number,
            store_timestamp=1_700_000_000_000,
            properties=(
                f"INNER_MULTI_DISPATCH\1{numbered(names, number)}\2"
                f"INNER_MULTI_QUEUE_OFFSET\1{offsets}\2"
            ).encode(),
        )
        for number, (names, offsets, _) in enumerate(CASES)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    for number, data in enumerate(oracle.write_log(records(), FILE_SIZE)):
        (tmp_path / "commitlog" / f"{number * FILE_SIZE:020d}").write_bytes(data)
    return tmp_path


def queues_of(store: pyrocketstore.Store) -> set[tuple[str, int]]:
    return {
        (topic, queue_id)
        for topic in store.topics()
        for queue_id in store.queues(topic)
        if store.max_offset(topic, queue_id) > 0
    }


def test_one_parser() -> None:
    for names, offsets, queues in CASES:
        found = further_queues(names, offsets, 7, light_queues=True) or []
        taken = {each.topic for each in found if each.topic and each.queue_offset == 0}
        assert taken - {"a/b"} == set(queues), (names, offsets)


def test_dispatch_recovery_verify_and_readers_agree(root: Path) -> None:
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.wait_dispatched()
        assert queues_of(store) == {*expected(), ("T", 7)}
        report = store.verify()
        assert report.ok and not report.problem_count, report.problems
        for topic, queue_id in expected():
            (message,) = store.read(topic, queue_id)
            assert topic.endswith(f"-{message.body.decode()}")
    with pyrocketstore.open(root, **SETTINGS) as store:  # units and log are compared
        assert queues_of(store) == {*expected(), ("T", 7)}


def test_one_record(root: Path) -> None:
    data = (root / "commitlog" / f"{0:020d}").read_bytes()
    position = 0
    found = set()
    for number, record in enumerate(records()):
        raw = data[position : position + record.size]
        position += record.size
        for key, queue_offset in _Record(raw).further_queues(True):
            if key[0] and "/" not in key[0]:
                assert queue_offset == 0
                assert QueueName(*key).has(raw, 0), key
                found.add(key)
        for name in ("a", "b", "c", "%LMQ%a"):
            key = (f"{name}-{number}", 0 if name.startswith("%LMQ%") else 7)
            assert QueueName(*key).has(raw, 0) == (key in expected()), key
    assert found == expected()


def test_spark_expects_the_same_units(root: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.jobs.expected_entries import LogFileTask, expected_units
    from pyrocketstore.spark.task_types import LogFile

    path = str(root / "commitlog" / f"{0:020d}")
    stop = sum(record.size for record in records())
    file = LogFile(path, 0, FILE_SIZE)
    task = LogFileTask("b", file, stop, True, {}, True, True)
    rows = [row for batch in expected_units(task) for row in batch.to_pylist()]
    further = {(row["topic"], row["queueId"]) for row in rows if row["topic"] != "T"}
    assert further == expected()
    assert all(row["queueOffset"] == 0 for row in rows if row["topic"] != "T")
