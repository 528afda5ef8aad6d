"""Goal: an opening after a clean stop scans nothing if nobody has changed the store since. It has
the answers of one that scans, and scans after any change.
Method: close small stores that note their stop, change one thing, and compare the openings of the
store and of a copy without the note."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.index import gaps
from pyrocketstore.recovery import clean_stop
from pyrocketstore.recovery.clean_stop import CleanStop
from pyrocketstore.store import key_gaps
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.sizes import SIZES

COUNT = 150


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed store with several log files, queue files and index files."""
    monkeypatch.setattr(clean_stop, "SCANNED_MIN", 0)
    path = tmp_path / "store"
    with opened(path) as store:
        for i in range(COUNT):
            store.put(f"t{i % 3}", b"%d" % i, queue_id=i % 2, keys=f"k{i}")
    settle(path)
    return path


def opened(path: Path, **settings: Any) -> pyrocketstore.Store:
    sizes = SIZES | {"mapped_file_size_commit_log": 4096}
    return pyrocketstore.open(path, **(sizes | settings))


def settle(root: Path) -> None:
    """Make the note later than the files: the clock of files moves only every few ms."""
    later = (root / "clean_stop").stat().st_mtime_ns + 50_000_000
    os.utime(root / "clean_stop", ns=(later, later))


def last_log_file(root: Path) -> Path:
    return max((root / "commitlog").iterdir())


def scanned(root: Path, **settings: Any) -> int:
    """Return how many records a read-only opening scans."""
    with warnings.catch_warnings(), opened(root, read_only=True, **settings) as store:
        warnings.simplefilter("ignore")
        assert store.message_store.plan is not None
        return store.message_store.plan.records


def answers(store: pyrocketstore.Store) -> dict[str, Any]:
    found: dict[str, Any] = {"log": store.message_store.get_max_phy_offset()}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            bounds = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            bodies = [message.body for message in store.read(topic, queue_id)]
            found[f"{topic}/{queue_id}"] = bounds, bodies
    for i in range(COUNT + 5):
        found[f"k{i}"] = [m.body for m in store.query(f"t{i % 3}", f"k{i}")]
    return found


@pytest.mark.parametrize("read_only", [True, False])
def test_an_unchanged_store_is_not_scanned(root: Path, tmp_path: Path, read_only: bool) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    (copy / "clean_stop").unlink()
    with opened(root, read_only=read_only) as store, opened(copy, read_only=read_only) as other:
        plan, scan = store.message_store.plan, other.message_store.plan
        assert plan is not None and scan is not None
        assert plan.records == 0 < scan.records
        assert (plan.log_end, plan.last_record) == (scan.log_end, scan.last_record)
        assert (plan.replay_from, plan.broken, plan.cut_queues) == (None, [], False)
        assert answers(store) == answers(other)
        if not read_only:
            for each in (store, other):
                for i in range(COUNT, COUNT + 5):
                    each.put(f"t{i % 3}", b"%d" % i, queue_id=i % 2, keys=f"k{i}")
                each.wait_dispatched()
            assert answers(store) == answers(other)
            assert store.verify().ok
    assert (root / "clean_stop").exists()


