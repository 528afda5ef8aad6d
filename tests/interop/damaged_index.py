"""A damaged index, read by the plain-Python oracle: its entries, and the chains that hang 4.9.3."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from support import oracle

QUERY_COUNT_MAX = 64
HEADER_SIZE, SLOT_SIZE, ENTRY_SIZE = 40, 4, 20
Query = tuple[str, str, int, int, int]


class Index(NamedTuple):
    """The index of a store, whose files do not contain its geometry."""

    root: Path
    slot_count: int
    index_num: int

    def files(self) -> list[oracle.IndexFile]:
        """Read all files; missing bytes at the end of a file are zeros."""
        size = HEADER_SIZE + SLOT_SIZE * self.slot_count + ENTRY_SIZE * self.index_num
        paths = sorted(path for path in self.root.glob("index/*") if path.is_file())
        data = (path.read_bytes().ljust(size, b"\0") for path in paths)
        return [oracle.IndexFile.decode(d, self.slot_count, self.index_num) for d in data]

    def entries(self) -> list[tuple[int, int]]:
        """Return (hash of the key, phy_offset) of every entry at any position."""
        return [entry[:2] for file in self.files() for entry in file.entries.values()]

    def loops(self, queries: Iterable[Query]) -> bool:
        """Return True if one of these queries never ends in 4.9.3."""
        asked = list(queries)
        return any(_loops(file, query) for file in self.files() for query in asked)


def read_queries(path: Path) -> list[Query]:
    """Return the rows of a query file."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(topic, key, int(most), int(begin), int(end)) for topic, key, most, begin, end in rows]


def _loops(file: oracle.IndexFile, query: Query) -> bool:
    """Run IndexFile#selectPhyOffset of 4.9.3 step by step; return True if it never ends.

    It never ends if an entry is visited twice without a hit in between.
    """
    topic, key, most, begin, end = query
    if not file.is_time_matched(begin, end):
        return False
    asked = oracle.index_key_hash(topic, key)
    number = file.slots.get(asked % file.slot_count, 0)
    if not 0 < number <= file.index_count or file.index_count <= 1:
        return False
    hits = 0
    seen: dict[int, int] = {}
    while hits < min(most, QUERY_COUNT_MAX):
        if seen.get(number) == hits:
            return True
        seen[number] = hits
        key_hash, _, seconds, previous = file.entries.get(number, (0, 0, 0, 0))
        if seconds < 0:
            return False
        time = file.begin_timestamp + 1000 * seconds
        hits += key_hash == asked and begin <= time <= end
        if not 0 < previous <= file.index_count or previous == number or time < begin:
            return False
        number = previous
    return False
