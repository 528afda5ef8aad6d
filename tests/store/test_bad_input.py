"""Goal: no bytes and no names in a store's directory crash, hang or mislead the engine; messages
before the damage are never lost, and a read-only opening writes nothing. Method: damage small
stores that the engine made itself, by their structure and at random; the oracle computes the
messages that must remain.

ROCKETSTORE_SOAK=N adds N random mutants, ROCKETSTORE_SEED picks others. A failure names seed and
mutant; before each one runs, it is written to mutant.txt in pytest's base directory."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import PutError, StoreCorruptionError, StoreError
from support import oracle
from support.damaged_stores import (
    ENTRIES,
    FILE_SIZE,
    LIGHT,
    PLAIN,
    QUEUE_FILE_SIZE,
    SLOTS,
    SOAK,
    Answers,
    Base,
    Mutant,
    Place,
    Survey,
    all_places,
    both,
    bounded,
    content,
    directory,
    fill,
    instead,
    log_files,
    loop,
    random_mutant,
    sized,
    write_at,
    write_log,
)
from support.seed import SEED
from support.snapshot import snapshot

pytestmark = pytest.mark.bad_input


#: A third of the mutants of a table for `make test`, the rest for `make test-all`.
in_parts = pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
)


def part_of(numbered: Iterable[tuple[int, Mutant]], part: int) -> list[tuple[int, Mutant]]:
    """One of three parts of a table, chosen by the CRC of the number: neighbours are alike."""
    chosen = [one for one in numbered if zlib.crc32(b"%d" % one[0]) % 3 == part]
    assert chosen
    return chosen


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return fill(tmp_path_factory.mktemp("plain") / "store", PLAIN)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return fill(tmp_path_factory.mktemp("light") / "store", LIGHT)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("pyrocketstore"), "disabled", True)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("pyrocketstore."):
            monkeypatch.setattr(logging.getLogger(name), "disabled", True)


@pytest.fixture
def survey(
    plain: Base, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Survey]:
    made = Survey(plain, tmp_path, tmp_path_factory.getbasetemp())
    yield made
    print(f"{made.count} mutants, seed {SEED}, {made.refused} refused")


@pytest.fixture
def light_survey(light: Base, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    return Survey(light, tmp_path, tmp_path_factory.getbasetemp())


def length_fields(place: Place) -> dict[str, tuple[int, int]]:
    """Name → (position in the record, bytes)."""
    record = place.record
    hosts = len(record.born_host) + len(record.store_host)
    body = 68 + hosts
    topic = body + 4 + len(record.body)
    return {
        "totalSize": (0, 4),
        "bodyLength": (body, 4),
        "topicLength": (topic, 1),
        "propertiesLength": (topic + 1 + len(record.topic), 2),
    }


def length_mutants(places: list[Place]) -> Iterator[Mutant]:
    for which in (0, len(places) // 2, len(places) - 1):
        place = places[which]
        left = FILE_SIZE - place.phy_offset % FILE_SIZE
        for name, (at, width) in length_fields(place).items():
            old = int.from_bytes(place.data[at : at + width], "big", signed=True)
            top = (1 << (8 * width - 1)) - 1
            for value in (-1, 0, top, left - at - width + 1, old + 1, old - 1, 1, -(top + 1)):
                data = (value & (2 * top + 1)).to_bytes(width, "big")
                text = f"{name} {value} for {old} in record {which} at {place.phy_offset}"
                yield Mutant(text, "log", write_log(place.phy_offset + at, data), False)


@in_parts
def test_lengths_of_records(survey: Survey, part: int) -> None:
    mutants = list(enumerate(length_mutants(survey.places)))
    assert len(mutants) == 96
    for i, mutant in part_of(mutants, part):
        survey.run(mutant, writable=i % 5 == 0)


HEAD_FIELDS = {"magic": (4, 4), "queueId": (12, 4), "queueOffset": (20, 8),
               "physicalOffset": (28, 8), "sysFlag": (36, 4), "bornTimestamp": (40, 8),
               "storeTimestamp": (56, 8)}  # fmt: skip


def head_mutants(places: list[Place]) -> Iterator[Mutant]:
    for which in (0, len(places) // 2, len(places) - 2):
        place = places[which]
        for name, (at, width) in HEAD_FIELDS.items():
            top = (1 << (8 * width - 1)) - 1
            for value in (-1, 0, top, -(top + 1), 1 << (5 * width)):
                data = (value & (2 * top + 1)).to_bytes(width, "big")
                text = f"{name} {value} in record {which} at {place.phy_offset}"
                yield Mutant(text, "log", write_log(place.phy_offset + at, data), False)


@in_parts
def test_heads_of_records(survey: Survey, part: int) -> None:
    for _, mutant in part_of(enumerate(head_mutants(survey.places)), part):
        survey.run(mutant)


@pytest.mark.parametrize("kind", ["log", "queue", "index", "other"])
def test_random_damage(survey: Survey, kind: str) -> None:
    rng = random.Random(f"{SEED} {kind}")
    for _ in range(30 + SOAK // 8):
        mutant = random_mutant(rng, survey.base.path, kind)
        if mutant is not None:
            survey.run(mutant)


@pytest.mark.parametrize("kind", ["log", "queue", "ext", "index"])
def test_random_damage_with_light_queues_and_ext(light_survey: Survey, kind: str) -> None:
    rng = random.Random(f"{SEED} light {kind}")
    for _ in range(15 + SOAK // 8):
        mutant = random_mutant(rng, light_survey.base.path, kind)
        assert mutant is not None
        light_survey.run(mutant)


# ---- what a clean end says, though something was lost -------------------------------------------


@pytest.mark.parametrize("size", [8, 2000])
def test_zeros_in_the_last_log_file_hide_nothing(survey: Survey, size: int) -> None:
    """They look like the usual end of a log that was closed; the queues know better."""
    last = int(log_files(survey.base.path)[-1].name)
    for place in [place for place in survey.places if place.phy_offset > last][::5]:
        text = f"{size} zeros at {place.phy_offset}"
        damage = write_log(place.phy_offset, bytes(min(size, last + FILE_SIZE - place.phy_offset)))
        survey.run(Mutant(text, "log", damage, False), killed=False, writable=True)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A store with a queue all of whose messages are older than what a clean opening scans."""
    path = tmp_path_factory.mktemp("still") / "store"
    with pyrocketstore.open(path, **PLAIN) as store:
        for i in range(30):
            store.put("events", b"%d" % i, keys=f"s{i}")
        for i in range(300):
            store.put("orders", bytes(300), keys=f"o{i}")
    return Base(path, PLAIN)


