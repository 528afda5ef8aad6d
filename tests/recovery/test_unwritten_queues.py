"""Goal: an opening that cannot write a lost queue sets no position back: groups, transactions and
delayed messages continue where they were once the fault is gone, and the fault is logged once.
Method: the directory of a queue is deleted, as by a power cut, and an Env refuses to make it again
in the next opening; the opening after that, or a repair, has the fault gone."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import Store, StoreIOError
from pyrocketstore.recovery.repair import repair
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.sizes import SIZES

COUNT, READ = 300, 290
GIVEN_UP = "a unit was given up; the queue accepts no more"
DELAYS: dict[str, Any] = {**SIZES, "message_delay_level": "1s"}


@contextlib.contextmanager
def refused(env: Env, folder: Path) -> Iterator[list[str]]:
    """Refuse to make anything at or below a folder; gives the refused paths."""
    paths: list[str] = []

    def is_refused(path: bytes) -> bool:
        text = os.fsdecode(path)
        if text != str(folder) and not text.startswith(f"{folder}/"):
            return False
        paths.append(text)
        return True

    def mkdir(original: Any, path: bytes, mode: int) -> int:
        return -errno.EPERM if is_refused(path) else int(original(path, mode))

    def open_file(original: Any, path: bytes, flags: int, mode: int) -> int:
        if flags & os.O_CREAT and is_refused(path):
            return -errno.EPERM
        return int(original(path, flags, mode))

    with broken(env, "mkdir", mkdir), broken(env, "open", open_file):
        yield paths


def lose(root: Path, topic: str) -> None:
    """Delete the queues of a topic as a power cut may."""
    shutil.rmtree(root / "consumequeue" / topic)
    (root / "abort").touch()


@contextlib.contextmanager
def unwritten(root: Path, topic: str, **settings: Any) -> Iterator[Store]:
    """A store that cannot make the files of a topic's queues; its close says so."""
    env = Env()
    with refused(env, root / "consumequeue" / topic) as paths:
        store = pyrocketstore.open(root, env=env, **settings)
        try:
            yield store
        finally:
            with pytest.raises(StoreIOError, match=f"{topic}.*Operation not permitted"):
                store.close()
    assert paths


def positions(store: Store) -> dict[tuple[str, str, int], int]:
    return {(p.group, p.topic, p.queue_id): p.position for p in store.consumer_positions()}


def committed(root: Path, key: str) -> dict[str, int]:
    """The positions in the file, by queue id."""
    text = (root / "config" / "consumerOffset.json").read_text().replace("{0:", '{"0":')
    found: dict[str, int] = json.loads(text)["offsetTable"][key]
    return found


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A store whose queue a/0, which a group has read up to READ, is lost."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("other", b"x")
        for number in range(COUNT):
            store.put("a", b"%d" % number)
        with store.consumer("g", "a") as consumer:
            done = 0
            while done < READ:
                done += len(consumer.poll(min(100, READ - done), timeout=0))
            consumer.commit()
    lose(tmp_path, "a")
    return tmp_path


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_positions_of_groups_stay(lost: Path) -> None:
    key = "g", "a", 0
    with unwritten(lost, "a", **SIZES) as store:
        assert store.max_offset("a") == 0, "the fault is there"
        assert positions(store)[key] == READ
        with store.consumer("g", "a") as consumer:
            for _ in range(3):
                assert consumer.poll(10, timeout=0) == []
            consumer.commit()
        assert positions(store)[key] == READ
    assert committed(lost, "a@g") == {"0": READ}
    with pyrocketstore.open(lost, **SIZES) as store:
        assert positions(store)[key] == READ
        assert store.max_offset("a") == COUNT
        with store.consumer("g", "a") as consumer:
            assert [m.body for m in consumer.poll(2, timeout=0)] == [b"290", b"291"]
        assert store.verify().ok


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_a_consumer_continues_after_a_repair(lost: Path) -> None:
    """It is open while units are missing, and neither restarts nor commits a lower position."""
    env = Env()
    with contextlib.ExitStack() as fault:
        fault.enter_context(refused(env, lost / "consumequeue" / "a"))
        with (
            pyrocketstore.open(lost, env=env, **SIZES) as store,
            store.consumer("g", "a") as reader,
        ):
            assert reader.poll(10, timeout=0) == []
            reader.commit()
            assert not repair(store.message_store.files, store.message_store.dispatch_paused())
            assert reader.poll(10, timeout=0) == []
            reader.commit()
            assert positions(store)["g", "a", 0] == READ
            fault.close()
            assert repair(store.message_store.files, store.message_store.dispatch_paused())
            assert store.max_offset("a") == COUNT
            assert [m.body for m in reader.poll(1, timeout=0)] == [b"290"]
            reader.commit()
            assert positions(store)["g", "a", 0] == READ + 1
            put = store.put("a", b"more")
            assert put.queue_offset == COUNT, "before, it was 0, and no queue had the message"
            store.wait_dispatched()
            last = [m.body for m in store.read("a", start=COUNT - 1)]
            assert last == [b"%d" % (COUNT - 1), b"more"]
            assert store.verify().ok
    with pyrocketstore.open(lost, **SIZES) as store:
        assert [m.body for m in store.read("a", start=COUNT)] == [b"more"]


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_a_position_behind_a_complete_queue_still_goes_back(lost: Path) -> None:
    """The rule is for queues that lack units only."""
    shutil.rmtree(lost / "commitlog")
    shutil.rmtree(lost / "consumequeue")
    with pyrocketstore.open(lost, **SIZES) as store:
        store.put("a", b"new")
        with store.consumer("g", "a") as consumer:
            assert [m.body for m in consumer.poll(2, timeout=0)] == [b"new"]


