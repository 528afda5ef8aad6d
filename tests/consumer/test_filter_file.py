"""Goal: consumerFilter.json has 4.9.3's text and rules, and ext units have the bit maps of the
registered filters, live and after recovery.
Method: the text that 4.9.3's ConsumerFilterManager printed for the same calls, a clock that the
test moves, stores with ext units, and damaged contents."""

from __future__ import annotations

import errno
import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.consume_queue.ext import CqExtUnit
from pyrocketstore.consumer.consumer_filters import ConsumerFilters
from pyrocketstore.filter.bloom import BloomFilter
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.system.env import Env

#: Printed by 4.9.3, for 20 percent and 64 consumers.
TEXT = """{
→"filterDataByTopic":{
→→"TopicA":{
→→→"groupFilterData":{
→→→→"GroupA":{
→→→→→"bloomFilterData":{
→→→→→→"bitNum":216,
→→→→→→"bitPos":[53,147,51]
→→→→→},
→→→→→"bornTime":1795849534208,
→→→→→"clientVersion":1795849534208,
→→→→→"consumerGroup":"GroupA",
→→→→→"dead":false,
→→→→→"deadTime":0,
→→→→→"expression":"a > 5 AND b = 'x'",
→→→→→"expressionType":"SQL92",
→→→→→"topic":"TopicA"
→→→→},
→→→→"GroupB":{
→→→→→"bloomFilterData":{
→→→→→→"bitNum":216,
→→→→→→"bitPos":[79,184,48]
→→→→→},
→→→→→"bornTime":1795849534208,
→→→→→"clientVersion":1795849534208,
→→→→→"consumerGroup":"GroupB",
→→→→→"dead":false,
→→→→→"deadTime":0,
→→→→→"expression":"a > 6",
→→→→→"expressionType":"SQL92",
→→→→→"topic":"TopicA"
→→→→}
→→→},
→→→"topic":"TopicA"
→→}
→}
}""".replace("→", "\t")
DAY_MS = 24 * 3600 * 1000
#: error rate, expected names: hash count, bits, positions of two names, as 4.9.3 answers
BLOOM = {
    (20, 32): (3, 112, [29, 107, 11], [111, 38, 67]),
    (20, 64): (3, 216, [53, 147, 51], [183, 70, 75]),
    (1, 1): (7, 16, [13, 11, 11, 13, 6, 0, 8], [15, 6, 3, 13, 8, 1, 11]),
    (10, 128): (4, 616, [309, 611, 11, 293], [503, 206, 11, 229]),
    (99, 1): (1, 8, [5], [7]),
    (50, 7): (1, 16, [13], [15]),
    (33, 1000): (2, 2312, [1277, 571], [239, 318]),
}
SETTINGS: dict[str, Any] = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 1 << 12,
    "enable_calc_filter_bit_map": True,
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
}
NAME = "config/consumerFilter.json"


class Clock(Env):
    """A clock that does not move until the test moves it."""

    ms = 1795849534208

    def now_ms(self) -> int:
        return self.ms


def loaded(root: Path, clock: Env, *, newest: int = 0, expected: int = 64) -> ConsumerFilters:
    filters = ConsumerFilters(clock, str(root), 20, expected, DAY_MS, lambda: newest)
    filters.load()
    return filters


def entries(root: Path, topic: str = "TopicA") -> dict[str, Any]:
    table = json.loads((root / NAME).read_text("utf-8"))["filterDataByTopic"]
    found: dict[str, Any] = table.get(topic, {}).get("groupFilterData", {})
    return found


def registered(root: Path, clock: Clock) -> ConsumerFilters:
    filters = loaded(root, clock)
    filters.register("GroupA", "TopicA", Sql92Filter("a > 5 AND b = 'x'"))
    filters.register("GroupB", "TopicA", Sql92Filter("a > 6"))
    filters.persist()
    return filters


# ---- the Bloom filter -----------------------------------------------------------------------


@pytest.mark.parametrize("parameters", BLOOM)
def test_positions_are_those_of_4_9_3(parameters: tuple[int, int]) -> None:
    bloom = BloomFilter(*parameters)
    hashes, bits, first, second = BLOOM[parameters]
    assert (bloom.hash_count, bloom.bit_count) == (hashes, bits)
    assert bloom.positions("GroupA#TopicA") == first
    assert bloom.positions("é\ud800x#") == second


