"""Scans of the log, rebuilds from it, and loads after a crash."""

from __future__ import annotations

from bench.catalog.put import RECORD_1K
from bench.model import Group, Variant, java, ours, peer


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


def _load(what: str, title: str, removed: str, goal: float) -> Group:
    words = "pinned to one processor"
    return Group(
        what,
        title,
        (
            java({"what": what}, "1", f"{LOAD}; {removed} and checkpoint removed"),
            ours("load", {"what": what}, "2", LOAD, goal),
            ours("load, one processor", {"what": what, "cpus": 1}, "1", words),
        ),
        count=1_000_000,
        smoke=2_000,
        input=1_000_000,
    )


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
    _load(
        "rebuild",
        "Rebuild all queues and the index from the log, with CRC",
        "queues, index",
        5.0,
    ),
    _load("recover", "Load after a crash, same start file", "index", 4.0),
)
