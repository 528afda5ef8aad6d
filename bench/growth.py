"""How the figures grow: with the store, with the number of queues, with threads."""

from __future__ import annotations

from collections.abc import Iterator

from groups import (
    OURS_PUT,
    PUT_THREADS,
    READ,
    RECORD_1K,
    RECORD_128,
    Group,
    java,
    ours,
)

MESSAGES = (1_000_000, 10_000_000)
#: Behind an option: 12 GB a store, and more than the kernel's dirty limit on most machines.
MESSAGES_LARGE = 50_000_000
QUEUES = (1, 100, 10_000)
QUEUE_MESSAGES = 1_000_000
NEW_QUEUES = 1_000
THREADS = (1, 2, 4, 16, 64)
THREAD_MESSAGES = 1_000_000
SYNC_MESSAGES_A_THREAD = 1_000
JAVA_PUT = "putMessage one by one"
PILED = (
    "the rounds of a side all go into one store that stays open, so the faster side's grows larger"
)
SPINNING = (
    "4.9.3 with the spinning put lock that is its default; the table `sync64` has the reentrant "
    "lock, too, which its documentation advises for sync flush"
)


def growth_groups(*, large: bool) -> tuple[Group, ...]:
    """All points of all curves."""
    sizes = (*MESSAGES, MESSAGES_LARGE) if large else MESSAGES
    return (*_store_sizes(sizes), *_queues(), *_threads(), *_sync_threads())


def _store_sizes(sizes: tuple[int, ...]) -> Iterator[Group]:
    put = {"what": "put", "body": 128}
    for count in sizes:
        name = f"{count // 1_000_000}m"
        yield Group(
            f"grow_put_{name}",
            f"Put {count // 1_000_000} M × 128 B into one store",
            (java(put, PUT_THREADS, JAVA_PUT), ours("put", put, PUT_THREADS, OURS_PUT)),
            count=count,
            smoke=2_000,
            record=RECORD_128,
            axis="messages put",
            at=count,
        )
        get = {"what": "get", "pull": 32}
        yield Group(
            f"grow_get_{name}",
            f"Get all of {count // 1_000_000} M × 128 B",
            (
                java(get, "1", f"getMessage of 32, each decoded: {READ}"),
                ours("objects", get, "1", f"Store.read: message objects; {READ}"),
            ),
            count=count,
            smoke=2_000,
            input=count,
            input_body=128,
            axis="messages read",
            at=count,
        )
        yield Group(
            f"grow_query_{name}",
            f"Query by key among {count // 1_000_000} M messages",
            (
                java({"what": "query"}, "1", f"queryMessage, each hit decoded: {READ}"),
                ours("query", {"what": "query"}, "1", f"Store.query: message objects; {READ}"),
            ),
            count=500_000,
            smoke=500,
            input=count,
            input_body=128,
            unit="query",
            axis="messages stored, query by key",
            at=count,
        )


def _queues() -> Iterator[Group]:
    for queues in QUEUES:
        put = {"body": 128, "queues": queues}
        yield Group(
            f"grow_queues_{queues}",
            f"Put 1 M × 128 B round {queues:,} queues that are there",
            (
                java({**put, "what": "put", "open": "true"}, PUT_THREADS, JAVA_PUT),
                ours("put", {**put, "what": "put_open"}, PUT_THREADS, OURS_PUT),
            ),
            count=QUEUE_MESSAGES,
            smoke=2_000,
            record=RECORD_128,
            axis="queues",
            at=queues,
            note=PILED,
        )
    put = {"what": "put", "body": 128, "queues": NEW_QUEUES}
    yield Group(
        "grow_new_queues",
        f"Make {NEW_QUEUES} queues by a put into each, until found",
        (java(put, PUT_THREADS, JAVA_PUT), ours("put", put, PUT_THREADS, OURS_PUT)),
        count=NEW_QUEUES,
        smoke=100,
        unit="queue",
        axis="new queues",
        at=NEW_QUEUES,
    )


def _threads() -> Iterator[Group]:
    for threads in THREADS:
        put = {"what": "put", "body": 1024, "threads": threads}
        who = f"{threads} put + dispatch"
        yield Group(
            f"grow_threads_{threads}",
            f"Put 1 M × 1 KiB, async flush, {threads} threads",
            (java(put, who, JAVA_PUT), ours("put", put, who, OURS_PUT)),
            count=THREAD_MESSAGES,
            smoke=2_000,
            record=RECORD_1K,
            axis="putting threads, async flush",
            at=threads,
        )


def _sync_threads() -> Iterator[Group]:
    for threads in THREADS:
        put = {"what": "put", "body": 1024, "threads": threads}
        who = f"{threads} put + dispatch"
        yield Group(
            f"grow_sync_{threads}",
            f"Put 1 KiB, sync flush, {threads} threads",
            (
                java({**put, "flushDiskType": "SYNC_FLUSH"}, who, JAVA_PUT),
                ours("put", {**put, "sync": 1}, who, OURS_PUT),
            ),
            count=2_000 + SYNC_MESSAGES_A_THREAD * (threads - 1),
            smoke=128,
            record=RECORD_1K,
            axis="putting threads, sync flush",
            at=threads,
            note=SPINNING,
        )
