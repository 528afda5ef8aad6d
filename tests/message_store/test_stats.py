"""Goal: a store reports the figures of 4.9.3, with its keys and texts, and logs slow calls with
their cause.
Method: expected values were taken from 4.9.3; clocks and devices are simulated."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.parser import text_string_to_metric_families

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutError
from pyrocketstore.message_store.stall_watch import StallWatch
from pyrocketstore.message_store.stats import PUT_TIME_LABELS, StoreStatsService, java_double
from pyrocketstore.metrics import StoreCollector
from pyrocketstore.system.env import Env
from pyrocketstore.system.stalls import (
    DISPATCH,
    LOCK_HELD,
    LOCK_WAIT,
    LOG_FLUSH,
    NEW_FILE,
    NEXT_FILE,
    StallLog,
)
from support.broken_env import broken
from support.gates import WAIT_S, Gate, wait_until
from support.sizes import SYNC_SIZES

ASYNC_SIZES: dict[str, Any] = {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH"}

#: The answers of 4.9.3 in the second second of an empty store.
EMPTY_INFO = {
    "bootTimestamp": r"\d+",
    "commitLogDiskRatio": r"\d\.\d+",
    "commitLogDiskRatio_PATH/commitlog": r"\d\.\d+",
    "commitLogMaxOffset": "0",
    "commitLogMinOffset": "-1",
    "consumeQueueDiskRatio": r"\d\.\d+",
    "dispatchMaxBuffer": "0",
    "getFoundTps": "  ",
    "getMessageEntireTimeMax": "0",
    "getMissTps": "  ",
    "getTotalTps": "0.0 0.0 0.0",
    "getTransferedTps": "  ",
    "putMessageAverageSize": "0.0",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "putMessageFailedTimes": "0",
    "putMessageSizeTotal": "0",
    "putMessageTimesTotal": "1",
    "putTps": "  ",
    "runtime": r"\[ 0 days, 0 hours, 0 minutes, \d seconds \]",
}


class Clock:
    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns

    def ms(self) -> int:
        return self.ns // 1_000_000


class Core:
    """The end of a log that a test makes up."""

    def __init__(self) -> None:
        self.put_count = self.put_bytes = self.end = self.hold = self.waited = 0
        self.held_ns = 0
        self.slow = [0] * len(PUT_TIME_LABELS)

    def slow_put_times(self) -> tuple[list[int], int]:
        return self.slow, 0

    def lock_hold(self) -> tuple[int, int]:
        return self.hold, self.held_ns

    def take_lock_waited_ms(self) -> int:
        waited, self.waited = self.waited, 0
        return waited


# ---- figures ------------------------------------------------------------------------------------


def test_runtime_info_has_the_keys_and_texts_of_4_9_3(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **ASYNC_SIZES) as store:
        info = store.message_store.get_runtime_info()
        expected = {k.replace("PATH", str(tmp_path)): text for k, text in EMPTY_INFO.items()}
        assert info.keys() == expected.keys()
        for key, pattern in expected.items():
            assert re.fullmatch(pattern, info[key]), (key, info[key])
        lines = store.message_store.get_running_data_info().split("\r\n")
        assert lines[0].startswith("\truntime: [ 0 days")
        assert "\tgetPutMessageFailedTimes: 0" in lines
        for i in range(10):
            store.put("t", b"%02d" % i)
        info = store.message_store.get_runtime_info()
        assert info["putMessageTimesTotal"] == "10"
        assert info["commitLogMaxOffset"] == info["putMessageSizeTotal"] == "940"
        assert info["putMessageAverageSize"] == "94.0"


def test_rates_and_the_distribution_have_their_windows() -> None:
    clock, core = Clock(), Core()
    service = StoreStatsService(core, clock.ms, clock)
    for second in range(601):
        service.sample()
        rates = service.rates()["put"]
        known = [rate is not None for rate in rates]
        assert known == [second >= 10, second >= 60, second >= 600], second
        info = service.runtime_info()
        if second <= 60:
            assert info["putMessageDistributeTime"] == "null"
        elif second == 61:
            assert info["putMessageDistributeTime"].startswith("[<=0ms]:3050 [0~10ms]:61 ")
            assert info["putMessageDistributeTime"].endswith("[5~10s]:0 [10s~]:0 ")
        core.put_count += 51
        core.slow[1] += 1
        service.reads.note(4)
        clock.ns += 1_000_000_000
    assert service.rates()["transfered"].last_600_s == 4
    assert service.runtime_info()["putTps"] == "51.0 51.0 51.0"
    assert service.runtime_info()["getTotalTps"] == "1.0 1.0 1.0"
    core.put_count += 1000
    service.sample()
    assert service.rates()["put"].last_10_s == 151
    assert service.runtime_info()["runtime"] == "[ 0 days, 0 hours, 10 minutes, 1 seconds ]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (192, "192.0"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.0001, "1.0E-4"),
        (-2.5e22, "-2.5E22"),
    ],
)
def test_numbers_look_as_in_java(value: float, text: str) -> None:
    assert java_double(value) == text


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_way_to_put_is_counted_once(tmp_path: Path, flush: str) -> None:
    with pyrocketstore.open(tmp_path, **{**SYNC_SIZES, "flush_disk_type": flush}) as store:
        low = store.message_store
        for _ in range(100):
            store.put("t", b"x")
        store.put("t", b"x", properties=MappingProxyType({"a": "b"}))  # not the compiled way
        store.put_many("t", [b"x"] * 50)
        store.put_batch("t", [b"x"] * 7)
        low.put_message(MessageExtBrokerInner("t", b"x"))
        low.async_put_message(MessageExtBrokerInner("t", b"x")).result(WAIT_S)
        with pytest.raises(PutError):
            store.put("t", b"x" * (5 << 20))
        assert low.put_message(MessageExtBrokerInner("t" * 200, b"x")).status.name == (
            "MESSAGE_ILLEGAL"
        )
        stats = store.stats()
        assert stats.put_message_times_total == store.max_offset("t") == 160
        assert stats.put_message_size_total == low.get_max_phy_offset()
        assert stats.commit_log_max_offset == low.get_max_phy_offset()
        assert stats.put_messages_by_status["PUT_OK"] == 160
        assert stats.put_messages_by_status["MESSAGE_ILLEGAL"] == 2
        assert stats.put_message_failed_times == 1  # the other was refused by the checks
        assert sum(stats.put_message_distribute_time.values()) == 100 + 1 + 1 + 1 + 1 + 1
        assert stats.put_message_average_size == stats.put_message_size_total / 160
        assert stats.forces >= (100 if flush == "SYNC_FLUSH" else 0)


def test_slow_puts_are_timed(tmp_path: Path) -> None:
    """One behind a slow force, one behind a lock that is held."""
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        store.put("t", b"x")

        def slow(original: Any, *arguments: Any) -> int:
            time.sleep(0.11)
            return int(original(*arguments))

        def slow_ones() -> int:
            return sum(list(store.stats().put_message_distribute_time.values())[4:])

        before = slow_ones()
        with broken(env, "msync", slow):
            store.put("t", b"x")
        assert store.stats().put_message_entire_time_max >= 110
        assert slow_ones() == before + 1
        core = store.message_store.commit_log.core
        waited = 0
        for held_s in (0.06, 0.5, 3):  # on a busy machine the thread gets there late
            core.take_lock_waited_ms()
            core.take()
            with ThreadPoolExecutor(1) as pool:
                putting = pool.submit(store.put, "t", b"x")
                time.sleep(held_s)
                core.release()
                putting.result(WAIT_S)
            waited = core.take_lock_waited_ms()
            if waited >= 40:
                break
        assert 40 <= waited < WAIT_S * 1000


def test_reads_are_counted(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **ASYNC_SIZES) as store:
        store.put_many("t", [b"x"] * 40)
        store.wait_dispatched()
        low = store.message_store
        for offset in (0, 32, 40, 99):
            result = low.get_message("g", "t", 0, offset, 32)
            assert result is not None
            result.release()
        low.get_message("g", "none", 0, 0, 32)
        stats = store.stats()
        assert stats.get_message_times_total_found == 2
        assert stats.get_message_times_total_miss == 3
        assert stats.get_message_transfered_msg_count == 40
        list(store.read("t"))
        assert store.stats().get_message_transfered_msg_count == 80
    with pyrocketstore.open(tmp_path, read_only=True, **ASYNC_SIZES) as store:
        assert len(list(store.read("t"))) == 40
        stats = store.stats()
        assert (stats.put_message_times_total, stats.get_message_times_total_found) == (0, 1)
        assert stats.flushed_where == stats.commit_log_max_offset > 0
        assert stats.earliest_message_timestamp > 0


# ---- stalls -------------------------------------------------------------------------------------


def test_stalls_are_named_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = StallLog(clock, 100)
    with caplog.at_level(logging.WARNING):
        log.note("a", 99)
        assert not caplog.records
        for _ in range(5):
            log.note("a", 250, "why")
        log.note("b", 100)
        assert [r.getMessage() for r in caplog.records] == ["a: 250 ms, why", "b: 100 ms"]
        clock.ns += 11 * 10**9
        log.note("a", 300)
        assert caplog.messages[-1] == "a: 300 ms; 4 more since the last such line"
        with log.timed("c"):
            clock.ns += 150 * 10**6
            log.look()
            assert caplog.messages[-1] == "c (still): 150 ms"
            clock.ns += 150 * 10**6
    assert log.counts == {"a": 6, "b": 1, "c": 1}
    assert log.calls == {"c": (1, 300 * 10**6)}
    assert not StallLog(clock, 0).note("off", 10**9)


def test_the_watch_sees_locks_flushes_and_dispatch(caplog: pytest.LogCaptureFixture) -> None:
    clock, core = Clock(), Core()
    position = [0]

    class Group:
        times = (0, 0)

        def take_flush_times(self) -> tuple[int, int]:
            return self.times

    log = StallLog(clock, 100)
    watch = StallWatch(log, core, clock, lambda: position[0])
    watch.group = group = Group()
    watch.look()
    assert not log.counts
    core.hold, core.held_ns = 7, 200 * 10**6
    watch.look()
    watch.look()
    core.hold, core.waited = 0, 150
    watch.look()
    assert log.counts == {LOCK_HELD: 1, LOCK_WAIT: 1}
    group.times = (0, 500 * 10**6)
    watch.look()
    assert f"{LOG_FLUSH} (still): 500 ms" in caplog.messages
    group.times = (700 * 10**6, 0)
    watch.look()
    group.times = (0, 0)
    core.end = 1000
    for _ in range(3):  # the end, as it was two looks ago, is never reached
        clock.ns += 60 * 10**6
        watch.look()
    assert log.counts == {LOCK_HELD: 1, LOCK_WAIT: 1, LOG_FLUSH: 1, DISPATCH: 1}
    assert any("1000 bytes" in text for text in caplog.messages)
    for _ in range(5):  # and now it is, though always a little late
        position[0], core.end = core.end, core.end + 100
        clock.ns += 60 * 10**6
        watch.look()
    assert log.counts[DISPATCH] == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slow_device_is_named(
    tmp_path: Path, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate, env = Gate(), Env()
    settings = {**SYNC_SIZES, "flush_disk_type": flush, "stall_warning_mills": 30}

    def slow(original: Any, path: bytes, *arguments: Any) -> int:
        if b"commitlog/" in path:
            time.sleep(0.05)
        return int(original(path, *arguments))

    with pyrocketstore.open(tmp_path, env=env, **settings) as store:
        with broken(env, "open", slow):
            store.put("t", b"x")
        with broken(env, "msync", gate), ThreadPoolExecutor(1) as pool:
            gate.close()
            if flush == "SYNC_FLUSH":
                flushing = pool.submit(store.put, "t", b"y")
            else:
                flushing = pool.submit(store.message_store.flush)
            wait_until(lambda: LOG_FLUSH in caplog.text, "the flush is not named")
            gate.open()
            flushing.result(WAIT_S)
            store.message_store.stats_service.watch()
        counts = store.stats().stalls
        assert {LOG_FLUSH, NEXT_FILE, NEW_FILE} <= counts.keys()
    assert f"{NEW_FILE}: " in caplog.text


# ---- Prometheus ---------------------------------------------------------------------------------


def test_prometheus_reads_what_stats_says(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with pyrocketstore.open(tmp_path, **ASYNC_SIZES) as store:
        registry.register(StoreCollector(store, {"store": "orders"}))
        for i in range(30):
            store.put("t", b"%d" % i)
        with pytest.raises(PutError):
            store.put("t", b"x" * (5 << 20))
        list(store.read("t"))
        stats = store.stats()
        text = generate_latest(registry).decode()
        assert open_metrics(registry).endswith(b"# EOF\n")
        found = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        own = ("store", "orders")
        assert found["pyrocketstore_up", own] == 1
        assert found["pyrocketstore_put_messages_total", own] == 30
        assert found["pyrocketstore_put_bytes_total", own] == stats.put_message_size_total
        key = ("pyrocketstore_put_not_ok_total", ("status", "MESSAGE_ILLEGAL"), own)
        assert found[key] == 1
        assert found["pyrocketstore_get_messages_total", own] == 30
        assert found["pyrocketstore_put_seconds_bucket", ("le", "+Inf"), own] == 30
        assert found["pyrocketstore_boot_time_seconds", own] == stats.boot_timestamp / 1000
        for line in text.splitlines():
            name = line.removeprefix("# TYPE ").split(" ")
            if line.startswith("# TYPE ") and name[1] == "counter":
                assert name[0].endswith("_total"), name
    closed = generate_latest(registry).decode()
    assert 'pyrocketstore_up{store="orders"} 0.0' in closed
    assert "put_messages" not in closed


def test_metrics_name_the_extra() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import pyrocketstore\n"
        "try:\n import pyrocketstore.metrics\n"
        "except pyrocketstore.errors.MissingExtraError as error:\n print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "pyrocketstore.metrics needs: pip install 'pyrocketstore[metrics]'\n"


def test_stats_while_threads_put(tmp_path: Path) -> None:
    """No figure is lost where many count."""
    with pyrocketstore.open(tmp_path, **ASYNC_SIZES) as store:

        def work() -> None:
            for i in range(200):
                store.put("t", b"x", properties=MappingProxyType({"n": str(i)}))
                store.put("t", b"x" * 9000)  # encoded without the GIL

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = store.stats()
        assert stats.put_message_times_total == 1600
        assert sum(stats.put_message_distribute_time.values()) == 1600
