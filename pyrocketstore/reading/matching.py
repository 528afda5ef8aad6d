"""Messages, and rows of a batch, whose properties pass an SQL92 filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import COLUMNS, PROPERTIES_MAP, column_names
from pyrocketstore.errors import StoreTypeError
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.reading.skipped import SkippedMessages

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.record._message import MessageExt


class _Reader(Protocol):
    @property
    def skipped(self) -> SkippedMessages: ...
    def __next__(self) -> MessageExt: ...


class MatchingMessages:
    """The messages of an iterator that pass a filter; errors of the iterator are passed on.

    Threads: those of the iterator; one at a time.
    """

    __slots__ = ("_filter", "_messages")

    def __init__(self, messages: _Reader, where: Sql92Filter) -> None:
        self._messages = messages
        self._filter = where

    @property
    def skipped(self) -> SkippedMessages:
        """The messages that could not be read, so far."""
        return self._messages.skipped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageExt:
        matches = self._filter.matches
        while True:
            message = next(self._messages)
            if matches(message.properties):
                return message


def where_of(value: Any) -> Sql92Filter | None:
    """The argument `where`: None, a text or a filter. Raises StoreTypeError, StoreFormatError."""
    if value is None:
        return None
    if not issubclass(type(value), Sql92Filter):
        if not issubclass(type(value), str):
            kind = type(value).__name__
            raise StoreTypeError(f"where must be a str, a Sql92Filter or None, not {kind}")
        return Sql92Filter(value)
    if not hasattr(value, "_text"):
        raise StoreTypeError("where is a Sql92Filter that was made without a text")
    found: Sql92Filter = value
    return found


def columns_with_properties(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to read for a filter: those that are wanted, and the properties.

    Raises as `column_names`.
    """
    names = COLUMNS if columns is None else column_names(columns)
    return names if PROPERTIES_MAP in names else (*names, PROPERTIES_MAP)


def selected(named: pyarrow.MapArray, where: Sql92Filter) -> npt.NDArray[np.bool_]:
    """Return bool[n]: the rows whose properties, a map<string, string> each, pass a filter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: pc.map_lookup(named, pa.scalar(name), "last") for name in where.names}
    return where.select(len(named), columns)


def matching_rows(
    batch: pyarrow.RecordBatch, where: Sql92Filter, columns: Sequence[str] | None
) -> pyarrow.RecordBatch:
    """Return the rows that pass a filter, with the wanted columns and the batch's metadata."""
    import pyarrow as pa

    kept = batch.filter(pa.array(selected(batch.column(PROPERTIES_MAP), where)))
    names = COLUMNS if columns is None else column_names(columns)
    return kept.select(list(names)).replace_schema_metadata(batch.schema.metadata)
