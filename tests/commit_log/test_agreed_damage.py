"""Goal: dispatch, recovery, the search for lost ranges, verify, the reading API and Spark's reads
agree on the records that survive damage. Method: one set of damaged log files; each caller's
records against those of a plain Python walk."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.columns._record_walk import RecordWalk
from pyrocketstore.commit_log.lost_records import LostRecords
from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.results import Status
from pyrocketstore.system.env import Env
from support import oracle

FILE_SIZE = 1 << 13
SETTINGS = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 2000,
    "message_index_enable": False,
    "topics_json": False,
}
COUNT = 200
Damage = Callable[[bytearray, list[int]], None]


def set_at(number: int, position: int, value: bytes) -> Damage:
    """Overwrite bytes of a record, counted from its beginning."""

    def damage(data: bytearray, places: list[int]) -> None:
        at = places[number] + position
        data[at : at + len(value)] = value

    return damage


def zeros(begin: int, end: int) -> Damage:
    def damage(data: bytearray, places: list[int]) -> None:
        data[begin:end] = bytes(end - begin)

    return damage


def damage_blank(data: bytearray, places: list[int]) -> None:
    (size,) = struct.unpack_from(">i", data, places[-1])
    data[places[-1] + size + 4 : places[-1] + size + 8] = b"\x7f" * 4


def body(number: int) -> Damage:
    return set_at(number, 90, b"\x7f")


MAGIC, SIZE, PLACE = 4, 0, 28
DAMAGES: dict[str, list[Damage]] = {
    "a magic code": [set_at(3, MAGIC, b"\0")],
    "the first record": [set_at(0, MAGIC, b"\0")],
    "a size that is too large": [set_at(4, SIZE, struct.pack(">i", 7000))],
    "a size that is negative": [set_at(4, SIZE, b"\xff")],
    "a stored physical offset": [set_at(5, PLACE, b"\x01")],
    "a body length": [set_at(5, 84, struct.pack(">i", 1))],
    "garbage over several records": [set_at(2, 50, b"\x7f" * 500)],
    "zeros over several records": [zeros(700, 1500)],
    "a zeroed beginning": [zeros(0, 512)],
    "two damaged records in a row": [set_at(3, MAGIC, b"\0"), set_at(4, MAGIC, b"\0")],
    "a body behind damage": [set_at(3, MAGIC, b"\0"), body(4)],
    "a body between damage": [set_at(3, MAGIC, b"\0"), body(4), set_at(5, MAGIC, b"\0")],
    "bodies behind damage": [set_at(3, MAGIC, b"\0"), *map(body, range(4, 9))],
    "a body alone": [body(6)],
    "the last record of the file": [set_at(-1, MAGIC, b"\0")],
    "a body before a damaged BLANK": [body(-1), damage_blank],
}


def places_in(data: bytes) -> list[int]:
    return [phy_offset for phy_offset, _ in oracle.scan_log(data)[0]]


def survivors(data: bytes, check_crc: bool) -> list[int]:
    """Positions of the records, by a walk that tries each byte behind damage."""
    found, at, is_behind_damage = [], 0, False
    while at + 8 <= len(data):
        verdict, size = oracle.check_record(data[at:], at, False)
        if verdict == "blank" and not is_behind_damage:
            break
        is_right = verdict == "ok" and oracle.check_record(data[at:], at, True)[0] == "ok"
        is_taken = is_right
        if verdict == "ok" and not check_crc:
            follows = data[at + size : at + size + 8]
            magic = follows[4:8].hex()
            may_follow = len(follows) < 8 or magic in ("daa320a7", "cbd43194") or not any(follows)
            is_taken = is_right or may_follow or not is_behind_damage
        if is_taken:
            found.append(at)
        at += size if is_taken else 1
        is_behind_damage = not is_taken
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("agreed") / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        fill(store)
    return root


def fill(store: pyrocketstore.Store) -> None:
    for number in range(COUNT):
        store.put("T", b"body %d " % number * (1 + number % 7))


def log_file(root: Path) -> Path:
    return root / "commitlog" / f"{0:020d}"


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, filled: Path, tmp_path: Path) -> Path:
    """A store that was stopped cleanly, whose first file is damaged: no opening scans it."""
    root = Path(shutil.copytree(filled, tmp_path / "store"))
    do_damage(root, request.param)
    return root


def do_damage(root: Path, kind: str) -> None:
    data = bytearray(log_file(root).read_bytes())
    places = places_in(bytes(data))
    for damage in DAMAGES[kind]:
        damage(data, places)
    with log_file(root).open("r+b") as file:  # the same file, which a store may have mapped
        file.write(data)


def queued(root: Path) -> list[int]:
    """Physical offsets in the first file that the units of T/0 name."""
    files = sorted((root / "consumequeue" / "T" / "0").iterdir())
    units = [unit for file in files for unit in oracle.decode_units(file.read_bytes())]
    return [place for place, size, _ in units if 0 < size < 1 << 30 and place < FILE_SIZE]


def test_walks_over_one_file(damaged: Path) -> None:
    path = log_file(damaged)
    data = path.read_bytes()
    expected = survivors(data, False)
    env = Env()
    with pyrocketstore.open(damaged, read_only=True, **SETTINGS) as store:
        log = store.message_store.commit_log
        chunks = list(records_between(env, log, 0, FILE_SIZE))
        assert [chunk.position(i) for chunk in chunks for i in range(chunk.count)] == expected
        lost = LostRecords(env, log, 0, FILE_SIZE)
        assert all(lost.range_of(place, 91) is None for place in expected)
    for check_crc in (False, True):
        assert walked(env, path, check_crc) == survivors(data, check_crc)


def walked(env: Env, path: Path, check_crc: bool) -> list[int]:
    """The records of verify's walk, which steps over damage."""
    walk = RecordWalk({}, FILE_SIZE, check_crc)
    return [
        place
        for _, _, status in walk.ranges(env, str(path), 0, FILE_SIZE)
        if status == Status.OK
        for place in walk.column("phy_offset").tolist()
    ]


