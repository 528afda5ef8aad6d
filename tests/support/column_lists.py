"""Columns as plain lists."""

from __future__ import annotations

from typing import Any

from pyrocketstore.columns._decode import MapColumn, VarColumn


def column_list(column: Any) -> list[Any]:
    """Return the values of a column of any type."""
    return column.to_list() if isinstance(column, VarColumn | MapColumn) else column.tolist()
