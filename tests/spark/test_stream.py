"""Goal: a stream delivers each message once, whichever process is killed at any time, and reports
losses.
Method: real queries over stores that are written, killed and cleaned at the same time; their
output is compared with the messages of the store."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
import stream_children as children
from pyrocketstore import Store

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, int, int, bytes]
#: Rounds of killing in the long test.
SOAK = int(os.environ.get("ROCKETSTORE_SOAK_STREAM", "0"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def open_store(root: Path) -> Store:
    return pyrocketstore.open(root, **children.SIZES)


def put(store: Store, topic: str, count: int, queue_id: int = 0, size: int = 10) -> None:
    for number in range(count):
        store.put(topic, b"%d" % number + b"." * size, queue_id=queue_id)
    store.wait_dispatched()


def stored(root: Path) -> Counter[Row]:
    """The messages of the store, read by the engine."""
    with pyrocketstore.open(root, read_only=True) as store:
        return Counter(
            (topic, queue_id, message.queue_offset, bytes(message.body))
            for topic in store.topics()
            for queue_id in store.queues(topic)
            for message in store.read(topic, queue_id)
        )


class Sink:
    """Rows by batch, as foreachBatch passes them; fails on request."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.fails = False

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = [tuple(row) for row in rows.collect()]
        if self.fails:
            raise RuntimeError("the sink fails")
        self.batches[batch_id] = found

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def places(self) -> list[tuple[str, int, int]]:
        return sorted(row[:3] for row in self.rows)


def run(
    spark: SparkSession, root: Path, sink: Sink, checkpoint: Path, **options: object
) -> list[dict[str, Any]]:
    """All that is there now, by AvailableNow; the progress of each batch."""
    writer = children.load(spark, root, **options).writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return [json.loads(progress.json) for progress in query.recentProgress]


