"""Micro benchmarks of consume queue units and index keys.

Small sizes by default, as a test; BENCH_FULL=1 measures."""

from __future__ import annotations

import itertools
import os

import numpy
import pytest

from bench.workers.workload import BASE_MS, RECORD_SIZE, TAGS_CODE
from pyrocketstore.consume_queue._units import encode_units, read_units, scan_units
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.index._file import IndexFile
from pyrocketstore.system.env import Env

FULL = bool(os.environ.get("BENCH_FULL"))
UNIT_COUNT = 300_000 if FULL else 1_000  # 300 000 units: one file of the default size
KEY_COUNT = 1_000_000 if FULL else 1_000
SLOT_COUNT = 5_000_000 if FULL else 1_000


@pytest.fixture(scope="module")
def units() -> bytes:
    phy_offsets = numpy.arange(UNIT_COUNT, dtype=numpy.int64) * RECORD_SIZE
    sizes = numpy.full(UNIT_COUNT, RECORD_SIZE, dtype=numpy.int32)
    tags_codes = numpy.full(UNIT_COUNT, TAGS_CODE, dtype=numpy.int64)
    return bytes(encode_units(phy_offsets, sizes, tags_codes))


def bench_scan_units(benchmark, units):
    benchmark.extra_info |= {"bytes": len(units), "units": UNIT_COUNT}
    assert benchmark(scan_units, units)[0] == len(units)


def bench_read_units(benchmark, units):
    benchmark.extra_info |= {"bytes": len(units), "units": UNIT_COUNT}
    phy_offsets, _, _ = benchmark(read_units, units)
    assert phy_offsets[-1] == (UNIT_COUNT - 1) * RECORD_SIZE


@pytest.fixture
def index_columns():
    hashes = [key_hash_of("T", f"k{i}") for i in range(KEY_COUNT)]
    return (
        numpy.array(hashes, dtype=numpy.int32),
        numpy.arange(KEY_COUNT, dtype=numpy.int64) * RECORD_SIZE,
        BASE_MS + numpy.arange(KEY_COUNT, dtype=numpy.int64) // 10,
    )


def bench_index_put(benchmark, index_columns, tmp_path):
    names = itertools.count()

    def fresh():
        path = tmp_path / f"{20260101010101000 + next(names)}"
        return (IndexFile(Env(), str(path), SLOT_COUNT, KEY_COUNT + 2, create=True),), {}

    def put(index: IndexFile) -> int:
        return index.put_hashes(*index_columns)

    benchmark.extra_info |= {"keys": KEY_COUNT}
    assert benchmark.pedantic(put, setup=fresh, rounds=5 if FULL else 1) == KEY_COUNT


def bench_index_select(benchmark, index_columns, tmp_path):
    path = tmp_path / "20260101010101000"
    index = IndexFile(Env(), str(path), SLOT_COUNT, KEY_COUNT + 2, create=True)
    index.put_hashes(*index_columns)
    keys = [f"T#k{i}" for i in range(0, KEY_COUNT, 97)]

    def select() -> int:
        return sum(len(index.select_phy_offset(key, 32, 0, 2**62)) for key in keys)

    benchmark.extra_info |= {"keys": len(keys)}
    assert benchmark(select) >= len(keys)
    index.shutdown()
