"""Columns of calls that take many rows: lists, NumPy arrays and Arrow arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments.scalars import exact_text
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError


def is_number(value: Any) -> bool:
    """True for one number for all rows, False for a column."""
    return hasattr(type(value), "__index__") and not getattr(value, "ndim", 0)


def column_of(name: str, values: Any, count: int | None) -> list[Any]:
    """A list, NumPy array or Arrow array as a list; None as a list of None, Arrow maps as dicts.

    Raises
    ------
    StoreTypeError: it is not a sequence, or a NumPy array whose entries a list would not have.
    StoreFormatError: it has not `count` entries.
    """
    if type(values) is list and (count is None or len(values) == count):
        return values.copy()  # the caller may change theirs meanwhile
    if values is None and count is not None:
        return [None] * count
    odd = (str, bytes, bytearray, memoryview, Mapping, Set)
    if isinstance(values, odd) or not (
        issubclass(type(values), Iterable) or hasattr(values, "to_pylist")
    ):
        kind = type(values).__name__
        raise StoreTypeError(f"{name} must be a sequence with one entry a message, not {kind}")
    entries: list[Any]
    if hasattr(values, "to_pylist"):
        entries = _arrow_entries(name, values)
    elif issubclass(type(values), np.ndarray):
        entries = _entries(name, values)
    else:
        entries = list(values)
    if count is not None and len(entries) != count:
        raise StoreFormatError(f"{name} has {len(entries)} entries for {count} bodies")
    return entries


def _arrow_entries(name: str, values: Any) -> list[Any]:
    """The entries of an Arrow array. Its offsets are validated first, as Arrow does not do so."""
    if hasattr(values, "validate"):
        try:
            values.validate(full=True)
        except (ValueError, TypeError, LookupError, NotImplementedError) as error:  # Arrow's
            raise StoreFormatError(f"{name} is not a valid Arrow array: {error}") from error
    try:
        entries: list[Any] = values.to_pylist()
    except (ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError) as error:
        raise StoreFormatError(f"{name}: Arrow cannot convert its entries: {error}") from error
    # By the name of the type: a list of pairs from another array is not a map.
    if type(getattr(values, "type", None)).__name__ == "MapType":
        return [None if one is None else _map_of(name, i, one) for i, one in enumerate(entries)]
    return entries


def _map_of(name: str, row: int, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """An entry of an Arrow map array, which Arrow returns as pairs and which may have a name
    twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        text = exact_text(f"a name in {name}[{row}]", key)
        if text in found:
            raise StoreFormatError(f"{name}[{row}]: the name {shown(text)} is there twice")
        found[text] = value
    return found


def _entries(name: str, values: npt.NDArray[Any]) -> list[Any]:
    """The entries of a NumPy array, as they are."""
    if values.ndim != 1:
        raise StoreTypeError(f"{name} must have one dimension, not {values.ndim}")
    if values.dtype.kind == "S":
        raise StoreTypeError(
            f"{name}: NumPy drops the zeros at the end of bytes of dtype {values.dtype.str}: pass "
            "a list, or an array of objects or of V"
        )
    if values.dtype.kind in "mM":
        raise StoreTypeError(f"{name} must not be of dtype {values.dtype}, a time")
    try:
        entries: list[Any] = values.tolist()
    except (SystemError, ValueError) as error:  # characters that no str has
        raise StoreFormatError(f"{name}: NumPy cannot convert its entries: {error}") from error
    return entries
