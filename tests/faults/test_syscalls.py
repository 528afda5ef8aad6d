"""Goal: whichever system call fails, once or from then on, no acknowledged message is lost, no
false success is reported, no thread hangs, and the failure is reported with its file and its errno.
Method: a whole life of a store in which the k-th call of a kind fails; a journal; and the same
store without faults.

A run takes a sample by ROCKETSTORE_SEED. ROCKETSTORE_SOAK_FAULTS=1 takes every call and every
errno, and ROCKETSTORE_SOAK_BEGIN=N continues after N lives.
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
from injection import CALLS, ERROR, FOREVER, SHORT, Faults, Hit
from journal import SETTINGS
from life import Life
from places import directory
from pyrocketstore.consume_queue import retries
from pyrocketstore.files.allocate_mapped_file_service import FileSettings
from pyrocketstore.files.mapped_file_queue import AllocateMappedFileService, MappedFileQueue
from pyrocketstore.index import index_service
from support.gates import unclean
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_FAULTS", "0"))
BEGIN = int(os.environ.get("ROCKETSTORE_SOAK_BEGIN", "0"))
SAMPLE = 160
#: The calls that make a file where files without a name do not exist.
MAKING_BY_LINK = ("open", "ftruncate", "link", "unlink")
SAMPLE_BY_LINK = 24
PROGRESS = 1000
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
ERRORS = ("EIO", "ENOSPC", "EINTR", "EDQUOT", "EROFS", "EMFILE")
#: Number of interrupts in a row: the kernel does not interrupt a call forever.
EINTR_TIMES = 3
WATCHDOG_S = 60
#: Calls that are repeated at once after EINTR, below the table.
RETRIED = {"open", "open_unnamed", "ftruncate", "fallocate", "punch", "fdatasync", "fsync",
           "fsync_directory", "pread", "pwrite"}  # fmt: skip


class Case(NamedTuple):
    """One life with one fault."""

    flush: str
    call: str
    number: int
    error: str  # name of an errno, or "short"
    forever: bool
    unnamed: bool = True  # True if the file system has files without a name

    def __str__(self) -> str:
        since = " and all after it" if self.forever else ""
        where = "" if self.unnamed else ", without unnamed files"
        return f"{self.flush}: {self.call} number {self.number}{since}: {self.error}{where}"


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


def counts(faults: Faults, flush: str) -> dict[str, int]:
    """Return the number of calls of each kind in a life."""
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
    """Return all cases in the soak; else the same number for each call, spread over the life."""
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
    """Collects the log lines of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Yield the texts of an exception and its causes."""
    while error is not None:
        yield str(error)
        error = error.__cause__


def is_reported(life: Life, logged: list[str], case: Case, code: int, hit: Hit) -> bool:
    """Return True if a text names the errno and the file, its directory, or one of many."""
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
    """Return True for a call that no promise of the store depends on."""
    if case.error == "short" or (case.error == "EINTR" and case.call in RETRIED):
        return True
    # Pages filled ahead with zeros, which read as zeros anyway. A new checkpoint is all zeros too.
    is_fill = case.call == "pwrite" and hit.is_zero
    return is_fill and not hit.path.endswith("/checkpoint.tmp")


def is_made_good(case: Case, hit: Hit) -> bool:
    """Return True if the failed call was repeated with success, or became unnecessary."""
    if case.call in ("msync", "fdatasync", "fsync", "syncfs"):
        # The success of a repeated flush says nothing about the bytes of the failed one.
        return hit.removed
    if case.call == "link" and not case.unnamed:
        return True  # the file was then made under its own name
    # A file made ahead that was never needed.
    return hit.again or hit.removed or not os.path.lexists(hit.path)


def code_of(case: Case) -> int:
    return 0 if case.error == "short" else getattr(errno, case.error)


def live(life: Life, faults: Faults, case: Case) -> None:
    """Run a life under a fault; fail if it hangs."""
    code = code_of(case)
    last = FOREVER if case.forever else case.number
    if case.error == "EINTR":
        last = case.number + (EINTR_TIMES if case.forever else 0)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # valid records behind an unreadable position
                life.run(faults.env())
        except BaseException as error:  # noqa: BLE001  raised by the test's own thread
            failed.append(error)

    dead: list[int] = []

    def is_dead(path: Path) -> bool:
        # A flush of the log failed: until an opening has flushed all bytes again, no call may
        # report that data is durable.
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
            assert is_reported(life, messages.texts, case, code, hit), (
                f"{hit}: no text names it: {life.errors}"
            )
        if fired and is_harmless(case, hit) and not case.forever:
            assert life.errors == [], f"{hit}: should be no trouble"
        assert not life.false_oks, f"{hit}: PUT_OK, but not durable: {life.false_oks}"
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
    """Repeat at once the calls that are normally repeated a second later."""
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.001)
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
    """New files get their length under another name, or under their own if that fails too."""
    faults.no_unnamed_files(on=True)
    try:
        cases = chosen(all_cases(faults, MAKING_BY_LINK, unnamed=False), SAMPLE_BY_LINK)
        print(f"seed {SEED}: {len(cases)} lives without unnamed files")
        for case in cases:
            try_case(faults, case)
    finally:
        faults.no_unnamed_files(on=False)


def refused(store: pyrocketstore.Store, *, reason: str) -> None:
    """Every put method reports the reason of its failure."""
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
        with pytest.raises(pyrocketstore.StoreIOError, match=f"{folder}/"):
            store.wait_dispatched()
        refused(store, reason=f"{folder}/")
        refused(store, reason=f"errno {errno.EDQUOT}")
        faults.disarm()
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        assert [m.body for m in store.query("t", "k")] == [b"first"]


def test_a_file_that_cannot_be_made_is_followed_by_none(faults: Faults, tmp_path: Path) -> None:
    """The file after the next is not made ahead if the next one failed.

    Otherwise a crash would leave a file sequence with a gap.
    """
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
    # The thread handles requests in order: when this one is done, all earlier ones are.
    service.put_request_and_return_mapped_file(
        f"{tmp_path}/other/{0:020d}", None, FileSettings(4096)
    )
    assert os.listdir(f"{tmp_path}/log") == [f"{0:020d}"]
    faults.disarm()
    assert log.get_last_mapped_file(4096) is not None
    service.shutdown()
    log.destroy()
