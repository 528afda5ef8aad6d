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

    def one(name: str, words: str, share: float, **options: object) -> Variant:
        return peer(name, {"what": "put", "body": body, **options}, words, share)

    found = [
        one("LMDB, 1000 a transaction", LMDB, 0.5, peer="lmdb", per_commit=1000),
        one("SQLite, 1000 a transaction", SQLITE, 0.1, peer="sqlite", per_commit=1000),
    ]
    rust = {"what": "put", "body": body}
    words = (
        "LocalFileMessageStore::put_message, each awaited; CRC, dispatch, index and flush service "
        "enabled; micro-batches (1.0.0: up to 32 puts or 50 µs) and timer wheel disabled, "
        "otherwise defaults"
    )
    found.append(Variant("rocketmq-rust", "rust", rust, PUT_THREADS, words, share=0.1))
    if not all_of_them:
        return tuple(found)
    found += [
        one("LMDB, single puts", LMDB + "; one transaction per put", 0.1, peer="lmdb"),
        one("SQLite, single puts", SQLITE + "; one transaction per put", 0.05, peer="sqlite"),
        one(
            "LMDB, bodies only",
            "transactions of 1000; **no key database, no tag, no CRC**",
            0.5,
            peer="lmdb",
            per_commit=1000,
            plain=1,
        ),
        one(
            "SQLite, bodies only",
            "transactions of 1000; **no index on the key, no tag, no CRC**",
            0.1,
            peer="sqlite",
            per_commit=1000,
            plain=1,
        ),
        one("persist-queue", QUEUE_ONLY, 0.003, peer="persist_queue"),
        one("diskcache, single puts", CACHE, 0.01, peer="diskcache"),
        one("diskcache, 1000 a transaction", CACHE, 0.03, peer="diskcache", per_commit=1000),
    ]
    return tuple(found)


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
    zeros = ", after writing zeros in chunks of 2 MiB"
    options = {"record": record, "body": body}
    program = "limit:map_store"
    alone, helped = "faults pages in itself", "a helper thread faults pages in ahead"
    return (
        Variant("C stores, 1 thread", program, options, "1", words + alone),
        Variant(
            "C stores, helper ahead",
            program,
            {**options, "helper": 1},
            "store + page faults",
            words + helped,
        ),
        Variant(
            "C stores over zeros, 1 thread",
            program,
            {**options, "zeros": 1},
            "1",
            words + alone + zeros,
        ),
        Variant(
            "C stores over zeros, helper ahead",
            program,
            {**options, "zeros": 1, "helper": 1},
            "store + page faults",
            words + helped + zeros,
        ),
        Variant(
            "C writes",
            program,
            {**options, "write": 1},
            "1",
            "C: CRC of the body; records collected in a buffer of 256 KiB; pwrite of the buffer",
        ),
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
