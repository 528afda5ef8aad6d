"""Goal: files are deleted when 4.9.3 would delete them and never earlier, and puts are refused only
while a disk is full.
Method: small stores; the test sets the clock and the disks."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    DiskFullError,
    GetMessageStatus,
    OffsetOutOfRange,
    PutError,
    PutMessageStatus,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.cleaning.expired_files import (
    CHECK_INTERVAL_MS,
    FIRST_CHECK_MS,
    FIRST_CLEAN_MS,
    CleanCommitLogService,
    CleanResourceService,
    DiskCheckService,
    parse_delete_when,
)
from pyrocketstore.errors import StoreWarning
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.system.disk_space import used_ratio
from support import oracle
from support.broken_env import broken, failing
from support.cleaned_stores import (
    HOUR_MS,
    LOG_SIZE,
    SetEnv,
    age,
    config_of,
    fill,
    log_files,
    log_files_and_next,
    message,
    opened,
)
from support.gates import unclean
from support.queues import PRE_BLANK, pack
from support.sizes import TINY_SIZES


@pytest.fixture
def env() -> SetEnv:
    return SetEnv()


def services(store: DefaultMessageStore) -> tuple[CleanCommitLogService, CleanResourceService]:
    log, both = store.services.clean_commit_log, store.services.clean_resource
    assert log is not None
    assert both is not None
    return log, both


# ---- what goes, and when -------------------------------------------------------------------------


def test_old_files_go_at_their_hour(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env, file_reserved_time=48) as store:
        log, _ = services(store)
        fill(store, 220)
        files = log_files_and_next(store, tmp_path)
        assert len(files) > 14
        age(tmp_path, 49, 13)
        log.run()
        assert log_files(tmp_path) == files, "not at this hour"
        env.hour = 4
        age(tmp_path, 47, 1)
        log.run()
        assert log_files(tmp_path) == files, "none from the middle"
        age(tmp_path, 49, 1)
        assert log.delete_expired_files() == 10
        assert env.slept == [0.1] * 9
        assert log.delete_expired_files() == 3
        assert log.delete_expired_files() == 0
        assert log_files(tmp_path) == files[13:]
        assert store.get_min_phy_offset() == files[13]
        age(tmp_path, 1000)
        while log.delete_expired_files():
            pass
        assert len(log_files(tmp_path)) == 2, "the newest stays, and the one made ahead"
        fill(store, 1)


def test_asking_deletes_in_the_next_rounds(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        fill(store, 60)
        age(tmp_path, 100, 1)
        store.execute_delete_files_manually()
        assert log.delete_expired_files() == 1
        assert log.manual_tries == 19
        for _ in range(19):
            assert log.delete_expired_files() == 0
        age(tmp_path, 100, 1)
        assert log.delete_expired_files() == 0, "asked for is 20 rounds"
        store.execute_delete_files_manually()
        assert log.delete_expired_files() == 1


def test_two_who_ask_at_once_do_not_disturb_the_count(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        taken = []
        log.execute_delete_files_manually()

        def take() -> None:
            taken.append(sum(log._take_manual_try() for _ in range(2000)))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (sum(taken), log.manual_tries) == (20, 0)


def test_a_disk_that_fills_up_takes_files_before_their_time(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        fill(store, 60)
        count = len(log_files_and_next(store, tmp_path))
        env.used[""] = 85
        assert log.is_space_to_delete()
        assert log.delete_expired_files() == 0, "they have not expired"
        env.used[""] = 86
        assert log.delete_expired_files() == count - 2
        assert store.running_flags.is_writeable()
    with opened(tmp_path, env, clean_file_forcibly_enable=False) as store:
        log, _ = services(store)
        fill(store, 60)
        assert log.delete_expired_files() == 0


def test_what_is_not_dispatched_stays(tmp_path: Path, env: SetEnv) -> None:
    env.used[""] = 86
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        fill(store, 10)
        reached = store.dispatcher.position
        with store.dispatch_paused():
            for i in range(60):
                store.put_message(message(b"%04d" % i + bytes(150)))
            assert len(log_files(tmp_path)) > 4
            assert log.delete_expired_files() == 0
            assert store.get_min_phy_offset() == 0
            assert reached < LOG_SIZE
        store.wait_dispatched()
        assert log.delete_expired_files() > 2


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path, env: SetEnv) -> None:
    env.hour = 4
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        fill(store, 40)
        age(tmp_path, 100, 2)
        with failing(env, "unlink", errno.EACCES), pytest.raises(StoreIOError):
            log.run()
        assert store.get_min_phy_offset() == LOG_SIZE, "it is given up all the same"
        env.hour = 5
        log.run()
        assert log_files(tmp_path)[0] == 0, "not before redeleteHangedFileInterval"
        env.ahead_ms += 120_001
        log.run()
        assert log_files(tmp_path)[0] == LOG_SIZE
        assert store.commit_log.mapped_file_queue.mapped_files[0].file_from_offset == LOG_SIZE


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("04", {4}),
        ("2;14", {2, 14}),
        ("02; 14;", {2, 14}),
        ("", {4}),
        ("x", {4}),
        ("5;x", {5}),
        ("25", {25}),
    ],
)
def test_hours_that_are_none_do_not_end_the_cleaning(text: str, hours: set[int]) -> None:
    assert parse_delete_when(text) == hours


# ---- the rhythm ----------------------------------------------------------------------------------


def test_rounds_come_after_a_minute_and_then_every_ten_seconds(
    tmp_path: Path, env: SetEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr(SetEnv, "monotonic_ns", lambda self: now * 1_000_000)
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        rounds: list[tuple[str, int]] = []
        monkeypatch.setattr(log, "is_space_full", lambda: rounds.append(("look", now)))
        monkeypatch.setattr(log, "run", lambda: rounds.append(("log", now)))
        queues = store.services.clean_resource.clean_consume_queue
        monkeypatch.setattr(queues, "run", lambda: rounds.append(("queues", now)))
        cleaner = CleanResourceService(env, store.config, log, queues, 0)
        look = DiskCheckService(env, log)
        wait = 0.0
        while now + wait <= 90_000:
            now += int(wait)
            wait = min(cleaner.run_due(), look.run_due())
        looks = [at for what, at in rounds if what == "look"]
        assert looks == list(range(FIRST_CHECK_MS, 90_000, CHECK_INTERVAL_MS))
        cleans = [(what, at) for what, at in rounds if what != "look"]
        at = (FIRST_CLEAN_MS, 70_000, 80_000, 90_000)
        assert cleans == [(what, time) for time in at for what in ("log", "queues")]
        rounds.clear()
        now = 200_000
        assert (cleaner.run_due(), len(rounds)) == (0.0, 2), "late: at once again"


def test_a_round_that_fails_is_not_the_last(
    tmp_path: Path, env: SetEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, env) as store:
        log, cleaner = services(store)
        fill(store, 1)

        def fails() -> None:
            raise StoreIOError(errno.EIO, "unlink", "the file")

        with monkeypatch.context() as patched:
            patched.setattr(log, "run", fails)
            env.ahead_ms += 100_000
            assert cleaner.run_due() >= 0
            assert isinstance(cleaner.last_error, StoreIOError)
            assert "the file" in caplog.text
        env.ahead_ms += 100_000
        cleaner.run_due()
        assert cleaner.last_error is None
        assert cleaner.is_alive


# ---- full disks ----------------------------------------------------------------------------------

FULL, LOGIC_FULL = 16, 32


@pytest.mark.parametrize(
    ("log_used", "queue_used", "flags", "to_delete", "at_once"),
    [
        (75, 75, 0, False, False),
        (76, 75, 0, True, False),
        (75, 76, 0, True, False),
        (85, 10, 0, True, False),
        (86, 10, 0, True, True),
        (90, 10, 0, True, True),
        (91, 10, FULL, True, True),
        (10, 91, LOGIC_FULL, True, True),
        (91, 91, FULL | LOGIC_FULL, True, True),
    ],
)
def test_what_a_round_makes_of_the_disks(
    tmp_path: Path,
    env: SetEnv,
    log_used: int,
    queue_used: int,
    flags: int,
    to_delete: bool,
    at_once: bool,
) -> None:
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        env.used.update({"/commitlog": log_used, "/consumequeue": queue_used})
        assert log.is_space_to_delete() is to_delete
        assert log.clean_immediately is at_once
        assert store.running_flags.flag_bits == flags
        # Between the limits a flag stays; at the lower one it goes.
        env.used.update({"/commitlog": 86, "/consumequeue": 86})
        log.is_space_to_delete()
        assert store.running_flags.flag_bits == flags
        env.used.update({"/commitlog": 85, "/consumequeue": 85})
        log.is_space_to_delete()
        assert store.running_flags.flag_bits == 0


def test_room_on_one_disk_does_not_hide_that_the_other_is_full(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env, disk_max_used_space_ratio=95) as store:
        log, _ = services(store)
        env.used.update({"/commitlog": 95, "/consumequeue": 10})
        log.is_space_to_delete()
        assert store.check_store_status() is PutMessageStatus.SERVICE_NOT_AVAILABLE
        env.used.update({"/commitlog": 10, "/consumequeue": 95})
        log.is_space_to_delete()
        assert not log.is_space_full()
        assert store.check_store_status() is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "/consumequeue" in str(store.why_not_writeable)


def test_a_full_disk_refuses_puts_until_it_has_room(
    tmp_path: Path, env: SetEnv, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path, env) as store:
        log, _ = services(store)
        fill(store, 3)
        env.used[""] = 91
        assert log.is_space_full()
        result = store.put_message(message(b"x"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert isinstance(result.error, DiskFullError)
        assert "91 % of the disk is in use; above 90 % puts are refused" in str(result.error)
        assert store.get_max_offset_in_queue("t", 0) == 3
        assert store.get_message("g", "t", 0, 0, 9).status is GetMessageStatus.FOUND
        log.is_space_full()
        env.used[""] = 90
        assert not log.is_space_full()
        assert store.why_not_writeable is None
        fill(store, 3)
    logged = [r.message for r in caplog.records if "the disk of the" in r.message]
    assert ["is full" in text for text in logged] == [True, False], "each edge once"


def test_the_face_says_why_and_goes_on(tmp_path: Path, env: SetEnv) -> None:
    with pyrocketstore.open(tmp_path, env=env, disk_max_used_space_ratio=75, **TINY_SIZES) as store:
        log, _ = services(store.message_store)
        store.put("t", b"a")
        assert store._state.fast_puts
        env.used[""] = 95
        log.is_space_to_delete()
        assert not store._state.fast_puts
        puts = (
            lambda: store.put("t", b"x"),
            lambda: store.put_many("t", [b"x"]),
            lambda: store.put_batch("t", [b"x"]),
        )
        for put in puts:
            with pytest.raises(PutError, match="95 % of the disk") as caught:
                put()
            assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert isinstance(caught.value.__cause__, DiskFullError)
        env.used[""] = 10
        log.is_space_to_delete()
        assert store._state.fast_puts
        store.put("t", b"b")
        assert [m.body for m in store.read("t")] == [b"a", b"b"]


def test_a_path_that_is_missing_does_not_hide_a_full_one(tmp_path: Path, env: SetEnv) -> None:
    paths = f"{tmp_path}/a,{tmp_path}/b"
    with unclean(opened(tmp_path / "r", env, store_path_commit_log=paths)) as store:
        log, _ = services(store)
        fill(store, 1)
        shutil.rmtree(tmp_path / "b")
        env.used["/a"] = 91
        assert log.is_space_full()
        assert log.full_store_paths == {f"{tmp_path}/a"}
        assert log.is_space_to_delete()


def test_ratios_are_rounded_up(env: SetEnv, tmp_path: Path, monkeypatch) -> None:
    for usage, ratio in (
        ((1000, 0, 1000), 0.0),
        ((1000, 1, 999), 0.01),
        ((1000, 10, 990), 0.01),
        ((1000, 11, 989), 0.02),
        ((1000, 450, 50), 0.9),
        ((1000, 1000, 0), 1.0),
        ((0, 0, 0), -1.0),
    ):
        monkeypatch.setattr(SetEnv, "disk_usage", lambda self, path, usage=usage: usage)
        assert used_ratio(env, str(tmp_path)) == ratio
    assert used_ratio(env, str(tmp_path / "missing")) == -1
    monkeypatch.undo()
    with pytest.raises(StoreIOError):
        pyrocketstore.system.env.Env().disk_usage(str(tmp_path / "missing"))


@pytest.mark.parametrize("damage", ["queue", "index"])
def test_opening_again_clears_the_error_bits(tmp_path: Path, env: SetEnv, damage: str) -> None:
    in_the_way = tmp_path / "consumequeue" / "t" if damage == "queue" else tmp_path / "index"
    with unclean(opened(tmp_path, env)) as store:
        store.index_service.retry_interval_ms = 1
        with store.dispatch_paused():  # a put to a queue that cannot be made would be refused
            kept = store.put_message(message(b"kept", key="k"))
            in_the_way.write_bytes(b"a file where a directory must be")
        assert kept.status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        refused = store.put_message(message(b"x"))
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert refused.error is not None
        assert store.running_flags.flag_bits == (4 if damage == "queue" else 8)
        in_the_way.unlink()
        env.used[""] = 5
        services(store)[0].is_space_to_delete()
        assert not store.running_flags.is_writeable(), "room on the disk is another matter"
    assert (tmp_path / "abort").exists()
    with opened(tmp_path, env) as store:
        assert store.running_flags.flag_bits == 0
        assert store.put_message(message(b"more", key="k")).status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        assert len(store.query_message("t", "k", 9, 0, 1 << 60).phy_offsets) == 2
        pulled = store.get_message("g", "t", 0, 0, 9)
        assert [m.body for m in pulled.messages()] == [b"kept", b"more"]
        pulled.release()


# ---- queues and index ----------------------------------------------------------------------------


def queue_files(path: Path, topic: str = "t") -> list[int]:
    return sorted(int(p.name) // 20 for p in (path / "consumequeue" / topic / "0").iterdir())


def cleaned(store: DefaultMessageStore, path: Path, env: SetEnv, count: int) -> int:
    """Have the first `count` files of the log deleted, and what goes with them; the new minimum."""
    log, cleaner = services(store)
    env.hour = 4
    age(path, 100, count)
    while log.delete_expired_files():
        pass
    cleaner.clean_consume_queue.run()
    return store.get_min_phy_offset()


def test_queues_and_index_follow_the_log(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill(store, 5, "old")
        fill(store, 100)
        indexes = sorted(os.listdir(tmp_path / "index"))
        assert len(indexes) > 2
        lowest = cleaned(store, tmp_path, env, 3)
        assert lowest == 3 * LOG_SIZE
        first = next(m for m in range(100) if store.reads.unit("t", 0, m) is not None)
        # The file with the first that is left, and all behind it.
        assert queue_files(tmp_path) == list(range(first // 10 * 10, 100, 10))
        assert store.get_min_offset_in_queue("t", 0) == first
        phy_offset = store.get_commit_log_offset_in_queue("t", 0, first)
        assert lowest <= phy_offset < lowest + LOG_SIZE
        assert queue_files(tmp_path, "old") == [0], "the last one stays"
        gone = store.get_message("g", "t", 0, 0, 32)
        assert (gone.status, gone.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, first)
        left = sorted(os.listdir(tmp_path / "index"))
        assert 0 < len(left) < len(indexes)
        assert left == indexes[-len(left) :]
        for i in range(first, 100):
            assert len(store.query_message("t", f"k{i}", 9, 0, 1 << 60).phy_offsets) == 1
        # Nothing more to do until the minimum moves.
        names = queue_files(tmp_path)
        assert cleaned(store, tmp_path, env, 0) == lowest
        assert queue_files(tmp_path) == names
        store.clean_expired_consumer_queue()
        assert sorted(store.get_consume_queue_table()) == ["t"]
    with opened(tmp_path, env) as store:
        assert store.get_min_offset_in_queue("t", 0) == first
        fill(store, 1, start=100)
        assert store.get_max_offset_in_queue("t", 0) == 101


@pytest.mark.parametrize("clean", [True, False])
def test_a_kill_between_the_log_and_its_queues(tmp_path: Path, env: SetEnv, clean: bool) -> None:
    path = tmp_path / "store"
    with opened(path, env) as store:
        fill(store, 15, "old")
        fill(store, 100)
        env.hour = 4
        age(path, 100, 4)
        assert services(store)[0].delete_expired_files() == 4
        store.flush_all()
        shutil.copytree(path, tmp_path / "killed")
    if not clean:
        shutil.rmtree(path)
        (tmp_path / "killed").rename(path)
    assert (path / "abort").exists() is not clean
    with pyrocketstore.open(path, **TINY_SIZES) as face:
        first = face.min_offset("t")
        assert [m.queue_offset for m in face.read("t")] == list(range(first, 100))
        assert (face.min_offset("old"), list(face.read("old"))) == (15, [])
        assert face.verify().ok
        assert face.put("old", b"x").queue_offset == 15
        assert [len(face.query("t", f"k{i}")) for i in range(100)] == [0] * first + [1] * (
            100 - first
        )


def test_one_queue_does_not_keep_the_others_from_it(
    tmp_path: Path, env: SetEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, env) as store:
        for i in range(60):
            for topic in ("a", "b", "c"):
                store.put_message(message(b"%04d" % i + bytes(150), topic))
        store.wait_dispatched()
        log, cleaner = services(store)
        env.hour = 4
        age(tmp_path, 100, 9)
        log.delete_expired_files()
        with failing(env, "unlink", errno.EACCES), pytest.raises(StoreIOError):
            cleaner.clean_consume_queue.run()
        cleaner.clean_consume_queue.run()
        assert [queue_files(tmp_path, topic)[0] for topic in "abc"] == [40, 40, 40]


def test_blank_units_do_not_hide_messages_from_the_cleaner(tmp_path: Path) -> None:
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.consume_queue.queue_recovery import recover_queue
    from pyrocketstore.system.env import Env

    files = MappedFileQueue(Env(), f"{tmp_path}/t/0", 200)
    rows = [(100 * i, 100, 0) for i in range(8)] + [PRE_BLANK] * 2
    for piece in (rows, [(1000 + 100 * i, 100, 0) for i in range(10)], [(2000, 100, 0)]):
        files.get_last_mapped_file(0).append_message(pack(piece))
    files.flush(0)
    queue = ConsumeQueue("t", 0, str(tmp_path), 200, Env())
    queue.load()
    recover_queue(queue)
    assert queue.delete_expired_file(700) == 0, "the message at 700 is still there"
    assert queue.get_min_offset_in_queue() == 7
    assert queue.delete_expired_file(701) == 1
    assert queue.get_min_offset_in_queue() == 10
    assert queue.delete_expired_file(1 << 60) == 1, "never the last"


# ---- readers -------------------------------------------------------------------------------------


def test_an_iterator_goes_on_with_what_is_left(tmp_path: Path, env: SetEnv) -> None:
    with pyrocketstore.open(tmp_path, env=env, file_reserved_time=72, **TINY_SIZES) as face:
        store = face.message_store
        fill(store, 600)
        one, two = face.read("t"), face.read("t", start=5)
        assert [next(one).queue_offset, next(two).queue_offset] == [0, 5]
        held = store.select_one_message_by_offset(0)
        assert held is not None
        before = bytes(held.byte_buffer)
        cleaned(store, tmp_path, env, 38)
        first = face.min_offset("t")
        assert first > 512, "behind what was read ahead"
        assert [m.queue_offset for m in one] == list(range(first, 600))
        assert [m.queue_offset for m in two] == list(range(first, 600))
        assert bytes(held.byte_buffer) == before, "a view keeps its bytes"
        held.release()
        with pytest.raises(OffsetOutOfRange) as caught:
            face.read("t", start=5)
        assert caught.value.min_offset == first
        with pytest.raises(OffsetOutOfRange):
            face.read_batch("t", start=0)
        assert face.read_batch("t", start=first).num_rows == 600 - first
        assert [m.queue_offset for m in face.query("t", "k599")] == [599]
        assert face.query("t", "k1") == []
        assert face.get(0) is None


def test_a_reader_elsewhere_goes_on_behind_what_expired(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill(store, 100)
        store.flush_all()
        with pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as reader:
            messages = reader.read("t")
            cleaned(store, tmp_path, env, 3)
            offsets = [m.queue_offset for m in messages]
            assert offsets == list(range(offsets[0], 100)) and offsets[0] > 0
            assert messages.skipped.count == 0
            assert reader.get(0) is None
            assert reader.get(store.get_max_phy_offset()) is None
            assert [m.queue_offset for m in reader.read("t", start=99)] == [99]


def test_a_file_that_is_deleted_while_it_is_forced_is_no_failure(tmp_path: Path) -> None:
    env = SetEnv()
    files = MappedFileQueue(env, f"{tmp_path}/q", 200)
    file = files.get_last_mapped_file(0)
    assert file is not None
    file.append_message(bytes(200))
    file.unmap_idle()  # so that a force opens it by its name

    def deletes(original, *arguments):
        file.destroy()
        return original(*arguments)

    with broken(env, "open", deletes):
        assert file.flush() == 0
    assert not Path(file.path).exists()


def test_cleaning_beside_puts_and_reads(tmp_path: Path, env: SetEnv) -> None:
    env.used[""] = 86  # everything may go at once
    with pyrocketstore.open(
        tmp_path, env=env, file_reserved_time=72, **{**TINY_SIZES, "delete_when": "99"}
    ) as face:
        log, cleaner = services(face.message_store)
        stop = threading.Event()
        errors: list[BaseException] = []
        face.put("t", b"")

        def work(step: int) -> None:
            try:
                while not stop.is_set():
                    if step == 0:
                        log.delete_expired_files()
                        cleaner.clean_consume_queue.run()
                        time.sleep(0)
                    elif step == 1:
                        offsets = [m.queue_offset for m in face.read("t")]
                        assert offsets == sorted(set(offsets))
                    elif step == 2:
                        face.query("t", "k7")
                        # The minimum may move between the two calls.
                        with contextlib.suppress(OffsetOutOfRange):
                            face.read_batch("t", start=face.min_offset("t"), max_count=500)
            except BaseException as error:  # noqa: BLE001  the test reports it
                errors.append(error)

        threads = [threading.Thread(target=work, args=(step,)) for step in range(3)]
        for thread in threads:
            thread.start()
        try:
            for i in range(150):
                face.put_many("t", [b"%05d" % i + bytes(150)] * 20, keys=[f"k{i % 9}"] * 20)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors
        assert face.max_offset("t") == 3001
        assert face.min_offset("t") > 0
        offsets = [m.queue_offset for m in face.read("t")]
        assert offsets == list(range(face.min_offset("t"), 3001))


# ---- who cleans ----------------------------------------------------------------------------------


def test_the_face_cleans_nothing_unless_asked(tmp_path: Path, env: SetEnv) -> None:
    env.used[""] = 99
    env.hour = 4
    with pyrocketstore.open(tmp_path, env=env, **TINY_SIZES) as store:
        assert store.message_store.services.clean_resource is None
        names = {type(service).__name__ for service in store.message_store.services.all()}
        assert not names & {"CleanResourceService", "DiskCheckService"}
        store.put("t", b"x")
        with pytest.raises(StoreStateError, match="cleans=False"):
            store.message_store.execute_delete_files_manually()
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\n")
    for given in ({"file_reserved_time": 72}, {"disk_max_used_space_ratio": 75}, {"config": conf}):
        with pyrocketstore.open(tmp_path, env=env, **given, **TINY_SIZES) as store:
            assert store.message_store.services.clean_resource is not None
    with pyrocketstore.open(tmp_path, env=env, config=conf, read_only=True) as store:
        assert not store.message_store.life.is_started


def cleans_from_the_second_round(
    face: pyrocketstore.Store, root: Path, files: list[int], env: SetEnv
) -> None:
    """`files` are those of the log before it was opened."""
    _, cleaner = services(face.message_store)
    face.message_store.execute_delete_files_manually()
    env.ahead_ms += FIRST_CLEAN_MS
    assert cleaner.run_due() > 0
    assert log_files(root) == files, "the first round warns"
    env.ahead_ms += 10_000
    cleaner.run_due()
    assert len(log_files(root)) < len(files)


def test_an_old_store_is_not_cleaned_in_the_first_round(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path, env) as store:
        fill(store, 100)
    age(tmp_path, 100)
    files = log_files(tmp_path)
    env.ahead_ms = 73 * HOUR_MS
    env.hour = 4
    with pytest.warns(StoreWarning, match="newest record is 73 hours old and file_reserved_time"):
        face = pyrocketstore.open(tmp_path, env=env, file_reserved_time=72, **TINY_SIZES)
    with face:
        cleans_from_the_second_round(face, tmp_path, files, env)
    env.ahead_ms = 71 * HOUR_MS
    with opened(tmp_path, env) as store:
        assert services(store)[1].notice is None


def test_a_store_of_unknown_age_is_not_cleaned_in_the_first_round(
    tmp_path: Path, env: SetEnv
) -> None:
    """Messages of open transactions are in no queue, so no queue names the newest record."""
    with opened(tmp_path, env) as store:
        assert services(store)[1].notice is None, "an empty log has nothing to lose"
        for i in range(100):
            half = message(b"%04d" % i + bytes(150))
            half.sys_flag = oracle.PREPARED
            assert store.put_message(half).status is PutMessageStatus.PUT_OK
    age(tmp_path, 100)
    files = log_files(tmp_path)
    env.hour = 4
    with pytest.warns(StoreWarning, match="the age of the newest record is not known"):
        face = pyrocketstore.open(tmp_path, env=env, file_reserved_time=72, **TINY_SIZES)
    with face:
        assert face.message_store.files.newest_store_timestamp() == 0
        cleans_from_the_second_round(face, tmp_path, files, env)


def test_a_missing_unit_names_no_newest_record(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.files.newest_store_timestamp() == 0
        fill(store, 3)
        newest = store.files.newest_store_timestamp()
        assert newest == store.get_message_store_time_stamp("t", 0, 2)


def test_services_end_with_the_store(tmp_path: Path) -> None:
    store = DefaultMessageStore(config_of(tmp_path))
    store.load()
    store.start()
    started = store.services.all()
    assert all(service.is_alive for service in started)
    store.shutdown()
    assert not any(service.is_alive for service in started)


def test_a_minimum_is_never_above_the_end(tmp_path: Path) -> None:
    """Without messages in the log, 4.9.3's minimum stays; that of `Store` is the end."""
    env = SetEnv()
    env.used[""] = 86
    with pyrocketstore.open(tmp_path, env=env, file_reserved_time=72, **TINY_SIZES) as face:
        store = face.message_store
        fill(store, 15, "old")
        fill(store, 60)
        log = store.services.clean_commit_log
        cleaner = store.services.clean_resource
        assert log is not None
        assert cleaner is not None
        assert log.delete_expired_files() > 2
        cleaner.clean_consume_queue.run()
        assert store.get_min_offset_in_queue("old", 0) <= 15
        assert (face.min_offset("old"), face.max_offset("old")) == (15, 15)
        assert list(face.read("old")) == []
        answer = store.get_message("g", "old", 0, 0, 9)  # as 4.9.3: by way of the next file
        assert answer.status is GetMessageStatus.OFFSET_FOUND_NULL
        answer = store.get_message("g", "old", 0, answer.next_begin_offset, 9)
        assert (answer.status, answer.next_begin_offset) == (
            GetMessageStatus.MESSAGE_WAS_REMOVING,
            15,
        )
        queue = store.get_consume_queue("old", 0)
        assert queue is not None
    queue.truncate_dirty_logic_files(0)
    assert queue.get_min_offset_in_queue() <= queue.get_max_offset_in_queue()
