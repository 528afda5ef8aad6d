"""Goal: what a critical reading of the store found wrong stays right. Method: each test makes the
situation in which it went wrong, by faults, threads and damaged directories."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from broken_env import broken, failing, watched
from gates import unclean
from pyrocketstore import (
    Message,
    PutError,
    PutMessageStatus,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    queue_table,
)
from pyrocketstore.env import Env
from pyrocketstore.message import MessageExtBrokerInner
from pyrocketstore.service_thread import ServiceThread

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
BROADER = {**SIZES, "mapped_file_size_commit_log": 1 << 20}


def test_a_body_that_changes_during_its_put_does_not_end_the_log(tmp_path: Path) -> None:
    """Goal: a record's sum is that of the bytes that are stored. Method: another thread changes
    the body all the time, without the GIL."""
    body = np.zeros(2_000_000, np.uint8)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            np.add(body, 1, out=body)

    thread = threading.Thread(target=change)
    with pyrocketstore.open(tmp_path, mapped_file_size_commit_log=1 << 26) as store:
        thread.start()
        try:
            for _ in range(25):
                store.put("t", body)
        finally:
            stop.set()
            thread.join()
        for message in store.read("t"):
            assert zlib.crc32(message.stored_body) & 0x7FFFFFFF == message.body_crc
    (tmp_path / "abort").touch()
    with pyrocketstore.open(tmp_path) as store:
        assert store.max_offset("t") == 25


def test_queues_are_destroyed_in_peace_while_messages_flow(tmp_path: Path) -> None:
    """Goal: taking queues away while they are written harms neither the dispatcher nor later
    messages. Method: one thread puts, the other destroys in a loop."""
    stop = threading.Event()
    failures: list[pyrocketstore.StoreError] = []

    with pyrocketstore.open(tmp_path, **BROADER) as store:

        def put() -> None:
            try:
                while not stop.is_set():
                    store.put_many("t", [b"x"] * 200, queue_ids=[i % 4 for i in range(200)])
                    for _ in range(20):
                        store.put("t", b"y", queue_id=1)
            except pyrocketstore.StoreError as error:
                failures.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            store.message_store.clean_unused_topic([])
        stop.set()
        thread.join()
        assert not failures
        assert store.message_store.failure is None
        store.message_store.clean_unused_topic([])
        for i in range(10):
            assert store.put("t", b"last", queue_id=1).queue_offset == i
        assert [m.body for m in store.read("t", 1)] == [b"last"] * 10


def test_close_waits_for_a_slow_dispatcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is unmapped under a dispatcher that takes longer than threads are usually
    waited for. Method: its allocations sleep, and the usual time is short."""
    monkeypatch.setattr(ServiceThread.shutdown, "__defaults__", (0.05,))
    env = Env()
    putting = threading.get_ident()

    def slow(original: Any, *arguments: Any) -> int:
        if threading.get_ident() != putting:
            time.sleep(0.5)
        return int(original(*arguments))

    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    with broken(env, "fallocate", slow):
        store.put("t", b"x", keys="a")
        time.sleep(0.1)
        store.close()
    assert not (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert len(store.query("t", "a")) == store.max_offset("t") == 1


def test_what_a_killed_process_left_unforced_is_forced(tmp_path: Path) -> None:
    """Goal: a flush reaches what an earlier process put and never forced, or a power cut would
    leave a hole before what was. Method: a copy of an open store is opened; the forces are seen."""
    slow = {**BROADER, "flush_interval_commit_log": 100_000}
    with pyrocketstore.open(tmp_path / "a", **slow) as store:
        for _ in range(50):
            end = store.put("t", bytes(1000)).phy_offset
        store.wait_dispatched()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    for flush in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        env = Env()
        shutil.copytree(tmp_path / "b", tmp_path / flush)
        with (
            watched(env, "msync") as forced,
            pyrocketstore.open(
                tmp_path / flush, env=env, flush_disk_type=flush, **BROADER
            ) as store,
        ):
            store.put("t", b"")
            store.flush()
            assert max(size for _, size in forced) > end, flush


def test_puts_end_when_the_index_is_given_up(tmp_path: Path) -> None:
    """Goal: after an index error no put is taken that a query would miss, and recovery brings back
    every key. Method: allocation fails for the first chunks of the index."""
    sizes = {**BROADER, "max_hash_slot_num": 100_000, "max_index_num": 200_000}
    env = Env()
    with unclean(pyrocketstore.open(tmp_path, env=env, **sizes)) as store:
        store.put("t", b"", keys="first")
        store.wait_dispatched()
        with failing(env, "fallocate", errno.EIO):
            for i in range(5):
                store.put("t", b"", keys=f"k{i}")
            store.wait_dispatched()
        for put in (store.put, lambda topic, body: store.put_batch(topic, [body])):
            with pytest.raises(PutError) as caught:
                put("t", b"")
            assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **sizes) as store:
        assert [len(store.query("t", f"k{i}")) for i in range(5)] == [1] * 5


