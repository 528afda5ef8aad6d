"""Record batches that are made of NumPy columns, array by array: what `read_batch` must return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyrocketstore.columns.arrow import arrow_array


def batch_of(columns: Mapping[str, Any]) -> Any:
    """Return the columns of decode_records as a record batch."""
    import pyarrow as pa

    arrays = [arrow_array(column) for column in columns.values()]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
