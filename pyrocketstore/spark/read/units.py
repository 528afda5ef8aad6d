"""Units of a pinned range of a queue, read by a task."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyrocketstore.consume_queue._units import read_units
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.spark.task_types import LOG_BEGIN, LOG_END, DataLossError, QueueRange
from pyrocketstore.system.env import Env

Int64s = npt.NDArray[np.int64]

RETRY_INTERVAL_S = 0.05
#: Units read at a time.
UNITS_AT_ONCE = 65536


class RangeUnits:
    """Reads the units of a QueueRange.

    Parameters
    ----------
    fail_on_data_loss : bool; False: units that are gone are returned as pre-blank units, and
        counted in `lost`
    patience_s : seconds for which units that are gone are read again: an opening after a kill
        removes the last units and puts them back

    Threads: one.
    """

    def __init__(
        self, env: Env, pinned: QueueRange, *, fail_on_data_loss: bool, patience_s: float = 0
    ) -> None:
        self.env = env
        self.pinned = pinned
        self.fail_on_data_loss = fail_on_data_loss
        self.patience_s = patience_s
        self.lost = 0

    def read(self, start: int, stop: int) -> QueueUnits:
        """Read units [start, stop) of the range. Raises DataLossError, StoreIOError."""
        return self.read_with_lost(start, stop)[0]

    def read_with_lost(self, start: int, stop: int) -> tuple[QueueUnits, Int64s]:
        """Read units [start, stop); also return those that are gone, counted from `start`."""
        until_ns = self.env.monotonic_ns() + int(self.patience_s * 1e9)
        units = self._read(start, stop)
        while (gone := np.flatnonzero(units.size <= 0)).size:
            if self.env.monotonic_ns() >= until_ns:
                break
            self.env.sleep(RETRY_INTERVAL_S)
            units = self._read(start, stop)
        if gone.size:
            if self.fail_on_data_loss:
                first = start + int(gone[0])
                raise DataLossError(
                    f"{self.path_of(first)}: {gone.size} units are gone, the first is {first}; "
                    "failOnDataLoss=false reads the others"
                )
            self.lost += gone.size
            units.phy_offset[gone], units.size[gone], units.tags_code[gone] = PRE_BLANK
        return units, gone

    def search(self, phy_offset: int) -> int:
        """Return the first queue offset whose unit names `phy_offset` or a later physical offset.

        Assumes ascending physical offsets; otherwise the result is still monotonic.
        """
        low, high = self.pinned.start, self.pinned.stop
        if phy_offset <= LOG_BEGIN:
            return low
        if phy_offset >= LOG_END:
            return high
        while low < high:
            middle = (low + high) // 2
            if int(self._read(middle, middle + 1).phy_offset[0]) >= phy_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def _read(self, start: int, stop: int) -> QueueUnits:
        data = bytearray()
        at = start * CQ_STORE_UNIT_SIZE
        end = stop * CQ_STORE_UNIT_SIZE
        while at < end:
            position = at % self.pinned.file_size
            size = min(end - at, self.pinned.file_size - position)
            data += self._read_file(at - position, position, size).ljust(size, b"\0")
            at += size
        for first, units in self.pinned.overlay:
            self._put_over(data, start, first, units)
        return QueueUnits(*read_units(data))

    def path_of(self, queue_offset: int) -> str:
        """Return the path of the file that has a unit."""
        at = queue_offset * CQ_STORE_UNIT_SIZE
        return f"{self.pinned.directory}/{at - at % self.pinned.file_size:020d}"

    def _read_file(self, from_offset: int, position: int, size: int) -> bytes:
        """Read bytes of a file; fewer, or none, where the file is shorter or missing."""
        path = f"{self.pinned.directory}/{from_offset:020d}"
        return self.env.read_part(path, position, size)

    @staticmethod
    def _put_over(data: bytearray, start: int, first: int, units: bytes) -> None:
        position = (first - start) * CQ_STORE_UNIT_SIZE
        skipped = max(0, -position)
        begin = max(0, position)
        chunk = units[skipped : skipped + max(0, len(data) - begin)]
        data[begin : begin + len(chunk)] = chunk
