"""Compare our decoding functions in Spark with a plain Python function that reads the same fields.

    python -m bench.spark.udf                measure, about four minutes; print tables
    python -m bench.spark.udf --smoke        small sizes, as a test; the answers must agree

Each variant decodes the rows of one Parquet file to a struct, which Spark's `noop` discards. Rounds
of the variants alternate after one warm-up round. Before that, all variants must agree on a hash
over all fields of all rows. The plain function receives its values through Arrow, Spark's default,
or pickled; ratios refer to the first.

Two variants decode one batch and return its rows for every further batch, through the kinds of
function that ours use. They show the cost of moving the column to Python and the fields back, which
limits our functions. `scan` only reads the column.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import struct
import tempfile
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame

from bench.spark.session import Round, median_seconds, noop, rounds, session, speedups

FIELDS = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp", "tags", "keys",
          "body")  # fmt: skip
SCHEMA = (
    "topic string, queueId int, queueOffset bigint, commitLogOffset bigint,"
    " storeTimestamp timestamp, tags string, keys string, body binary"
)
BASE_MS = 1_700_000_000_000
#: Wanted speed, in multiples of the plain function.
GOAL = 4.0
PLAIN = "plain Python"
#: Our function -> a function of the same kind that returns finished rows.
LIMITS = {"decode_message": "finished structs", "decode_batches": "finished batches"}
#: Size of the bodies in bytes, and whether they are decoded.
SHAPES = ((1024, True), (1024, False), (128, True))
#: A row whose limit is at most so many times as fast has reached it.
CLOSED = 1.15
NO_ANSWER = (*LIMITS.values(), "scan")
BODY_DDL = ", body binary"


# ---- the rows ----------------------------------------------------------------------------------


def encoded_records(count: int, body_size: int) -> npt.NDArray[np.uint8]:
    """Return records of one size, uint8[count, size]: body, tag, key and unique key."""
    properties = b"TAGS\x01TagA\x02KEYS\x01k00000000\x02UNIQ_KEY\x01" + b"AC11" * 8
    size = 91 + body_size + 1 + len(properties)
    rows = np.zeros((count, size), np.uint8)

    def put(at: int, raw: bytes) -> None:
        rows[:, at : at + len(raw)] = np.frombuffer(raw, np.uint8)

    def put_numbers(at: int, dtype: str, numbers: npt.NDArray[np.int64]) -> None:
        raw = numbers.astype(dtype).view(np.uint8).reshape(count, -1)
        rows[:, at : at + raw.shape[1]] = raw

    number = np.arange(count, dtype=np.int64)
    rows[:, 88 : 88 + body_size] = np.random.default_rng(42).integers(
        0, 256, (count, body_size), np.uint8
    )
    checksums = [zlib.crc32(row[88 : 88 + body_size]) & 0x7FFFFFFF for row in rows]
    put(0, struct.pack(">iI", size, 0xDAA320A7))
    put_numbers(8, ">i4", np.array(checksums, np.int64))
    put_numbers(12, ">i4", number % 4)
    put_numbers(20, ">i8", number // 4)
    put_numbers(28, ">i8", number * size)
    put(40, struct.pack(">q", BASE_MS) + bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F)))
    put_numbers(56, ">i8", BASE_MS + number)
    put(64, bytes((10, 0, 0, 2, 0, 0, 0x2A, 0x9F)))
    put(84, struct.pack(">i", body_size))
    put(88 + body_size, b"\x01T" + struct.pack(">h", len(properties)) + properties)
    digits = 88 + body_size + 4 + len(b"TAGS\x01TagA\x02KEYS\x01k")
    for place in range(8):
        rows[:, digits + place] = 48 + number // 10 ** (7 - place) % 10
    return rows


def write_rows(path: Path, count: int, body_size: int) -> int:
    """Write a Parquet file of the records; return their size in bytes."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = encoded_records(count, body_size)
    offsets = np.arange(count + 1, dtype=np.int32) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))]
    values = pa.Array.from_buffers(pa.binary(), count, buffers)
    table = pa.table({"id": np.arange(count), "value": values})
    pyarrow.parquet.write_table(
        table, path, compression="none", use_dictionary=False, row_group_size=max(count // 4, 1)
    )
    return rows.size


# ---- the variants ------------------------------------------------------------------------------


def plain_decode(value: bytes, with_body: bool = True) -> tuple[Any, ...]:
    """Return the FIELDS of one record."""
    _, _, _, queue_id, _, queue_offset, phy_offset, sys_flag = struct.unpack_from(
        ">iiiiiqqi", value
    )
    at = 68 if sys_flag & 0x10 else 56
    (store_timestamp,) = struct.unpack_from(">q", value, at)
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    (body_size,) = struct.unpack_from(">i", value, at)
    body = value[at + 4 : at + 4 + body_size] if with_body else b""
    at += 4 + body_size
    topic = value[at + 1 : at + 1 + value[at]].decode("utf-8", "replace")
    at += 1 + value[at]
    (properties_size,) = struct.unpack_from(">h", value, at)
    properties = {}
    for entry in value[at + 2 : at + 2 + properties_size].decode("utf-8", "replace").split("\x02"):
        name, _, text = entry.partition("\x01")
        properties[name] = text
    time_ = datetime.datetime.fromtimestamp(store_timestamp / 1000, datetime.UTC)
    found = (
        topic, queue_id, queue_offset, phy_offset, time_, properties.get("TAGS"),
        properties.get("KEYS"),
    )  # fmt: skip
    return (*found, zlib.decompress(body) if sys_flag & 1 else body) if with_body else found


def repeated(given: Iterator[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield for each of `given` a slice of `make` of the longest one so far."""
    made: Any = None
    for one in given:
        if made is None or len(one) > len(made):
            made = make(one)
        yield made.slice(0, len(one))


def variants(with_body: bool) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return by name the functions that decode the column; `scan` returns the column."""
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf, udf

    from pyrocketstore.spark.udf import decode_batches, decode_message, encoded

    fields = FIELDS if with_body else FIELDS[:-1]
    schema = SCHEMA if with_body else SCHEMA.removesuffix(BODY_DDL)

    def plain(use_arrow: bool) -> Callable[[DataFrame], DataFrame]:
        # A lambda has no type hints; Spark does not understand the hint of a tuple.
        made = udf(lambda value: plain_decode(value, with_body), schema, useArrow=use_arrow)
        return lambda df: df.select(made("value").alias("m"))

    def structs(arrays: Iterator[Any]) -> Iterator[Any]:
        def make(array: Any) -> Any:
            return encoded.decode_structs(array, fields, on_error="fail", verify_crc=False)

        return repeated(arrays, make)

    def batches(given: Iterator[Any]) -> Iterator[Any]:
        def make(batch: Any) -> Any:
            made = encoded.decode_record_batches(
                [batch], (), fields, on_error="fail", verify_crc=False
            )
            return next(made)

        return repeated(given, make)

    kind = types.GenericAlias(Iterator, pa.Array)
    structs.__annotations__ = {"arrays": kind, "return": kind}
    finished = arrow_udf(structs, f"struct<{schema}>")

    def with_message(df: DataFrame) -> DataFrame:
        return df.select(decode_message("value", fields, "fail").alias("m"))

    return {
        PLAIN: plain(True),
        f"{PLAIN}, pickled": plain(False),
        "decode_message": with_message,
        "decode_batches": lambda df: decode_batches(df, "value", fields, on_error="fail"),
        LIMITS["decode_message"]: lambda df: df.select(finished("value").alias("m")),
        LIMITS["decode_batches"]: lambda df: df.mapInArrow(batches, schema),
        "scan": lambda df: df,
    }


def answer(df: DataFrame) -> int:
    """Return a hash over all fields of all rows."""
    from pyspark.sql import functions

    df = df.select("m.*") if df.columns == ["m"] else df
    hashed = functions.xxhash64(*df.columns).alias("hash")
    found = df.select(hashed).agg(functions.bit_xor("hash"), functions.count("hash")).first()
    assert found is not None
    return hash(tuple(found))


# ---- measuring ---------------------------------------------------------------------------------


def measure(
    count: int, body_size: int, with_body: bool, pairs: int, cores: int
) -> tuple[dict[str, list[Round]], int]:
    """Return the rounds of each variant, and the size of the records in bytes.

    Raises AssertionError if two variants give different answers.
    """
    with tempfile.TemporaryDirectory(prefix="spark-udf-") as home:
        path = Path(home, "rows.parquet")
        size = write_rows(path, count, body_size)
        spark = session(cores)
        try:
            df = spark.read.parquet(str(path)).select("value")
            made = variants(with_body)
            answers = {
                name: answer(make(df)) for name, make in made.items() if name not in NO_ANSWER
            }
            assert len(set(answers.values())) == 1, answers
            work = {name: (lambda make=make: noop(make(df))) for name, make in made.items()}
            return rounds(work, pairs), size
        finally:
            spark.stop()


def table(found: dict[str, list[Round]], size: int, count: int, with_body: bool) -> list[str]:
    """Return the lines of a table: rates, and ratios to the plain function."""
    fields = "bodies decoded" if with_body else "bodies not decoded"
    lines = [f"{count:,} records of {size // count} bytes, {fields}.", ""]
    lines += ["| variant | MiB/s | rows/s | ÷ plain Python | goal |", "|---|---|---|---|---|"]
    ratios = {name: statistics.median(speedups(each, found[PLAIN])) for name, each in found.items()}
    for name, each in found.items():
        seconds = median_seconds(each)
        note = ""
        if name in LIMITS:
            left = ratios[LIMITS[name]] / ratios[name]
            note = f"{GOAL:g}"
            if ratios[name] < GOAL:
                note += f"; limit {left:.2f} ×" + (": at the limit" if left < CLOSED else "")
        lines.append(
            f"| {name} | {size / 2**20 / seconds:,.0f} | {count / seconds:,.0f} | "
            f"{ratios[name]:.2f} | {note} |"
        )
    return lines


def main() -> None:
    """Run the measurements that the command line selects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, as a test")
    parser.add_argument("--count", type=int, help="records (262144; smoke: 2000)")
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up (5; smoke: 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores for Spark (2)")
    arguments = parser.parse_args()
    count = arguments.count or (2000 if arguments.smoke else 262_144)
    rounds = arguments.rounds or (1 if arguments.smoke else 5)
    for body_size, with_body in SHAPES:
        measured, size = measure(count, body_size, with_body, rounds, arguments.cores)
        print(*table(measured, size, count, with_body), "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