@pytest.mark.parametrize("unit", [0, 3, 19, 20, 23, 28])
def test_lost_units_of_a_queue_that_stands_still(
    still: Base, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, unit: int
) -> None:
    """They are found again, and no offset is given twice."""
    survey = Survey(still, tmp_path, tmp_path_factory.getbasetemp())
    path = f"consumequeue/events/0/{unit // 20 * QUEUE_FILE_SIZE:020d}"
    for text, at, data in (("zero", 0, bytes(20)), ("negative", 8, b"\xff" * 4)):
        damage = write_at(path, unit % 20 * 20 + at, data)
        # As other damage, since every message must be found by its queue.
        survey.run(Mutant(f"unit {unit} is {text}", "other", damage, False), killed=False,
                   writable=True)  # fmt: skip


@pytest.mark.parametrize("read_only", [False, True])
def test_messages_before_the_damage_are_read(plain: Base, tmp_path: Path, read_only: bool) -> None:
    """Also where recovery does not look; and a reader can continue behind it."""
    root = shutil.copytree(plain.path, tmp_path / "store")
    queue = [p for p in all_places(root) if p.record.topic == b"orders" and p.record.queue_id == 1]
    write_log(queue[5].phy_offset + 4, b"no")(root)
    with pyrocketstore.open(root, read_only=read_only, **PLAIN) as store:
        messages = store.read("orders", 1)
        assert [next(messages).phy_offset for _ in range(5)] == [p.phy_offset for p in queue[:5]]
        with pytest.raises(StoreCorruptionError) as failure:
            next(messages)
        assert failure.value.position == queue[5].phy_offset
        assert [m.phy_offset for m in store.read("orders", 1, start=6)] == [
            p.phy_offset for p in queue[6:]
        ]


def test_a_unit_of_two_gigabytes_takes_no_memory(plain: Base, tmp_path: Path) -> None:
    root = shutil.copytree(plain.path, tmp_path / "store")
    write_at(f"consumequeue/orders/1/{0:020d}", 8, struct.pack(">i", 2**31 - 2))(root)
    for read_only in (True, False):
        with bounded(), pyrocketstore.open(root, read_only=read_only, **PLAIN) as store:
            with pytest.raises(StoreCorruptionError, match="does not hold"):
                store.read_batch("orders", 1, start=0)
            assert store.read_batch("orders", 1, start=1).num_rows > 50


