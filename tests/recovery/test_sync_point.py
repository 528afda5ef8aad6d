"""Goal: an opening after a kill, and a read-only opening of a live store, dispatch nothing again
that a flush has made durable; and no key or unit is lost when `sync_point` does not fit the files.
Method: stores of processes that were killed, whose files are damaged, exchanged or cut; the start
of the replay is compared with the end of the last flush."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreIOError
from pyrocketstore.index._file import IndexFile
from pyrocketstore.index.sync_point import SYNC_POINT, SyncPoint, SyncPointFile
from pyrocketstore.system.env import Env
from support.broken_env import failing, watched

NEVER = 10_000_000
LOG_SIZE = 1 << 15
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 4000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
}
#: messages that fill one index file and some of the next
COUNT = 330
#: messages that are put at once after the flush
STEP = 60


def put(store: pyrocketstore.Store, first: int, count: int, keyed: bool = True) -> None:
    for number in range(first, first + count):
        key = f"k{number}" if keyed else None
        store.put("t", b"%d" % number, queue_id=number % 3, keys=key)
    store.wait_dispatched()


def opened(path: Path, **more: Any) -> pyrocketstore.Store:
    return pyrocketstore.open(path, **(SETTINGS | more))


def check(store: pyrocketstore.Store, count: int, keyed: int | None = None) -> None:
    """All messages are there, the first `keyed` by their keys, and each once."""
    for queue_id in range(3):
        bodies = [int(message.body) for message in store.read("t", queue_id)]
        assert bodies == list(range(queue_id, count, 3))
    for number in range(count if keyed is None else keyed):
        found = [int(message.body) for message in store.query("t", f"k{number}")]
        assert found == [number]


@dataclasses.dataclass
class Killed:
    """A store as a kill leaves it.

    `synced` is where the log ended at the last flush.
    """

    path: Path
    synced: int


def kill(
    path: Path,
    target: Path,
    later: int = 7,
    keyed: bool = True,
    count: int = COUNT,
    settled: bool = False,
) -> Killed:
    """Copy a live store after a flush and `later` more messages; `settled`: full index files have
    been flushed behind them, and the checkpoint covers them, since each ends in another ms."""
    with opened(path) as store:
        put(store, 0, count, keyed)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        for first in range(0, later, STEP):
            put(store, count + first, min(STEP, later - first), keyed)
            time.sleep(0.003 if settled else 0)
        store.wait_dispatched()  # else the copy has files of different moments
        if settled:
            store.message_store.index_service.wait_flushed()
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"))
    claim_flushed_up_to_now(target)
    return Killed(target, synced)


def claim_flushed_up_to_now(path: Path) -> None:
    """Let the last log file be the one that recovery scans: times of a test are too close."""
    times = struct.unpack(">qqq", (path / "checkpoint").read_bytes()[:24])
    later = [times[0] + 10_000, times[1] + 10_000, times[2]]
    with (path / "checkpoint").open("r+b") as file:
        file.write(struct.pack(">qqq", *later))


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return kill(tmp_path / "live", tmp_path / "killed")


@pytest.fixture
def keyless(tmp_path: Path) -> Killed:
    return kill(tmp_path / "live", tmp_path / "killed", keyed=False)


def replay_from(path: Path, **more: Any) -> int:
    with opened(path, **more) as store:
        plan = store.message_store.plan
        assert plan is not None
        assert not plan.clean
        assert plan.replay_from is not None
        return plan.replay_from


# ---- what is replayed ----------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("later", [0, 1, 7, 70, 300])
@pytest.mark.parametrize("settled", [True, False])
def test_replay_starts_where_the_last_flush_ended(
    tmp_path: Path, read_only: bool, later: int, settled: bool
) -> None:
    """Also where later index files have become full, and durable, since then."""
    killed = kill(tmp_path / "live", tmp_path / "killed", later, settled=settled)
    assert replay_from(killed.path, read_only=read_only) == killed.synced
    with opened(killed.path, read_only=read_only) as store:
        check(store, COUNT + later)
        assert store.verify().ok


@pytest.mark.parametrize("read_only", [True, False])
def test_without_keys_too(keyless: Killed, read_only: bool) -> None:
    """Not the whole log is dispatched again."""
    assert replay_from(keyless.path, read_only=read_only) == keyless.synced
    with opened(keyless.path, read_only=read_only) as store:
        check(store, COUNT + 7, keyed=0)


@pytest.mark.parametrize("read_only", [True, False])
def test_keys_after_messages_without(tmp_path: Path, read_only: bool) -> None:
    """The last file with entries is a full one, and the next one is empty."""
    path = tmp_path / "live"
    with opened(path) as store:
        put(store, 0, 199)
        put(store, 199, 500, keyed=False)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        put(store, 699, 3, keyed=False)
        shutil.copytree(path, tmp_path / "killed")
    claim_flushed_up_to_now(tmp_path / "killed")
    assert replay_from(tmp_path / "killed", read_only=read_only) == synced
    with opened(tmp_path / "killed", read_only=read_only) as store:
        check(store, 702, keyed=199)
        assert store.verify().ok


def test_a_live_store_is_read_without_replay_or_copy(tmp_path: Path) -> None:
    path = tmp_path / "live"
    with opened(path) as store:
        put(store, 0, COUNT)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        claim_flushed_up_to_now(path)
        with opened(path, read_only=True) as reader:
            plan = reader.message_store.plan
            assert plan is not None
            assert plan.replay_from == synced
            files = reader.message_store.index_service.files
            assert [(file.mode, file.is_limited) for file in files] == [
                ("read", False),
                ("read", True),
            ]
            put(store, COUNT, 100)  # the reader does not see them, and they change slots
            check(reader, COUNT)
            assert reader.query("t", f"k{COUNT}") == []


def test_a_timed_flush_of_the_queues_writes_it(tmp_path: Path) -> None:
    """Behind the puts, without `flush`."""
    path = tmp_path / "live"
    with opened(path) as store:
        put(store, 0, COUNT)
        end = store.message_store.get_max_phy_offset()
        service = store.message_store.services.flush_queue_service
        service.do_flush(True)
        assert SyncPointFile(Env(), str(path)).read() is None, "the log is not durable"
        store.message_store.flush()
        service.do_flush(False)
        point = SyncPointFile(Env(), str(path)).read()
        assert point is not None
        assert point.phy_offset == end


def test_a_clean_close_writes_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put(store, 0, 10)
        end = store.message_store.get_max_phy_offset()
    point = SyncPointFile(Env(), str(tmp_path / "store")).read()
    assert point is not None
    assert (point.phy_offset, point.index_count) == (end, 11)


def test_an_idle_store_does_not_write_it_again(tmp_path: Path) -> None:
    env = Env()
    with opened(tmp_path / "store", env=env) as store:
        put(store, 0, 10)
        store.flush()
        with watched(env, "rename") as renamed:
            store.flush()
            store.message_store.services.flush_queue_service.do_flush(True)
        assert renamed == []


def test_an_index_with_missing_keys_is_not_covered(tmp_path: Path) -> None:
    """While the index cannot be written, the log is dispatched without it."""
    path = tmp_path / "live"
    env = Env()
    with contextlib.suppress(pyrocketstore.StoreError), opened(path, env=env) as store:
        store.message_store.index_service.retry_interval_ms = 1
        put(store, 0, 150)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        with failing(env, "ftruncate", 28), contextlib.suppress(pyrocketstore.StoreError):
            put(store, 150, 100)
        with contextlib.suppress(pyrocketstore.StoreError):
            store.flush()
        point = SyncPointFile(Env(), str(path)).read()
        assert point is not None
        if store.message_store.running_flags.is_index_file_error():
            assert point.phy_offset == synced
        shutil.copytree(path, tmp_path / "killed")
    with opened(tmp_path / "killed") as store:
        count = sum(store.max_offset("t", queue_id) for queue_id in range(3))
        assert count > 150
        check(store, count)


# ---- what is not believed ------------------------------------------------------------------------


def point_of(path: Path) -> SyncPoint:
    point = SyncPointFile(Env(), str(path)).read()
    assert point is not None
    return point


def is_believed(killed: Killed, read_only: bool) -> bool:
    return replay_from(killed.path, read_only=read_only) == killed.synced


def check_ignored(killed: Killed, count: int = COUNT + 7, keyed: int | None = None) -> None:
    """Neither opening believes the file, and all keys are found."""
    for read_only in (True, False):
        with opened(killed.path, read_only=read_only) as store:
            plan = store.message_store.plan
            assert plan is not None
            assert plan.replay_from is not None
            assert plan.replay_from < killed.synced
            check(store, count, keyed)
            assert read_only or store.verify().ok


def with_crc(body: bytes) -> bytes:
    return body + struct.pack(">I", zlib.crc32(body))


def test_damaged_bytes(killed: Killed) -> None:
    """Each byte, each length: the file counts as missing."""
    file = killed.path / SYNC_POINT
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        assert SyncPointFile(Env(), str(killed.path)).read() is None, at
    for wrong in (data[:-1], data + b"\0", b"", data * 2, bytes(len(data)), data[: len(data) // 2]):
        file.write_bytes(wrong)
        assert SyncPointFile(Env(), str(killed.path)).read() is None
    check_ignored(killed)


NUMBERS = [name for name in SyncPoint._fields if name != "name"]


@pytest.mark.parametrize("name", NUMBERS)
def test_wrong_numbers_with_a_right_crc(killed: Killed, name: str, tmp_path: Path) -> None:
    """The file is input: no number of it is used before the files have proved it."""
    point = point_of(killed.path)
    wide = name.endswith(("offset", "timestamp"))
    top = 2**63 - 1 if wide else 2**32 - 1 if name.endswith("crc") else 2**31 - 1
    for number, value in enumerate({0, 1, 2, getattr(point, name) + 1, top - 1, top}):
        if value == getattr(point, name):
            continue
        path = Path(shutil.copytree(killed.path, tmp_path / f"{number}"))
        wrong = point._replace(**{name: value})
        (path / SYNC_POINT).write_bytes(wrong.encode())
        for read_only in (True, False):
            with opened(path, read_only=read_only) as store:
                check(store, COUNT + 7)
                report = store.verify()
                assert not [found for found in report.problems if found.kind == "index"]
                assert read_only or report.ok


def test_a_later_position_than_the_index_has(tmp_path: Path) -> None:
    """The entries after those that it counts must name records behind its position."""
    path = tmp_path / "killed"
    with opened(tmp_path / "live") as store:
        put(store, 0, COUNT)
        store.flush()
        put(store, COUNT, 6)
        put(store, COUNT + 6, 1, keyed=False)
        shutil.copytree(tmp_path / "live", path, ignore=shutil.ignore_patterns("lock"))
        queue_id = (COUNT + 6) % 3
        message = list(store.read("t", queue_id))[-1]
        last = message.phy_offset
        mark = store.message_store.commit_log.record_mark(last)
        assert mark is not None
    claim_flushed_up_to_now(path)
    wrong = point_of(path)._replace(
        phy_offset=last + mark[0], last_phy_offset=last, record_crc=mark[1]
    )
    (path / SYNC_POINT).write_bytes(wrong.encode())
    check_ignored(Killed(path, wrong.phy_offset), COUNT + 7, COUNT + 6)


def test_names_that_are_no_names(killed: Killed) -> None:
    point = point_of(killed.path)
    data = point.encode()[:-4]
    for name in (b"../../etc/passwd", b"\xff" * 32, b"12/3", b"9" * 32, b"7\0" * 16):
        (killed.path / SYNC_POINT).write_bytes(with_crc(data[:-32] + name.ljust(32, b"\0")))
        found = SyncPointFile(Env(), str(killed.path)).read()
        assert found is None or found.name == "9" * 32
    check_ignored(killed)


def test_the_file_of_another_store(killed: Killed, tmp_path: Path) -> None:
    other = kill(tmp_path / "other", tmp_path / "other-killed", count=COUNT + 2)
    shutil.copy(other.path / SYNC_POINT, killed.path / SYNC_POINT)
    check_ignored(killed)


def test_the_log_and_queues_of_another_store(killed: Killed, tmp_path: Path) -> None:
    other = kill(tmp_path / "other", tmp_path / "other-killed", count=COUNT + 50)
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(killed.path / name)
        shutil.copytree(other.path / name, killed.path / name)
    with opened(killed.path, read_only=True) as store:
        plan = store.message_store.plan
        assert plan is not None
        assert plan.replay_from is not None
        assert plan.replay_from < killed.synced
        check(store, COUNT + 57)


def test_without_keys_the_log_proves_it(keyless: Killed, tmp_path: Path) -> None:
    """A log with keys takes the place of one without."""
    other = kill(tmp_path / "other", tmp_path / "other-killed")
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(keyless.path / name)
        shutil.copytree(other.path / name, keyless.path / name)
    shutil.rmtree(keyless.path / "index")
    check_ignored(keyless)


def index_files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


@pytest.mark.parametrize("what", ["deleted", "last deleted", "all deleted", "empty"])
def test_deleted_index_files(killed: Killed, what: str) -> None:
    files = index_files(killed.path)
    assert len(files) == 2
    if what == "deleted":
        files[0].unlink()
        with opened(killed.path) as store:  # the gap is filled as after a clean stop
            check(store, COUNT + 7)
            assert store.verify().ok
        return
    if what == "empty":
        files[-1].write_bytes(b"")
    else:
        for file in files[-1:] if what == "last deleted" else files:
            file.unlink()
    if what == "all deleted":
        shutil.rmtree(killed.path / "index")
    check_ignored(killed)


def entry_at(number: int) -> int:
    return 40 + 50 * 4 + number * 20


@pytest.mark.parametrize("read_only", [True, False])
def test_slots_that_a_power_cut_tore(killed: Killed, read_only: bool) -> None:
    """The slots do not matter: they are derived from the entries."""
    rng = random.Random(7)
    file = index_files(killed.path)[-1]
    data = bytearray(file.read_bytes())
    for at in range(40, 240, 4):
        data[at : at + 4] = struct.pack(">i", rng.choice([0, -1, 1, 5, 190, 199, 2**31 - 1]))
    count = point_of(killed.path).index_count
    data[entry_at(count) :] = rng.randbytes(len(data) - entry_at(count))
    file.write_bytes(data)
    assert is_believed(killed, read_only)
    with opened(killed.path, read_only=read_only) as store:
        check(store, COUNT + 7)
        assert store.verify().ok


def test_the_rest_of_the_file_is_that_of_a_store_without_a_crash(
    killed: Killed, tmp_path: Path
) -> None:
    """Entries, slots and header are those that 4.9.3 would have written."""
    with opened(killed.path) as store:
        check(store, COUNT + 7)
    found = [file.read_bytes() for file in index_files(killed.path)]
    wanted = [file.read_bytes() for file in index_files(tmp_path / "live")]
    assert found == wanted


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_another_entry(killed: Killed, which: str) -> None:
    count = point_of(killed.path).index_count
    at = {"first": 1, "middle": count // 2, "last": count - 1}[which]
    file = index_files(killed.path)[-1]
    data = bytearray(file.read_bytes())
    data[entry_at(at) + 3] ^= 1
    file.write_bytes(data)
    check_ignored(killed)


def test_an_exchanged_index_file(killed: Killed, tmp_path: Path) -> None:
    """Of another store, under the name that the file says."""
    other = kill(tmp_path / "other", tmp_path / "other-killed", count=COUNT + 20)
    shutil.copy(index_files(other.path)[-1], index_files(killed.path)[-1])
    check_ignored(killed)


def test_an_index_of_a_backup(tmp_path: Path) -> None:
    """The index is older than the rest: it lacks entries that the file names."""
    path = tmp_path / "live"
    with opened(path) as store:
        put(store, 0, 20)
        store.flush()
        shutil.copytree(path / "index", tmp_path / "backup")
        put(store, 20, 30)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        shutil.copytree(path, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "index")
    shutil.copytree(tmp_path / "backup", tmp_path / "killed" / "index")
    check_ignored(Killed(tmp_path / "killed", synced), 50)


def test_a_file_of_a_backup(tmp_path: Path) -> None:
    """`sync_point` is older than the rest: what it says is true all the same."""
    path = tmp_path / "live"
    with opened(path) as store:
        put(store, 0, 20)
        store.flush()
        synced = store.message_store.get_max_phy_offset()
        shutil.copy(path / SYNC_POINT, tmp_path / "backup")
        put(store, 20, 30)
        store.flush()
        shutil.copytree(path, tmp_path / "killed")
    shutil.copy(tmp_path / "backup", tmp_path / "killed" / SYNC_POINT)
    assert replay_from(tmp_path / "killed") == synced
    with opened(tmp_path / "killed") as store:
        check(store, 50)


def log_file_of(path: Path, phy_offset: int) -> tuple[Path, int]:
    """The file of the log with a byte, and the position there."""
    files = sorted((path / "commitlog").iterdir())
    return files[phy_offset // LOG_SIZE], phy_offset % LOG_SIZE


def test_a_log_that_was_cut(killed: Killed) -> None:
    """Below the file's offset: the file is removed before anything is put there."""
    point = point_of(killed.path)
    log_file, position = log_file_of(killed.path, point.last_phy_offset)
    with log_file.open("r+b") as file:
        file.seek(position)
        file.write(bytes(LOG_SIZE - position))
    with pytest.warns(pyrocketstore.StoreWarning, match="these messages are missing"):
        store = opened(killed.path)
    with store:
        assert SyncPointFile(Env(), str(killed.path)).read() is None
        check(store, COUNT - 1)
        put(store, COUNT - 1, 40)
        check(store, COUNT + 39)
    assert point_of(killed.path).last_phy_offset > point.last_phy_offset
    with opened(killed.path, read_only=True) as store:
        check(store, COUNT + 39)


