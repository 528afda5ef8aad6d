"""Groups that show what each queue of a store costs: plain and light queues."""

from __future__ import annotations

from collections.abc import Iterator

from groups import Group, java, ours

#: With 4.9.3, which keeps a descriptor open for each queue.
QUEUES = (4, 1_000, 5_000, 10_000)
#: Without 4.9.3: more descriptors than many systems allow a process.
QUEUES_LARGE = 20_000
LOAD = "DefaultMessageStore.load, one message in each queue"
LIGHT_QUEUES = (10_000, 100_000)
LIGHT_LOAD = "DefaultMessageStore.load, one message in each light queue"
NO_JAVA = (
    "4.9.3 has no row: its counters of light queues start again at 0 when it is opened, and it "
    "maps each queue file and keeps it open: for 100,000 queues, as many descriptors and 600 GB of "
    "sparse files. `load` opens the store after a clean stop, `load, killed` as after a kill; each "
    "light queue has one message"
)


def queue_groups() -> Iterator[Group]:
    """Yield the points of the curves."""
    for queues in (*QUEUES, QUEUES_LARGE):
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
        variants if queues == QUEUES_LARGE else (java(options, "1", LOAD), *variants),
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


def light_queue_groups() -> Iterator[Group]:
    """Yield the points of the curves."""
    for queues in LIGHT_QUEUES:
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