def test_recovery_verify_and_the_reading_api(damaged: Path, filled: Path) -> None:
    """Recovery builds the queues from the log; every unit's message is read."""
    expected = survivors(log_file(damaged).read_bytes(), False)
    right = survivors(log_file(damaged).read_bytes(), True)
    elsewhere = COUNT - len(places_in(log_file(filled).read_bytes()))
    shutil.rmtree(damaged / "consumequeue")
    with pyrocketstore.open(damaged, **SETTINGS) as store:
        store.wait_dispatched()
        assert queued(damaged) == expected
        for place in expected:
            assert store.message_store.look_message_by_offset(place).phy_offset == place
        assert store.verify().records == elsewhere + len(right)


@pytest.mark.parametrize("kind", DAMAGES)
def test_dispatch(tmp_path: Path, kind: str) -> None:
    """The dispatch thread finds the damage before it has dispatched the records around it."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        with store.message_store.dispatch_paused():
            fill(store)
            do_damage(tmp_path, kind)
        store.wait_dispatched()
        assert queued(tmp_path) == survivors(log_file(tmp_path).read_bytes(), False)


def test_spark(damaged: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.jobs.expected_entries import LogFileTask, expected_units
    from pyrocketstore.spark.read.log_walk import LogWalk
    from pyrocketstore.spark.read.records import Chunk
    from pyrocketstore.spark.task_types import LogFile, LogTask

    data = log_file(damaged).read_bytes()
    expected = survivors(data, False)
    file = LogFile(str(log_file(damaged)), 0, FILE_SIZE)
    for cuts in ([], [700], [333, 1000, 1500, 4000]):  # ranges of several tasks
        found = []
        for begin, stop in itertools.pairwise([0, *cuts, FILE_SIZE]):
            is_last = stop == FILE_SIZE
            task = LogTask("b", file, begin, stop, FILE_SIZE, begin == 0, is_last, None)
            for each in LogWalk(Env(), task, fail_on_data_loss=True, window_bytes=1000):
                found += each.phy_offsets.tolist() if isinstance(each, Chunk) else []
        assert found == expected, cuts
    for check_crc in (False, True):
        whole = LogFileTask("b", file, FILE_SIZE, True, {}, False, False, check_crc)
        rows = [row for batch in expected_units(whole) for row in batch.to_pylist()]
        assert [row["commitLogOffset"] for row in rows] == survivors(data, check_crc)
