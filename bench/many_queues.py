"""Groups with many queues: how long a flush takes after a put to each of them."""

from __future__ import annotations

from collections.abc import Iterator

from groups import Group, java, ours

DIRTY_QUEUES = (100, 10_000)
JAVA_FLUSH = (
    "DefaultMessageStore.flush, ConsumeQueue.flush(0) for each queue, StoreCheckpoint.flush; what "
    "4.9.3's services do each minute"
)
OURS_FLUSH = "Store.flush: log, queues and checkpoint, in this order"


def flush_groups() -> Iterator[Group]:
    """Return the points of the curve of flushes."""
    for queues in DIRTY_QUEUES:
        options = {"what": "flush_queues", "body": 128}
        yield Group(
            f"grow_flush_{queues}",
            f"Flush after one put of 128 B to each of {queues:,} queues",
            (
                java({**options, "messageIndexEnable": "false"}, "1", JAVA_FLUSH),
                ours("flush", options, "1", OURS_FLUSH),
            ),
            count=queues,
            smoke=80,
            unit="queue",
            axis="dirty queues, one flush",
            at=queues,
        )
