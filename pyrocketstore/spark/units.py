"""Units of a pinned range of a queue, read by a task."""

from __future__ import annotations

import errno
import os

import numpy as np

from pyrocketstore._consume_queue import read_units
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.spark.snapshot import DataLossError, QueueRange


class RangeUnits:
    """The units of a QueueRange, as it was pinned.

    Parameters
    ----------
    fail_on_data_loss : bool; else units that are gone are given as blanks, and counted in `lost`

    Threads: one.
    """

    def __init__(self, env: Env, pinned: QueueRange, *, fail_on_data_loss: bool) -> None:
        self.env = env
        self.pinned = pinned
        self.fail_on_data_loss = fail_on_data_loss
        self.lost = 0

    def read(self, start: int, stop: int) -> QueueUnits:
        """Units [start, stop), which must lie in the range. Raises DataLossError, StoreIOError."""
        data = bytearray()
        at = start * CQ_STORE_UNIT_SIZE
        end = stop * CQ_STORE_UNIT_SIZE
        while at < end:
            position = at % self.pinned.file_size
            size = min(end - at, self.pinned.file_size - position)
            data += self._read_file(at - position, position, size)
            at += size
        for first, units in self.pinned.overlay:
            self._put_over(data, start, first, units)
        return QueueUnits(*read_units(data))

    def path_of(self, queue_offset: int) -> str:
        """The file that a unit is in."""
        at = queue_offset * CQ_STORE_UNIT_SIZE
        return f"{self.pinned.directory}/{at - at % self.pinned.file_size:020d}"

    def _read_file(self, from_offset: int, position: int, size: int) -> bytes:
        path = f"{self.pinned.directory}/{from_offset:020d}"
        data = b""
        try:
            fd = self.env.open(path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
        else:
            try:
                data = self.env.pread(fd, size, position, path)
            finally:
                self.env.close(fd, path)
        missing = size - len(data)
        if missing == 0:
            return data
        begin = from_offset + position + len(data)
        if self._is_overlaid(begin // CQ_STORE_UNIT_SIZE, missing // CQ_STORE_UNIT_SIZE):
            return data + bytes(missing)
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{path}: the units from byte {position + len(data)} on are gone, {missing} bytes; "
                "failOnDataLoss=false reads the others"
            )
        blank = read_blank()
        data = data[: len(data) - len(data) % CQ_STORE_UNIT_SIZE]
        count = (size - len(data)) // CQ_STORE_UNIT_SIZE
        self.lost += count
        return data + blank * count

    def _is_overlaid(self, first: int, count: int) -> bool:
        return any(
            begin <= first and first + count <= begin + len(units) // CQ_STORE_UNIT_SIZE
            for begin, units in self.pinned.overlay
        )

    @staticmethod
    def _put_over(data: bytearray, start: int, first: int, units: bytes) -> None:
        place = (first - start) * CQ_STORE_UNIT_SIZE
        skipped = max(0, -place)
        begin = max(0, place)
        piece = units[skipped : skipped + max(0, len(data) - begin)]
        data[begin : begin + len(piece)] = piece


def read_blank() -> bytes:
    """An encoded unit that names no message."""
    unit = np.zeros(1, [("phy_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
    unit["size"] = PRE_BLANK[1]
    return unit.tobytes()
