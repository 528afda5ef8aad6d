"""Put a record into the further queues that its properties name (INNER_MULTI_DISPATCH)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.results import DispatchRequest

if TYPE_CHECKING:
    from pyrocketstore.commit_log._scan import TopicMinOffsets

LOG = logger(__name__)


def put_unit(
    request: DispatchRequest,
    find_consume_queue: Callable[[str, int], ConsumeQueue | None],
    *,
    multi: bool,
    enable_lmq: bool,
    min_offsets: TopicMinOffsets,
) -> None:
    """Append the unit of a record to its queue, and with `multi` to the further queues that it
    names; queues get no unit before the minimum of their topic in `min_offsets`."""
    if request.commit_log_offset >= min_offsets.of(request.topic):
        queue = find_consume_queue(request.topic, request.queue_id)
        if queue is None or not queue.put_message_position_info_wrapper(request):
            return
    if multi:
        multi_dispatch_lmq_queue(
            request, find_consume_queue, enable_lmq=enable_lmq, min_offsets=min_offsets
        )


def multi_dispatch_lmq_queue(
    request: DispatchRequest,
    find_consume_queue: Callable[[str, int], ConsumeQueue | None],
    *,
    enable_lmq: bool,
    min_offsets: TopicMinOffsets | None = None,
) -> None:
    """Append the unit of a record to every further queue that its properties name.

    Parameters
    ----------
    find_consume_queue : callable(topic, queue_id)
    enable_lmq : bool, light queues have queue id 0
    min_offsets : TopicMinOffsets or None, queues of these topics get no unit before them

    Source: RocketMQ 4.9.3 ConsumeQueue#multiDispatchLmqQueue.
    Differs: an offset that is not a number is logged, and the other queues get their units.
    """
    properties = request.properties_map or {}
    names = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "")
    offsets = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "")
    found = further_queues(names, offsets, request.queue_id, light_queues=enable_lmq)
    if found is None:
        LOG.error("%s: queues %r do not match offsets %r", request.topic, names, offsets)
        return
    for name, queue_id, queue_offset in found:
        if queue_offset is None:
            LOG.error("%s: queue %s has no numeric offset in %r", request.topic, name, offsets)
            continue
        if min_offsets and request.commit_log_offset < min_offsets.of(name):
            continue
        queue = find_consume_queue(name, queue_id)
        if queue is not None:
            queue.put_light(request, queue_offset)
