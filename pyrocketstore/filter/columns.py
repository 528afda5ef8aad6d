"""The answers of a filter for many messages at once, from columns of properties.

A column whose texts repeat is kept as its different texts and, for each row, the place of its text.
A comparison is answered once for each of them, and NumPy spreads the answers over the rows. An
answer is a code: FALSE, TRUE, NULL, or ERROR where 4.9.3 raises. It is the code of what
`Node.value` returns for the row.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments.scalars import INT32_MAX, INT32_MIN, entries_of, exact_text
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreError, StoreFormatError, StoreTypeError
from pyrocketstore.filter.expressions import (
    CONVERSIONS,
    AllOf,
    AnyOf,
    Comparison,
    Equal,
    IsIn,
    IsNull,
    Kind,
    Literal,
    Negative,
    Node,
    Not,
    Order,
    Property,
    PropertyAsCondition,
)
from pyrocketstore.filter.java_numbers import NotANumber

Codes: TypeAlias = npt.NDArray[np.int8]
FALSE, TRUE, NULL, ERROR = 0, 1, 2, 3
#: By the code of the left side times 4, plus that of the right side.
_AND = np.array([0, 0, 0, 0, 0, 1, 2, 3, 0, 2, 2, 3, 3, 3, 3, 3], np.int8)
_OR = np.array([0, 1, 2, 3, 1, 1, 1, 1, 2, 1, 2, 3, 3, 3, 3, 3], np.int8)
_NOT = np.array([TRUE, FALSE, NULL, ERROR], np.int8)
_IS_NULL = np.array([FALSE, FALSE, TRUE, ERROR], np.int8)
_CODES = {False: FALSE, True: TRUE, None: NULL}
#: Of a column, so many entries decide whether its texts repeat.
_SAMPLE = 1000
#: The places of a column that has one value for each row.
_EACH = slice(None)
#: From so many texts on, they are converted together.
_MANY_TEXTS = 16
#: Texts of these characters alone are the same numbers for Python as for Java, or none for both.
_NOT_OF_INTEGERS = re.compile(r"[^0-9+-]")
_NOT_OF_DOUBLES = re.compile(r"[^0-9+\-.eE]")
_ARROW_STRINGS = ("string", "large_string")
_WANTED = "a sequence of str and None, or an array of pyarrow"


class _Raises:
    """The value of an operand whose evaluation raises."""


_RAISES = _Raises()
_CONDITION_VALUES: tuple[Any, ...] = (False, True, None, _RAISES)


class Factors(NamedTuple):
    """A column: its values, and for each row the place of its value.

    Without places, all rows have the one value. With _EACH, each row has its own.
    """

    values: Sequence[Any]
    places: npt.NDArray[np.intp] | slice | None

    def of_rows(self) -> Iterable[Any]:
        """Return the value of each row; there are places."""
        if not isinstance(self.places, np.ndarray):
            return self.values
        return map(self.values.__getitem__, self.places.tolist())


class Columns:
    """The properties of `count` messages, by name; a missing column is a property without values.

    Threads: one.
    """

    def __init__(self, count: int, columns: Mapping[str, Any]) -> None:
        self.count = count
        self._columns = columns
        self._factors: dict[str, Factors] = {}

    def factors(self, name: str) -> Factors:
        """Return one column. Raises StoreFormatError, StoreTypeError."""
        if name not in self._factors:
            column = self._columns.get(name)
            missing = Factors([None], None)
            self._factors[name] = missing if column is None else _factors(name, column, self.count)
        return self._factors[name]

    def nulls(self, name: str) -> Codes:
        """Return TRUE for each row without the property. Raises as `factors`."""
        column: Any = self._columns.get(name)
        if name not in self._factors and hasattr(column, "is_null"):
            entries = _entries(name, column, self.count)
            if str(entries.type) in _ARROW_STRINGS:
                return np.asarray(entries.is_null().to_numpy(zero_copy_only=False), np.int8)
        factors = self.factors(name)
        return _spread([value is None for value in factors.values], factors, self.count)


def codes_of(node: Node, columns: Columns) -> Codes:
    """Return the answer of a condition for each row: int8[count]."""
    if isinstance(node, AllOf):
        return _joined(node.parts, columns, _AND, FALSE)
    if isinstance(node, AnyOf):
        return _joined(node.parts, columns, _OR, TRUE)
    if isinstance(node, Not):
        return _NOT[codes_of(node.operand, columns)]
    if isinstance(node, Literal):
        assert node.constant is None or isinstance(node.constant, bool)
        return np.full(columns.count, _CODES[node.constant], np.int8)
    if isinstance(node, Comparison):
        # Called from here, not from `_compared`: few calls for each level of the tree.
        left, right = _operand(node.left, columns), _operand(node.right, columns)
        return _compared(node, left, right, columns.count)
    if isinstance(node, IsNull):
        if node.operand.kind is Kind.BOOL:
            return _IS_NULL[codes_of(node.operand, columns)]
        if isinstance(node.operand, Property):
            return columns.nulls(node.operand.name)
        factors = _operand(node.operand, columns)
        return _spread([_is_null(value) for value in factors.values], factors, columns.count)
    assert isinstance(node, IsIn | PropertyAsCondition)
    factors = columns.factors(node.operand.name)
    texts = node.texts if isinstance(node, IsIn) else frozenset[str]()
    codes = [NULL if text is None else text in texts for text in factors.values]
    return _spread(codes, factors, columns.count)


def _is_null(value: object) -> int:
    return ERROR if value is _RAISES else int(value is None)


def _joined(parts: Iterable[Node], columns: Columns, table: Codes, final: int) -> Codes:
    """AND or OR in the order of the parts, until every row is decided."""
    codes: Codes | None = None
    for part in parts:
        if codes is None:
            codes = codes_of(part, columns)
        else:
            if bool(((codes == final) | (codes == ERROR)).all()):
                break
            codes = table[codes * 4 + codes_of(part, columns)]
    assert codes is not None
    return codes


def _operand(node: Node, columns: Columns) -> Factors:
    """The values of any node."""
    if isinstance(node, Property):
        return columns.factors(node.name)
    if isinstance(node, Literal):
        return Factors([node.constant], None)
    if isinstance(node, Negative):
        inner = _operand(node.operand, columns)
        return Factors([_negative(node, value) for value in inner.values], inner.places)
    return Factors(_CONDITION_VALUES, codes_of(node, columns).astype(np.intp))


def _negative(node: Negative, value: Any) -> Any:
    if value is _RAISES:
        return value
    return None if node.kind is Kind.NOTHING else -value


def _codes(codes: Iterable[int]) -> Codes:
    """Codes as an array, by the fastest way that NumPy has."""
    return np.frombuffer(bytes(codes), np.int8)


def _spread(codes: Sequence[int] | Codes, factors: Factors, count: int) -> Codes:
    """The codes of values, one for each row."""
    table = codes if isinstance(codes, np.ndarray) else _codes(codes)
    return np.full(count, table[0]) if factors.places is None else table[factors.places]


def _compared(node: Comparison, left: Factors, right: Factors, count: int) -> Codes:
    if right.places is None:
        constant = right.values[0]
        codes = _many_texts(node, left.values, constant)
        if codes is None:
            codes = _answers(node, ((value, constant) for value in left.values))
        return _spread(codes, left, count)
    if left.places is None:
        constant = left.values[0]
        codes = _answers(node, ((constant, value) for value in right.values))
        return _spread(codes, right, count)
    if left.places is _EACH or right.places is _EACH:
        return _answers(node, zip(left.of_rows(), right.of_rows(), strict=True))
    assert isinstance(left.places, np.ndarray) and isinstance(right.places, np.ndarray)
    width = len(right.values)
    pair_of_row = left.places * width + right.places
    if len(left.values) * width <= count // 8 + _MANY_TEXTS:
        table = _answers(node, itertools.product(left.values, right.values))
        return np.asarray(table[pair_of_row])
    pairs, rows = np.unique(pair_of_row, return_inverse=True)
    values = ((left.values[pair // width], right.values[pair % width]) for pair in pairs.tolist())
    return _answers(node, values)[rows]


def _answers(node: Comparison, pairs: Iterable[tuple[Any, Any]]) -> Codes:
    """The codes of a comparison for pairs of values."""
    assert isinstance(node, Equal | Order)
    return _codes([_answer(node, left, right) for left, right in pairs])


def _answer(node: Equal | Order, left: Any, right: Any) -> int:
    if left is _RAISES:
        return ERROR
    if left is None and isinstance(node, Order):
        return NULL  # the right side is not evaluated
    if right is _RAISES:
        return ERROR
    try:
        return _CODES[node.answer(left, right)]
    except NotANumber:
        return ERROR


def _many_texts(node: Comparison, texts: Sequence[str | None], constant: Any) -> Codes | None:
    """Compare many texts with one constant; None where that cannot be done together."""
    if node.left.kind is not Kind.TEXT or constant is None or len(texts) < _MANY_TEXTS:
        return None
    kind = node.right.kind
    if kind is Kind.TEXT and isinstance(node, Equal):
        return _codes([NULL if text is None else text == constant for text in texts])
    if kind not in CONVERSIONS:
        return None
    present = [text for text in texts if text is not None]
    numbers = _numbers(present, kind)
    if numbers is None:
        return None
    relation: Callable[[Any, Any], Any] = np.equal
    if isinstance(node, Order):
        relation = node.relation
    codes = relation(numbers, constant).astype(np.int8)
    if kind is Kind.INT:
        codes[(numbers < INT32_MIN) | (numbers > INT32_MAX)] = ERROR
    if len(present) == len(texts):
        return np.asarray(codes, np.int8)
    result = np.full(len(texts), NULL, np.int8)
    result[np.fromiter([text is not None for text in texts], np.bool_, len(texts))] = codes
    return result


def _numbers(texts: Sequence[str], kind: Kind) -> npt.NDArray[Any] | None:
    """Texts as int64 or float64; None where a text may not be a number for Python or for Java."""
    other = _NOT_OF_DOUBLES if kind is Kind.DOUBLE else _NOT_OF_INTEGERS
    if other.search("".join(texts)):
        return None
    try:
        if kind is Kind.DOUBLE:
            return np.fromiter(map(float, texts), np.float64, len(texts))
        return np.fromiter(map(int, texts), np.int64, len(texts))
    except (ValueError, OverflowError):
        return None


def _factors(name: str, column: Any, count: int) -> Factors:
    """A column of a caller. Raises StoreTypeError, StoreFormatError."""
    entries = _entries(name, column, count)
    if _is_arrow(entries):
        try:
            return _arrow_column(name, entries)
        except StoreError:
            raise
        except (TypeError, ValueError, NotImplementedError) as error:
            kind = f"a pyarrow array of type {entries.type}"
            raise StoreTypeError(
                f"column {shown(name)} is {kind}: must have strings in UTF-8"
            ) from error
    return _list_factors(_checked(name, entries), count)


def _arrow_column(name: str, entries: Any) -> Factors:
    if hasattr(entries, "dictionary") or not _are_different(entries[:_SAMPLE].to_pylist()):
        return _arrow_factors(name, entries)
    return Factors(_checked(name, entries.to_pylist()), _EACH)


def _list_factors(texts: list[str | None], count: int) -> Factors:
    if _are_different(texts[:: count // _SAMPLE + 1]):
        return Factors(texts, _EACH)
    different = list(dict.fromkeys(texts))
    place_of = dict(zip(different, range(len(different)), strict=True))
    places = np.fromiter(map(place_of.__getitem__, texts), np.intp, count)
    return Factors(different, places)


def _entries(name: str, column: Any, count: int) -> Any:
    """A column as a list, or the array of pyarrow that it is. Raises as `_factors`."""
    entries = column
    if not _is_arrow(column):
        entries = list(entries_of(f"column {name}", column, _WANTED))
    if len(entries) != count:
        what = f"column {shown(name)} has {len(entries)} entries"
        raise StoreFormatError(f"{what}: must have {count}, one for each message")
    return entries


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "dictionary_encode") or hasattr(column, "dictionary")


def _are_different(sample: list[Any]) -> bool:
    """Whether most texts of a sample are different; a search for equal ones would cost more."""
    return len(set(sample)) > len(sample) // 2


def _arrow_factors(name: str, column: Any) -> Factors:
    """A pyarrow.Array or ChunkedArray of strings. Raises StoreTypeError."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if not hasattr(column, "indices"):
        column = column.dictionary_encode()
    texts = _checked(name, column.dictionary.to_pylist())
    places = column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return Factors([*texts, None], places.astype(np.intp))


def _checked(name: str, entries: list[Any]) -> list[str | None]:
    """Entries, each an exact str or None. Raises StoreTypeError."""
    if set(map(type, entries)) <= {str, type(None)}:
        return entries
    return [None if entry is None else exact_text(f"column {name}", entry) for entry in entries]