def test_a_name_that_is_taken_fails_the_put(plain: Base, tmp_path: Path) -> None:
    """The next log file's name is a directory's: an outcome, not another exception."""
    root = shutil.copytree(plain.path, tmp_path / "store")
    with pyrocketstore.open(root, **PLAIN) as store:
        # The store may have made the next file ahead.
        names = [root / "commitlog" / f"{number * FILE_SIZE:020d}" for number in range(4, 7)]
        next(name for name in names if not name.exists()).mkdir()
        with pytest.raises(PutError, match="CREATE_MAPEDFILE_FAILED") as failure:
            for _ in range(50):
                store.put("orders", bytes(1000))
        assert not failure.value.stored
        with pytest.raises(PutError, match="CREATE_MAPEDFILE_FAILED") as failure:
            store.put_many("orders", [b"fits", *[bytes(1000)] * 20])
        assert failure.value.count >= 0
        assert store.read_batch("orders", 1, start=0).num_rows > 50


def test_an_opening_that_fails_leaves_the_store_as_it_was(plain: Base, tmp_path: Path) -> None:
    """No abort file, which would make the next one believe in a crash, and no lock."""
    root = shutil.copytree(plain.path, tmp_path / "store")
    wrong = PLAIN | {"max_hash_slot_num": SLOTS + 5, "max_index_num": PLAIN["max_index_num"] - 1}
    for _ in range(2):
        with pytest.raises(StoreError, match="index"):
            pyrocketstore.open(root, **wrong)
        assert not (root / "abort").exists()
    with pyrocketstore.open(root, **PLAIN) as store:
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean


# ---- index: headers, slots, chains --------------------------------------------------------------


def index_mutants(root: Path) -> Iterator[Mutant]:
    """False contents of an index file that keep its length."""
    names = [path.name for path in sorted((root / "index").iterdir())]
    entries_at = 40 + 4 * SLOTS
    for name in (names[0], names[-1]):
        path = f"index/{name}"
        count = oracle.IndexFile.decode((root / path).read_bytes(), SLOTS, ENTRIES).index_count
        for field, (at, code) in {"begin time": (0, "q"), "end time": (8, "q"),
                                  "begin offset": (16, "q"), "end offset": (24, "q"),
                                  "slots": (32, "i"), "count": (36, "i")}.items():  # fmt: skip
            top = 2 ** (63 if code == "q" else 31) - 1
            for value in (-1, 0, 1, 2, top, -top - 1, ENTRIES, ENTRIES + 1, 1 << 20):
                data = struct.pack(">" + code, value)
                yield Mutant(f"{field} {value} of {path}", "index", write_at(path, at, data))
        for value in (-1, 1, count - 1, count, ENTRIES, 2**31 - 1):
            slots = struct.pack(">i", value) * SLOTS
            yield Mutant(f"all slots {value} of {path}", "index", write_at(path, 40, slots))
        numbers = range(1, count)
        for text, links in {"itself": numbers, "the next": [*range(2, count), 1],
                            "the last": [count - 1] * count, "far": [2**31 - 1] * count,
                            "below": range(-1, -count, -1), "none": [0] * count,
                            }.items():  # fmt: skip
            damages = [
                write_at(path, entries_at + 20 * n + 16, struct.pack(">i", link))
                for n, link in zip(numbers, links, strict=False)
            ]
            yield Mutant(f"every entry of {path} names {text}", "index", both(*damages))
        for value in (-1, 0, 1, 2**63 - 1, -(2**63), 1 << 20):
            damages = [
                write_at(path, entries_at + 20 * n + 4, struct.pack(">q", value))
                for n in range(1, count)
            ]
            yield Mutant(f"every entry of {path} is at {value}", "index", both(*damages))
        for value in (-1, 2**31 - 1, -(2**31)):
            damages = [
                write_at(path, entries_at + 20 * n + 12, struct.pack(">i", value))
                for n in range(1, count)
            ]
            yield Mutant(f"every entry of {path} is {value} s old", "index", both(*damages))
        for size in (0, 1, 39, 40, 41, entries_at, entries_at + 20 * ENTRIES - 1, 1 << 20):
            text = f"{path} has {size} bytes"
            yield Mutant(text, "index", lambda root, path=path, size=size: os.truncate(
                root / path, size))  # fmt: skip


