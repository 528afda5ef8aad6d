"""Groups that put messages with properties, and the curve by their number."""

from __future__ import annotations

from collections.abc import Iterator

from bench.catalog.put import (
    LMDB_LAYOUT,
    PUT_THREADS,
    RECORD_128,
    empty_call,
    encoding_call,
    map_limits,
)
from bench.model import Group, java, ours, peer

#: Bytes of the properties beside tag and key, with their separators.
UNIQUE_SIZE = 42
CLIENT_SIZE = 68
OWN_SIZE = 25
COUNTS = (0, 1, 5, 12, 50)
JAVA_NAMED = (
    "putMessage, one call per message; the loop creates the message with its map of properties "
    "and their text"
)
OURS_NAMED = "Store.put, one call per message; the loop creates the dictionary of properties"
OURS_MANY_NAMED = (
    "Store.put_many, 10,000 messages per call; the loop creates the lists and dictionaries"
)
JAVA_UNIQUE = "; UNIQ_KEY by MessageClientIDSetter"
OURS_UNIQUE = "; UNIQ_KEY by unique_key=True"
CLIENT = {"body": 128, "named": "client", "unique": 1}
UNIQUE = {"body": 128, "named": 0, "unique": 1}

PROPERTY_GROUPS = (
    Group(
        "put_client",
        "Put 128 B with the properties of a client's message, async flush, until queryable",
        (
            java({**CLIENT, "what": "put"}, PUT_THREADS, JAVA_NAMED + JAVA_UNIQUE),
            ours(
                "put",
                {**CLIENT, "what": "put_named"},
                PUT_THREADS,
                OURS_NAMED + OURS_UNIQUE,
                3.0,
            ),
            ours(
                "put_many",
                {**CLIENT, "what": "put_many_named"},
                PUT_THREADS,
                OURS_MANY_NAMED + OURS_UNIQUE,
                4.0,
            ),
            empty_call(CLIENT, "put_named"),
            encoding_call(CLIENT, "put_named"),
            empty_call(CLIENT, "put_many_named", "put_many"),
            encoding_call(CLIENT, "put_many_named", "put_many"),
            *map_limits(RECORD_128 + UNIQUE_SIZE + CLIENT_SIZE, 128),
            peer(
                "LMDB, 1000 a transaction",
                {"what": "put", "body": 128, "peer": "lmdb_named", "per_commit": 1000},
                f"{LMDB_LAYOUT}, and the text of the properties; the second database also maps "
                "UNIQ_KEY; sync off, writemap; a thread syncs twice a second",
                0.2,
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        record=RECORD_128 + UNIQUE_SIZE + CLIENT_SIZE,
        note="UNIQ_KEY, WAIT, CLUSTER, TAGS, KEYS and two properties of the sender's own; "
        "Store.put refuses WAIT and CLUSTER, so two of its own of the same length stand for them",
    ),
    Group(
        "put_unique",
        "Put 128 B with tag, key and UNIQ_KEY, async flush, until queryable",
        (
            java({**UNIQUE, "what": "put"}, PUT_THREADS, JAVA_NAMED + JAVA_UNIQUE),
            ours("put", {**UNIQUE, "what": "put_named"}, PUT_THREADS, OURS_NAMED + OURS_UNIQUE),
            ours(
                "put_many",
                {**UNIQUE, "what": "put_many_named"},
                PUT_THREADS,
                OURS_MANY_NAMED + OURS_UNIQUE,
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        record=RECORD_128 + UNIQUE_SIZE,
    ),
)


def property_curve() -> Iterator[Group]:
    """Yield the points of the curve: so many properties of the sender's own."""
    for count in COUNTS:
        put = {"body": 128, "named": count}
        yield Group(
            f"grow_properties_{count}",
            f"Put 128 B with tag, key and {count} properties",
            (
                java({**put, "what": "put"}, PUT_THREADS, JAVA_NAMED),
                ours("put", {**put, "what": "put_named"}, PUT_THREADS, OURS_NAMED, 1.0),
                ours(
                    "put_many",
                    {**put, "what": "put_many_named"},
                    PUT_THREADS,
                    OURS_MANY_NAMED,
                    1.0,
                ),
            ),
            count=500_000,
            smoke=2_000,
            record=RECORD_128 + OWN_SIZE * count,
            axis="properties",
            at=count,
        )
