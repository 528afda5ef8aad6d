"""Units of a pinned range of a queue, read by a task."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyrocketstore._consume_queue import read_units
from pyrocketstore.env import Env
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.spark.snapshot import LOG_BEGIN, LOG_END, DataLossError, QueueRange

Int64s = npt.NDArray[np.int64]

RETRY_INTERVAL_S = 0.05


class RangeUnits:
    """The units of a QueueRange, as it was pinned.

    Parameters
    ----------
    fail_on_data_loss : bool; else units that are gone are given as blanks, and counted in `lost`
    patience_s : units that are gone are looked for again for so long: a store that is opened after
        a kill takes the last units away and puts them back

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
        """Units [start, stop), which must lie in the range. Raises DataLossError, StoreIOError."""
        return self.read_with_lost(start, stop)[0]

    def read_with_lost(self, start: int, stop: int) -> tuple[QueueUnits, Int64s]:
        """As read, and which of them (their numbers from `start` on) are gone."""
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
        """Where units begin to name `phy_offset`, bytes of the log, or what lies behind it.

        Units are taken to ascend. Where they do not, a greater place still gives no smaller answer.
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
        """The file that a unit is in."""
        at = queue_offset * CQ_STORE_UNIT_SIZE
        return f"{self.pinned.directory}/{at - at % self.pinned.file_size:020d}"

    def _read_file(self, from_offset: int, position: int, size: int) -> bytes:
        """The bytes, fewer or none where the file does not have them."""
        path = f"{self.pinned.directory}/{from_offset:020d}"
        return self.env.read_part(path, position, size)

    @staticmethod
    def _put_over(data: bytearray, start: int, first: int, units: bytes) -> None:
        place = (first - start) * CQ_STORE_UNIT_SIZE
        skipped = max(0, -place)
        begin = max(0, place)
        piece = units[skipped : skipped + max(0, len(data) - begin)]
        data[begin : begin + len(piece)] = piece