@in_parts
def test_false_index_files(survey: Survey, part: int) -> None:
    for i, mutant in part_of(enumerate(index_mutants(survey.base.path)), part):
        survey.run(mutant, writable=i % 7 == 0)


# ---- names and kinds of files --------------------------------------------------------------------


def name_mutants(root: Path) -> Iterator[Mutant]:
    zero, second = "0" * 20, f"{FILE_SIZE:020d}"
    last = log_files(root)[-1].name
    index = sorted(path.name for path in (root / "index").iterdir())[-1]
    queue = "consumequeue/orders/1"
    for path in (f"commitlog/{last}", f"{queue}/{zero}", f"index/{index}", "checkpoint", "abort",
                 "lock"):  # fmt: skip
        kind = path.split("/")[0]
        place = {"commitlog": "log", "consumequeue": "queue", "index": "index"}.get(kind, "other")
        for text, damage in {"a directory": directory, "a loop of links": loop}.items():
            yield Mutant(f"{path} is {text}", place, damage(path))
    for path in ("commitlog", "consumequeue", "index", "consumequeue/orders", queue, "config"):
        place = {"commitlog": "log", "index": "index", "config": "other"}.get(path, "queue")
        if (root / path).is_dir():
            yield Mutant(f"{path} is a file", place, instead(path))
            yield Mutant(f"{path} is a loop", place, loop(path))
    for size in (0, 7, 21, QUEUE_FILE_SIZE - 20, QUEUE_FILE_SIZE + 20, 2 * QUEUE_FILE_SIZE):
        for name in (zero, f"{QUEUE_FILE_SIZE:020d}"):
            path = f"{queue}/{name}"
            yield Mutant(f"{path} has {size} bytes", "queue", sized(path, size))
    for size in (0, 7, 23, 24, 4095, 5000):
        yield Mutant(f"checkpoint has {size} bytes", "other", sized("checkpoint", size))
    for value in (-1, 2**63 - 1, -(2**63), 1):
        data = struct.pack(">qqq", value, value, value).ljust(4096, b"\0")
        yield Mutant(f"checkpoint says {value}", "other", content("checkpoint", data), False)
    for name in (b"readme", b".hidden", b"12", b"9" * 19, b"-" + b"0" * 19, b"0" * 21, b"\xff\xfe",
                 b"9" * 20, b"1" * 255, "\u0663".encode() * 20, b"x.tmp"):  # fmt: skip
        for place in ("commitlog", queue, "index"):
            kind = {"commitlog": "log", "index": "index"}.get(place, "queue")
            for what, data in {"with a byte": b"x", "empty": b""}.items():

                def damage(root: Path, place=place, name=name, data=data) -> None:
                    (root / place / os.fsdecode(name)).write_bytes(data)

                yield Mutant(f"{name!r} in {place}, {what}", kind, damage)
    for name in (b"007", b"-1", b"+1", b"99999999999", b"2147483647", b"2147483648", b"x", b"",
                 "\u0663".encode(), b"\xff", b" 1", b"1_0", b"0x1"):  # fmt: skip

        def stray(root: Path, name=name) -> None:
            made = root / "consumequeue" / "orders" / os.fsdecode(name)
            made.mkdir(exist_ok=True)
            (made / "stray").write_bytes(b"x")
            shutil.copytree(made, root / "consumequeue" / os.fsdecode(name or b"y"),
                            dirs_exist_ok=True)  # fmt: skip

        yield Mutant(f"a queue directory {name!r}", "other", stray)
    for name in (b"007", b"-1", b"5"):

        def twin(root: Path, name=name) -> None:
            shutil.copytree(root / queue, root / "consumequeue" / "orders" / os.fsdecode(name))

        yield Mutant(f"a copy of a queue as {name!r}", "other", twin)
    yield Mutant("a log file far behind", "log", lambda root: (
        root / "commitlog" / f"{1 << 40:020d}").write_bytes(bytes(FILE_SIZE)) and None)  # fmt: skip
    yield Mutant("an odd log file", "log", lambda root: (root / "commitlog" / last).rename(
        root / "commitlog" / f"{int(last) + 100:020d}") and None)  # fmt: skip
    yield Mutant("the first log file is missing", "log", lambda root: (
        root / "commitlog" / zero).unlink())  # fmt: skip
    yield Mutant("the second log file is missing", "log", lambda root: (
        root / "commitlog" / second).unlink())  # fmt: skip
    yield Mutant("an empty last log file", "log", content(f"commitlog/{1 << 20:020d}", b""), False)


