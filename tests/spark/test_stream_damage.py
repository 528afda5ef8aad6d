"""Goal: damage and loss hide no valid message from a stream, and each omitted message is reported.
Method: small stores that the test damages; the reader is called as Spark calls it, without
Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import Store
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE as UNIT
from pyrocketstore.errors import StoreCorruptionError, StoreWarning
from pyrocketstore.spark.options import STREAM, read_options
from pyrocketstore.spark.plan.offsets import INITIAL, encode_offset
from pyrocketstore.spark.task_types import DataLossError
from pyrocketstore.system.env import Env

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows

from pyrocketstore.spark.read import messages
from pyrocketstore.spark.source.stream import StoreStreamReader
from streams import live, next_batch, open_store, put, queue_file, reader, rows, write_at

COUNT = 200
LOG_FILE = 1 << 16
LARGE = {"mapped_file_size_commit_log": LOG_FILE, "mapped_file_size_consume_queue": 1000 * UNIT}


def place_of(root: Path, topic: str, queue_offset: int) -> tuple[int, int]:
    """The physical offset and the size of a record, from the queue's unit."""
    unit = queue_file(root, topic).read_bytes()[queue_offset * UNIT :][:UNIT]
    return int.from_bytes(unit[:8], "big"), int.from_bytes(unit[8:12], "big")


def damage(root: Path, queue_offset: int, at: int = 0, data: bytes = bytes(60)) -> bytes:
    """Overwrite bytes of a message's record, and return the former bytes."""
    place = place_of(root, "t", queue_offset)[0] + at
    path = root / "commitlog" / f"{place - place % LOG_FILE:020d}"
    before = path.read_bytes()[place % LOG_FILE :][: len(data)]
    write_at(path, place % LOG_FILE, data)
    return before


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of 200 messages in one queue file and one log file."""
    with open_store(tmp_path / "store", **LARGE) as store:
        for number in range(COUNT):
            store.put("t", b"%d" % number + b"x" * 100, tags="a")
    return tmp_path / "store"


def offsets(stream: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [offset for _, _, offset in rows(stream, start, end)]


def everything(root: Path, **options: object) -> StoreStreamReader:
    return reader(root, startingOffsets="earliest", **options)


def table(root: Path, **options: object) -> list[dict[str, Any]]:
    """A stream's first batch, with the columns that show a damaged row."""
    texts = {"path": root, "startingOffsets": "earliest", **options}
    requested = read_options({name: str(value) for name, value in texts.items()}, STREAM)
    columns = {"queueOffset": "bigint", "commitLogOffset": "bigint", "bodyCRC": "int"}
    stream = StoreStreamReader(requested, columns, recovery_s=0)
    end = next_batch(stream, INITIAL)
    parts = stream.partitions(INITIAL, end)
    return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


# ---- damage at a queue's end ---------------------------------------------------------------------


@pytest.mark.parametrize("middle", [99, 100, 149, 0])
def test_damage_before_damage_at_the_end_hides_nothing(root: Path, middle: int) -> None:
    """The search by halves meets the damaged record in the middle."""
    damage(root, middle)
    damage(root, COUNT - 1)
    assert live(root).ends() == {("t", 0): COUNT - 1}
    stream = everything(root, onCorrupt="skip")
    left = [offset for offset in range(COUNT - 1) if offset != middle]
    assert offsets(stream, INITIAL, next_batch(stream, INITIAL)) == left
    stream = everything(root)
    end = next_batch(stream, INITIAL)
    with pytest.raises(StoreCorruptionError, match="byte"):
        offsets(stream, INITIAL, end)


def test_damage_anywhere_moves_no_end(root: Path) -> None:
    """As many damaged ones as the halves can meet, those at the end among them."""
    for offset in (*range(3, COUNT, 7), COUNT - 3, COUNT - 1):
        damage(root, offset)
    assert live(root).ends() == {("t", 0): COUNT - 1}  # 198 is valid
    seen = live(root)
    seen.ends()
    waiting = seen.waiting["t", 0]
    assert (waiting.first, waiting.stop) == (COUNT - 1, COUNT)


