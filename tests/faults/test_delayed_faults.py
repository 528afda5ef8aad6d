"""Goal: a kill, a power cut or a failing system call at any moment loses no delivery of a delayed
message, and clean stops repeat none.
Method: children and stores that put messages which are due at once, with a journal. After each
fault the store is opened, delivers the rest, and is compared with the journal (delayed.py).

ROCKETSTORE_SOAK_DELAYED=N makes N kills, power cuts and failing calls; ROCKETSTORE_SEED selects
others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from delayed import DELAYED, DelayedJournal, check, put_delayed
from device import Captured, Device
from injection import ANY, CALLS, FOREVER, Faults, build
from nursery import Nursery
from places import directory
from pyrocketstore.consume_queue import retries
from pyrocketstore.index import index_service
from pyrocketstore.schedule.service import ScheduleMessageService
from pyrocketstore.system.env import Env
from support.seed import SEED
from survivors import choose, image_of, write

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_DELAYED", "0"))
KILLS = SOAK or 12
CYCLES = 4
IMAGES = SOAK or 60
CASES = SOAK or 40
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
ERRORS = (errno.EIO, errno.ENOSPC)
#: Calls of a life; a later number is a life without a fault.
CALLS_MAX = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    path = directory()
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.001)
    monkeypatch.setattr(index_service, "RETRY_INTERVAL_MS", 1)


@pytest.mark.timeout(120 + 5 * SOAK)
def test_kills(folder: Path, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} delayed")
    nursery = Nursery(tmp_path / "errors")
    acknowledged: set[int] = set()
    with contextlib.closing(nursery):
        for cycle in range(KILLS):
            path, notes = folder / f"store{cycle // CYCLES}", folder / f"journal{cycle // CYCLES}"
            flush = FLUSHES[cycle // CYCLES % 2]
            kill, seconds = (build(), ANY, 0), rng.uniform(0.02, 0.3)
            if rng.random() < 0.5:
                kill, seconds = (build(), ANY, rng.randrange(1, 1500)), 1.0
            nursery.run_and_kill(
                seconds, do="delay", path=str(path), notes=str(notes), first=cycle * 1_000_000,
                flush=flush, kill=kill,
            )  # fmt: skip
            if not path.exists() or rng.random() < 0.3:
                continue  # killed again, before the rest is delivered
            begun, acknowledged = DelayedJournal(notes).read()
            try:
                check(path, begun, acknowledged)
            except BaseException as error:
                error.add_note(f"seed {SEED}, cycle {cycle}, {flush}, {kill[1:]}")
                raise
    assert nursery.errors.read_text() == ""


def run_under(device: Device, path: Path, seed: str, flush: str, journal: DelayedJournal) -> None:
    """Put, flush and close now and then; a flush or SYNC_FLUSH makes a promise."""
    rng = random.Random(seed)
    number, safe = 0, 0
    device.promises = lambda: (number, safe)
    env = Env()
    device.attach(env)
    while number < 150:
        with pyrocketstore.open(path, env=env, **{**DELAYED, "flush_disk_type": flush}) as store:
            for _ in range(rng.randrange(30)):
                before = number
                number += 7  # a put of at most so many begins
                number = before + put_delayed(store, journal, before, rng)
                if flush == "SYNC_FLUSH":
                    safe = number
                elif rng.random() < 0.2:
                    store.flush()
                    safe = number
                if rng.random() < 0.2:
                    time.sleep(0.003)  # deliveries, and a write of their offsets
                device.moment("between puts")
        safe = number


@pytest.mark.parametrize("flush", FLUSHES)
def test_power_cuts(folder: Path, flush: str) -> None:
    images = 0
    while images < IMAGES // 2:
        seed = f"{SEED}.{flush}.{images}"
        run = folder / "run"
        run.mkdir()
        journal = DelayedJournal(folder / "journal")
        device = Device(run, seed, captures_max=10, rate=0.8)
        run_under(device, run / "store", seed, flush, journal)
        journal.close()
        for number, moment in enumerate(device.captures):
            images += 2
            for image in range(2):
                examine(folder / "image", moment, f"{seed}.{number}.{image}")
        device.release()
        shutil.rmtree(run)


def examine(path: Path, moment: Captured, name: str) -> None:
    rng = random.Random(name)
    choice = choose(rng)
    write(image_of(moment, choice, rng), path)
    begun, safe = moment.promised
    try:
        if (path / "store").exists():
            check(path / "store", set(range(begun)), set(range(safe)))
        else:
            assert safe == 0
    except BaseException as error:
        error.add_note(f"{name} ({choice}), the power cut before {moment.call}")
        error.add_note(f"calls before: {moment.events[-12:]}")
        raise
    shutil.rmtree(path)


def live(path: Path, env: Env, flush: str, journal: DelayedJournal, seed: str) -> None:
    """Put under a fault, with two openings."""
    rng = random.Random(seed)
    number = 0
    for _ in range(2):
        with (
            contextlib.suppress(pyrocketstore.StoreError),
            pyrocketstore.open(path, env=env, **{**DELAYED, "flush_disk_type": flush}) as store,
        ):
            for _ in range(12):
                with contextlib.suppress(pyrocketstore.StoreError):
                    put_delayed(store, journal, number, rng)
                number += 7
            end = time.monotonic() + 0.05
            service = store.message_store.services.schedule_service
            while service is not None and service.has_messages() and time.monotonic() < end:
                time.sleep(0.002)


@pytest.mark.timeout(120 + 5 * SOAK)
def test_failing_calls(folder: Path) -> None:
    faults = Faults()
    rng = random.Random(f"{SEED} calls")
    for case in range(CASES):
        call, error = rng.choice(CALLS), rng.choice(ERRORS)
        flush, first = rng.choice(FLUSHES), rng.randrange(1, CALLS_MAX)
        if rng.random() < 0.6:
            first = rng.randrange(1, 12)
        only = rng.choice(("", "", "/config/", "/consumequeue/", "/commitlog/"))
        last = rng.choice((first, FOREVER))
        path = folder / f"store{case}"
        journal = DelayedJournal(folder / f"journal{case}")
        env = faults.env()
        faults.arm(call, first, last, errno=error, only=only)
        try:
            live(path, env, flush, journal, f"{SEED}.{case}")
            faults.disarm()
            check(path, *journal.read())
        except BaseException as raised:
            raised.add_note(f"seed {SEED}, {case}: {flush} {call} {first}-{last} {error} {only}")
            raise
        finally:
            faults.disarm()
            journal.close()
        shutil.rmtree(path)


def test_the_judge_notices_a_lost_delivery(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that passes a delivery loses it."""
    journal = DelayedJournal(folder / "journal")
    path = folder / "store"
    with monkeypatch.context() as patch:
        patch.setattr(ScheduleMessageService, "run", lambda self: None)
        with pyrocketstore.open(path, **DELAYED) as store:
            put_delayed(store, journal, 0, random.Random(1))
    file = path / "config" / "delayOffset.json"
    assert not file.exists()
    file.write_text('{"offsetTable":{1:1}}')
    with pytest.raises(AssertionError, match="lost"):
        check(path, *journal.read())
