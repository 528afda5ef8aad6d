"""JSON as fastjson prints and reads it in the files of ROOT/config.

Keys that are numbers have no quotes, and a table with such keys is on one line.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from pyrocketstore.record._text import java_hash

#: Levels of nesting; a file with more is damaged.
_MAX_DEPTH = 50
#: A string, which stays as it is, or a key that is a number.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?(?:0|[1-9][0-9]*))(\s*:)')
_PLAIN_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
_COMMENT = r"//[^\n]*\n|/\*.*?\*/"
_BLANKS = re.compile(rf"(?:[ \t\n\r\f\b]|{_COMMENT})*", re.DOTALL)
_BLANKS_AND_COMMAS = re.compile(rf"(?:[ \t\n\r\f\b,]|{_COMMENT})*", re.DOTALL)
#: Before a value fastjson skips the other control characters, too, except its end mark.
_BEFORE_VALUE = re.compile(rf"(?:[\0-\x19\x1b-\x20\x7f]|{_COMMENT})*", re.DOTALL)
_OUTSIDE = re.compile(rf"(?:[\0-\x20\x7f]|{_COMMENT}|//[^\n]*\Z)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$](?:[A-Za-z0-9_$]|[^\0-\xff])*")
_NUMBER = re.compile(
    r"([+-]?[0-9]+((?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)|\.[0-9]*|(?=[FD]))?)[LSBFD]?(?![A-Za-z0-9_$.])"
)
_JSON_REAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERAL = re.compile(r"(?:true|false|null|NaN|undefined)(?![A-Za-z0-9_$])")
_LITERALS = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_STRING_PARTS = {quote: re.compile(rf"[^\\{quote}]*") for quote in ("'", '"')}
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-7btnvfFr"'/\\]))""")
_ESCAPES = {
    **{str(digit): chr(digit) for digit in range(8)},
    **dict(zip("btnvfFr\"'/\\", "\b\t\n\v\f\f\r\"'/\\", strict=True)),
}
#: The largest number of bins of a Java map that is tried.
_MAX_BINS = 1 << 22


class RealNumber(float):
    """A number with a decimal point or an exponent; `text` is its text, which a write repeats."""

    text: str

    def __new__(cls, text: str) -> RealNumber:
        """Make the number of a text. Raises ValueError if it has too many digits."""
        number = super().__new__(cls, text)
        number.text = text if _JSON_REAL.fullmatch(text) else float.__repr__(number)
        if number.text in ("inf", "-inf"):
            raise ValueError(text)
        return number


class JsonError(ValueError):
    """A text that is not valid JSON; the text of the error has the position and the reason."""

    def __init__(self, text: str, at: int, reason: str) -> None:
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        super().__init__(f"line {line}, column {column}: {reason}")


def parse(data: bytes) -> dict[str, Any]:
    """Return the object in a config file, with text keys and RealNumber for numbers but int.

    Accepts what fastjson 1.2.76 accepts in a file of ROOT/config, among others comments, keys
    without quotes, single quotes, needless commas and a byte order mark.

    Raises JsonError.
    Differs: UTF-8 must be valid, nesting is limited, and values that are written as calls
    (`new Date(1)`, `Set[1]`), as hexadecimal bytes (`x'41'`) or as references are not read so.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise JsonError(before, len(before), "not UTF-8") from None
    for has_bare_keys in (False, True):
        try:
            content = _DECODER.decode(_BARE_KEY.sub(_quoted, text) if has_bare_keys else text)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and _is_shallow(content):
            return content
        break
    return _Parser(text).content()


def _quoted(match: re.Match[str]) -> str:
    before, number, after = match.groups()
    return match[0] if number is None else f'{before}"{number}"{after}'


def _is_shallow(content: Any) -> bool:
    """Return whether nesting is limited, so that the content can be written: 4.9.3 has 4 levels."""
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, (dict, list))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False


def _no_constant(name: str) -> None:
    if name != "NaN":
        raise ValueError(name)


#: Decodes all but what only fastjson accepts, in C.
_DECODER = json.JSONDecoder(strict=False, parse_float=RealNumber, parse_constant=_no_constant)


class _Parser:
    """The texts that only fastjson accepts.

    Source: com.alibaba.fastjson 1.2.76 JSONLexerBase, DefaultJSONParser.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def content(self) -> dict[str, Any]:
        """Return the object of the whole text. Raises JsonError."""
        self.at = 1 if self.text.startswith("\ufeff") else 0
        self._skip(_OUTSIDE)
        if self.at == len(self.text):
            raise self._error("no content")
        if self._next() != "{":
            raise self._expected("'{'")
        found = self._object(1)
        self._skip(_OUTSIDE)
        if self.at < len(self.text):
            raise self._expected("nothing more")
        return found

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, blanks: re.Pattern[str]) -> None:
        match = blanks.match(self.text, self.at)
        assert match is not None  # each pattern matches the empty text
        self.at = match.end()

    def _error(self, reason: str) -> JsonError:
        return JsonError(self.text, self.at, reason)

    def _expected(self, what: str) -> JsonError:
        found = ascii(self._next()) if self._next() else "the end of the file"
        return self._error(f"must be {what}, not {found}")

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        while True:
            self._skip(_BLANKS_AND_COMMAS)
            if self._next() == "}":
                self.at += 1
                return found
            key, is_number = self._key()
            self._skip(_BLANKS)
            if self._next() != ":":
                raise self._expected("':'")
            self.at += 1
            found[key] = self._value(depth)
            self._skip(_BLANKS)
            # In a table whose keys are numbers, fastjson requires no commas.
            if self._next() not in (",", "}") and not (is_number and self._next()):
                raise self._expected("',' or '}'")

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while True:
            self._skip(_BLANKS_AND_COMMAS)
            if self._next() == "]":
                self.at += 1
                return found
            found.append(self._value(depth))

    def _key(self) -> tuple[str, bool]:
        """Return a key, and whether it is a number."""
        if self._next() in ("'", '"'):
            return self._string(), False
        match = _NAME.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return match[0], False
        if _NUMBER.match(self.text, self.at) is None:
            raise self._expected("a key or '}'")
        return str(self._number()), True

    def _value(self, depth: int) -> Any:
        self._skip(_BEFORE_VALUE)
        first = self._next()
        if first in ("{", "["):
            if depth >= _MAX_DEPTH:
                raise self._error(f"more than {_MAX_DEPTH} levels")
            return self._object(depth + 1) if first == "{" else self._array(depth + 1)
        if first in ("'", '"'):
            return self._string()
        match = _LITERAL.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return _LITERALS[match[0]]
        if _NUMBER.match(self.text, self.at) is None:
            raise self._expected("a value")
        return self._number()

    def _number(self) -> int | RealNumber:
        match = _NUMBER.match(self.text, self.at)
        assert match is not None
        try:
            number = int(match[1]) if match[2] is None else RealNumber(match[1])
        except ValueError:
            raise self._error("a number of too many digits") from None
        self.at = match.end()
        return number

    def _string(self) -> str:
        begin, quote = self.at, self._next()
        parts = []
        self.at += 1
        while True:
            end = _STRING_PARTS[quote].match(self.text, self.at)
            assert end is not None
            parts.append(end[0])
            self.at = end.end()
            if self._next() == quote:
                self.at += 1
                return (
                    "".join(parts)
                    .encode("utf-16", "surrogatepass")
                    .decode("utf-16", "surrogatepass")
                )
            if not self._next():
                self.at = begin
                raise self._error("a string without an end")
            escape = _ESCAPE.match(self.text, self.at)
            if escape is None:
                raise self._error("an escape that JSON does not have")
            digits = escape[1] or escape[2]
            parts.append(chr(int(digits, 16)) if digits else _ESCAPES[escape[3]])
            self.at = escape.end()


