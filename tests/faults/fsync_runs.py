"""Programs in which one fsync fails, or for a while every open. The reaction of the store is
compared with its promises, and the result of a power cut with the acknowledged messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyrocketstore
from campaign import directory_of
from device import Captured, Device
from fault_programs import DIRECTORY, Journal, Program, Runner, make
from judge import Expected, Judge, demand
from pyrocketstore import MessageExtBrokerInner
from survivors import all_cached, choose, image_of, write

#: Time limit for the store to notice an fsync that failed in one of its threads (s).
NOTICE_S = 10.0
#: Number of additional moments of a run, and of images of each moment.
MOMENTS = 1
IMAGES = 2
#: Steps of the store that is opened after the failure.
LATER_STEPS = 8


def program_of(seed: str) -> Program:
    """Return the program of a seed, with write methods that the power cuts do not use."""
    program = make(seed)
    rng = random.Random(f"{seed} ways to write")
    settings: dict[str, Any] = {}
    way = rng.random()
    if way < 0.2:
        settings = {"write_without_mmap": True}
    elif way < 0.4 and program.settings["flush_disk_type"] == "ASYNC_FLUSH":
        settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
    return program._replace(settings=program.settings | settings)


class FailingRunner(Runner):
    """Runs a program until `has_failed` returns True."""

    has_failed: Callable[[], bool] = staticmethod(lambda: False)
    opened: Any = None

    def open(self) -> Any:
        self.opened = None
        self.opened = super().open()
        return self.opened

    def end(self) -> None:
        """End all threads of the program."""
        if self.opened is not None:
            with contextlib.suppress(pyrocketstore.StoreError):
                self.opened.close()

    def refused(self, result: Any) -> None:
        """Note nothing: the message is not acknowledged, and so not promised."""
        raise pyrocketstore.PutError(result.status, False, 0)

    def run_until_it_fails(self) -> Any:
        """Run the steps; return the store that is open afterwards, or None."""
        store = None
        try:
            store = self.open()
            for _ in range(self.program.steps):
                if self.has_failed():
                    return store
                store = self.step(store)
            if not self.has_failed():
                store.close()
                self.journal.all_flushed()
                return None
        except pyrocketstore.StoreError:
            if not self.has_failed():
                raise
        return self.opened


class Run:
    """One program with one fault, in a new directory below `path`."""

    def __init__(self, path: Path, seed: str, name: str, counts: Counter[str]) -> None:
        self.path = path
        self.name = name
        self.counts = counts
        self.program = program_of(seed)
        self.root = path / "run"
        self.root.mkdir()
        self.device = Device(self.root, name, captures_max=MOMENTS, rate=0.3)
        self.journal = Journal(self.program.settings["flush_disk_type"] == "SYNC_FLUSH")
        self.rng = random.Random(f"{name} images")
        self.expected: list[tuple[Captured, bool]] = []

        self.runners: list[FailingRunner] = []

    def runner(self, program: Program | None = None) -> FailingRunner:
        runner = FailingRunner(program or self.program, self.root, self.device, self.journal)
        self.runners.append(runner)
        return runner

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Add the name of the run to an error, and remove all threads and directories."""
        with directory_of(self.device, self.name):
            try:
                yield
            except BaseException as error:
                error.add_note(
                    f"ROCKETSTORE_FAULT={self.name}: {self.device.failed}, {self.program}"
                )
                error.add_note(f"calls before: {list(self.device.events)[-12:]}")
                raise
            finally:
                for runner in self.runners:
                    runner.end()

    def count_calls(self) -> tuple[int, list[int], int]:
        """Return the number of fsyncs, the numbers of the syncfs calls among them, and the number
        of opens of a run without faults."""
        with self.alone():
            store = self.runner().run_until_it_fails()
            demand(store is None, "the program did not end")
            return self.device.syncs, self.device.syncfs_numbers, self.device.opens

    # ---- an fsync that fails ------------------------------------------------------------------

    def fail(self, number: int) -> None:
        """Run with a failure of the fsync of that number."""
        device = self.device
        with self.alone():
            device.fail_sync = number
            runner = self.runner()
            runner.has_failed = lambda: bool(device.failed)
            store = runner.run_until_it_fails()
            if not device.failed:
                self.counts["ended before the fsync"] += 1
                return
            self.counts[f"{device.failed.split()[0]} failed"] += 1
            self.counts["runs"] += 1
            self.look(is_first=True)
            if store is not None and not store.message_store.life.has_ended:
                self.check_final(store)
            if store is not None:
                demand((self.root / DIRECTORY / "abort").exists(), "abort is gone")
            demand(not device.late, "after the failed fsync:", device.late[:3])
            self.look(is_first=True)
            self.again()
            self.examine()

    def check_final(self, store: Any) -> None:
        """Require that no put is acknowledged and that flush and close raise, repeatedly."""
        deadline = time.monotonic() + NOTICE_S
        message_store = store.message_store
        while message_store.why_not_writeable is None and time.monotonic() < deadline:
            time.sleep(0.001)
        accepted = [way.__name__ for way in WAYS if not raises(lambda way=way: way(store))]
        demand(not accepted, "acknowledged after the failed fsync:", accepted)
        for flush in (store.flush, message_store.flush, store.flush):
            demand(raises(flush), "flush() returned after the failed fsync")
        demand(raises(store.close), "close() returned after the failed fsync")

    def look(self, *, is_first: bool) -> None:
        """Capture this moment."""
        self.expected += [(moment, is_first) for moment in self.device.take_captures()]
        self.expected.append((self.device.capture("a look"), is_first))

    def again(self) -> None:
        """Continue with another store over the same page cache: the machine has not stopped."""
        self.device.sync_fails_from_here(0)
        self.journal.is_first = False
        runner = self.runner(self.program._replace(seed=f"{self.name} again"))
        store = runner.open()
        for _ in range(LATER_STEPS):
            store = runner.step(store)
        self.look(is_first=False)
        store.close()
        self.journal.all_flushed()
        self.look(is_first=False)

    def examine(self) -> None:
        """Examine images of the moments that were kept."""
        for (moment, is_first), number in zip(self.expected, itertools.count()):
            for image in range(IMAGES):
                self.examine_image(moment, is_first, f"{self.name}.{number}.{image}")

    def examine_image(self, moment: Captured, is_first: bool, name: str) -> None:
        rng = random.Random(name)
        # An image without spontaneous writes reveals a promise that depends on one.
        choice = choose(rng)._replace(pages="old") if rng.random() < 0.5 else choose(rng)
        judge = Judge(self.path, self.program.settings)
        expected = Expected.of(self.journal, moment)._replace(is_first=is_first)
        try:
            judge.examine(image_of(moment, choice, rng), expected, name, again=False)
        except BaseException as error:
            error.add_note(f"image {name} ({choice}), {moment.call}")
            kept = Path(tempfile.mkdtemp(prefix="pyrocketstore-fault-")) / "image"
            write(judge.image, kept)
            write(all_cached(moment), kept.with_name("cached"))
            error.add_note(f"the image: {kept}")
            raise
        self.counts["images"] += 1
        for number in range(1, judge.number + 1):
            shutil.rmtree(self.path / f"image{number}", ignore_errors=True)

    # ---- opens that fail for a while ----------------------------------------------------------

    def refuse_opens(self, first: int, count: int) -> None:
        """Run with `count` failing opens from number `first` on; later ones succeed."""
        device = self.device
        with self.alone():
            device.fail_opens = range(first, first + count)
            self.live_without_descriptors()
            self.look(is_first=False)
            self.examine()

    def live_without_descriptors(self) -> None:
        device = self.device
        runner = self.runner()
        store = None
        for _ in range(self.program.steps):
            try:
                store = store or runner.open()
                store = runner.step(store)
            except pyrocketstore.StoreError:
                demand(device.refused_opens > 0, "an error without a cause")
                if store is not None and store.message_store.life.has_ended:
                    store = None
                    if self.program.settings.get("transient_store_pool_enable"):
                        self.journal.lost_buffers()
        demand(not device.failed, device.failed)
        self.counts["runs"] += 1
        self.counts["opens refused"] += device.refused_opens
        device.fail_opens = range(0)
        store = store or runner.open()
        deadline = time.monotonic() + NOTICE_S
        while raises(lambda: runner.single(store)):
            demand(time.monotonic() < deadline, "puts are blocked:",
                   store.message_store.why_not_writeable)  # fmt: skip
            time.sleep(0.005)
        store.flush()
        self.journal.all_flushed()
        store.close()
        demand(not (self.root / DIRECTORY / "abort").exists(), "abort stayed")


# ---- ways to put ------------------------------------------------------------------------------


def put(store: Any) -> None:
    """Put one message."""
    store.put("orders", b"refused")


def put_many(store: Any) -> None:
    """Put two messages."""
    store.put_many("orders", [b"refused", b"too"])


def put_batch(store: Any) -> None:
    """Put a batch."""
    store.put_batch("orders", [b"refused", b"too"])


def aput(store: Any) -> None:
    """Put in an event loop."""
    asyncio.run(store.aput("orders", b"refused"))


def async_put(store: Any, *, waits: bool = True) -> None:
    """Put with a future."""
    message = MessageExtBrokerInner("orders", b"refused", 0)
    message.wait_store_msg_ok = waits
    result = store.message_store.async_put_message(message).result(30)
    if result.status.name != "PUT_OK":
        raise pyrocketstore.PutError(result.status, False, 0)


def put_without_wait(store: Any) -> None:
    """Put with a future that does not wait for the device."""
    async_put(store, waits=False)


WAYS = (put, put_many, put_batch, aput, async_put, put_without_wait)


def raises(call: Callable[[], object]) -> bool:
    """Return True if a call raises a StoreError."""
    try:
        call()
    except pyrocketstore.StoreError:
        return True
    return False
