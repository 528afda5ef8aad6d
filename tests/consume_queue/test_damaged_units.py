"""Goal: a flipped bit in a unit hides no message, causes no duplicate queue offset, and is repaired
by an opening that can detect it.
Method: flip bits of units in stores of one or several queues, closed or killed; then put, read,
close and open again."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.consume_queue import unit_check
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.system.env import Env
from support import oracle
from support.broken_env import broken
from support.seed import SEED
from support.unit_stores import KINDS, LOG_SIZE, PLAIN, UNIT, put, turn_bit, unit_file

pytestmark = pytest.mark.slow

#: Every bit of the last units; else a few of them by chance.
SOAK = bool(os.environ.get("ROCKETSTORE_SOAK_BITS"))
QUEUES = ("idle", "busy", "%LMQ%a")
#: (bits of a unit): offset, size, tags code.
FIELDS = {"offset": range(64), "size": range(64, 96), "tags code": range(96, 160)}


def fill(root: Path, kind: str, idle_first: bool = False) -> None:
    """`idle` gets 25 messages among those of `busy`, or before them all."""
    settings = PLAIN | KINDS[kind]
    with pyrocketstore.open(root, **settings) as store:
        for i in range(25):
            put(store, "idle", i, kind == "light")
            if not idle_first:
                put(store, "busy", i, kind == "light")
        if idle_first:
            for i in range(600):
                put(store, "busy", i, kind == "light")
        store.flush()


@pytest.fixture(autouse=True, params=["one by one", "all at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are compared queue by queue, or those of all queues at once."""
    rows = 1 if request.param == "one by one" else 1 << 40
    monkeypatch.setattr(unit_check, "FEW_QUEUES_ROWS", rows)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    made: dict[tuple[str, bool], Path] = {}

    def give(kind: str, idle_first: bool) -> Path:
        if (kind, idle_first) not in made:
            root = tmp_path_factory.mktemp("filled") / "store"
            fill(root, kind, idle_first)
            made[kind, idle_first] = root
        return made[kind, idle_first]

    return give


def counts(root: Path, kind: str) -> dict[str, int]:
    with pyrocketstore.open(root, read_only=True, **PLAIN, **KINDS[kind]) as store:
        return {t: store.max_offset(t) for t in QUEUES if t in store.topics()}


def goes_on(root: Path, kind: str, count: dict[str, int]) -> None:
    """Two lives: offsets are consecutive and unique, and every message is read and found."""
    light = kind == "light"
    count = dict(count)
    for life in range(2):
        with pyrocketstore.open(root, **PLAIN, **KINDS[kind]) as store:
            for topic in ("idle", "busy"):
                for _ in range(3):
                    assert put(store, topic, count[topic], light) == count[topic], (topic, life)
                    count[topic] += 1
            if light:
                count["%LMQ%a"] += 3
            for topic, end in count.items():
                assert store.max_offset(topic) == end, (topic, life)
                source = "busy" if topic.startswith("%LMQ%") else topic
                bodies = [m.body for m in store.read(topic)]
                assert bodies == [b"%s %d" % (source.encode(), i) for i in range(end)], topic
            for topic in ("idle", "busy"):
                for number in (0, count[topic] - 6, count[topic] - 1):
                    assert len(store.query(topic, f"{topic}-{number}")) == 1
            report = store.verify()
            assert report.ok, report.problems[:3]


def kill(root: Path) -> None:
    (root / "abort").touch()


def cases(kind: str) -> list[tuple[str, int, int]]:
    """(topic, units before the end, bit)"""
    topics = ("idle", "busy", "%LMQ%a") if kind == "light" else ("idle", "busy")
    every = [(t, back, bit) for t in topics for back in (1, 2, 3) for bit in range(160)]
    if SOAK:
        return every
    rng = random.Random(f"{SEED} {kind}")
    chosen = [
        (rng.choice(topics), back, rng.choice(bits))
        for bits in FIELDS.values()
        for back in (1, 1, 2)
    ]
    return [*chosen, (topics[0], 1, 65), (topics[-1], 1, 73), (topics[0], 1, 30)]


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_bit_in_a_last_unit(
    stores: Callable[[str, bool], Path], tmp_path: Path, kind: str, killed: bool
) -> None:
    base = stores(kind, False)
    count = counts(base, kind)
    print(f"seed {SEED}: {len(cases(kind))} bits")
    for topic, back, bit in cases(kind):
        if not killed and (back > 1 or bit >= 96):
            continue  # not compared after a clean stop
        root = Path(shutil.copytree(base, tmp_path / "store"))
        turn_bit(root, topic, count[topic] - back, bit)
        if killed:
            kill(root)
        try:
            goes_on(root, kind, count)
        except BaseException as error:
            error.add_note(f"seed {SEED}, {kind}: bit {bit} of unit -{back} of {topic}")
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("bit", [1, 40, 66, 90])
def test_a_clean_stop_is_proof_of_the_units_before_the_ends(
    stores: Callable[[str, bool], Path], tmp_path: Path, bit: int
) -> None:
    """Reads and `verify` report a damaged one; recovery after a kill repairs it."""
    root = Path(shutil.copytree(stores("plain", False), tmp_path / "store"))
    count = counts(root, "plain")
    turn_bit(root, "idle", 7, bit)
    path, _ = unit_file(root, "idle", 7)
    damaged = path.read_bytes()
    with pyrocketstore.open(root, **PLAIN) as store:
        with pytest.raises(pyrocketstore.StoreCorruptionError):
            list(store.read("idle"))
        assert [m.body for m in store.read("idle", start=8, stop=10)] == [b"idle 8", b"idle 9"]
        assert put(store, "idle", count["idle"], False) == count["idle"]
        assert [(p.kind, p.path) for p in store.verify().problems] == [("queue", str(path))]
    assert path.read_bytes() == damaged
    kill(root)
    goes_on(root, "plain", count | {"idle": count["idle"] + 1})


