"""Parser of Java's properties files, equivalent to java.util.Properties#load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyrocketstore.errors import StoreFormatError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class PropertyLine(NamedTuple):
    """The value of an entry and the number of its first line, from 1."""

    value: str
    number: int


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each logical line: without comments, continuation lines joined."""
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not natural[-1]:
        natural.pop()
    joined = ""
    start = 0
    continues = False
    for number, raw in enumerate(natural, 1):
        line = raw.lstrip(_BLANKS)
        if not joined:
            if line.startswith(("#", "!")) or (not line and not continues):
                continues = False
                continue
            start = number
        joined += line
        slashes = len(line) - len(line.rstrip("\\"))
        continues = slashes % 2 == 1
        if continues:
            joined = joined[:-1]
        else:
            if joined:
                yield start, joined
            joined = ""
    if joined or (continues and not text.endswith("\r\n")):  # a lone backslash ends the file
        yield start, joined


def _split(line: str) -> tuple[str, str]:
    """Split a line into key and value, still escaped, at the first unescaped =, : or blank."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    key = line[:at]
    value = line[at:].lstrip(_BLANKS)
    if value[:1] in {"=", ":"}:
        value = value[1:].lstrip(_BLANKS)
    return key, value


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            out.append(char)
            continue
        char = text[at : at + 1]
        at += 1
        if char == "u":
            digits = text[at : at + 4]
            if len(digits) < 4 or not _HEX_DIGITS.issuperset(digits):
                raise StoreFormatError(f"{where}: malformed \\uxxxx")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return "".join(out)


def read_properties(data: bytes, path: str = "properties") -> dict[str, PropertyLine]:
    """Parse a properties file: key -> value and line. The last of several equal keys counts.

    Parameters
    ----------
    data : content of the file, ISO-8859-1
    path : its name, for messages

    Raises
    ------
    StoreFormatError
        A malformed \\uxxxx, which java.util.Properties also refuses.
    """
    entries: dict[str, PropertyLine] = {}
    for number, line in _logical_lines(data.decode("latin-1")):
        key, value = _split(line)
        where = f"{path}:{number}"
        entries[_unescape(key, where)] = PropertyLine(_unescape(value, where), number)
    return entries