def test_damage_before_the_end_of_the_flush(killed: Killed) -> None:
    """In the log file that is scanned: the log ends there, with or without the file."""
    point = point_of(killed.path)
    with opened(killed.path, read_only=True) as store:
        places = [m.phy_offset for q in range(3) for m in store.read("t", q)]
    at = max(place for place in places if place < point.last_phy_offset)
    log_file, position = log_file_of(killed.path, at)
    with log_file.open("r+b") as file:
        file.seek(position)
        file.write(b"damaged!")
    with pytest.warns(pyrocketstore.StoreWarning), opened(killed.path) as store:
        check(store, COUNT - 2)
        assert store.verify().ok
        assert SyncPointFile(Env(), str(killed.path)).read() is None


def test_the_whole_log_is_read_on_request(killed: Killed) -> None:
    """Without a checkpoint, as docs/durability.md says."""
    (killed.path / "checkpoint").unlink()
    assert replay_from(killed.path) == 0


def test_removed_with_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, 0, 10)
    low = store.message_store
    store.close()
    assert (tmp_path / "store" / SYNC_POINT).exists()
    low.destroy()
    assert not (tmp_path / "store" / SYNC_POINT).exists()


def test_a_queue_that_was_deleted(killed: Killed) -> None:
    """Recovery compares the records that it scans with their units, whatever was flushed."""
    shutil.rmtree(killed.path / "consumequeue" / "t" / "1")
    for read_only in (True, False):
        with opened(killed.path, read_only=read_only) as store:
            check(store, COUNT + 7)


