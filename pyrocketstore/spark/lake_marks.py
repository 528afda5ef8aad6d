"""Whether a store goes on where a lake has got to: by the last message that the lake has of it."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pyrocketstore._columns import check_records, decode_records
from pyrocketstore.spark.manifest import Mark
from pyrocketstore.spark.snapshot import (
    DataLossError,
    LogFile,
    QueueRange,
    StoreSnapshot,
    read_there,
)
from pyrocketstore.spark.units import RangeUnits

_RECORD_FACTS = ("store_timestamp", "body_crc")


class StoreMarks:
    """The marks that a store's queues have now, beside those that a lake has. Threads: one.

    `log_files` are those of the snapshot, which must be open.
    """

    def __init__(self, snapshot: StoreSnapshot, log_files: tuple[LogFile, ...]) -> None:
        self.snapshot = snapshot
        self.log_files = log_files
        self.label = snapshot.place.broker_name

    def check_store(self, marks: Mapping[str, Mapping[int, Mark]]) -> None:
        """See whether the log has the record of the latest mark (topic -> queue id -> mark).

        A log that begins behind that record is taken as the same. Raises DataLossError where this
        is another store, or one that has lost its end; StoreIOError.
        """
        told = [
            (mark.phy_offset, topic, queue_id)
            for topic, queues in marks.items()
            for queue_id, mark in queues.items()
            if mark.store_timestamp is not None
        ]
        if not told:
            return
        phy_offset, topic, queue_id = max(told)
        mark = marks[topic][queue_id]
        if phy_offset < self.snapshot.max_phy_offset:
            if _file_of(self.log_files, phy_offset) is None:
                return
            found = self._facts(phy_offset, mark.size)
            if found == (mark.store_timestamp, mark.body_crc):
                return
            # A record that was damaged since has its unit still.
            if found is None and self._queue_has(topic, queue_id, mark):
                return
        raise DataLossError(
            f"{self.label}: the lake has a message of byte {phy_offset} of the log, stored at "
            f"{mark.store_timestamp} ms, and it is not there: this is another store than the one "
            f"that was {self.label!r} before, or it has lost its end. Each store of a lake needs a "
            "label of its own"
        )

    def _queue_has(self, topic: str, queue_id: int, mark: Mark) -> bool:
        queue = self.snapshot.store.get_consume_queue_table().get(topic, {}).get(queue_id)
        if queue is None:
            return False
        whole = self.snapshot.whole_range(queue)
        return self._unit(whole, mark.queue_offset) == (mark.phy_offset, mark.size)

    def is_anew(self, whole: QueueRange, mark: Mark) -> bool:
        """Whether a queue, all of which is `whole`, is not the one of the mark: its topic was
        deleted and made again, say. Where the mark's unit was deleted nobody knows: no.

        Raises StoreIOError.
        """
        if whole.stop <= mark.queue_offset:
            return True
        found = self._unit(whole, mark.queue_offset)
        return found is not None and found != (mark.phy_offset, mark.size)

    def mark_at(self, whole: QueueRange, queue_offset: int) -> Mark | None:
        """The mark that a message makes, None where its unit is gone. Raises StoreIOError."""
        unit = self._unit(whole, queue_offset)
        if unit is None:
            return None
        return Mark(queue_offset, *unit, *(self._facts(*unit) or (None, None)))

    def _unit(self, whole: QueueRange, queue_offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of a unit that names a message."""
        env = self.snapshot.store.env
        pinned = dataclasses.replace(whole, start=queue_offset, stop=queue_offset + 1)
        units = RangeUnits(env, pinned, fail_on_data_loss=False)
        found = units.read(queue_offset, queue_offset + 1)
        if not len(found.size) or found.size[0] <= 0 or found.is_pre_blank()[0]:
            return None
        return int(found.phy_offset[0]), int(found.size[0])

    def _facts(self, phy_offset: int, size: int) -> tuple[int, int] | None:
        """Of a record, its store time and its body's CRC; None where no whole one is there."""
        file = _file_of(self.log_files, phy_offset)
        if file is None:
            return None
        env, position = self.snapshot.store.env, phy_offset - file.from_offset
        # A damaged unit may say any size.
        head = read_there(env, file.path, position, 4)
        if int.from_bytes(head) != size or size > file.size - position:
            return None
        data = read_there(env, file.path, position, size)
        places = np.zeros(1, np.int64), np.array([len(data)], np.int32)
        phy_offsets = np.array([phy_offset], np.int64)
        if len(data) < size or check_records(data, *places, phy_offsets=phy_offsets)[0]:
            return None
        found = decode_records(data, *places, _RECORD_FACTS)
        time, crc = (int(np.asarray(found[name])[0]) for name in _RECORD_FACTS)
        return time, crc


def _file_of(files: Sequence[LogFile], phy_offset: int) -> LogFile | None:
    """The file of a place in the log; files are in its order."""
    number = bisect.bisect_right(files, phy_offset, key=lambda file: file.from_offset) - 1
    if number < 0 or phy_offset >= files[number].from_offset + files[number].size:
        return None
    return files[number]
