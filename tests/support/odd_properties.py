"""Texts of properties that writers other than 4.9.3 have stored: items that are no property."""

from __future__ import annotations

#: A text, and the properties that 4.9.3 finds in it.
ODD_TEXTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {}),
    ("\x02", {}),
    ("\x01", {}),
    ("\n", {}),
    ("KEYS\x01k1\x02\x02sw8\x011-x\x02", {"KEYS": "k1", "sw8": "1-x"}),
    ("\x02\x02KEYS\x01k1", {"KEYS": "k1"}),
    ("KEYS\x01k1\x02\n", {"KEYS": "k1"}),
    ("KEYS\x01k1\n", {"KEYS": "k1\n"}),
    ("TAGS\x01\x02KEYS\x01k1", {"KEYS": "k1"}),
    ("TAGS\x01t\x02TAGS\x01", {"TAGS": "t"}),
    ("TAGS\x01t\x02TAGS\x01u", {"TAGS": "u"}),
    ("TAGS\x02KEYS\x01k1", {"KEYS": "k1"}),
    ("TAGS", {}),
    ("\x01t\x02a\x01b", {"a": "b"}),
    ("\x01\x01t\x02a\x01b", {"a": "b"}),
    ("a\x01b\x01c\x02d\x01e", {"a": "b\x01c", "d": "e"}),
    ("a\x01\x01\x02d\x01e", {"a": "\x01", "d": "e"}),
    ("x\x02y\x02UNIQ_KEY\x010A\x02", {"UNIQ_KEY": "0A"}),
    (" \x01 \x02TAGS\x01t ", {" ": " ", "TAGS": "t "}),
    ("TAGS\x01t\x02=\x02a=b\x02c\x01d", {"TAGS": "t", "c": "d"}),
)


def has_skipped_item(text: str) -> bool:
    """Return True if an item of the text, apart from an end without one, is not a property."""
    items = text.split("\x02")
    if items[-1] == "":
        items.pop()
    return any(not name or not value for name, _, value in (i.partition("\x01") for i in items))