# ---- calls that fail -----------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[pyrocketstore.Store, Env, Path]]:
    env = Env()
    store = opened(tmp_path / "store", env=env)
    put(store, 0, 10)
    store.message_store.flush()
    yield store, env, tmp_path / "store"
    with contextlib.suppress(pyrocketstore.StoreError):
        store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_rename_that_fails_is_tried_again(
    live: tuple[pyrocketstore.Store, Env, Path], code: int
) -> None:
    """A full device is not an error: the old content stays true."""
    store, env, path = live
    service = store.message_store.services.flush_queue_service
    service.do_flush(True)
    put(store, 10, 1)
    store.message_store.flush()
    fails = pytest.raises(StoreIOError) if code == errno.EIO else contextlib.nullcontext()
    with failing(env, "rename", code), fails:
        service.do_flush(True)
    assert point_of(path).index_count == 11
    service.do_flush(False)
    assert point_of(path).index_count == 12


def test_a_file_of_another_kind(killed: Killed) -> None:
    (killed.path / SYNC_POINT).unlink()
    (killed.path / SYNC_POINT).mkdir()
    with pytest.raises(StoreIOError, match=SYNC_POINT):
        opened(killed.path)


def test_limits_of_an_index_file(killed: Killed) -> None:
    file = IndexFile(Env(), str(index_files(killed.path)[-1]), 50, 200, mode="shared")
    for count in (0, -1, file.index_count + 1):
        with pytest.raises(ValueError, match="entry"):
            file.crc_of(count)
    whole = file.crc_of(file.index_count)
    assert whole == zlib.crc32(file.read(entry_at(1), 20 * (file.index_count - 1)))
    assert file.crc_of(5) == zlib.crc32(file.read(entry_at(1), 80))
    assert file.crc_of(file.index_count) == whole
    file.shutdown()
    with pytest.raises(pyrocketstore.StoreStateError):
        file.crc_of(5)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("count", [40, COUNT, 3 * COUNT])
