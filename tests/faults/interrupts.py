"""Processes whose signal handlers raise, put, flush and close.

`python interrupts.py MODE KIND SEED AMOUNT`, with one of these modes:

`steps`: for AMOUNT seconds, a handler raises at the first step of a call, then at the second, ...;
`closes`: as `steps`, with a handler that closes the store before it raises;
`timer`: a timer raises every few hundred microseconds, in every kind of call;
`enters`: the handler of such a timer puts, flushes and closes instead;
`target`: puts until SIGTERM, whose handler closes the store and ends the process.

Each process checks its own results. After each interrupt the store works again within a bounded
time. At the end every acknowledged message exists once, and no thread, descriptor or lock is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dis
import errno
import faulthandler
import functools
import gc
import itertools
import operator
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyrocketstore
from pyrocketstore import (
    MessageExt,
    MessageExtBrokerInner,
    MissingExtraError,
    PutError,
    PutMessageResult,
    PutMessageStatus,
    StoreError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.columns.arrow import require_pyarrow
from pyrocketstore.files.lock_file import LockFile

#: Small files, so that each call reaches the end of one.
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 40,
    "max_hash_slot_num": 20,
    "max_index_num": 80,
    "enable_multi_dispatch": True,
    "sync_flush_timeout": 2000,
    "max_outstanding_puts": 8,
    "message_delay_level": " ".join(["2h"] * 18),  # none is due meanwhile
}
#: Settings by name: the flush of the log and further parts.
KINDS: dict[str, dict[str, Any]] = {
    "ASYNC_FLUSH": {"flush_disk_type": "ASYNC_FLUSH"},
    "SYNC_FLUSH": {"flush_disk_type": "SYNC_FLUSH"},
    "POOL": {
        "flush_disk_type": "ASYNC_FLUSH",
        "transient_store_pool_enable": True,
        "transient_store_pool_size": 3,
    },
    "BOUNDED": {"flush_disk_type": "ASYNC_FLUSH", "max_unforced_bytes": 1 << 15},
}
#: Time limit of a call, interrupted or not (s).
LONGEST_S = 20.0
BODY = b"." * 3000
#: The queue id and queue offset of a message, in one step.
PLACE = operator.attrgetter("queue_id", "queue_offset")
#: Parsed once: a signal is raised at each step of the calls, not of the parser.
WHERE = pyrocketstore.Sql92Filter("a IS NULL")


class Interrupted(KeyboardInterrupt):
    """Raised by a handler, like the exception of Ctrl-C."""


class Refused(Exception):
    """Raised by a handler, and caught by code that catches Exception."""


@functools.cache
def tracer() -> ctypes.PyDLL:
    """Compile interrupt.c and load it."""
    folder = tempfile.mkdtemp()
    target = f"{folder}/interrupt.so"
    source = str(Path(__file__).parent / "interrupt.c")
    include = sysconfig.get_paths()["include"]
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{include}"]
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, *flags, source, "-o", target], check=True)
    library = ctypes.PyDLL(target)
    shutil.rmtree(folder)
    library.interrupt_at.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    library.interrupt_at.restype = None
    library.interrupt_end.restype = ctypes.c_long
    return library


def checked_instructions() -> bytes:
    """Return a table of 256: 1 for instructions after which CPython checks for signals."""
    names = ("CALL", "RESUME", "SEND", "YIELD")
    return bytes(
        name.startswith(names) or "BACKWARD" in name for name in (*dis.opname, "")[:256]
    ).ljust(256, b"\0")


def bodies_of(store: pyrocketstore.Store) -> Counter[int]:
    """Return how often each body is in the log, apart from the copies that `retry` makes."""
    found: Counter[int] = Counter()
    log = store.message_store.commit_log
    at = log.get_min_offset()
    while at < log.get_max_offset():
        size = log.record_size(at)
        message = log.look_message(at, size)
        if message is None:
            at = log.roll_next_file(at)
            continue
        topic = message.properties.get("REAL_TOPIC", message.topic)
        is_hidden = message.topic.startswith("RMQ_SYS_TRANS_")
        if not is_hidden and not topic.startswith("%RETRY%"):
            found[int(message.body.split()[0])] += 1
        at += size
    return found


class Life:
    """A store, the messages put to it, and the calls that are interrupted.

    Bodies are numbers; `acknowledged` are those whose call returned, `tried` all.
    """

    def __init__(self, kind: str, seed: str) -> None:
        self.path = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.settings = {**SETTINGS, **KINDS[kind]}
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.numbers = itertools.count()
        self.topics = 0
        self.call: Callable[[Life], None] = Life.put
        self.acknowledged: set[int] = set()
        #: messages of transactions
        self.rolled_back: set[int] = set()
        self.undecided: set[int] = set()
        #: (queue id, queue offset) of the messages of T that a consumer has returned
        self.received: set[tuple[int, int]] = set()
        #: the last ones, and one that the iteration has returned: not in `received` yet
        self.polled: list[MessageExt] = []
        self.iterated: MessageExt | None = None
        self.store = self.open()
        self.consumer = self.store.consumer("g", "T")
        self.loop = asyncio.new_event_loop()
        self.loop.close()

    def open(self) -> pyrocketstore.Store:
        """Open the store; an interrupted close may still run for a moment."""
        end = time.monotonic() + LONGEST_S
        while True:
            try:
                return pyrocketstore.open(self.path / "store", **self.settings)
            except StoreStateError:
                assert time.monotonic() < end, "the directory stays taken"
                time.sleep(0.001)

    # ---- calls ------------------------------------------------------------------------------

    def bodies(self, count: int) -> tuple[list[int], list[bytes]]:
        """Return new numbers."""
        # A single step, since a handler draws numbers too.
        numbers = list(itertools.islice(self.numbers, count))
        size = self.rng.choice((10, 700, len(BODY)))
        return numbers, [b"%d " % number + BODY[:size] for number in numbers]

    def put(self, **options: Any) -> None:
        (number,), (body,) = self.bodies(1)
        self.store.put("T", body, keys=f"k{number % 50}", **options)
        self.acknowledged.add(number)

    def transact(self) -> None:
        """Commit one message by a block and one by a call, roll one back, and leave one open."""
        numbers, bodies = self.bodies(4)
        with self.store.prepare("X", bodies[0], group="g"):
            pass
        self.acknowledged.add(numbers[0])
        second = self.store.prepare("X", bodies[1], group="g")
        second.commit()
        self.acknowledged.add(numbers[1])
        third = self.store.prepare("X", bodies[2], group="g")
        third.rollback()
        self.rolled_back.add(numbers[2])
        self.store.prepare("X", bodies[3], group="g")
        self.undecided.add(numbers[3])

    def put_slowly(self) -> None:
        self.put(properties=MappingProxyType({"a": "b"}))

    def put_named(self) -> None:
        self.put(properties={"order": "é7", **{f"name{i}": f"{i}" for i in range(70)}})

    def put_delayed(self) -> None:
        self.put(delay_level=18)

    def put_many_delayed(self) -> None:
        numbers, bodies = self.bodies(20)
        self.store.put_many("M", bodies, delay_levels=[number % 3 for number in numbers])
        self.acknowledged.update(numbers)

    def put_rolling(self) -> None:
        """Put enough messages to reach the end of a log file."""
        for _ in range(25):
            (number,), (body,) = self.bodies(1)
            self.store.put("T", body[:6] + BODY, keys="k")
            self.acknowledged.add(number)

    def put_new_queue(self) -> None:
        self.topics += 1
        (number,), (body,) = self.bodies(1)
        self.store.put(f"T{self.topics % 40}", body, queue_id=self.topics // 40)
        self.acknowledged.add(number)

    def put_many(self) -> None:
        numbers, bodies = self.bodies(60)
        ids = [number % 3 for number in numbers]
        self.store.put_many("M", bodies, queue_ids=ids, keys=[f"k{n % 50}" for n in numbers])
        self.acknowledged.update(numbers)

    def put_batch(self) -> None:
        numbers, bodies = self.bodies(5)
        self.store.put_batch("B", bodies)
        self.acknowledged.update(numbers)

    def put_multi(self) -> None:
        self.put(properties={"INNER_MULTI_DISPATCH": "X,Y"})

    def put_inner(self) -> None:
        (number,), (body,) = self.bodies(1)
        message = MessageExtBrokerInner("D", body, 0)
        if self.is_ok(self.store.message_store.put_message(message)):
            self.acknowledged.add(number)

    def put_future(self) -> None:
        (number,), (body,) = self.bodies(1)
        message = MessageExtBrokerInner("D", body, 0)
        future = self.store.message_store.async_put_message(message)
        if self.is_ok(future.result(LONGEST_S)):
            self.acknowledged.add(number)

    def is_ok(self, result: PutMessageResult) -> bool:
        """Return False if too much was outstanding. Raises PutError for another status."""
        if result.status is PutMessageStatus.OS_PAGECACHE_BUSY:
            return False
        if result.status is not PutMessageStatus.PUT_OK:
            raise PutError(result.status, False, 0)
        return True

    def aput(self) -> None:
        async def one(number: int, body: bytes) -> None:
            await self.store.aput("A", body)
            self.acknowledged.add(number)

        async def several() -> None:
            await asyncio.gather(*map(one, *self.bodies(12)))

        self.loop.run_until_complete(several())

    def flush(self) -> None:
        self.store.flush()

    def read(self) -> None:
        low, high = self.store.min_offset("T"), self.store.max_offset("T")
        if high > low:
            list(self.store.read("T", start=max(low, high - 20)))
            self.store.read_batch("T", start=max(low, high - 20))
            self.store.offset_at("T", 0, int(time.time() * 1000) - 100)
        self.store.topics()

    def query(self) -> None:
        hits = self.store.query_many("T", ["k1", "k2", "k3"])
        self.store.get_many(hits.phy_offset[:5])
        for message in self.store.query("T", "k7"):
            self.store.get(message.phy_offset)

    def stats(self) -> None:
        self.store.stats()
        self.store.message_store.get_runtime_info()

    def verify(self) -> None:
        report = self.store.verify()
        assert report.ok, report.problems[:3]

    def clean(self) -> None:
        """Destroy the queues of topics that are not needed; the log keeps their messages."""
        self.store.message_store.clean_unused_topic({*"TMBDAPXY", "%RETRY%g"})

    def reopen(self) -> None:
        self.store.close()
        self.consumer.close()
        self.store = pyrocketstore.open(self.path / "store", **self.settings)

    def close(self) -> None:
        self.store.close()

    def read_only(self) -> None:
        try:
            store = pyrocketstore.open(self.path / "store", read_only=True, **self.settings)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:  # a handler's close deleted a file made ahead
                raise
        else:
            with store:
                store.topics()

    def member(self) -> pyrocketstore.Consumer:
        """Return the consumer of this store."""
        consumer = self.consumer
        if consumer.closed:
            consumer = self.store.consumer("g", "T")
            self.consumer = consumer
        return consumer

    def note(self) -> None:
        """Move the messages of the last call to `received`."""
        self.received.update(map(PLACE, self.polled))
        if self.iterated is not None:
            self.received.add(PLACE(self.iterated))

    def take(self, count: int) -> None:
        """Poll; no step is between the return of the messages and their place in `polled`."""
        self.note()
        self.polled = self.member().poll(count, 0)
        self.note()  # an entering handler takes too

    def consume(self) -> None:
        self.take(20)
        self.member().commit()

    def apoll(self) -> None:
        async def one() -> None:
            self.note()
            self.polled = await self.member().apoll(5, 0.001)
            self.note()

        self.loop.run_until_complete(one())

    def iterate(self) -> None:
        self.put()
        self.note()
        for self.iterated in self.member():  # noqa: B020  the attribute is set in one step
            break

    def seek(self) -> None:
        consumer = self.member()
        if ("T", 0) in consumer.assignment():
            consumer.seek("T", 0, max(0, consumer.position("T", 0) - 3))
        self.take(5)
        consumer.lag()

    def join(self) -> None:
        """Let members join and leave the group."""
        with self.store.consumer("g", "T") as second:
            self.note()
            self.polled = second.poll(1, 0)
            self.member().assignment()
            self.store.consumer(f"g{self.topics % 5}", ["T", "M"], start="latest")
        with self.store.consumer(f"w{self.topics % 3}", "T", where=WHERE) as third:
            third.poll(1, 0)
        self.consumer.close()
        self.consumer = self.store.consumer("g", "T")
        self.store.consumer_positions()

    def retry(self) -> None:
        self.put()
        message = next(iter(self.store.read("T", start=self.store.max_offset("T") - 1)))
        self.member().retry(message, 1)

    CALLS = (
        put, put_slowly, put_named, put_rolling, put_rolling, put_new_queue, put_new_queue,
        put_many, put_many, put_delayed, put_many_delayed, put_batch, put_multi, put_inner,
        put_future, aput, aput, flush, read, query, stats, clean, reopen, read_only, consume,
        apoll, iterate, seek, join, retry, transact, transact,
    )  # fmt: skip

    def prepare(self, call: Callable[[Life], None]) -> None:
        """Prepare a call, without interrupts."""
        self.call = call
        if call is Life.flush:
            self.put_many()
        if call in LOOPS:
            self.loop = asyncio.new_event_loop()

    def tidy(self) -> None:
        """End an event loop and its tasks, as asyncio.run does."""
        if self.call in LOOPS:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            # An interrupted task raises again. An interrupted loop may have lost some tasks,
            # and may still have a call of stop().
            for _ in (*tasks, None) if tasks else ():
                try:
                    self.loop.run_until_complete(asyncio.wait(tasks, timeout=0.1))
                    break
                except Interrupted:
                    continue
                except RuntimeError as error:
                    if "Event loop stopped" not in str(error):
                        raise
            self.loop.close()

    # ---- judging ----------------------------------------------------------------------------

    @property
    def refuses(self) -> bool:
        """True once a close has begun: it may have been interrupted."""
        return not self.store._state.is_open

    def probe(self) -> None:
        """Require that the store works: it accepts a put, or can be opened."""
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        try:
            if self.refuses:
                self.store.close()
                self.consumer.close()
                self.store = self.open()
            with self.store.consumer("g", "P") as consumer:
                consumer.poll(1, 0)
            self.member().assignment()
            (number,), (body,) = self.bodies(1)
            self.store.put("P", body)
            self.acknowledged.add(number)
            assert self.store.message_store.failure is None, self.store.message_store.failure
        finally:
            faulthandler.cancel_dump_traceback_later()

    def check(self) -> None:
        """Require that each acknowledged message exists once and that the store is valid."""
        self.probe()
        self.store.flush()
        self.check_received()
        live = {one.transaction_id for one in self.store.transactions()}
        self.store.close()
        del self.store, self.consumer
        with pyrocketstore.open(self.path / "store", **self.settings) as store:
            assert store.message_store.plan.clean, "the close was not clean"
            report = store.verify()
            # Queues that `clean` destroyed are not rebuilt.
            problems = [p for p in report.problems if not re.search(r"queue/T\d+/", p.path)]
            assert not problems, problems[:5]
            self.decide(store, live)
            found = bodies_of(store)
        twice = [number for number, count in found.items() if count > 1]
        assert not twice, f"there twice: {twice[:5]}"
        missing = self.acknowledged - found.keys()
        assert not missing, f"{len(missing)} acknowledged messages are missing"
        assert max(found) < next(self.numbers)
        self.counts["messages"] += len(found)

    def decide(self, store: pyrocketstore.Store, live: set[str]) -> None:
        """Require that what is undecided is found, as before the close (`live`), and commit it."""
        assert {one.transaction_id for one in store.transactions()} == live
        undecided = {int(one.message.body.split()[0]): one for one in store.transactions()}
        assert self.undecided <= undecided.keys()
        assert not self.rolled_back & undecided.keys()
        for transaction in undecided.values():
            assert transaction.commit() is not None
        self.acknowledged |= undecided.keys()
        seen = bodies_of(store)
        assert not self.rolled_back & seen.keys()

    def check_received(self) -> None:
        """Require that the consumers have passed no message over."""
        for _ in range(100):
            self.take(1000)
        self.note()
        ends = {i: self.store.max_offset("T", i) for i in self.store.queues("T")}
        lost = {(i, at) for i, end in ends.items() for at in range(end)} - self.received
        assert not lost, f"{len(lost)} messages were never returned: {sorted(lost)[:5]}"
        self.counts["received"] += len(self.received)

    def end(self) -> None:
        """Check the store and remove it."""
        self.check()
        shutil.rmtree(self.path)


#: Calls that run an event loop.
LOOPS = (Life.aput, Life.apoll)

# ---- interrupting -------------------------------------------------------------------------------


class Armed:
    """A handler's action while it is armed, and the number of its runs."""

    def __init__(self, life: Life, act: Callable[[], None]) -> None:
        self.life = life
        self.act = act
        self.is_armed = False
        self.count = 0
        for number in (signal.SIGALRM, signal.SIGUSR1):
            signal.signal(number, self.handle)

    def handle(self, number: int, frame: object) -> None:
        if self.is_armed:
            self.is_armed = False
            self.count += 1
            self.act()

    @contextlib.contextmanager
    def expected(self) -> Iterator[None]:
        """Accept the exception of the handler, also as the cause of an error."""
        try:
            yield
        except (Interrupted, Refused):
            pass
        except StoreError as error:
            if not was_interrupted(error) and not self.life.refuses:
                raise
            # The cause is the interrupt, not the message.
            status = error.status if isinstance(error, PutError) else None
            if was_interrupted(error) and status is PutMessageStatus.MESSAGE_ILLEGAL:
                raise
        finally:
            self.is_armed = False


