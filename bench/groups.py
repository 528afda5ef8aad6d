"""The measured work: groups, and in each group the variants that do the same work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Options = Mapping[str, object]

#: The variant that ratios refer to.
BASE = "4.9.3"
#: A ratio, and the names of the rows; the ratio refers to the fastest of them.
Goal = tuple[float, *tuple[str, ...]]
PUT_THREADS = "put + dispatch"
SYNC: Options = {"sync": 1}
#: Bytes of a record with a 1 KiB or 128 B body, a tag and a key.
RECORD_1K = 1141
RECORD_128 = 245


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to do a group's work.

    - `program`: java, ours, empty, peers, rust or limit:NAME.
    - `words`: what the variant does, for the page.
    - `goals`: ratios to other rows; `floors`: absolute rates, as (rate, "msg/s" or "GB/s").
    - `beside`: the row to compare with, if not the first one: for ours a row of 4.9.3, for all
      others a row of ours.
    - `share`: the part of the group's count that one unit of work does.
    - `answers`: whether the answer is known in advance.
    """

    name: str
    program: str
    options: Options
    threads: str
    words: str
    goals: tuple[Goal, ...] = ()
    floors: tuple[tuple[float, str], ...] = ()
    beside: str = ""
    share: float = 1.0
    answers: bool = True

    @property
    def kind(self) -> str:
        """base, ours, call, peer or limit."""
        if self.program.startswith("limit:"):
            return "limit"
        return {"java": "base", "ours": "ours", "empty": "call"}.get(self.program, "peer")