def test_a_bit_map_has_the_names_that_were_put() -> None:
    bloom = BloomFilter(20, 32)
    names = [bloom.positions(f"group{n}") for n in range(4)]
    bit_map = bloom.bit_map(names[:2])
    assert len(bit_map) == 14
    assert [bloom.is_hit(positions, bit_map) for positions in names[:2]] == [True, True]
    assert not bloom.is_hit(names[2], bloom.bit_map([]))
    assert bit_map[names[0][0] >> 3] >> (names[0][0] & 7) & 1
    assert bloom.is_hit(names[2], bytes(13))  # of another length: it says nothing


@pytest.mark.parametrize(("rate", "expected"), [(0, 32), (100, 32), (-1, 1), (20, 0)])
def test_other_parameters_are_refused(rate: int, expected: int) -> None:
    with pytest.raises(StoreFormatError):
        BloomFilter(rate, expected)
    with pytest.raises(StoreFormatError, match="must be"):
        pyrocketstore.MessageStoreConfig(
            max_error_rate_of_bloom_filter=rate, expect_consumer_num_use_filter=expected
        )


# ---- the file -------------------------------------------------------------------------------


def test_the_text_is_that_of_4_9_3(tmp_path: Path) -> None:
    registered(tmp_path, Clock())
    assert (tmp_path / NAME).read_text("utf-8") == TEXT


def test_an_opening_finds_all_filters_dead(tmp_path: Path) -> None:
    clock = Clock()
    registered(tmp_path, clock)
    clock.ms += 10_000
    again = loaded(tmp_path, clock)
    again.register("GroupB", "TopicA", Sql92Filter("a > 6"))
    again.persist()
    found = entries(tmp_path)
    assert (found["GroupA"]["dead"], found["GroupA"]["deadTime"]) == (True, clock.ms - 10_000)
    # A filter that comes again has its old birth: bit maps had it all the time.
    assert (found["GroupB"]["dead"], found["GroupB"]["deadTime"]) == (False, 0)
    assert found["GroupB"]["bornTime"] == clock.ms - 10_000
    assert found["GroupB"]["clientVersion"] == clock.ms
    clock.ms += 100_000
    again = loaded(tmp_path, clock)
    again.register("other", "TopicA", Sql92Filter("a > 6"))
    again.persist()
    assert entries(tmp_path)["GroupB"]["deadTime"] == clock.ms - 30_000


def test_another_filter_of_a_group_has_its_own_birth(tmp_path: Path) -> None:
    clock = Clock()
    filters = registered(tmp_path, clock)
    clock.ms -= 5000  # the clock goes back
    filters.register("GroupA", "TopicA", Sql92Filter("a > 7"))
    filters.register("GroupB", "TopicA", Sql92Filter("a > 6"))
    filters.persist()
    found = entries(tmp_path)
    assert found["GroupA"]["expression"] == "a > 7"
    assert found["GroupA"]["bornTime"] == clock.ms
    assert found["GroupB"]["bornTime"] == clock.ms + 5000
    # A greater one would have a broker ignore its clients.
    assert all(one["clientVersion"] == clock.ms for one in found.values())


def test_a_filter_is_not_born_before_the_newest_message(tmp_path: Path) -> None:
    filters = loaded(tmp_path, Clock(), newest=Clock.ms + 77)
    filters.register("g", "TopicA", Sql92Filter("a > 5"))
    filters.persist()
    assert entries(tmp_path)["g"]["bornTime"] == Clock.ms + 77
    assert entries(tmp_path)["g"]["clientVersion"] == Clock.ms


def test_bit_maps_have_a_filter_before_its_birth(tmp_path: Path) -> None:
    """Else a broker would leave out a message that was dispatched in between."""
    seen: list[bytes | None] = []

    class Watched(Clock):
        def now_ms(self) -> int:
            seen.append(filters.bit_map("TopicA", {"a": "6"}))
            return self.ms

    clock = Watched()
    filters = ConsumerFilters(clock, str(tmp_path), 20, 64, DAY_MS, lambda: 0)
    filters.register("g", "TopicA", Sql92Filter("a > 5"))
    assert seen
    assert None not in seen