def test_the_checkpoint_stays_behind_a_lost_queue_entry(tmp_path: Path) -> None:
    """Goal: once a queue gave an entry up, the checkpoint claims no later time for the queues."""
    with unclean(pyrocketstore.open(tmp_path, **SIZES)) as store:
        store.put("t", b"")
        store.flush()
        before = store.message_store.checkpoint.logics_msg_timestamp
        assert before > 0
        time.sleep(0.01)
        store.put("t", b"")
        store.wait_dispatched()
        store.message_store.running_flags.make_logics_queue_error(StoreError("the reason"))
        store.flush()
        assert store.message_store.checkpoint.logics_msg_timestamp == before
        with pytest.raises(PutError, match="the reason"):
            store.put("t", b"")


def test_keys_are_found_after_the_log_was_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an index that survives its log does not keep new keys out. Method: the log's directory
    is deleted between two lives."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(50):
            store.put("t", bytes(500), keys=f"old{i}")
    shutil.rmtree(tmp_path / "commitlog")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"", keys="new")
        assert len(store.query("t", "new")) == 1
        assert store.query("t", "old1") == []
    assert len([*tmp_path.glob(".broken/*/index/*")]) == 1


def test_put_many_refuses_a_bad_row_before_it_writes_any(tmp_path: Path) -> None:
    """Goal: what of a put_many is in the log is never unsaid. Method: a row far behind is no bytes,
    has no queue id, or has a text that is too long."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        bodies: list[Any] = [b"x"] * 9000
        rows: list[Any] = [*bodies[:8500], "text", *bodies[8501:]]
        with pytest.raises(TypeError, match=r"bodies.8500"):
            store.put_many("t", rows)
        with pytest.raises(StoreFormatError, match=r"queue_ids.8500"):
            store.put_many("t", bodies, queue_ids=[0] * 8500 + [-1] + [0] * 499)
        with pytest.raises(TypeError):
            store.put_many("t", ["text"])
        with pytest.raises(PutError, match="message 8500") as caught:
            store.put_many("t", bodies, tags=["a"] * 8500 + ["a" * 40_000] + ["a"] * 499)
        assert (caught.value.status.name, caught.value.count) == ("PROPERTIES_SIZE_EXCEEDED", 0)
        assert store.message_store.get_max_phy_offset() == 0 and store.topics() == []


def damage(path: Path) -> None:
    with pyrocketstore.open(path, **SIZES) as store:
        at = [store.put("t", bytes(100)).phy_offset for _ in range(10)][4]
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + 90)
        file.write(b"zz")


def test_an_open_that_ends_in_a_warning_gives_the_directory_free(tmp_path: Path) -> None:
    """Goal: a warning that is an error leaves no store open behind it."""
    damage(tmp_path)
    with pytest.raises(pyrocketstore.StoreWarning):
        pyrocketstore.open(tmp_path, **SIZES)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.max_offset("t") == 4


def test_get_inside_of_a_body_gives_nothing(tmp_path: Path) -> None:
    """Goal: a record that is only the content of another is no message. Method: one as a body."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        inner = store.put("t", b"inner")
        view = store.message_store.select_one_message_by_offset(inner.phy_offset)
        assert view is not None
        with view:
            outer = store.put("t", b"<<" + bytes(view.byte_buffer))
        for at in range(outer.phy_offset + 1, outer.phy_offset + outer.wrote_bytes):
            assert store.get(at) is None
        assert store.get(outer.phy_offset) is not None


@pytest.mark.parametrize("pool", [False, True])
def test_messages_by_many_places(tmp_path: Path, pool: bool) -> None:
    """Goal: what `get` gives for each, in one call, over all files of the log, in any order and
    twice; None where nothing begins. Method: places of records, beside them and behind the log."""
    with pyrocketstore.open(tmp_path, transient_store_pool_enable=pool, **SIZES) as store:
        put = [store.put("t", b"%d" % i * (i % 50), keys=f"k{i % 7}") for i in range(300)]
        places = [result.phy_offset for result in put[::-1]]
        asked = [*places, places[5], -1, 1, places[3] + 4, places[0] + (1 << 20), 1 << 62]
        found = store.get_many(asked)
        assert [m and m.body for m in found[:301]] == [
            b"%d" % i * (i % 50) for i in (*range(299, -1, -1), 294)
        ]
        assert found[301:] == [None] * 5
        assert [m and m.record for m in found] == [m and m.record for m in map(store.get, asked)]
        hits = store.query_many("t", ["k3", "no", "k6"], max_num=100)
        assert [m and m.keys for m in store.get_many(hits.phy_offset)] == (
            ["k3"] * sum(hits.key_index == 0) + ["k6"] * sum(hits.key_index == 2)
        )
        assert store.get_many([]) == []
        assert store.get(1 << 70) is None
        for wrong, error in (([1.5], TypeError), (["0"], TypeError), ([[0]], ValueError)):
            with pytest.raises(error):
                store.get_many(wrong)
    with pytest.raises(pyrocketstore.StoreStateError):
        store.get_many([0])