@dataclasses.dataclass(frozen=True)
class Group:
    """One kind of work and its variants.

    - `count`, `smoke`: items of one unit of work, measured and in a smoke test.
    - `input`, `smoke_input`: messages in the store to read (0: the work creates its own store),
      with bodies of `input_body` bytes.
    - `unit`: the item of a rate; `record`: bytes of one item on disk, 0 if nothing is written.
    - `axis`, `at`: the curve and the position on it (growth).
    - `note`: a remark for the page.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    count: int
    smoke: int
    input: int = 0
    smoke_input: int = 2_000
    input_body: int = 1024
    unit: str = "msg"
    record: int = 0
    shows_latency: bool = False
    axis: str = ""
    at: int = 0
    note: str = ""


def java(options: Options, threads: str, words: str, name: str = BASE, beside: str = "") -> Variant:
    """Return a variant of RocketMQ 4.9.3 in a JVM."""
    return Variant(name, "java", options, threads, words, beside=beside)


def ours(
    name: str, options: Options, threads: str, words: str, goal: float = 0.0, **more: object
) -> Variant:
    """Return a variant of ours; `goal` is a ratio to the row of 4.9.3 that it is compared with."""
    goals = ((goal, str(more.get("beside", BASE))),) if goal else ()
    return dataclasses.replace(
        Variant(name, "ours", options, threads, words, goals),
        **more,  # type: ignore[arg-type]
    )


def peer(name: str, options: Options, words: str, share: float = 1.0, beside: str = "") -> Variant:
    """Return a variant of a store that a Python program could use instead."""
    return Variant(name, "peers", options, "1", words, share=share, beside=beside)


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

LOCKED = f"{BASE}, reentrant lock"
#: RocketMQ's documentation recommends this lock for sync flush; the default lock spins.
LOCK = {"useReentrantLockWhenPutMessage": "true"}
SPINS = "; with the default put lock, which spins"
WAITS = "; useReentrantLockWhenPutMessage=true, as its documentation recommends for sync flush"
JAVA_SYNC = {"what": "put", "body": 1024, "flushDiskType": "SYNC_FLUSH"}
OURS_SYNC = {"what": "put", "body": 1024, **SYNC}
JAVA_SYNC64 = "putMessage under SYNC_FLUSH from 64 Java threads"

SYNC_GROUPS = (
    Group(
        "sync1",
        "Put 1 KiB, sync flush, one thread",
        (
            java(JAVA_SYNC, PUT_THREADS, "putMessage under SYNC_FLUSH (GroupCommitService)"),
            ours(
                "put",
                OURS_SYNC,
                PUT_THREADS,
                "Store.put under SYNC_FLUSH",
                goals=((2.0, BASE), (0.9, "C appends")),
            ),
            Variant(
                "C appends",
                "limit:append_sync",
                {"record": RECORD_1K, "body": 1024},
                "1",
                "C: pwrite of one record and fdatasync, appending to an allocated file",
            ),
            peer(
                "LMDB, single puts",
                {"what": "put", "body": 1024, "peer": "lmdb", **SYNC},
                LMDB_LAYOUT + "; default: fsync at each commit",
                0.25,
            ),
            peer(
                "SQLite, single puts",
                {"what": "put", "body": 1024, "peer": "sqlite", **SYNC},
                f"WAL, synchronous=FULL: fsync at each commit; {SQLITE_LAYOUT}",
                0.25,
            ),
            Variant(
                "rocketmq-rust",
                "rust",
                OURS_SYNC,
                PUT_THREADS,
                "put_message under SyncFlush, each awaited",
                share=0.25,
            ),
        ),
        count=2_000,
        smoke=20,
        record=RECORD_1K,
    ),
    Group(
        "sync64",
        "Put 1 KiB, sync flush, 64 putting threads",
        (
            java(
                {**JAVA_SYNC, "threads": 64},
                "64 put + dispatch",
                JAVA_SYNC64 + SPINS,
            ),
            ours(
                "put",
                {**OURS_SYNC, "threads": 64},
                "64 put + dispatch",
                "Store.put under SYNC_FLUSH from 64 Python threads",
                goals=((2.0, BASE, LOCKED),),
            ),
            java(
                {**JAVA_SYNC, **LOCK, "threads": 64},
                "64 put + dispatch",
                JAVA_SYNC64 + WAITS,
                LOCKED,
            ),
            Variant(
                "C appends",
                "limit:append_sync",
                {"record": RECORD_1K, "body": 1024, "threads": 64},
                "64",
                "C: 64 threads append with pwrite; one runs fdatasync for all records so far",
            ),
        ),
        count=60_000,
        smoke=128,
        record=RECORD_1K,
    ),
)

ASYNC_GROUPS = (
    Group(
        "aput1",
        "Put 1 KiB, sync flush, one task, each put awaited",
        (
            java(
                {**JAVA_SYNC, "what": "aput"},
                PUT_THREADS,
                "asyncPutMessage under SYNC_FLUSH, each future joined",
            ),
            ours(
                "aput",
                {**OURS_SYNC, "what": "aput"},
                PUT_THREADS,
                "Store.aput under SYNC_FLUSH in an asyncio event loop, each call awaited",
                goals=((0.667, "put"),),
            ),
            ours("put", OURS_SYNC, PUT_THREADS, "Store.put under SYNC_FLUSH, as in `sync1`"),
        ),
        count=2_000,
        smoke=20,
        record=RECORD_1K,
    ),
)

JAVA_TIMED = "each putMessage timed with System.nanoTime"
OURS_TIMED = "each Store.put timed with perf_counter_ns"
PACE: Options = {"pace": 20_000}
PACED = "; the loop sleeps for a millisecond when it is ahead of its pace"
LATENCY_GROUPS = (
    Group(
        "latency",
        "Latency of a put, 1 KiB, async flush, one thread at full speed",
        (
            java({"what": "latency", "body": 1024}, PUT_THREADS, JAVA_TIMED),
            ours("put", {"what": "latency", "body": 1024}, PUT_THREADS, OURS_TIMED),
        ),
        count=1_000_000,
        smoke=2_000,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_paced",
        "Latency of a put, 1 KiB, async flush, one thread, 20,000 puts a second for a minute",
        (
            java({"what": "latency", "body": 1024, **PACE}, PUT_THREADS, JAVA_TIMED + PACED),
            ours("put", {"what": "latency", "body": 1024, **PACE}, PUT_THREADS, OURS_TIMED + PACED),
        ),
        count=1_200_000,
        smoke=200,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_sync",
        "Latency of a put, 1 KiB, sync flush, one thread",
        (
            java({**JAVA_SYNC, "what": "latency"}, PUT_THREADS, JAVA_TIMED),
            ours("put", {**OURS_SYNC, "what": "latency"}, PUT_THREADS, OURS_TIMED),
        ),
        count=4_000,
        smoke=20,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_sync64",
        "Latency of a put, 1 KiB, sync flush, 64 putting threads",
        (
            java(
                {**JAVA_SYNC, "what": "latency", "threads": 64},
                "64 put + dispatch",
                JAVA_TIMED + SPINS,
            ),
            ours(
                "put",
                {**OURS_SYNC, "what": "latency", "threads": 64},
                "64 put + dispatch",
                OURS_TIMED,
            ),
            java(
                {**JAVA_SYNC, **LOCK, "what": "latency", "threads": 64},
                "64 put + dispatch",
                JAVA_TIMED + WAITS,
                LOCKED,
            ),
        ),
        count=60_000,
        smoke=128,
        record=RECORD_1K,
        shows_latency=True,
    ),
)


def crc_limits() -> tuple[Variant, ...]:
    """Return C programs that only compute the CRC, on mapped pages and on pages that they read."""
    words = "C: the CRC of 1 KiB per record in {}; nothing is parsed"
    options = {"what": "crc", "record": RECORD_1K, "body": 1024}
    ways = (
        ("C CRC alone", {}, "resident pages"),
        ("C read and CRC", {"reads": 1}, "pages that it reads, 512 KiB at a time"),
    )
    return tuple(
        Variant(
            f"{name}, {threads} thread{'s' * (threads > 1)}",
            "limit:crc_scan",
            {**options, **more, "threads": threads},
            str(threads),
            words.format(pages),
            answers=False,
        )
        for name, more, pages in ways
        for threads in (1, 2)
    )


LOAD = "DefaultMessageStore.load() of the same files"
RECOVERY_GROUPS = (
    Group(
        "scan",
        "Scan with CRC, 1 KiB bodies",
        (
            java({"what": "scan"}, "1", "checkMessageAndReturnSize of every record, with CRC"),
            ours(
                "scan, 1 thread", {"what": "scan", "threads": 1}, "1", "the scan of recovery", 2.5
            ),
            ours(
                "scan, 2 threads",
                {"what": "scan", "threads": 2},
                "2",
                "the scan of recovery, files in parallel",
                4.0,
            ),
            *crc_limits(),
            peer(
                "LMDB",
                {"what": "scan", "peer": "lmdb"},
                "cursor over all values as buffers; zlib.crc32 of each body",
            ),
            peer(
                "SQLite",
                {"what": "scan", "peer": "sqlite"},
                "SELECT crc, body of all rows; zlib.crc32 of each body",
                0.2,
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        input=1_000_000,
    ),
    Group(
        "rebuild",
        "Rebuild all queues and the index from the log, with CRC",
        (
            java({"what": "rebuild"}, "1", LOAD + "; queues, index and checkpoint removed"),
            ours("load", {"what": "rebuild"}, "2", LOAD, 5.0),
            ours(
                "load, one processor",
                {"what": "rebuild", "cpus": 1},
                "1",
                "pinned to one processor",
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        input=1_000_000,
    ),
    Group(
        "recover",
        "Load after a crash, same start file",
        (
            java({"what": "recover"}, "1", LOAD + "; index and checkpoint removed"),
            ours("load", {"what": "recover"}, "2", LOAD, 4.0),
            ours(
                "load, one processor",
                {"what": "recover", "cpus": 1},
                "1",
                "pinned to one processor",
            ),
        ),
        count=1_000_000,
        smoke=2_000,
        input=1_000_000,
    ),
)

PART_GROUPS = (
    Group(
        "cq",
        "ConsumeQueue append",
        (
            java({"what": "cq"}, "1", "putMessagePositionInfoWrapper, one call per unit"),
            ours(
                "single calls",
                {"what": "cq"},
                "1",
                "put_message_position_info, one call per unit",
                0.3,
            ),
            ours("arrays", {"what": "cq_arrays"}, "1", "put_units with columns of all units", 8.0),
        ),
        count=20_000_000,
        smoke=10_000,
        unit="unit",
        record=20,
    ),
    Group(
        "index_put",
        "IndexFile put, 3 M keys",
        (
            java({"what": "index_put"}, "1", "putKey with new strings, one call per key"),
            ours(
                "arrays", {"what": "index_put"}, "1", "put_keys: new strings hashed, one call", 2.0
            ),
        ),
        count=3_000_000,
        smoke=3_000,
        unit="key",
        record=20,
    ),
    Group(
        "index_select",
        "IndexFile select among 3 M keys",
        (
            java(
                {"what": "index_select", "stored": 3_000_000},
                "1",
                "selectPhyOffset, one call per key",
            ),
            ours(
                "single calls",
                {"what": "index_select", "stored": 3_000_000},
                "1",
                "select_phy_offset, one call per key",
                1.0,
            ),
            ours(
                "arrays",
                {"what": "index_select_many", "stored": 3_000_000},
                "1",
                "select_hashes; hashing the list of keys is timed too",
                2.0,
            ),
        ),
        count=1_000_000,
        smoke=1_000,
        unit="key",
    ),
)

READ_PEERS = "with the same messages; bodies copied and their CRC checked"
CHECKED_OBJECTS = "objects, CRC checked"
READ = "body copied; tags, keys and one property read"
CHECKED_QUERY = "query, CRC checked"
OFFSETS = f"{BASE}, offsets"
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
            peer(
                "LMDB",
                {"what": "get", "peer": "lmdb"},
                "cursor along each queue, " + READ_PEERS,
                beside=CHECKED_OBJECTS,
            ),
            peer(
                "SQLite",
                {"what": "get", "peer": "sqlite"},
                "SELECT … ORDER BY queue_offset, " + READ_PEERS,
                0.2,
                CHECKED_OBJECTS,
            ),
            peer(
                "persist-queue",
                {"what": "get", "peer": "persist_queue"},
                "get() without task_done, " + READ_PEERS,
                0.003,
                CHECKED_OBJECTS,
            ),
            peer(
                "diskcache",
                {"what": "get", "peer": "diskcache"},
                "get() of each entry, " + READ_PEERS,
                0.03,
                CHECKED_OBJECTS,
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
            peer(
                "LMDB",
                {"what": "query", "peer": "lmdb"},
                f"two gets in one transaction, CRC checked; {READ}",
                0.2,
                CHECKED_QUERY,
            ),
            peer(
                "SQLite",
                {"what": "query", "peer": "sqlite"},
                f"SELECT … WHERE key=?, CRC checked; {READ}",
                0.2,
                CHECKED_QUERY,
            ),
        ),
        count=500_000,
        smoke=500,
        input=1_000_000,
        unit="query",
    ),
)

IMPORT_GROUPS = (
    Group(
        "import",
        "Import in a new interpreter",
        (
            ours("NumPy", {"what": "import", "module": "numpy"}, "1", "import numpy"),
            ours(
                "pyrocketstore",
                {"what": "import", "module": "pyrocketstore", "names": "open,DefaultMessageStore"},
                "1",
                "import pyrocketstore, with the engine and NumPy",
            ),
        ),
        count=5,
        smoke=1,
        unit="import",
    ),
)

from delayed_groups import DELAYED_GROUPS  # noqa: E402 - it uses the names above
from opening_groups import OPENING_GROUPS  # noqa: E402 - it uses the names above
from property_groups import PROPERTY_GROUPS  # noqa: E402 - it uses the names above
from small_reads import SMALL_READ_GROUPS  # noqa: E402 - it uses the names above
from transact_groups import TRANSACT_GROUPS  # noqa: E402 - it uses the names above

GROUPS = (
    *PUT_GROUPS,
    *PROPERTY_GROUPS,
    *SYNC_GROUPS,
    *ASYNC_GROUPS,
    *LATENCY_GROUPS,
    *DELAYED_GROUPS,
    *TRANSACT_GROUPS,
    *RECOVERY_GROUPS,
    *OPENING_GROUPS,
    *PART_GROUPS,
    *READ_GROUPS,
    *SMALL_READ_GROUPS,
    *IMPORT_GROUPS,
)