def test_own_sizes_of_the_index_need_no_settings(tmp_path: Path, count: int, closed: bool) -> None:
    """Neither the defaults nor their ratio: each opening takes the sizes from the file."""
    sizes: dict[str, Any] = {"max_hash_slot_num": 20, "max_index_num": 400}
    with opened(tmp_path / "live", **sizes) as store:
        put(store, 0, count)
        store.flush()
        put(store, count, 3)
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / ("live" if closed else "killed")
    for number in range(count + 3, count + 6):
        with pyrocketstore.open(path, read_only=True) as store:
            check(store, number)
        with pyrocketstore.open(path) as store:
            check(store, number)
            put(store, number, 1)
            assert store.message_store.index_service.geometry == (20, 400)


@pytest.mark.parametrize("count", [1, 500])
def test_own_sizes_are_known_before_the_first_flush(tmp_path: Path, count: int) -> None:
    """`sync_point` names sizes that no file's length shows; the usual ones need no `sync_point`."""
    path = tmp_path / "killed"
    sizes: dict[str, Any] = {"max_hash_slot_num": 77, "max_index_num": 333}
    with opened(tmp_path / "live", **sizes) as store:
        put(store, 0, count)
        shutil.copytree(tmp_path / "live", path, ignore=shutil.ignore_patterns("lock"))
    assert point_of(path) == SyncPoint.of_sizes(77, 333)
    with pyrocketstore.open(path, read_only=True) as store:
        check(store, count)
        assert store.message_store.files.flushed.phy_offset == -1
    with pyrocketstore.open(path) as store:
        check(store, count)
        put(store, count, 1)
        assert store.message_store.index_service.geometry == (77, 333)
        assert store.verify().ok
    with opened(tmp_path / "usual") as store:
        put(store, 0, 1)
        assert not (tmp_path / "usual" / SYNC_POINT).exists()


