"""The packages of the extra `spark`."""

from __future__ import annotations

from typing import Any

from pyrocketstore.errors import MissingExtraError


def require_packages(what: str) -> tuple[Any, Any]:
    """Return the modules pyarrow and pyspark.sql.types.

    Parameters
    ----------
    what : the requested feature, for the error

    Raises MissingExtraError.
    """
    try:
        import pyarrow
        from pyspark.sql import types as sql_types
    except ImportError as error:
        raise MissingExtraError(what, "spark") from error
    return pyarrow, sql_types