@pytest.mark.parametrize(
    "properties", [{"a": ""}, {"a": "x\x02b\x01c"}, {"": "x"}, {"DELAY": "3"}, {"TAGS": ""}]
)
def test_messages_of_a_batch_are_checked(tmp_path: Path, properties: dict[str, str]) -> None:
    """Goal: a Message in a batch reads back equal or is refused, as with put."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        with pytest.raises(StoreFormatError):
            store.put_batch("t", [Message("t", b"", properties=properties)])
        with pytest.raises(StoreFormatError):
            store.put_batch("t", [Message("other", b"")])
        result = store.put_batch("t", [Message("t", b"z", properties={"KEYS": "k", "a": "b"})])
        message = store.get(result.phy_offset)
        assert message is not None
        assert message.properties == {"KEYS": "k", "a": "b"}


def test_topics_json_names_queues_of_an_earlier_life(tmp_path: Path) -> None:
    """Goal: a broker serves what is put now, also to queues that were there before."""
    with pyrocketstore.open(tmp_path, topics_json=False, **SIZES) as store:
        store.put("t", b"", queue_id=2)
        store.put("untouched", b"")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.put("t", b"", queue_id=2).queue_offset == 1
        assert store.put_many("t", [b""], queue_ids=2)[0].tolist() == [2]
    table = json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert {name: entry["readQueueNums"] for name, entry in table.items()} == {"t": 3}


@pytest.mark.parametrize("topic", ["../../evil", "", "a/b", ".", "t\0"])
def test_a_topic_that_can_have_no_queue_is_refused(tmp_path: Path, topic: str) -> None:
    """Goal: no message is acknowledged that no queue would ever give."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        result = store.message_store.put_message(MessageExtBrokerInner(topic, b"x"))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert isinstance(result.error, StoreFormatError)
        assert store.message_store.get_max_phy_offset() == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("victim", [-2, -3, 0])
def test_the_log_goes_on_behind_a_missing_file(
    tmp_path: Path, victim: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: as in 4.9.3, a missing file takes no other with it, and flushing passes it."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for _ in range(300):
            end = store.put("t", bytes(900)).phy_offset
    files = sorted((tmp_path / "commitlog").iterdir())
    lost = int(files[victim].name)
    files[victim].unlink()
    if not clean:
        (tmp_path / "abort").touch()
    caplog.set_level(logging.CRITICAL)
    with pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES) as store:
        assert store.put("t", b"new").phy_offset > end
        store.flush()
        assert store.message_store.services.log_flush.flushed_where == store.message_store.flush()
        assert store.max_offset("t") == 301
        reader = store.read("t", on_corrupt="skip")
        places = [m.phy_offset for m in reader]
        assert len(places) == 301 - 66
        # The first file has expired; the messages of another one are missing.
        assert reader.skipped.count == (0 if victim == 0 else 66)
        assert not any(lost <= place < lost + (1 << 16) for place in places)
    assert not (tmp_path / ".broken").exists()


def test_a_log_file_of_an_impossible_name_is_refused_and_kept(tmp_path: Path) -> None:
    """Goal: messages in a file that was renamed are not zeroed as a broken tail."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for _ in range(100):
            store.put("t", bytes(900))
    last = max((tmp_path / "commitlog").iterdir())
    odd = last.rename(last.with_name(f"{int(last.name) + 100:020d}"))
    content = odd.read_bytes()
    with pytest.raises(StoreCorruptionError, match=odd.name):
        pyrocketstore.open(tmp_path, **SIZES)
    assert odd.read_bytes() == content


def test_futures_of_a_flush_service_that_has_ended_are_done(tmp_path: Path) -> None:
    """Goal: nobody waits for a thread that is gone, and no future of a stored message is
    cancelled."""
    store = pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES)
    future = store.message_store.async_put_message(MessageExtBrokerInner("t", b"x"))
    assert not future.cancel()
    assert future.result(10).status is PutMessageStatus.PUT_OK
    store.close()
    service = store.message_store.services.flush_service
    assert service.submit(1).result(1) is PutMessageStatus.PUT_OK
    assert service.submit(1 << 40).result(1) is PutMessageStatus.FLUSH_DISK_TIMEOUT


def test_light_queues_do_not_fill_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: as many light queues as one likes, though each file has a mapping while it is put to.
    Method: the bound is lowered, and the mappings are counted."""
    monkeypatch.setattr(queue_table, "ATTACHED_MAX", 8)
    light: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    with pyrocketstore.open(tmp_path, **SIZES, **light) as store:
        for _ in range(3):
            for i in range(40):
                store.put("t", b"x", properties={"INNER_MULTI_DISPATCH": f"%LMQ%q{i}"})
        store.wait_dispatched()
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines()
                  if f"{tmp_path}/consumequeue" in line]  # fmt: skip
        assert 0 < len(mapped) <= 9
        assert [store.max_offset(f"%LMQ%q{i}") for i in range(40)] == [3] * 40
    table = json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert [*table] == ["t"]
