"""Goal: whichever system call fails, once or from then on, nothing that was acknowledged is lost,
nothing false is said, nobody hangs, and the failure is told with its file and its errno.
Method: a whole life of a store with the k-th call of a kind failing; a journal; the same store
without faults.

A sample by ROCKETSTORE_SEED; ROCKETSTORE_SOAK_FAULTS=1 takes every call, every errno, and
ROCKETSTORE_SOAK_BEGIN=N goes on where N lives of that were done.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import shutil
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pyrocketstore
from gates import unclean
from injection import CALLS, ERROR, FOREVER, SHORT, Faults, Hit
from journal import SETTINGS
from life import Life
from places import directory
from pyrocketstore import consume_queue, index_service
from pyrocketstore.allocate_mapped_file_service import FileSettings
from pyrocketstore.mapped_file_queue import AllocateMappedFileService, MappedFileQueue

SEED = int(os.environ.get("ROCKETSTORE_SEED", "20240718"))
SOAK = int(os.environ.get("ROCKETSTORE_SOAK_FAULTS", "0"))
BEGIN = int(os.environ.get("ROCKETSTORE_SOAK_BEGIN", "0"))
SAMPLE = 160
#: How files are made where there are none without a name.
MAKING_BY_LINK = ("open", "ftruncate", "link", "unlink")
SAMPLE_BY_LINK = 24
PROGRESS = 1000
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
ERRORS = ("EIO", "ENOSPC", "EINTR", "EDQUOT", "EROFS", "EMFILE")
#: The kernel interrupts no call for ever.
EINTR_TIMES = 3
WATCHDOG_S = 60
#: Calls that are made again at once after EINTR, below the table.
RETRIED = {"open", "open_unnamed", "ftruncate", "fallocate", "punch", "fdatasync", "fsync",
           "fsync_directory", "pread", "pwrite"}  # fmt: skip


class Case(NamedTuple):
    """One life with one fault."""

    flush: str
    call: str
    number: int
    error: str  # or "short"
    forever: bool
    unnamed: bool = True  # the file system has files without a name

    def __str__(self) -> str:
        since = " and all after it" if self.forever else ""
        where = "" if self.unnamed else ", without unnamed files"
        return f"{self.flush}: {self.call} number {self.number}{since}: {self.error}{where}"


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


def counts(faults: Faults, flush: str) -> dict[str, int]:
    """How many calls of each kind a life makes."""
    folder = directory()
    faults.arm("any")
    life = Life(folder, flush, SEED)
    life.run(faults.env())
    assert life.errors == []
    found = {call: faults.count(call) for call in CALLS}
    faults.disarm()
    life.check()
    shutil.rmtree(folder)
    return found


def all_cases(
    faults: Faults, calls: tuple[str, ...] = CALLS, *, unnamed: bool = True
) -> Iterator[Case]:
    for flush in FLUSHES:
        counted = counts(faults, flush)
        for call in calls:
            count = counted[call]
            assert count, f"no {call} in a whole life"
            kinds = [*itertools.product(ERRORS, (False, True))]
            kinds += [("short", False), ("short", True)] if call in ("pread", "pwrite") else []
            for number in range(1, count + 1):
                for error, forever in kinds:
                    yield Case(flush, call, number, error, forever, unnamed)


def chosen(cases: Iterator[Case], sample: int) -> list[Case]:
    """All in the soak; else as many of each call, wherever they are in the life."""
    if SOAK:
        return list(cases)
    rng = random.Random(SEED)
    by_call: dict[str, list[Case]] = {}
    for case in cases:
        by_call.setdefault(case.call, []).append(case)
    return [
        case
        for some in by_call.values()
        for case in rng.sample(some, min(len(some), sample // len(by_call)))
    ]


class Messages(logging.Handler):
    """What the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def texts_of(error: BaseException | None) -> Iterator[str]:
    """What an exception and its causes say."""
    while error is not None:
        yield str(error)
        error = error.__cause__


def told(life: Life, logged: list[str], case: Case, code: int, hit: Hit) -> bool:
    """True when something names the file, or its directory, and the errno; of many, one."""
    said = [*logged]
    for error in (*(error for _, error in life.errors), *life.causes):
        said += texts_of(error)
    words = (f"errno {code}", os.strerror(code))
    names = {str(life.path.parent)} if case.forever else {hit.path, os.path.dirname(hit.path)}
    return any(
        any(word in text for word in words) and any(name and name in text for name in names)
        for text in said
    )


def is_harmless(case: Case, hit: Hit) -> bool:
    """True for a call without which the store does all that it promises."""
    if case.error == "short" or (case.error == "EINTR" and case.call in RETRIED):
        return True
    # Pages filled ahead with zeros, which are zeros anyway.
    return case.call == "pwrite" and hit.is_zero


def is_made_good(case: Case, hit: Hit) -> bool:
    """True when what failed was done all the same, or is not needed any more."""
    if case.call in ("msync", "fdatasync", "fsync"):
        # A force that is tried again says nothing of the bytes of the first.
        return hit.removed
    if case.call == "link" and not case.unnamed:
        return True  # the file was made under its own name
    # A file made ahead, which nobody came to need.
    return hit.again or hit.removed or not os.path.lexists(hit.path)


def code_of(case: Case) -> int:
    return 0 if case.error == "short" else getattr(errno, case.error)