def render(content: Any) -> str:
    """Return the text of an object or another value: tabs, no blank after a colon, no last newline.

    A tuple is an int[], which is on one line; a list is a List.
    """
    return _pretty(content, 0)


def encode(content: dict[str, Any]) -> bytes:
    """Return the bytes of `render`. A lone surrogate has no UTF-8: as in Java, it becomes "?"."""
    return render(content).encode("utf-8", "replace")


def _pretty(value: Any, depth: int) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, RealNumber):
        return value.text
    if not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if not value:
        return opening + closing
    last = "\n" + "\t" * depth + closing
    if isinstance(value, list):
        inner = "\n" + "\t" * (depth + 1)
        parts = [_pretty(part, depth + 1) for part in value]
        return opening + inner + ("," + inner).join(parts) + last
    if isinstance(next(iter(value)), int):
        parts = [f"{_number_key(key)}:{_pretty(part, depth + 1)}" for key, part in value.items()]
        return opening + ",".join(parts) + last
    inner = "\n" + "\t" * (depth + 1)
    parts = [
        f"{json.dumps(name, ensure_ascii=False)}:{_pretty(part, depth + 1)}"
        for name, part in value.items()
    ]
    return opening + inner + ("," + inner).join(parts) + last


def _number_key(key: int | str) -> str:
    """Return a key of a table whose keys are numbers; other keys have quotes."""
    text = str(key)
    return text if _PLAIN_NUMBER.fullmatch(text) else json.dumps(key, ensure_ascii=False)


def _bin_of(key: str | int) -> int:
    """Return the bin of a key in a Java map, before the modulo by the number of bins."""
    hashed = (key if isinstance(key, int) else java_hash(key)) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def map_order(table: dict[Any, Any], new: dict[Any, Any], bins: int) -> dict[Any, Any]:
    """Return `table` with more entries, each at the position where a broker would print it.

    Parameters
    ----------
    table : entries in the order of their file
    new : entries to add; an entry of a known key replaces its value
    bins : number of bins that the broker's empty map has, a power of two

    In a table that no broker has ordered the new entries are the last ones.
    """
    entries = {**table, **new}
    if len(entries) == len(table):
        return entries
    found = {key: _bin_of(key) for key in entries}
    count = bins
    while len(table) >= count // 4 * 3:  # a Java map that is this full doubles
        count *= 2
    while count <= _MAX_BINS and not _ascends([found[key] % count for key in table]):
        count *= 2
    if count > _MAX_BINS:
        return entries
    order = list(table)
    for key in entries:
        if key not in table:
            order.append(key)
        while len(order) >= count // 4 * 3 and len(order) > len(table):
            order = _doubled(sorted(order, key=lambda key: found[key] % count), found, count)
            count *= 2
    return {key: entries[key] for key in sorted(order, key=lambda key: found[key] % count)}


def _doubled(order: list[Any], found: Mapping[Any, int], count: int) -> list[Any]:
    """Return the keys of a Java map in the order in which its bins are after it has doubled.

    The keys of a bin keep their order from the last run on that goes into one new bin; those before
    it are put in front, one after the other. Source: java.util.concurrent.ConcurrentHashMap.
    """
    doubled: list[Any] = []
    for _, keys in itertools.groupby(order, lambda key: found[key] % count):
        chain = list(keys)
        run = len(chain) - 1
        while run and (found[chain[run - 1]] ^ found[chain[run]]) & count == 0:
            run -= 1
        doubled += [*reversed(chain[:run]), *chain[run:]]
    return doubled


def _ascends(numbers: list[int]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(numbers))
