"""Rows as Spark would return them, planned and read in this process; stores to read, and the
answers of 4.9.3 over the golden stores."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore.spark.options import read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.schemas import arrow_schema_of, columns_of
from support.golden_stores import GOLDEN

FILE_SIZE = 1 << 20
SIZES = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 20000}


class Row(dict[str, Any]):
    """A row of `read_directly`, with Spark's way to name a column."""

    __getattr__ = dict.__getitem__


def read_directly(path: Path | str, *names: str, **options: object) -> list[Row]:
    """The rows that Spark would have, planned and read as it does, each task sent as it is."""
    texts = {
        name: str(value).lower() if value in (True, False) else str(value)
        for name, value in options.items()
    }
    requested = read_options({"path": str(path), **texts})
    shown, on_demand = columns_of(requested)
    columns = {name: {**shown, **on_demand}[name] for name in names or shown}
    rows = []
    planned = pickle.loads(pickle.dumps(plan(requested)))
    for partition in planned.tasks:
        for batch in read_task(partition, columns, requested, planned.common):
            assert batch.schema == arrow_schema_of(columns)
            rows += [Row(row) for row in batch.to_pylist()]
    return rows


def golden_messages(name: str) -> dict[tuple[str, int, int], dict[str, Any]]:
    """(topic and id of the queue, physical offset) -> the message as 4.9.3 reads it."""
    found = {}
    with (GOLDEN / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line).get("message")
            # 4.9.3 reads a unit whose file is gone as one of another message.
            if message is not None and message["size"] == message["store_size"]:
                key = (message["cq_topic"], message["cq_queue_id"], message["phy_offset"])
                found[key] = message
    return found


def ms(value: Any) -> int:
    """Return a time in milliseconds."""
    return round(value.timestamp() * 1000)


def as_golden(row: Any) -> dict[str, Any]:
    """A row in the form of the golden lines; without the fields that only a queue has."""
    body = bytes(row.body)
    return {
        "topic": row.msgTopic,
        "queue_id": row.msgQueueId,
        "queue_offset": row.msgQueueOffset,
        "phy_offset": row.commitLogOffset,
        "decoded_commitlog_offset": row.commitLogOffset,
        "size": row.storeSize,
        "store_size": row.storeSize,
        "flag": row.flag,
        "sys_flag": row.sysFlag,
        "body_crc": row.bodyCRC,
        "born_timestamp": ms(row.bornTimestamp),
        "store_timestamp": ms(row.storeTimestamp),
        "reconsume_times": row.reconsumeTimes,
        "prepared_transaction_offset": row.preparedTransactionOffset,
        "msg_id": row.msgId,
        "body_len": len(body),
        "body_sha256_8": hashlib.sha256(body).hexdigest()[:16] if body else "",
        "properties": dict(row.properties),
    }


def make_store(root: Path, count: int = 300, body: int = 1000, topics: int = 2) -> Path:
    """`count` messages in each of two queues a topic, with tags and keys."""
    config = pyrocketstore.MessageStoreConfig(**SIZES)
    with pyrocketstore.open(root, config=config) as store:
        for number in range(count):
            for topic in range(topics):
                for queue_id in range(2):
                    text = f"{topic}-{queue_id}-{number}-".encode()
                    store.put(
                        f"T{topic}",
                        text + bytes(body - len(text)),
                        queue_id=queue_id,
                        tags=f"tag{number % 3}",
                        keys=f"key-{topic}-{number}",
                        properties={"n": str(number)},
                    )
    return root


def damage(root: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of the log."""
    path = root / "commitlog" / f"{position - position % FILE_SIZE:020d}"
    with path.open("r+b") as file:
        file.seek(position % FILE_SIZE)
        file.write(data)
