"""Conversion of decoded columns to Arrow over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._builder import ArrowColumns
from pyrocketstore.columns._decode import MapColumn, VarColumn, column_type
from pyrocketstore.errors import MissingExtraError
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    import pyarrow

#: Schemas by their names of columns and of large columns: a caller uses the same ones again and
#: again.
MAX_SCHEMAS = 64
_schemas: dict[tuple[tuple[str, ...], tuple[str, ...]], Any] = {}

#: pyarrow frees the columns of one import together, so a column that a caller keeps keeps the
#: others. Larger batches are imported column by column, which takes longer.
MAX_SHARED_BYTES = 1 << 20

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


def to_record_batch(columns: ArrowColumns) -> pyarrow.RecordBatch:
    """Make an Arrow record batch of decoded columns, which it takes without a copy.

    Returns
    -------
    pyarrow.RecordBatch with int32, int64 (times are Unix ms), string, binary and map from string to
    string columns. A column above 2 GiB has the large form of its type. Every field is nullable.

    Raises
    ------
    MissingExtraError: pyarrow is not installed.
    """
    pa = require_pyarrow()
    schema = _schema(pa, columns)
    if columns.byte_count() <= MAX_SHARED_BYTES:
        return pa.RecordBatch._import_from_c(columns.address, schema)
    take = pa.Array._import_from_c
    arrays = map(take, columns.child_addresses(), schema.types)
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def _schema(pa: Any, columns: ArrowColumns) -> Any:
    key = columns.names, columns.large
    schema = _schemas.get(key)
    if schema is None:
        types = [(name, _type_of(pa, name, columns.large)) for name in columns.names]
        schema = pa.schema(types)
        if len(_schemas) >= MAX_SCHEMAS:
            _schemas.clear()
        _schemas[key] = schema
    return schema


def _type_of(pa: Any, name: str, large: tuple[str, ...]) -> Any:
    """Return the Arrow type of a column of decode_records."""
    kind = column_type(name)
    if kind == "map":
        keys, values = (
            pa.large_string() if f"{name} {part}" in large else pa.string()
            for part in ("keys", "values")
        )
        return pa.map_(keys, values)
    return getattr(pa, f"large_{kind}" if name in large else kind)()


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
