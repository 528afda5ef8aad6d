"""Reads in queue order, and queries by key."""

from __future__ import annotations

from bench.model import BASE, Group, Variant, java, ours, peer

READ_PEERS = "with the same messages; bodies copied and their CRC checked"
CHECKED_OBJECTS = "objects, CRC checked"
READ = "body copied; tags, keys and one property read"
CHECKED_QUERY = "query, CRC checked"
OFFSETS = f"{BASE}, offsets"


def _peers(what: str, beside: str, *rows: tuple[str, str, str, float]) -> list[Variant]:
    return [
        peer(name, {"what": what, "peer": which}, words, share, beside)
        for name, which, words, share in rows
    ]


READ_GROUPS = (
    Group(
        "get",
        "Read messages in queue order, 32 per call",
        (
            java(
                {"what": "get", "pull": 32}, "1", f"getMessage of 32, each message decoded; {READ}"
            ),
            ours("objects", {"what": "get"}, "1", f"Store.read, message objects; {READ}", 1.0),
            ours(
                "columns without body",
                {"what": "get_columns"},
                "1",
                "Store.read_batch of seven columns, tags and keys included; no Python objects",
                floors=((10e6, "msg/s"),),
            ),
            ours(
                "columns with body",
                {"what": "get_columns", "bodies": 1},
                "1",
                "Store.read_batch with bodies as an eighth column; GB/s counts only bodies",
                floors=((3.0, "GB/s"),),
            ),
            ours(
                CHECKED_OBJECTS,
                {"what": "get_checked"},
                "1",
                "Store.read; the zlib.crc32 of each body compared, as for the peers",
            ),
            *_peers(
                "get",
                CHECKED_OBJECTS,
                ("LMDB", "lmdb", f"cursor along each queue, {READ_PEERS}", 1.0),
                ("SQLite", "sqlite", f"SELECT … ORDER BY queue_offset, {READ_PEERS}", 0.2),
                ("persist-queue", "persist_queue", f"get() without task_done, {READ_PEERS}", 0.003),
                ("diskcache", "diskcache", f"get() of each entry, {READ_PEERS}", 0.03),
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        input=1_000_000,
    ),
    Group(
        "query",
        "Query messages by key",
        (
            java({"what": "query"}, "1", f"queryMessage, each hit decoded; {READ}"),
            ours("query", {"what": "query"}, "1", f"Store.query, message objects; {READ}", 1.0),
            ours(
                "query_many, messages",
                {"what": "query_many_messages"},
                "1",
                f"Store.query_many of 1000 keys, then Store.get_many of the hits; {READ}",
            ),
            java(
                {"what": "query", "places": "true"},
                "1",
                "queryMessage; reads the queue and both offsets from each hit's record, decodes "
                "nothing and compares no key",
                OFFSETS,
                "query_many, offsets",
            ),
            ours(
                "query_many, offsets",
                {"what": "query_many"},
                "1",
                "Store.query_many of 1000 keys: columns of queues and offsets; keys compared",
                2.0,
                beside=OFFSETS,
            ),
            ours(
                CHECKED_QUERY,
                {"what": "query_checked"},
                "1",
                "Store.query; the zlib.crc32 of each body compared, as for the peers",
            ),
            *_peers(
                "query",
                CHECKED_QUERY,
                ("LMDB", "lmdb", f"two gets in one transaction, CRC checked; {READ}", 0.2),
                ("SQLite", "sqlite", f"SELECT … WHERE key=?, CRC checked; {READ}", 0.2),
            ),
        ),
        count=500_000,
        smoke=500,
        input=1_000_000,
        unit="query",
    ),
)
