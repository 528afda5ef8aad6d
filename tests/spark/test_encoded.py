"""Goal: arrays of encoded records decode to the fields that a plain reader finds, in every array
layout; damage is reported or raised, as requested, and affects no other row.
Method: random and golden records in sliced, large and chunked arrays with nulls; mutants of
these records."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest

from encoded_records import golden_records, plain_message, some_records
from pyrocketstore.columns._decode import VarColumn
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from support import oracle

pa = pytest.importorskip("pyarrow")

from pyrocketstore.spark.fields import FIELDS, arrow_schema, to_fields_batch  # noqa: E402
from pyrocketstore.spark.udf import encoded  # noqa: E402

ALL = tuple(FIELDS)
TIMES = ("bornTimestamp", "storeTimestamp")
VERDICTS = {"torn": 3, "bad_magic": 4, "bad_crc": 5, "bad_size": 6, "blank": 1, "end": 2}


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch of fields; times as microseconds, maps as dicts."""
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name in TIMES:
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
        if name == "properties":
            columns[name] = [None if m is None else dict(m) for m in columns[name]]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def wanted_of(value: bytes | None, names: tuple[str, ...], check_crc: bool) -> dict[str, Any]:
    """The row of one value, and its error, with on_error="null"."""
    nothing: dict[str, Any] = dict.fromkeys(names)
    if value is None:
        return {**nothing, "error": None}
    verdict, size = oracle.check_record(value, -1, check_crc)
    if verdict != "ok":
        return {**nothing, "error": status_name(VERDICTS[verdict])}
    message = plain_message(value[:size])
    bad = "body" in names and message["body"] is None
    return {name: message[name] for name in names} | {"error": encoded.BODY_ERROR if bad else None}


def check(array: Any, values: list[bytes | None], names: tuple[str, ...], crc: bool) -> None:
    batch, errors, present = encoded.decode_array(array, names, on_error="null", verify_crc=crc)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(names))
    found = zip(rows_of(batch), errors.to_pylist(), strict=True)
    got = [row | {"error": error} for row, error in found]
    assert got == [wanted_of(value, names, crc) for value in values]
    if present is None:
        assert None not in values
    else:
        assert present.tolist() == [value is not None for value in values]
    structs = encoded.decode_structs(array, names, on_error="null", verify_crc=crc)
    structs.validate(full=True)
    assert structs.is_valid().to_pylist() == [value is not None for value in values]
    assert structs.type == pa.struct([*arrow_schema(names), pa.field("error", pa.string())])


def damaged(rng: random.Random, records: list[bytes]) -> list[bytes | None]:
    """The records with nulls, damage and longer values among them."""
    values: list[bytes | None] = []
    for record in records:
        kind = rng.randrange(8)
        if kind == 0:
            values.append(None)
        elif kind == 1:
            values.append(record[: rng.randrange(len(record))])
        elif kind == 2:
            at = rng.randrange(len(record))
            values.append(record[:at] + rng.randbytes(1) + record[at + 1 :])
        elif kind == 3:
            values.append(record + rng.randbytes(20))
        elif kind == 4:
            values.append(rng.choice((b"", bytes(100), oracle.blank(40))))
        else:
            values.append(record)
    return values


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_random_records(seed: int, kind: Any) -> None:
    rng = random.Random(f"{seed} {kind}")
    records = some_records(seed, 60)
    for values in (records, damaged(rng, records), [None] * 5, []):
        names = tuple(rng.sample(ALL, rng.randrange(1, len(ALL))))
        array = pa.array(values, kind)
        check(array, list(values), ALL, False)
        check(array, list(values), names, True)
        for first, count in ((3, 40), (8, 8), (7, 0), (59, 9)):
            check(array[first : first + count], list(values)[first : first + count], names, False)


@pytest.mark.parametrize("name", ["mixed", "x-hosts", "broker-clean"])
def test_golden_stores(name: str) -> None:
    records = golden_records(name)
    assert len(records) > 100
    check(pa.array(records, pa.binary()), list(records), ALL, True)


def test_chunks() -> None:
    records = some_records(9, 30)
    chunked = pa.chunked_array([records[:10], [], records[10:]], pa.binary())
    for chunk, values in zip(chunked.chunks, (records[:10], [], records[10:]), strict=True):
        check(chunk, list(values), ALL, False)


def test_other_arrays_are_refused() -> None:
    for array in (pa.array([1]), pa.array([[b"a"]]), pa.array([b"a"]).dictionary_encode()):
        with pytest.raises(StoreFormatError, match="binary or string"):
            encoded.decode_array(array, ALL, on_error="null", verify_crc=False)


