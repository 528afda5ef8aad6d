"""Goal: exchanged or copied queue files hide no message of the log, also when the first log files
have expired.
Method: exchange files of three queues, compare reads and counts with the units, and check that a
scan of the whole log gives every message, and builds a queue again whose directory was removed."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.record._message import properties_to_string
from support.seed import SEED

pytestmark = pytest.mark.slow

LOG_SIZE, QUEUE_SIZE = 1 << 14, 400
UNITS = QUEUE_SIZE // 20
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": QUEUE_SIZE,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
#: Messages of each queue; "A" 1 gets its own late, so that its files expire later than those of 0.
COUNTS = {("A", 0): 130, ("A", 1): 110, ("B", 0): 63}
UNIT = struct.Struct(">qiq")
Key = tuple[str, int]
#: A file: its queue and its number.
File = tuple[Key, int]


class Filled(NamedTuple):
    """A store, where its log begins, and of each queue the places of its messages."""

    root: Path
    begin: int
    places: dict[Key, list[int]]

    def low(self, key: Key) -> int:
        return sum(place < self.begin for place in self.places[key])


def body(key: Key, number: int) -> bytes:
    return b"%s %d %d " % (key[0].encode(), key[1], number) + bytes(500)


def path_of(root: Path, file: File) -> Path:
    (topic, queue_id), number = file
    return root / f"consumequeue/{topic}/{queue_id}/{number * QUEUE_SIZE:020d}"


def places_of(root: Path, key: Key) -> list[int]:
    """The offsets that the files of a queue name; 0 where a file is gone."""
    found = []
    for number in range(-(-COUNTS[key] // UNITS)):
        path = path_of(root, (key, number))
        data = path.read_bytes() if path.exists() else bytes(QUEUE_SIZE)
        found += [place for place, _, _ in UNIT.iter_unpack(data)]
    return found[: COUNTS[key]]


@pytest.fixture(scope="module", params=[70, 150])
def filled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Filled:
    """About as many messages as the parameter says have expired, with their log files."""
    root = tmp_path_factory.mktemp("filled") / "store"
    order = [key for key, count in COUNTS.items() for _ in range(count)]
    random.Random(1).shuffle(order)
    late = [key for key in order[:60] if key != ("A", 1)]
    order = late + [key for key in order[:60] if key == ("A", 1)] + order[60:]
    done = dict.fromkeys(COUNTS, 0)
    with pyrocketstore.open(root, **SETTINGS) as store:
        for key in order:
            store.put(key[0], body(key, done[key]), queue_id=key[1])
            done[key] += 1
    places = {key: places_of(root, key) for key in COUNTS}
    every = sorted(place for found in places.values() for place in found)
    begin = every[request.param] // LOG_SIZE * LOG_SIZE
    for file in (root / "commitlog").iterdir():
        if int(file.name) < begin:
            file.unlink()
    return Filled(root, begin, places)


def cases(filled: Filled) -> list[tuple[str, File, File]]:
    """Every file that has messages of the log or does not, with others of its own and of other
    queues."""
    files = [(key, i) for key, count in COUNTS.items() for i in range(-(-count // UNITS))]
    every = [(how, a, b) for how in ("exchanged", "copied") for a in files for b in files if a != b]
    if os.environ.get("ROCKETSTORE_SOAK_BITS"):
        return every
    edges = [(key, filled.low(key) // UNITS + i) for key in COUNTS for i in (-1, 0, 1)]
    at_edge = [case for case in every if case[1] in edges and case[2] in edges]
    rng = random.Random(f"{SEED} {filled.begin}")
    return rng.sample(at_edge, 12) + rng.sample(every, 8)


def damage(root: Path, how: str, a: File, b: File) -> None:
    data = path_of(root, a).read_bytes()
    if how == "exchanged":
        path_of(root, a).write_bytes(path_of(root, b).read_bytes())
    path_of(root, b).write_bytes(data)


@pytest.mark.parametrize("read_only", [True, False])
def test_no_message_is_passed_over_silently(
    filled: Filled, tmp_path: Path, read_only: bool
) -> None:
    """From the first unit on that names a place in the log, each unit is a message or counted."""
    for case in cases(filled):
        root = Path(shutil.copytree(filled.root, tmp_path / "store"))
        damage(root, *case)
        with pyrocketstore.open(root, read_only=read_only, **SETTINGS) as store:
            for key in COUNTS:
                look(store, filled, key, f"seed {SEED}: {case}, {key}")
        shutil.rmtree(root)


def look(store: pyrocketstore.Store, filled: Filled, key: Key, note: str) -> None:
    low, end = store.min_offset(*key), store.max_offset(*key)
    queue = store.message_store.find_consume_queue(*key)
    units = queue.reader.columns(0, end)
    places, blank = units.phy_offset, units.is_pre_blank()
    in_log = [place >= filled.begin for place in places]
    # One alone among places before the log is taken for a damaged one.
    assert not any(all(in_log[i : i + 2]) for i in range(low - 1)), (note, low)
    reader = store.read(*key, on_corrupt="skip")
    given = [message.queue_offset for message in reader]
    assert len(given) + reader.skipped.count == int((~blank[low:]).sum()), (note, low)
    wanted = filled.places[key]
    right = [i for i in range(low, min(end, len(wanted))) if in_log[i] and places[i] == wanted[i]]
    assert given == right, note
    rows = store.read_batch(*key, start=low, on_corrupt="skip", columns=["queue_offset"])
    assert rows["queue_offset"].to_pylist() == given, note
    if not store.read_only:
        queue.delete_expired_file(filled.begin)
        assert store.min_offset(*key) == low, note


def read_whole_log(root: Path, settings: dict[str, Any]) -> None:
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    pyrocketstore.open(root, **settings).close()


@pytest.mark.slow
def test_reading_the_whole_log_gives_every_message(filled: Filled, tmp_path: Path) -> None:
    """Units before the first message stay, and are counted; without its files a queue is whole."""
    for case in cases(filled):
        root = Path(shutil.copytree(filled.root, tmp_path / "store"))
        damage(root, *case)
        for is_removed in (False, True):
            if is_removed:
                for (topic, queue_id), _ in case[1:]:
                    shutil.rmtree(root / f"consumequeue/{topic}/{queue_id}", ignore_errors=True)
            read_whole_log(root, SETTINGS)
            with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
                for key, count in COUNTS.items():
                    note = f"seed {SEED}: {case}, {key}"
                    found = [m.body for m in store.read(*key, on_corrupt="skip")]
                    assert found == [body(key, i) for i in range(filled.low(key), count)], note
                    assert store.max_offset(*key) == count, note
                    assert not is_removed or store.min_offset(*key) == filled.low(key), note
                assert not is_removed or store.verify().ok, case
        shutil.rmtree(root)


@pytest.mark.parametrize("which", [0, 1, 7])
@pytest.mark.parametrize("says", [3, 4])
def test_a_wrong_queue_offset_in_a_record_moves_no_unit(
    filled: Filled, tmp_path: Path, which: int, says: int
) -> None:
    """No sum covers it. The unit of an expired message of that queue offset stays."""
    key = "A", 0
    root = Path(shutil.copytree(filled.root, tmp_path / "store"))
    low = filled.low(key)
    place = filled.places[key][low + which]
    with (root / "commitlog" / f"{place // LOG_SIZE * LOG_SIZE:020d}").open("r+b") as file:
        file.seek(place % LOG_SIZE + 20)
        file.write(says.to_bytes(8, "big"))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    with pyrocketstore.open(root, **SETTINGS) as store:
        assert store.min_offset(*key) == low
        reader = store.read(*key, on_corrupt="skip")
        assert [m.queue_offset for m in reader] == [
            i for i in range(low, COUNTS[key]) if i != low + which
        ]
        assert reader.skipped.count == 1
    assert places_of(root, key) == filled.places[key]


LIGHT = SETTINGS | {"enable_lmq": True, "enable_multi_dispatch": True}


def fill_light(root: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Of each queue the places and bodies of its messages; the light queue has some of those of
    "A". The first half of the log is deleted."""
    rng = random.Random(3)
    found: dict[str, list[tuple[int, bytes]]] = {"A": [], "B": [], "%LMQ%a": []}
    with pyrocketstore.open(root, **LIGHT) as store:
        for i in range(220):
            topic = "A" if rng.random() < 0.6 else "B"
            light = topic == "A" and rng.random() < 0.6
            properties = {"INNER_MULTI_DISPATCH": "%LMQ%a"} if light else {}
            message = MessageExtBrokerInner(
                topic, body((topic, 0), i), 0, properties=properties,
                properties_string=properties_to_string(properties),
            )  # fmt: skip
            result = store.message_store.put_message(message)
            assert result.status.name == "PUT_OK"
            for name in (topic, "%LMQ%a") if light else (topic,):
                found[name].append((result.phy_offset, message.body))
    begin = sorted(found["A"] + found["B"])[100][0] // LOG_SIZE * LOG_SIZE
    for file in (root / "commitlog").iterdir():
        if int(file.name) < begin:
            file.unlink()
    # Before the log: the place alone counts.
    return {t: [(p, b if p >= begin else b"") for p, b in each] for t, each in found.items()}


