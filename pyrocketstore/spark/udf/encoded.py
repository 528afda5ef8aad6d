"""Decode Arrow arrays of encoded records, queue units and texts into Arrow arrays.

The functions work on the buffers of whole arrays: no value of a row becomes a Python object.
They run on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import check_records, decode_records, properties_maps, tags_codes
from pyrocketstore.columns.arrow import arrow_array
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.results import Status
from pyrocketstore.spark.fields import FIELDS, Bools, arrow_type, spread, to_fields_batch

if TYPE_CHECKING:
    import pyarrow as pa

STATUS_COUNT = 31
BODY_ERROR = "the body does not inflate"
ERROR_FIELD = "error"
#: Field of a queue unit -> (type in Spark, position in the unit, NumPy's type).
CQ_UNIT_FIELDS = {
    "commitLogOffset": ("bigint", 0, ">i8"),
    "size": ("int", 8, ">i4"),
    "tagsCode": ("bigint", 12, ">i8"),
}


class Values(NamedTuple):
    """The values of an Arrow array of bytes or text.

    `data` is a buffer with value i at positions[i] (int64[n], bytes), sizes[i] (int32[n], bytes)
    long. `present` is bool[n], None where none is null.
    """

    data: Any
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    present: Bools | None


def values_of(array: pa.Array, what: str) -> Values:
    """Return the values of a binary or string array, slices and the large types included.

    Raises
    ------
    StoreFormatError: an array of another type; `what` names it.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        dtype: Any = np.int64
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        dtype = np.int32
    else:
        raise StoreFormatError(f"{what} is a column of binary or string, not {kind}")
    count, first = len(array), array.offset
    _, offset_buffer, data = array.buffers()
    if count == 0 or offset_buffer is None:
        nothing = np.zeros(count, np.int64)
        return Values(b"", nothing, nothing.astype(np.int32), present_of(array))
    offsets = np.frombuffer(offset_buffer, dtype)[first : first + count + 1]
    # No record or text of the format is longer than an int32.
    sizes = np.minimum(np.diff(offsets), 2**31 - 1).astype(np.int32, copy=False)
    positions = offsets[:-1].astype(np.int64)
    return Values(b"" if data is None else data, positions, sizes, present_of(array))


def present_of(array: pa.Array) -> Bools | None:
    """Return the rows that are not null (bool[n]); None where no row is null."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:
        return np.zeros(len(array), np.bool_)  # an array of Arrow's type null
    bits = np.unpackbits(
        np.frombuffer(buffer, np.uint8), count=array.offset + len(array), bitorder="little"
    )
    return bits[array.offset :].astype(np.bool_)


def checked_names(fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested fields; None requests all.

    Raises
    ------
    StoreFormatError: no field, an unknown field, or a repeated field.
    """
    if fields is None:
        return tuple(FIELDS)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if name not in FIELDS:
            raise StoreFormatError(
                f"a message has no field {name!r}; there are {', '.join(FIELDS)}"
            )
    if not names or len(set(names)) != len(names):
        raise StoreFormatError(f"fields are named once each, and one at least: {names}")
    return names


def decode_array(
    array: pa.Array, names: Sequence[str], *, on_error: str, verify_crc: bool
) -> tuple[pa.RecordBatch, pa.Array | None, Bools | None]:
    """Decode an array of records.

    Parameters
    ----------
    array : binary, one record each; bytes after a record in its value are ignored
    names : out of FIELDS
    on_error : "null": a record that is damaged is null in every field, and a body that does not
        inflate is null. "fail": both are errors
    verify_crc : compare each stored body with its CRC

    Returns
    -------
    (batch, errors, present): a row for each value, null in all fields for null; with "null" a
    string array that says what is wrong with a row, else None; the rows that are not null, None for
    all.

    Raises
    ------
    StoreCorruptionError with the row, with "fail". StoreFormatError: another type of array, or more
    than 2 GiB of one field.
    """
    values = values_of(array, "encoded records")
    wanted = [FIELDS[name].column for name in names]
    columns = _valid_columns(values, wanted, verify_crc)
    if columns is not None:
        errors = None if on_error == "fail" else _errors(np.zeros(len(array), np.uint8), None)
        return to_fields_batch(columns, names, None), errors, None
    found = check_records(values.data, values.positions, values.sizes, check_crc=verify_crc)
    if values.present is not None:
        found[~values.present] = Status.OK
    good = found == Status.OK
    if on_error == "fail" and not good.all():
        row = int(np.argmin(good))
        raise StoreCorruptionError(f"record {row} of a batch", -1, status_name(int(found[row])))
    if values.present is not None:
        good &= values.present
    rows = None if good.all() else good
    try:
        columns = decode_records(
            values.data,
            values.positions if rows is None else values.positions[rows],
            values.sizes if rows is None else values.sizes[rows],
            wanted,
            on_bad_body="raise" if on_error == "fail" else "null",
        )
    except StoreCorruptionError as error:
        row = int(np.argmax(good & (values.positions == error.position)))
        raise StoreCorruptionError(f"record {row} of a batch", -1, error.reason) from None
    batch = to_fields_batch(columns, names, rows)
    errors = None
    if on_error != "fail":
        bad_body = None
        if "body" in names and batch.column("body").null_count:
            bad_body = good & ~np.asarray(batch.column("body").is_valid())
        errors = _errors(found, bad_body)
    return batch, errors, values.present


