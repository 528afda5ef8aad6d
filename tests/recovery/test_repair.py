"""Goal: a queue or an index that has given up units or keys gets them back once the cause has
passed, and puts are accepted again; a failing repair does no harm.
Method: files in place of directories, a full device, and comparison with the log."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import PutError, PutMessageStatus
from pyrocketstore.consume_queue import retries
from pyrocketstore.recovery.repair import REPAIR_INTERVAL_MS, repair
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.cleaned_stores import fill, message, opened
from support.gates import unclean
from support.sizes import TINY_SIZES

QUEUE_ERROR, INDEX_ERROR = 4, 8
CHECKPOINT_BYTES = 24


@pytest.mark.parametrize("damage", ["queue", "index"])
def test_what_was_given_up_comes_back(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "consumequeue" / "t" if damage == "queue" else tmp_path / "index"
    bit = QUEUE_ERROR if damage == "queue" else INDEX_ERROR
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as face:
        store = face.message_store
        store.index_service.retry_interval_ms = 1
        if damage == "queue":
            fill(store, 30, "other")
        with store.dispatch_paused():  # a put to a queue that cannot be made would be refused
            face.put("t", b"kept", keys="k")
            in_the_way.write_bytes(b"a file where a directory must be")
        store.wait_dispatched()
        with pytest.raises(PutError) as caught:
            face.put("t", b"x")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert caught.value.__cause__ is not None
        assert not face._state.fast_puts
        assert store.services.repair_service.is_alive
        assert not repair(store.files, store.dispatch_paused()), "the cause is there still"
        assert store.running_flags.flag_bits == bit
        assert store.why_not_writeable is not None
        for call in (face.flush, face.wait_dispatched):  # neither may claim to be complete
            with pytest.raises(pyrocketstore.StoreIOError, match=in_the_way.name):
                call()
        if damage == "queue":
            with pytest.warns(pyrocketstore.StoreWarning, match="t/0: messages from"):
                assert list(face.read("t")) == []
            with pytest.warns(pyrocketstore.StoreWarning, match="mkdir failed"):
                assert face.read_batch("t", start=0).num_rows == 0
        in_the_way.unlink()
        assert repair(store.files, store.dispatch_paused())
        face.flush()
        assert face.wait_dispatched()
        assert "are repaired" in caplog.text
        assert store.running_flags.flag_bits == 0
        assert store.why_not_writeable is None
        assert face._state.fast_puts
        face.put("t", b"more", keys="k")
        assert [m.body for m in face.read("t")] == [b"kept", b"more"]
        assert [m.body for m in face.query("t", "k")] == [b"kept", b"more"]
        assert face.verify().ok
    assert not (tmp_path / "abort").exists(), "a clean end"
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as face:
        assert face.max_offset("t") == 2
        assert face.verify().ok


def test_a_full_device_that_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MAX_RETRIES", 1)
    env, full = Env(), threading.Event()
    putting = threading.get_ident()

    def allocate(original, *arguments):
        # The log and the checkpoint have their room; queues and index have none.
        if len(arguments) == 4 and arguments[2] <= CHECKPOINT_BYTES:
            return original(*arguments)
        if full.is_set() and threading.get_ident() != putting:
            return -errno.ENOSPC
        return original(*arguments)

    settings = {**TINY_SIZES, "mapped_file_size_commit_log": 1 << 20}
    with (
        pyrocketstore.open(tmp_path, env=env, **settings) as face,
        broken(env, "fallocate", allocate),
        broken(env, "pwrite", allocate),
    ):
        store = face.message_store
        store.index_service.retry_interval_ms = 1
        sent = 0
        for i in range(3000):
            if i == 300:
                full.set()
            try:
                face.put(f"t{i % 7}", b"%d" % i, keys=f"k{i}")
            except PutError as error:
                assert error.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
                break
            sent += 1
            store.wait_dispatched()
        assert 300 <= sent < 3000
        repaired: list[bool] = []
        paused = store.dispatch_paused()
        worker = threading.Thread(target=lambda: repaired.append(repair(store.files, paused)))
        worker.start()
        worker.join()
        assert repaired == [False]
        assert store.running_flags.is_write_error()
        full.clear()
        assert repair(store.files, store.dispatch_paused())
        assert sum(face.max_offset(f"t{i}") for i in range(7)) == sent
        for i in range(sent):
            assert [m.body for m in face.query(f"t{i % 7}", f"k{i}")] == [b"%d" % i]
        face.put("t0", b"more")
        assert face.verify().ok


def test_the_service_begins_with_the_first_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "consumequeue" / "t"
    with unclean(opened(tmp_path)) as store:
        service = store.services.repair_service
        assert not service.is_alive
        with store.dispatch_paused():
            store.put_message(message(b"x"))
            in_the_way.write_bytes(b"")
        store.wait_dispatched()
        assert service.is_alive
        assert 0 < service.run_due() <= REPAIR_INTERVAL_MS
        in_the_way.unlink()
        service.do_once()
        assert store.check_store_status() is PutMessageStatus.PUT_OK
        service.shutdown()
        assert not service.is_alive
        store.running_flags.make_logics_queue_error()
        assert service.is_alive, "for the next error"
    assert not service.is_alive


def test_a_log_that_cannot_be_read_leaves_the_flags(tmp_path: Path) -> None:
    in_the_way = tmp_path / "consumequeue" / "t"
    with opened(tmp_path) as store:
        with store.dispatch_paused():
            store.put_message(message(b"x"))
            in_the_way.write_bytes(b"")
        store.wait_dispatched()
        in_the_way.unlink()
        position = store.dispatcher.position
        with (
            broken(store.env, "pread", lambda original, *arguments: -errno.EIO),
            pytest.raises(pyrocketstore.StoreIOError),
        ):
            repair(store.files, store.dispatch_paused())
        assert store.running_flags.flag_bits == QUEUE_ERROR
        assert store.dispatcher.position == position
        assert repair(store.files, store.dispatch_paused())
        assert store.get_max_offset_in_queue("t", 0) == 1


def test_one_that_fails_again_does_not_hide_the_others(tmp_path: Path) -> None:
    in_the_way = [tmp_path / "consumequeue" / name for name in ("a", "b")]
    with opened(tmp_path) as store:
        with store.dispatch_paused():
            for path in in_the_way:
                store.put_message(message(b"x", path.name))
                path.write_bytes(b"")
                for _ in range(30):  # so that they lie in different files of the log
                    store.put_message(message(bytes(200), "other"))
        store.wait_dispatched()
        assert not repair(store.files, store.dispatch_paused())
        in_the_way[1].unlink()
        assert not repair(store.files, store.dispatch_paused()), "the first is in the way still"
        in_the_way[0].unlink()
        assert repair(store.files, store.dispatch_paused())
        for path in in_the_way:
            assert store.get_max_offset_in_queue(path.name, 0) == 1
        assert store.get_max_offset_in_queue("other", 0) == 60


def test_an_error_names_the_queue_or_the_index(tmp_path: Path) -> None:
    with unclean(opened(tmp_path)) as store:
        fill(store, 10)  # the queue's next unit needs a file
        with store.dispatch_paused():
            store.put_message(message(b"x"))
            store.running_flags.get_and_make_not_writeable()
        store.wait_dispatched()
        cause = store.running_flags.cause
        assert isinstance(cause, pyrocketstore.StoreIOError)
        assert cause.path == str(tmp_path / "consumequeue" / "t" / "0")
        assert cause.errno == errno.EIO


def test_an_error_of_the_index_names_its_file(tmp_path: Path) -> None:
    env = Env()
    with unclean(opened(tmp_path, env, max_hash_slot_num=2_000_000)) as store:
        store.put_message(message(b"x", key="first"))
        store.wait_dispatched()
        with broken(env, "fallocate", lambda original, *arguments: -errno.ENOSPC):
            for i in range(5):  # the last queue file has room, the slots of these keys have none
                store.put_message(message(b"x", key=f"k{i}"))
            store.wait_dispatched()
        cause = store.running_flags.cause
        assert isinstance(cause, pyrocketstore.StoreIOError)
        assert cause.path == store.index_service.files[-1].path
        assert cause.errno == errno.ENOSPC
