"""Units of a pinned range of a queue, read by a task."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyrocketstore.consume_queue._units import read_units
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.display import logger
from pyrocketstore.spark.task_types import LOG_BEGIN, LOG_END, DataLossError, QueueRange
from pyrocketstore.system.env import Env

LOG = logger(__name__)

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

RETRY_INTERVAL_S = 0.05
#: Units read at first where few are expected, and at a time.
UNITS_AT_FIRST = 64
UNITS_AT_ONCE = 65536


class RangeUnits:
    """Reads the units of a QueueRange, and compares its mark after each read.

    The units of a topic that was removed and made again count as gone. They are all units of the
    files where another message is at the mark. Where none is, they are those before the mark that
    name later bytes of the log, because physical offsets ascend.

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
        self._warned = False

    def read(self, start: int, stop: int) -> QueueUnits:
        """Read units [start, stop) of the range. Raises DataLossError, StoreIOError."""
        return self.read_with_lost(start, stop)[0]

    def read_with_lost(self, start: int, stop: int) -> tuple[QueueUnits, Int64s]:
        """Read units [start, stop); also return those that are gone, counted from `start`."""
        until_ns = self.env.monotonic_ns() + int(self.patience_s * 1e9)
        while True:
            units = self._read(start, stop)
            # Read after the units: if it is unchanged, so were they.
            marked = self._marked_now(start, units)
            replaced = self._replaced(start, units, marked)
            is_gone = units.size <= 0 if replaced is None else (units.size <= 0) | replaced
            gone = np.flatnonzero(is_gone)
            # An opening after a kill puts units back, but never others.
            is_final = replaced is not None and marked is not None
            if not gone.size or is_final or self.env.monotonic_ns() >= until_ns:
                break
            self.env.sleep(RETRY_INTERVAL_S)
        if gone.size:
            if replaced is not None:
                first = int(np.flatnonzero(replaced)[0])
                self._report(self._replaced_text(start + first, units.phy_offset[first], marked))
            elif self.fail_on_data_loss:
                first = start + int(gone[0])
                raise DataLossError(
                    f"{self.path_of(first)}: {gone.size} units are gone, the first is {first}; "
                    "failOnDataLoss=false reads the others"
                )
            self.lost += gone.size
            units.phy_offset[gone], units.size[gone], units.tags_code[gone] = PRE_BLANK
        return units, gone

    def message_at(self, queue_offset: int) -> tuple[int, int] | None:
        """Return the physical offset and size (bytes) that a unit names; None where no unit names
        a message. Raises StoreIOError."""
        return _message(self._read(queue_offset, queue_offset + 1), 0)

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

    def in_files(self, start: int, stop: int) -> Bools:
        """Return bool[stop - start]: the units [start, stop) that the overlay does not replace."""
        found = np.ones(stop - start, np.bool_)
        for first, units in self.pinned.overlay:
            end = first + len(units) // CQ_STORE_UNIT_SIZE
            found[max(0, first - start) : max(0, end - start)] = False
        return found

    # ---- units of another topic ------------------------------------------------------------------

    def _marked_now(self, start: int, units: QueueUnits) -> int | None:
        """Return the physical offset that the mark's unit names now; None where that unit is
        missing, and without a mark. `units` begin at `start`."""
        mark = self.pinned.mark
        if mark is None or not len(units.size):
            return None
        row = mark[0] - start
        is_among = 0 <= row < len(units.size)
        found = _message(units, row) if is_among else self.message_at(mark[0])
        return None if found is None else found[0]

    def _replaced(self, start: int, units: QueueUnits, marked: int | None) -> Bools | None:
        """Return bool[n]: the units of another topic, where the mark's unit names `marked`; None
        without such units."""
        mark = self.pinned.mark
        if mark is None or marked == mark[1]:
            return None
        found = self.in_files(start, start + len(units.size))
        if marked is None:
            found &= (units.size > 0) & ~units.is_pre_blank() & (units.phy_offset > mark[1])
            found[max(0, mark[0] - start) :] = False
        return found if found.any() else None

    def _replaced_text(self, queue_offset: int, phy_offset: int, marked: int | None) -> str:
        """Describe the units that are replaced, the first of which names `phy_offset`."""
        assert self.pinned.mark is not None
        at, planned = self.pinned.mark
        if marked is not None:
            what = (
                f"{self.path_of(at)}: the read was planned while unit {at} named byte {planned} of "
                f"the log, and now it names byte {marked}"
            )
        else:
            what = (
                f"{self.path_of(queue_offset)}: the read was planned while unit {at}, which is "
                f"gone, named byte {planned} of the log, and now the earlier unit {queue_offset} "
                f"names byte {phy_offset}"
            )
        return (
            f"{what}: the topic was removed and made again, or the log was cut. Load a batch "
            "again; a stream continues with failOnDataLoss=false, which omits these units"
        )

    def _report(self, text: str) -> None:
        """Raise DataLossError under failOnDataLoss, else log a warning, once."""
        if self.fail_on_data_loss:
            raise DataLossError(text)
        if not self._warned:
            self._warned = True
            LOG.warning("rocketmq-store: %s", text)

    # ---- bytes -----------------------------------------------------------------------------------

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


def _message(units: QueueUnits, row: int) -> tuple[int, int] | None:
    """Return the physical offset and size of the message that a unit names, if it names one."""
    unit = int(units.phy_offset[row]), int(units.size[row]), int(units.tags_code[row])
    return unit[:2] if unit[1] > 0 and unit != PRE_BLANK else None
