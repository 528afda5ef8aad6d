"""Goal: whatever moment a process is killed at, every acknowledged message is there afterwards,
once, whole, in its queue and under its key; and killing the recovery too changes nothing. Method:
a child puts from several threads and writes down what was acknowledged; it is killed, again and
again, and the store is compared with what was written down.

ROCKETSTORE_SOAK=N runs N more cycles, ROCKETSTORE_SEED picks other moments.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import oracle
import pyrocketstore
from crash_child import CHILD_BEGINS, SETTINGS, Putter

SEED = int(os.environ.get("ROCKETSTORE_SEED", "20240718"))
SOAK = int(os.environ.get("ROCKETSTORE_SOAK", "0"))
CHILD = Path(__file__).parent / "crash_child.py"


class Acked(NamedTuple):
    """A message that was acknowledged."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    key: str
    body: bytes


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """The child's: the build that is tested here, and the modules of the tests."""
    paths = [str(Path(pyrocketstore.__file__).parent.parent), str(CHILD.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def wait_for(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    line = child.stdout.readline().strip()
    assert line == word, child.stderr.read()


def kill(child: subprocess.Popen[str]) -> None:
    """SIGKILL; a child that ended by itself has failed."""
    child.kill()
    _, errors = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL, errors


def put_and_kill(path: Path, journal: Path, seed: str, flush: str, seconds: float) -> None:
    child = start("put", path, journal, seed, flush)
    wait_for(child, "putting")
    time.sleep(seconds)
    kill(child)


def acked(journal: Path) -> list[Acked]:
    """What the journal says; the last line of a child says nothing where it was not finished."""
    found = []
    lines = [*journal.read_bytes().split(b"\n")[:-1], CHILD_BEGINS]
    for line, following in itertools.pairwise(lines):
        if line in (b"", CHILD_BEGINS):
            continue
        try:
            topic, rows = json.loads(line)
        except json.JSONDecodeError:
            assert following == CHILD_BEGINS
            continue
        for queue_id, queue_offset, phy_offset, key, body in rows:
            found.append(Acked(topic, queue_id, queue_offset, phy_offset, key, bytes.fromhex(body)))
    return found


def check(store: pyrocketstore.Store, messages: list[Acked], *, keys: int = 60) -> None:
    """Every acknowledged message is there once, and nothing is there twice."""
    report = store.verify()
    assert report.ok, report.problems[:5]
    held: dict[tuple[str, int], list[Any]] = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            queue = held[topic, queue_id] = list(store.read(topic, queue_id))
            assert [m.queue_offset for m in queue] == list(range(len(queue))), (topic, queue_id)
            assert store.max_offset(topic, queue_id) == len(queue)
            places = [m.phy_offset for m in queue]
            assert places == sorted(set(places))
    bodies = [m.body for queue in held.values() for m in queue]
    assert len(bodies) == len(set(bodies)), "a message is there twice"
    for message in messages:
        queue = held.get((message.topic, message.queue_id), [])
        where = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
        assert message.queue_offset < len(queue), f"{where} is not there"
        found = queue[message.queue_offset]
        assert (found.body, found.keys) == (message.body, message.key), where
        assert message.phy_offset in (-1, found.phy_offset), where
    # The newest are the ones that a crash could lose.
    newest = messages[-keys // 2 :]
    for message in newest + messages[:: max(1, 2 * len(messages) // keys)]:
        hits = store.query(message.topic, message.key)
        assert [hit.body for hit in hits] == [message.body], message.key


def log_bytes(path: Path) -> bytes:
    """The records of the log by the oracle, and nothing of what lies behind them."""
    records = b""
    for file in sorted((path / "commitlog").iterdir()):
        data = file.read_bytes()
        if file.name.isdigit() and data:
            _, _, end = oracle.scan_log(data, int(file.name))
            records += data[:end]
    return records


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


@pytest.mark.timeout(300 + 60 * SOAK)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_acknowledged_message_survives(tmp_path: Path, flush: str) -> None:
    rng = random.Random(f"{SEED} {flush}")
    for cycle in range(5 + SOAK // 2):
        if cycle % 5 == 0:
            path, journal = tmp_path / f"store{cycle}", tmp_path / f"journal{cycle}"
        put_and_kill(path, journal, f"{SEED}.{cycle}", flush, rng.uniform(0.02, 0.5))
        messages = acked(journal)
        said = f"seed {SEED}, cycle {cycle}, {len(messages)} acknowledged"
        print(said)
        try:
            before = log_bytes(path)
            if rng.random() < 0.5:
                files = snapshot(path)
                with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
                    check(store, messages)
                assert snapshot(path) == files
            for _ in range(rng.randrange(3)):  # recovery is killed too
                child = start("open", path)
                wait_for(child, "opening")
                time.sleep(rng.uniform(0, 0.05))
                kill(child)
            if rng.random() < 0.7:
                with pyrocketstore.open(path, **SETTINGS) as store:
                    check(store, messages)
                assert log_bytes(path) == before, "recovery has changed the log"
            assert not (path / ".broken").exists()
        except BaseException as error:
            error.add_note(said)
            raise
    assert len(acked(journal)) > 500


def test_a_killed_recovery_changes_nothing(tmp_path: Path) -> None:
    """Killed at many moments of the opening, also of one that has much to rebuild."""
    rng = random.Random(SEED)
    path, journal = tmp_path / "store", tmp_path / "journal"
    put_and_kill(path, journal, "r", "ASYNC_FLUSH", 0.5)
    messages = acked(journal)
    before = log_bytes(path)
    for lost in ("consumequeue", "index"):
        shutil.rmtree(path / lost)
    for cycle in range(4 + SOAK):
        child = start("open", path)
        wait_for(child, "opening")
        time.sleep(rng.uniform(0, 0.03) if cycle % 2 else rng.uniform(0, 0.005))
        kill(child)
        assert log_bytes(path) == before
    with pyrocketstore.open(path, **SETTINGS) as store:
        check(store, messages)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_right_after_a_roll(tmp_path: Path, flush: str) -> None:
    """The last message is the first one of a file, of the log and of its queue."""
    code = """
import os, signal, sys, pyrocketstore
from crash_child import SETTINGS
store = pyrocketstore.open(sys.argv[1], flush_disk_type=sys.argv[2], **SETTINGS)
i = 0
while True:
    result = store.put("T", b"%d " % i + bytes(900), keys=f"k{i}")
    i += 1
    if i > 200 and result.phy_offset % (1 << 16) == 0:
        if sys.argv[3] == "dispatched":
            store.wait_dispatched()
        print(i, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    for moment in ("at once", "dispatched"):
        path = tmp_path / moment
        ended = subprocess.run(
            [sys.executable, "-c", code, str(path), flush, moment],
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
                assert hit.phy_offset % (1 << 16) == 0
                assert store.verify().ok


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_close_races_with_puts(tmp_path: Path, flush: str) -> None:
    """Nothing acknowledged is lost, nobody hangs, and who comes too late is told so."""
    rng = random.Random(f"{SEED} close")
    path = tmp_path / "store"
    journal = os.open(tmp_path / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for cycle in range(4 + SOAK):
        store = pyrocketstore.open(path, flush_disk_type=flush, **SETTINGS)
        putters = [Putter(store, journal, f"{cycle}-{i}", f"{SEED} {cycle} {i}") for i in range(4)]
        for putter in putters:
            putter.start()
        time.sleep(rng.uniform(0, 0.1))
        closers = [threading.Thread(target=store.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for thread in [*closers, *putters]:
            thread.join(60)
            assert not thread.is_alive(), f"seed {SEED}, cycle {cycle}: a thread hangs"
        late = [putter.error for putter in putters]
        assert all(
            isinstance(error, (pyrocketstore.StoreStateError, pyrocketstore.PutError))
            for error in late
        ), late
        assert not (path / "abort").exists(), "the end was not clean"
    messages = acked(tmp_path / "journal")
    os.close(journal)
    assert messages
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        check(store, messages)
