"""Functions for Spark SQL over columns of encoded records, queue units, tags and properties.

`functions` builds the columns on the driver; `encoded` decodes Arrow arrays on the executors.
This package exports the functions, and loads them on first use.

Of the engine, this folder imports only folders up to `columns/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrocketstore.spark.udf.functions import (
        decode_batches,
        decode_cq_unit,
        decode_message,
        decode_pandas,
        properties_map,
        register_functions,
        tags_code,
        verify_crc,
    )

__all__ = [
    "decode_batches",
    "decode_cq_unit",
    "decode_message",
    "decode_pandas",
    "properties_map",
    "register_functions",
    "tags_code",
    "verify_crc",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyrocketstore.spark.udf import functions

    return getattr(functions, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
