"""Goal: at whatever moment a process is killed, every acknowledged message exists afterwards: once,
whole, in its queue, in its order and under its key. A message whose put had begun exists at most
once. A kill of the recovery changes none of this.
Method: a child puts from several threads, one with an event loop and futures, closes and opens the
store again, and keeps a journal. It is killed after some time or at a system call, repeatedly, and
the store is compared with the journal.

ROCKETSTORE_SOAK_KILLS=N makes N kills, ROCKETSTORE_SEED selects other moments, and
ROCKETSTORE_KEEP=DIR keeps the files of a failed cycle, so that its check can be repeated there.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from injection import ANY, CALLS, Faults, build
from journal import (
    SETTINGS,
    Journal,
    LaterPutter,
    Putter,
    PutterThread,
    Record,
    check,
    read_journal,
)
from nursery import Nursery, environment
from places import directory
from support import oracle
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_KILLS", "0"))
KEEP = os.environ.get("ROCKETSTORE_KEEP", "")
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
#: Number of kills, and of cycles with one store.
KILLS = SOAK or 20
STORE_CYCLES = 4
#: Time after which a child is killed that never makes its fatal call (s).
LONGEST_S = 0.2


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory; a page written by a killed process survives, in memory or on a disk."""
    path = directory()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery") / "errors")
    yield nursery
    nursery.close()


def moment(rng: random.Random) -> tuple[float, tuple[str, str, int]]:
    """Draw the death of the next child: after some seconds, or at a call."""
    if rng.random() < 0.5:
        return rng.choice((0.02, 0.1, LONGEST_S)) * rng.random(), (build(), ANY, 0)
    if rng.random() < 0.5:
        return LONGEST_S, (build(), ANY, rng.randrange(1, 1500))
    return LONGEST_S, (build(), rng.choice(CALLS), rng.randrange(1, 12))


def log_bytes(path: Path) -> bytes:
    """Return the records of the log by the oracle, without the bytes behind them."""
    records = b""
    for file in sorted((path / "commitlog").glob("*")):
        data = file.read_bytes()
        if file.name.isdigit() and data:
            _, _, end = oracle.scan_log(data, int(file.name))
            records += data[:end]
    return records


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def look(path: Path, record: Record, rng: random.Random) -> None:
    """Examine the store of a killed child read-only, or after a recovery, or not at all."""
    if not path.exists():
        return
    before = log_bytes(path)
    if rng.random() < 0.3:
        files = snapshot(path)
        with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
            check(store, record)
        assert snapshot(path) == files
    if rng.random() < 0.6:
        with pyrocketstore.open(path, **SETTINGS) as store:
            check(store, record)
        assert log_bytes(path) == before, "recovery has changed the log"
    assert not (path / ".broken").exists()


@pytest.mark.timeout(300 + 5 * SOAK)
def test_every_acknowledged_message_survives(folder: Path, nursery: Nursery) -> None:
    rng = random.Random(SEED)
    acknowledged = 0
    methods: set[str] = set()
    path, journal, flush = folder, folder, ""
    for cycle in range(KILLS):
        if cycle % STORE_CYCLES == 0:
            path, journal = folder / f"store{cycle}", folder / f"journal{cycle}"
            flush = rng.choice(FLUSHES)
        seconds, kill = moment(rng)
        said = f"seed {SEED}, cycle {cycle}, {flush}, {seconds:.3f} s, {kill[1]} {kill[2]}"
        before = folder / "before"
        shutil.rmtree(before, ignore_errors=True)
        if KEEP and path.exists():
            shutil.copytree(path, before)
        try:
            status = nursery.run_and_kill(
                seconds,
                do="live",
                path=str(path),
                journal=str(journal),
                seed=f"{SEED}.{cycle}",
                flush=flush,
                kill=kill,
            )
            assert status == -signal.SIGKILL, nursery.errors.read_text()[-5000:]
            record = read_journal(journal)
            if KEEP:
                shutil.rmtree(folder / "killed", ignore_errors=True)
                if path.exists():
                    shutil.copytree(path, folder / "killed")
            look(path, record, rng)
        except BaseException as error:
            if KEEP:
                shutil.copytree(folder, Path(KEEP) / f"{SEED}.{cycle}")
            error.add_note(said)
            raise
        print(f"{said}: {record.acknowledged} acknowledged")
        if cycle % STORE_CYCLES == STORE_CYCLES - 1:
            acknowledged += record.acknowledged
            shutil.rmtree(path, ignore_errors=True)
        methods |= {record.calls[at].method for at in record.outcomes}
    assert acknowledged > 5 * KILLS
    assert methods == {"put", "put_many", "put_batch", "aput", "future"}


