"""Streams that are read as Spark reads them, without Spark, over stores of small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

import pyrocketstore
from pyrocketstore import Store
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE as UNIT
from pyrocketstore.spark.options import STREAM, read_options
from pyrocketstore.spark.plan.stream_store import StreamStore
from pyrocketstore.spark.source.stream import StoreStreamReader

COLUMNS = {"topic": "string", "queueId": "int", "queueOffset": "bigint", "body": "binary"}
QUEUE_FILE = 10 * UNIT
ALL = ReadAllAvailable()


def open_store(root: Path, **settings: Any) -> Store:
    """Open a store of small files."""
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": QUEUE_FILE}
    return pyrocketstore.open(root, **{**sizes, **settings})


def put(store: Store, topic: str, count: int, queue_id: int = 0, body: bytes = b"body") -> None:
    """Put `count` messages and wait until they are dispatched."""
    for _ in range(count):
        store.put(topic, body, queue_id=queue_id)
    store.wait_dispatched()


def reader(root: Path | str, **options: object) -> StoreStreamReader:
    """Return a stream's reader, made as Spark makes it."""
    texts = {name: str(value) for name, value in {"path": root, **options}.items()}
    return StoreStreamReader(read_options(texts, STREAM), COLUMNS, recovery_s=0)


def live(root: Path | str, **options: object) -> StreamStore:
    """Return the queues of a stream's store."""
    found = read_options({"path": str(root), **{k: str(v) for k, v in options.items()}}, STREAM)
    return StreamStore(found.places[0], found)


def rows(stream: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """The rows of a batch, by queue and in its order."""
    found = [
        (row["topic"], row["queueId"], row["queueOffset"])
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(found)


def next_batch(
    stream: StoreStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> dict[str, Any]:
    """Through JSON, as Spark keeps it."""
    return json.loads(json.dumps(stream.latestOffset(json.loads(json.dumps(start)), limit)))


def queue_file(root: Path | str, topic: str, queue_id: int = 0, number: int = 0) -> Path:
    """Return a file of a queue."""
    return Path(root) / "consumequeue" / topic / str(queue_id) / f"{number * QUEUE_FILE:020d}"


def write_at(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
