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
import reprlib
from typing import Any

__all__ = ["json_text", "logger", "printable", "shown"]

#: Characters of a caller's value that an error repeats, at most.
_SHOWN_MAX = 200


def printable(text: str) -> str:
    r"""Return a text on one line, each character that is not printable written as its escape.

    Escaped are controls (C0, C1, of direction), every kind of blank but U+0020, lone surrogates,
    and code points that Unicode has not assigned: `\x1b`, `\u202e`, `\U000e0041`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _Short(reprlib.Repr):
    """The start and the end of long values; an object whose `__repr__` fails is named by its type.

    Bytes are cut before they are written out, not after it, as texts are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _SHOWN_MAX

    def repr_int(self, value: int, level: int) -> str:
        """Also of an int that CPython refuses to write out."""
        if value.bit_length() > _SHOWN_MAX:
            return f"<int of {value.bit_length()} bits>"
        return int.__repr__(value)

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Of all that is shown."""
        if len(value) <= _SHOWN_MAX:
            return bytes.__repr__(value)
        return f"{bytes.__repr__(value[:_SHOWN_MAX])}..."


_SHORT = _Short()


def shown(value: object) -> str:
    """Return the `repr` of a caller's value for an error: of at most some hundred characters, and
    whatever its `__repr__` does."""
    return _SHORT.repr(value)


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