def live(life: Life, faults: Faults, case: Case) -> None:
    """Run a life under a fault; fail when it does not come back."""
    code = code_of(case)
    last = FOREVER if case.forever else case.number
    if case.error == "EINTR":
        last = case.number + (EINTR_TIMES if case.forever else 0)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # valid records behind a point that cannot be read
                life.run(faults.env())
        except BaseException as error:  # noqa: BLE001  told by the test's own thread
            failed.append(error)

    dead: list[int] = []

    def is_dead(path: Path) -> bool:
        # A force of the log failed: until the store is opened again and has forced all anew,
        # nobody may be told that anything is on the device.
        lost = case.flush == "SYNC_FLUSH" and case.call == "msync" and faults.fired
        if lost and not dead and faults.hit().path.startswith(f"{path}/commitlog/"):
            dead.append(life.session)
        return life.session in dead

    life.is_dead = is_dead
    thread = threading.Thread(target=run, daemon=True)
    action = SHORT if case.error == "short" else ERROR
    faults.arm(case.call, case.number, last, action=action, errno=code)
    thread.start()
    thread.join(WATCHDOG_S)
    if thread.is_alive():
        frames = sys._current_frames()
        stacks = ["".join(traceback.format_stack(frame)) for frame in frames.values()]
        faults.disarm()
        raise AssertionError("a life hangs\n" + "\n".join(stacks))
    if failed:
        raise failed[0]


def try_case(faults: Faults, case: Case) -> None:
    folder = directory()
    messages = Messages()
    logger = logging.getLogger("pyrocketstore")
    logger.addHandler(messages)
    life = Life(folder, case.flush, SEED)
    try:
        live(life, faults, case)
        fired, hit = faults.fired, faults.hit()
        faults.disarm()
        code = code_of(case)
        if fired and not is_harmless(case, hit) and not is_made_good(case, hit):
            assert told(life, messages.texts, case, code, hit), (
                f"{hit}: nobody says so: {life.errors}"
            )
        if fired and is_harmless(case, hit) and not case.forever:
            assert life.errors == [], f"{hit}: should be no trouble"
        assert not life.false_oks, f"{hit}: PUT_OK for what was not forced: {life.false_oks}"
        life.check()
    except BaseException as error:
        error.add_note(f"{case}, seed {SEED}; errors {life.errors}, log {messages.texts}")
        raise
    finally:
        faults.disarm()
        logger.removeHandler(messages)
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again a second later is tried again at once."""
    monkeypatch.setattr(consume_queue, "RETRY_INTERVAL_S", 0.001)
    monkeypatch.setattr(index_service, "RETRY_INTERVAL_MS", 1)


@pytest.mark.timeout(4 * 3600 if SOAK else 300)
def test_a_failing_system_call_loses_nothing(faults: Faults) -> None:
    cases = chosen(all_cases(faults), SAMPLE)
    print(f"seed {SEED}: {len(cases)} lives, from {BEGIN} on", flush=True)
    for number, case in enumerate(cases[BEGIN:], BEGIN + 1):
        try_case(faults, case)
        if number % PROGRESS == 0:
            print(f"{number} lives are done", flush=True)


def test_without_unnamed_files_a_failing_call_loses_nothing(faults: Faults) -> None:
    """New files get their length under another name, and if that fails too, under their own."""
    faults.no_unnamed_files(on=True)
    try:
        cases = chosen(all_cases(faults, MAKING_BY_LINK, unnamed=False), SAMPLE_BY_LINK)
        print(f"seed {SEED}: {len(cases)} lives without unnamed files")
        for case in cases:
            try_case(faults, case)
    finally:
        faults.no_unnamed_files(on=False)


def refused(store: pyrocketstore.Store, *, reason: str) -> None:
    """Every way to put says why it does not."""
    for put in (
        lambda: store.put("t", b"x"),
        lambda: store.put_many("t", [b"x"]),
        lambda: store.put_batch("t", [b"x"]),
    ):
        with pytest.raises(pyrocketstore.PutError) as caught:
            put()
        assert reason in str(caught.value)
        assert isinstance(caught.value.__cause__, pyrocketstore.StoreIOError)


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_store_that_takes_no_more_says_why(faults: Faults, tmp_path: Path, folder: str) -> None:
    with unclean(pyrocketstore.open(tmp_path, env=faults.env(), **SETTINGS)) as store:
        faults.arm("fallocate", 1, FOREVER, errno=errno.EDQUOT, only=f"/{folder}/")
        store.put("t", b"first", keys="k")
        store.wait_dispatched()
        refused(store, reason=f"{folder}/")
        refused(store, reason=f"errno {errno.EDQUOT}")
        faults.disarm()
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        assert [m.body for m in store.query("t", "k")] == [b"first"]


def test_a_file_that_cannot_be_made_is_followed_by_none(faults: Faults, tmp_path: Path) -> None:
    """The file after the next is made ahead, but not where the next one failed: a crash would leave
    a row with a hole."""
    env = faults.env()
    service = AllocateMappedFileService(env)
    service.start()
    log = MappedFileQueue(env, f"{tmp_path}/log", 4096, allocate_service=service)
    faults.arm("link", 1, FOREVER, errno=errno.EIO, only=f"{4096:020d}")
    first = log.get_last_mapped_file(0)
    assert first is not None
    first.set_positions(4096)
    with pytest.raises(pyrocketstore.StoreIOError):
        log.get_last_mapped_file(4096)
    # The thread takes requests in their order: when this one is done, all before it are.
    service.put_request_and_return_mapped_file(
        f"{tmp_path}/other/{0:020d}", None, FileSettings(4096)
    )
    assert os.listdir(f"{tmp_path}/log") == [f"{0:020d}"]
    faults.disarm()
    assert log.get_last_mapped_file(4096) is not None
    service.shutdown()
    log.destroy()
