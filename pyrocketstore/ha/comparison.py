"""The comparison of a slave's last bytes with those of its master."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pyrocketstore.ha.replica_log import ReplicaLog
from pyrocketstore.record._record import BLANK_MAGIC_CODE

#: So many bytes of records before its end a slave compares with its master, at least.
COMPARED_BYTES = 64 << 10
_BLANK = struct.Struct(">ii")


class LogTail:
    """The last bytes of a log, which are compared with a master's as these arrive.

    Parameters
    ----------
    log : the log; its end does not move meanwhile

    Bytes behind a BLANK are not compared: their values have no meaning, and a copy has zeros there.
    """

    def __init__(self, log: ReplicaLog) -> None:
        begin, end = max(log.begin(), 0), log.end()
        size = COMPARED_BYTES
        while True:
            self.begin = max(begin, end - size)
            self._bytes = log.read(self.begin, end - self.begin)
            self._ignored = list(self._fillers(log, end))
            ignored = sum(high - low for low, high in self._ignored)
            if self.begin == begin or end - self.begin - ignored >= COMPARED_BYTES:
                break
            size = COMPARED_BYTES + ignored
        self.end = end
        #: everything before is equal to the master's bytes
        self.compared = self.begin

    def _fillers(self, log: ReplicaLog, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of physical offsets behind a BLANK."""
        at = self.begin
        while at < end:
            stop = log.file_end(at)
            if stop > end:
                return
            part = self._bytes[at - self.begin : stop - self.begin]
            filler = at + len(part.rstrip(b"\0"))
            blank = filler - _BLANK.size
            whole = stop - blank, BLANK_MAGIC_CODE
            if filler == at or (blank >= at and _BLANK.unpack_from(part, blank - at) == whole):
                yield filler, stop
            at = stop

    def first_difference(self, phy_offset: int, data: memoryview) -> int | None:
        """Compare bytes of the master; return the physical offset of the first that differs."""
        own = self._bytes[phy_offset - self.begin :][: len(data)]
        stop = phy_offset + len(own)
        low = phy_offset
        for ignored, behind in [*self._ignored, (stop, stop)]:
            high = min(ignored, stop)
            if low < high:
                found = _difference(
                    own[low - phy_offset : high - phy_offset],
                    data[low - phy_offset : high - phy_offset],
                )
                if found is not None:
                    return low + found
            low = max(low, behind)
        self.compared = stop
        return None


def _difference(one: bytes, other: memoryview) -> int | None:
    """The index of the first byte that differs in two buffers of one size."""
    if other == one:
        return None
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
