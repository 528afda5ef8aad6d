"""Fields of a message as Spark shows them, and their Arrow arrays of decoded columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import MapColumn, VarColumn
from pyrocketstore.columns.arrow import Column, arrow_array
from pyrocketstore.errors import StoreFormatError

if TYPE_CHECKING:
    import pyarrow

Bools = npt.NDArray[np.bool_]

#: Limits of milliseconds whose microseconds fit into an int64.
MS_MAX = (2**63 - 1) // 1000
MS_MIN = -MS_MAX


@dataclasses.dataclass(frozen=True)
class Field:
    """`column` is a name of decode_records, `spark_ddl` a type of Spark SQL."""

    column: str
    spark_ddl: str

    @property
    def arrow_type(self) -> pyarrow.DataType:
        """The type of the field in Arrow."""
        return arrow_type(self.spark_ddl)


FIELDS: dict[str, Field] = {
    "topic": Field("topic", "string"),
    "queueId": Field("queue_id", "int"),
    "queueOffset": Field("queue_offset", "bigint"),
    "commitLogOffset": Field("phy_offset", "bigint"),
    "storeSize": Field("size", "int"),
    "tags": Field("tags", "string"),
    "keys": Field("keys", "string"),
    "uniqKey": Field("uniq_key", "string"),
    "flag": Field("flag", "int"),
    "sysFlag": Field("sys_flag", "int"),
    "bornTimestamp": Field("born_timestamp", "timestamp"),
    "storeTimestamp": Field("store_timestamp", "timestamp"),
    "bornHost": Field("born_host", "string"),
    "storeHost": Field("store_host", "string"),
    "reconsumeTimes": Field("reconsume_times", "int"),
    "preparedTransactionOffset": Field("prepared_transaction_offset", "bigint"),
    "bodyCRC": Field("body_crc", "int"),
    "msgId": Field("msg_id", "string"),
    "properties": Field("properties_map", "map<string,string>"),
    "body": Field("body", "binary"),
}


@functools.cache
def arrow_type(ddl: str) -> Any:
    """Return the Arrow type that Spark expects from a Python worker for a Spark type."""
    import pyarrow as pa

    return {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }[ddl]


@functools.lru_cache(64)
def arrow_schema(names: tuple[str, ...]) -> pyarrow.Schema:
    """Return the Arrow schema of fields; all may be null."""
    import pyarrow as pa

    return pa.schema([pa.field(name, FIELDS[name].arrow_type) for name in names])


def to_fields_batch(
    columns: Mapping[str, Column], names: Sequence[str], present: Bools | None = None
) -> pyarrow.RecordBatch:
    """Return decoded columns as the fields `names`, without copying columns of variable size.

    Parameters
    ----------
    columns : result of decode_records, at least the columns of these fields
    names : names of FIELDS
    present : bool[n] or None: the rows of the batch to which the columns belong, in their order;
        the others are null. None: all rows

    Returns
    -------
    pyarrow.RecordBatch of arrow_schema(names). A time is null where its microseconds
    are not an int64.

    Raises
    ------
    StoreFormatError: a column of more than 2 GiB, which Spark does not take.
    """
    import pyarrow as pa

    arrays = [field_array(name, columns[FIELDS[name].column], present) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(tuple(names)))


def field_array(name: str, column: Column, present: Bools | None = None) -> Any:
    """Return one column of to_fields_batch."""
    if isinstance(column, np.ndarray):
        return fixed_array(FIELDS[name].arrow_type, column, present)
    _refuse_large(name, column)
    return arrow_array(column if present is None else spread(column, present))


def _refuse_large(name: str, column: VarColumn | MapColumn) -> None:
    parts = (column.keys, column.values) if isinstance(column, MapColumn) else (column,)
    for part in parts:
        if part.offsets.dtype == np.int64:
            raise StoreFormatError(
                f"{name} has {len(part.data)} bytes in one batch of {len(column)} rows, and Spark "
                "takes 2 GiB: make batches smaller (spark.sql.execution.arrow.maxRecordsPerBatch)"
            )


def fixed_array(kind: Any, values: npt.NDArray[Any], present: Bools | None) -> Any:
    """Return an Arrow array of numbers, or of times in Unix ms: null outside of Spark's range.

    `present` (bool[n]) marks the rows that have one of the `values`; None: all.
    """
    import pyarrow as pa

    there: Bools | None = None
    if pa.types.is_timestamp(kind) and len(values):
        if int(values.min()) < MS_MIN or int(values.max()) > MS_MAX:
            there = (values >= MS_MIN) & (values <= MS_MAX)
        values = values * np.int64(1000)
    if present is not None:
        full = np.zeros(len(present), values.dtype)
        full[present] = values
        there = present if there is None else _spread_bools(there, present)
        values = full
    nulls = 0 if there is None else len(there) - int(np.count_nonzero(there))
    validity = pa.py_buffer(_bitmap(there)) if there is not None and nulls else None
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=nulls)


def _bitmap(there: Bools) -> npt.NDArray[np.uint8]:
    return np.packbits(there, bitorder="little")


def _spread_bools(some: Bools, present: Bools) -> Bools:
    full = np.zeros(len(present), np.bool_)
    full[present] = some
    return full


def spread(column: VarColumn | MapColumn, present: Bools) -> VarColumn | MapColumn:
    """Return the column with absent rows inserted between its own."""
    rows = np.zeros(len(present) + 1, np.int64)
    np.cumsum(present, out=rows[1:])
    there = present
    if column.validity is not None:
        own = np.unpackbits(column.validity, count=len(column), bitorder="little")
        there = _spread_bools(own.astype(np.bool_), present)
    nulls = len(there) - int(np.count_nonzero(there))
    if isinstance(column, MapColumn):
        return MapColumn(column.offsets[rows], column.keys, column.values, _bitmap(there), nulls)
    offsets = column.offsets[rows]
    return VarColumn(offsets, column.data, _bitmap(there), nulls, column.is_text)
