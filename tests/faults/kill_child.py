"""Processes that are killed. This process forks a child for each line that it reads, so that a
child starts at once: {"do": "live", …} with the arguments of the function. It replies with the
child's pid and, when the child has ended, with its exit status.

"live" opens the store, puts from several threads and an event loop, closes it meanwhile, and opens
it again, in an endless loop. "delay" puts delayed messages that are due at once. "open" opens and
closes the store once. "make_files" puts to one new queue after the other, into very small files.
Each may receive a call that kills it: see injection.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pyrocketstore
from delayed import DELAYED, DelayedJournal, put_delayed
from injection import KILL, Faults
from journal import SETTINGS, Journal, LaterPutter, Putter, PutterThread
from pyrocketstore.system.env import Env
from small_files import SMALL

#: Loads the engine before a child is forked: a child lives for a few dozen milliseconds.
OPEN = pyrocketstore.open
KINDS = (Putter, Putter, Putter, LaterPutter)
#: Short intervals, so that kills also occur during the work of the flush services.
LIVELY: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": 10,
    "flush_interval_consume_queue": 15,
}


def armed(library: str, call: str, number: int, *, unnamed: bool = True) -> Env:
    """Return an Env in which a call kills the process; number 0: no call does.

    Without `unnamed`, the file system has no files without a name.
    """
    if number == 0 and unnamed:
        return Env()
    faults = Faults(library)
    env = faults.env()
    faults.no_unnamed_files(on=not unnamed)
    if number:
        faults.arm(call, number, number, action=KILL)
    return env


def live(path: str, journal: str, seed: str, flush: str, kill: tuple[str, str, int]) -> None:
    """Put, close, open again, until killed."""
    env = armed(*kill)
    rng = random.Random(seed)
    notes = Journal(Path(journal))
    session = 0
    while True:
        session += 1
        store = OPEN(path, env=env, flush_disk_type=flush, **LIVELY)
        names = [f"{seed}.{session}.{i}" for i in range(len(KINDS))]
        putters = [
            PutterThread(kind(store, notes, n, random.Random(n)), calls=rng.randrange(5, 60))
            for kind, n in zip(KINDS, names, strict=True)
        ]
        for putter in putters:
            putter.start()
        time.sleep(rng.choice((0.0, 0.005, 0.02, 0.05)))
        if rng.random() < 0.3:
            store.flush()
        store.close()
        for putter in putters:
            putter.join()
            # A put succeeds, or is refused because the store was closed.
            refused = (pyrocketstore.StoreStateError, pyrocketstore.PutError, type(None))
            if not isinstance(putter.error, refused) or store.message_store.why_not_writeable:
                raise AssertionError(repr(putter.error))


def delay(path: str, notes: str, first: int, flush: str, kill: tuple[str, str, int]) -> None:
    """Put delayed messages numbered from `first`, close, open again, until killed."""
    env = armed(*kill)
    rng = random.Random(first)
    journal = DelayedJournal(Path(notes))
    while True:
        with OPEN(path, env=env, flush_disk_type=flush, **DELAYED) as store:
            for _ in range(rng.randrange(60)):
                first += put_delayed(store, journal, first, rng)
            time.sleep(rng.choice((0.0, 0.005, 0.02)))


def open_once(path: str, kill: tuple[str, str, int]) -> None:
    """Open and close the store."""
    OPEN(path, env=armed(*kill), **LIVELY).close()


def make_files(path: str, seed: str, kill: tuple[str, str, int], unnamed: bool) -> None:
    """Put to one new queue after the other, until killed."""
    env = armed(*kill, unnamed=unnamed)
    rng = random.Random(seed)
    number = 0
    while True:
        with OPEN(path, env=env, **SMALL) as store:
            for _ in range(rng.randrange(50, 400)):
                topic = f"{seed.replace('.', '-')}-{number // 20}"
                body = bytes(rng.randrange(300))
                store.put(topic, body, queue_id=rng.randrange(2), keys=f"k{number}", tags="T")
                number += 1


def main() -> None:
    """Fork a child for each line of standard input."""
    actions = {"live": live, "delay": delay, "open": open_once, "make_files": make_files}
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                actions[job.pop("do")](**job)
            except BaseException:  # noqa: BLE001  the child ends here
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