@pytest.mark.parametrize("back", [1, 7])
def test_a_wrong_tags_code_is_found_by_verify_after_a_clean_stop(tmp_path: Path, back: int) -> None:
    """A read by tags passes over the message; recovery after a kill repairs the unit."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **PLAIN) as store:
        for i in range(30):
            store.put("t", b"%d" % i, queue_id=0, tags="A")
    turn_bit(root, "t", 30 - back, 130)
    path, _ = unit_file(root, "t", 30 - back)
    with pyrocketstore.open(root, **PLAIN) as store:
        assert len(list(store.read("t", tags="A"))) == 29
        assert len(list(store.read("t"))) == 30
        assert [(p.kind, p.path) for p in store.verify().problems] == [("queue", str(path))]
    kill(root)
    with pyrocketstore.open(root, **PLAIN) as store:
        assert len(list(store.read("t", tags="A"))) == 30
        assert store.verify().ok


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("bit", [1, 20, 40, 55, 62, 64, 65, 73, 90, 95])
def test_the_last_unit_of_a_queue_that_rests(
    stores: Callable[[str, bool], Path], tmp_path: Path, bit: int, killed: bool
) -> None:
    """Its record is before the part that recovery scans."""
    base = stores("plain", True)
    count = counts(base, "plain")
    root = Path(shutil.copytree(base, tmp_path / "store"))
    turn_bit(root, "idle", count["idle"] - 1, bit)
    if killed:
        kill(root)
    goes_on(root, "plain", count)


@pytest.mark.parametrize("killed", [False, True])
def test_queue_files_that_were_swapped(
    stores: Callable[[str, bool], Path], tmp_path: Path, killed: bool
) -> None:
    base = stores("plain", False)
    count = counts(base, "plain")
    root = Path(shutil.copytree(base, tmp_path / "store"))
    for number in (0, 20):
        one, other = unit_file(root, "idle", number)[0], unit_file(root, "busy", number)[0]
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)
    if killed:
        kill(root)
    goes_on(root, "plain", count)


def test_a_pre_blank_unit_hides_no_unit_behind_it(
    stores: Callable[[str, bool], Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(stores("plain", False), tmp_path / "store"))
    with pyrocketstore.open(root, **PLAIN) as store:
        path, position = unit_file(root, "idle", 3)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(UNIT.pack(0, (1 << 31) - 1, 0))
        result = store.message_store.get_message("g", "idle", 0, 0, 32)
        assert result is not None
        assert result.message_queue_offsets == [0, 1, 2, *range(4, 20)]
        result.release()
    kill(root)
    goes_on(root, "plain", {"idle": 25, "busy": 25})


@pytest.mark.parametrize("phy_offset", [1 << 40, LOG_SIZE * 2])
def test_a_damaged_unit_hides_no_unit_behind_it(
    stores: Callable[[str, bool], Path], tmp_path: Path, phy_offset: int
) -> None:
    root = Path(shutil.copytree(stores("plain", False), tmp_path / "store"))
    with pyrocketstore.open(root, **PLAIN) as store:
        path, position = unit_file(root, "idle", 3)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(UNIT.pack(phy_offset, 200, 0))
        result = store.message_store.get_message("g", "idle", 0, 0, 32)
        assert result is not None
        assert set(result.message_queue_offsets) >= {0, 1, 2, *range(4, 20)}
        result.release()


@pytest.mark.parametrize("bit", [3, 40, 52, 55, 62])
def test_a_damaged_unit_deletes_no_queue_file(
    stores: Callable[[str, bool], Path], tmp_path: Path, bit: int
) -> None:
    """The last unit of a file seems to lie before the log, or far behind it."""
    root = Path(shutil.copytree(stores("plain", True), tmp_path / "store"))
    with pyrocketstore.open(root, **PLAIN) as store:
        queue = store.message_store.get_consume_queue("busy", 0)
        assert queue is not None
        unit = queue.reader.unit(219)
        assert unit is not None
        turn_bit(root, "busy", 219, bit)
        lowest = queue.reader.unit(210)
        assert lowest is not None
        queue.delete_expired_file(lowest[0])
        assert queue.mapped_file_queue.get_min_offset() == 200 * 20
        assert queue.get_min_offset_in_queue() == 210
        assert queue.first_readable_offset(lowest[0]) == 210
        behind = queue.reader.unit(221)
        assert behind is not None
        queue.delete_expired_file(behind[0])
        assert queue.mapped_file_queue.get_min_offset() == 220 * 20


def test_a_damaged_unit_of_the_log_that_is_gone_is_not_the_minimum(
    stores: Callable[[str, bool], Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(stores("plain", True), tmp_path / "store"))
    with pyrocketstore.open(root, **PLAIN) as store:
        queue = store.message_store.get_consume_queue("busy", 0)
        assert queue is not None
        lowest = queue.reader.unit(15)
        assert lowest is not None
        turn_bit(root, "busy", 3, 5)
        queue.correct_min_offset(lowest[0])
        assert queue.get_min_offset_in_queue() == 15
        assert queue.first_readable_offset(lowest[0]) == 15


def test_a_log_record_that_is_damaged_keeps_its_queue_offset(
    stores: Callable[[str, bool], Path], tmp_path: Path
) -> None:
    """Its unit is right: the next message gets the next offset."""
    root = Path(shutil.copytree(stores("plain", True), tmp_path / "store"))
    path, position = unit_file(root, "idle", 24)
    phy_offset, size, _ = UNIT.unpack_from(path.read_bytes(), position)
    with (root / "commitlog" / f"{phy_offset // LOG_SIZE * LOG_SIZE:020d}").open("r+b") as file:
        file.seek(phy_offset % LOG_SIZE + 84)
        file.write(b"\x7f\xff\xff\xff")  # the body's length
    with pyrocketstore.open(root, **PLAIN) as store:
        assert store.max_offset("idle") == 25
        assert put(store, "idle", 25, False) == 25
    assert path.read_bytes()[position : position + 12] == UNIT.pack(phy_offset, size, 0)[:12]


@pytest.mark.parametrize("delay", [0, 3])
def test_a_unit_follows_a_record_that_lost_its_tags(tmp_path: Path, delay: int) -> None:
    """A power cut leaves zeros for the properties of a message that nobody was promised: its unit
    has the tags, or the time of delivery, of what was put."""
    topic = "SCHEDULE_TOPIC_XXXX" if delay else "T"
    queue_id = delay - 1 if delay else 0
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        for i in range(4):
            properties = {"TAGS": "red"} | ({"DELAY": str(delay)} if delay else {})
            message = MessageExtBrokerInner(
                "T", b"%d" % i, properties=properties,
                properties_string=properties_to_string(properties),
            )  # fmt: skip
            assert store.message_store.put_message(message).status.name == "PUT_OK"
        store.wait_dispatched()
        queue = store.message_store.get_consume_queue(topic, queue_id)
        assert queue is not None
        unit = queue.reader.unit(2)
        before = queue.reader.unit(1)
        assert unit is not None and unit[2] != 0
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(unit[0])
        size = len(oracle.decode_record(file.read(unit[1])).properties)
        assert size > 0
        file.seek(unit[0] + unit[1] - size)
        file.write(bytes(size))
    kill(tmp_path)
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        queue = store.message_store.get_consume_queue(topic, queue_id)
        assert queue is not None
        assert queue.reader.unit(2) == (unit[0], unit[1], 0)
        assert queue.reader.unit(1) == before
        report = store.verify()
        assert [problem.kind for problem in report.problems] == ["log"]
        assert report.bad_properties == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_unit_of_a_record_after_a_clock_was_set(tmp_path: Path, read_only: bool) -> None:
    """A scan keeps store times in 31 bits: 24 days from the chunk's first record."""
    env = Env()
    times = [1_700_000_000_000]
    with (
        broken(env, "now_ms", lambda original: times[0]),
        pyrocketstore.open(tmp_path, env=env, **PLAIN) as store,
    ):
        for number, day in enumerate((0, 60, 1, 2)):
            times[0] = 1_700_000_000_000 + day * 86_400_000
            store.put("t", b"%d" % number)
    path, position = unit_file(tmp_path, "t", 1)
    with path.open("r+b") as units:
        units.seek(position)
        units.write(bytes(8))  # the second unit names the first message
    kill(tmp_path)
    with pyrocketstore.open(tmp_path, read_only=read_only, **PLAIN) as store:
        assert [message.body for message in store.read("t")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_time_that_no_distance_to_delayed_messages_fits(
    tmp_path: Path, read_only: bool
) -> None:
    """Their units are not compared: the scan has none of them."""
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        store.put("t", b"0")
        store.put("t", b"1", delay_level=18)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(56)
        file.write((13_067_856_740_638).to_bytes(8, "big"))
    kill(tmp_path)
    with pyrocketstore.open(tmp_path, read_only=read_only, **PLAIN) as store:
        assert [message.body for message in store.read("t")] == [b"0"]
        assert [message.body for message in store.read("SCHEDULE_TOPIC_XXXX", 17)] == [b"1"]
