"""Goal: reads through Spark are correct for offsets that need more than 32 bits.
Method: small stores whose log begins at such an offset, read, streamed, exported, verified and
rebuilt."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

import pyrocketstore
import stream_children as children
from support.far_stores import BEGINS, body_of, damage_body, fill_far

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import SparkSession

from direct_reads import read_directly
from pyrocketstore.spark import register
from pyrocketstore.spark.pipeline import export, read_lake
from pyrocketstore.spark.rebuild import rebuild
from pyrocketstore.spark.verify import verify

COUNT = 700
NAMES = ("topic", "queueId", "queueOffset", "commitLogOffset", "keys", "tags", "body")
Place = tuple[str, int, int, int, bytes]


def places(root: Path) -> Counter[Place]:
    """The messages of the store, read by the engine."""
    with pyrocketstore.open(root, read_only=True) as store:
        return Counter(
            (topic, queue_id, message.queue_offset, message.phy_offset, bytes(message.body))
            for topic in store.topics()
            for queue_id in store.queues(topic)
            for message in store.read(topic, queue_id)
        )


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("mode", ["queue", "sequential"])
@pytest.mark.parametrize("on_corrupt", ["fail", "skip", "null"])
@pytest.mark.parametrize("tasks", [1, 7])
def test_messages(tmp_path: Path, begin: int, mode: str, on_corrupt: str, tasks: int) -> None:
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    options = {"readMode": mode, "onCorrupt": on_corrupt, "minPartitions": tasks}
    rows = read_directly(root, *NAMES, **options)
    held = places(root)
    assert sum(held.values()) == COUNT
    assert held == Counter(
        (r.topic, r.queueId, r.queueOffset, r.commitLogOffset, r.body) for r in rows
    )
    assert {r["keys"]: (r.body, r.tags) for r in rows} == {
        f"k{i}": (body_of(i), f"T{i % 2}") for i in range(COUNT)
    }


@pytest.mark.parametrize("begin", BEGINS)
def test_other_views(tmp_path: Path, begin: int) -> None:
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    held = {place[3] for place in places(root)}
    log = read_directly(root, view="commitlog", minPartitions=7)
    assert {r.commitLogOffset for r in log if r.body is not None} == held
    units = read_directly(root, view="consumequeue")
    assert {r.commitLogOffset for r in units} == held
    assert {r.commitLogOffset for r in read_directly(root, view="index")} == held
    assert len(read_directly(root, view="files")) > 10


@pytest.mark.parametrize("begin", BEGINS)
def test_damage(tmp_path: Path, begin: int) -> None:
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    (damage,) = [r for r in read_directly(root) if r["keys"] == "k300"]
    damage_body(root, damage.commitLogOffset)
    for mode in ("queue", "sequential"):
        rows = read_directly(root, onCorrupt="skip", verifyCrc=True, readMode=mode)
        assert {r["keys"] for r in rows} == {f"k{i}" for i in range(COUNT) if i != 300}


@pytest.mark.parametrize("begin", BEGINS[1:])
def test_streams_and_jobs(spark: SparkSession, tmp_path: Path, begin: int) -> None:
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    held = places(root)
    register(spark)
    out = tmp_path / "out"
    for query in children.into_parquet(spark, root, out, 300, availableNow=True):
        assert query.awaitTermination(300)
    for name in ("files", "batches"):
        rows = spark.read.schema(children.SCHEMA).parquet(str(out / name)).collect()
        assert Counter((r.topic, r.queueId, r.queueOffset, bytes(r.body)) for r in rows) == Counter(
            (topic, queue_id, offset, body) for topic, queue_id, offset, _, body in held
        )

    report = export(spark, {"b": root}, tmp_path / "lake")
    assert (report.rows, report.skipped) == (COUNT, [])
    columns = ("topic", "queueId", "queueOffset", "commitLogOffset", "body")
    rows = read_lake(spark, tmp_path / "lake").select(*columns).collect()
    assert Counter((*tuple(row)[:4], bytes(row.body)) for row in rows) == held

    found = verify(spark, {"b": str(root)})
    assert found.ok
    assert found.counts["records"] == COUNT
    found.close()

    shutil.copytree(root, tmp_path / "log")
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "log" / name)
    rebuild(spark, tmp_path / "log", tmp_path / "rebuilt")
    assert places(tmp_path / "rebuilt") == held
