"""Goal: an executor loads no driver code, and of the engine no folder after `reading/`.
Method: pickle on a driver the objects that Spark sends to its workers, run them in a fresh
interpreter, and check the modules that are loaded there. The writers of the data source are
exempt: they check rows by the rules of the store's puts, and the driver half of these objects
opens the store."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyrocketstore

pytest.importorskip("pyspark.sql.datasource", reason="pyspark is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark import cloudpickle  # noqa: E402
from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

from pyrocketstore.spark.jobs import expected_entries, verify  # noqa: E402
from pyrocketstore.spark.jobs.rebuild import rebuild  # noqa: E402
from pyrocketstore.spark.jobs.verify_rows import (  # noqa: E402
    Ranges,
    are_in_ranges,
    index_entries,
    log_places,
)
from pyrocketstore.spark.lake.export import export  # noqa: E402
from pyrocketstore.spark.options import STREAM, VIEWS, read_options  # noqa: E402
from pyrocketstore.spark.plan.snapshot import StoreSnapshot  # noqa: E402
from pyrocketstore.spark.read.worker import map_tasks  # noqa: E402
from pyrocketstore.spark.schemas import columns_of  # noqa: E402
from pyrocketstore.spark.source.batch import StoreReader  # noqa: E402
from pyrocketstore.spark.source.stream import StoreStreamReader  # noqa: E402
from pyrocketstore.spark.udf import encoded, functions  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Runs a pickled function over pickled calls; prints the count of rows, then the loaded modules.
CHILD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    run, calls = pickle.load(file)
print(sum(len(batch) for call in calls for batch in run(*call)))
print(*(name for name in sys.modules if name.startswith("pyrocketstore.")))
"""
ENGINE = set(
    "_rocketstore display errors results arguments system record config files index commit_log "
    "consume_queue columns reading spark".split()
)
DRIVER = (
    "plan lake.export lake.continuity jobs.reports jobs.verify jobs.rebuild pipeline verify rebuild"
).split()


def run_as_executor(tmp_path: Path, run: Callable[..., Any], calls: Sequence[Any]) -> int:
    """Run in a fresh interpreter; return the count of rows."""
    path = tmp_path / "sent"
    path.write_bytes(cloudpickle.dumps((run, list(calls))))
    command = [sys.executable, "-c", CHILD, str(path)]
    count, names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )[:2]
    loaded = [name.removeprefix("pyrocketstore.") for name in names.split()]
    wrong = [name for name in loaded if name.partition(".")[0] not in ENGINE]
    wrong += [
        name
        for name in loaded
        if any(f"{name}.".startswith(f"spark.{driver}.") for driver in DRIVER)
    ]
    assert not wrong
    return int(count)


class Session:
    """Stands for a Spark session whose one executor is a fresh interpreter."""

    sparkContext = SimpleNamespace(defaultParallelism=2)

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.rows = 0

    def range(self, start: int, stop: int, step: int, parts: int) -> Session:
        self.numbers = list(range(start, stop, step))
        return self

    def mapInArrow(self, run: Any, ddl: str) -> Session:
        self.run = run
        return self

    def collect(self) -> list[Any]:
        numbers = pa.RecordBatch.from_pydict({"id": self.numbers})
        self.rows += run_as_executor(self.tmp_path, self.run, [([numbers],)])
        raise Stopped


class Stopped(Exception):
    """Ends a job once its executors are through."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores") / "store"
    with pyrocketstore.open(root, mapped_file_size_commit_log=4096) as store:
        for number in range(60):
            store.put("t", b"body", queue_id=number % 2, tags="a", keys=f"k{number}")
    return root


def texts(root: Path, **options: str) -> dict[str, str]:
    return {"path": str(root), **options}


def test_canary_driver_code_is_seen(tmp_path, root):
    with pytest.raises(AssertionError):
        run_as_executor(tmp_path, StoreSnapshot, [])


@pytest.mark.parametrize(
    ("view", "given"),
    [("messages", {"readMode": "queue"}), *((view, {}) for view in VIEWS)],
)
def test_batch(tmp_path, root, view, given):
    requested = read_options(texts(root, view=view, **given))
    reader = StoreReader(requested, dict(columns_of(requested)[0]), None)
    calls = [(part,) for part in reader.partitions()]
    assert run_as_executor(tmp_path, reader.read, calls) >= (5 if view == "files" else 60)


def test_stream(tmp_path, root):
    requested = read_options(texts(root, startingOffsets="earliest"), STREAM)
    reader = StoreStreamReader(requested, dict(columns_of(requested)[0]))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    calls = [(part,) for part in reader.partitions(start, end)]
    assert run_as_executor(tmp_path, reader.read, calls) == 60


def test_export(tmp_path, root):
    session: Any = Session(tmp_path)
    with pytest.raises(Stopped):
        export(session, root, tmp_path / "lake")
    assert session.rows == 1
    assert list((tmp_path / "lake").rglob("*.parquet"))


def test_rebuild(tmp_path, root):
    session: Any = Session(tmp_path)
    with pytest.raises(Stopped):
        rebuild(session, root, tmp_path / "out")
    assert session.rows > 1


def test_verify(tmp_path, root):
    options = verify._options({"store": str(root)}, None)
    with StoreSnapshot(options.places[0], None, "skip") as snapshot:
        store = verify._store_of(options.places[0], snapshot, options)
    index = [(store.broker_name, task) for task in store.index_tasks]
    for tasks, work, least in (
        (store.log_tasks, expected_entries.log_facts, 4),
        (store.log_tasks, expected_entries.expected_units, 60),
        (store.log_tasks, expected_entries.record_keys, 60),
        (store.units_tasks, expected_entries.actual_units, 60),
        (index, index_entries, 60),
    ):
        session: Any = Session(tmp_path)
        with pytest.raises(Stopped):
            map_tasks(session, tasks, work, "").collect()  # type: ignore[arg-type]
        assert session.rows >= least
    ranges = Ranges([("store", 0, 100)])
    arrays = pa.array(["store"]), pa.array([5])
    for find in (
        functools.partial(are_in_ranges, ranges=ranges),
        functools.partial(log_places, ranges=ranges, paths=("/a",)),
    ):
        assert run_as_executor(tmp_path, functools.partial(_one, find), [arrays]) == 1


def _one(find: Callable[..., Any], *arrays: Any) -> list[Any]:
    return [find(*arrays)]


def test_functions(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark.sql.pandas.functions.arrow_udf", lambda apply, ddl: apply)
    made: Any = functions._udf("tags_code", encoded.tags_code_array, "bigint")
    assert run_as_executor(tmp_path, made, [([pa.array(["a", "b"])],)]) == 2
