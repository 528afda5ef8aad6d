"""Loops that put messages with properties.

The option `named` is "client", the properties that 4.9.3's client and broker give to each message
and two of the sender's own, or a number of the sender's own properties. A caller of `Store.put`
cannot set WAIT and CLUSTER, so lower-case names of the same length stand for them.
"""

from __future__ import annotations

from typing import Any

import numpy

from bench.workers.workload import KEY_BASE, TOPIC

CLUSTER = "DefaultCluster"


def counted(count: int) -> dict[str, str]:
    """Return `count` properties of 25 bytes each, with their separators."""
    return {f"property{i:02d}": f"value{i:08d}" for i in range(count)}


def put_all(store: Any, body: bytes, queues: int, named: str, base: int, count: int) -> None:
    """Put messages one by one; the loop creates each one's dictionary of properties."""
    put = store.put
    if named == "client":
        for i in range(count):
            key = f"k{base + i}"
            properties = {"wait": "true", "cluster": CLUSTER, "orderId": key, "source": "checkout"}
            put(TOPIC, body, queue_id=i % queues, tags="TagA", keys=key, properties=properties)
        return
    own = counted(int(named))
    if not own:
        for i in range(count):
            put(TOPIC, body, queue_id=i % queues, tags="TagA", keys=f"k{base + i}")
        return
    for i in range(count):
        key = f"k{base + i}"
        put(TOPIC, body, queue_id=i % queues, tags="TagA", keys=key, properties=own.copy())


def put_many(store: Any, body: bytes, queues: int, named: str, base: int, count: int) -> None:
    """Put messages in one call; the loops create the lists and the dictionaries of properties."""
    first = base - KEY_BASE
    keys = [f"k{i}" for i in range(base, base + count)]
    properties: list[dict[str, str]] | None
    if named == "client":
        properties = [
            {"wait": "true", "cluster": CLUSTER, "orderId": key, "source": "checkout"}
            for key in keys
        ]
    else:
        own = counted(int(named))
        properties = [own.copy() for _ in keys] if own else None
    store.put_many(
        TOPIC,
        [body] * count,
        queue_ids=numpy.arange(first, first + count) % queues,
        tags=["TagA"] * count,
        keys=keys,
        properties=properties,
    )
