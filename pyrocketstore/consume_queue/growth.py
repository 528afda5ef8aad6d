"""Follow a queue that another process appends to: find the units that it has written since.

The result is a new object of the queue, so that readers of the old one are not disturbed. It shares
the files that cannot change any more.
"""

from __future__ import annotations

import numpy as np

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, QueueUnits

__all__ = ["QueueChanged", "take_written_units"]


class QueueChanged(Exception):
    """A queue is not what was known, with units appended."""


def take_written_units(
    queue: ConsumeQueue, old: ConsumeQueue | None, stop: int, log_end: int
) -> None:
    """Fill a new object of a read-only queue with the units of an old one, and with those that are
    on disk after them.

    Units of the old object that recovery has built in memory are taken from disk where the owner
    has written the same by now, and are copied otherwise.

    Parameters
    ----------
    queue : ConsumeQueue without files
    old : the known object of the queue, None: all units are new
    stop : int, queue offset: units from there on are left out
    log_end : int, bytes of the log: units that name later bytes, and all after them, are left out

    Raises QueueChanged; StoreIOError, StoreCorruptionError. The disk and `old` do not change.
    """
    files = queue.mapped_file_queue
    size = files.mapped_file_size
    known = () if old is None else old.mapped_file_queue.mapped_files
    kept = []
    for file in known:
        if file.mode != "read":
            break
        kept.append(file)
    base = 0 if not known else known[0].file_from_offset
    opened = []
    if kept:
        base = kept[-1].file_from_offset + kept[-1].wrote
        if kept[-1].wrote < size:
            opened = [files.settings.open(queue.env, kept.pop().path, mode="read")]
    end = stop * CQ_STORE_UNIT_SIZE
    if base < end and (not opened or opened[-1].file_from_offset + size < end):
        start = opened[-1].file_from_offset + size if opened else (base if known else 0)
        opened += files.open_from(start)
    opened = [file for file in opened if file.file_from_offset < max(end, base)]
    for file in opened:
        file.set_positions(min(end - file.file_from_offset, size))
    files.mapped_files = (*kept, *opened)
    if not files.check_self():
        raise QueueChanged
    if opened and not known:
        base = opened[0].file_from_offset
    elif opened and opened[0].file_from_offset > base:
        raise QueueChanged
    first = base // CQ_STORE_UNIT_SIZE
    memory = _units(old, first)
    count = _valid_count(_read(queue, first, stop), memory, log_end)
    queue.cut_to(base + count * CQ_STORE_UNIT_SIZE, drop_empty=False)
    if known and not files.mapped_files:
        files.get_last_mapped_file(base)  # in memory: the owner has made no file yet
    queue.set_end(queue.reader.last_phy_offset())
    left = slice(count, None)
    if memory is not None and count < len(memory.size):
        queue.put_units(*memory.take(left))


def _units(queue: ConsumeQueue | None, first: int) -> QueueUnits | None:
    """Return the units of a queue from queue offset `first` on; None without a queue."""
    return None if queue is None else _read(queue, first, queue.get_max_offset_in_queue())


def _read(queue: ConsumeQueue, first: int, stop: int) -> QueueUnits:
    return queue.reader.columns(first, max(0, stop - first))


def _valid_count(units: QueueUnits, memory: QueueUnits | None, log_end: int) -> int:
    """Return how many units are valid. Raises QueueChanged if one of them differs from memory."""
    begin, size, code = units
    valid = (size > 0) & (units.is_inside(0, log_end) | units.is_pre_blank())
    wrong = np.flatnonzero(~valid)
    count = int(wrong[0]) if len(wrong) else len(valid)
    if memory is not None:
        both = min(count, len(memory.size))
        same = (
            (begin[:both] == memory.phy_offset[:both])
            & (size[:both] == memory.size[:both])
            & (code[:both] == memory.tags_code[:both])
        )
        if not same.all():
            raise QueueChanged
    return count
