"""Goal: whatever happens to the link and to the process of a copy, it ends equal to its master.
Method: a master of the test sends random frames over links that are cut, stall or send little at a
time; the process that copies is killed at random moments, and the next one continues."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyrocketstore
from pyrocketstore import Store
from support.copies import arrived_to, client_of, follow, log_of, make_log
from support.ha_master import Link, ScriptedMaster
from support.seed import SEED
from support.sizes import TINY_SIZES

FILE = TINY_SIZES["mapped_file_size_commit_log"]
LONGEST_STALL_S = 0.01

COPY = """
import sys, pyrocketstore
address, root, sync, sizes = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
sizes["flush_disk_type"] = sync
with pyrocketstore.open(root, follow=address, follow_from=0, **sizes) as store:
    print("open", flush=True)
    sys.stdin.read()
"""


class BadLinks:
    """A master whose frames and links are random."""

    def __init__(self, log: bytes, seed: str) -> None:
        self.log, self.random = log, random.Random(seed)
        self.shown = 0

    def __call__(self, link: Link) -> None:
        """Serve a connection until it is cut."""
        chance = random.Random(self.random.random())
        left = chance.choice((chance.randrange(200), chance.randrange(20_000), 1 << 40))
        at = link.report()
        while left > 0:
            stop = min(at + chance.randrange(1, 3000), (at // FILE + 1) * FILE, self.shown)
            frame = struct.pack(">qi", at, max(stop - at, 0)) + self.log[at : max(stop, at)]
            while frame and left > 0:
                size = min(chance.choice((1, 7, 500, 1 << 20)), left)
                link.send(frame[:size])
                frame, left = frame[size:], left - size
            if chance.randrange(20) == 0 or at >= stop:
                time.sleep(chance.random() * LONGEST_STALL_S)
            at = max(at, stop)


def arrives(store: Store, end: int) -> None:
    """Wait for the end of a copy, without the pauses between its connections."""
    client = client_of(store)
    while client.state.end < end and client.failure_of_copy is None:
        client.wakeup()
        time.sleep(0.002)
    arrived_to(store, end)


def test_a_copy_over_bad_links(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 120, 100, **TINY_SIZES)
    master = BadLinks(log, f"{SEED} links")
    with (
        ScriptedMaster(master).listening() as served,
        follow(tmp_path / "s", served, **TINY_SIZES) as store,
    ):
        for part in range(1, 11):
            master.shown = len(log) * part // 10
            arrives(store, master.shown)
    assert log_of(tmp_path / "s", len(log)) == log


def test_copies_that_are_killed(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 150, 100, **TINY_SIZES)
    master = BadLinks(log, f"{SEED} kills")
    chance = random.Random(f"{SEED} times")
    root = tmp_path / "s"
    with ScriptedMaster(master).listening() as served:
        for part in range(1, 9):
            master.shown = len(log) * part // 9
            sync = chance.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
            words = [sys.executable, "-c", COPY, served.address, str(root), sync, repr(TINY_SIZES)]
            with subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                try:
                    assert child.stdout is not None
                    assert child.stdout.readline() == "open\n"
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(chance.random() * 0.3)
                finally:
                    child.kill()
        master.shown = len(log)
        with follow(root, served, **TINY_SIZES) as store:
            arrives(store, len(log))
    assert log_of(root, len(log)) == log
    with pyrocketstore.open(root, read_only=True, **TINY_SIZES) as store:
        assert store.verify().ok
        assert sum(store.max_offset("t", queue_id) for queue_id in store.queues("t")) == 150