def test_a_copy_with_its_times_is_not_scanned(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    assert scanned(copy) == 0
    for path in (copy / "commitlog").iterdir():
        os.utime(path)
    assert scanned(copy) > 0


def test_a_reader_follows_an_owner_from_there(root: Path) -> None:
    with opened(root, read_only=True) as reader, opened(root) as owner:
        owner.put("t0", b"new", queue_id=0, keys="new")
        owner.flush()
        assert reader.refresh() > 0
        assert answers(reader) == answers(owner)
        assert len(reader.query("t0", "new")) == 1


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def write_behind_the_end(root: Path) -> None:
    """As another engine on a file system that does not note the time of a write by a mapping."""
    stop = CleanStop.decode((root / "clean_stop").read_bytes())
    assert stop is not None
    path = last_log_file(root)
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(stop.log_end - int(path.name))
        file.write(b"\x00\x00\x00\x64")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def add_log_file(root: Path) -> None:
    path = last_log_file(root)
    size = path.stat().st_size
    (root / "commitlog" / f"{int(path.name) + size:020d}").write_bytes(bytes(size))


def cut_a_queue(root: Path) -> None:
    path = max((root / "consumequeue/t0/0").iterdir())
    data = path.read_bytes()
    units = len(data.rstrip(b"\0")) // 20
    path.write_bytes(data[: units * 20 - 20].ljust(len(data), b"\0"))


def make_note_old(root: Path) -> None:
    time = last_log_file(root).stat().st_mtime_ns
    os.utime(root / "clean_stop", ns=(time, time))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a log file": lambda root: rewrite(last_log_file(root)),
    "a time of a log file": lambda root: os.utime(last_log_file(root)),
    "another log file": add_log_file,
    "an append without a time": write_behind_the_end,
    "lock": lambda root: (root / "lock").write_text("lock"),
    "a queue without its last unit": cut_a_queue,
    "a queue removed": lambda root: shutil.rmtree(root / "consumequeue/t1/1"),
    "all queues removed": lambda root: shutil.rmtree(root / "consumequeue"),
    "the index removed": lambda root: shutil.rmtree(root / "index"),
    "abort": lambda root: (root / "abort").touch(),
    "the note older than a log file": make_note_old,
    "the note cut": lambda root: os.truncate(root / "clean_stop", 50),
    "the note empty": lambda root: os.truncate(root / "clean_stop", 0),
    "the note removed": lambda root: (root / "clean_stop").unlink(),
    "the note zeros": lambda root: (root / "clean_stop").write_bytes(bytes(68)),
}


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("what", CHANGES)
def test_after_a_change_the_log_is_scanned(root: Path, what: str) -> None:
    with opened(root, read_only=True) as store:
        before = answers(store)
    CHANGES[what](root)
    assert scanned(root) > 0
    with opened(root) as store:
        assert answers(store) == before
        assert store.put("t0", b"next", queue_id=0).queue_offset == before["t0/0"][0][1]
        assert store.verify().ok


def test_each_flipped_byte_of_the_note(root: Path) -> None:
    path = root / "clean_stop"
    data, time = path.read_bytes(), path.stat().st_mtime_ns
    assert CleanStop.decode(data) is not None
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert CleanStop.decode(bytes(changed)) is None
        if at % 9 == 0:
            path.write_bytes(changed)
            os.utime(path, ns=(time, time))
            assert scanned(root) > 0, at
    assert CleanStop.decode(data + b"\0") is None


@pytest.mark.parametrize("last_record", [-1, 0, 5, 2**40, 2**62, 2**63 - 1])
def test_a_note_that_names_no_last_record(root: Path, last_record: int) -> None:
    """Its checksum is right."""
    with opened(root, read_only=True) as store:
        before = answers(store)
    stop = CleanStop.decode((root / "clean_stop").read_bytes())
    assert stop is not None and stop.last_record > 5
    (root / "clean_stop").write_bytes(stop._replace(last_record=last_record).encode())
    settle(root)
    assert scanned(root) > 0
    for read_only in (True, False):
        with opened(root, read_only=read_only) as store:
            assert answers(store) == before


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("what", ["file", "record"])
def test_a_lost_last_record_without_a_later_time(root: Path, what: str) -> None:
    stop = CleanStop.decode((root / "clean_stop").read_bytes())
    assert stop is not None
    path = last_log_file(root)
    times, begin = path.stat(), 0 if what == "file" else stop.last_record - int(path.name)
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(stop.log_end - int(path.name) - begin))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scanned(root) > 0
    with opened(root) as store:
        assert store.message_store.get_max_phy_offset() == int(path.name) + begin
        assert store.verify().ok


def flip_body(root: Path, body: bytes) -> None:
    """Damage a record of the log without a later time, as a device may."""
    for path in (root / "commitlog").iterdir():
        data, times = bytearray(path.read_bytes()), path.stat()
        at = data.find(len(body).to_bytes(4, "big") + body)
        if at >= 0:
            data[at + 4] ^= 64
            path.write_bytes(data)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            return
    raise AssertionError(body)


def kill(root: Path) -> None:
    """Turn a closed store into one whose owner was killed."""
    (root / "abort").touch()


def touch(root: Path) -> None:
    """As a copy that does not keep the times."""
    for path in (root / "commitlog").iterdir():
        os.utime(path)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("end", [kill, touch])