def test_a_killed_recovery_changes_nothing(folder: Path, nursery: Nursery) -> None:
    """Children are killed at many calls of an opening that has much to rebuild."""
    rng = random.Random(SEED)
    path, journal = folder / "store", folder / "journal"
    nursery.run_and_kill(
        0.3, do="live", path=str(path), journal=str(journal), seed="r", flush="ASYNC_FLUSH",
        kill=("", ANY, 0),
    )  # fmt: skip
    before = log_bytes(path)
    for lost in ("consumequeue", "index"):
        shutil.rmtree(path / lost)
    whole = folder / "whole"
    shutil.copytree(path, whole)
    faults = Faults()
    faults.arm(ANY)
    pyrocketstore.open(whole, env=faults.env(), **SETTINGS).close()
    calls = faults.count(ANY)
    faults.disarm()
    killed = 0
    for cycle in range(7 + SOAK // 4):
        if cycle % 20 == 0:
            shutil.rmtree(path)
            shutil.copytree(whole, path)
            for lost in ("consumequeue", "index"):
                shutil.rmtree(path / lost)
            (path / "abort").touch()
        number = rng.randrange(1, calls)
        status = nursery.run_and_kill(30, do="open", path=str(path), kill=(build(), ANY, number))
        assert status in (0, -signal.SIGKILL), nursery.errors.read_text()[-5000:]
        killed += status != 0
        said = f"seed {SEED}, cycle {cycle}: killed at call {number} of {calls}"
        assert log_bytes(path) == before, said
        if cycle % 5 == 4:
            with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
                check(store, read_journal(journal))
    assert killed
    with pyrocketstore.open(path, **SETTINGS) as store:
        check(store, read_journal(journal))


@pytest.mark.parametrize("flush", FLUSHES)
def test_killed_right_after_a_roll(tmp_path: Path, flush: str) -> None:
    """The last message is the first one of its log file and of its queue file."""
    code = """
import os, signal, sys, pyrocketstore
from journal import SETTINGS
size = SETTINGS["mapped_file_size_commit_log"]
store = pyrocketstore.open(sys.argv[1], flush_disk_type=sys.argv[2], **SETTINGS)
i = 0
while True:
    result = store.put("T", b"%d " % i + bytes(900), keys=f"k{i}")
    i += 1
    if i > 100 and result.phy_offset % size == 0:
        if sys.argv[3] == "dispatched":
            store.wait_dispatched()
        print(i, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    for when in ("at once", "dispatched"):
        path = tmp_path / when
        ended = subprocess.run(
            [sys.executable, "-c", code, str(path), flush, when],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        count = int(ended.stdout)
        for read_only in (True, False, False):
            with pyrocketstore.open(path, read_only=read_only, **SETTINGS) as store:
                assert [m.body.split()[0] for m in store.read("T")] == [
                    b"%d" % i for i in range(count)
                ]
                (hit,) = store.query("T", f"k{count - 1}")
                assert hit.phy_offset % SETTINGS["mapped_file_size_commit_log"] == 0
                assert store.verify().ok


@pytest.mark.parametrize("flush", FLUSHES)
def test_close_races_with_puts(folder: Path, flush: str) -> None:
    """No acknowledged message is lost, no call hangs, and later puts are refused."""
    rng = random.Random(f"{SEED} close")
    for cycle in range(4 + SOAK // 10):
        path, noted = folder / f"store{cycle // 4}", folder / f"journal{cycle // 4}"
        journal = Journal(noted)
        store = pyrocketstore.open(path, flush_disk_type=flush, **SETTINGS)
        names = [f"{cycle}-{i}" for i in range(5)]
        putters = [
            PutterThread(kind(store, journal, n, random.Random(f"{SEED} {n}")), calls=200)
            for kind, n in zip((*[Putter] * 3, *[LaterPutter] * 2), names, strict=True)
        ]
        for putter in putters:
            putter.start()
        time.sleep(rng.uniform(0, 0.02))
        closers = [threading.Thread(target=store.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for thread in [*closers, *putters]:
            thread.join(60)
            assert not thread.is_alive(), f"seed {SEED}, cycle {cycle}: a thread hangs"
        late = [putter.error for putter in putters]
        refused = (pyrocketstore.StoreStateError, pyrocketstore.PutError, type(None))
        assert all(isinstance(error, refused) for error in late), late
        assert not (path / "abort").exists(), "the end was not clean"
        journal.close()
        if cycle % 4 == 3:
            with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
                assert check(store, read_journal(noted))