def was_interrupted(error: BaseException | None) -> bool:
    """Return True if an error has an interrupt among its causes."""
    while error is not None:
        if isinstance(error, (Interrupted, Refused)):
            return True
        error = error.__cause__ or error.__context__
    return False


def raiser(life: Life) -> Callable[[], None]:
    def act() -> None:
        # An event loop propagates KeyboardInterrupt only.
        raise Refused if life.rng.random() < 0.3 and life.call not in LOOPS else Interrupted

    return act


@contextlib.contextmanager
def after(first: float, interval: float) -> Iterator[None]:
    """Send SIGALRM after `first` s, and then every `interval` s."""
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


#: Calls whose every step is interrupted.
STEPPED = (
    Life.put_rolling, Life.put_new_queue, Life.put_many, Life.put_multi, Life.put_slowly,
    Life.put_future, Life.aput, Life.flush, Life.close, Life.reopen, Life.clean, Life.put_batch,
    Life.read, Life.query, Life.stats, Life.consume, Life.apoll, Life.iterate,
    Life.seek, Life.join, Life.retry,
)  # fmt: skip


def steps(life: Life, seconds: float, *, closes: bool, only: str = "") -> None:
    """Raise at each step of each call in turn, until the time has passed."""
    rng = life.rng
    table = checked_instructions()

    def close() -> None:
        life.store.close()
        life.counts["closed"] += 1
        raise Interrupted

    armed = Armed(life, close if closes else raiser(life))
    reached = dict.fromkeys((call for call in STEPPED if only in call.__name__), 0)
    done: set[Any] = set()
    # If the time does not suffice for all steps, each run draws a part of them.
    stride = 1 if seconds > 60 else rng.randrange(2, 40)
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(done) < len(reached):
        for call in [c for c in reached if c not in done]:
            reached[call] += rng.randrange(1, 2 * stride)
            where = f"step {reached[call]} of {call.__name__}"
            life.counts["steps"] += 1
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            try:
                life.prepare(call)
                gc.disable()  # otherwise another thread could end a traced coroutine
                armed.is_armed = True
                with armed.expected():
                    tracer().interrupt_at(reached[call], signal.SIGUSR1, table)
                    try:
                        call(life)
                    finally:
                        seen = tracer().interrupt_end()
                        gc.enable()
                life.tidy()
                if seen < reached[call]:
                    done.add(call)
                life.probe()
            except BaseException as error:
                error.add_note(where)
                raise
            if time.monotonic() >= end:
                break
    life.counts["handlers"] += armed.count
    life.counts["whole calls"] = len(done)


