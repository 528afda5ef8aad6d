"""Groups of small reads: single messages, searches by time, read-only stores, many index files."""

from __future__ import annotations

from collections.abc import Iterator

from bench.model import Group, Options, Variant, java, ours, peer
from bench.workers.workload import QUEUES

READ_ONLY: Options = {"read_only": 1}
STORED = 200_000
#: Bytes that an iterator of a read-only store reads at once.
BLOCK = 524288
#: Of the groups with many index files.
SMALL_FILES: Options = {"maxHashSlotNum": 5_000, "maxIndexNum": 2_001}


def _small(call: str, words: str, name: str, goal: float = 0.0, **more: object) -> Variant:
    return ours(name, {"what": "small", "call": call, **more}, "1", words, goal)


def _java(call: str, words: str) -> Variant:
    return java({"what": "small", "call": call}, "1", words)


def _absent(files: int) -> Options:
    return {"what": "absent", "files": files, **SMALL_FILES}


def _both(call: str, words: str, name: str) -> tuple[Variant, Variant]:
    """Return the variants of a store that is open for writing and of a read-only one."""
    return (
        _small(call, words, name),
        _small(call, words + "; the store is read-only", f"{name}, read-only", **READ_ONLY),
    )


def _system_calls(call: str, row: str) -> Variant:
    """Return the C program that only makes the system calls of a read-only call."""
    if call == "iterate":
        words = "C: one pread for the records within 512 KiB, of all queues; nothing else"
        options = {"stored": STORED, "many": 1000, "block": BLOCK, "step": QUEUES}
        return Variant("C system calls", "limit:read_records", options, "1", words, beside=row)
    searches, many = call.startswith("query"), 1000 if call.endswith("_many") else 1
    of_key = "of the slot and of the entry of a key, and " if searches else ""
    looks = "in each call" if many == 1 else f"for {many} messages"
    words = f"C: a pread {of_key}of each record, and an fstat of each file {looks}; nothing else"
    options = {"stored": STORED, "index": int(searches), "many": many}
    return Variant("C system calls", "limit:read_records", options, "1", words, beside=row)


def _read_only_variants(call: str, words: str) -> Iterator[Variant]:
    name = words.partition(" ")[0].removeprefix("Store.")
    yield from (variants := _both(call, words, name))
    yield _system_calls(call, variants[1].name)


#: For the page.
READ_ONLY_NOTE = (
    "a read-only store maps no file, since another process may truncate or delete it: each call "
    "asks whether the file still has a name (fstat) and reads by pread, as the C program does"
)
KERNEL_NOTE = (
    "a read-only `read` asks by a third fstat whether the queue still begins with the file that it "
    "knows. By samples (perf), the kernel takes 2.6 µs more for it than for that of the writable "
    "store, whose log is mapped"
)
RANDOM_NOTE = (
    f"{STORED:,} messages of 1 KiB in {QUEUES} queues, all in the page cache, one call a message, "
    f"in a fixed order that is far apart; {READ_ONLY_NOTE}"
)


def _read_only_groups() -> tuple[Group, ...]:
    """Return one group for each way to read, of a store open for writing and a read-only one."""
    calls = {
        "get": "Store.get at a physical offset",
        "get_many": "Store.get_many of 1000 physical offsets",
        "query": "Store.query",
        "query_many": "Store.query_many of 1000 keys",
        "iterate": "Store.read of 1000 messages",
    }
    return tuple(
        Group(
            f"read_only_{call}",
            f"{words}, and read-only",
            tuple(_read_only_variants(call, words)),
            count=50_000,
            smoke=2_000,
            input=STORED,
            unit="message",
            note=READ_ONLY_NOTE,
        )
        for call, words in calls.items()
    )


SMALL_READ_GROUPS = (
    Group(
        "small_get",
        "Read one message by its queue offset",
        (
            _java("pull", "getMessage of 1; nothing is decoded"),
            *_both(
                "pull", "DefaultMessageStore.get_message of 1; nothing is decoded", "get_message"
            ),
            *_both("read", "Store.read of one message, an object", "read"),
            Variant(
                "C system calls",
                "limit:read_records",
                {"stored": STORED, "queues": QUEUES},
                "1",
                "C: an fstat and a pread of the unit, and of the record; nothing else",
                beside="read, read-only",
            ),
            peer(
                "LMDB",
                {"what": "small", "peer": "lmdb"},
                "one get in a transaction; body copied and its CRC checked",
                beside="read",
            ),
        ),
        count=50_000,
        smoke=200,
        input=STORED,
        unit="read",
        note=f"{RANDOM_NOTE}; {KERNEL_NOTE}",
    ),
    Group(
        "small_time",
        "Find the queue offset of a time",
        (
            _java("time", "getOffsetInQueueByTime"),
            *_both("nearest", "DefaultMessageStore.get_offset_in_queue_by_time", "4.9.3's search"),
            *_both("time", "Store.offset_at: the first message at that time or later", "offset_at"),
        ),
        count=50_000,
        smoke=200,
        input=STORED,
        unit="search",
    ),
    Group(
        "small_batch",
        "Read 32 messages at a queue offset",
        (
            _java("decode", "getMessage of 32, each message decoded"),
            *_both("batch", "Store.read_batch of 32 rows, all columns", "read_batch"),
        ),
        count=10_000,
        smoke=50,
        input=STORED,
        unit="read",
    ),
    *_read_only_groups(),
    Group(
        "absent_key",
        "Query absent keys in 30 index files",
        (
            java(_absent(30), "1", "queryMessage"),
            ours("query", _absent(30), "1", "Store.query"),
            ours(
                "query, read-only",
                {**_absent(30), **READ_ONLY},
                "1",
                "Store.query; the store is read-only",
            ),
        ),
        count=20_000,
        smoke=100,
        unit="query",
    ),
    Group(
        "old_window",
        "Query a key of 1 M messages in a window of time before all of them",
        (
            java(
                {"what": "old_window", "messages": 1_000_000},
                "1",
                "queryMessage; 4.9.3 skips a file by the times of its first and last key",
            ),
            ours(
                "query",
                {"what": "old_window", "messages": 1_000_000},
                "1",
                "Store.query; the order of all entries was looked at once, in the first query",
            ),
            ours(
                "query, read-only",
                {"what": "old_window", "messages": 1_000_000, **READ_ONLY},
                "1",
                "Store.query; the store is read-only",
            ),
        ),
        count=1_000,
        smoke=20,
        unit="query",
    ),
)


def index_file_groups() -> tuple[Group, ...]:
    """Return the points of the curve of index files."""
    words = "absent keys; each file of the index is looked at"
    return tuple(
        Group(
            f"grow_index_files_{files}",
            f"Query absent keys in {files} index files",
            (
                java(_absent(files), "1", f"queryMessage, {words}"),
                ours("query", _absent(files), "1", f"Store.query, {words}"),
            ),
            count=50_000,
            smoke=100,
            unit="query",
            axis="index files, absent keys",
            at=files,
        )
        for files in (1, 3, 10)
    )