def test_damage_that_was_not_scanned_ends_no_later_scan(
    root: Path, end: Callable[[Path], None], runs: int
) -> None:
    """The messages that were put after an opening has believed the note stay."""
    body = b"%d" % (COUNT - 20)
    flip_body(root, body)
    put = []
    for run in range(runs):
        assert scanned(root) == 0
        with opened(root) as store:
            for i in range(5):
                put.append((store.put("t1", b"new %d" % i, queue_id=0).phy_offset, b"new %d" % i))
            assert (root / "clean_stop").exists()
            if run + 1 == runs and end is kill:
                store.flush()
                root = Path(shutil.copytree(root, root.parent / "killed"))
        if run + 1 < runs:
            settle(root)
    if end is touch:
        settle(root)
        touch(root)
    assert scanned(root) > 0
    for _ in range(3):
        with pytest.warns(pyrocketstore.StoreWarning, match="no valid record in bytes"):
            store = opened(root)
        with store:
            for phy_offset, new in put:
                found = store.get(phy_offset)
                assert found is not None and found.body == new
            topic = f"t{(COUNT - 20) % 3}"
            with pytest.raises(pyrocketstore.StoreCorruptionError):
                list(store.read(topic, check_crc=True))
            reader = store.read(topic, on_corrupt="skip", check_crc=True)
            assert body not in [m.body for m in reader] and reader.skipped.count == 1
            assert not store.verify().ok
        touch(root)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_damage_that_no_opening_has_passed_ends_the_log(root: Path) -> None:
    """The first opening scans: nothing was put behind the damage."""
    flip_body(root, b"%d" % (COUNT - 20))
    touch(root)
    with opened(root) as store:
        assert store.message_store.plan is not None and store.message_store.plan.broken
        assert not (root / "clean_stop").exists()
        assert store.verify().ok


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("is_touched", [False, True])
def test_damage_before_the_scan_of_a_killed_store_ends_no_later_scan(
    tmp_path: Path, is_touched: bool
) -> None:
    """After a kill the scan begins at the checkpoint, and after a clean stop at the third-last
    file: in a store of small files too, the messages behind damage between them stay."""
    root = tmp_path / "store"
    with opened(root) as store:
        for i in range(COUNT):
            store.put("t", b"old %d " % i + bytes(60))
        store.message_store.flush_all()
        last = store.put("t", b"last")
        store.wait_dispatched()
        store.flush()
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
    with (killed / "checkpoint").open("r+b") as file:  # as if all but the end were older
        file.write(struct.pack(">3q", *[last.store_timestamp + 3000] * 3))
    with opened(killed, read_only=True) as store:
        assert store.message_store.plan is not None
        scan_from = store.message_store.plan.scan_from
    bodies = [b"old %d " % i + bytes(60) for i in range(COUNT)]
    flip_body(killed, [body for body in bodies if place(killed, body) < scan_from][-1])
    for _ in range(3):
        with opened(killed) as store:
            found = store.get(last.phy_offset)
            assert found is not None and found.body == b"last"
        assert not (killed / ".broken").exists()
        if is_touched:
            touch(killed)


def test_damage_that_a_queue_lets_an_opening_pass_ends_no_later_scan(tmp_path: Path) -> None:
    """Beside a damaged checkpoint the log does not end at old damage: nor does it at the next
    opening, after messages were put behind it."""
    root = tmp_path / "store"
    with opened(root) as store:
        for i in range(COUNT):
            store.put("t", b"old %d " % i + bytes(60))
        store.wait_dispatched()
        store.flush()
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
    flip_body(killed, b"old 5 " + bytes(60))
    with (killed / "checkpoint").open("r+b") as file:
        file.write(b"\x7f")  # a time after the year 2286
    with pytest.warns(pyrocketstore.StoreWarning, match="no valid record in bytes"):
        store = opened(killed)
    with store:
        new = store.put("t", b"new")
    with warnings.catch_warnings(), opened(killed) as store:
        warnings.simplefilter("ignore")
        found = store.get(new.phy_offset)
        assert found is not None and found.body == b"new"
        assert store.max_offset("t", 0) == COUNT + 1
    assert not (killed / ".broken").exists()


def place(root: Path, body: bytes) -> int:
    """Return the physical offset of a body in the log."""
    for path in sorted((root / "commitlog").iterdir()):
        at = path.read_bytes().find(body)
        if at >= 0:
            return int(path.name) + at
    raise AssertionError(body)


def test_a_scan_without_damage_forgets_the_part_before(root: Path) -> None:
    with opened(root) as store:
        store.put("t0", b"new")
    stop = CleanStop.decode((root / "clean_stop").read_bytes())
    assert stop is not None and 0 < stop.unscanned_to < stop.log_end
    touch(root)
    with opened(root) as store:
        assert not (root / "clean_stop").exists()
    stop = CleanStop.decode((root / "clean_stop").read_bytes())
    assert stop is not None and stop.unscanned_to == -1


