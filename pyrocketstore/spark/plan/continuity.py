"""Check that a store continues where a lake or a stream stopped, by the last message read."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from pyrocketstore.record._record import HEADER_SIZE, RecordHeader
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.task_types import LogFile, Mark, QueueRange
from pyrocketstore.system.env import Env

#: A log that begins after a mark has later store times. Clocks are set back by less than this.
CLOCK_SLACK_MS = 3_600_000


class RecordMarks:
    """Compares kept marks with the queues that a store has now. Threads: one.

    Parameters
    ----------
    snapshot : the store
    log_files : those of its log, in order
    """

    def __init__(self, snapshot: StoreSnapshot, log_files: tuple[LogFile, ...]) -> None:
        self.snapshot = snapshot
        self._env = snapshot.store.env
        self.log_files = log_files

    def contradiction(self, marks: Mapping[str, Mapping[int, Mark]]) -> str:
        """Return how the log contradicts the latest mark (topic -> queue id -> mark) with record
        fields; "" without a contradiction.

        A log that begins after that record counts as the same, unless its first message was stored
        much earlier. Raises StoreIOError.
        """
        known = [
            (mark.phy_offset, topic, queue_id)
            for topic, queues in marks.items()
            for queue_id, mark in queues.items()
            if mark.store_timestamp is not None
        ]
        if not known:
            return ""
        phy_offset, topic, queue_id = max(known)
        mark = marks[topic][queue_id]
        assert mark.store_timestamp is not None
        where = f"a message of byte {phy_offset} of the log, stored at {mark.store_timestamp} ms"
        if phy_offset < self.snapshot.max_phy_offset:
            if _file_of(self.log_files, phy_offset) is None:
                first = self._facts(self.log_files[0].from_offset) if self.log_files else None
                if first is None or first[0] + CLOCK_SLACK_MS >= mark.store_timestamp:
                    return ""
                return f"{where}, and the log begins after it with a message of {first[0]} ms"
            found = self._facts(phy_offset, mark.size)
            if found == (mark.store_timestamp, mark.body_crc):
                return ""
            # A record that was damaged later still has its unit.
            if found is None and self._queue_has(topic, queue_id, mark):
                return ""
        return f"{where}, which the store does not have"

    def _queue_has(self, topic: str, queue_id: int, mark: Mark) -> bool:
        queue = self.snapshot.store.get_consume_queue(topic, queue_id)
        whole = None if queue is None else self.snapshot.whole_range(queue)
        found = None if whole is None else self._unit(whole, mark.queue_offset)
        return found == (mark.phy_offset, mark.size)

    def is_recreated(self, whole: QueueRange, mark: Mark) -> bool:
        """Whether a queue, with the readable range `whole`, is not the queue of the mark, for
        example because its topic was deleted and created again. False where the mark's unit is
        deleted. Raises StoreIOError.
        """
        if whole.stop <= mark.queue_offset:
            return True
        found = self._unit(whole, mark.queue_offset)
        return found is not None and found != (mark.phy_offset, mark.size)

    def mark_at(
        self, whole: QueueRange, queue_offset: int, *, with_record: bool = True
    ) -> Mark | None:
        """Return the mark of a message, None where its unit is gone. Only `with_record` reads its
        record. Raises StoreIOError."""
        unit = self._unit(whole, queue_offset)
        if unit is None:
            return None
        mark = Mark(queue_offset, *unit, None, None)
        return self.with_record(mark) if with_record else mark

    def with_record(self, mark: Mark) -> Mark:
        """Return a mark with the fields of its record, if that exists. Raises StoreIOError."""
        time, crc = self._facts(mark.phy_offset, mark.size) or (None, None)
        return mark._replace(store_timestamp=time, body_crc=crc)

    def _unit(self, whole: QueueRange, queue_offset: int) -> tuple[int, int] | None:
        """Return (phy_offset, size) of a unit that names a message."""
        return RangeUnits(self._env, whole, fail_on_data_loss=False).message_at(queue_offset)

    def _facts(self, phy_offset: int, size: int | None = None) -> tuple[int, int] | None:
        """Return the store time and the body's CRC of a record; None where no record of that size
        begins there."""
        header = record_header(self._env, self.log_files, phy_offset, size)
        # Bytes that its file does not have have the time -1.
        if header is None or header.store_timestamp == -1:
            return None
        return header.store_timestamp, header.body_crc


def record_header(
    env: Env, files: Sequence[LogFile], phy_offset: int, size: int | None = None
) -> RecordHeader | None:
    """Return the header of a record; None where no record of that size begins there."""
    file = _file_of(files, phy_offset)
    if file is None:
        return None
    position = phy_offset - file.from_offset
    header = RecordHeader(env.read_part(file.path, position, HEADER_SIZE))
    if not header.is_message or header.phy_offset != phy_offset:
        return None
    # A damaged unit may have any size.
    if header.total_size > file.size - position or size not in (None, header.total_size):
        return None
    return header


def _file_of(files: Sequence[LogFile], phy_offset: int) -> LogFile | None:
    """Return the file of a physical offset; `files` are in the log's order."""
    number = bisect.bisect_right(files, phy_offset, key=lambda file: file.from_offset) - 1
    if number < 0 or phy_offset >= files[number].from_offset + files[number].size:
        return None
    return files[number]
