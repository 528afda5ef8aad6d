"""Goal: after any exit the log ends where 4.9.3 ends it, no earlier record is lost, and later bytes
are kept.
Method: cut, flip and remove parts of small stores, open them, and compare with the puts."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import time
import warnings
import zlib
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreWarning
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.system.env import Env
from support import oracle, sizes
from support.broken_env import watched
from support.damaged_stores import halt

SIZES = {
    "mapped_file_size_commit_log": 16384,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def body_of(i: int) -> bytes:
    return f"body {i} ".encode() * (1 + i % 7)


def fill(path: Path, count: int, first: int = 0, **settings: object) -> None:
    with pyrocketstore.open(path, **{**SIZES, **settings}) as store:
        for i in range(first, first + count):
            store.put("orders", body_of(i), queue_id=i % 3, tags=f"T{i % 2}", keys=f"k{i}")


def log_bytes(path: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted((path / "commitlog").iterdir()))


def content(store: pyrocketstore.Store) -> dict[int, bytes]:
    """Each message's number and body, found by queue; checked to be found by key too."""
    found = {}
    for queue_id in store.queues("orders"):
        offsets = []
        for message in store.read("orders", queue_id):
            number = int(message.stored_body.split()[1])
            found[number] = message.stored_body
            offsets.append(message.queue_offset)
            if message.keys is not None:
                hits = store.query("orders", message.keys)
                assert [hit.stored_body for hit in hits] == [message.stored_body]
        assert offsets == list(range(len(offsets)))
    return found


def expect(count: int) -> dict[int, bytes]:
    return {i: body_of(i) for i in range(count)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "store"
    fill(path, 300)
    assert len(list((path / "commitlog").iterdir())) > 2
    return path


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target / "store"))