def test_the_body_is_not_copied_where_nothing_is_null() -> None:
    """Fields that were not requested are not decoded."""
    record = oracle.encode_record(oracle.Record(body=b"not zlib", sys_flag=oracle.COMPRESSED))
    array = pa.array([record, None])
    batch, errors, _ = encoded.decode_array(array, ["topic"], on_error="null", verify_crc=False)
    assert batch.column("topic").to_pylist() == ["T", None]
    assert errors.null_count == 2
    batch, errors, _ = encoded.decode_array(array, ["body"], on_error="null", verify_crc=False)
    assert batch.column("body").to_pylist() == [None, None]
    assert errors.to_pylist() == [encoded.BODY_ERROR, None]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"cut", "torn"),
        (oracle.encode_record(oracle.Record(body=b"x", crc=1)), "CRC"),
        (oracle.encode_record(oracle.Record(body=b"not zlib", sys_flag=1)), "does not inflate"),
    ],
    ids=["cut", "sum", "body"],
)
def test_damage_can_be_an_error_that_names_the_row(bad: bytes, reason: str) -> None:
    good = oracle.encode_record(oracle.Record(body=b"body"))
    valid = pa.array([None, good, None, good])
    batch, errors, present = encoded.decode_array(valid, ALL, on_error="fail", verify_crc=True)
    assert (batch.num_rows, errors, present.tolist()) == (4, None, [False, True, False, True])
    structs = encoded.decode_structs(valid, ["topic"], on_error="fail", verify_crc=False)
    assert structs.to_pylist() == [None, {"topic": "T"}, None, {"topic": "T"}]
    array = pa.array([None, good, None, bad, good, bad])
    with pytest.raises(StoreCorruptionError, match=f"record 3 of a batch: .*{reason}"):
        encoded.decode_array(array, ALL, on_error="fail", verify_crc=True)


def test_a_record_of_the_largest_size() -> None:
    body = random.Random(1).randbytes(oracle.MAX_MESSAGE_SIZE - 91)
    record = oracle.encode_record(oracle.Record(topic=b"", body=body))
    assert len(record) == oracle.MAX_MESSAGE_SIZE
    check(pa.array([record]), [record], ALL, True)


def test_times_that_spark_does_not_have_are_null() -> None:
    limit = (2**63 - 1) // 1000
    times = [0, -1, limit, limit + 1, -limit, -limit - 1, 2**63 - 1, -(2**63)]
    batch = to_fields_batch({"born_timestamp": np.array(times, np.int64)}, ["bornTimestamp"])
    column = batch.column("bornTimestamp")
    column.validate(full=True)
    got = column.cast(pa.int64()).to_pylist()
    assert got == [0, -1000, limit * 1000, None, -limit * 1000, None, None, None]
    present = np.array([True, False, True, True])
    three = np.array([2**63 - 1, 5, 6], np.int64)
    batch = to_fields_batch({"born_timestamp": three}, ["bornTimestamp"], present)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [None, None, 5000, 6000]


def test_a_field_of_more_than_two_gibibytes_is_refused() -> None:
    large = VarColumn(np.array([0, 1], np.int64), np.zeros(1, np.uint8), None, 0, False)
    with pytest.raises(StoreFormatError, match=r"body has 1 bytes.*maxRecordsPerBatch"):
        to_fields_batch({"body": large}, ["body"])


@pytest.mark.parametrize("fields", [[], ["topic", "topic"], ["brokerName"], "Topic", [1]])
def test_fields_that_there_are_not(fields: Any) -> None:
    with pytest.raises(StoreFormatError):
        encoded.checked_names(fields)


def test_names_of_fields() -> None:
    assert encoded.checked_names(None) == ALL
    assert encoded.checked_names("topic") == ("topic",)
    assert encoded.checked_names(["body", "topic"]) == ("body", "topic")


# ---- queue units, tags, properties, sums -------------------------------------------------------


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_queue_units(kind: Any) -> None:
    rng = random.Random(3)
    values: list[bytes | None] = [rng.randbytes(20) for _ in range(50)]
    values[5:20:3] = [None, b"", b"short", rng.randbytes(19), rng.randbytes(21)]
    wanted = [
        None
        if value is None or len(value) != 20
        else {
            "commitLogOffset": int.from_bytes(value[:8], "big", signed=True),
            "size": int.from_bytes(value[8:12], "big", signed=True),
            "tagsCode": int.from_bytes(value[12:], "big", signed=True),
        }
        for value in values
    ]
    array = pa.array(values, kind)
    for first, count in ((0, 50), (0, 5), (4, 20), (9, 0)):
        units = encoded.decode_cq_units(array[first : first + count])
        units.validate(full=True)
        assert units.to_pylist() == wanted[first : first + count]


