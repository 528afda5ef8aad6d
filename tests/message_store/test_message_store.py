"""Goal: DefaultMessageStore returns the statuses of 4.9.3, in its order of checks, and its services
keep their promises.
Method: small stores, one case each; faults through the table of system calls."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    AppendMessageStatus,
    DefaultMessageStore,
    GetMessageStatus,
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageStoreConfig,
    PutError,
    PutMessageResult,
    PutMessageStatus,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.commit_log._puts import make_result, with_status
from pyrocketstore.reading.rocketmq_reads import TagsFilter
from pyrocketstore.record._message import encode_messages, properties_to_string
from pyrocketstore.system.env import Env
from support import cleaned_stores
from support.broken_env import broken
from support.cleaned_stores import fill, opened
from support.gates import unclean
from support.sizes import SIZES


def test_only_a_result_with_an_error_is_the_collectors():
    """Goal: a result costs little, and one whose error leads back to it does not leak."""

    class Trouble(Exception):
        pass

    plain = make_result(0)
    assert not gc.is_tracked(plain)
    assert plain.error is None
    trouble = Trouble()
    failed = make_result(9, error=trouble)
    assert isinstance(failed, PutMessageResult)
    assert failed.error is trouble
    assert with_status(plain, 9, trouble).error is trouble
    assert with_status(failed, 0).error is None
    trouble.result = failed
    gone = weakref.ref(trouble)
    del trouble, failed
    gc.collect()
    assert gone() is None


def config_of(path: Path, **settings: object) -> MessageStoreConfig:
    return MessageStoreConfig().at_root(path).replace(**{**SIZES, **settings})


class Opened:
    """A store that is loaded and started, and shut down at the end."""

    def __init__(self, path: Path, env: Env | None = None, **settings: object) -> None:
        self.store = DefaultMessageStore(config_of(path, **settings), env=env)

    def __enter__(self) -> DefaultMessageStore:
        assert self.store.load()
        self.store.start()
        return self.store

    def __exit__(self, *exc: object) -> None:
        self.store.shutdown()


def message(body: bytes = b"x", topic: str = "t", **fields: object) -> MessageExtBrokerInner:
    properties = dict(fields.pop("properties", {}))
    made = MessageExtBrokerInner(topic, body, properties=properties, **fields)
    made.properties_string = properties_to_string(properties)
    return made


def batch(items: list[Message], topic: str = "t", **fields: object) -> MessageExtBatch:
    return MessageExtBatch(topic, encode_messages(items), **fields)


def outcome(result: PutMessageResult) -> tuple[str, str | None]:
    appended = result.append_message_status
    return result.status.name, None if appended is None else appended.name


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("check_in_disk_by_consume_offset", ("t", 0, 0)),
        ("dispatch_behind_bytes", ()),
        ("get_commit_log_offset_in_queue", ("t", 0, 0)),
        ("get_earliest_message_time", ()),
        ("get_message_ids", ("t", 0, 0, 9, "127.0.0.1:10911")),
        ("get_message_store_time_stamp", ("t", 0, 0)),
        ("get_offset_in_queue_by_time", ("t", 0, 0)),
        ("index_enabled", None),
        ("query_message", ("t", "k", 1, 0, 9)),
        ("stats", ()),
        ("dispatch_paused", ()),
        ("flush", ()),
        ("flush_all", ()),
        ("wait_dispatched", ()),
    ],
)
def test_a_call_before_load_and_start(tmp_path: Path, name: str, arguments: Any) -> None:
    store = DefaultMessageStore(config_of(tmp_path))
    with pytest.raises(StoreStateError, match=r"not (loaded|started): call (load|start)\(\) first"):
        call = getattr(store, name)
        with contextlib.ExitStack() as entered:  # a context manager begins when it is entered
            found = call(*arguments)
            if hasattr(found, "__enter__"):
                entered.enter_context(found)


def test_put_before_start_and_after_shutdown(tmp_path: Path) -> None:
    store = DefaultMessageStore(config_of(tmp_path))
    store.load()
    assert outcome(store.put_message(message())) == ("SERVICE_NOT_AVAILABLE", None)
    store.start()
    assert outcome(store.put_message(message())) == ("PUT_OK", "PUT_OK")
    store.shutdown()
    assert outcome(store.put_message(message())) == ("SERVICE_NOT_AVAILABLE", None)
    assert store.get_message("g", "t", 0, 0, 32) is None


def test_slave_takes_no_puts(tmp_path: Path) -> None:
    with Opened(tmp_path, broker_role="SLAVE") as store:
        assert outcome(store.put_message(message())) == ("SERVICE_NOT_AVAILABLE", None)


def test_a_sync_master_has_nobody_to_wait_for(tmp_path: Path) -> None:
    with Opened(tmp_path, broker_role="SYNC_MASTER") as store:
        assert outcome(store.put_message(message())) == ("PUT_OK", "PUT_OK")


def test_checks_come_in_order(tmp_path: Path) -> None:
    illegal = ("MESSAGE_ILLEGAL", None)
    with Opened(tmp_path) as store:
        assert outcome(store.put_message(message(topic="t" * 128))) == illegal
        assert outcome(store.put_message(message(topic="é" * 64))) == illegal  # 128 bytes
        assert outcome(store.put_message(message(bytes(1 << 16)))) == illegal
        long = message(properties={"a": "v" * 32766})
        assert outcome(store.put_message(long)) == illegal
        wide = message(properties={"a": "é" * 20000})
        assert outcome(store.put_message(wide)) == ("PROPERTIES_SIZE_EXCEEDED", None)
        assert outcome(store.put_message(message(properties={"DELAY": "soon"}))) == illegal
        assert store.get_max_phy_offset() == 0
        assert outcome(store.put_message(message(topic="t" * 127))) == ("PUT_OK", "PUT_OK")


def test_batches(tmp_path: Path) -> None:
    illegal = ("MESSAGE_ILLEGAL", None)
    with Opened(tmp_path) as store:
        good = store.put_messages(batch([Message("t", b"%d" % i) for i in range(5)], queue_id=3))
        assert outcome(good) == ("PUT_OK", "PUT_OK")
        assert (good.message_count, good.queue_offset) == (5, 0)
        assert len(good.msg_id.split(",")) == 5
        assert outcome(store.put_messages(batch([Message("t")], sys_flag=8))) == illegal
        late = batch([Message("t")], properties={"DELAY": "1"})
        assert outcome(store.put_messages(late)) == illegal
        torn = MessageExtBatch("t", encode_messages([Message("t", b"abc")])[:-3])
        assert outcome(store.put_messages(torn)) == illegal
        empty = store.put_messages(MessageExtBatch("t", b""))
        assert (outcome(empty), empty.wrote_bytes, empty.message_count) == (
            ("PUT_OK", "PUT_OK"),
            0,
            0,
        )
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("t", 3) == 5


def test_transaction_types(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        for kind, queue_offset in ((0, 0), (4, 0), (8, 1), (0xC, 0), (0, 2)):
            result = store.put_message(message(b"%d" % kind, sys_flag=kind,
                                               properties={"KEYS": f"k{kind}"}))  # fmt: skip
            assert result.queue_offset == queue_offset
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("t", 0) == 3
        hits = {k: len(store.query_message("t", f"k{k}", 32, 0, 1 << 62).phy_offsets)
                for k in (0, 4, 8, 12)}  # fmt: skip
        assert hits == {0: 2, 4: 1, 8: 1, 12: 0}


def test_delayed_messages_wait_in_the_schedule_topic(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        for level in ("3", "99"):
            result = store.put_message(message(properties={"DELAY": level}, queue_id=5))
            assert outcome(result) == ("PUT_OK", "PUT_OK")
        store.wait_dispatched()
        for level, delay in ((3, 10_000), (18, 7_200_000)):
            pulled = store.get_message("g", "SCHEDULE_TOPIC_XXXX", level - 1, 0, 32)
            (stored,) = pulled.messages()
            pulled.release()
            assert stored.properties["REAL_TOPIC"] == "t"
            assert stored.properties["REAL_QID"] == "5"
            assert stored.properties["DELAY"] == str(level)
            units = store.find_consume_queue("SCHEDULE_TOPIC_XXXX", level - 1).read_units(0, 1)
            assert units.tags_code.tolist() == [stored.store_timestamp + delay]


def test_every_get_status(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        for i in range(250):
            store.put_message(message(b"x" * 400, properties={"TAGS": f"T{i % 2}"}))
        store.wait_dispatched()

        def pull(offset: int, topic: str = "t", tags: str | None = None) -> tuple[str, int]:
            result = store.get_message("g", topic, 0, offset, 32, tags and TagsFilter(tags))
            result.release()
            return result.status.name, result.next_begin_offset

        assert pull(0) == ("FOUND", 32)
        assert pull(90) == ("FOUND", 100)  # a pull ends with its queue file
        assert pull(0, tags="T1") == ("FOUND", 64)
        assert pull(0, tags="none") == ("NO_MATCHED_MESSAGE", 100)
        assert pull(250) == ("OFFSET_OVERFLOW_ONE", 250)
        assert pull(251) == ("OFFSET_OVERFLOW_BADLY", 0)
        assert pull(-1) == ("OFFSET_TOO_SMALL", 0)
        assert pull(0, topic="none") == ("NO_MESSAGE_IN_QUEUE", 0)
        first = store.commit_log.mapped_file_queue.mapped_files[0]
        first.destroy(0)
        store.commit_log.mapped_file_queue.delete_files_before(0)
        status, following = pull(1)
        assert status in ("FOUND", "MESSAGE_WAS_REMOVING")
        assert following > 1


def test_batch_full_rules(tmp_path: Path) -> None:
    with Opened(tmp_path, max_transfer_bytes_on_message_in_memory=2000) as store:
        for i in range(40):
            store.put_message(message(bytes(5000) if i == 0 else bytes(300)))
        store.wait_dispatched()
        counts = [store.get_message("g", "t", 0, at, n).message_count
                  for at, n in ((0, 32), (1, 32), (1, 2), (1, 0), (1, -3))]  # fmt: skip
        assert counts == [1, 5, 2, 1, 1]


def test_lmq_counters_survive_a_restart(tmp_path: Path) -> None:
    lmq = {"enable_lmq": True, "enable_multi_dispatch": True}
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b,other"}
    for start in (0, 4):
        with Opened(tmp_path, **lmq) as store:
            for i in range(4):
                result = store.put_message(message(b"%d" % i, queue_id=2, properties=names))
                assert outcome(result) == ("PUT_OK", "PUT_OK")
            store.put_message(message(b"no properties at all"))
            store.wait_dispatched()
            for topic, queue_id in (("%LMQ%a", 0), ("%LMQ%b", 0), ("other", 2), ("t", 2)):
                assert store.get_max_offset_in_queue(topic, queue_id) == start + 4
            pulled = store.get_message("g", "%LMQ%b", 0, start, 32)
            assert [m.body for m in pulled.messages()] == [b"0", b"1", b"2", b"3"]
            assert pulled.messages()[0].properties["INNER_MULTI_QUEUE_OFFSET"] == (
                f"{start},{start},{start}"
            )
            pulled.release()


def test_lmq_puts_from_two_threads_are_unique(tmp_path: Path) -> None:
    with Opened(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as store:

        def work() -> None:
            for _ in range(50):
                store.put_message(message(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("%LMQ%a", 0) == 150
        units = store.find_consume_queue("%LMQ%a", 0).read_units(0, 200)
        assert len(set(units.phy_offset.tolist())) == 150


def test_ext_units_hold_the_tags(tmp_path: Path) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1000}
    for start in (0, 60):
        with Opened(tmp_path, **settings) as store:
            for i in range(60):
                store.put_message(message(b"%d" % (start + i), properties={"TAGS": f"T{i % 3}"}))
            store.wait_dispatched()
            bodies: list[bytes] = []
            at = 0
            while at < start + 60:
                pulled = store.get_message("g", "t", 0, at, 32, TagsFilter("T1"))
                bodies += [m.body for m in pulled.messages()]
                at = pulled.next_begin_offset
                pulled.release()
            assert bodies == [b"%d" % i for i in range(start + 60) if i % 3 == 1]


def test_async_puts_complete(tmp_path: Path) -> None:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with Opened(tmp_path / flush, flush_disk_type=flush) as store:
            futures: list[Future[PutMessageResult]] = []
            for i in range(20):
                futures.append(store.async_put_message(message(b"%d" % i)))
                futures.append(store.async_put_messages(batch([Message("t", b"b")] * 2)))
            results = [future.result(10) for future in futures]
            assert {outcome(r) for r in results} == {("PUT_OK", "PUT_OK")}
            assert results[-1].queue_offset == 58
            if flush == "SYNC_FLUSH":
                assert store.services.log_flush.flushed_where == store.get_max_phy_offset()


def broken_call(env: Env, name: str, result: int) -> list[int]:
    """Make a call of the table fail with `result` while the list's first entry is not 0."""
    on = [0]
    kinds = {
        "msync": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
        "fallocate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
        "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    }
    kind = ctypes.CFUNCTYPE(*kinds[name])
    real = kind(env.address(name))
    fake = kind(lambda *arguments: result if on[0] else real(*arguments))
    env.replace(name, ctypes.cast(fake, ctypes.c_void_p).value)
    on.append(fake)  # type: ignore[arg-type]
    return on


def test_failed_force_is_never_put_ok(tmp_path: Path) -> None:
    env = Env()
    on = broken_call(env, "msync", -errno.EIO)
    with unclean(Opened(tmp_path, env, flush_disk_type="SYNC_FLUSH")) as store:
        assert outcome(store.put_message(message())) == ("PUT_OK", "PUT_OK")
        on[0] = 1
        failed = store.put_message(message(b"lost?"))
        assert failed.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert failed.append_message_status is AppendMessageStatus.PUT_OK
        on[0] = 0
        assert outcome(store.put_message(message())) == ("SERVICE_NOT_AVAILABLE", None)
        assert isinstance(store.failure, pyrocketstore.StoreIOError)
    assert (tmp_path / "abort").exists()
    with Opened(tmp_path) as store:
        assert store.get_max_offset_in_queue("t", 0) == 2


def test_full_disk_is_an_error_and_passes(tmp_path: Path) -> None:
    env = Env()
    on = broken_call(env, "fallocate", -errno.ENOSPC)
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        store.put("t", b"before")
        store.wait_dispatched()
        on[0] = 1
        with pytest.raises(PutError) as failed:
            for _ in range(400):
                store.put("t", bytes(1000))
        assert not failed.value.stored
        assert "No space left" in str(failed.value)
        on[0] = 0
        store.put("t", b"after")
        bodies = [m.body for m in store.read("t")]
        assert (bodies[0], bodies[-1]) == (b"before", b"after")


TMPFS_CHILD = """
import contextlib, sys, pyrocketstore
path = sys.argv[1]
sizes = dict(mapped_file_size_commit_log=1 << 22, max_hash_slot_num=500, max_index_num=2000,
             mapped_file_size_consume_queue=20000)
acknowledged = 0
# What the device has no room for may be the log, which the store survives, or a queue.
with contextlib.suppress(pyrocketstore.StoreIOError), pyrocketstore.open(path, **sizes) as store:
    try:
        for i in range(100_000):
            store.put("t", b"x" * 1000, keys=f"k{i}")
            acknowledged += 1
    except pyrocketstore.PutError as error:
        assert "No space left" in str(error), error
with pyrocketstore.open(path, read_only=True, **sizes) as store:
    assert store.max_offset("t") == acknowledged > 1000
    assert sum(1 for m in store.read("t") if m.body == b"x" * 1000) == acknowledged
print("full after", acknowledged)
"""


@pytest.mark.slow
def test_a_full_tmpfs_raises_and_loses_nothing(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"SKIPPED ALOUD: no tmpfs can be mounted here: {mounted.stderr.decode()}")
    try:
        child = subprocess.run(
            [sys.executable, "-c", TMPFS_CHILD, str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert child.returncode == 0, child.stderr
        assert "full after" in child.stdout
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_destroy_deletes_the_data(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        store.put_message(message(properties={"KEYS": "k"}))
        store.wait_dispatched()
    store.destroy()
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"]
    assert left == []


def test_clean_unused_topic(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        for topic in ("a", "b", "%LMQ%c"):
            store.put_message(message(topic=topic))
        store.wait_dispatched()
        assert store.clean_unused_topic(["a"]) == 0
        assert set(store.get_consume_queue_table()) == {"a", "%LMQ%c"}
        assert store.put_message(message(topic="b")).queue_offset == 0
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("b", 0) == 1


def test_cleaning_meets_queues_that_are_not_dispatched_yet(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        with store.services.reput_service.paused():
            store.put_message(message())
            cleaning = threading.Thread(target=store.clean_unused_topic, args=([],))
            cleaning.start()
            cleaning.join(0.05)
            assert store.get_consume_queue("t", 0) is None
        cleaning.join(20)
        assert store.get_consume_queue("t", 0) is None
        assert store.dispatch_behind_bytes() == 0


def test_get_statuses_have_javas_order() -> None:
    assert [s.name for s in GetMessageStatus][4] == "OFFSET_OVERFLOW_BADLY"
    assert [s.name for s in PutMessageStatus][8] == "OS_PAGECACHE_BUSY"


def test_message_ids(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        puts = [store.put_message(message(b"%d" % i)) for i in range(5)]
        store.wait_dispatched()
        found = store.get_message_ids("t", 0, 1, 4, "127.0.0.1:10911")
        assert found == {put.msg_id: put.queue_offset for put in puts[1:4]}
        first = store.look_message_by_offset(0)
        assert first is not None
        assert store.get_earliest_message_time() == first.store_timestamp
        assert store.get_earliest_message_time("t", 0) == first.store_timestamp


def test_lmq_limit_is_enforced(tmp_path: Path) -> None:
    settings = {
        "enable_lmq": True,
        "enable_multi_dispatch": True,
        "max_lmq_consume_queue_num": 2,
    }
    with Opened(tmp_path, **settings) as store:
        outcomes = []
        for i in range(5):
            names = {"INNER_MULTI_DISPATCH": f"%LMQ%{i}"}
            outcomes.append(store.put_message(message(properties=names)).status.name)
            store.wait_dispatched()
        assert outcomes == ["PUT_OK"] * 3 + ["LMQ_CONSUME_QUEUE_NUM_EXCEEDED"] * 2
        assert store.put_message(message()).status is PutMessageStatus.PUT_OK


def test_hits_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    with Opened(tmp_path) as store:
        puts = [store.put_message(message(b"%d" % i, properties={"KEYS": "k"})) for i in range(4)]
        store.wait_dispatched()
        with open(tmp_path / "commitlog" / ("0" * 20), "r+b") as log:
            for put in puts[1:3]:
                log.seek(put.phy_offset + 4)
                log.write(b"\0")  # the magic
        found = store.query_message("t", "k", 32, 0, 1 << 62)
        assert found.phy_offsets == [puts[0].phy_offset, puts[3].phy_offset]
        found.release()


def test_a_pull_goes_on_behind_units_that_were_never_written(tmp_path: Path) -> None:
    """A hole in a queue, as a power cut leaves it: messages behind it are still returned."""
    with Opened(tmp_path / "store") as store:
        for i in range(400):
            assert store.put_message(message(b"%d" % i)).status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        path = tmp_path / "store" / "consumequeue" / "t" / "0" / f"{0:020}"
        with path.open("r+b") as file:
            file.write(bytes(10 * 20))  # the next opening would repair them
        result = store.get_message("group", "t", 0, 0, 32)
        assert result is not None
        assert result.status is GetMessageStatus.FOUND
        assert result.message_queue_offsets == list(range(10, 42))
        assert result.next_begin_offset == 42
        result.release()


WAIT_S = 30


def test_what_is_in_the_log_is_seen_before_it_is_forced(tmp_path: Path) -> None:
    go_on = threading.Event()
    env = Env()

    def blocked(original: Any, *arguments: Any) -> int:
        go_on.wait(WAIT_S)
        return int(original(*arguments))

    with opened(tmp_path, env, flush_disk_type="SYNC_FLUSH") as store:
        fill(store, 1)
        forced = store.services.log_flush.flushed_where
        putter = threading.Thread(target=store.put_message, args=(message(b"x"),))
        with broken(env, "msync", blocked), broken(env, "fdatasync", blocked):
            putter.start()
            try:
                deadline = time.monotonic() + WAIT_S
                while store.get_max_offset_in_queue("t", 0) == 1 and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert putter.is_alive()
                assert store.services.log_flush.flushed_where == forced
                pulled = store.get_message("g", "t", 0, 1, 1)
                assert pulled.status is GetMessageStatus.FOUND
                pulled.release()
            finally:
                go_on.set()
                putter.join()


def test_a_query_for_any_number_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for i in range(100):
            store.put_message(cleaned_stores.message(b"%d" % i, key="k"))
        store.wait_dispatched()
        for wanted, found in ((0, 0), (1, 1), (64, 64), (2**31 - 1, 64), (1 << 62, 64)):
            hits = store.query_message("t", "k", wanted, 0, 1 << 60)
            assert len(hits.phy_offsets) == found
            hits.release()


@pytest.mark.parametrize("born", ["10.0.0.1:1", "[2001:db8::1]:1"])
@pytest.mark.parametrize("stored", ["10.0.0.2:2", "[2001:db8::2]:2"])
def test_store_times_are_found_beside_any_addresses(tmp_path: Path, born: str, stored: str) -> None:
    with opened(tmp_path) as store:
        put = MessageExtBrokerInner("t", b"x", born_host=born, store_host=stored)
        result = store.put_message(put)
        store.wait_dispatched()
        assert result.store_timestamp > 0
        assert store.get_message_store_time_stamp("t", 0, 0) == result.store_timestamp
        assert store.get_earliest_message_time() == result.store_timestamp
        assert store.get_offset_in_queue_by_time("t", 0, result.store_timestamp) == 0
        assert store.files.newest_store_timestamp() == result.store_timestamp


# ---- ends of a store -----------------------------------------------------------------------------


def test_only_a_closed_store_is_destroyed(tmp_path: Path) -> None:
    """By its own object, by another one, and by another process."""
    foreign = f"""
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
DefaultMessageStore(MessageStoreConfig().at_root({str(tmp_path)!r})).destroy()
"""
    with Opened(tmp_path) as store:
        assert outcome(store.put_message(message()))[0] == "PUT_OK"
        for other in (store, DefaultMessageStore(config_of(tmp_path))):
            with pytest.raises(StoreStateError, match="open"):
                other.destroy()
        done = subprocess.run([sys.executable, "-c", foreign], capture_output=True, text=True)
        assert "StoreStateError" in done.stderr
        assert outcome(store.put_message(message()))[0] == "PUT_OK"
    with Opened(tmp_path) as again:
        assert again.get_max_offset_in_queue("t", 0) == 2
    again.destroy()
    assert not (tmp_path / "commitlog").exists() or not any((tmp_path / "commitlog").iterdir())


def test_a_pull_that_a_shutdown_interrupts_has_no_result(tmp_path: Path) -> None:
    """Its files are gone: an answer would pass over messages."""

    class Closes(TagsFilter):
        def is_matched_by_commit_log(self, *_: object) -> bool:
            store.shutdown()
            return True

    for pull in ("get_message", "get_records"):
        with Opened(tmp_path / pull) as store:
            for _ in range(20):
                store.put_message(message(properties={"TAGS": "a"}))
            store.wait_dispatched()
            words: tuple[Any, ...] = (None,) if pull == "get_records" else ()
            assert getattr(store, pull)("g", "t", 0, 0, 5, *words, Closes("a")) is None


def test_a_store_that_was_shut_down_is_opened_again(tmp_path: Path) -> None:
    store = DefaultMessageStore(config_of(tmp_path))
    for life in range(3):
        store.load()
        if life:
            store.start()
            assert outcome(store.put_message(message()))[0] == "PUT_OK"
            store.wait_dispatched()
            assert store.append_data(store.get_data_end(), b"") == store.get_data_end()
            store.continue_puts()
            assert store.get_max_offset_in_queue("t", 0) == life
        store.shutdown()


@pytest.mark.parametrize("topics", ["t", b"t", 5, None, [5], [b"t"]])
def test_the_topics_to_keep_are_several_str(tmp_path: Path, topics: Any) -> None:
    with Opened(tmp_path) as store:
        store.put_message(message())
        store.wait_dispatched()
        with pytest.raises(StoreTypeError):
            store.clean_unused_topic(topics)
        assert store.get_max_offset_in_queue("t", 0) == 1
        store.clean_unused_topic(topic for topic in ("t", "u"))
        assert store.get_max_offset_in_queue("t", 0) == 1
