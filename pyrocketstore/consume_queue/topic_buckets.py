"""Buckets of topics: a reader of a few topics loads the queues of their buckets alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

__all__ = ["BUCKETS", "TopicBuckets", "bucket_of"]

#: The number of buckets. `clean_stop` has a digest for each.
BUCKETS = 256


def bucket_of(topic: str) -> int:
    """Return the number of a topic's bucket."""
    return zlib.crc32(topic.encode("utf-8", "surrogatepass")) % BUCKETS


class TopicBuckets:
    """The buckets of some topics.

    A bucket is loaded as a whole, so that its digest in `clean_stop` proves the ends of its queues.

    Parameters
    ----------
    topics : the topics that are to be read, whether the store has them or not
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.numbers = frozenset(map(bucket_of, topics))

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and bucket_of(topic) in self.numbers
