"""Where the queues of a store begin for a reader that recovers it."""

from __future__ import annotations

import dataclasses

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.plan.open_snapshot import retried
from pyrocketstore.spark.plan.snapshot import StoreSnapshot

__all__ = ["recovered_starts"]

LOG = logger(__name__)


def recovered_starts(place: StorePlace, options: SourceOptions) -> dict[tuple[str, int], int]:
    """Return the first queue offset of the selected range of each queue, as a batch plans it.

    It may be less than that of the files: a batch reads messages without units from the log, and
    reports damaged units.

    Returns {} with a warning for a store that cannot be opened.
    """
    lenient = dataclasses.replace(options, fail_on_data_loss=False)

    def starts() -> dict[tuple[str, int], int]:
        topics = options.named_topics()
        with StoreSnapshot(place, options.broker_conf, "skip", topics) as snapshot:
            return {
                (queue.topic, queue.queue_id): snapshot.range_of(queue, lenient).start
                for queue in snapshot.queues(options)
            }

    try:
        return retried(starts)
    except StoreError as error:
        text = "whether the log has messages before the begin of a queue is unknown"
        LOG.warning("rocketmq-store: %s: %s: %s", place.broker_name, text, error)
        return {}
