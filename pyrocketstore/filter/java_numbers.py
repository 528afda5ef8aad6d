"""Texts as the numbers that Java reads in them.

A filter compares the text of a property with a number, and 4.9.3 converts the text by
`Integer.valueOf`, `Long.valueOf` or `Double.valueOf`. Python's `int` and `float` accept other
texts: blanks, underscores, more digits of Unicode, other names of NaN.
"""

from __future__ import annotations

import re
import unicodedata

from pyrocketstore.arguments.scalars import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

#: Up to so many digits are an int32, and an int64.
_INT32_DIGITS, _INT64_DIGITS = 9, 18
#: More significant digits than an int64 has.
_TOO_MANY_DIGITS = 20
#: The last code point that is one unit of UTF-16. Java's integers have no digits behind it.
_LAST_UNIT = "\uffff"
#: Characters that `String.trim` removes.
_TRIMMED = "".join(map(chr, range(0x21)))
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_NAMED = re.compile(r"[+-]?(?:NaN|Infinity)")
_HEXADECIMAL = re.compile(
    r"([+-]?)0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP]([+-]?)([0-9]+)[fFdD]?"
)


class NotANumber(ValueError):
    """A text that Java does not convert; 4.9.3 delivers no message whose filter raises."""


def int32_of(text: str) -> int:
    """Return the int32 that a text denotes. Raises NotANumber.

    Source: Integer.parseInt of Java 17, radix 10.
    """
    if len(text) <= _INT32_DIGITS and text.isdecimal() and text.isascii():  # as nearly always
        return int(text)
    return _integer_of(text, INT32_MIN, INT32_MAX)


def int64_of(text: str) -> int:
    """Return the int64 that a text denotes. Raises NotANumber.

    Source: Long.parseLong of Java 17, radix 10.
    """
    if len(text) <= _INT64_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    return _integer_of(text, INT64_MIN, INT64_MAX)


def _integer_of(text: str, low: int, high: int) -> int:
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits.isdecimal() or max(digits) > _LAST_UNIT:
        raise NotANumber(text)
    if not digits.isascii():
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) >= _TOO_MANY_DIGITS:
        raise NotANumber(text)
    number = -int(digits) if sign == "-" else int(digits)
    if not low <= number <= high:
        raise NotANumber(text)
    return number


def double_of(text: str) -> float:
    """Return the double that a text denotes. Raises NotANumber.

    Blanks and controls around it, the suffixes f and d, NaN, Infinity and hexadecimal numbers
    count; digits are ASCII.

    Source: Double.valueOf(String) of Java 17.
    """
    trimmed = text.strip(_TRIMMED)
    if found := _DECIMAL.fullmatch(trimmed):
        return float(found[1])
    if _NAMED.fullmatch(trimmed):
        return float(trimmed)
    if found := _HEXADECIMAL.fullmatch(trimmed):
        return _hexadecimal(*found.groups())
    raise NotANumber(text)


def _hexadecimal(sign: str, digits: str, exponent_sign: str, exponent: str) -> float:
    try:
        return float.fromhex(f"{sign}0x{digits}p{exponent_sign}{exponent}")
    except OverflowError:
        return float(f"{sign}inf")


def java_order(left: float, right: float) -> int:
    """Compare as Double.compareTo: -0.0 is less than 0.0, and NaN is greater than all else."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_key, right_key = _tie(left), _tie(right)
    return (left_key > right_key) - (left_key < right_key)


def _tie(number: float) -> int:
    """The place of a double among those that Python holds for equal or does not order."""
    if number != number:
        return 2
    return 0 if number == 0 and str(number)[0] == "-" else 1