def test_waiting_units_are_reported_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = damage(root, COUNT - 1)
    stream = everything(root)
    first = next_batch(stream, INITIAL)
    assert offsets(stream, INITIAL, first) == list(range(COUNT - 1))
    for _ in range(3):
        stream.plan.look(now=True)
        assert next_batch(stream, first) == first
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == 1
    assert "t/0: units 199 to 199 are damaged, or name damaged or missing records" in reported[0]
    # It was not damaged after all, but late.
    damage(root, COUNT - 1, data=kept)
    stream.plan.look(now=True)
    assert not stream.plan.waiting()
    assert offsets(stream, first, next_batch(stream, first)) == [COUNT - 1]


def test_no_damage_is_reported_too_early(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(root, COUNT - 1)
    requested = read_options({"path": str(root)}, STREAM)
    stream = StoreStreamReader(requested, {"queueOffset": "bigint"}, recovery_s=60)
    next_batch(stream, INITIAL)
    assert not caplog.records
    stream.plan.recovery_s = 0
    next_batch(stream, INITIAL)
    assert len(caplog.records) == 1


def test_messages_after_the_damage_reveal_it(root: Path) -> None:
    first = next_batch(everything(root), INITIAL)
    with open_store(root, **LARGE) as store:
        put(store, "t", 1)
        damage(root, COUNT)
        stream = reader(root, onCorrupt="skip")
        assert next_batch(stream, first) == first
        put(store, "t", 1)
        stream.plan.look(now=True)
        second = next_batch(stream, first)
        assert offsets(stream, first, second) == [COUNT + 1]
        with pytest.raises(StoreCorruptionError, match="at byte"):
            offsets(reader(root), first, second)


def test_available_now_counts_omitted_messages(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(root, 99)
    damage(root, COUNT - 2)
    damage(root, COUNT - 1)
    path = str(queue_file(root, "t"))
    with pytest.raises(StoreCorruptionError, match=r"units 198 to 199.*in all 2 units") as raised:
        everything(root).prepareForTriggerAvailableNow()
    assert (raised.value.path, raised.value.position) == (path, 198 * UNIT)
    for on_corrupt in ("skip", "null"):
        caplog.clear()
        stream = everything(root, onCorrupt=on_corrupt)
        stream.prepareForTriggerAvailableNow()
        assert "omitted: store: t/0: units 198 to 199" in caplog.text
        end = next_batch(stream, INITIAL)
        found = offsets(stream, INITIAL, end)
        assert found == [i for i in range(198) if i != 99 or on_corrupt == "null"]
        assert next_batch(stream, end) == end


def test_available_now_waits_for_late_messages(root: Path) -> None:
    kept = damage(root, COUNT - 1)

    class Late(Env):
        def sleep(self, seconds: float) -> None:
            damage(root, COUNT - 1, data=kept)

    requested = read_options({"path": str(root), "startingOffsets": "earliest"}, STREAM)
    stream = StoreStreamReader(requested, {"topic": "string"}, env=Late())
    stream.prepareForTriggerAvailableNow()
    assert next_batch(stream, INITIAL)["q"] == {"store": {"t": {"0": COUNT}}}


def test_a_store_that_was_opened_has_nothing_to_wait_for(root: Path) -> None:
    damage(root, COUNT - 2)
    damage(root, COUNT - 1)
    with pytest.raises(StoreCorruptionError, match="Opening the store for writing"):
        everything(root).prepareForTriggerAvailableNow()
    with pytest.warns(StoreWarning, match="these messages are missing"):
        open_store(root, **LARGE).close()
    stream = everything(root)
    stream.prepareForTriggerAvailableNow()
    assert offsets(stream, INITIAL, next_batch(stream, INITIAL)) == list(range(COUNT - 2))


@pytest.mark.parametrize("count", [1, 60])
def test_invalid_units_are_taken_from_the_log(root: Path, count: int) -> None:
    first = next_batch(everything(root), INITIAL, ReadMaxRows(110))
    write_at(queue_file(root, "t"), 120 * UNIT, bytes(count * UNIT))
    assert live(root).ends() == {("t", 0): COUNT}
    stream = reader(root)
    stream.prepareForTriggerAvailableNow()
    assert offsets(stream, first, next_batch(stream, first)) == list(range(110, COUNT))


# ---- damaged records -----------------------------------------------------------------------------


def test_fail_names_the_record(root: Path) -> None:
    damage(root, 50)
    with pytest.raises(StoreCorruptionError, match=f"at byte {place_of(root, 't', 50)[0]}: "):
        table(root)


@pytest.mark.parametrize(
    ("at", "data", "verify_crc"),
    [(0, bytes(60), False), (0, b"\0\0\0\5", False), (4, b"\1", False), (100, b"\xff", True)],
)
def test_skip_and_null(
    root: Path, at: int, data: bytes, verify_crc: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost head, a lost length, a wrong magic code, and a flipped byte of a body."""
    damage(root, 50, at, data)
    place = place_of(root, "t", 50)[0]
    with pytest.raises(StoreCorruptionError):
        table(root, verifyCrc=verify_crc)
    left = table(root, onCorrupt="skip", verifyCrc=verify_crc)
    assert [row["queueOffset"] for row in left] == [i for i in range(COUNT) if i != 50]
    assert f"omitted 1 records, {place_of(root, 't', 50)[1]} bytes" in caplog.text
    shown = table(root, onCorrupt="null", verifyCrc=verify_crc)
    assert [row["queueOffset"] for row in shown] == list(range(COUNT))
    lost = [row for row in shown if row["bodyCRC"] is None]
    assert lost == [{"queueOffset": 50, "commitLogOffset": place, "bodyCRC": None}]


def test_a_limited_stream_continues_after_damage(root: Path) -> None:
    for offset in (0, 1, 2, 50, COUNT - 1):
        damage(root, offset)
    stream = everything(root, onCorrupt="skip")
    start, seen = INITIAL, []
    while (end := next_batch(stream, start, ReadMaxRows(3))) != start:
        seen += offsets(stream, start, end)
        start = end
    assert seen == [i for i in range(3, COUNT - 1) if i != 50]


# ---- queues of records that are another queue's --------------------------------------------------


def dispatched(root: Path, queues: str) -> Store:
    store = open_store(root, enable_multi_dispatch=True)
    for number in range(20):
        properties = {"INNER_MULTI_DISPATCH": queues}
        store.put("t", str(number).encode(), queue_id=1, properties=properties)
        store.put("u", b"its own", queue_id=1)
    store.wait_dispatched()
    return store


@pytest.mark.parametrize("queues", ["plain", "other,plain", "plain,%LMQ%light"])
def test_a_record_in_a_queue_of_another_name(tmp_path: Path, queues: str) -> None:
    with dispatched(tmp_path / "s", queues) as store:
        named = [("t", 1), ("u", 1), ("plain", 1)]
        ends = live(store.path).ends()
        assert {name: ends[name] for name in named} == {
            (topic, i): store.max_offset(topic, i) for topic, i in named
        }
        assert set(ends.values()) == {20}
        stream = everything(tmp_path / "s", topic="plain")
        assert rows(stream, INITIAL, next_batch(stream, INITIAL)) == [
            ("plain", 1, i) for i in range(20)
        ]


def test_a_unit_of_a_record_that_names_other_queues_does_not_count(tmp_path: Path) -> None:
    with dispatched(tmp_path / "s", "plain") as store:
        path, own = (queue_file(store.path, topic, 1, 1) for topic in ("plain", "u"))
        # Unit 19 names a record of queue "u" alone: the one of offset 19, then the one before.
        write_at(path, 9 * UNIT, own.read_bytes()[9 * UNIT : 10 * UNIT])
        assert live(store.path, topic="plain").ends() == {("plain", 1): 19}
        write_at(path, 9 * UNIT, own.read_bytes()[8 * UNIT : 9 * UNIT])
        assert live(store.path, topic="plain").ends() == {("plain", 1): 19}


# ---- queues that are away for a while ------------------------------------------------------------


def test_a_queue_that_was_away_continues_at_its_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole store is, as when its directory is not mounted."""
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "t", 50)
        put(store, "u", 5)
    stream = reader(root, failOnDataLoss=False)
    first = encode_offset({("store", "t", 0): 50, ("store", "u", 0): 5}, {}, {})
    assert next_batch(stream, first) == first
    root.rename(tmp_path / "away")
    for exists in (False, True):
        if exists:
            root.mkdir()
        caplog.clear()
        for _ in range(3):
            stream.plan.look(now=True)
            assert next_batch(stream, first) == first
        assert len(caplog.records) == (0 if exists else 2), caplog.text
        assert exists or "t/0 is gone, and 50 was the next" in caplog.text
    root.rmdir()
    (tmp_path / "away").rename(root)
    for each in (stream, reader(root, failOnDataLoss=False)):
        each.plan.look(now=True)
        assert next_batch(each, first) == first
    with open_store(root) as store:
        put(store, "t", 3)
    stream.plan.look(now=True)
    end = next_batch(stream, first)
    assert rows(stream, first, end) == [("t", 0, i) for i in (50, 51, 52)]


def test_a_queue_without_its_directory_is_read_from_the_log(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "t", 50)
        put(store, "u", 5)
    stream = reader(root)
    start = encode_offset({("store", "t", 0): 40, ("store", "u", 0): 5}, {})
    stream.plan.look()
    (root / "consumequeue" / "t").rename(root / "t")
    for each in (stream, reader(root)):
        each.plan.look(now=True)
        end = next_batch(each, start)
        assert rows(each, start, end) == [("t", 0, i) for i in range(40, 50)]


def test_a_queue_that_was_away_and_recreated_is_read_from_its_beginning(tmp_path: Path) -> None:
    root = tmp_path / "store"
    start = encode_offset({("store", "t", 0): 50}, {})
    with open_store(root) as store:
        put(store, "u", 1)
        stream = reader(root, failOnDataLoss=False)
        first = next_batch(stream, start)
        assert first["q"]["store"]["t"] == {"0": 50}
        with pytest.raises(DataLossError, match="t/0 is gone"):
            next_batch(reader(root), start)
        put(store, "t", 7)
        stream.plan.look(now=True)
        second = next_batch(stream, first)
        assert second["from"] == {"store": {"t": {"0": 0}}}
        assert rows(stream, first, second) == [("t", 0, i) for i in range(7)]


def test_an_unmounted_store_is_not_polled_without_pause(tmp_path: Path) -> None:
    slept = []

    class Counting(Env):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            super().sleep(seconds)

    root = tmp_path / "store"
    with open_store(root) as store:
        put(store, "t", 5)
    requested = read_options({"path": str(root), "failOnDataLoss": "false"}, STREAM)
    stream = StoreStreamReader(requested, {"topic": "string"}, recovery_s=0.2, env=Counting())
    start = encode_offset({("store", "t", 0): 5}, {})
    assert next_batch(stream, start) == start
    root.rename(tmp_path / "away")
    root.mkdir()
    stream.plan.look(now=True)
    assert next_batch(stream, start) == start
    once = len(slept)
    assert 1 <= once <= 3
    for _ in range(20):
        assert next_batch(stream, start) == start
    assert len(slept) == once


# ---- a queue without its first units -------------------------------------------------------------


@pytest.fixture
def short_files(tmp_path: Path) -> Path:
    """A store of 35 messages in four queue files, and of another queue in one."""
    with open_store(tmp_path / "short") as store:
        for number in range(35):
            store.put("t", b"%d" % number)
            if number < 5:
                store.put("u", b"%d" % number)
    return tmp_path / "short"


def test_messages_before_the_first_file_are_read(short_files: Path) -> None:
    """Otherwise they would be lost: an opening for writing puts them before the stream's
    positions."""
    queue_file(short_files, "t").unlink()
    for options in ({"startingOffsets": "earliest"}, {"startingTimestamp": 10**12}):
        stream = reader(short_files, **options)
        assert len(rows(stream, INITIAL, next_batch(stream, INITIAL))) == 40
    shutil.rmtree(short_files / "consumequeue")
    stream = everything(short_files)
    assert len(rows(stream, INITIAL, next_batch(stream, INITIAL))) == 40


@pytest.mark.parametrize("count", [1, 10])
def test_invalid_units_at_the_begin_are_reported(
    short_files: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Openings read the last file of a queue."""
    monkeypatch.setattr(messages, "LIVE_PATIENCE_S", 0)
    write_at(queue_file(short_files, "t"), 0, bytes(count * UNIT))
    stream = everything(short_files)
    end = next_batch(stream, INITIAL)
    with pytest.raises(DataLossError, match=f"{count} units are gone, the first is 0"):
        rows(stream, INITIAL, end)
    assert len(rows(everything(short_files, failOnDataLoss=False), INITIAL, end)) == 40 - count


def test_an_expired_begin_is_no_loss(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        put(store, "t", 100, body=bytes(200))
        assert store.trim(before=1 << 62).files
        first = store.min_offset("t")
    stream = everything(tmp_path / "store")
    assert offsets(stream, INITIAL, next_batch(stream, INITIAL)) == list(range(first, 100))
