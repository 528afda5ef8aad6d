"""JSON as fastjson prints it in the files of ROOT/config, and the reading of it.

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
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')
#: The largest number of bins of a Java map that is tried.
_MAX_BINS = 1 << 22


def parse(data: bytes) -> dict[str, Any] | None:
    """Return the object in a config file, with text keys; None if there is no valid one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    for has_bare_keys in (False, True):
        try:
            content = json.loads(_BARE_KEY.sub(_quoted, text) if has_bare_keys else text)
        except ValueError:
            continue
        except RecursionError:
            return None
        return content if isinstance(content, dict) and _is_shallow(content) else None
    return None


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


def render(content: dict[str, Any]) -> str:
    """Return the text of an object: tabs, no blank after a colon, no last newline.

    A tuple is an int[], which is on one line; a list is a List.
    """
    return _pretty(content, 0)


def encode(content: dict[str, Any]) -> bytes:
    """Return the bytes of `render`. A lone surrogate has no UTF-8: as in Java, it becomes "?"."""
    return render(content).encode("utf-8", "replace")


def _pretty(value: Any, depth: int) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
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
        return opening + ",".join(f"{k}:{_pretty(v, depth + 1)}" for k, v in value.items()) + last
    inner = "\n" + "\t" * (depth + 1)
    parts = [
        f"{json.dumps(name, ensure_ascii=False)}:{_pretty(part, depth + 1)}"
        for name, part in value.items()
    ]
    return opening + inner + ("," + inner).join(parts) + last


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
