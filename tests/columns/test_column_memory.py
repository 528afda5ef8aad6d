"""Goal: the memory of columns is reused only once it is unreferenced, is bounded, and can be
released.
Method: columns that are kept are compared with the oracle's values after other columns were made
and dropped, also from several threads."""

from __future__ import annotations

import gc
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from pyrocketstore.columns._decode import decode_records, release_memory, reusable_bytes
from support import oracle

COUNT = 9000
KEPT_MAX = 160 << 20


def log_of(first: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return records with different bodies, and their positions."""
    records = [
        oracle.encode_record(
            oracle.Record(
                body=b"%07d" % (first + i) * (90 + i % 9),
                properties=b"KEYS\x01k%d" % (first + i) if i % 4 else b"",
                queue_offset=first + i,
                sys_flag=0,
            )
        )
        for i in range(COUNT)
    ]
    sizes = np.array([len(record) for record in records], np.int32)
    return b"".join(records), np.cumsum(sizes, dtype=np.int64) - sizes, sizes


def check(columns: dict, first: int) -> None:
    assert columns["queue_offset"].tolist() == list(range(first, first + COUNT))
    bodies = [b"%07d" % (first + i) * (90 + i % 9) for i in range(COUNT)]
    assert columns["body"].to_list() == bodies
    keys = [f"k{first + i}" if i % 4 else None for i in range(COUNT)]
    assert columns["keys"].to_list() == keys


def columns_of(log: tuple[bytes, np.ndarray, np.ndarray]) -> dict:
    return decode_records(*log, ("queue_offset", "body", "keys"))


def address(values: np.ndarray) -> int:
    return values.__array_interface__["data"][0]


def test_what_someone_has_is_left_alone():
    release_memory()
    logs = [log_of(n * COUNT) for n in range(3)]
    kept = columns_of(logs[0])
    offsets = kept["keys"].offsets[10:20]
    for n in (1, 2, 1, 2):
        check(columns_of(logs[n]), n * COUNT)
    check(kept, 0)
    # A slice keeps the memory too.
    expected = offsets.tolist()
    kept.clear()
    check(columns_of(logs[1]), COUNT)
    assert offsets.tolist() == expected


def test_memory_is_used_again_and_given_back():
    release_memory()
    log = log_of(0)
    first = columns_of(log)
    places = {address(first["body"].data), address(first["queue_offset"])}
    del first
    gc.collect()
    again = columns_of(log)
    assert {address(again["body"].data), address(again["queue_offset"])} == places
    check(again, 0)
    del again
    assert release_memory() > COUNT * 8
    assert release_memory() == 0


def test_what_is_kept_is_bounded():
    release_memory()
    assert len(reusable_bytes(0)) == 0
    with pytest.raises(ValueError, match="-1"):
        reusable_bytes(-1)
    blocks = [reusable_bytes(20 << 20) for _ in range(12)]
    blocks[0][:] = 7
    del blocks
    few = [reusable_bytes(100_000) for _ in range(200)]
    assert all(len(block) == 100_000 for block in few)
    del few
    large = reusable_bytes(KEPT_MAX + 1)
    assert len(large) == KEPT_MAX + 1
    del large
    kept = release_memory()
    assert 0 < kept <= KEPT_MAX
    assert release_memory() == 0


def test_a_block_much_too_large_is_not_used():
    release_memory()
    large = reusable_bytes(8 << 20)
    place = address(large)
    del large
    small = reusable_bytes(1 << 20)
    assert address(small) != place
    assert release_memory() >= 8 << 20


def test_threads_do_not_share_columns():
    logs = [log_of(n * COUNT) for n in range(3)]
    failures = []

    def work(n: int) -> None:
        for _ in range(6):
            columns = columns_of(logs[n])
            try:
                check(columns, n * COUNT)
            except AssertionError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    release_memory()


def test_a_column_without_any_value_keeps_no_memory():
    """decode_records frees the memory that it reserves for values where no record has one."""
    record = oracle.encode_record(oracle.Record(body=b"x", properties=b""))
    place = np.zeros(1, np.int64), np.array([len(record)], np.int32)

    def call(count: int) -> None:
        for _ in range(count):
            columns = decode_records(record, *place, ("tags", "keys", "uniq_key"))
            assert columns["uniq_key"].to_list() == [None]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    call(2000)
    before = resident()
    call(20_000)
    assert resident() - before < 2 << 20