def _valid_columns(
    values: Values, wanted: Sequence[str], verify_crc: bool
) -> dict[str, Any] | None:
    """Return the columns where every value is a valid record; None where a value needs a closer
    look."""
    if values.present is not None:
        return None
    try:
        return decode_records(
            values.data, values.positions, values.sizes, wanted, check_crc=verify_crc
        )
    except StoreCorruptionError:  # the caller checks each row
        return None


def _errors(found: npt.NDArray[np.uint8], bad_body: Bools | None) -> Any:
    """Return the error of each row as strings; null for a valid row."""
    import pyarrow as pa

    if bad_body is None and not found.any():
        return pa.nulls(len(found), pa.string())
    codes = found if bad_body is None else np.where(bad_body, STATUS_COUNT, found)
    texts = [None, *(status_name(status) for status in range(1, STATUS_COUNT)), BODY_ERROR]
    return pa.array(texts, pa.string()).take(pa.array(codes))


def decode_structs(
    array: pa.Array, names: Sequence[str], *, on_error: str, verify_crc: bool
) -> pa.StructArray:
    """Decode an array of records to structs, null for null: see decode_array. With on_error="null"
    the last field is `error`."""
    import pyarrow as pa

    batch, errors, present = decode_array(array, names, on_error=on_error, verify_crc=verify_crc)
    arrays, fields = batch.columns, list(batch.schema)
    if errors is not None:
        arrays, fields = [*arrays, errors], [*fields, pa.field(ERROR_FIELD, pa.string())]
    mask = None if present is None else pa.array(~present)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def decode_record_batches(
    batches: Iterable[pa.RecordBatch],
    kept: Sequence[str],
    names: Sequence[str],
    *,
    on_error: str,
    verify_crc: bool,
) -> Iterator[pa.RecordBatch]:
    """Decode the last column of each batch: see decode_array. The columns before it keep their
    values, under the names `kept`."""
    import pyarrow as pa

    for given in batches:
        column = given.column(given.num_columns - 1)
        batch, errors, _ = decode_array(column, names, on_error=on_error, verify_crc=verify_crc)
        arrays = [*given.columns[:-1], *batch.columns]
        fields = [given.schema.field(i).with_name(name) for i, name in enumerate(kept)]
        fields += batch.schema
        if errors is not None:
            arrays.append(errors)
            fields.append(pa.field(ERROR_FIELD, pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def verify_crcs(array: pa.Array) -> pa.BooleanArray:
    """Return whether each value is a whole record whose body matches its CRC; null for null."""
    import pyarrow as pa

    values = values_of(array, "encoded records")
    found = check_records(values.data, values.positions, values.sizes, check_crc=True)
    mask = None if values.present is None else ~values.present
    return pa.array(found == Status.OK, mask=mask)


def decode_cq_units(array: pa.Array) -> pa.StructArray:
    """Decode queue units of 20 bytes to structs of CQ_UNIT_FIELDS; null for null and for any other
    length."""
    import pyarrow as pa

    values = values_of(array, "queue units")
    there = values.sizes == CQ_STORE_UNIT_SIZE
    if values.present is not None:
        there &= values.present
    data = np.frombuffer(values.data, np.uint8)
    units = np.zeros((len(there), CQ_STORE_UNIT_SIZE), np.uint8)
    units[there] = data[values.positions[there, None] + np.arange(CQ_STORE_UNIT_SIZE)]
    arrays, fields = [], []
    for name, (ddl, at, dtype) in CQ_UNIT_FIELDS.items():
        width = np.dtype(dtype).itemsize
        column = np.ascontiguousarray(units[:, at : at + width]).view(dtype)[:, 0]
        arrays.append(pa.array(column.astype(column.dtype.newbyteorder("="))))
        fields.append(pa.field(name, arrow_type(ddl)))
    mask = None if there.all() else pa.array(~there)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def tags_code_array(array: pa.Array) -> pa.Int64Array:
    """Return the tags code of each of these tags; 0 for null, as for no tags."""
    import pyarrow as pa

    values = values_of(array, "tags")
    codes = tags_codes(values.data, values.positions, values.sizes)
    if values.present is not None:
        codes[~values.present] = 0
    return pa.array(codes)


def properties_map_array(array: pa.Array) -> pa.MapArray:
    """Return the map of each properties text; null for null."""
    values = values_of(array, "properties")
    positions, sizes = values.positions, values.sizes
    if values.present is None:
        return arrow_array(properties_maps(values.data, positions, sizes))
    maps = properties_maps(values.data, positions[values.present], sizes[values.present])
    return arrow_array(spread(maps, values.present))
