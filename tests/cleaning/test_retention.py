"""Goal: whole files of the log are deleted when a rule of the retention or `trim` says so, no
message before, and never the last file.
Method: files of one page; the test sets the clock and the disks, reads while files are deleted, and
makes system calls fail."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessagesRemovedError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.arguments.scalars import time_of
from pyrocketstore.cleaning import retention
from pyrocketstore.cleaning.retention import LogRetention, RetentionService, Trimmed
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.cleaned_stores import (
    HOUR_MS,
    LOG_SIZE,
    SetEnv,
    config_of,
    fill,
    log_files,
    message,
    opened,
)
from support.gates import Gate, wait_until
from support.sizes import SIZES, TINY_SIZES

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def env() -> SetEnv:
    return SetEnv()


@pytest.fixture
def records_clock(env: SetEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have records stored at the time of `env` too."""
    monkeypatch.setattr(SetEnv, "now_ms", Env.now_ms)
    with broken(env, "now_ms", lambda original: original() + env.ahead_ms):
        yield


def service_of(store: DefaultMessageStore) -> RetentionService:
    (found,) = [s for s in store.services.all() if isinstance(s, RetentionService)]
    return found


def newest_of(store: DefaultMessageStore) -> dict[int, int]:
    """First byte of each file of the log -> the store time of its newest message."""
    found: dict[int, int] = {}
    at, end = max(0, store.get_min_phy_offset()), store.get_max_phy_offset()
    while at < end:
        record = store.look_message_by_offset(at)
        start = at - at % LOG_SIZE
        if record is None:
            at = start + LOG_SIZE
            continue
        found[start] = max(found.get(start, 0), record.store_timestamp)
        at += record.size
    return found


def fill_days(store: DefaultMessageStore, env: SetEnv, days: int, each: int = 30) -> list[int]:
    """Put messages on several days, `each` on one; the first physical offset of each day."""
    firsts = []
    for day in range(days):
        firsts.append(store.get_max_phy_offset())
        fill(store, each, start=day * each)
        env.ahead_ms += DAY_MS
    return firsts


