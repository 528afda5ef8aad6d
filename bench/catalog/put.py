"""Puts with tag and key under async flush, one by one and in batches."""

from __future__ import annotations

from bench.model import BASE, Group, Options, Variant, java, ours, peer

PUT_THREADS = "put + dispatch"
#: Bytes of a record with a 1 KiB or 128 B body, a tag and a key.
RECORD_1K = 1141
RECORD_128 = 245
JAVA_PUT = (
    "DefaultMessageStore.putMessage, one call per message; CRC, dispatch thread, index and flush "
    "service enabled; the loop creates the message object and its properties text"
)
OURS_PUT = (
    "Store.put, one call per message; the same bytes on disk; CRC, dispatch thread, index and "
    "flush service enabled"
)
OURS_MANY = (
    "Store.put_many, 10,000 messages per call; the loop creates lists of bodies, tags and keys and "
    "an array of queue ids; otherwise as put"
)
LMDB_LAYOUT = (
    "(queue, offset) → CRC, tag, key, body; a second database maps the key to (queue, offset)"
)
LMDB = f"{LMDB_LAYOUT}; sync off, writemap; a thread syncs twice a second, like our flush service"
SQLITE_LAYOUT = "one table with the body's CRC, unique index on (queue, offset), index on the key"
SQLITE = (
    f"WAL, synchronous=NORMAL, {SQLITE_LAYOUT}; fsync only at checkpoints, every 128 MiB of its "
    "log (wal_autocheckpoint=32768: 11 fsyncs for 100,000 puts in transactions of 1000; 107 with "
    "the default of 1000 pages)"
)
QUEUE_ONLY = (
    "SQLiteQueue with defaults: one fsynced transaction per put, pickled, **no key lookup**"
)
CACHE = "Cache.push to one deque per queue, and Cache.set(key → entry); with the CRC, pickled"


def put_peers(body: int, *, all_of_them: bool) -> tuple[Variant, ...]:
    """Return the peers, each in transactions of 1000 and with single puts."""

    bodies = "transactions of 1000; **no {}, no tag, no CRC**"
    single, thousand = "; one transaction per put", {"per_commit": 1000}
    plain = {**thousand, "plain": 1}
    rust = (
        "LocalFileMessageStore::put_message, each awaited; CRC, dispatch, index and flush service "
        "enabled; micro-batches (1.0.0: up to 32 puts or 50 µs) and timer wheel disabled, "
        "otherwise defaults"
    )
    work: Options = {"what": "put", "body": body}
    found: list[tuple[str, str, Options, str, float]] = [
        ("LMDB, 1000 a transaction", "lmdb", thousand, LMDB, 0.5),
        ("SQLite, 1000 a transaction", "sqlite", thousand, SQLITE, 0.1),
    ]
    more: list[tuple[str, str, Options, str, float]] = [
        ("LMDB, single puts", "lmdb", {}, LMDB + single, 0.1),
        ("SQLite, single puts", "sqlite", {}, SQLITE + single, 0.05),
        ("LMDB, bodies only", "lmdb", plain, bodies.format("key database"), 0.5),
        ("SQLite, bodies only", "sqlite", plain, bodies.format("index on the key"), 0.1),
        ("persist-queue", "persist_queue", {}, QUEUE_ONLY, 0.003),
        ("diskcache, single puts", "diskcache", {}, CACHE, 0.01),
        ("diskcache, 1000 a transaction", "diskcache", thousand, CACHE, 0.03),
    ]

    def peers(rows: list[tuple[str, str, Options, str, float]]) -> list[Variant]:
        return [
            peer(name, {**work, "peer": which, **options}, words, share)
            for name, which, options, words, share in rows
        ]

    return (
        *peers(found),
        Variant("rocketmq-rust", "rust", work, PUT_THREADS, rust, share=0.1),
        *peers(more if all_of_them else []),
    )


def empty_call(options: Options, loop: str, beside: str = "") -> Variant:
    """Return the variant that measures the loop of a row and its calls alone."""
    row = beside or "put"
    words = (
        f"the loop of {row}, calling an empty compiled method with the signature of {row}: the "
        "cost of CPython's loop and call on one thread"
    )
    name = f"empty compiled call, {beside}" if beside else "empty compiled call"
    options = {**options, "what": "empty_call", "loop": loop}
    return Variant(name, "empty", options, "1", words, beside=beside)


