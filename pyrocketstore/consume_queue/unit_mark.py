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


def mark_before(queue: ConsumeQueue, queue_offset: int, log_end: int) -> UnitMark | None:
    """Return the message before a queue offset, None without one. Raises StoreIOError.

    `log_end` is the end of the log (bytes) that is known with the queue. In a store that another
    process owns, another queue may have the files, or may get them: a unit that is missing, or
    names a later byte, becomes a message that is earlier than any that is found there later.
    """
    if queue_offset <= 0:
        return None
    unit = queue.reader.unit(queue_offset - 1)
    if unit == PRE_BLANK:
        return None
    is_known = unit is not None and unit[1] > 0 and unit[0] < log_end
    return UnitMark(queue.content, queue_offset - 1, unit[0] if unit and is_known else -1)


def was_made_again(queue: ConsumeQueue, mark: UnitMark | None, *, if_missing: bool = False) -> bool:
    """Return whether a queue ends before a message that it had, or has a later one there;
    `if_missing` if it has no unit there.

    A queue that is made again has another `content`; so may one that a refresh has read on.

    Raises StoreIOError.
    """
    if mark is None or queue.content is mark.content:
        return False
    if queue.get_max_offset_in_queue() <= mark.queue_offset:
        return True
    unit = queue.reader.unit(mark.queue_offset)
    return if_missing if unit is None else unit[0] > mark.phy_offset


def restart_text(topic: str, queue_id: int, place: str, reader: str, low: int) -> str:
    """Return the warning that a `reader` which was at a `place` of a queue continues at `low`."""
    return printable(
        f"{topic}/{queue_id}: the queue does not continue at {place}: the topic was removed and "
        f"made again, or the log was cut; {reader} continues at {low}"
    )
