"""Goal: a record batch equals the one of NumPy columns of the same records, in values, types and
nulls; its memory lives as long as anything of it does, and no longer.
Method: random records, small and large, read in each mode of a file, against `batch_of`; memory
that the allocator and the column pool count; releases in threads without the GIL."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.columns import arrow
from pyrocketstore.columns._arrow_array import ArrowColumns
from pyrocketstore.columns._decode import COLUMNS, PROPERTIES_MAP, release_memory
from pyrocketstore.errors import MissingExtraError, StoreCorruptionError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._file_columns import decode_file_records, decode_run, no_rows
from pyrocketstore.record._queue_check import QueueName
from pyrocketstore.system.env import Env
from support import oracle
from support.arrow_batches import batch_of
from support.seed import SEED

pa = pytest.importorskip("pyarrow")

NAMES = (*COLUMNS, PROPERTIES_MAP)
TEXTS = [b"", b"TAGS\x01a", b"TAGS\x01\xff\x02KEYS\x01k \xed\xa0\x80", b"UNIQ_KEY\x01u\x02x\x01y",
         b"no pair", b"KEYS\x01a b\x02KEYS\x01c\x02n\x01v\x02"]  # fmt: skip
RELEASE = 64  # position of `release` in the struct of an array, bytes


def random_log(rng: random.Random, count: int, bad_bodies: bool) -> tuple[bytes, Any, Any]:
    """Return the bytes of records of topic T, queue 0, their positions and sizes."""
    parts, positions, position = [], [], 0
    for i in range(count):
        body = rng.randbytes(rng.choice((0, 3, 200)))
        flag = rng.choice((0, 0, oracle.COMPRESSED))
        if flag and body:
            body = zlib.compress(body * 9) if not bad_bodies or rng.random() < 0.7 else body
        record = oracle.Record(
            body=body,
            properties=rng.choice(TEXTS),
            queue_offset=i,
            phy_offset=position,
            sys_flag=flag,
            born_timestamp=rng.getrandbits(40),
            born_host=rng.choice(
                (oracle.host("10.0.0.1", 5), oracle.host("20010db8" + "0" * 23 + "7", 1))
            ),
        )
        parts.append(oracle.encode_record(record))
        positions.append(position)
        position += len(parts[-1])
    sizes = np.array([len(part) for part in parts], np.int32)
    return b"".join(parts), np.array(positions, np.int64), sizes


def opened(directory: Path, data: bytes, mode: str) -> MappedFile:
    path = directory / f"{0:020d}"
    path.write_bytes(data + bytes(4096))
    file = MappedFile(Env(), str(path), path.stat().st_size, mode=mode, file_from_offset=0)
    file.set_positions(len(data))
    return file


def decoded(file: MappedFile, places: tuple[Any, Any], names: Any = NAMES) -> ArrowColumns:
    """Decode the records of queue offsets 0, 1, ..., with None for a damaged body."""
    offsets = np.arange(len(places[0]))
    return decode_run(file, *places, offsets, tuple(names), QueueName("T", 0), null_bad_bodies=True)


def check_equal(batch: Any, wanted: Any) -> None:
    batch.validate(full=True)
    assert batch.schema.equals(wanted.schema, check_metadata=True)
    assert batch.equals(wanted)
    for got, want in zip(batch.columns, wanted.columns, strict=True):
        assert (got.null_count, len(got), got.offset) == (want.null_count, len(want), want.offset)
        buffers = [buffer is None for buffer in got.buffers()]
        assert buffers == [buffer is None for buffer in want.buffers()]
    assert all(field.nullable for field in batch.schema)
    assert batch.to_pydict() == wanted.to_pydict()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 33, 500, 6000])
@pytest.mark.parametrize("mode", ["read", "shared"])
def test_a_batch_equals_that_of_numpy_columns(tmp_path: Path, mode: str, count: int) -> None:
    rng = random.Random(SEED)
    for bad_bodies in (False, True):
        data, *places = random_log(rng, count, bad_bodies)
        file = opened(tmp_path, data, mode)
        for _ in range(6 if count < 1000 else 2):
            names = rng.sample(NAMES, rng.choice((1, 2, len(NAMES))))
            limit = rng.choice((None, None, 0, 2000, len(data) // 2))
            offsets = np.arange(count)
            options: dict[str, Any] = {"max_body_bytes": limit, "null_bad_bodies": True}
            columns = decode_run(file, *places, offsets, tuple(names), QueueName("T", 0), **options)
            wanted = decode_file_records(file, *places, names, **options)
            assert wanted is not None
            if "body" in names:
                assert columns.body_bytes == int(wanted["body"].offsets[-1])
            assert len(columns) == len(wanted[names[0]])
            assert columns.names == tuple(names)
            check_equal(arrow.to_record_batch(columns), batch_of(wanted))


@pytest.mark.parametrize("most", [0, 1 << 40], ids=["one by one", "together"])
def test_both_ways_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    data, *places = random_log(random.Random(5), 300, False)
    file = opened(tmp_path, data, "shared")
    monkeypatch.setattr(arrow, "MAX_SHARED_BYTES", most)
    batch = arrow.to_record_batch(decoded(file, (places[0], places[1])))
    check_equal(batch, batch_of(decode_file_records(file, *places, NAMES)))


def test_a_batch_outlives_the_store(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s") as store:
        store.put_many("T", [b"body %d" % i for i in range(3000)], keys=["k"] * 3000)
        small = store.read_batch("T", start=5, max_count=20)
        large = store.read_batch("T", start=0)
    shutil.rmtree(tmp_path / "s")
    part = large.slice(1000, 3)
    del large, store
    gc.collect()
    assert small["body"].to_pylist() == [b"body %d" % i for i in range(5, 25)]
    assert part["body"].to_pylist() == [b"body 1000", b"body 1001", b"body 1002"]
    assert part["keys"].to_pylist() == ["k"] * 3


# ---- memory ------------------------------------------------------------------------------------


def allocated() -> int:
    """Return the bytes that the C library has allocated in this process."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("the C library does not count allocations")
    fields = {"_fields_": [(name, ctypes.c_size_t) for name in "abcdefghij"]}
    info = type("Info", (ctypes.Structure,), fields)
    call = ctypes.CDLL(None).mallinfo2
    call.restype = info
    found = call()
    return int(found.e + found.h)  # hblkhd, uordblks


