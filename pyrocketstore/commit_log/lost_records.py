"""Ranges of the log without readable records: damaged bytes, and missing files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.commit_log.parallel_scan import ScannableLog, records_between
from pyrocketstore.results import Status

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["LostRecords"]


class LostRecords:
    """Finds the lost range that contains a physical offset in [begin, end).

    Each file is scanned once, when it is first needed. Threads: one.
    """

    def __init__(self, env: Env, log: ScannableLog, begin: int, end: int) -> None:
        self._env = env
        self._log = log
        self._begin, self._end = begin, end
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def range_of(self, phy_offset: int, size: int) -> tuple[int, int] | None:
        """Return the lost range that contains all `size` bytes at `phy_offset`, None without one.

        The range is (begin, end), physical offsets: damaged bytes, or a missing file.

        Raises StoreIOError.
        """
        if not self._begin <= phy_offset <= self._end - size:
            return None
        base = phy_offset - phy_offset % self._log.file_size
        if base not in self._ranges:
            self._ranges[base] = self._lost_in(base)
        end = phy_offset + size
        ranges = self._ranges[base]
        return next((each for each in ranges if each[0] <= phy_offset and end <= each[1]), None)

    def _lost_in(self, base: int) -> list[tuple[int, int]]:
        """Return the ranges of one file that have neither a record nor a BLANK."""
        stop = min(base + self._log.file_size, self._end)
        if self._log.mapped_file_queue.find_mapped_file_by_offset(base, False) is None:
            return [(base, stop)]
        found = []
        position = base
        for chunk in records_between(self._env, self._log, base, stop):
            begin = chunk.file_from_offset + chunk.begin
            if begin > position:
                found.append((position, begin))
            position = stop if chunk.status == Status.BLANK else chunk.file_from_offset + chunk.end
        if position < stop:
            found.append((position, stop))
        return found