@in_parts
def test_names_and_kinds_of_files(survey: Survey, part: int) -> None:
    for i, mutant in part_of(enumerate(name_mutants(survey.base.path)), part):
        for killed in (False, True) if SOAK else (i % 2 == 0,):
            survey.run(mutant, killed=killed, writable=i % 3 != 0)


# ---- whole records that say what no store says ---------------------------------------------------


def crafted(
    path: Path, odd: list[dict[str, Any]], *, light: bool = False
) -> tuple[list[oracle.Record], dict[str, Any]]:
    """A killed store that is a log alone: odd records (what differs) among ordinary ones."""
    records = []
    for i in range(12 * (len(odd) + 1)):
        properties = f"KEYS\x01k{i}\x02TAGS\x01T\x02"
        ordinary = oracle.Record(
            topic=b"orders", body=b"body %d" % i, properties=properties.encode(), queue_id=i % 2,
            queue_offset=i // 2, store_timestamp=1_700_000_000_000 + i, flag=i,
        )  # fmt: skip
        records.append(ordinary)
        if i % 12 == 5 and i // 12 < len(odd):
            changed = {"topic": b"odd", "flag": -1, **odd[i // 12]}
            records.append(dataclasses.replace(ordinary, **changed))
    (path / "commitlog").mkdir(parents=True)
    at = 0
    for n, data in enumerate(oracle.write_log(records, FILE_SIZE)):
        (path / "commitlog" / f"{n * FILE_SIZE:020d}").write_bytes(data)
        at += len(data)
    (path / "abort").touch()
    return records, LIGHT if light else PLAIN


def check_crafted(path: Path, settings: dict[str, Any], *, around: Path) -> dict[str, list[int]]:
    """Open a crafted store in every way: all ordinary records are found. Gives {topic: queues}."""
    places = all_places(path)
    ordinary = [place for place in places if place.record.topic == b"orders"]
    ordinary = [place for place in ordinary if place.record.flag != -1]
    topics: dict[str, list[int]] = {}
    for read_only in (True, False, True):
        before = snapshot(path)
        with bounded(), pyrocketstore.open(path, read_only=read_only, **settings) as store:
            answers = Answers(store, places)
            assert answers.end == places[-1].phy_offset + len(places[-1].data)
            missed = answers.miss(ordinary, queues=True, keys=True)
            missed += answers.miss(places, queues=False, keys=False)
            assert not missed, missed[:5]
            assert not answers.errors, answers.errors
            assert not answers.skipped, answers.skipped
            topics = {topic: store.queues(topic) for topic in store.topics()}
        if read_only:
            assert snapshot(path) == before
    with pyrocketstore.open(path, **settings) as store:
        assert store.put("orders", b"continues").queue_offset == len(ordinary) // 2
    outside = [p for p in around.iterdir() if p != path]
    assert not outside, outside
    below = [p.relative_to(path).parts for p in (path / "consumequeue").rglob("*") if p.is_file()]
    assert all(len(parts) == 4 for parts in below), below
    return topics


ODD_TOPICS = (
    b"../../x", b"a/b", b"", b"nul\0nul", b".", b"..", b"/etc/x", b"..\\x", b"\xff\xfe", b"x" * 127,
    b"\xed\xa0\x80", b"line\nbreak", b"\xf0\x9f\x98\x80" * 31, b"lost+found", b"%LMQ%x", b"\0",
    b"SCHEDULE_TOPIC_XXXX", b"TBW102", b" ", b"~", b"$HOME", b"a:b", b"-rf", b"\xef\xbf\xbd",
)  # fmt: skip


@pytest.mark.parametrize("light", [False, True], ids=["plain", "light"])
def test_odd_topics(tmp_path: Path, light: bool) -> None:
    root = tmp_path / "deep" / "store"
    _, settings = crafted(root, [{"topic": topic} for topic in ODD_TOPICS], light=light)
    topics = check_crafted(root, settings, around=root.parent)
    assert {"", ".", "..", "a/b", "../../x"}.isdisjoint(topics)
    assert not any("/" in topic or "\0" in topic for topic in topics)
    assert {"orders", "x" * 127, "lost+found", "\U0001f600" * 31} <= topics.keys()


@pytest.mark.parametrize("light", [False, True], ids=["plain", "light"])
def test_odd_topics_by_multi_dispatch(tmp_path: Path, light: bool) -> None:
    root = tmp_path / "deep" / "store"
    names = [*ODD_TOPICS, b"%LMQ%../../x", b"%LMQ%", b",", b",,a", b"a,", b"orders", b"a,a"]
    odd = []
    for name in names:
        for offsets in (b"0", b"-1", b"9223372036854775807", b"9" * 30, b"1099511627776", b"x", b"",
                        b"0,0", b",", "\u0663".encode(), b"1_0", b" 1 "):  # fmt: skip
            text = b"INNER_MULTI_DISPATCH\1" + name + b"\2INNER_MULTI_QUEUE_OFFSET\1" + offsets
            odd.append({"properties": text, "queue_id": 7})
    _, settings = crafted(root, odd, light=light)
    topics = check_crafted(root, settings, around=root.parent)
    assert not any("/" in topic or "\0" in topic for topic in topics)
    assert {"", ".", ".."}.isdisjoint(topics)


ODD_NUMBERS = (-1, -(2**63), 2**63 - 1, 1 << 40, 1 << 62, 2**63 // 20, 2**63 // 20 + 1, 1 << 31)


@pytest.mark.parametrize("value", ODD_NUMBERS)
@pytest.mark.parametrize("topic", [b"odd", b"orders"])
def test_odd_queue_offsets(tmp_path: Path, topic: bytes, value: int) -> None:
    root = tmp_path / "deep" / "store"
    odd = [{"topic": topic, "queue_offset": value, "queue_id": i} for i in (0, 1, 9)]
    _, settings = crafted(root, odd)
    check_crafted(root, settings, around=root.parent)
    used = sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())
    assert used < 4 << 20


def test_odd_numbers_in_records(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    longs = ("born_timestamp", "store_timestamp", "prepared_transaction_offset")
    ints = ("queue_id", "sys_flag", "reconsume_times")
    odd = [{name: value} for name in longs for value in (*ODD_NUMBERS, 0)]
    # Bit 0 of sysFlag would say that the body is compressed.
    odd += [{name: value} for name in ints for value in (-2, 2**31 - 2, -(2**31), 0x40)]
    odd += [{"properties": text} for text in (b"\1", b"\2", b"\1\2", b"KEYS\1\2", b"KEYS\1 ",
            b"TAGS\1\xff\2KEYS\1\xff\xfe \xed\xa0\x80", b"\xff" * 300, b"KEYS\1" + b"k " * 5000,
            b"DELAY\1" + b"9" * 40, b"UNIQ_KEY\1" + b"\0" * 9)]  # fmt: skip
    _, settings = crafted(root, odd)
    check_crafted(root, settings, around=root.parent)


def test_delays_that_are_no_levels(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    levels = (b"-1", b"0", b"19", b"2147483647", b"-2147483648", b"9" * 40, b"x", "\u0663".encode())
    odd = [{"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\1" + level, "queue_offset": i,
            "queue_id": 0, "store_timestamp": time}
           for time in (0, 2**63 - 1, -(2**63)) for i, level in enumerate(levels)]  # fmt: skip
    _, settings = crafted(root, odd)
    check_crafted(root, settings, around=root.parent)


@pytest.mark.parametrize("fields", [{"phy_offset": 1}, {"phy_offset": -1}, {"crc": 1}], ids=str)
def test_a_record_that_is_not_its_own_ends_the_log(tmp_path: Path, fields: dict[str, int]) -> None:
    root = tmp_path / "store"
    _, settings = crafted(root, [{}])
    places = all_places(root)
    bad = next(place for place in places if place.record.flag == -1)
    data = oracle.encode_record(dataclasses.replace(bad.record, **fields))
    write_log(bad.phy_offset, data)(root)
    before = [place for place in places if place.phy_offset < bad.phy_offset]
    for read_only in (True, False):
        with bounded(), pyrocketstore.open(root, read_only=read_only, **settings) as store:
            answers = Answers(store, places)
            assert answers.end == bad.phy_offset
            assert not answers.miss(before, queues=True, keys=True)
    (kept,) = (root / ".broken").rglob("0*")
    assert places[-1].data in kept.read_bytes()
