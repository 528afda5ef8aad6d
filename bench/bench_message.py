"""Micro benchmarks of one record: CRC by kernel, encode, decode, properties.

Small sizes by default, as a test; BENCH_FULL=1 measures."""

from __future__ import annotations

import os
import random
import zlib

import pytest

from pyrocketstore.record import _message
from pyrocketstore.record.message import MessageExtBrokerInner

FULL = bool(os.environ.get("BENCH_FULL"))
RECORD_COUNT = 1000 if FULL else 10
CRC_SIZES = (16, 128, 1024, 65_536, 4 << 20) if FULL else (16, 1024)
PROPERTIES = {"KEYS": "order-7 order-8", "TAGS": "TagA", "UNIQ_KEY": "AC110002" * 4, "a": "b"}


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def message(body_size: int) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(
        topic="orders",
        body=random_bytes(body_size),
        properties=PROPERTIES,
        properties_string=_message.properties_to_string(PROPERTIES),
    )


@pytest.fixture(scope="module", params=[128, 1024])
def record(request) -> bytes:
    return _message.encode_message(message(request.param))


@pytest.mark.parametrize("size", CRC_SIZES)
@pytest.mark.parametrize("kernel", [*_message.crc32_kernels(), "zlib"])
def bench_crc32(benchmark, kernel, size):
    data = random_bytes(size)
    benchmark.extra_info |= {"bytes": size, "kernel": kernel}
    if kernel == "zlib":
        benchmark(zlib.crc32, data)
        return
    before = _message.crc32_kernel()
    _message.select_crc32_kernel(kernel)
    try:
        found = benchmark(_message.crc32, data)
    finally:
        _message.select_crc32_kernel(before)
    assert found == zlib.crc32(data)


@pytest.mark.parametrize("body_size", [128, 1024])
def bench_encode(benchmark, body_size):
    inner = message(body_size)

    def encode_all() -> bytes:
        for _ in range(RECORD_COUNT):
            found = _message.encode_message(inner)
        return found

    benchmark.extra_info |= {"records": RECORD_COUNT}
    assert _message.decode_record(benchmark(encode_all), check_crc=True).tags == "TagA"


def bench_decode(benchmark, record):
    def decode_all() -> int:
        total = 0
        for _ in range(RECORD_COUNT):
            found = _message.decode_record(record)
            total += len(found.body) + len(found.tags) + len(found.keys)
        return total

    benchmark.extra_info |= {"records": RECORD_COUNT}
    one = len(_message.decode_record(record).body) + len("TagA") + len("order-7 order-8")
    assert benchmark(decode_all) == one * RECORD_COUNT


def bench_properties(benchmark):
    text = benchmark(_message.properties_to_string, PROPERTIES)
    assert _message.string_to_properties(text) == PROPERTIES
