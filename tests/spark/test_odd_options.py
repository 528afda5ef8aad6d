"""Goal: with any value of an option, a query is planned in bounded time and size, or is refused
with the name of the option.
Method: odd numbers, sizes, patterns and JSON for each option, planned and read without Spark."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.spark.options import STREAM, TASKS_MAX, read_options
from pyrocketstore.spark.plan import task_splitting as planning
from pyrocketstore.spark.schemas import columns_of
from pyrocketstore.spark.source.batch import StoreReader

COUNT = 3000
VIEWS = ["messages", "commitlog", "consumequeue", "index"]
NUMBERS = [
    *("", " ", "0", "-1", "+1", "1", "7", " 3 ", "1.5", "1e3", "1_000", "٣", "0x10", "nan", "None"),
    *("100000", "100001", "1000000000", "2147483648", str(2**63 - 1), str(2**63), "9" * 19),
    *("9" * 5000, "1\0", "1\n"),
]
SIZES = [*NUMBERS, "1k", "1kb", "1KB", "1b", "kb", "1t", "8589934592g", "1 m"]
PATTERNS = [
    *("", " ", "\t", "(", "[", "a{99999999999}", "a{2,1}", "(" * 5000, "(?P<a>x)(?P<a>y)", "\\"),
    *("(?z)", "*", ".*", "T0", "t0", "(?i)t0", "T0|T1", "$^", "\0", "(?<=a+)b"),
]
QUEUES = [
    *(
        "",
        "[]",
        "{}",
        "1",
        '"T0"',
        "null",
        "nan",
        '{"T0": [1e9]}',
        '{"T0": [-1]}',
        '{"T0": [true]}',
    ),
    *(
        '{"T0": []}',
        '{"T0": [0]}',
        '{"T0": [1000000000000]}',
        '{"": [0]}',
        "[" * 9999,
        '{"T0": "0"}',
    ),
]
OFFSETS = [
    *(json.dumps({"T0": {"0": number}}) for number in (-3, -2, -1, 0, 1, 2**31, 2**63, 10**40)),
    *(json.dumps({"T0": {"0": number}}) for number in (1.5, "1", None, True, [])),
    *(json.dumps({"T0": {text: 0}}) for text in ("", "-1", "9999999999", "a", "1.0", "٣")),
    *("", " ", "EARLIEST", "Latest", "0", "{}", '{"T0": {}}', '{"T0": 0}', '{"nobody": {"0": 0}}'),
]
TIMES = [text for text in OFFSETS if "latest" not in text.lower()]
ODD = {
    "minPartitions": NUMBERS,
    "maxRecordsPerPartition": NUMBERS,
    "batchRows": NUMBERS,
    "partitionBytes": SIZES,
    "batchBytes": SIZES,
    "startingTimestamp": NUMBERS,
    "endingTimestamp": NUMBERS,
    "topicPattern": PATTERNS,
    "assign": QUEUES,
    "startingOffsets": OFFSETS,
    "endingOffsets": OFFSETS,
    "startingOffsetsByTimestamp": TIMES,
    "endingOffsetsByTimestamp": TIMES,
    "subExpression": ["", " ", "||", "*", "a||b", "\0", "a" * 100_000, "* || a"],
    "topic": ["", " ", "T0", "\0", "a/b", "..", "T0,T1", "\ud800", "x" * 10_000],
    "topics": ["", " ", ",", "T0,", "T0,T0", "T0,nobody", "\ud800,T1"],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("odd") / "s"
    with pyrocketstore.open(root, mapped_file_size_commit_log=1 << 18) as opened:
        for topic in range(3):
            keys = [f"k{topic}-{n}" for n in range(COUNT // 3)]
            opened.put_many(f"T{topic}", [b"x" * 20] * len(keys), keys=keys)
    return root


def read(root: Path, view: str, name: str, value: str) -> tuple[int, int]:
    """How many tasks there are, and how many rows."""
    requested = read_options({"path": str(root), "view": view, name: value})
    reader = StoreReader(requested, dict(list(columns_of(requested)[0].items())[:2]), None)
    tasks = reader.partitions()
    sent = pickle.loads(pickle.dumps(reader))
    return len(tasks), sum(batch.num_rows for task in tasks for batch in sent.read(task))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ODD)
def test_odd_values(store: Path, monkeypatch: pytest.MonkeyPatch, name: str, view: str) -> None:
    """An answer or an error of the project that names the fault, in bounded time."""
    monkeypatch.setattr(planning, "TASKS_MAX", 200)
    wrong = []
    for value in ODD[name]:
        began = time.monotonic()
        try:
            tasks, rows = read(store, view, name, value)
            said = "" if tasks <= 200 and rows <= COUNT + 1 else f"{tasks} tasks, {rows} rows"
        except StoreError as error:
            said = "" if len(str(error).splitlines()) == 1 else f"lines: {error}"
        except (
            ArithmeticError,
            LookupError,
            OSError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            said = repr(error)
        if time.monotonic() - began > 20:
            said += " slow"
        if said:
            wrong.append((value[:40], said[:200]))
    assert wrong == []


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions"])
def test_odd_numbers_of_a_stream(name: str, value: str) -> None:
    try:
        found = read_options({"path": "/x", name: value}, STREAM)
    except StoreFormatError as error:
        assert name in str(error)
    else:
        assert 1 <= int(value) < 2**63
        assert found.min_partitions <= TASKS_MAX


@pytest.mark.parametrize("value", ["", " ", "\t"])
def test_an_empty_pattern_is_refused(value: str) -> None:
    with pytest.raises(StoreFormatError, match=r"topicPattern=.*must not be empty"):
        read_options({"path": "/x", "topicPattern": value})


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("name", "value"), [("partitionBytes", "1"), ("maxRecordsPerPartition", "1")]
)
def test_too_many_tasks_are_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, view: str
) -> None:
    """Each partition of Spark takes memory of the driver: a plan has a bound."""
    monkeypatch.setattr(planning, "TASKS_MAX", 200)
    with pytest.raises(StoreFormatError, match=r"more than 200 tasks.*partitionBytes"):
        read(store, view, name, value)


def test_the_number_of_tasks_that_can_be_requested(store: Path) -> None:
    with pytest.raises(StoreFormatError, match=f"minPartitions='{TASKS_MAX + 1}'.* to {TASKS_MAX}"):
        read(store, "messages", "minPartitions", str(TASKS_MAX + 1))
    assert read(store, "messages", "minPartitions", "100")[1] == COUNT
