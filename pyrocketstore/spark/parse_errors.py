"""The errors of code that reads values out of parsed JSON, where the text has another shape."""

from __future__ import annotations

#: RecursionError is that of json for a deep nesting, and OverflowError that of a large number.
PARSE_ERRORS = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
