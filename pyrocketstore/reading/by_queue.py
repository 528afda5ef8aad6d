"""Messages of queues in order: selects units, compares records, reports damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.reading._queue_runs import RangeFields, RecordRun
from pyrocketstore.reading.skipped import QueueDamage
from pyrocketstore.record._record import QueueName

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
#: A commit log file and its records: physical offsets, sizes in bytes, queue offsets.
FileChunk = tuple["MappedFile", Int64s, Int32s, Int64s]
#: (file, queue offsets [start, stop)) to the error to raise, or None; as of QueueRange.file_gone.
FileGone = Callable[["MappedFile", int, int], Exception | None]


class QueueRange(RangeFields):
    """A part of a queue to be read, and how.

    Parameters
    ----------
    log, queue : where
    floor : bytes of the log: where it began before the first queue offset to be read was looked up,
        so no valid unit from that one on refers to an offset before it
    wanted : tags to keep, None for all
    damage : the treatment of messages that cannot be read
    check_crc : compare each stored body with its CRC
    """

    __slots__ = ()

    def with_all_tags(self) -> QueueRange:
        """The same range, with the messages of every tag."""
        return QueueRange(self.log, self.queue, self.floor, None, self.damage, self.check_crc)

    def missing(self, run: RecordRun) -> Exception | None:
        """Note records without a file; return the error to raise, if any.

        Expired messages are not damage.
        """
        phy_offsets, _, queue_offsets = run.refs()
        phy_offset, queue_offset = int(phy_offsets[0]), int(queue_offsets[0])
        if not self._is_in_log(phy_offset):
            position = queue_offset * CQ_STORE_UNIT_SIZE
            start = position - position % self.queue.mapped_file_size
            path = f"{self.queue.mapped_file_queue.store_path}/{start:020d}"
            reason = f"the unit names byte {phy_offset} of the log, which does not hold it"
            return self.damage.message(path, position - start, reason, queue_offset)
        if phy_offset < self.log.get_min_offset():
            return None
        file_from_offset = phy_offset - phy_offset % self.log.file_size
        path = os.path.join(self.log.config.commit_log_paths[0], f"{file_from_offset:020d}")
        return self.damage.missing_file(path, queue_offset, int(queue_offsets[-1]) + 1)

    def file_gone(self, file: MappedFile, start: int, stop: int) -> Exception | None:
        """Note messages of a file that was taken away; the error to raise, None: they expired."""
        self.log.mapped_file_queue.forget_deleted()
        if file.file_from_offset + self.log.file_size <= self.log.get_min_offset():
            return None
        return self.damage.missing_file(file.path, start, stop)

    def messages(
        self, chunks: Iterable[RecordRun | FileChunk], file_gone: FileGone, damage: QueueDamage
    ) -> MessageIterator:
        """Iterate over the messages, each compared with the queue and its queue offset."""
        return MessageIterator(
            chunks,
            None if self.wanted is None else self.wanted.tags,
            file_gone,
            queue=QueueName(self.queue.topic, self.queue.queue_id),
            damage=damage,
            check_crc=self.check_crc,
        )

    def _is_in_log(self, phy_offset: int) -> bool:
        return self.floor <= phy_offset < self.log.get_max_offset()
