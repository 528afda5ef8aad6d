"""Groups that show what each queue of a store costs when it is opened and listed."""

from __future__ import annotations

from collections.abc import Iterator

from groups import Group, java, ours

#: With 4.9.3, which keeps a descriptor open for each queue.
QUEUES = (1_000, 5_000, 10_000)
#: Without 4.9.3: more descriptors than many systems allow a process.
QUEUES_LARGE = 20_000
LOAD = "DefaultMessageStore.load, one message in each queue"


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
