"""Buckets of topics: a reader of a few topics loads the queues of their buckets alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from hashlib import blake2b

__all__ = [
    "BUCKETS",
    "BUCKET_DIGEST_SIZE",
    "TopicBuckets",
    "bucket_digests",
    "bucket_of",
    "text_digest",
]

#: The number of buckets. `clean_stop` has a digest for each.
BUCKETS = 256
BUCKET_DIGEST_SIZE = 8


def bucket_of(topic: str) -> int:
    """Return the number of a topic's bucket."""
    return zlib.crc32(topic.encode("utf-8", "surrogatepass")) % BUCKETS


def bucket_digests(texts: Iterable[tuple[str, str]]) -> bytes:
    """Return the digests of all buckets, one after the other, from (topic, text)."""
    lines: dict[int, list[str]] = {}
    for topic, text in texts:
        lines.setdefault(bucket_of(topic), []).append(text)
    found = bytearray(BUCKETS * BUCKET_DIGEST_SIZE)
    for number, of_bucket in lines.items():
        found[_place_of(number)] = text_digest("\n".join(sorted(of_bucket)), BUCKET_DIGEST_SIZE)
    return bytes(found)


def text_digest(text: str, size: int) -> bytes:
    """Return a digest of `size` bytes of a text, which may have undecodable names of files."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).digest()


def _place_of(bucket: int) -> slice:
    return slice(bucket * BUCKET_DIGEST_SIZE, (bucket + 1) * BUCKET_DIGEST_SIZE)


class TopicBuckets:
    """The buckets of some topics.

    A bucket is loaded as a whole, so that its digest in `clean_stop` proves the ends of its queues.

    Parameters
    ----------
    topics : the topics that are to be read, whether the store has them or not
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.numbers = frozenset(map(bucket_of, topics))

    def have_equal(self, digests: bytes, others: bytes) -> bool:
        """Return whether `bucket_digests` of these buckets are equal."""
        places = map(_place_of, self.numbers)
        return all(digests[place] == others[place] for place in places)

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and bucket_of(topic) in self.numbers