@pytest.mark.slow
def test_files_of_light_queues_hide_no_message(tmp_path: Path) -> None:
    base = tmp_path / "base"
    messages = fill_light(base)
    files = [((t, 0), i) for t in messages for i in range(-(-len(messages[t]) // UNITS))]
    every = [(how, a, b) for how in ("exchanged", "copied") for a in files for b in files if a != b]
    light = [case for case in every if "%LMQ%a" in (case[1][0][0], case[2][0][0])]
    for case in random.Random(f"{SEED} light").sample(light, 20):
        root = Path(shutil.copytree(base, tmp_path / "store"))
        damage(root, *case)
        read_whole_log(root, LIGHT)
        with pyrocketstore.open(root, read_only=True, **LIGHT) as store:
            for topic, each in messages.items():
                kept = [text for _, text in each if text]
                note = f"seed {SEED}: {case}, {topic}"
                assert [m.body for m in store.read(topic, on_corrupt="skip")] == kept, note
        shutil.rmtree(root)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_first_message_with_a_damaged_topic_is_reported(tmp_path: Path, read_only: bool) -> None:
    """No log file has expired, so a unit before the queue's first record is not an old one."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        first = store.put("orders", b"0")
        store.put("orders", b"1")
    path = tmp_path / f"commitlog/{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(b"orders", first.phy_offset) + 4] = ord("z")
    path.write_bytes(data)
    with pyrocketstore.open(tmp_path, read_only=read_only, **SETTINGS) as store:
        assert store.min_offset("orders") == 0
        reader = store.read("orders", on_corrupt="skip")
        assert [message.body for message in reader] == [b"1"]
        assert reader.skipped.count == 1


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", [QUEUE_SIZE, 7 * QUEUE_SIZE, 100 * QUEUE_SIZE])
def test_a_queue_file_with_a_later_name(
    tmp_path: Path, name: int, killed: bool, expired: bool
) -> None:
    """The first opening builds the queue again, so that no later one takes back queue offsets that
    puts got in between."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put("B", bytes(3000))
        for i in range(40 if expired else 5):
            store.put("A", b"%d " % i + bytes(500))
    log, queue = root / "commitlog", root / "consumequeue/A/0"
    if expired:
        (log / f"{0:020d}").unlink()
        (queue / f"{0:020d}").unlink()
    (kept,) = queue.iterdir()
    kept.rename(queue / f"{name + int(kept.name):020d}")
    if killed:
        (root / "abort").touch()
    bodies: list[bytes] = []
    for life in range(3):
        with pyrocketstore.open(root, **SETTINGS) as store:
            end = store.max_offset("A")
            found = [m.body for m in store.read("A", on_corrupt="skip")]
            assert life == 0 or found == bodies
            sent = [store.put("A", b"new %d %d" % (life, i)) for i in range(3)]
            assert [result.queue_offset for result in sent] == [end, end + 1, end + 2]
            assert end == 3 * life + (40 if expired else 5)
            bodies = [m.body for m in store.read("A")]
            assert len(bodies) == end + 3 - store.min_offset("A") and store.verify().ok
