"""Places of the log that hold no record any more: they are damaged, or their file is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.log_scan import ScannableLog, records_between

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = ["LostRecords"]

RS_BLANK = 1


class LostRecords:
    """Says of places in [begin, end), bytes of the log, whether they lie where records were lost.

    A file is scanned when it is first asked for, and only then. Threads: one.
    """

    def __init__(self, env: Env, log: ScannableLog, begin: int, end: int) -> None:
        self._env = env
        self._log = log
        self._begin, self._end = begin, end
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def range_of(self, phy_offset: int, size: int) -> tuple[int, int] | None:
        """The damaged piece of the log, or the missing file, in which all of the place lies:
        [begin, end), bytes of the log; None without one.

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
        """The ranges of one file in which no record lies, and no BLANK."""
        stop = min(base + self._log.file_size, self._end)
        if self._log.mapped_file_queue.find_mapped_file_by_offset(base, False) is None:
            return [(base, stop)]
        found = []
        position = base
        for piece in records_between(self._env, self._log, base, stop):
            begin = piece.file_from_offset + piece.begin
            if begin > position:
                found.append((position, begin))
            position = stop if piece.status == RS_BLANK else piece.file_from_offset + piece.end
        if position < stop:
            found.append((position, stop))
        return found
