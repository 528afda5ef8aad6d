"""Multi-dispatch: the further queues that a record names in its properties."""

from __future__ import annotations

from typing import NamedTuple

from pyrocketstore.record.message import LMQ_PREFIX, java_split, parse_java_int


class FurtherQueue(NamedTuple):
    """A queue that a record belongs to in addition to its own queue."""

    topic: str
    queue_id: int
    #: None where the text is not a number for Java.
    queue_offset: int | None


def further_queues(
    names: str, offsets: str, queue_id: int, *, light_queues: bool
) -> list[FurtherQueue] | None:
    """Parse INNER_MULTI_DISPATCH and INNER_MULTI_QUEUE_OFFSET of one record, as 4.9.3 does.

    Parameters
    ----------
    names, offsets : str, the values of the two properties
    queue_id : int, of the record
    light_queues : bool, whether a name that begins with %LMQ% is a light queue, whose id is 0

    Returns
    -------
    list of FurtherQueue; None where the two properties have different numbers of entries, so that
    the record belongs to its own queue alone.

    Source: RocketMQ 4.9.3 ConsumeQueue#multiDispatchLmqQueue (String.split, Long.parseLong).
    """
    name_list, offset_list = java_split(names), java_split(offsets)
    if len(name_list) != len(offset_list):
        return None
    return [
        FurtherQueue(
            name,
            0 if light_queues and name.startswith(LMQ_PREFIX) else queue_id,
            parse_java_int(text, 64),
        )
        for name, text in zip(name_list, offset_list, strict=True)
    ]
