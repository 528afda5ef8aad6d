"""How text of a store is shown: in errors, warnings, log lines, and by the command.

Names of files and topics, properties and bodies come from a directory that anyone may have written.
A terminal obeys the escape sequences in them, and controls of direction rearrange the line that
holds them. Exceptions keep such text as it is; it is escaped where it is formatted.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
from typing import Any

#: Characters of a caller's value that an error repeats, at most.
_SHOWN_MAX = 200
#: A tuple or list of at most so many entries is shown with those that are plain.
_ENTRIES_MAX = 4
_PLAIN = (str, bytes, int, float, bool, type(None))
#: Control characters that no text has: all of them but tab, line feed and the like.
_NOT_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""Return a text on one line, each character that is not printable written as its escape.

    Escaped are controls (C0, C1, of direction), every kind of blank but U+0020, lone surrogates,
    and code points that Unicode has not assigned: `\x1b`, `\u202e`, `\U000e0041`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_text(data: bytes) -> bool:
    """Return True if bytes are UTF-8 without control characters, blanks and line ends apart."""
    try:
        return _NOT_TEXT.search(data.decode("utf-8")) is None
    except UnicodeDecodeError:
        return False


def shown(value: object) -> str:
    """Return a caller's value for an error: a text, bytes or a number, and the start of a long one.

    Another object is named by its type: its `__repr__` may do anything.
    """
    kind = type(value)  # `isinstance` also believes the attribute __class__, as of a mock
    if issubclass(kind, str):
        text = str.__str__(value)
        return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}..."
    if isinstance(value, bytes) and issubclass(kind, bytes):
        data = memoryview(value)
        start = bytes(data[:_SHOWN_MAX])
        return repr(start) if len(data) <= _SHOWN_MAX else f"{start!r}..."
    if isinstance(value, int) and kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= _SHOWN_MAX else f"<int of {bits} bits>"
    if value is None or kind in (float, bool, complex):
        return repr(value)
    if isinstance(value, (tuple, list)) and kind in (tuple, list) and len(value) <= _ENTRIES_MAX:
        parts = [shown(part) if type(part) in _PLAIN else _named(part) for part in tuple(value)]
        return f"[{', '.join(parts)}]" if isinstance(value, list) else f"({', '.join(parts)})"
    return _named(value)


def beginning(value: str | bytes | None, size: int = 40) -> str:
    """Return the first `size` characters or bytes of a value for a `repr`, escaped; "..." follows
    if there are more."""
    if value is None or len(value) <= size:
        return repr(value)
    return f"{value[:size]!r}..."


def _named(value: object) -> str:
    return f"<{type(value).__name__}>"


#: Runs of what JSON itself does not escape.
#: Looked up now: an import that a signal handler interrupts keeps its lock.
_UTF_16 = codecs.lookup("utf-16-be")
_NOT_ASCII = re.compile(r"[^\x20-\x7e]+")


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """Return a value as JSON on one line that parses to the same value.

    The characters that `printable` escapes are written as \\uXXXX; with `ascii_only`, all that is
    not ASCII.
    """
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    if ascii_only and "\x7f" not in text:
        return text
    if text.isprintable():
        return text
    return _NOT_ASCII.sub(_as_json_escapes, text)


def _as_json_escapes(found: re.Match[str]) -> str:
    return "".join(c if c.isprintable() else _json_escape(c) for c in found[0])


def _json_escape(char: str) -> str:
    units = _UTF_16.encode(char, "surrogatepass")[0]
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


#: `extra` of a log line about damage that `open` warns of too, or that each command reports where
#: it matters: the command `pyrocketstore` does not print the line.
REPORTED_ELSEWHERE = {"is_reported_elsewhere": True}


def logger(name: str) -> logging.Logger:
    """Return the logger of a module of this package: its lines are printable."""
    found = logging.getLogger(name)
    if not any(isinstance(each, _PrintableLines) for each in found.filters):
        found.addFilter(_PrintableLines())
    return found


class _PrintableLines(logging.Filter):
    """Replaces a record's message by its printable form, where that differs."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = printable(text), ()
        return True
