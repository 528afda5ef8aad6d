"""Curves by the number of queues: puts, new topics, flushes, openings and listings."""

from __future__ import annotations

from collections.abc import Iterator

from bench.catalog.put import OURS_PUT, PUT_THREADS, RECORD_128
from bench.model import Group, Variant, java, ours

ACTIVE = (1, 100, 10_000, 20_000)
QUEUE_MESSAGES = 1_000_000
NEW_TOPICS = (1_000, 5_000)
JAVA_PUT = "putMessage, one call per message"
JAVA_NEW = "putMessage to one new topic after the other; the store keeps no topics.json"
OURS_NEW = "Store.put to one new topic after the other; config/topics.json is kept"
C_NEW = "C: mkdir twice, and create, ftruncate, fallocate and pwrite of a file; nothing else"
PILED = (
    "all rounds of a variant write to one store that stays open; the faster variant's store "
    "therefore grows larger"
)
MAPPED = (
    "4.9.3 maps each queue file and keeps it open: it can have fewer queues than open files "
    "(RLIMIT_NOFILE) and than vm.max_map_count, 65,530 by default; ours maps as many as three "
    "quarters of the latter allow, and keeps none open"
)
DELETED = (
    "measured when no large number of files had been deleted for some minutes: ext4 passes over "
    "inodes that were deleted a moment ago (`recently_deleted`). After the files of 140,000 topics "
    "were deleted, the C program took 274 µs of processor time a topic, and put 438"
)
DIRTY = (100, 10_000)
JAVA_FLUSH = (
    "DefaultMessageStore.flush, ConsumeQueue.flush(0) for each queue, StoreCheckpoint.flush; what "
    "4.9.3's services do each minute"
)
OURS_FLUSH = "Store.flush: log, queues and checkpoint, in this order"
#: With 4.9.3, which keeps a descriptor open for each queue.
OPENED = (4, 1_000, 5_000, 10_000)
#: Without 4.9.3: more descriptors than many systems allow a process.
OPENED_LARGE = 20_000
LOAD = "DefaultMessageStore.load, one message in each queue"
LIGHT = (10_000, 100_000)
LIGHT_LOAD = "DefaultMessageStore.load, one message in each light queue"
NO_JAVA = (
    "4.9.3 has no row: its counters of light queues start again at 0 when it is opened, and it "
    "maps each queue file and keeps it open: for 100,000 queues, as many descriptors and 600 GB of "
    "sparse files. `load` opens the store after a clean stop, `load, killed` as after a kill; each "
    "light queue has one message"
)


def put_curve() -> Iterator[Group]:
    """Yield the points by the number of queues that are put into."""
    for queues in ACTIVE:
        put = {"body": 128, "queues": queues}
        yield Group(
            f"grow_queues_{queues}",
            f"Put 1 M × 128 B into {queues:,} active queues",
            (
                java({**put, "what": "put", "open": "true"}, PUT_THREADS, JAVA_PUT),
                ours("put", {**put, "what": "put_open"}, PUT_THREADS, OURS_PUT),
            ),
            count=QUEUE_MESSAGES,
            smoke=2_000,
            record=RECORD_128,
            axis="active queues",
            at=queues,
            note=f"{PILED}; {MAPPED}",
        )


def topic_curve() -> Iterator[Group]:
    """Yield the points by the number of new topics."""
    put = {"what": "put_new", "body": 128}
    for topics in NEW_TOPICS:
        yield Group(
            f"grow_new_topics_{topics}",
            f"Put the first message of {topics:,} topics into a new store, until readable",
            (
                java(put, PUT_THREADS, JAVA_NEW),
                ours("put", put, PUT_THREADS, OURS_NEW, 10),
                Variant("C system calls", "limit:new_queues", {}, "1", C_NEW),
                Variant("C, 2 threads", "limit:new_queues", {"threads": 2}, "2", C_NEW),
            ),
            count=topics,
            smoke=100,
            unit="topic",
            axis="new topics",
            at=topics,
            note=DELETED,
        )


def flush_curve() -> Iterator[Group]:
    """Yield the points by the number of dirty queues, of one flush of them all."""
    for queues in DIRTY:
        options = {"what": "flush_queues", "body": 128}
        yield Group(
            f"grow_flush_{queues}",
            f"Flush after one put of 128 B to each of {queues:,} queues",
            (
                java({**options, "messageIndexEnable": "false"}, "1", JAVA_FLUSH),
                ours("flush", options, "1", OURS_FLUSH),
            ),
            count=queues,
            smoke=80,
            unit="queue",
            axis="dirty queues, one flush",
            at=queues,
        )


def opening_curves() -> Iterator[Group]:
    """Yield the points by the number of queues: of openings, and of listings."""
    for queues in (*OPENED, OPENED_LARGE):
        yield _opening(queues)
        yield _listing(queues)


def _opening(queues: int) -> Group:
    options = {"what": "open_queues", "body": 128}
    variants = (
        ours("load", options, "2", f"{LOAD}, after a clean stop"),
        ours("load, killed", {**options, "killed": 1}, "2", f"{LOAD}, as after a kill"),
        ours("load, read-only", {**options, "read_only": 1}, "2", f"{LOAD}, read-only"),
    )
    return Group(
        f"grow_open_{queues}",
        f"Open a store of {queues:,} queues",
        variants if queues == OPENED_LARGE else (java(options, "1", LOAD), *variants),
        count=queues,
        smoke=50,
        unit="queue",
        axis="queues, opening",
        at=queues,
    )


def _listing(queues: int) -> Group:
    options = {"what": "queue_rows", "body": 128}
    return Group(
        f"grow_info_{queues}",
        f"List {queues:,} queues, 8 in each topic",
        (
            ours("queues", options, "1", "Store.topics and Store.queues of each topic"),
            ours("info", {**options, "rows": 1}, "1", "the rows of `info`: offsets and times"),
        ),
        count=queues,
        smoke=50,
        unit="queue",
        axis="queues, listed",
        at=queues,
    )


def light_queue_curves() -> Iterator[Group]:
    """Yield the points by the number of light queues: of openings, and of puts."""
    for queues in LIGHT:
        opened = {"what": "open_light", "body": 128}
        yield Group(
            f"grow_light_open_{queues}",
            f"Open a store of {queues:,} light queues",
            (
                ours("load", opened, "2", f"{LIGHT_LOAD}, after a clean stop"),
                ours(
                    "load, killed", {**opened, "killed": 1}, "2", f"{LIGHT_LOAD}, as after a kill"
                ),
            ),
            count=queues,
            smoke=200,
            unit="queue",
            axis="light queues, opening",
            at=queues,
            note=NO_JAVA,
        )
        put = {"what": "put_light", "body": 128}
        words = "Store.put, each message into its topic's queue and one light queue, until readable"
        yield Group(
            f"grow_light_put_{queues}",
            f"Put {queues:,} × 128 B, each into one of {queues:,} light queues",
            (ours("put", put, "2", words),),
            count=queues,
            smoke=200,
            axis="light queues, put",
            at=queues,
            note=NO_JAVA,
        )
