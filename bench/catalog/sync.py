"""Puts under sync flush, and each put awaited."""

from __future__ import annotations

from bench.catalog.put import LMDB_LAYOUT, PUT_THREADS, RECORD_1K, SQLITE_LAYOUT
from bench.model import BASE, Group, Options, Variant, java, ours, peer

SYNC: Options = {"sync": 1}
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
