"""Goal: a record batch equals the one of NumPy columns of the same records, in values, types and
nulls; its memory lives as long as anything of it does, and no longer.
Method: random records, small and large, read in each mode of a file, against `batch_of`; memory
that the allocator and the column pool count; releases in threads without the GIL."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import shutil
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.columns import arrow
from pyrocketstore.columns._builder import ArrowColumns
from pyrocketstore.columns._decode import COLUMNS, PROPERTIES_MAP, decode_records, release_memory
from pyrocketstore.errors import MissingExtraError, StoreCorruptionError
from pyrocketstore.reading._file_columns import decode_file_records, decode_run, no_rows
from pyrocketstore.reading._queue_runs import RecordRun, runs_of
from pyrocketstore.reading.skipped import SkippedMessages
from pyrocketstore.record._record import QueueName
from support import oracle
from support.arrow_batches import batch_of
from support.seed import SEED

pa = pytest.importorskip("pyarrow")

NAMES = (*COLUMNS, PROPERTIES_MAP)
TEXTS = [b"", b"TAGS\x01a", b"TAGS\x01\xff\x02KEYS\x01k \xed\xa0\x80", b"UNIQ_KEY\x01u\x02x\x01y",
         b"no pair", b"KEYS\x01a b\x02KEYS\x01c\x02n\x01v\x02"]  # fmt: skip
LOG_SIZE, UNITS_SIZE = 1 << 23, 6_000_000
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


@contextlib.contextmanager
def run_of(
    directory: Path, log: tuple[bytes, Any, Any], mode: str = "shared"
) -> Iterator[RecordRun]:
    """Write a store with the records, open it, and yield the run of them all."""
    data, positions, sizes = log
    shutil.rmtree(directory, ignore_errors=True)
    units = [
        oracle.encode_unit(int(position), int(size), 0)
        for position, size in zip(positions, sizes, strict=True)
    ]
    files = {"commitlog": (data, LOG_SIZE), "consumequeue/T/0": (b"".join(units), UNITS_SIZE)}
    for name, (content, size) in files.items():
        (directory / name).mkdir(parents=True)
        (directory / name / f"{0:020d}").write_bytes(content)
        os.truncate(directory / name / f"{0:020d}", size)
    read_only = mode == "read"
    with pyrocketstore.open(
        directory, read_only=read_only, mapped_file_size_commit_log=LOG_SIZE
    ) as store:
        part = store._part("T", 0, 0, None, (None, "raise", False, SkippedMessages()))
        runs, _ = runs_of(part[0], 0, len(sizes), 1 << 40)
        assert [(run.count, run.mapped_file.mode) for run in runs] == [(len(sizes), mode)]
        yield runs[0]


def decoded(run: RecordRun, names: Any = NAMES, **options: Any) -> ArrowColumns:
    """Decode the records, with None for a damaged body."""
    return decode_run(run, tuple(names), QueueName("T", 0), null_bad_bodies=True, **options)


def numpy_batch(run: RecordRun, names: Any = NAMES, **options: Any) -> Any:
    phy_offsets, sizes, _ = run.refs()
    assert run.mapped_file is not None
    options["null_bad_bodies"] = True
    return batch_of(decode_file_records(run.mapped_file, phy_offsets, sizes, names, **options))


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


@pytest.mark.bad_input
@pytest.mark.parametrize("rows", [1, 7, 8, 33, 500, 6000])
@pytest.mark.parametrize("mode", ["read", "shared"])
def test_a_batch_equals_that_of_numpy_columns(tmp_path: Path, mode: str, rows: int) -> None:
    rng = random.Random(SEED)
    for bad_bodies in (False, True):
        log = random_log(rng, rows, bad_bodies)
        with run_of(tmp_path / "s", log, mode) as run:
            for _ in range(6 if rows < 1000 else 2):
                names = rng.sample(NAMES, rng.choice((1, 2, len(NAMES))))
                limit = rng.choice((None, None, 0, 2000, len(log[0]) // 2))
                columns = decoded(run, names, max_body_bytes=limit)
                wanted = numpy_batch(run, names, max_body_bytes=limit)
                assert len(columns) == wanted.num_rows
                assert columns.names == tuple(names)
                if "body" in names:
                    bodies = wanted["body"].to_pylist()
                    assert columns.body_bytes == sum(len(body or b"") for body in bodies)
                check_equal(arrow.to_record_batch(columns), wanted)


@pytest.mark.bad_input
def test_a_batch_without_rows() -> None:
    batch = arrow.to_record_batch(no_rows(NAMES))
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    check_equal(batch, batch_of(decode_records(b"", *nothing, NAMES)))


@pytest.mark.bad_input
def test_parts_of_a_run(tmp_path: Path) -> None:
    with run_of(tmp_path / "s", random_log(random.Random(8), 40, False)) as run:
        whole = numpy_batch(run)
        keep = np.arange(40) % 3 == 1
        some = arrow.to_record_batch(decoded(run.select(keep)))
        some.validate(full=True)
        assert some.equals(whole.filter(pa.array(keep)))
        assert arrow.to_record_batch(decoded(run.select(keep).first())).equals(whole.slice(1, 1))
        assert len(decoded(run.select(~keep & keep))) == 0
        with pytest.raises(ValueError, match="39 flags of 40"):
            run.select(keep[1:])
        with pytest.raises(ValueError, match="no first"):
            run.select(~keep & keep).first()


@pytest.mark.parametrize("most", [0, 1 << 40], ids=["one by one", "together"])
def test_both_ways_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(arrow, "MAX_SHARED_BYTES", most)
    with run_of(tmp_path / "s", random_log(random.Random(5), 300, True)) as run:
        check_equal(arrow.to_record_batch(decoded(run)), numpy_batch(run))


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
    right = arrow._schema
    lost = pa.schema([("a", pa.map_(pa.string(), pa.string()))] * len(NAMES))

    def work(run: RecordRun) -> None:
        arrow.to_record_batch(decoded(run))
        decoded(run)
        with pytest.raises(StoreCorruptionError, match="queue"):
            decode_run(run, NAMES, QueueName("T", 1))
        with pytest.raises(StoreCorruptionError, match="inflate"):
            decode_run(run, NAMES, QueueName("T", 0))
        monkeypatch.setattr(arrow, "_schema", lambda *_: lost)
        with pytest.raises(pa.ArrowInvalid):
            arrow.to_record_batch(decoded(run))
        monkeypatch.setattr(arrow, "_schema", right)

    with run_of(tmp_path / "s", random_log(random.Random(2), 40, True)) as run:
        for _ in range(20):
            work(run)
        gc.collect()
        before = allocated()
        for _ in range(100):
            work(run)
        gc.collect()
        assert allocated() - before < 30_000  # the smallest column of 100 batches has 40,000


def test_an_array_is_imported_once(tmp_path: Path) -> None:
    with run_of(tmp_path / "s", random_log(random.Random(3), 9, False)) as run:
        columns = decoded(run)
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


@pytest.mark.bad_input
def test_a_child_that_was_moved_is_released_by_itself(tmp_path: Path) -> None:
    release_memory()
    with run_of(tmp_path / "s", random_log(random.Random(4), 5000, False), "read") as run:
        columns = decoded(run, ["flag", "body"])
    child = pa.Array._import_from_c(columns.child_addresses()[1], pa.binary())
    wanted = child.to_pylist()
    del columns
    gc.collect()
    assert child.to_pylist() == wanted
    release_memory()
    del child
    assert release_memory() >= sum(map(len, wanted))


@pytest.mark.bad_input
def test_threads_without_the_gil_release_batches(tmp_path: Path) -> None:
    """A function of C that ctypes calls runs without the GIL."""
    released: list[int] = []

    def work(run: RecordRun, wanted: Any) -> None:
        for _ in range(10):
            columns = decoded(run)
            address = ctypes.c_size_t.from_address(columns.address + RELEASE)
            ctypes.CFUNCTYPE(None, ctypes.c_size_t)(address.value)(columns.address)
            released.append(address.value)
            assert arrow.to_record_batch(decoded(run)).equals(wanted)

    with run_of(tmp_path / "s", random_log(random.Random(6), 3000, False)) as run:
        given = run, numpy_batch(run)
        threads = [threading.Thread(target=work, args=given) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert released == [0] * 30
    release_memory()


def test_a_forked_process_reads_and_releases(tmp_path: Path) -> None:
    with run_of(tmp_path / "s", random_log(random.Random(7), 3000, False), "read") as run:
        batch = arrow.to_record_batch(decoded(run))
        child = os.fork()
        if child == 0:  # no code of pytest runs here
            try:
                same = arrow.to_record_batch(decoded(run)).equals(batch)
                del batch
                os._exit(0 if same and release_memory() > 0 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="read_batch needs"):
        arrow.to_record_batch(no_rows(NAMES))
