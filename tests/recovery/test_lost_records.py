"""Goal: readers report messages that the log has lost, also from a damaged queue, and read all
others.
Method: destroy records in old log files and zero units of their queues; a model decides for each
queue offset whether it must be read, must be reported, or may be either."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import DamagedMessageError, StoreError, StoreWarning
from support.damaged_stores import claim_flushed
from support.far_stores import BEGINS, begin_log_at
from support.seed import SEED
from support.snapshot import snapshot
from support.unit_stores import KINDS

LOG_SIZE = 1 << 14
UNITS = 60
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 20 * UNITS,
    "max_hash_slot_num": 50,
    "max_index_num": 2000,
}
#: T/0 and T/1 continue to the end of the log; the last messages of idle/0 lie in its third file.
COUNT, IDLE = 160, 50
QUEUES = {("T", 0): COUNT, ("T", 1): COUNT, ("idle", 0): IDLE}
#: Later files are scanned by each opening, and end the log where they are damaged.
OLD_FILES = 5
Place = tuple[int, int]
Queue = tuple[str, int]


def body(topic: str, queue_id: int, number: int) -> bytes:
    return b"%s/%d %d " % (topic.encode(), queue_id, number) + bytes(280)


def fill(root: Path, kind: str, begin: int) -> None:
    begin_log_at(root, begin, LOG_SIZE)
    with pyrocketstore.open(root, **SETTINGS, **KINDS[kind]) as store:
        for i in range(COUNT):
            for topic, queue_id in QUEUES:
                if topic == "T" or i < IDLE:
                    store.put(topic, body(topic, queue_id, i), queue_id=queue_id, tags="AB"[i % 2])


@pytest.fixture(scope="module", params=["plain", "ext", "far"])
def filled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp("filled") / "store"
    kind, begin = ("plain", BEGINS[1]) if request.param == "far" else (request.param, 0)
    fill(root, kind, begin)
    assert len(list((root / "commitlog").iterdir())) > OLD_FILES + 3
    return kind, root


class Damaged:
    """A store that is damaged, and what must become of each of its messages."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.begin = min(int(path.name) for path in (root / "commitlog").iterdir())
        self.lost: list[Place] = []  # [begin, end) of the log
        self.zeros: set[tuple[Queue, int]] = set()
        with self.open(read_only=True) as store:
            self.places = {
                queue: [(m.phy_offset, m.phy_offset + m.size) for m in store.read(*queue)]
                for queue in QUEUES
            }

    def open(self, **options: Any) -> pyrocketstore.Store:
        return pyrocketstore.open(self.root, **SETTINGS, **KINDS[self.kind], **options)

    def overwrite(self, begin: int, data: bytes) -> None:
        path = self.root / "commitlog" / f"{begin // LOG_SIZE * LOG_SIZE:020d}"
        at = begin % LOG_SIZE
        before = path.read_bytes()[at : at + len(data)]
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)
        changed = [i for i in range(len(data)) if data[i] != before[i]]
        self.lost.append((begin + changed[0], begin + changed[-1] + 1))

    def lose_file(self, number: int) -> None:
        (self.root / "commitlog" / f"{number * LOG_SIZE:020d}").unlink(missing_ok=True)
        self.lost.append((number * LOG_SIZE, (number + 1) * LOG_SIZE))

    def zero_units(self, queue: Queue, start: int, stop: int) -> None:
        """The last one stays: zeros at its end are no hole in a queue."""
        for offset in range(max(0, start), min(stop, QUEUES[queue] - 1)):
            name = f"{offset // UNITS * UNITS * 20:020d}"
            path = self.root / "consumequeue" / queue[0] / str(queue[1]) / name
            with path.open("r+b") as file:
                file.seek(offset % UNITS * 20)
                file.write(bytes(20))
            self.zeros.add((queue, offset))

    def damage_file(self, queue: Queue, number: int, size: int | None) -> None:
        """A file of a queue is cut to `size` bytes, or is gone."""
        name = f"{number * UNITS * 20:020d}"
        path = self.root / "consumequeue" / queue[0] / str(queue[1]) / name
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
        first = number * UNITS + (size or 0) // 20
        stop = min((number + 1) * UNITS, QUEUES[queue])
        self.zeros.update((queue, offset) for offset in range(first, stop))

    def is_lost(self, queue: Queue, offset: int) -> bool:
        begin, end = self.places[queue][offset]
        return any(begin < lost_end and lost_begin < end for lost_begin, lost_end in self.lost)

    def offsets(self, queue: Queue) -> tuple[list[int], set[int], set[int]]:
        """Those that are read, those that are reported, and those that may be."""
        read = [i for i in range(QUEUES[queue]) if not self.is_lost(queue, i)]
        gone = {i for i in range(QUEUES[queue]) if self.is_lost(queue, i)}
        free = {i for i in gone if (queue, i) in self.zeros}
        return read, gone - free, free

    def check(self, store: pyrocketstore.Store) -> None:
        for queue in QUEUES:
            read, reported, free = self.offsets(queue)
            reader = store.read(*queue, on_corrupt="skip")
            assert [m.body for m in reader] == [body(*queue, i) for i in read], queue
            found = set(offsets_of(reader.skipped.ranges))
            assert reported <= found <= reported | free, (queue, reported, free, found)
            assert reader.skipped.count == len(found)
            assert store.max_offset(*queue) > max([-1, *read, *reported])
            messages, errors = read_on(store.read(*queue))
            assert messages == read
            assert set(offsets_of(errors)) == found
            for tags in "AB":
                tagged = [m.queue_offset for m in store.read(*queue, tags=tags, on_corrupt="skip")]
                assert tagged == [i for i in read if "AB"[i % 2] == tags]

    def check_openings(self) -> None:
        """Read-only, for writing, again so, and then with messages that are put behind."""
        for read_only in (True, False, True, False):
            before = snapshot(self.root)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StoreWarning)  # of files of a wrong length
                opened = self.open(read_only=read_only)
            with opened as store:
                self.check(store)
                store.verify()
            assert not read_only or snapshot(self.root) == before
        with self.open() as store:
            for topic, queue_id in QUEUES:
                end = store.max_offset(topic, queue_id)
                assert store.put(topic, b"next", queue_id=queue_id).queue_offset == end
                last = list(store.read(topic, queue_id, on_corrupt="skip"))[-1]
                assert (last.queue_offset, last.body) == (end, b"next")