def timer(life: Life, seconds: float) -> None:
    """Raise at random moments of all calls."""
    rng = life.rng
    armed = Armed(life, raiser(life))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call = rng.choice(Life.CALLS)
        life.prepare(call)
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        first = rng.uniform(20e-6, rng.choice((300e-6, 3e-3, 30e-3)))
        try:
            with armed.expected(), after(first, rng.uniform(100e-6, 900e-6)):
                armed.is_armed = True
                call(life)
            life.tidy()
            if life.refuses or rng.random() < 0.5:
                life.probe()
        except BaseException as error:
            error.add_note(f"{call.__name__} after {armed.count} interrupts")
            raise
        life.counts[call.__name__] += 1
    life.counts["handlers"] += armed.count


def enters(life: Life, seconds: float) -> None:
    """Call the store from a handler, at random moments of all calls."""
    rng = life.rng
    entered = (
        Life.put, Life.put_slowly, Life.put_named, Life.put_rolling, Life.put_new_queue,
        Life.put_many, Life.put_batch, Life.put_multi, Life.put_future, Life.flush, Life.read,
        Life.query, Life.stats, Life.clean, Life.close, Life.close, Life.consume,
    )  # fmt: skip

    def act() -> None:
        call = rng.choice(entered)
        life.counts[f"entered {call.__name__}"] += 1
        try:
            call(life)
        except (StoreStateError, PutError):
            if not life.refuses:
                raise

    armed = Armed(life, act)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call = rng.choice(Life.CALLS)
        life.prepare(call)
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        first = rng.uniform(20e-6, rng.choice((300e-6, 3e-3, 30e-3)))
        try:
            with after(first, rng.uniform(100e-6, 900e-6)):
                armed.is_armed = True
                try:
                    call(life)
                except (StoreStateError, PutError):
                    if not life.refuses:
                        raise
                finally:
                    armed.is_armed = False
            life.tidy()
            life.probe()
        except BaseException as error:
            error.add_note(f"{call.__name__} after {armed.count} interrupts")
            raise
    life.counts["handlers"] += armed.count