def test_a_filter_is_removed_a_day_after_its_death(tmp_path: Path) -> None:
    clock = Clock()
    filters = registered(tmp_path, clock)
    filters.note_end("GroupA")
    assert filters.bit_map("TopicA", {"a": "6", "b": "x"}) != bytes(27)
    for later, names in ((DAY_MS - 1, ["GroupA", "GroupB"]), (1, ["GroupB"])):
        clock.ms += later
        filters.register("GroupB", "TopicA", Sql92Filter("a > 6"))
        filters.persist()
        assert list(entries(tmp_path)) == names
    assert filters.bit_map("TopicA", {"a": "6", "b": "x"}) == bytes(27)
    filters.note_end()
    clock.ms += DAY_MS
    filters.register("g", "TopicB", Sql92Filter("a > 6"))
    filters.persist()
    assert entries(tmp_path) == {}
    assert filters.bit_map("TopicA", {"a": "7"}) is None
    assert list(entries(tmp_path, "TopicB")) == ["g"]


def test_bit_maps_keep_a_filter_until_it_is_removed_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    filters = registered(tmp_path, clock)
    filters.note_end()
    clock.ms += DAY_MS

    def fail(content: object) -> None:
        raise StoreIOError(errno.EIO, "of a test", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(filters._file, "write", fail)
        with pytest.raises(StoreIOError):
            filters.persist()
    assert filters.bit_map("TopicA", {"a": "7"}) not in (None, bytes(27))
    filters.persist()
    assert filters.bit_map("TopicA", {"a": "7"}) is None
    assert entries(tmp_path) == {}


def test_bit_maps_keep_the_text_before_until_the_new_one_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker reads the file that is there, and skips messages that its filter has no bits of."""
    filters = registered(tmp_path, Clock())
    old, middle, new = {"a": "6", "b": "x"}, {"a": "20"}, {"a": "-1"}
    other = filters.bit_map("TopicA", {"a": "0"})

    def fail(content: object) -> None:
        raise StoreIOError(errno.EIO, "of a test", str(tmp_path))

    filters.note_end("GroupB")
    filters.register("GroupA", "TopicA", Sql92Filter("a = 20"))
    filters.register("GroupA", "TopicA", Sql92Filter("a < 0"))
    hits = [filters.bit_map("TopicA", one) for one in (old, middle, new)]
    with monkeypatch.context() as patch:
        patch.setattr(filters._file, "write", fail)
        with pytest.raises(StoreIOError):
            filters.persist()
    assert [filters.bit_map("TopicA", one) for one in (old, middle, new)] == hits
    assert other not in hits
    filters.persist()
    assert entries(tmp_path)["GroupA"]["expression"] == "a < 0"
    assert filters.bit_map("TopicA", old) == other
    assert filters.bit_map("TopicA", new) == hits[2]


def test_filters_of_another_bloom_filter_are_ignored(tmp_path: Path) -> None:
    registered(tmp_path, Clock())
    filters = loaded(tmp_path, Clock(), expected=32)
    assert filters.bit_map("TopicA", {"a": "7"}) is None
    filters.register("g", "TopicA", Sql92Filter("a > 5"))
    filters.persist()
    assert list(entries(tmp_path)) == ["g"]


def test_foreign_entries_and_unknown_fields_stay(tmp_path: Path) -> None:
    registered(tmp_path, Clock())
    content = json.loads((tmp_path / NAME).read_text("utf-8"))
    topic = content["filterDataByTopic"]["TopicA"]
    topic["groupFilterData"]["GroupA"] |= {"expressionType": "OTHER", "more": [{"x": None}]}
    topic["groupFilterData"]["GroupB"]["expression"] = "a > "
    content |= {"later": 5}
    (tmp_path / NAME).write_text(json.dumps(content))
    filters = loaded(tmp_path, Clock())
    assert filters.bit_map("TopicA", {"a": "7", "b": "x"}) is None
    filters.register("g", "TopicA", Sql92Filter("a > 5"))
    filters.persist()
    assert json.loads((tmp_path / NAME).read_text("utf-8"))["later"] == 5
    found = entries(tmp_path)
    assert (found["GroupA"]["expressionType"], found["GroupA"]["more"]) == ("OTHER", [{"x": None}])
    assert found["GroupB"]["expression"] == "a > "


DAMAGE: dict[str, Any] = {
    "no table": {"filterDataByTopic": [1]},
    "null": {"filterDataByTopic": None},
    "a text": {"filterDataByTopic": "t"},
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_an_error_or_its_backup_is_read(tmp_path: Path, what: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / NAME).write_text(json.dumps(DAMAGE[what]))
    with pytest.raises(StoreCorruptionError, match="register their filters again"):
        loaded(tmp_path, Clock())
    (tmp_path / (NAME + ".bak")).write_text(TEXT)
    assert loaded(tmp_path, Clock()).bit_map("TopicA", {"a": "7"}) not in (None, bytes(27))


@pytest.mark.parametrize("content", ['{"filterDataByTopic":{"t":null}}', "{}"])
def test_missing_parts_are_no_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / NAME).write_text(content)
    assert loaded(tmp_path, Clock()).bit_map("t", {}) is None


@pytest.mark.parametrize("position", [-1, 216, 1 << 70])
def test_a_filter_with_a_position_outside_of_the_bit_map_is_not_used(
    tmp_path: Path, position: int
) -> None:
    before = sum(map(len, registered(tmp_path, Clock())._compiled.values()))
    text = (tmp_path / NAME).read_text("utf-8").replace("[53,147,51]", f"[53,{position},51]")
    (tmp_path / NAME).write_text(text)
    assert sum(map(len, loaded(tmp_path, Clock())._compiled.values())) == before - 1


def test_after_close_nothing_is_written(tmp_path: Path) -> None:
    filters = registered(tmp_path, Clock())
    filters.close()
    with pytest.raises(StoreStateError, match="closed"):
        filters.register("g", "t", Sql92Filter("a > 5"))
    filters.note_end()
    filters.persist()
    assert (tmp_path / NAME).read_text("utf-8") == TEXT


# ---- a store --------------------------------------------------------------------------------


def units(store: pyrocketstore.Store, topic: str = "t") -> list[CqExtUnit | None]:
    queue = store.message_store.find_consume_queue(topic, 0)
    codes = queue.read_units(0, 1 << 20).tags_code
    return [queue.get_ext(int(code)) for code in codes]


def bit_maps(store: pyrocketstore.Store, topic: str = "t") -> list[bytes | None]:
    found = units(store, topic)
    assert None not in found
    return [unit.bit_map for unit in found if unit is not None]


def expected_bits(filters: Mapping[str, str], properties: Mapping[str, str]) -> bytes:
    bloom = BloomFilter(20, 32)
    return bloom.bit_map(
        bloom.positions(f"{group}#t")
        for group, text in filters.items()
        if Sql92Filter(text).matches(properties)
    )


FILTERS = {"cheap": "price < 5", "eu": "region = 'eu'", "bare": "price IS NULL"}
ROWS = [{"price": str(n), "region": "eu" if n % 3 else "us"} for n in range(8)]


def put_rows(store: pyrocketstore.Store) -> None:
    for row in ROWS:
        store.put("t", b"body", tags="TagA", properties=row)
    store.put("t", b"bare")
    store.message_store.wait_dispatched()


@pytest.mark.parametrize("killed", [False, True])
def test_ext_units_have_the_bit_maps_of_registered_filters(tmp_path: Path, killed: bool) -> None:
    wanted = [expected_bits(FILTERS, row) for row in [*ROWS, {}]]
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.put("t", b"before")
        store.message_store.wait_dispatched()
        for group, text in FILTERS.items():
            store.consumer(group, "t", where=text).close()
        put_rows(store)
        assert bit_maps(store) == [None, *wanted]
        assert len(set(wanted)) > 4
    if killed:  # recovery dispatches the messages again
        (tmp_path / "abort").touch()
        for path in (tmp_path / "consumequeue", tmp_path / "consumequeue_ext"):
            for file in path.rglob("0*"):
                if file.is_file():
                    file.unlink()
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        first = expected_bits(FILTERS, {}) if killed else None
        assert bit_maps(store) == [first, *wanted]


def test_there_are_no_bit_maps_without_the_setting(tmp_path: Path) -> None:
    settings = {**SETTINGS, "enable_calc_filter_bit_map": False}
    with pyrocketstore.open(tmp_path, **settings) as store:
        store.consumer("eu", "t", where="region = 'eu'").close()
        put_rows(store)
        assert set(bit_maps(store)) == {None}


def test_a_topic_without_filters_has_no_bit_maps(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.consumer("eu", "other", where="region = 'eu'").close()
        put_rows(store)
        assert set(bit_maps(store)) == {None}


def test_a_listener_gets_the_bit_map(tmp_path: Path) -> None:
    seen: list[bytes | None] = []
    config = pyrocketstore.MessageStoreConfig(
        store_path_root_dir=str(tmp_path), enable_calc_filter_bit_map=True
    )
    filters = ConsumerFilters(Env(), str(tmp_path), 20, 32, DAY_MS, lambda: 0)
    filters.register("eu", "t", Sql92Filter("region = 'eu'"))
    filters.persist()
    store = pyrocketstore.DefaultMessageStore(
        config, message_arriving_listener=lambda *row: seen.append(row[5])
    )
    assert store.load()
    store.start()
    for row in ({"region": "eu"}, {"region": "us"}):
        text = f"region\x01{row['region']}\x02"
        message = pyrocketstore.MessageExtBrokerInner("t", b"body", properties_string=text)
        store.put_message(message)
    store.wait_dispatched()
    store.shutdown()
    assert seen == [expected_bits({"eu": "region = 'eu'"}, {"region": "eu"}), bytes(14)]


def test_a_consumer_registers_its_filter(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path) as store:
        for region in ("eu", "us"):
            store.put("t", region.encode(), properties={"region": region})
        one = store.consumer("g", ["t", "u"], where="region = 'eu'")
        two = store.consumer("g", "t", where=Sql92Filter("region = 'eu'"))
        assert {topic: entries(tmp_path, topic)["g"]["dead"] for topic in "tu"} == dict.fromkeys(
            "tu", False
        )
        assert [message.body for message in one.poll(9, 0) + two.poll(9, 0)] == [b"eu"]
        filters = store.message_store.filters.get()
        one.close()
        filters.persist()
        assert not entries(tmp_path, "t")["g"]["dead"]
        two.close()
        filters.persist()
        assert all(entries(tmp_path, topic)["g"]["dead"] for topic in "tu")
        store.consumer("g", "t", where="region = 'eu'")
        gc.collect()
    # The store has closed: no group has members.
    assert entries(tmp_path, "t")["g"]["dead"]
    assert entries(tmp_path, "t")["g"]["deadTime"] >= entries(tmp_path, "t")["g"]["bornTime"]


def test_a_store_without_filters_has_no_file(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.put("t", b"body")
        store.consumer("g", "t").close()
    assert not (tmp_path / NAME).exists()


def test_a_read_only_store_writes_no_filter(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path) as store:
        store.put("t", b"body", properties={"region": "eu"})
    with (
        pyrocketstore.open(tmp_path, read_only=True) as store,
        store.consumer("g", "t", where="region = 'eu'") as consumer,
    ):
        assert [message.body for message in consumer.poll(9, 0)] == [b"body"]
    assert not (tmp_path / NAME).exists()


def test_a_damaged_file_refuses_the_opening_only_if_it_is_needed(tmp_path: Path) -> None:
    plain = {**SETTINGS, "enable_calc_filter_bit_map": False}
    with pyrocketstore.open(tmp_path, **plain) as store:
        store.put("t", b"body")
        store.consumer("g", "t", where="a = 1").close()
    (tmp_path / NAME).write_text("{")
    (tmp_path / (NAME + ".bak")).unlink(missing_ok=True)
    with pyrocketstore.open(tmp_path, **plain) as store:
        store.consumer("g", "t").close()
        with pytest.raises(StoreCorruptionError, match=r"consumerFilter\.json"):
            store.consumer("g", "t", where="a = 1")
    with pytest.raises(StoreCorruptionError, match=r"consumerFilter\.json"):
        pyrocketstore.open(tmp_path, **SETTINGS)
    (tmp_path / NAME).unlink()
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        assert [message.body for message in store.read("t")] == [b"body"]


def test_a_program_s_own_filter_class_ends_no_dispatch(tmp_path: Path) -> None:
    class Failing(Sql92Filter):
        def matches(self, properties: Mapping[str, str]) -> bool:
            raise KeyError("a")

    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.consumer("cheap", "t", where=Failing(FILTERS["cheap"])).close()
        put_rows(store)
        wanted = {"cheap": FILTERS["cheap"]}
        assert bit_maps(store) == [expected_bits(wanted, row) for row in [*ROWS, {}]]


def test_filters_that_are_none_are_refused(tmp_path: Path) -> None:
    class Pretending:
        __class__ = Sql92Filter  # type: ignore[assignment]

    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        for where in (Pretending(), Sql92Filter.__new__(Sql92Filter)):
            with pytest.raises(StoreTypeError):
                store.consumer("g", "t", where=where)  # type: ignore[arg-type]
        with pytest.raises(StoreFormatError, match="surrogate"):
            store.consumer("g", "t", where="a = '\ud800'")
    assert not (tmp_path / NAME).exists()


def test_bit_maps_that_fit_no_ext_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="ext unit"):
        pyrocketstore.open(tmp_path, **SETTINGS, expect_consumer_num_use_filter=80_000)