TEXTS = ["TagA", "", None, "😀", "polygenelubricants", "a\x01b\x02a\x01c", "x" * 5000]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_tags_codes_and_maps(kind: Any) -> None:
    array = pa.array(TEXTS, kind)
    wanted = [0 if text is None else oracle.java_hash(text) for text in TEXTS]
    maps = [None if text is None else oracle.string_to_properties(text) for text in TEXTS]
    for first, count in ((0, 7), (1, 3), (3, 2), (7, 0)):
        part = array[first : first + count]
        assert encoded.tags_code_array(part).to_pylist() == wanted[first : first + count]
        made = encoded.properties_map_array(part)
        made.validate(full=True)
        assert made.type == pa.map_(pa.string(), pa.string())
        got = [None if m is None else dict(m) for m in made.to_pylist()]
        assert got == maps[first : first + count]


def hidden(array: Any, rows: list[bool]) -> Any:
    """The array with nulls where `rows` says no, over the bytes of its values."""
    validity = np.packbits(rows, bitorder="little")
    buffers = [pa.py_buffer(validity), *array.buffers()[1:]]
    return pa.Array.from_buffers(array.type, len(array), buffers)


def test_bytes_under_a_null_are_not_looked_at() -> None:
    rows = [True, False, True, False]
    tags = hidden(pa.array(["TagA", "TagB", "", "a\x01b"]), rows)
    assert encoded.tags_code_array(tags).to_pylist() == [2598919, 0, 0, 0]
    assert encoded.properties_map_array(tags).to_pylist() == [[], None, [], None]
    units = hidden(pa.array([bytes(20)] * 4), rows)
    assert encoded.decode_cq_units(units).null_count == 2
    good = oracle.encode_record(oracle.Record(body=b"body"))
    records = hidden(pa.array([good, good, good, b"cut"]), rows)
    check(records, [good, None, good, None], ALL, True)
    assert encoded.verify_crcs(records).to_pylist() == [True, None, True, None]
    structs = encoded.decode_structs(records, ["topic"], on_error="fail", verify_crc=True)
    assert structs.null_count == 2


@pytest.mark.bad_input
def test_sums() -> None:
    good = oracle.encode_record(oracle.Record(body=b"body"))
    wrong = oracle.encode_record(oracle.Record(body=b"body", crc=7))
    empty = oracle.encode_record(oracle.Record(crc=7))  # 4.9.3 checks no sum of no body
    values = [good, wrong, None, empty, b"cut", good]
    wanted = [True, False, None, True, False, True]
    assert encoded.verify_crcs(pa.array(values)).to_pylist() == wanted
    assert encoded.verify_crcs(pa.array(values)[1:4]).to_pylist() == wanted[1:4]
    assert encoded.verify_crcs(pa.array([], pa.binary())).to_pylist() == []


def test_a_bomb_is_an_error_of_its_row() -> None:
    deflater = zlib.compressobj(9)
    piece = bytes(1 << 20)
    body = b"".join(deflater.compress(piece) for _ in range(65)) + deflater.flush()
    bomb = oracle.encode_record(oracle.Record(body=body, sys_flag=oracle.COMPRESSED))
    batch, errors, _ = encoded.decode_array(
        pa.array([bomb]), ["body"], on_error="null", verify_crc=True
    )
    assert batch.column("body").null_count == 1
    assert errors.to_pylist() == [encoded.BODY_ERROR]


def test_the_package_needs_neither_spark_nor_arrow() -> None:
    code = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'pandas'): sys.modules[name] = None\n"
        "import pyrocketstore, pyrocketstore.spark as spark, pyrocketstore.spark.udf as udf\n"
        "from pyrocketstore.spark import pipeline, rebuild, verify\n"
        "from pyrocketstore.errors import MissingExtraError\n"
        "for call in (lambda: udf.decode_message('v'), lambda: udf.tags_code('v'),\n"
        "             lambda: udf.decode_pandas([]), lambda: udf.decode_batches(None, 'v'),\n"
        "             lambda: udf.register_functions(None), lambda: spark.register(None),\n"
        "             lambda: pipeline.export(None, '.', 'lake'),\n"
        "             lambda: verify.verify(None, '.'), lambda: rebuild.rebuild(None, '.', 'o')):\n"
        "    try: call()\n"
        "    except MissingExtraError as error: assert error.extra == 'spark', error.extra\n"
        "    else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
