"""SQL92 filters: which messages a consumer of 4.9.3 with the same filter would get."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments.scalars import INT64_MAX, exact_int, exact_text
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreTypeError, StoreWarning
from pyrocketstore.filter.columns import TRUE, Columns, codes_of
from pyrocketstore.filter.expressions import Node
from pyrocketstore.filter.grammar import parse
from pyrocketstore.filter.java_numbers import NotANumber


class Sql92Filter:
    """A filter of messages by their properties, such as `a > 5 AND region IN ('eu', 'us')`.

    Parameters
    ----------
    text : str, the filter. docs/filter.md describes the grammar.

    Raises
    ------
    StoreTypeError: `text` is not a str. StoreFormatError: 4.9.3 refuses the text, or it has too
    many levels; the error has the position and what was expected there.

    A StoreWarning reports that the end of the text is ignored, as 4.9.3 ignores it.

    Threads: any number at once; nothing changes a filter. It can be pickled and compared.

    Source: RocketMQ 4.9.3 SqlFilter, ExpressionMessageFilter#isMatchedByCommitLog.
    """

    __slots__ = ("_condition", "_ignored", "_names", "_text")

    _condition: Node
    _ignored: str
    _names: tuple[str, ...]
    _text: str

    def __init__(self, text: str) -> None:
        if hasattr(self, "_text"):
            raise AttributeError("a Sql92Filter cannot be changed")
        text = exact_text("SQL filter", text)
        condition, names, end = parse(text)
        put = object.__setattr__  # nobody else can
        put(self, "_text", text)
        put(self, "_condition", condition)
        put(self, "_names", names)
        put(self, "_ignored", text[end:])
        if end < len(text):
            reason = "4.9.3 ignores it; write the whole filter by the operators of docs/filter.md"
            where = f"SQL filter {shown(text)}, from character {end + 1}: {shown(text[end:])}"
            warnings.warn(
                f"{where} does not belong to the filter: {reason}", StoreWarning, stacklevel=2
            )

    @property
    def text(self) -> str:
        """The text of the filter, as it was given."""
        return self._text

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the properties that the filter has, in their order in the text."""
        return self._names

    @property
    def ignored(self) -> str:
        """The end of the text that does not belong to the filter; "" for nearly every filter."""
        return self._ignored

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties passes the filter.

        A filter whose value is NULL does not match. Neither does one whose evaluation raises an
        exception in 4.9.3, as `a > 5` does where the text of `a` is not an int32.

        Raises StoreTypeError: `properties` is not a mapping, or a property is not a str.
        """
        if type(properties) is not dict:
            _check_mapping("properties must be a mapping from str to str", properties)
        try:
            return self._condition.value(properties) is True
        except NotANumber:
            return False

    def select(self, count: int, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
        """Return for each of many messages whether it passes: the answers of `matches`.

        Parameters
        ----------
        count : int, the number of messages
        columns : {name: column}, each a sequence of `count` entries, a str or None where a message
            lacks the property, or a pyarrow array of strings. Every message lacks a property
            without a column. Columns that the filter does not name are not read.

        Returns
        -------
        bool[count]

        Raises
        ------
        StoreTypeError: `columns` is not a mapping, or an entry is neither a str nor None.
        StoreFormatError: a column has another number of entries.
        """
        count = exact_int("count", count, 0, INT64_MAX)
        _check_mapping("columns must be a mapping from names to columns", columns)
        return np.asarray(codes_of(self._condition, Columns(count, columns)) == TRUE)

    def __repr__(self) -> str:
        return f"Sql92Filter({shown(self._text)})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Sql92Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash((Sql92Filter, self._text))

    def __reduce__(self) -> tuple[type[Sql92Filter], tuple[str]]:
        return Sql92Filter, (self._text,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Sql92Filter cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Sql92Filter cannot be changed: {name}")


def _check_mapping(rule: str, value: Any) -> None:
    if not issubclass(type(value), Mapping):
        raise StoreTypeError(f"{rule}, not {type(value).__name__}")
