"""A process that puts into a store from several threads until it is killed.

    python crash_child.py put STORE JOURNAL SEED FLUSH
    python crash_child.py open STORE

"put" writes one JSON line to JOURNAL as soon as a put returned: topic, queue id, and for each
message its queue offset, physical offset, key and body (hex). A line is one os.write to a file
opened with O_APPEND, so that it is there even though the process is killed right after it; killed
inside of it, the process leaves a part, and the next one begins with a line of its own.
"open" opens the store, says so, and waits to be killed; the parent may be faster.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import pyrocketstore

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "flush_interval_commit_log": 20,
    "flush_interval_consume_queue": 30,
}
THREADS = 3
QUEUES = 3
CHILD_BEGINS = b"+"


class Putter(threading.Thread):
    """Puts single messages, columns and batches in turn, and writes down what was acknowledged."""

    def __init__(self, store: pyrocketstore.Store, journal: int, name: str, seed: str) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.journal = journal
        self.prefix = name
        self.random = random.Random(seed)
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until the store or the process is gone."""
        try:
            while True:
                self.random.choice((self.single, self.single, self.many, self.batch))()
        except pyrocketstore.StoreError as error:
            self.error = error

    def message(self) -> tuple[str, bytes]:
        """The next key and body; no two are equal."""
        self.count += 1
        key = f"{self.prefix}-{self.count}"
        return key, key.encode() + b" " + self.random.randbytes(self.random.randrange(600))

    def single(self) -> None:
        """One put; now and then to a queue that is new."""
        key, body = self.message()
        queue_id = self.random.randrange(QUEUES + self.count // 200)
        result = self.store.put("single", body, queue_id=queue_id, keys=key, tags="T")
        self.note("single", [(queue_id, result.queue_offset, result.phy_offset, key, body)])

    def many(self) -> None:
        """A few messages over all queues."""
        rows = [self.message() for _ in range(self.random.randrange(1, 30))]
        ids = [self.random.randrange(QUEUES) for _ in rows]
        keys, bodies = [row[0] for row in rows], [row[1] for row in rows]
        queued, places = self.store.put_many("single", bodies, queue_ids=ids, keys=keys)
        self.note("single", list(zip(ids, queued.tolist(), places.tolist(), keys, bodies,
                                     strict=True)))  # fmt: skip

    def batch(self) -> None:
        """One batch; the places of all but the first follow from the first."""
        rows = [self.message() for _ in range(self.random.randrange(1, 12))]
        items = [{"body": body, "keys": key} for key, body in rows]
        first = self.store.put_batch("batch", items, 0).queue_offset
        self.note("batch", [(0, first + i, -1, key, body) for i, (key, body) in enumerate(rows)])

    def note(self, topic: str, rows: list[tuple[int, int, int, str, bytes]]) -> None:
        """Write down what was acknowledged."""
        line = [topic, [[*row[:4], row[4].hex()] for row in rows]]
        os.write(self.journal, json.dumps(line).encode() + b"\n")


def put(path: str, journal_path: str, seed: str, flush: str) -> None:
    """Put until killed."""
    store = pyrocketstore.open(path, flush_disk_type=flush, **SETTINGS)
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, b"\n" + CHILD_BEGINS + b"\n")
    putters = [Putter(store, journal, f"{seed}-{i}", f"{seed} {i}") for i in range(THREADS)]
    for putter in putters:
        putter.start()
    print("putting", flush=True)
    for putter in putters:
        putter.join()
    sys.exit(f"the puts ended: {[putter.error for putter in putters]}")


def main(what: str, path: str, *rest: str) -> None:
    """As the module says."""
    if what == "put":
        put(path, *rest)
    print("opening", flush=True)
    with pyrocketstore.open(path, **SETTINGS):
        print("open", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