def test_clean_reopen_finds_everything(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    with pyrocketstore.open(path, **SIZES) as store:
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean
        assert content(store) == expect(300)
        assert store.put("orders", b"next", queue_id=0).queue_offset == 100


@pytest.mark.parametrize("read_only", [False, True])
def test_killed_store_finds_everything(filled: Path, tmp_path: Path, read_only: bool) -> None:
    path = copy(filled, tmp_path)
    halt(path)
    for lost in ("consumequeue/orders/1", "index"):
        shutil.rmtree(path / lost)
    (path / "consumequeue/orders/2" / "00000000000000000800").unlink()
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        assert content(store) == expect(300)


def test_removed_queue_is_rebuilt_after_a_clean_exit(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    shutil.rmtree(path / "consumequeue/orders/1")
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(300)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
def test_all_queues_are_rebuilt_from_the_whole_log(
    tmp_path: Path, read_only: bool, clean: bool
) -> None:
    """Also one that the files which recovery looks at do not name, where theirs begin at 0."""
    path = tmp_path / "store"
    number = 0
    with pyrocketstore.open(path, **SIZES) as store:
        while len(list((path / "commitlog").iterdir())) < 5:
            store.put(f"topic{number}", bytes(1500))
            number += 1
    shutil.rmtree(path / "consumequeue")
    if not clean:
        (path / "abort").touch()
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        assert {topic: store.max_offset(topic, 0) for topic in store.topics()} == {
            f"topic{i}": 1 for i in range(number)
        }


def records_of(path: Path) -> list[tuple[int, int]]:
    """(position, size) of each record of the log's only file."""
    found, _, _ = oracle.scan_log((path / "commitlog" / ("0" * 20)).read_bytes())
    return [(at, len(oracle.encode_record(record))) for at, record in found]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "store"
    fill(path, 5)
    halt(path)
    return path


@pytest.mark.slow
def test_cut_at_every_byte_of_the_tail(small: Path, tmp_path: Path) -> None:
    path = copy(small, tmp_path)
    log = path / "commitlog" / ("0" * 20)
    whole = log.read_bytes()
    at, size = records_of(path)[-1]
    for cut in range(size):
        # From `cut` on the record never reached the disk: the file's room reads as zeros.
        log.write_bytes(whole[: at + cut] + bytes(len(whole) - at - cut))
        with pyrocketstore.open(path, read_only=True, **SIZES) as store:
            found = content(store)
            if store.message_store.get_max_phy_offset() > at:
                # 4.9.3 takes a record whose properties alone are torn: the CRC covers the body.
                assert cut > size - 25
                found = {number: body for number, body in found.items() if number != 4}
            assert {n: found[n] for n in range(4)} == expect(4), f"cut at byte {cut}"


def test_flip_of_every_byte_of_the_tail(small: Path, tmp_path: Path) -> None:
    path = copy(small, tmp_path)
    log = path / "commitlog" / ("0" * 20)
    whole = bytearray(log.read_bytes())
    at, size = records_of(path)[-1]
    for i in range(at, at + size):
        whole[i] ^= 0x41
        log.write_bytes(whole)
        whole[i] ^= 0x41
        with pyrocketstore.open(path, read_only=True, **SIZES) as store:
            assert store.message_store.get_max_phy_offset() in (at, at + size), f"byte {i - at}"
            # A damaged queue id or offset makes a record another queue's.
            readers = [store.read("orders", q, on_corrupt="skip") for q in (0, 1, 2)]
            kept = [m.stored_body for reader in readers for m in reader]
            assert {body_of(n) for n in range(4)} <= set(kept), f"byte {i - at}"


@pytest.mark.parametrize("value", [-1, 0, 2**31 - 1, 1 << 20, -(2**31)])
@pytest.mark.parametrize("field", ["totalSize", "bodyLength", "topicLength", "propertiesLength"])
def test_impossible_lengths(small: Path, tmp_path: Path, field: str, value: int) -> None:
    path = copy(small, tmp_path)
    log = path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    at, size = records_of(path)[-1]
    record = data[at : at + size]
    body_size = int.from_bytes(record[84:88], "big")
    places = {
        "totalSize": (0, 4),
        "bodyLength": (84, 4),
        "topicLength": (88 + body_size, 1),
        "propertiesLength": (89 + body_size + 6, 2),
    }
    where, width = places[field]
    stored = value & ((1 << (8 * width)) - 1)
    data[at + where : at + where + width] = stored.to_bytes(width, "big")
    log.write_bytes(data)
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert store.message_store.get_max_phy_offset() == at
        assert content(store) == expect(4)
    with pytest.warns(StoreWarning, match="these messages are missing"):
        store = pyrocketstore.open(path, **SIZES)
    with store:
        assert content(store) == expect(4)
        store.put("orders", body_of(4), queue_id=1, keys="k4")
        assert content(store) == expect(5)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("size", [1, 2, 0, -1, 2**31 - 1])
def test_a_damaged_size_changes_no_begin_of_the_scan(tmp_path: Path, size: int) -> None:
    """A size of 1 is also what an entry of a DLedger log begins with."""
    options = sizes.SIZES | {"mapped_file_size_commit_log": 16384}
    with pyrocketstore.open(tmp_path, **options) as store:
        for _ in range(100):
            store.put("t", bytes(300))
    (tmp_path / "abort").touch()
    durable = (time.time_ns() // 1_000_000 + 60_000).to_bytes(8, "big")
    (tmp_path / "checkpoint").write_bytes((durable * 3).ljust(4096, b"\0"))
    last = max((tmp_path / "commitlog").iterdir())
    with open(last, "r+b") as file:
        file.write((size % 2**32).to_bytes(4, "big"))
    with pyrocketstore.open(tmp_path, read_only=True, **options) as store:
        assert store.message_store.plan is not None
        assert store.message_store.plan.scan_from == int(last.name) > 0


def test_valid_records_behind_damage_are_kept(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    halt(path)
    first = path / "commitlog" / ("0" * 20)
    data = bytearray(first.read_bytes())
    at, _ = records_of(path)[10]
    data[at + 90] ^= 1  # the body: its CRC fails
    first.write_bytes(data)
    whole = log_bytes(path)
    with (
        pytest.warns(StoreWarning, match=rf"{'0' * 20}: the log ends before byte {at} .*CRC"),
        pyrocketstore.open(path, **SIZES) as store,
    ):
        assert content(store) == expect(10)
        store.put("orders", body_of(10), queue_id=1, keys="k10")
    (kept,) = (path / ".broken").iterdir()
    pieces = {int(p.name): p.read_bytes() for p in kept.iterdir()}
    assert min(pieces) == at
    for start, piece in pieces.items():
        assert piece == whole[start : start + len(piece)]
    assert sum(map(len, pieces.values())) == 3 * 16384 - at or len(pieces) >= 2
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(11)


def test_read_only_reports_damage_and_keeps_the_files(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    halt(path)
    first = path / "commitlog" / ("0" * 20)
    data = bytearray(first.read_bytes())
    at, _ = records_of(path)[10]
    data[at + 90] ^= 1
    first.write_bytes(data)
    before = log_bytes(path)
    with (
        pytest.warns(StoreWarning, match="the log ends before"),
        pyrocketstore.open(path, read_only=True, **SIZES) as store,
    ):
        assert content(store) == expect(10)
    assert log_bytes(path) == before
    assert not (path / ".broken").exists()


def test_two_crashes_in_a_row_change_nothing_more(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    for _ in range(2):
        halt(path)
        with pyrocketstore.open(path, **SIZES) as store:
            assert content(store) == expect(300)


def test_queue_offsets_are_consecutive_after_two_crashes(tmp_path: Path) -> None:
    """Each crash takes the log's tail and leaves the units of it; puts follow each recovery."""
    path = tmp_path / "store"
    fill(path, 60)
    kept = 60
    for lost in (25, 8):
        halt(path)
        kept -= lost
        log = path / "commitlog" / ("0" * 20)
        at, _ = records_of(path)[kept]
        log.write_bytes(log.read_bytes()[:at].ljust(SIZES["mapped_file_size_commit_log"], b"\0"))
        with pytest.warns(StoreWarning, match="these messages are missing"):
            store = pyrocketstore.open(path, **SIZES)
        with store:
            assert store.message_store.plan is not None
            assert store.message_store.plan.cut_queues
            assert content(store) == expect(kept)
            ends = [store.max_offset("orders", queue_id) for queue_id in range(3)]
            for number in range(kept, kept + 12):
                queue_id = number % 3
                result = store.put(
                    "orders", body_of(number), queue_id=queue_id, tags="T0", keys=f"k{number}"
                )
                assert result.queue_offset == ends[queue_id], number
                ends[queue_id] += 1
            kept += 12
            assert content(store) == expect(kept)
            report = store.verify()
            assert report.ok, report.problems[:3]
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(kept)


def test_stale_records_behind_the_end_do_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, 40)
    halt(path)
    log = path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    at, _ = records_of(path)[20]
    data[at + 4] ^= 1  # the magic: the log ends here
    log.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with pyrocketstore.open(path, **SIZES) as store:
            assert content(store) == expect(20)
            # A record of the very length of the one that stood here.
            store.put("orders", body_of(20), queue_id=2, tags="T0", keys="k20")
    halt(path)
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(21)


def test_zero_length_last_file_is_dropped(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    (path / "commitlog" / f"{1 << 20:020d}").touch()
    (path / "consumequeue/orders/0" / f"{1 << 20:020d}").touch()
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(300)


def test_stray_files_are_left_alone(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    (path / "commitlog" / ".nfs0001").write_bytes(b"x")
    (path / "commitlog" / "notes.tmp").write_bytes(b"x")
    (path / "consumequeue" / "readme").write_bytes(b"x")
    (path / "consumequeue" / "orders" / "lost+found").mkdir()
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(300)
    assert (path / "commitlog" / ".nfs0001").read_bytes() == b"x"


def test_a_middle_file_without_length_is_named(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    file = path / "commitlog" / f"{16384:020d}"
    file.write_bytes(b"")
    with pytest.raises(StoreCorruptionError, match=f"{16384:020d}.*0 bytes"):
        pyrocketstore.open(path, **SIZES)


def test_empty_log_sets_the_queues_aside(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    shutil.rmtree(path / "commitlog")
    with pytest.warns(StoreWarning, match="the log has no file.*these messages are missing"):
        store = pyrocketstore.open(path, **SIZES)
    with store:
        assert store.topics() == [] or store.max_offset("orders", 0) == 0
        assert store.put("orders", b"first").queue_offset == 0
    (kept,) = (path / ".broken").iterdir()
    assert (kept / "consumequeue/orders/0").is_dir()


def test_a_store_of_5x_is_refused(filled: Path, tmp_path: Path) -> None:
    path = copy(filled, tmp_path)
    file = path / "commitlog" / ("0" * 20)
    data = bytearray(file.read_bytes())
    data[4:8] = bytes.fromhex("DAA320AB")
    file.write_bytes(data)
    with pytest.raises(StoreCorruptionError, match=r"5\.x"):
        pyrocketstore.open(path, **SIZES)
    assert file.read_bytes() == data


def test_topic_that_climbs_out_makes_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store"
    fill(path, 3)
    log = path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    at, size = records_of(path)[-1]
    record = oracle.decode_record(bytes(data[at : at + size]))
    evil = oracle.encode_record(
        dataclasses.replace(record, topic=b"../../../evil", phy_offset=at, total_size=None)
    )
    data[at : at + len(evil)] = evil
    log.write_bytes(data)
    halt(path)
    with pyrocketstore.open(path, **SIZES) as store:
        assert store.message_store.get_max_phy_offset() == at + len(evil)
        assert "orders" in store.topics()
        assert all(".." not in topic for topic in store.topics())
        store.put("orders", b"continues")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("count", [38, 39, 40, 41])
def test_the_end_of_a_full_index_file_is_not_indexed_twice(tmp_path: Path, count: int) -> None:
    """The record that fills an index file is met again when recovery continues in the next one."""
    sizes = {**SIZES, "max_hash_slot_num": 7, "max_index_num": 20}
    path = tmp_path / "store"
    with pyrocketstore.open(path, **sizes) as store:
        for i in range(count):
            store.put("orders", body_of(i), keys=[f"k{i}", f"x{i}"])
        store.wait_dispatched()
        time.sleep(0.05)  # the full files' times reach the checkpoint by a thread of its own
    (path / "abort").touch()
    with pyrocketstore.open(path, **sizes) as store:
        files = store.message_store.index_service.files
        assert sum(max(0, file.index_count - 1) for file in files) == 2 * count
        for i in range(count):
            for key in (f"k{i}", f"x{i}"):
                hits = store.message_store.index_service.query_offset("orders", key, 64, 0, 1 << 62)
                assert len(hits.phy_offsets) == len(set(hits.phy_offsets)) >= 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_missing_queue_file_before_a_page_of_zeros(filled: Path, tmp_path: Path, killed: bool):
    """Zeros behind the gap do not say that the log has lost what was in it."""
    path = tmp_path / "store"
    shutil.copytree(filled, path)
    if killed:
        halt(path)
    files = sorted((path / "consumequeue" / "orders" / "0").iterdir())
    files[1].unlink()
    files[2].write_bytes(bytes(400))
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert content(store) == expect(300)
    with pyrocketstore.open(path, **SIZES) as store:
        assert content(store) == expect(300)
        assert store.verify().ok


def set_queue_offset(path: Path, phy_offset: int, queue_offset: int) -> None:
    """Damage a record where no sum sees it."""
    size = SIZES["mapped_file_size_commit_log"]
    with (path / "commitlog" / f"{phy_offset - phy_offset % size:020d}").open("r+b") as file:
        file.seek(phy_offset % size + 20)
        file.write(queue_offset.to_bytes(8, "big", signed=True))


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("queue_offset", [-3, -(2**63)])
def test_a_negative_queue_offset_hides_no_queue(
    filled: Path, tmp_path: Path, queue_offset: int, read_only: bool
) -> None:
    """The first record of a queue that the scan sees does not say that units are missing."""
    path = copy(filled, tmp_path)
    set_queue_offset(path, 0, queue_offset)
    halt(path)
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        reader = store.read("orders", 0, on_corrupt="skip")
        assert [m.stored_body for m in reader] == [body_of(i) for i in range(3, 300, 3)]
        # That record says to be another message.
        assert [(part.start, part.stop) for part in reader.skipped.ranges] == [(0, 1)]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("queue_offset", [0, 1, -1])
def test_a_queue_that_names_the_record_has_its_first_file(
    filled: Path, tmp_path: Path, queue_offset: int, read_only: bool
) -> None:
    """The log's first file has expired, and the queue's with it; of the first record that is left
    the queueOffset is damaged."""
    path = copy(filled, tmp_path)
    size = SIZES["mapped_file_size_commit_log"]
    (path / "commitlog" / f"{0:020d}").unlink()
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        left = [(m.phy_offset, m.stored_body) for m in store.read("orders", 0)]
        low = store.min_offset("orders", 0)
    assert low >= 20
    assert left[0][0] >= size
    for number in range(low // 20):
        (path / "consumequeue" / "orders" / "0" / f"{number * 400:020d}").unlink()
    set_queue_offset(path, left[0][0], queue_offset)
    halt(path)
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        reader = store.read("orders", 0, on_corrupt="skip")
        assert [(m.phy_offset, m.stored_body) for m in reader] == left[1:]
        assert [(part.start, part.stop) for part in reader.skipped.ranges] == [(low, low + 1)]
        assert store.min_offset("orders", 0) == low


@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_file_that_was_cut_is_built_again(tmp_path: Path, which: int) -> None:
    """Goal: after a clean exit too, a damaged index file is not a reason to refuse the store."""
    sizes = {**SIZES, "max_hash_slot_num": 20, "max_index_num": 41}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        for i in range(100):
            store.put("t", b"%d" % i, keys=f"k{i}")
    path = sorted((tmp_path / "index").iterdir())[which]
    os.truncate(path, 500)
    cut = path.read_bytes()
    with pyrocketstore.open(tmp_path, read_only=True, **sizes) as store:
        assert [len(store.query("t", f"k{i}")) for i in range(100)] == [1] * 100
        (problem,) = store.verify().problems
        assert (problem.path, problem.position) == (str(path), 500)
    assert path.read_bytes() == cut
    with pyrocketstore.open(tmp_path, **sizes) as store:
        assert [m.body for i in range(100) for m in store.query("t", f"k{i}")] == [
            b"%d" % i for i in range(100)
        ]
        assert store.verify().ok
        store.put("t", b"more", keys="more")
        assert len(store.query("t", "more")) == 1
    (kept,) = (tmp_path / ".broken").glob(f"*/index/{path.name}")
    assert kept.read_bytes() == cut
    with pyrocketstore.open(tmp_path, read_only=True, **sizes) as store:
        assert store.verify().ok


def index_entries(home: Path) -> int:
    """How many entries there are, as the headers count them."""
    counts = [path.read_bytes()[36:40] for path in (home / "index").iterdir()]
    return sum(max(0, int.from_bytes(count, "big") - 1) for count in counts)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("which", [-1, -2])
def test_an_index_file_without_a_header_is_built_again(
    tmp_path: Path, which: int, replays: bool
) -> None:
    """Its keys are found, and none twice: also where the log is cut before the file behind it, and
    where a lost queue file has the log dispatched again from its begin."""
    sizes = {**SIZES, "max_hash_slot_num": 20, "max_index_num": 41}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        places = [store.put("t", b"%d" % i, keys=f"k{i}").phy_offset for i in range(100)]
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) == 3
    with files[which].open("r+b") as file:
        file.write(bytes(40 + 4 * 20))
    left = 100 if which == -1 else 90
    if left < 100:
        size = sizes["mapped_file_size_commit_log"]
        log = tmp_path / "commitlog" / f"{places[left] - places[left] % size:020d}"
        assert log == max((tmp_path / "commitlog").iterdir())
        with log.open("r+b") as file:
            file.seek(places[left] % size)
            file.write(bytes(size - places[left] % size))
    if replays:
        min((tmp_path / "consumequeue" / "t" / "0").iterdir()).unlink()
    for read_only in (True, False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)  # of the end that the log has lost
            store = pyrocketstore.open(tmp_path, read_only=read_only, **sizes)
        with store:
            hits = [[m.body for m in store.query("t", f"k{i}")] for i in range(100)]
            assert hits == [[b"%d" % i] for i in range(left)] + [[]] * (100 - left)
            if not read_only:
                assert store.verify().ok
    assert index_entries(tmp_path) == left


def test_an_index_file_that_holds_nothing_makes_no_key_twice(tmp_path: Path) -> None:
    """The index of a crash ends with a file of its own, which stays empty without new keys. Where a
    lost queue file has the log dispatched again, the files before it still count."""
    sizes = {**SIZES, "max_hash_slot_num": 20, "max_index_num": 41}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        for i in range(80):
            store.put("t", b"%d" % i, keys=f"k{i}")
    last = max((tmp_path / "index").iterdir())
    last.with_name(f"{int(last.name) + 1}").write_bytes(bytes(last.stat().st_size))
    min((tmp_path / "consumequeue" / "t" / "0").iterdir()).unlink()
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path, read_only=read_only, **sizes) as store:
            hits = [[m.body for m in store.query("t", f"k{i}")] for i in range(80)]
            assert hits == [[b"%d" % i] for i in range(80)]
            if not read_only:
                assert store.verify().ok
    assert index_entries(tmp_path) == 80


def test_a_unit_whose_message_is_lost_does_not_come_back(tmp_path: Path) -> None:
    """A unit in two sectors, of a record that a power cut took: recovery gives the unit
    up, and nothing puts it again."""
    sizes = {**SIZES, "mapped_file_size_consume_queue": 2000}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        for i in range(25):
            store.put("orders", body_of(i), keys=f"k{i}")
        lost = store.put("orders", b"lost").phy_offset  # its unit: bytes 500 to 520
    halt(tmp_path)
    size = sizes["mapped_file_size_commit_log"]
    path = tmp_path / "commitlog" / f"{lost - lost % size:020d}"
    with path.open("r+b") as file:
        file.seek(lost % size)
        file.write(bytes(size - lost % size))
    with pytest.warns(StoreWarning, match="these messages are missing"):
        store = pyrocketstore.open(tmp_path, **sizes)
    with store:
        store.put("others", b"x" * 200)  # over the place that the unit names
    with pyrocketstore.open(tmp_path, **sizes) as store:
        assert sorted(content(store)) == list(range(25))
        assert store.max_offset("orders", 0) == 25


def test_a_power_cut_behind_the_cut_of_the_log_uses_up_no_queue_offset(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues are cut first: their units may name places several files behind the log's end."""
    path, crashed = copy(filled, tmp_path), tmp_path / "crashed"
    halt(path)
    first = path / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[5000] ^= 0xFF
    first.write_bytes(data)
    cut = MappedFileQueue.truncate_dirty_files

    def cut_and_copy(queue: MappedFileQueue, offset: int) -> None:
        cut(queue, offset)
        if queue.store_path.endswith("commitlog") and not crashed.exists():
            shutil.copytree(path, crashed)

    monkeypatch.setattr(MappedFileQueue, "truncate_dirty_files", cut_and_copy)
    with (
        pytest.warns(StoreWarning, match="the log ends before"),
        pyrocketstore.open(path, **SIZES) as store,
    ):
        count = len(content(store))
    with (
        pytest.warns(StoreWarning, match="the log ends before"),  # nobody has got it yet
        pyrocketstore.open(crashed, **SIZES) as store,
    ):
        assert len(content(store)) == count
        assert sum(store.max_offset("orders", i) for i in store.queues("orders")) == count


BROADER = {**SIZES, "mapped_file_size_commit_log": 1 << 20}


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


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("victim", [-2, -3, 0])
def test_the_log_goes_on_behind_a_missing_file(
    tmp_path: Path, victim: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: as in 4.9.3, a missing file takes no other with it, and flushing passes it."""
    with pyrocketstore.open(tmp_path, **sizes.SIZES) as store:
        for _ in range(300):
            end = store.put("t", bytes(900)).phy_offset
    files = sorted((tmp_path / "commitlog").iterdir())
    lost = int(files[victim].name)
    files[victim].unlink()
    if not clean:
        (tmp_path / "abort").touch()
    caplog.set_level(logging.CRITICAL)
    with pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **sizes.SIZES) as store:
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


LOG = "commitlog/" + "0" * 20


def halted(path: Path, target: Path) -> Path:
    """A copy of a store as a crash would leave it."""
    shutil.copytree(path, target)
    halt(target)
    return target


def test_properties_that_were_not_written_do_not_end_the_log(tmp_path: Path) -> None:
    """The CRC is the body's alone: a record whose last bytes are zeros is a record."""
    path = tmp_path / "store"
    with pyrocketstore.open(path, **sizes.TINY_SIZES) as store:
        store.put("t", b"first", tags="A", keys="k")
        last = store.put("t", b"last", tags="B", keys="k2", properties={"a": "b"})
        size = last.wrote_bytes
    data = (path / LOG).read_bytes()
    end = last.phy_offset + size
    record = oracle.decode_record(data[last.phy_offset : end])
    for count in range(1, len(record.properties) + 1):
        damaged = halted(path, tmp_path / str(count))
        (damaged / LOG).write_bytes(data[: end - count] + bytes(count) + data[end:])
        with pyrocketstore.open(damaged, **sizes.TINY_SIZES) as store:
            assert store.message_store.get_max_phy_offset() == end
            assert [m.body for m in store.read("t")] == [b"first", b"last"]
            assert [m.body for m in store.read("t", tags="A")] == [b"first"]
            store.put("t", b"more")
            assert store.max_offset("t") == 3
        shutil.rmtree(damaged)


def test_a_crc_of_zero_is_a_crc(tmp_path: Path) -> None:
    body = bytes.fromhex("9d0ad96d")
    assert zlib.crc32(body) == 0
    path = tmp_path / "store"
    with pyrocketstore.open(path, **sizes.TINY_SIZES) as store:
        store.put("t", b"first")
        at = store.put("t", body).phy_offset
    data = bytearray((path / LOG).read_bytes())
    where = data.index(body, at)
    for bit in (0, 7, 18, 31):
        damaged = halted(path, tmp_path / str(bit))
        flipped = bytearray(data)
        flipped[where + bit // 8] ^= 1 << bit % 8
        (damaged / LOG).write_bytes(flipped)
        with pytest.warns(StoreWarning, match="these messages are missing"):
            store = pyrocketstore.open(damaged, **sizes.TINY_SIZES)
        with store:
            assert store.message_store.get_max_phy_offset() == at
        shutil.rmtree(damaged)


def test_the_keys_of_a_record_divided_between_two_index_files_are_put_again(tmp_path: Path) -> None:
    """Goal: an opening after a clean exit puts the keys of a deleted index file again, also the
    second key of the record whose first key is the last entry of the file before."""
    settings = {**SIZES, "max_hash_slot_num": 7, "max_index_num": 10}
    with pyrocketstore.open(tmp_path, **settings) as store:
        for i in range(7):
            store.put("t", b"x", keys=f"a{i} b{i}")
    sorted((tmp_path / "index").iterdir())[-1].unlink()
    with pyrocketstore.open(tmp_path, **settings) as store:
        for key in (f"{kind}{i}" for kind in "ab" for i in range(7)):
            assert len(store.query("t", key)) == 1, key
        assert store.verify().ok


def test_an_opening_without_queues_reads_the_log_once(tmp_path: Path) -> None:
    """No queue has units, so that everything is dispatched again: the first scan keeps the records.
    Its threads read at most some chunks behind the end."""
    with pyrocketstore.open(tmp_path / "s") as store:
        for number in range(16_000):
            store.put("t", bytes(4096), queue_id=number % 4, keys=f"k{number}")
        size = store.message_store.get_max_phy_offset()
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "s" / name)
    before = bytes_read()
    with pyrocketstore.open(tmp_path / "s") as store:
        assert size <= bytes_read() - before < 2 * size
        assert [store.max_offset("t", queue_id) for queue_id in range(4)] == [4000] * 4
        assert store.verify().ok


def bytes_read() -> int:
    """The bytes that this process has read by system calls."""
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])