def test_keys_that_were_left_out_are_put(root: Path) -> None:
    with opened(root, message_index_enable=False) as store:
        store.put("t0", b"late", keys="late")
    settle(root)
    assert scanned(root, message_index_enable=False) == 0
    assert scanned(root) > 0
    with opened(root) as store:
        assert [message.body for message in store.query("t0", "late")] == [b"late"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_without_keys_is_not_searched_for_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """The index of a store that nobody has changed since it was closed has all keys."""
    monkeypatch.setattr(clean_stop, "SCANNED_MIN", 0)
    with opened(tmp_path) as store:
        for i in range(COUNT):
            store.put("t", b"%d" % i + bytes(60))
    settle(tmp_path)
    searched: list[object] = []

    def missing(*where: object) -> Iterator[None]:
        searched.append(where)
        yield from ()

    monkeypatch.setattr(gaps, "missing_keys", missing)
    monkeypatch.setattr(key_gaps, "missing_keys", missing)
    with opened(tmp_path, read_only=read_only) as store:
        assert store.query("t", "k") == []
    assert not searched
    (tmp_path / "clean_stop").unlink()
    with opened(tmp_path, read_only=read_only) as store:
        assert store.query("t", "k") == []
    assert searched


def test_a_part_that_was_not_searched_for_keys_is_searched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_stop, "SCANNED_MIN", 0)
    with opened(tmp_path, message_index_enable=False) as store:
        for i in range(COUNT):
            store.put("t", b"%d" % i + bytes(60), keys=None if i < COUNT // 2 else f"k{i}")
    for _ in range(2):
        with opened(tmp_path, max_key_search_bytes=4096):
            pass
        settle(tmp_path)
    with opened(tmp_path) as store:
        for i in range(COUNT // 2, COUNT):
            assert [message.queue_offset for message in store.query("t", f"k{i}")] == [i]


@pytest.mark.parametrize("ending", ["kill", "close"])
def test_a_search_that_ended_early_is_remembered_over_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A flush after it makes a sync point behind keys that the index lacks."""
    monkeypatch.setattr(clean_stop, "SCANNED_MIN", 0)
    root = tmp_path / "store"
    with opened(root) as store:
        for _ in range(50):
            store.put("t", bytes(60))
    with opened(root, message_index_enable=False) as store:
        store.put("t", b"left out", keys="k")
    settle(root)
    with opened(root, max_key_search_bytes=100) as store:
        store.put("t", b"")
        store.flush()
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
    root = killed if ending == "kill" else root
    with opened(root, max_key_search_bytes=100) as store:
        for _ in range(50):
            store.put("t", bytes(60))
    settle(root)
    for read_only in (True, False, True):
        with opened(root, read_only=read_only) as store:
            assert [message.body for message in store.query("t", "k")] == [b"left out"]


def test_an_owner_replaces_the_note_at_its_end(root: Path) -> None:
    first = (root / "clean_stop").read_bytes()
    with opened(root) as store:
        assert (root / "clean_stop").read_bytes() == first
        store.put("t0", b"x")
        copy = Path(shutil.copytree(root, root.parent / "copy"))
        assert scanned(copy) > 0  # its owner has not stopped
    assert (root / "clean_stop").read_bytes() != first


def test_a_note_that_cannot_be_written(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = Env()
    store = opened(root, env=env)

    def rename(original: Callable[..., int], source: bytes, target: bytes) -> int:
        return -errno.ENOSPC if target.endswith(b"clean_stop") else original(source, target)

    with broken(env, "rename", rename):
        store.close()
    assert "the next opening scans the log" in caplog.text
    assert not (root / "abort").exists() and not (root / "clean_stop").exists()
    assert scanned(root) > 0


def test_damage_that_moves_no_time_is_found_by_reads(root: Path) -> None:
    """As in the files that no opening scans."""
    path = last_log_file(root)
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # the magic code of its first record
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scanned(root) == 0
    with opened(root, read_only=True) as store:
        assert not store.verify().ok
        with pytest.raises(StoreCorruptionError):
            for topic in store.topics():
                for queue_id in store.queues(topic):
                    list(store.read(topic, queue_id))


def test_only_a_store_that_saves_a_scan_has_the_note(tmp_path: Path) -> None:
    for count, has_note in ((3, False), (5, True)):
        root = tmp_path / str(count)
        with pyrocketstore.open(root) as store:
            for _ in range(count):
                store.put("t", bytes(1 << 20))
        assert (root / "clean_stop").exists() == has_note
        if has_note:
            settle(root)
            assert scanned_usual(root) == 0


def scanned_usual(root: Path) -> int:
    with pyrocketstore.open(root, read_only=True) as store:
        assert store.message_store.plan is not None
        return store.message_store.plan.records