def encoding_call(options: Options, loop: str, beside: str = "") -> Variant:
    """Return the variant that also copies the bytes of each record into memory."""
    words = (
        "the same loop, calling a compiled method that copies the texts of the record into a "
        "buffer of 1 MiB, reads the clock and computes the body's CRC; no check, lock, file, queue "
        "or index"
    )
    name = f"encoding call, {beside}" if beside else "encoding call"
    options = {**options, "what": "empty_call", "loop": loop, "encode": 1}
    return Variant(name, "empty", options, "1", words, beside=beside)


def map_limits(record: int, body: int) -> tuple[Variant, ...]:
    """Return C programs that only fault pages in, store records and compute the CRC."""
    words = "C: CRC of the body and memcpy of the record into a mapped, allocated file; "
    alone, helped = "faults pages in itself", "a helper thread faults pages in ahead"
    zeros = ", after writing zeros in chunks of 2 MiB"
    collected = "records collected in a buffer of 256 KiB; pwrite of the buffer"
    both, over = "store + page faults", "C stores over zeros"
    ways: tuple[tuple[str, str, Options, str], ...] = (
        ("C stores, 1 thread", "1", {}, words + alone),
        ("C stores, helper ahead", both, {"helper": 1}, words + helped),
        (f"{over}, 1 thread", "1", {"zeros": 1}, words + alone + zeros),
        (f"{over}, helper ahead", both, {"zeros": 1, "helper": 1}, words + helped + zeros),
        ("C writes", "1", {"write": 1}, f"C: CRC of the body; {collected}"),
    )
    sizes = {"record": record, "body": body}
    return tuple(
        Variant(name, "limit:map_store", {**sizes, **more}, threads, text)
        for name, threads, more, text in ways
    )


PUT_GROUPS = (
    Group(
        "put",
        "Put 1 KiB with tag and key, async flush, until queryable",
        (
            java({"what": "put", "body": 1024}, PUT_THREADS, JAVA_PUT),
            ours("put", {"what": "put", "body": 1024}, PUT_THREADS, OURS_PUT, 3.0),
            ours("put_many", {"what": "put_many", "body": 1024}, PUT_THREADS, OURS_MANY),
            empty_call({"body": 1024}, "put"),
            *map_limits(RECORD_1K, 1024),
            *put_peers(1024, all_of_them=True),
        ),
        count=1_000_000,
        smoke=2_000,
        record=RECORD_1K,
    ),
    Group(
        "put128",
        "Put 128 B with tag and key, async flush, until queryable",
        (
            java({"what": "put", "body": 128}, PUT_THREADS, JAVA_PUT),
            ours("put", {"what": "put", "body": 128}, PUT_THREADS, OURS_PUT, 1.25),
            ours("put_many", {"what": "put_many", "body": 128}, PUT_THREADS, OURS_MANY, 4.0),
            empty_call({"body": 128}, "put"),
            *map_limits(RECORD_128, 128),
            *put_peers(128, all_of_them=False),
        ),
        count=3_000_000,
        smoke=2_000,
        record=RECORD_128,
    ),
    Group(
        "batch",
        "Put batches of 32 × 1 KiB, until queryable",
        (
            java(
                {"what": "batch", "body": 1024, "batch": 32},
                PUT_THREADS,
                "putMessages of 32; the loop creates and encodes the messages",
            ),
            ours(
                "put_batch",
                {"what": "batch", "body": 1024, "batch": 32},
                PUT_THREADS,
                "Store.put_batch of 32 with columns of tags and keys; the loop creates the lists",
                goals=((2.0, BASE), (0.5, "C writes")),
            ),
            ours(
                "put_many",
                {"what": "put_many", "body": 1024},
                PUT_THREADS,
                OURS_MANY,
                goals=((2.5, BASE), (0.5, "C writes")),
            ),
            ours(
                "put_batch of dictionaries",
                {"what": "batch_items", "body": 1024, "batch": 32},
                PUT_THREADS,
                "Store.put_batch of 32 dictionaries that the loop creates; otherwise as put_batch",
            ),
            empty_call({"body": 1024, "batch": 32}, "batch", "put_batch"),
            empty_call({"body": 1024}, "put_many", "put_many"),
            *map_limits(RECORD_1K, 1024),
            peer(
                "LMDB, 32 a transaction",
                {"what": "put", "body": 1024, "peer": "lmdb", "per_commit": 32},
                LMDB,
                0.5,
            ),
            peer(
                "SQLite, 32 a transaction",
                {"what": "put", "body": 1024, "peer": "sqlite", "per_commit": 32},
                SQLITE,
                0.1,
            ),
        ),
        count=1_000_000,
        smoke=2_048,
        record=RECORD_1K,
    ),
)