def offsets_of(ranges: Any) -> Iterator[int]:
    for each in ranges:
        yield from range(each.start, each.stop)


def read_on(reader: Any) -> tuple[list[int], list[DamagedMessageError]]:
    messages, errors = [], []
    while True:
        try:
            messages.append(next(reader).queue_offset)
        except StopIteration:
            return messages, errors
        except StoreError as error:
            assert isinstance(error, DamagedMessageError)
            errors.append(error)


def damage_log(store: Damaged, rng: random.Random) -> None:
    """Take away a file of the log, or records of one."""
    queue = rng.choice(list(QUEUES))
    left = [place for i, place in enumerate(store.places[queue]) if not store.is_lost(queue, i)]
    old_end = store.begin + OLD_FILES * LOG_SIZE
    old = [place for place in left if place[0] < old_end]
    if len(old) < 10:
        return
    at = len(old) - rng.randrange(1, 8) if rng.random() < 0.5 else rng.randrange(1, len(old))
    begin, end = old[at]
    how = rng.choice(["file", "zeros", "head", "garbage", "many"])
    if how == "file":
        # Without its first file the log begins behind it.
        second, last = store.begin // LOG_SIZE + 1, old_end // LOG_SIZE - 1
        store.lose_file(max(second, min(begin // LOG_SIZE, last)))
    elif how == "many":
        stop = min((begin // LOG_SIZE + 1) * LOG_SIZE, old_end)
        store.overwrite(begin, bytes(min(stop - begin, rng.randrange(end - begin, 8000))))
    elif how == "head":
        store.overwrite(begin + rng.choice([0, 4, 28]), b"no")
    else:
        data = bytes if how == "zeros" else rng.randbytes
        store.overwrite(begin, data(end - begin))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_zero_units_in_front_of_lost_records(
    filled: tuple[str, Path], tmp_path: Path, killed: bool
) -> None:
    """Seed: ROCKETSTORE_SEED."""
    kind, base = filled
    for number in range(12):
        rng = random.Random(f"{SEED}/{kind}/{killed}/{number}")
        store = Damaged(Path(shutil.copytree(base, tmp_path / f"store{number}")), kind)
        for _ in range(rng.randrange(1, 4)):
            damage_log(store, rng)
        for queue in QUEUES:
            gone = sorted(store.offsets(queue)[1])
            for _ in range(rng.randrange(3) if gone else 0):
                at = rng.choice(gone) - rng.randrange(-1, 6)
                store.zero_units(queue, at, at + rng.randrange(1, 4))
            if queue[0] == "T" and rng.random() < 0.3:
                sizes = [None, 20 * rng.randrange(1, UNITS), 20 * UNITS - rng.randrange(1, 99)]
                # Where a log does not begin at 0, a queue without its first file may have expired.
                number = rng.randrange(1 if store.begin else 0, 2)
                store.damage_file(queue, number, rng.choice(sizes))
        if killed:
            (store.root / "abort").touch()
            claim_flushed(store.root)
        try:
            store.check_openings()
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_SEED={SEED}, store {number}: {store.root}, {store.lost}")
            error.add_note(f"zeros: {sorted(store.zeros)}")
            raise


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("how", ["file", "zeros"])
def test_a_zero_unit_in_front_of_a_lost_end(
    filled: tuple[str, Path], tmp_path: Path, how: str, killed: bool
) -> None:
    """All of a queue behind the zero unit is lost: its offsets stay used up, and are reported."""
    kind, base = filled
    store = Damaged(Path(shutil.copytree(base, tmp_path / "store")), kind)
    begin = store.places["idle", 0][-1][0] // LOG_SIZE * LOG_SIZE
    assert begin > store.begin
    if how == "file":
        store.lose_file(begin // LOG_SIZE)
    else:
        store.overwrite(begin, bytes(LOG_SIZE))
    first = min(store.offsets(("idle", 0))[1])
    store.zero_units(("idle", 0), first - 1, first)
    if killed:
        (store.root / "abort").touch()
        claim_flushed(store.root)
    store.check_openings()
    with store.open() as opened:
        assert opened.max_offset("idle") == IDLE + 1


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("missing", [[2], [2, 3], [2, 5], [-2], [2, -3]], ids=str)
def test_each_hole_in_the_list_of_log_files_is_warned_of_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    missing: list[int],
    read_only: bool,
    killed: bool,
) -> None:
    """Also of files that the opening does not scan; a first file that expired is not a hole."""
    root = tmp_path / "store"
    fill(root, "plain", 0)
    files = sorted((root / "commitlog").iterdir())
    for number in (0, *missing):
        files[number].unlink()
    if killed:
        (root / "abort").touch()
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyrocketstore.open(root, read_only=read_only, **SETTINGS).close()
    lines = [record.getMessage() for record in caplog.records]
    gone = {number % len(files) for number in (0, *missing)}
    afters = [at for at in range(2, len(files)) if at not in gone and at - 1 in gone]
    assert [line for line in lines if "the file before it is missing" in line] == [
        f"{files[at]}: the file before it is missing" for at in afters
    ]