def test_a_queue_is_given_up_once(lost: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There was a line for each message."""
    env = Env()

    def lines() -> int:  # failed repairs log another level
        found = [r for r in caplog.records if GIVEN_UP in r.getMessage()]
        assert all(r.getMessage().startswith("a/0: ") for r in found)
        return sum(r.levelno == logging.ERROR for r in found)

    with contextlib.ExitStack() as fault:
        fault.enter_context(refused(env, lost / "consumequeue" / "a"))
        with pyrocketstore.open(lost, env=env, **SIZES) as store:
            with pytest.raises(StoreIOError):
                store.wait_dispatched()
            assert lines() == 1
            assert not repair(store.message_store.files, store.message_store.dispatch_paused())
            assert lines() == 1
            fault.close()
            assert repair(store.message_store.files, store.message_store.dispatch_paused())
            store.put("a", b"more")
            store.wait_dispatched()
            assert lines() == 1
            assert store.max_offset("a") == COUNT + 1
    caplog.clear()
    lose(lost, "a")
    with unwritten(lost, "a", **SIZES):
        assert lines() == 1, "the store logs a new fault of the queue"


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_transactions_stay_decided(tmp_path: Path, topic: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(20):
            transaction = store.prepare("x", b"%d" % number, group="g")
            if number < 18:
                (transaction.commit if number % 2 else transaction.rollback)()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [t.message.body for t in store.transactions()] == [b"18", b"19"]
        before = positions(store)
    assert before["CID_RMQ_SYS_TRANS", topic, 0] >= 1
    lose(tmp_path, topic)
    with unwritten(tmp_path, topic, **SIZES) as store:
        assert positions(store) == before
    assert committed(tmp_path, f"{topic}@CID_RMQ_SYS_TRANS") == {
        "0": before["CID_RMQ_SYS_TRANS", topic, 0]
    }
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert positions(store) == before
        undecided = store.transactions()
        assert [t.message.body for t in undecided] == [b"18", b"19"]
        for one in undecided:
            one.commit()
        bodies = [m.body for m in store.read("x")]
        assert bodies == [b"%d" % n for n in range(1, 18, 2)] + [b"18", b"19"]
        assert store.verify().ok


def wait_for_bodies(store: Store, topic: str, count: int) -> list[bytes]:
    end = time.monotonic() + 60
    while store.max_offset(topic) < count:
        assert time.monotonic() < end
        time.sleep(0.02)
    return [m.body for m in store.read(topic)]


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_delayed_messages_are_delivered_once(tmp_path: Path) -> None:
    wanted = [b"d%d" % number for number in range(5)]
    with pyrocketstore.open(tmp_path, **DELAYS) as store:
        for body in wanted:
            store.put("z", body, delay_level=1)
        assert wait_for_bodies(store, "z", 5) == wanted
    file = tmp_path / "config" / "delayOffset.json"
    before = file.read_text()
    assert "1:5" in before
    lose(tmp_path, "SCHEDULE_TOPIC_XXXX")
    with unwritten(tmp_path, "SCHEDULE_TOPIC_XXXX", **DELAYS) as store:
        assert store.message_store.delay_offsets.offsets() == {1: 5}
    assert file.read_text() == before
    with pyrocketstore.open(tmp_path, **DELAYS) as store:
        store.put("z", b"last", delay_level=1)
        assert wait_for_bodies(store, "z", 6) == [*wanted, b"last"]
        assert store.verify().ok
