"""Recognise a queue whose topic was removed and made again since it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.consume_queue.units import PRE_BLANK
from pyrocketstore.display import printable

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.queue import ConsumeQueue

__all__ = ["UnitMark", "mark_before", "restart_text", "was_made_again"]


class UnitMark(NamedTuple):
    """A message of a queue: the queue's `content`, the queue offset and the physical offset."""

    content: object
    queue_offset: int
    phy_offset: int


def mark_before(queue: ConsumeQueue, queue_offset: int) -> UnitMark | None:
    """Return the message before a queue offset, None without one. Raises StoreIOError."""
    unit = queue.reader.unit(queue_offset - 1) if queue_offset > 0 else None
    if unit is None or unit == PRE_BLANK:
        return None
    return UnitMark(queue.content, queue_offset - 1, unit[0])


def was_made_again(queue: ConsumeQueue, mark: UnitMark | None) -> bool:
    """Return whether a queue ends before a message that it had, or has a later one there.

    A queue that is made again has another `content`; so may one that a refresh has read on.

    Raises StoreIOError.
    """
    if mark is None or queue.content is mark.content:
        return False
    if queue.get_max_offset_in_queue() <= mark.queue_offset:
        return True
    unit = queue.reader.unit(mark.queue_offset)
    return unit is not None and unit[0] > mark.phy_offset


def restart_text(topic: str, queue_id: int, place: str, reader: str, low: int) -> str:
    """Return the warning that a `reader` which was at a `place` of a queue continues at `low`."""
    return printable(
        f"{topic}/{queue_id}: the queue does not continue at {place}: the topic was removed and "
        f"made again, or the log was cut; {reader} continues at {low}"
    )
