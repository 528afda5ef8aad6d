"""Conversion of decoded columns to Arrow record batches over the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import MapColumn, VarColumn
from pyrocketstore.errors import MissingExtraError
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    import pyarrow

#: Schemas by the names and types of their columns: a caller uses the same ones again and again.
MAX_SCHEMAS = 64
_schemas: dict[tuple[tuple[str, str], ...], Any] = {}

_INTEGERS = {np.dtype(np.int32): "int32", np.dtype(np.int64): "int64"}

Column = npt.NDArray[Any] | VarColumn | MapColumn


def require_pyarrow(what: str = "read_batch") -> Any:
    """Import the module pyarrow.

    Raises
    ------
    MissingExtraError: pyarrow is not installed; `what` names the requested feature.
    """
    try:
        return imported("pyarrow")
    except ImportError as error:
        raise MissingExtraError(what, "arrow") from error


def to_record_batch(
    columns: Mapping[str, Column], metadata: Mapping[str, object] | None = None
) -> pyarrow.RecordBatch:
    """Convert the columns of decode_records to an Arrow record batch.

    Parameters
    ----------
    columns : name -> int32[n], int64[n], VarColumn or MapColumn, all of one length
    metadata : name -> value for the schema; both are converted to UTF-8 text

    Returns
    -------
    pyarrow.RecordBatch with int32, int64 (times are Unix ms), string, binary and map from string to
    string columns. A column above 2 GiB has the large form of its type. Every field is nullable.
    The batch shares the memory of the arrays.

    Raises
    ------
    MissingExtraError: pyarrow is not installed.
    """
    pa = require_pyarrow()
    arrays = [_array_of(pa, column) for column in columns.values()]
    kinds = tuple([(name, _kind_of(column)) for name, column in columns.items()])
    schema = _schemas.get(kinds)
    if schema is None:
        fields = [
            pa.field(name, array.type, nullable=True)
            for name, array in zip(columns, arrays, strict=True)
        ]
        schema = pa.schema(fields)
        if len(_schemas) >= MAX_SCHEMAS:
            _schemas.clear()
        _schemas[kinds] = schema
    if metadata:
        texts = {str(k).encode(): str(v).encode() for k, v in metadata.items()}
        schema = schema.with_metadata(texts)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kind_of(column: Column) -> str:
    """Return a text that differs wherever the Arrow type of a column does."""
    if isinstance(column, VarColumn):
        return f"{column.is_text}{column.offsets.dtype.char}"
    if isinstance(column, MapColumn):
        return f"map {_kind_of(column.keys)} {_kind_of(column.values)}"
    return column.dtype.char


def arrow_array(column: Column) -> Any:
    """Convert one column of decode_records to a pyarrow.Array. Raises MissingExtraError."""
    return _array_of(require_pyarrow(), column)


def _array_of(pa: Any, column: Column) -> Any:
    if isinstance(column, VarColumn):
        return _var_array(pa, column)
    if isinstance(column, MapColumn):
        return _map_array(pa, column)
    kind = getattr(pa, _INTEGERS[column.dtype])()
    buffers = [None, pa.py_buffer(np.ascontiguousarray(column))]
    return pa.Array.from_buffers(kind, len(column), buffers, 0)


def _validity(pa: Any, column: VarColumn | MapColumn) -> Any:
    return None if column.validity is None else pa.py_buffer(column.validity)


def _var_array(pa: Any, column: VarColumn) -> Any:
    large = column.offsets.dtype == np.int64
    if column.is_text:
        kind = pa.large_string() if large else pa.string()
    else:
        kind = pa.large_binary() if large else pa.binary()
    buffers = [_validity(pa, column), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count)


def _map_array(pa: Any, column: MapColumn) -> Any:
    keys, values = _var_array(pa, column.keys), _var_array(pa, column.values)
    kind = pa.map_(keys.type, values.type)
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields)
    buffers = [_validity(pa, column), pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(
        kind, len(column), buffers, null_count=column.null_count, children=[entries]
    )