def target(life: Life, seconds: float) -> None:
    """Put in an endless loop; SIGTERM closes the store and ends the process, as in a service.

    The acknowledged numbers go to standard output, which the handler writes too.
    """

    def handler(number: int, frame: object) -> None:
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        life.store.close()
        os._exit(0)

    signal.signal(signal.SIGTERM, handler)
    print(life.path, flush=True)
    calls = [call for call in Life.CALLS if call not in (Life.reopen, Life.read_only)]
    while True:
        life.acknowledged.clear()
        call = life.rng.choice(calls)
        life.prepare(call)
        call(life)
        life.tidy()
        os.write(1, b"".join(b"%d\n" % number for number in sorted(life.acknowledged)))


def left_over() -> tuple[int, int, int]:
    """Return the threads, descriptors and directories in use."""
    gc.collect()
    return (
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        len(LockFile._registry),
    )


def note_lost() -> list[str]:
    """Return a list that collects handlers' exceptions raised in a destructor.

    CPython drops such exceptions. Destructors of closed stores and ended threads run in many calls.
    """
    lost: list[str] = []
    of_threads = threading._dangling._remove  # type: ignore[attr-defined]

    def note(unraisable: Any) -> None:
        if unraisable.object is of_threads:
            lost.append(repr(unraisable.exc_value))

    sys.unraisablehook = note
    return lost


def main() -> None:
    """Run a mode and check its result."""
    lost = note_lost()
    mode, kind, seed, amount = sys.argv[1:5]
    only = sys.argv[5] if len(sys.argv) > 5 else ""
    tracer()
    with contextlib.suppress(MissingExtraError):
        require_pyarrow()  # an interrupted import may fail in other ways
    before = left_over()
    life = Life(kind, seed)
    if mode == "target":
        target(life, float(amount))
    elif mode == "timer":
        timer(life, float(amount))
    elif mode == "enters":
        enters(life, float(amount))
    else:
        steps(life, float(amount), closes=mode == "closes", only=only)
    faulthandler.dump_traceback_later(3 * LONGEST_S, exit=True)
    life.end()
    end = time.monotonic() + LONGEST_S
    while left_over() > before and time.monotonic() < end:
        time.sleep(0.01)
    now = left_over()
    assert now <= before, f"left over: {now}, before: {before}: {threading.enumerate()}"
    assert not lost, f"{len(lost)} exceptions of handlers did not come out"
    faulthandler.cancel_dump_traceback_later()
    print(dict(life.counts))


if __name__ == "__main__":
    main()