@pytest.mark.parametrize("most", [0, 1 << 40], ids=["one by one", "together"])
def test_no_memory_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Of batches, of columns that nobody imports, of failed imports and of failed decoding."""
    monkeypatch.setattr(arrow, "MAX_SHARED_BYTES", most)
    data, *found = random_log(random.Random(2), 40, True)
    file, places = opened(tmp_path, data, "shared"), (found[0], found[1])
    torn = found[0] + 1, found[1] - 1
    right = arrow._schema
    lost = pa.schema([("a", pa.map_(pa.string(), pa.string()))] * len(NAMES))

    def work() -> None:
        arrow.to_record_batch(decoded(file, places))
        decoded(file, places)
        with pytest.raises(StoreCorruptionError):
            decoded(file, torn)
        monkeypatch.setattr(arrow, "_schema", lambda *_: lost)
        with pytest.raises(pa.ArrowInvalid):
            arrow.to_record_batch(decoded(file, places))
        monkeypatch.setattr(arrow, "_schema", right)

    for _ in range(20):
        work()
    gc.collect()
    before = allocated()
    for _ in range(100):
        work()
    gc.collect()
    assert allocated() - before < 100_000  # one lost column of each batch has more


def test_an_array_is_imported_once(tmp_path: Path) -> None:
    data, *places = random_log(random.Random(3), 9, False)
    columns = decoded(opened(tmp_path, data, "shared"), (places[0], places[1]))
    assert columns.byte_count() > len(NAMES) * 9
    arrow.to_record_batch(columns)
    assert columns.byte_count() == 0
    with pytest.raises(pa.ArrowInvalid, match="released"):
        arrow.to_record_batch(columns)


def test_a_kept_column_of_a_large_batch_does_not_keep_the_others(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s") as store:
        store.put_many("T", [b"x" * 1000] * 4000)
        batch = store.read_batch("T", start=0)
    release_memory()
    kept = batch.column("queue_offset")
    del batch
    assert release_memory() > 4_000_000  # at least that of the bodies
    assert kept.to_pylist() == list(range(4000))


def test_a_child_that_was_moved_is_released_by_itself(tmp_path: Path) -> None:
    data, *places = random_log(random.Random(4), 5000, False)
    release_memory()
    file = opened(tmp_path, data, "read")
    columns = decoded(file, (places[0], places[1]), ["flag", "body"])
    child = pa.Array._import_from_c(columns.child_addresses()[1], pa.binary())
    wanted = child.to_pylist()
    del columns
    gc.collect()
    assert child.to_pylist() == wanted
    release_memory()
    del child
    assert release_memory() >= sum(map(len, wanted))


def test_threads_without_the_gil_release_batches(tmp_path: Path) -> None:
    """A function of C that ctypes calls runs without the GIL."""
    data, *found = random_log(random.Random(6), 3000, False)
    file, places = opened(tmp_path, data, "shared"), (found[0], found[1])
    wanted = batch_of(decode_file_records(file, *places, NAMES))
    released: list[int] = []

    def work() -> None:
        for _ in range(10):
            columns = decoded(file, places)
            address = ctypes.c_size_t.from_address(columns.address + RELEASE)
            ctypes.CFUNCTYPE(None, ctypes.c_size_t)(address.value)(columns.address)
            released.append(address.value)
            assert arrow.to_record_batch(decoded(file, places)).equals(wanted)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert released == [0] * 30
    release_memory()


def test_a_forked_process_reads_and_releases(tmp_path: Path) -> None:
    data, *found = random_log(random.Random(7), 3000, False)
    file, places = opened(tmp_path, data, "shared"), (found[0], found[1])
    batch = arrow.to_record_batch(decoded(file, places))
    child = os.fork()
    if child == 0:  # no code of pytest runs here
        try:
            same = arrow.to_record_batch(decoded(file, places)).equals(batch)
            del batch
            os._exit(0 if same and release_memory() > 0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="read_batch needs"):
        arrow.to_record_batch(no_rows(NAMES))
