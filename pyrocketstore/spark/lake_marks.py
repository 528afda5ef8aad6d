"""Whether a store goes on where a lake, or a stream, has got to: by the last message it took."""

from __future__ import annotations

import bisect
import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence

from pyrocketstore.env import Env
from pyrocketstore.spark.manifest import Mark
from pyrocketstore.spark.records import MESSAGE_MAGIC_CODE
from pyrocketstore.spark.snapshot import (
    DataLossError,
    LogFile,
    QueueRange,
    StoreSnapshot,
)
from pyrocketstore.spark.units import RangeUnits

#: totalSize, magicCode, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, born time
_HEAD = struct.Struct(">iiiiiqqiq")
_BORN_HOST_V6 = 1 << 4
#: Bytes of a record up to its store time, with an IPv6 born host.
_HEAD_SIZE = _HEAD.size + 20 + 8
#: A log that begins behind a mark was stored later. Wall clocks are set back by less than this.
CLOCK_SLACK_MS = 3_600_000


class RecordMarks:
    """The marks that a store's queues have now, beside those that somebody has kept. Threads: one.

    Parameters
    ----------
    log_files : those of the store, in order
    log_end : int, one past the last record, bytes of the log
    whole_of : callable(topic, queue id), all that there is of a queue; None where it is not there
    """

    def __init__(
        self,
        env: Env,
        log_files: tuple[LogFile, ...],
        log_end: int,
        whole_of: Callable[[str, int], QueueRange | None],
    ) -> None:
        self._env = env
        self.log_files = log_files
        self._log_end = log_end
        self._whole_of = whole_of

    def contradiction(self, marks: Mapping[str, Mapping[int, Mark]]) -> str:
        """How the log contradicts the latest mark (topic -> queue id -> mark) that tells its
        record; "" where it does not.

        A log that begins behind that record is taken as the same, unless it begins with a message
        that was stored much earlier. Raises StoreIOError.
        """
        told = [
            (mark.phy_offset, topic, queue_id)
            for topic, queues in marks.items()
            for queue_id, mark in queues.items()
            if mark.store_timestamp is not None
        ]
        if not told:
            return ""
        phy_offset, topic, queue_id = max(told)
        mark = marks[topic][queue_id]
        assert mark.store_timestamp is not None
        where = f"a message of byte {phy_offset} of the log, stored at {mark.store_timestamp} ms"
        if phy_offset < self._log_end:
            if _file_of(self.log_files, phy_offset) is None:
                first = self._facts(self.log_files[0].from_offset) if self.log_files else None
                if first is None or first[0] + CLOCK_SLACK_MS >= mark.store_timestamp:
                    return ""
                return f"{where}, and the log begins behind it with one of {first[0]} ms"
            found = self._facts(phy_offset, mark.size)
            if found == (mark.store_timestamp, mark.body_crc):
                return ""
            # A record that was damaged since has its unit still.
            if found is None and self._queue_has(topic, queue_id, mark):
                return ""
        return f"{where}, and it is not there"

    def _queue_has(self, topic: str, queue_id: int, mark: Mark) -> bool:
        whole = self._whole_of(topic, queue_id)
        return whole is not None and self._unit(whole, mark.queue_offset) == (
            mark.phy_offset,
            mark.size,
        )

    def is_anew(self, whole: QueueRange, mark: Mark) -> bool:
        """Whether a queue, all of which is `whole`, is not the one of the mark: its topic was
        deleted and made again, say. Where the mark's unit was deleted nobody knows: no.

        Raises StoreIOError.
        """
        if whole.stop <= mark.queue_offset:
            return True
        found = self._unit(whole, mark.queue_offset)
        return found is not None and found != (mark.phy_offset, mark.size)

    def mark_at(self, whole: QueueRange, queue_offset: int, *, told: bool = True) -> Mark | None:
        """The mark that a message makes, None where its unit is gone; without `told` its record is
        not looked at. Raises StoreIOError."""
        unit = self._unit(whole, queue_offset)
        if unit is None:
            return None
        mark = Mark(queue_offset, *unit, None, None)
        return self.told(mark) if told else mark

    def told(self, mark: Mark) -> Mark:
        """A mark with what its record tells, as far as that is there. Raises StoreIOError."""
        time, crc = self._facts(mark.phy_offset, mark.size) or (None, None)
        return mark._replace(store_timestamp=time, body_crc=crc)

    def _unit(self, whole: QueueRange, queue_offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of a unit that names a message."""
        pinned = dataclasses.replace(whole, start=queue_offset, stop=queue_offset + 1)
        units = RangeUnits(self._env, pinned, fail_on_data_loss=False)
        found = units.read(queue_offset, queue_offset + 1)
        if not len(found.size) or found.size[0] <= 0 or found.is_pre_blank()[0]:
            return None
        return int(found.phy_offset[0]), int(found.size[0])

    def _facts(self, phy_offset: int, size: int | None = None) -> tuple[int, int] | None:
        """Of a record, its store time and its body's CRC; None where none begins there, or one of
        another size."""
        file = _file_of(self.log_files, phy_offset)
        if file is None:
            return None
        position = phy_offset - file.from_offset
        head = self._env.read_part(file.path, position, _HEAD_SIZE)
        if len(head) < _HEAD.size:
            return None
        total, magic, crc, _, _, _, own_place, sys_flag, _ = _HEAD.unpack_from(head)
        # A damaged unit may say any size.
        if (magic, own_place) != (MESSAGE_MAGIC_CODE, phy_offset) or total > file.size - position:
            return None
        at = _HEAD.size + (20 if sys_flag & _BORN_HOST_V6 else 8)
        if len(head) < at + 8 or (size is not None and total != size):
            return None
        return int.from_bytes(head[at : at + 8], "big", signed=True), int(crc)


class StoreMarks(RecordMarks):
    """As RecordMarks, of a store that is open for planning; `log_files` are the snapshot's."""

    def __init__(self, snapshot: StoreSnapshot, log_files: tuple[LogFile, ...]) -> None:
        super().__init__(snapshot.store.env, log_files, snapshot.max_phy_offset, self._whole)
        self.snapshot = snapshot
        self.label = snapshot.place.broker_name

    def _whole(self, topic: str, queue_id: int) -> QueueRange | None:
        queue = self.snapshot.store.get_consume_queue_table().get(topic, {}).get(queue_id)
        return None if queue is None else self.snapshot.whole_range(queue)

    def check_store(self, marks: Mapping[str, Mapping[int, Mark]]) -> None:
        """See whether the log has the record of the lake's latest mark.

        Raises DataLossError where this is another store, or one that has lost its end;
        StoreIOError.
        """
        text = self.contradiction(marks)
        if text:
            raise DataLossError(
                f"{self.label}: the lake has {text}: this is another store than the one that was "
                f"{self.label!r} before, or it has lost its end. Each store of a lake needs a "
                "label of its own"
            )


def _file_of(files: Sequence[LogFile], phy_offset: int) -> LogFile | None:
    """The file of a place in the log; files are in its order."""
    number = bisect.bisect_right(files, phy_offset, key=lambda file: file.from_offset) - 1
    if number < 0 or phy_offset >= files[number].from_offset + files[number].size:
        return None
    return files[number]