def test_own_sizes_of_an_index_file_without_entries(tmp_path: Path) -> None:
    """A process was killed after it had made the first index file."""
    sizes: dict[str, Any] = {"max_hash_slot_num": 77, "max_index_num": 333}
    with opened(tmp_path, **sizes) as store:
        put(store, 0, 3)
        shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
    (file,) = index_files(tmp_path / "killed")
    file.write_bytes(bytes(file.stat().st_size))
    with pyrocketstore.open(tmp_path / "killed") as store:
        check(store, 3)


def test_own_sizes_stay_known_without_keys_and_after_damage(tmp_path: Path) -> None:
    """A flush without keys names them, and recovery keeps them where it gives up the rest."""
    sizes: dict[str, Any] = {"max_hash_slot_num": 77, "max_index_num": 333}
    path = tmp_path / "killed"
    with opened(tmp_path / "live", **sizes) as store:
        put(store, 0, 5, keyed=False)
        store.flush()
        put(store, 5, 5)
        shutil.copytree(tmp_path / "live", path, ignore=shutil.ignore_patterns("lock"))
    point = point_of(path)
    assert point.phy_offset > 0
    assert point.geometry == (77, 333)
    (path / SYNC_POINT).write_bytes(point._replace(record_crc=point.record_crc ^ 1).encode())
    with pyrocketstore.open(path) as store:
        assert point_of(path) == SyncPoint.of_sizes(77, 333)
        assert [message.body for message in store.query("t", "k7")] == [b"7"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_own_sizes_on_a_full_device(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not needed now: a full device is a warning."""
    env = Env()
    sizes: dict[str, Any] = {"max_hash_slot_num": 77, "max_index_num": 333}
    with opened(tmp_path, env=env, **sizes) as store:
        put(store, 0, 1)
    (tmp_path / SYNC_POINT).unlink()
    fails = pytest.raises(StoreIOError) if code == errno.EIO else contextlib.nullcontext()
    with failing(env, "rename", code), fails, opened(tmp_path, env=env, **sizes) as store:
        check(store, 1)
    assert ("index sizes" in caplog.text) == (code == errno.ENOSPC)
