"""Micro benchmarks of the public API: put, read, query, open and verify of one store.

Small sizes by default, as a test; BENCH_FULL=1 measures."""

from __future__ import annotations

import itertools
import os
import random

import pytest

import pyrocketstore

FULL = bool(os.environ.get("BENCH_FULL"))
COUNT = 200_000 if FULL else 200
KEY_COUNT = 10_000 if FULL else 50
BATCH_COUNT = 32
QUEUES = 4
BODY = random.Random(42).randbytes(1024)
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
SETTINGS = {} if FULL else SMALL


def open_store(path) -> pyrocketstore.Store:
    return pyrocketstore.open(path, disk_max_used_space_ratio=95, **SETTINGS)


@pytest.fixture
def fresh(tmp_path):
    """Return a setup for pedantic(): a new store for every round, closed with the test."""
    stores = []
    numbers = itertools.count()

    def setup():
        stores.append(open_store(tmp_path / str(next(numbers))))
        return (stores[-1],), {}

    yield setup
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Return a store whose message i has the key k{i} and is in queue i mod 4."""
    path = tmp_path_factory.mktemp("bench") / "store"
    with open_store(path) as store:
        put_many(store)
        store.flush()
        yield store


def put_many(store) -> int:
    store.put_many(
        "orders",
        [BODY] * COUNT,
        queue_ids=[i % QUEUES for i in range(COUNT)],
        tags=["TagA"] * COUNT,
        keys=[f"k{i}" for i in range(COUNT)],
    )
    store.wait_dispatched()
    return sum(store.max_offset("orders", queue_id) for queue_id in range(QUEUES))


def put_singles(store) -> int:
    put = store.put
    for i in range(COUNT):
        put("orders", BODY, queue_id=i % QUEUES, tags="TagA", keys=f"k{i}")
    store.wait_dispatched()
    return sum(store.max_offset("orders", queue_id) for queue_id in range(QUEUES))


def put_batches(store) -> int:
    for first in range(0, COUNT, BATCH_COUNT):
        keys = range(first, min(first + BATCH_COUNT, COUNT))
        store.put_batch("orders", [{"body": BODY, "tags": "TagA", "keys": f"k{i}"} for i in keys])
    store.wait_dispatched()
    return store.max_offset("orders", 0)


@pytest.mark.parametrize("work", [put_singles, put_many, put_batches])
def bench_put(benchmark, work, fresh):
    benchmark.extra_info |= {"messages": COUNT, "body": len(BODY)}
    assert benchmark.pedantic(work, setup=fresh, rounds=5 if FULL else 1) == COUNT


def bench_read(benchmark, filled):
    def read() -> int:
        return sum(
            len(message.body) + len(message.keys)
            for queue_id in range(QUEUES)
            for message in filled.read("orders", queue_id)
        )

    benchmark.extra_info |= {"messages": COUNT}
    assert benchmark(read) == COUNT * len(BODY) + sum(len(f"k{i}") for i in range(COUNT))


@pytest.mark.parametrize("columns", [("queue_offset", "tags", "keys"), ("queue_offset", "body")])
def bench_read_batch(benchmark, filled, columns):
    def read() -> int:
        return sum(
            filled.read_batch(
                "orders", queue_id, start=0, max_count=COUNT, max_bytes=1 << 40, columns=columns
            ).num_rows
            for queue_id in range(QUEUES)
        )

    benchmark.extra_info |= {"messages": COUNT, "columns": ",".join(columns)}
    assert benchmark(read) == COUNT


def bench_query(benchmark, filled):
    keys = [f"k{i}" for i in random.Random(7).sample(range(COUNT), KEY_COUNT)]

    def query() -> int:
        return sum(len(list(filled.query("orders", key))) for key in keys)

    benchmark.extra_info |= {"keys": KEY_COUNT}
    assert benchmark(query) == KEY_COUNT


def bench_query_many(benchmark, filled):
    keys = [f"k{i}" for i in random.Random(7).sample(range(COUNT), KEY_COUNT)]
    benchmark.extra_info |= {"keys": KEY_COUNT}
    assert len(benchmark(filled.query_many, "orders", keys).phy_offset) == KEY_COUNT


def bench_verify(benchmark, filled):
    benchmark.extra_info |= {"messages": COUNT}
    assert benchmark(filled.verify).ok


def bench_open_and_close(benchmark, tmp_path):
    with open_store(tmp_path / "store") as store:
        put_many(store)

    def reopen() -> int:
        with open_store(tmp_path / "store") as store:
            return store.max_offset("orders", 0)

    benchmark.extra_info |= {"messages": COUNT}
    assert benchmark(reopen) == (COUNT + QUEUES - 1) // QUEUES