@contextlib.contextmanager
def started(log: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    child = children.start(log, *arguments)
    try:
        yield child
    finally:
        children.kill(child)


#: A process, and the file of its errors.
Child = tuple["subprocess.Popen[bytes]", Path]


def wait_until(what: Any, seconds: float = 40, child: Child | None = None) -> None:
    """Wait until `what` is true. Fail where the child, if any, ends before."""

    def said() -> str:
        return "" if child is None else child[1].read_text()

    until = time.monotonic() + seconds
    while not what():
        assert child is None or child[0].poll() is None, f"it has ended\n{said()}"
        assert time.monotonic() < until, f"it took too long\n{said()}"
        time.sleep(0.02)


# ---- a store that is written meanwhile -----------------------------------------------------------


def test_available_now_ends_under_a_live_writer(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    sink = Sink()
    with started(tmp_path / "writer.log", "write", root, 1) as writer:
        wait_until(lambda: (root / "consumequeue" / "t0").exists())
        time.sleep(0.3)
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 200}
        progress = run(spark, root, sink, tmp_path / "c", **options)
        assert all(batch["numInputRows"] <= 200 for batch in progress)
        assert writer.poll() is None
    assert len(sink.batches) >= 2, sink.batches.keys()
    taken = Counter(sink.rows)
    assert max(taken.values()) == 1
    assert taken <= stored(root)
    # The writer was killed, and the stream has what an opening would dispatch.
    run(spark, root, sink, tmp_path / "c", startingOffsets="earliest")
    assert Counter(sink.rows) == stored(root)
    for queue in {row[:2] for row in sink.rows}:
        offsets = [row[2] for row in sink.rows if row[:2] == queue]
        assert offsets == list(range(len(offsets))), "each queue in its order"


def test_a_running_query_sees_late_queues_topics_and_brokers_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink()
    roots = {name: tmp_path / name for name in ("a", "b")}
    with open_store(roots["a"]) as first, open_store(roots["b"]) as second:
        put(first, "t", 5)
        reader = spark.readStream.format("rocketmq-store")
        reader = reader.option("stores", json.dumps({k: str(v) for k, v in roots.items()}))
        rows = reader.schema("queueOffset bigint, brokerName string, topic string").load()
        query = (
            rows.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )
        try:
            wait_until(lambda: 0 in sink.batches)  # "latest" is pinned
            put(first, "t", 2)
            put(second, "u", 1)
            wait_until(lambda: len(sink.rows) == 3)
            put(second, "u", 2, queue_id=1)
            put(first, "late", 1)
            wait_until(lambda: len(sink.rows) == 6)
            wait_until(lambda: query.status["message"].startswith("Waiting"))
            source = json.loads(query.lastProgress.json)["sources"][0]
        finally:
            query.stop()
    wanted = [(0, "a", "late"), (0, "b", "u"), (0, "b", "u"), (1, "b", "u")]
    assert sorted(sink.rows) == sorted([*wanted, (5, "a", "t"), (6, "a", "t")])
    assert json.dumps(source["latestOffset"]).count("late") == 1
    assert query.exception() is None


def test_the_code_of_the_document(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark-streaming.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with open_store(root) as store:
        for topic in ("orders", "refunds", "others"):
            put(store, topic, 30)
    made = [("orders", b"a new one", "TagA", "k1 k2"), ("more", b"", None, None)]
    schema = "topic string, body binary, tags string, keys string"
    names: dict[str, Any] = {"spark": spark, "df": spark.createDataFrame(made, schema)}
    before = stored(root)
    for block in blocks:
        code = block.replace('"/data/store"', repr(str(root)))
        exec(code.replace('"/lake/', f'"{tmp_path}/lake/'), names)
        if "query" in names:
            assert names.pop("query").awaitTermination(300)
    assert len(blocks) == 3
    rows = spark.read.parquet(str(tmp_path / "lake" / "orders")).collect()
    requested = Counter({row: n for row, n in before.items() if row[0] != "others"})
    assert Counter((r.topic, r.queueId, r.queueOffset, bytes(r.body)) for r in rows) == requested
    appended = Counter([("orders", 0, 30, b"a new one"), ("more", 0, 0, b"")])
    assert stored(root) - before == appended


# ---- failures and restarts -----------------------------------------------------------------------


@pytest.mark.parametrize("start", ["latest", "time"])
def test_a_failed_first_batch_keeps_its_start(
    spark: SparkSession, root: Path, tmp_path: Path, start: str
) -> None:
    sink = Sink()
    checkpoint = tmp_path / "c"
    with open_store(root) as store:
        put(store, "t", 10)
        options: dict[str, object] = {"startingOffsets": "latest"}
        if start == "time":
            options = {"startingTimestamp": store.message_store.env.now_ms() + 1}
        sink.fails = True
        with pytest.raises(StreamingQueryException, match="the sink fails"):
            run(spark, root, sink, checkpoint, **options)
        put(store, "t", 7)
        put(store, "new", 2)
        sink.fails = False
        if start == "time":  # another start than before must not matter
            options = {"startingTimestamp": store.message_store.env.now_ms() + 10_000}
        run(spark, root, sink, checkpoint, **options)
    assert sink.places == [("new", 0, 0), ("new", 0, 1), *(("t", 0, i) for i in range(10, 17))]


def test_files_deleted_below_a_failed_first_batch(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    sink = Sink()
    with open_store(root) as store:
        put(store, "t", 600, size=300)
    sink.fails = True
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run(spark, root, sink, tmp_path / "c", startingOffsets="earliest", maxOffsetsPerTrigger=300)
    names = sorted((root / "commitlog").iterdir())
    names[0].unlink()
    with open_store(root) as store:
        low = store.min_offset("t")
    assert 0 < low < 300
    sink.fails = False
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false reads the others"):
        run(spark, root, sink, tmp_path / "c", **options)
    run(spark, root, sink, tmp_path / "c", failOnDataLoss=False, **options)
    assert sink.places == [("t", 0, i) for i in range(low, 600)]


def test_retention_between_batches(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    sink = Sink()
    with open_store(root) as store:
        put(store, "t", 100, size=300)
    run(spark, root, sink, tmp_path / "c", startingOffsets="earliest")
    with open_store(root) as store:
        put(store, "t", 600, size=300)
    for path in sorted((root / "commitlog").iterdir())[:2]:
        path.unlink()
    with pytest.raises(StreamingQueryException, match="and 100 was the next message to read"):
        run(spark, root, sink, tmp_path / "c")
    assert len(sink.rows) == 100
    run(spark, root, sink, tmp_path / "c", failOnDataLoss=False)
    low = sink.places[100][2]
    assert low > 100
    assert sink.places == [("t", 0, i) for i in (*range(100), *range(low, 700))]


def test_available_now_over_damage(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    sink = Sink()
    with open_store(root) as store:
        put(store, "t", 100)
        places = [message.phy_offset for message in store.read("t")]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as log:
        for number in (49, 99):  # the last message, and those that the search for it reads
            log.seek(places[number])
            log.write(bytes(60))
    with pytest.raises(StreamingQueryException, match="units 99 to 99 are damaged"):
        run(spark, root, sink, tmp_path / "c", startingOffsets="earliest")
    options = {"startingOffsets": "earliest", "onCorrupt": "skip", "maxOffsetsPerTrigger": 30}
    run(spark, root, sink, tmp_path / "c", **options)
    assert sink.places == [("t", 0, i) for i in range(99) if i != 49]


# ---- kills ---------------------------------------------------------------------------------------


def compare(spark: SparkSession, root: Path, out: Path) -> None:
    """Run both queries to the end, and compare their output with the store."""
    for query in children.into_parquet(spark, root, out, 5000, availableNow=True):
        assert query.awaitTermination(300)
    held = stored(root)
    assert max(held.values()) == 1
    for name in ("files", "batches"):
        rows = spark.read.schema(children.SCHEMA).parquet(str(out / name)).collect()
        found = Counter((r.topic, r.queueId, r.queueOffset, bytes(r.body)) for r in rows)
        assert found == held, f"{name}: {len(held - found)} missing, {len(found - held)} too many"


def batches_in(directory: Path) -> int:
    return sum(path.name.isdecimal() for path in directory.glob("*"))


def kill_rounds(root: Path, out: Path, rounds: int, source: random.Random) -> None:
    """Kill the query in each round, and the store in every other."""
    logs = out.with_name(f"{out.name}.logs")
    logs.mkdir()
    writer = children.start(logs / "writer", "write", root, 0)
    try:
        for number in range(rounds):
            checkpoint = out / source.choice(("files.checkpoint", "batches.checkpoint"))
            log = logs / f"driver{number}"
            with started(log, "drive", root, out) as driver:
                wait_for_batches(checkpoint, source.randrange(1, 4), (driver, log))
                if number % 2 == 0:
                    wait_for_open_batch(checkpoint, (driver, log))
                else:
                    time.sleep(source.random())
                    children.kill(writer)
                    writer = children.start(logs / f"writer{number}", "write", root, number)
                    time.sleep(source.random())
                assert driver.poll() is None, log.read_text()
    finally:
        writer.terminate()
        writer.wait(60)


def wait_for_batches(checkpoint: Path, count: int, driver: Child) -> None:
    wanted = batches_in(checkpoint / "offsets") + count
    wait_until(lambda: batches_in(checkpoint / "offsets") >= wanted, 180, driver)


def wait_for_open_batch(checkpoint: Path, driver: Child) -> None:
    """Until a batch is written down and not finished."""
    planned, done = checkpoint / "offsets", checkpoint / "commits"
    wait_until(lambda: batches_in(planned) > batches_in(done), 180, driver)


@pytest.mark.slow
def test_killed_queries_and_stores_give_each_row_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    kill_rounds(root, tmp_path / "out", 2, random.Random(3))
    compare(spark, root, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(100 + 60 * SOAK)
@pytest.mark.skipif(not SOAK, reason="ROCKETSTORE_SOAK_STREAM=ROUNDS runs it")
def test_many_kills(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    kill_rounds(root, tmp_path / "out", SOAK, random.Random(seed))
    compare(spark, root, tmp_path / "out")
