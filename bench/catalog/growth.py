"""Curves by messages and by threads, and the notes on where a curve bends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bench.catalog import queues
from bench.catalog.opening import killed_curve
from bench.catalog.properties import property_curve
from bench.catalog.put import LMDB_LAYOUT, OURS_PUT, PUT_THREADS, RECORD_1K, RECORD_128
from bench.catalog.queues import JAVA_PUT
from bench.catalog.read import READ
from bench.catalog.small_reads import index_file_groups
from bench.model import Group, java, ours, peer

MESSAGES = (1_000_000, 10_000_000)
#: Optional: 12 GB per store, more than the kernel's dirty limit on most machines.
MESSAGES_LARGE = 50_000_000
THREADS = (1, 2, 4, 16, 64)
THREAD_MESSAGES = 1_000_000
SYNC_MESSAGES_A_THREAD = 1_000
LMDB_FOLLOW = f"a new read transaction, a cursor for each queue; {LMDB_LAYOUT}"
FOLLOWED = (
    "only the reader is timed; 4.9.3 cannot open a store that another process writes, so it has no "
    "row"
)
SPINNING = (
    "4.9.3 with its default put lock, which spins; the table `sync64` also has the reentrant lock, "
    "which its documentation recommends for sync flush"
)
#: {group: why its curve bends there}
BENDS = {
    "grow_queues_10000": (
        "4.9.3's queue files have 6 MB, and the first access to one through its mapping makes the "
        "kernel read as far ahead as `read_ahead_kb` of the device says, here the whole file: "
        "57 GiB of page cache for 10,000 files, of which 24 GiB fit. Both variants wait for memory "
        "to be reclaimed; at 20,000 queues ours runs alone"
    ),
    "grow_open_4": (
        "4.9.3 has compiled its code after some thousand openings in one JVM and makes nothing "
        "durable, while ours makes the directory names, `lock`, `abort` and the checkpoint durable "
        "and works in Python. The first opening of a process takes 4.9.3 23 to 28 ms, with its "
        "classes loaded, and ours 7 to 10 ms"
    ),
    "grow_open_10000": (
        "4.9.3 reads the last unit of each queue through the mapping of its file, and the kernel "
        "reads ahead as in `grow_queues_10000`: stack samples are in ConsumeQueue.recover, and all "
        "of its processor time is the system's"
    ),
    "grow_properties_50": (
        "put_many is slower than put here: its 10,000 dictionaries, which the loop makes before "
        "the call, have 500,000 entries, more than the processor's caches hold; put has one at a "
        "time"
    ),
    "grow_light_put_100000": (
        "three quarters of vm.max_map_count, 49,147 of these queues, have their last file mapped "
        "(/proc/self/maps had 49,713 lines); units of the others are written by pwrite"
    ),
    "grow_open_killed_keyless_10m": (
        "a part of an opening does not depend on the messages. Both variants scan the whole log, "
        "since it was written within the 3 s that 4.9.3 takes off the checkpoint's time; ours "
        "compares each record with its unit too"
    ),
    "grow_flush_10000": (
        "a flush also forces the log and the checkpoint: with 100 queues this is a larger part"
    ),
    "grow_index_files_10": (
        "a further file takes ours about as long as 4.9.3; the rest of a query of an absent key is "
        "the call from Python"
    ),
}


def growth_groups(*, large: bool) -> tuple[Group, ...]:
    """Return all points of all curves."""
    return tuple(_with_bend(group) for group in _groups(large=large))


def _with_bend(group: Group) -> Group:
    notes = [note for note in (group.note, BENDS.get(group.name)) if note]
    return dataclasses.replace(group, note="; ".join(notes))


def _groups(*, large: bool) -> tuple[Group, ...]:
    sizes = (*MESSAGES, MESSAGES_LARGE) if large else MESSAGES
    return (
        *_store_sizes(sizes),
        *queues.put_curve(),
        *queues.topic_curve(),
        *_threads(),
        *_sync_threads(),
        *property_curve(),
        *_follow(sizes),
        *queues.flush_curve(),
        *killed_curve(sizes),
        *queues.opening_curves(),
        *queues.light_queue_curves(),
        *index_file_groups(),
    )


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
            f"Read {count // 1_000_000} M × 128 B in queue order",
            (
                java(get, "1", f"getMessage of 32, each message decoded; {READ}"),
                ours("objects", get, "1", f"Store.read, message objects; {READ}"),
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
                java({"what": "query"}, "1", f"queryMessage, each hit decoded; {READ}"),
                ours("query", {"what": "query"}, "1", f"Store.query, message objects; {READ}"),
            ),
            count=500_000,
            smoke=500,
            input=count,
            input_body=128,
            unit="query",
            axis="messages stored, query by key",
            at=count,
        )


def _follow(sizes: tuple[int, ...]) -> Iterator[Group]:
    for count in sizes:
        name = f"{count // 1_000_000}m"
        options = {"body": 128, "stored": count}
        yield Group(
            f"grow_follow_{name}",
            f"Read 1,000 new messages in a live store of {count // 1_000_000} M × 128 B",
            (
                ours(
                    "refresh",
                    {**options, "what": "follow"},
                    "1",
                    f"Store.refresh of a read-only store; {READ}",
                ),
                ours(
                    "open again",
                    {**options, "what": "open_again"},
                    "2",
                    f"close it and open another one; {READ}",
                    share=0.05,
                ),
                peer("LMDB", {**options, "what": "follow", "peer": "lmdb"}, LMDB_FOLLOW),
            ),
            count=20,
            smoke=20,
            unit="refresh",
            axis="messages stored, 1,000 new ones",
            at=count,
            note=FOLLOWED,
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