# ---- trim ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("records_clock")
def test_trim_deletes_the_files_whose_newest_message_is_older(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill_days(store, env, 5)
        newest = newest_of(store)
        files = sorted(newest)
        for before in sorted({*newest.values(), newest[files[4]] + 1, newest[files[7]] - 1}):
            gone = [start for start in files if newest[start] < before and start != files[-1]]
            there = [start for start in log_files(tmp_path) if start <= files[-1]]
            done = store.trim(before)
            left = [start for start in log_files(tmp_path) if start <= files[-1]]
            assert left == files[len(gone) :]
            count = len(there) - len(left)
            assert done == Trimmed(count, count * LOG_SIZE)
        assert store.trim(1 << 62).files == len(left) - 1
        assert store.get_min_phy_offset() == files[-1]
        fill(store, 1)


@pytest.mark.usefixtures("records_clock")
def test_a_file_is_kept_for_one_newer_message(tmp_path: Path, env: SetEnv) -> None:
    """The clock went back: neither the last message of a file nor the next file shows it."""
    with opened(tmp_path, env) as store:
        fill(store, 3)
        env.ahead_ms = DAY_MS
        fill(store, 1)
        env.ahead_ms = 0
        fill(store, 40)
        now = env.now_ms() + 1000
        assert store.trim(now).files == 0
        assert store.trim(now + DAY_MS).files >= 2


def test_a_damaged_file_goes_by_its_last_change(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill(store, 60)
        first = tmp_path / "commitlog" / f"{0:020d}"
        with first.open("r+b") as file:
            file.seek(4)
            file.write(b"\xff")
        now = env.now_ms()
        os.utime(first, (now / 1000 + 60, now / 1000 + 60))
        assert store.trim(now + 1000).files == 0
        assert store.trim(now + 62_000).files >= 2


@pytest.mark.parametrize("host", ["127.0.0.1:10911", "[2001:db8::1]:10911"])
def test_store_times_are_read_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """A record may be longer than a chunk, and continue in the next one."""
    monkeypatch.setattr(retention, "READ_SIZE", 300)
    with pyrocketstore.open(tmp_path, store_host=host, **SIZES) as store:
        last, engine = 0, store.message_store
        while engine.get_max_phy_offset() < 3 * SIZES["mapped_file_size_commit_log"]:
            for size in (0, 1, 100, 3000):
                record = store.get(store.put("t", bytes(size)).phy_offset)
                assert record is not None
                last = record.store_timestamp
        assert store.trim(before=10**11).files == 0
        assert store.trim(before=last + 1).files == 3
        assert engine.get_min_phy_offset() == 3 * SIZES["mapped_file_size_commit_log"]


def test_queues_and_index_follow(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put_many("t", [b"x" * 100] * 5000, keys=[f"k{i}" for i in range(5000)])
        store.wait_dispatched()
        queue, index = tmp_path / "consumequeue" / "t" / "0", tmp_path / "index"
        before = len(list(queue.iterdir())), len(list(index.iterdir()))
        done = store.trim(before=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
        assert done.files > 5
        assert done.size == done.files * SIZES["mapped_file_size_commit_log"]
        after = len(list(queue.iterdir())), len(list(index.iterdir()))
        assert after[0] < before[0]
        assert after[1] < before[1]
        first = store.min_offset("t")
        assert first > 0
        assert [m.queue_offset for m in store.read("t")] == list(range(first, 5000))
        assert store.query("t", "k1") == []
        assert len(store.query("t", "k4999")) == 1
        assert store.put("t", b"more").queue_offset == 5000
        report = store.verify()
        assert report.ok, report.problems[:5]
    with pyrocketstore.open(tmp_path) as store:
        assert store.min_offset("t") == first
        assert len(list(store.read("t"))) == 5001 - first


def test_a_consumer_learns_that_its_messages_were_removed(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        for i in range(100):
            store.put("t", b"%d" % i + bytes(100))
        for group in ("raise", "skip"):
            with store.consumer(group, "t") as consumer:
                assert len(consumer.poll(5, timeout=0)) == 5
                consumer.commit()
        assert store.trim(before=1 << 62).files > 0
        first = store.min_offset("t")
        for group in ("raise", "skip"):
            with store.consumer(group, "t", on_loss=group) as consumer:
                if group == "raise":
                    with pytest.raises(MessagesRemovedError):
                        consumer.poll(5, timeout=0)
                assert [m.queue_offset for m in consumer.poll(1, timeout=0)] == [first]


@pytest.mark.parametrize(
    ("before", "error"),
    [
        ("yesterday", StoreFormatError),
        (1.5, StoreTypeError),
        (True, StoreTypeError),
        (1 << 63, StoreFormatError),
        (datetime.date(2026, 1, 1), StoreTypeError),
    ],
)
def test_a_time_that_is_none(tmp_path: Path, before: Any, error: type[Exception]) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store, pytest.raises(error, match="before"):
        store.trim(before=before)


def test_a_datetime_is_exact() -> None:
    utc = datetime.UTC
    assert time_of("t", datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, utc)) == 1500
    assert time_of("t", datetime.datetime(1970, 1, 1, 0, 0, 1, 500_001, utc)) == 1501
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert time_of("t", datetime.datetime(1970, 1, 1, 2, 0, 1, 0, east)) == 1000
    local = datetime.datetime(2026, 6, 1, 12, 30).astimezone()
    assert time_of("t", local) == local.timestamp() * 1000
    west = datetime.timezone(datetime.timedelta(hours=-2))
    assert time_of("t", datetime.datetime.max.replace(tzinfo=west)) == 253_402_308_000_000


def test_only_an_open_owner_trims(tmp_path: Path) -> None:
    store = pyrocketstore.open(tmp_path, **TINY_SIZES)
    for _ in range(100):
        store.put("t", bytes(100))
    with pyrocketstore.open(tmp_path, read_only=True) as reader:
        with pytest.raises(StoreStateError, match="read-only"):
            reader.trim(before=1 << 62)
        engine = store.message_store
        store.close()
    with pytest.raises(StoreStateError, match="closed"):
        store.trim(before=1 << 62)
    with pytest.raises(StoreStateError, match="closed or not started"):
        engine.trim(1 << 62)
    assert len(log_files(tmp_path)) > 2


def test_a_reader_elsewhere_continues_behind_the_trimmed_files(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        for i in range(100):
            store.put("t", b"%d" % i + bytes(100))
        store.flush()
        with pyrocketstore.open(tmp_path, read_only=True) as reader:
            messages = reader.read("t")
            assert next(messages).queue_offset == 0
            store.trim(before=1 << 62)
            reader.refresh()
            assert [m.queue_offset for m in reader.read("t")] == [
                m.queue_offset for m in store.read("t")
            ]


# ---- rules ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("records_clock")
@pytest.mark.parametrize("age", [datetime.timedelta(days=2.5), 216_000, 216_000.0])
def test_messages_stay_for_their_age(tmp_path: Path, env: SetEnv, age: Any) -> None:
    with opened(tmp_path, env, retention_age=age) as store:
        firsts = fill_days(store, env, 4)
        service_of(store).do_once()
        # On day 4, the messages of days 0 and 1 are too old.
        assert store.get_min_phy_offset() == firsts[2] - firsts[2] % LOG_SIZE
        env.ahead_ms += 100 * DAY_MS
        service_of(store).do_once()
        assert len(log_files(tmp_path)) == 2, "the last one stays, and the one made ahead"


def test_the_log_keeps_its_size(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env, retention_bytes=5 * LOG_SIZE + 1) as store:
        fill(store, 200)
        end = store.get_max_phy_offset()
        service_of(store).do_once()
        last = end - end % LOG_SIZE
        assert store.get_min_phy_offset() == last - 4 * LOG_SIZE
        service_of(store).do_once()
        assert store.get_min_phy_offset() == last - 4 * LOG_SIZE


def test_a_limit_below_a_file_keeps_the_last_one(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env, retention_bytes=1) as store:
        fill(store, 50)
        service_of(store).do_once()
        assert store.get_max_phy_offset() - store.get_min_phy_offset() <= LOG_SIZE
        fill(store, 1)


def test_files_go_until_the_disk_has_room(tmp_path: Path) -> None:
    class Disk(SetEnv):
        """A disk that shows the room of deleted files only once it is asked to."""

        room = 10 * LOG_SIZE

        def disk_usage(self, path: str) -> tuple[int, int, int]:
            return 1 << 30, (1 << 30) - self.room, self.room

    disk = Disk()
    with opened(tmp_path, disk, retention_free_bytes=12 * LOG_SIZE + 1) as store:
        fill(store, 200)
        service_of(store).do_once()
        assert store.get_min_phy_offset() == 3 * LOG_SIZE, "no more than what was missing"
        disk.room = 13 * LOG_SIZE
        service_of(store).do_once()
        assert store.get_min_phy_offset() == 3 * LOG_SIZE
        disk.room = 0
        service_of(store).do_once()
        end = store.get_max_phy_offset()
        assert store.get_min_phy_offset() == end - end % LOG_SIZE
        assert store.put_message(message(b"x")).status is PutMessageStatus.PUT_OK


def test_a_rule_that_fails_does_not_keep_the_others_from_it(tmp_path: Path, env: SetEnv) -> None:
    rules: dict[str, Any] = {
        "retention_age": 1,
        "retention_bytes": 5 * LOG_SIZE,
        "retention_free_bytes": 1,
    }
    with opened(tmp_path, env, **rules) as store:
        fill(store, 200)
        env.ahead_ms += DAY_MS
        with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError, match="pread failed"):
            service_of(store).do_once()
        end = store.get_max_phy_offset()
        assert store.get_min_phy_offset() == end - end % LOG_SIZE - 4 * LOG_SIZE


def test_the_rules_of_4_9_3_are_not_enabled(tmp_path: Path) -> None:
    """A `Store` with a limit of size keeps messages that are older than 72 hours."""
    with pyrocketstore.open(tmp_path, retention_bytes=1 << 30) as store:
        services = store.message_store.services
        assert services.clean_commit_log is None
        assert service_of(store.message_store).retention.config.retention_bytes == 1 << 30
    with pyrocketstore.open(tmp_path) as store:
        found = store.message_store.services.all()
        assert not [s for s in found if isinstance(s, RetentionService)]


def test_the_rules_are_applied_by_themselves(tmp_path: Path) -> None:
    with pyrocketstore.open(
        tmp_path, retention_bytes=3 * LOG_SIZE, clean_resource_interval=20, **TINY_SIZES
    ) as store:
        for _ in range(200):
            store.put("t", bytes(100))
        wait_until(lambda: store.min_offset("t") > 50, "the oldest files are deleted")
        service = service_of(store.message_store)
    assert not service.is_alive
    assert service.failure is None


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unlink", "pread"])
def test_a_failing_system_call_is_reported_and_the_next_trim_continues(
    tmp_path: Path, name: str
) -> None:
    env = SetEnv()
    with pyrocketstore.open(tmp_path, env=env, **TINY_SIZES) as store:
        for i in range(200):
            store.put("t", b"%d" % i + bytes(100), keys=f"k{i}")
        store.wait_dispatched()
        with failing(env, name, errno.EIO), pytest.raises(StoreIOError, match=f"{name} failed"):
            store.trim(before=1 << 62)
        first = store.min_offset("t")
        assert [m.queue_offset for m in store.read("t")] == list(range(first, 200))
        assert store.put("t", b"more").queue_offset == 200
        assert store.trim(before=1 << 62).files > 0
        left = log_files(tmp_path)
        assert store.message_store.get_min_phy_offset() == left[0]
        report = store.verify()
        assert report.ok, report.problems[:5]
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        assert list(store.read("t"))[-1].queue_offset == 200


@pytest.mark.parametrize("number", [1, 3, 8, 20])
def test_a_kill_while_files_are_deleted(tmp_path: Path, number: int) -> None:
    """The messages that are left can be read, and the next ones follow."""
    env, calls = SetEnv(), [0]

    def unlink(original: Callable[..., int], *arguments: Any) -> int:
        calls[0] += 1
        if calls[0] == number:
            shutil.copytree(tmp_path / "store", tmp_path / "killed", ignore=lambda *_: {"lock"})
        return original(*arguments)

    with pyrocketstore.open(tmp_path / "store", env=env, **SIZES) as store:
        store.put_many("t", [b"x" * 100] * 8000, keys=[f"k{i}" for i in range(8000)])
        store.flush()
        with broken(env, "unlink", unlink):
            store.trim(before=1 << 62)
        assert calls[0] >= number
    with pyrocketstore.open(tmp_path / "killed") as store:
        first = store.min_offset("t")
        assert [m.queue_offset for m in store.read("t")] == list(range(first, 8000))
        assert store.put("t", b"more").queue_offset == 8000
        report = store.verify()
        assert report.ok, report.problems[:5]
        store.trim(before=1 << 62)
        assert store.message_store.get_min_phy_offset() == log_files(tmp_path / "killed")[0]


class Interrupted(Exception):
    """Raised by the handler of a signal."""


def test_a_handler_that_raises_leaves_the_store_usable(tmp_path: Path) -> None:
    """The call ends its work wherever the handler interrupts it; the next one deletes the rest."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    old = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
            for turn in range(60):
                store.put_many("t", [bytes(100)] * 60, keys=["k"] * 60)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + 40 * turn))
                    store.trim(before=1 << 62)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupted += 1
                found = [m.queue_offset for m in store.read("t")]
                assert found == list(range(found[0], 60 * (turn + 1)))
            store.trim(before=1 << 62)
            end = store.message_store.get_max_phy_offset()
            assert store.message_store.get_min_phy_offset() == end - end % LOG_SIZE
            report = store.verify()
            assert report.ok, report.problems[:5]
    finally:
        signal.signal(signal.SIGALRM, old)
    print(f"interrupted {interrupted} times")


def test_a_close_waits_for_a_trim(tmp_path: Path) -> None:
    env, gate = SetEnv(), Gate()
    store = pyrocketstore.open(tmp_path, env=env, **TINY_SIZES)
    store.put_many("t", [bytes(100)] * 200)
    store.wait_dispatched()
    done: list[Trimmed] = []
    gate.close()
    with broken(env, "unlink", gate):
        trimming = threading.Thread(target=lambda: done.append(store.trim(before=1 << 62)))
        trimming.start()
        assert gate.held.acquire(timeout=20), "no file is being deleted"
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        gate.open()
        trimming.join()
        closing.join()
    assert done[0].files > 0
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        assert store.verify().ok


def test_one_thread_deletes_at_a_time(tmp_path: Path) -> None:
    env, gate = SetEnv(), Gate()
    with opened(tmp_path, env, retention_bytes=1) as store:
        fill(store, 100)
        gate.close()
        with broken(env, "unlink", gate):
            rules = threading.Thread(target=service_of(store).do_once)
            rules.start()
            assert gate.held.acquire(timeout=20), "no file is being deleted"
            trimming = threading.Thread(target=lambda: store.trim(1 << 62))
            trimming.start()
            trimming.join(0.2)
            assert gate.count == 1
            gate.open()
            rules.join()
            trimming.join()
        end = store.get_max_phy_offset()
        assert store.get_min_phy_offset() == end - end % LOG_SIZE
        files = len(list((tmp_path / "index").iterdir()))
        assert len(store.index_service.files) == files


def test_threads_put_read_and_trim_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    done = threading.Event()

    def work(call: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                call()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    with pyrocketstore.open(
        tmp_path, retention_bytes=3 * LOG_SIZE, clean_resource_interval=1, **TINY_SIZES
    ) as store:
        store.put("t", b"x")

        def read() -> None:
            found = [m.queue_offset for m in store.read("t")]
            assert found == sorted(set(found))

        calls: list[Callable[[], object]] = [read, *[lambda: store.trim(before=1 << 62)] * 2]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for i in range(1, 1500):
            assert store.put("t", b"%d" % i + bytes(100), keys=f"k{i}").queue_offset == i
        done.set()
        for thread in threads:
            thread.join()
        assert errors == []
        left = [m.queue_offset for m in store.read("t")]
        assert left == list(range(left[0], 1500))
        service = service_of(store.message_store)
        assert service.last_error is None
    with pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as store:
        report = store.verify()
        assert report.ok, report.problems[:5]


def test_a_file_with_messages_that_are_not_dispatched_stays(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill(store, 100)
        config = config_of(tmp_path, retention_bytes=1)
        rules = LogRetention(
            env, config, store.commit_log, lambda: 3 * LOG_SIZE + 5, threading.Lock()
        )
        assert rules.apply().files == 3
        assert rules.delete_older(1 << 62).files == 0
