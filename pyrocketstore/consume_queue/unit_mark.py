"""Recognise a queue whose topic was removed and made again since it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.consume_queue.units import PRE_BLANK

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.queue import ConsumeQueue

__all__ = ["UnitMark", "mark_before", "was_made_again"]


class UnitMark(NamedTuple):
    """A message of a queue: its queue offset and its physical offset."""

    queue_offset: int
    phy_offset: int


def mark_before(queue: ConsumeQueue, queue_offset: int) -> UnitMark | None:
    """Return the message before a queue offset, None without one. Raises StoreIOError."""
    unit = queue.reader.unit(queue_offset - 1) if queue_offset > 0 else None
    return None if unit is None or unit == PRE_BLANK else UnitMark(queue_offset - 1, unit[0])


def was_made_again(queue: ConsumeQueue, mark: UnitMark | None) -> bool:
    """Return whether a queue ends before a message that it had, or has a later one there.

    Raises StoreIOError.
    """
    if mark is None:
        return False
    if queue.get_max_offset_in_queue() <= mark.queue_offset:
        return True
    unit = queue.reader.unit(mark.queue_offset)
    return unit is not None and unit[0] > mark.phy_offset
