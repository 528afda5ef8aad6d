"""Goal: verify finds every problem of a store and no other, and changes nothing.
Method: verify stores of 4.9.3 and own stores, with counts from plain Python; then damage one thing
at a time and expect exactly that problem, by file and byte; then flip bytes at random."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import struct
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError
from pyrocketstore.index._entries import ChainWalk
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.record._message import tags_code
from pyrocketstore.record.message import MessageExtBatch, MessageExtBrokerInner
from pyrocketstore.verify.report import PROBLEMS_MAX, Problem
from pyrocketstore.verify.run import Intervals, VerifyReport, verify_store
from support.golden_lines import message_lines
from support.golden_stores import GOLDEN, LOST, NAMES, expected_lines, scan_log, unpack
from support.snapshot import snapshot

FILE_SIZE = 1 << 16
QUEUE_FILE_SIZE = 2000
UNITS_PER_FILE = QUEUE_FILE_SIZE // 20
SLOT_COUNT, INDEX_COUNT = 100, 300
ENTRIES_AT = 40 + 4 * SLOT_COUNT
MESSAGE_COUNT = 480
SETTINGS = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
    "max_hash_slot_num": SLOT_COUNT,
    "max_index_num": INDEX_COUNT,
}
UNIT = struct.Struct(">qiq")


def open_store(root: Path, **options) -> pyrocketstore.Store:
    return pyrocketstore.open(root, topics_json=False, **{**SETTINGS, **options})


def verify(root: Path, **options) -> VerifyReport:
    """Read-only, with the warnings about a log that ends early left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        with open_store(root, read_only=True, **options) as store:
            report = store.verify()
    assert report.ok == (not report.advice), report.problems
    return report


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store of two queues, 240 messages and three files each; six log files, two index files."""
    root = tmp_path_factory.mktemp("whole") / "store"
    with open_store(root) as store:
        for i in range(MESSAGE_COUNT):
            store.put("T", b"%d " % i * 150, queue_id=i % 2, tags=f"Tag{i % 3}", keys=f"key-{i}")
    return root


@pytest.fixture
def store_path(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * FILE_SIZE:020d}"


def queue_file(root: Path, number: int, queue_id: int = 0) -> Path:
    return root / "consumequeue" / "T" / str(queue_id) / f"{number * QUEUE_FILE_SIZE:020d}"


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    write(path, position, bytes([path.read_bytes()[position] ^ 0x40]))


def places(report: VerifyReport) -> list[tuple[str, str, int]]:
    return [(p.kind, p.path, p.position) for p in report.problems]


def records(root: Path) -> list[tuple[str, int, int, int]]:
    return list(scan_log(root / "commitlog"))


def phy_offset_of(root: Path, queue_id: int, queue_offset: int) -> int:
    return next(r[3] for r in records(root) if r[1:3] == (queue_id, queue_offset))


def log_place(root: Path, phy_offset: int) -> tuple[Path, int]:
    return log_file(root, phy_offset // FILE_SIZE), phy_offset % FILE_SIZE


# ---- whole stores -------------------------------------------------------------------------------


def golden_store(name: str, root: Path, *, read_only: bool) -> DefaultMessageStore:
    config, _ = MessageStoreConfig.from_broker_conf(GOLDEN / f"{name}.conf", root=root)
    store = DefaultMessageStore(config, read_only=read_only)
    store.load()
    return store


@pytest.mark.parametrize("name", NAMES)
def test_golden_stores_are_whole(name, tmp_path):
    root = unpack(name, tmp_path)
    before = snapshot(root)
    store = golden_store(name, root, read_only=True)
    report = verify_store(store.files, store.check_root)
    store.shutdown()
    assert report.consistent and report.complete == (name != "broker-clean"), report.problems
    assert snapshot(root) == before
    # Torn records behind the log's end are no records: ask the store where it ends.
    end = report.recovery["log_end"]
    queued = [r for r in scan_log(root / "commitlog") if r[3] < end]
    assert report.records - report.unqueued == len(queued)
    # 4.9.3 shows another message for a unit that names 0 after that file is gone.
    messages = {
        (m["cq_topic"], m["cq_queue_id"], m["phy_offset"])
        for m in message_lines(expected_lines(name))
        if m["cq_topic"].startswith("%LMQ%")
        or (m["cq_topic"], m["cq_queue_id"]) == (m["topic"], m["queue_id"])
    }
    if name not in LOST:
        assert report.units - report.expired - report.pre_blank == len(messages)
    assert (report.expired > 0) == (name == "x-expired")
    assert (report.not_indexed > 0) == (name == "broker-clean")
    assert (report.ext_units > 0) == ("lmq" in name)
    assert report.ext_unresolved == 0
    assert report.index_entries - report.index_expired + report.not_indexed > 0
    assert report.to_dict()["ok"] is report.ok is report.complete
    json.dumps(report.to_dict())


@pytest.mark.parametrize("name", ["torn", "x-lostfiles"])
def test_golden_stores_are_whole_after_recovery_on_disk(name, tmp_path):
    root = unpack(name, tmp_path)
    for clean in (False, True):
        store = golden_store(name, root, read_only=False)
        report = verify_store(store.files, store.check_root)
        store.shutdown()
        assert report.ok, report.problems
        assert report.recovery["clean"] is clean
        assert report.rebuilt_units == 0


def test_what_was_rebuilt_is_named(tmp_path):
    root = unpack("x-lostfiles", tmp_path)
    store = golden_store("x-lostfiles", root, read_only=True)
    report = verify_store(store.files, store.check_root)
    store.shutdown()
    queues = f"{root}/consumequeue"
    assert [(p.path, p.position, p.count) for p in report.rebuilt] == [
        (f"{queues}/Topic-1/0/{2000:020d}", 0, 63),
        (f"{queues}/Topic-2/3/{0:020d}", 0, 100),
        (f"{queues}/Topic-2/3/{2000:020d}", 0, 52),
    ]
    assert report.rebuilt_units == 215
    assert report.rebuilt_index_entries == report.index_entries == report.keys


def test_our_own_store_is_whole(store_path):
    before = snapshot(store_path)
    report = verify(store_path)
    assert report.ok, report.problems
    assert snapshot(store_path) == before
    assert (report.records, report.units, report.keys) == (MESSAGE_COUNT,) * 3
    assert (report.index_entries, report.index_files) == (MESSAGE_COUNT, 2)
    assert report.files == len(list((store_path / "commitlog").iterdir())) == report.blanks + 1
    assert report.bytes + report.blanks * FILE_SIZE > report.recovery["log_end"]
    assert report.queues == 2
    assert not report.rebuilt_units and not report.not_indexed


def test_progress_ends_at_the_whole(store_path):
    seen: list[tuple[int, int]] = []
    with open_store(store_path, read_only=True) as store:
        store.verify(lambda done, total: seen.append((done, total)))
        end = store.message_store.get_max_phy_offset()
    assert seen == sorted(seen)
    assert seen[-1] == (end, end)


def test_an_empty_store_is_whole(tmp_path):
    with open_store(tmp_path / "store") as store:
        report = store.verify()
    assert report.ok
    assert report.records == 0


@pytest.mark.slow
def test_a_store_is_verified_while_it_is_written(tmp_path):
    with open_store(tmp_path / "store") as store:
        stop = threading.Event()

        def put() -> None:
            i = 0
            while not stop.is_set():
                store.put("T", b"x" * (i % 300), queue_id=i % 3, keys=f"k{i}")
                i += 1

        thread = threading.Thread(target=put)
        thread.start()
        try:
            reports = [store.verify() for _ in range(5)]
        finally:
            stop.set()
            thread.join()
        reports.append(store.verify())
    assert [report.problems for report in reports] == [[]] * 6
    assert reports[-1].records == reports[-1].units == reports[-1].index_entries > 0
    assert reports[-1].undispatched_bytes == 0


# ---- the log ------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_offset", [7, 200])
def test_a_flipped_body_is_found(store_path, queue_offset):
    """In a file that recovery does not look at, and in one that it does."""
    path, position = log_place(store_path, phy_offset_of(store_path, 0, queue_offset))
    flip(path, position + 120)
    report = verify(store_path)
    assert places(report) == [("log", str(path), position)]
    assert "CRC" in report.problems[0].text
    if queue_offset == 7:
        assert (report.units_in_damage, report.entries_in_damage) == (1, 1)
        assert report.damaged_bytes == size_at(path, position)
        assert report.records == MESSAGE_COUNT - 1
    else:
        assert report.recovery["broken"]
        assert "valid records follow" in report.problems[0].text


def size_at(path: Path, position: int) -> int:
    return int.from_bytes(path.read_bytes()[position : position + 4], "big")


def test_a_flipped_last_record_is_found(store_path):
    """Nothing valid follows it, so that it looks like a torn tail; but the stop was clean."""
    path, position = log_place(store_path, records(store_path)[-1][3])
    flip(path, position + 120)
    report = verify(store_path)
    assert places(report) == [("log", str(path), position)]
    assert "stopped cleanly" in report.problems[0].text
    (store_path / "abort").touch()
    assert "a flush has covered the log" in verify(store_path).problems[0].text
    (store_path / "sync_point").unlink()
    # The last two messages may have been stored in the same millisecond.
    stored = int.from_bytes((store_path / "checkpoint").read_bytes()[:8], "big")
    write(store_path / "checkpoint", 0, (stored + 1).to_bytes(8, "big"))
    assert "the checkpoint covers messages" in verify(store_path).problems[0].text
    (store_path / "checkpoint").unlink()
    assert verify(store_path).ok  # nothing proves that the record was durable


def test_a_missing_blank_is_found(store_path):
    path = log_file(store_path, 0)
    data = path.read_bytes()
    position = data.rindex(bytes.fromhex("CBD43194")) - 4
    write(path, position, bytes(8))
    report = verify(store_path)
    assert places(report) == [("log", str(path), position)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x02TAGS\x01", b"\x02TAGS_"),  # no separator
        (b"\x02TAGS\x01", b"\x02\x01AGS\x01"),  # no name
        (b"\x02TAGS\x01", b"\x02\x02AGS\x01"),  # no property
    ],
)
def test_a_changed_separator_is_found_by_the_unit(store_path, old, new):
    """4.9.3 skips such an item, which is counted; the tags code of the unit shows the damage."""
    path = log_file(store_path, 1)
    raw = bytearray(path.read_bytes())
    at = raw.index(old, 4000)
    raw[at : at + len(new)] = new
    path.write_bytes(raw)
    report = verify(store_path)
    assert report.skipped_properties == 1 and report.bad_properties == 0 and not report.ok
    assert [p.kind for p in report.problems] == ["queue"]
    assert "has the tags code" in report.problems[0].text


def test_properties_that_were_not_written_are_found(store_path):
    path = log_file(store_path, 1)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"\x02TAGS\x01", 4000)
    end = raw.index(bytes.fromhex("DAA320A7"), at) - 4
    raw[end - 3 : end] = bytes(3)
    path.write_bytes(raw)
    report = verify(store_path)
    found = [p for p in report.problems if p.kind == "log"]
    assert report.bad_properties == len(found) == 1 and not report.ok
    assert found[0].path == str(path) and found[0].position < at < found[0].position + 2000
    assert "properties" in found[0].text


def test_properties_that_end_in_zeros_are_found(store_path):
    path = log_file(store_path, 1)
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[:4], "big")
    raw[size - 3 : size] = bytes(3)
    path.write_bytes(raw)
    assert [(p.path, p.position) for p in verify(store_path).problems if p.kind == "log"] == [
        (str(path), 0)
    ]


#: The last value ends in a zero byte; the last ones exceed HashMap's first 16 buckets.
ZEROS: list[dict[str, Any]] = [
    {"keys": "k\0"},
    {"keys": ["j", "k\0"]},
    {"properties": {"a": "\0"}},
    {"properties": {"a": "x\0", "b": "\0\0"}},
    {"properties": {f"p{i}": "v\0" for i in range(40)}},
]


def put_zeros(store: pyrocketstore.Store) -> None:
    """Put messages whose properties end in a zero byte, by every method."""
    for values in ZEROS:
        columns = {name: [value] for name, value in values.items()}
        store.put("T", b"x", **values)
        store.put("T", b"x", born_host="1.2.3.4:5", **values)
        store.put_many("T", [b"x"], **columns)
        store.put_batch("T", [b"x"], **columns)
        store.put_batch("T", [{"body": b"x", **values}])
        asyncio.run(store.aput("T", b"x", **values))
    # From another client, which adds no separator.
    item = bytes(16) + b"\0\0\0\1x" + b"\0\4a\1x\0"
    item = len(item).to_bytes(4, "big") + item[4:]
    engine = store.message_store
    results = [
        engine.put_message(MessageExtBrokerInner("T", b"x", properties_string="a\1x\0")),
        engine.put_messages(MessageExtBatch("T", item)),
        engine.put_messages(MessageExtBatch("T", item, properties={"b": "y\0"})),
    ]
    assert [result.status_code for result in results] == [0, 0, 0]
    store.wait_dispatched()


@pytest.mark.parametrize("multi", [False, True])
def test_a_value_that_ends_in_a_zero_byte_was_not_torn(tmp_path, multi):
    with open_store(tmp_path / "s", enable_multi_dispatch=multi) as store:
        put_zeros(store)
        count = 6 * len(ZEROS) + 3
        if multi:
            further = {"INNER_MULTI_DISPATCH": "F", "a": "\0", "b": "\0", "c": "\0", "d": "\0"}
            store.put("T", b"x", properties=further)
            store.wait_dispatched()
            count += 1
        found = list(store.read("T"))
        report = store.verify()
    assert report.ok and report.records == len(found) == count
    ends = {message.properties_string[-2:] for message in found[: count - multi]}
    assert ends == {"\0\2"}
    assert found[0].properties == {"KEYS": "k\0"} and found[12].properties == {"a": "\0"}


def test_the_longest_properties_may_end_in_a_zero_byte(tmp_path):
    """The properties of a record have at most 32767 bytes; the longest get no separator."""
    longest = {"a": "x" * 32765}
    too_long = {"a": "x" * 32765 + "\0"}
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", properties=longest)
        store.put("T", b"x", properties={"a": "x" * 32763 + "\0"})
        store.put("T", b"x", properties={"a": "x" * 32764 + "\0"})
        store.put_many("T", [b"x"], properties=[{"a": "x" * 32764 + "\0"}])
        with pytest.raises(pyrocketstore.PutError, match="more than 32767 bytes"):
            store.put("T", b"x", properties=too_long)
        with pytest.raises(pyrocketstore.PutError, match="more than 32767 bytes"):
            store.put_many("T", [b"x"], properties=[too_long])
        text = "a\1" + too_long["a"]
        inner = MessageExtBrokerInner("T", b"x", properties_string=text)
        result = store.message_store.put_message(inner)
        assert result.status.name == "MESSAGE_ILLEGAL"
        assert [len(m.properties["a"]) for m in store.read("T")] == [32765, 32764, 32765, 32765]
        assert store.verify().ok


def test_properties_as_java_accepts_them_are_valid(tmp_path):
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path), **SETTINGS)
    texts = [
        "a\x01b",
        "a\x01b\x02",
        "a\x01b\x01c\x02",
        "a\x01\x02b\x01c\x02",
        "a\x01b\x02a\x01c",
        "",
    ]
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    for text in texts:
        message = MessageExtBrokerInner("T", b"x", properties_string=text)
        assert store.put_message(message).status_code == 0
    store.wait_dispatched()
    report = verify_store(store.files, store.check_root)
    store.shutdown()
    assert report.ok and report.records == len(texts) and report.bad_properties == 0


@pytest.mark.parametrize("number", [1, 4])
def test_a_missing_log_file_is_found(store_path, number):
    """Also of the last three; and nothing else is lost when the store is opened to be written."""
    whole = verify(store_path)
    log_file(store_path, number).unlink()
    report = verify(store_path)
    assert places(report) == [("log", str(log_file(store_path, number + 1)), 0)]
    assert report.units_in_damage == report.entries_in_damage
    assert report.records + report.units_in_damage == whole.records
    open_store(store_path).close()
    again = verify(store_path)
    assert places(again) == places(report)
    assert again.records == report.records


# ---- queues -------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_offset", [17, 230])
@pytest.mark.parametrize("column", ["phy_offset", "far phy_offset", "size", "tags_code", "zero"])
def test_a_wrong_unit_is_found(store_path, queue_offset, column):
    path = queue_file(store_path, queue_offset // UNITS_PER_FILE)
    position = queue_offset % UNITS_PER_FILE * 20
    phy_offset, size, code = UNIT.unpack_from(path.read_bytes(), position)
    wrong = {
        "phy_offset": (phy_offset + 1, size, code),
        "far phy_offset": (phy_offset + (1 << 40), size, code),
        "size": (phy_offset, size + 1, code),
        "tags_code": (phy_offset, size, code ^ 1),
        "zero": (0, 0, 0),
    }[column]
    write(path, position, UNIT.pack(*wrong))
    report = verify(store_path)
    assert places(report) == [("queue", str(path), position)]
    assert report.problem_count == 1
    assert f"unit {queue_offset} " in report.problems[0].text


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_queue_file_is_found(store_path, number):
    path = queue_file(store_path, number)
    path.unlink()
    report = verify(store_path)
    assert places(report) == [("queue", str(path), 0)]
    assert report.problem_count == (UNITS_PER_FILE if number < 2 else 40)


SMALL = {"mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 400}
#: a unit that names bytes inside a record
WRONG_AT = (20 << 13) + 1
WRONG = UNIT.pack(WRONG_AT, 100, 0)


@pytest.fixture
def expired(tmp_path) -> Path:
    """A store whose first log files are gone, so that some 200 units name expired messages."""
    root = tmp_path / "store"
    with open_store(root, **SMALL) as store:
        for _ in range(400):
            store.put("T", bytes(500))
    for path in sorted((root / "commitlog").iterdir())[:16]:
        path.unlink()
    return root


def small_file(root: Path, number: int) -> Path:
    return root / "consumequeue" / "T" / "0" / f"{number * 400:020d}"


def test_empty_units_are_one_problem_for_each_file(expired):
    """Units of expired messages are zeros, with another wrong unit among them."""
    write(small_file(expired, 0), 0, bytes(400))
    write(small_file(expired, 1), 0, bytes(10 * 20))
    write(small_file(expired, 0), 40, WRONG)
    report = verify(expired, **SMALL)
    found = [(p.path, p.position, p.count, p.text) for p in report.problems]
    path, following = str(small_file(expired, 0)), str(small_file(expired, 1))
    text = f"unit 2 names 100 bytes at {WRONG_AT} of the log, where no message of this queue"
    assert found == [
        (path, 0, 2, "units 0 to 1 are empty"),
        (path, 40, 1, f"{text} and offset is"),
        (path, 60, 17, "units 3 to 19 are empty"),
        (following, 0, 10, "units 20 to 29 are empty"),
    ]
    assert report.problem_count == 30


def test_empty_units_that_are_not_kept_are_counted(expired):
    for number in range(9):
        write(small_file(expired, number), 0, 5 * (WRONG + bytes(40) + WRONG))
    report = verify(expired, **SMALL)
    assert report.problem_count == 9 * 20
    assert len(report.problems) == PROBLEMS_MAX
    assert sum(problem.count for problem in report.problems) == 133


def test_a_missing_queue_is_found(store_path):
    shutil.rmtree(store_path / "consumequeue" / "T" / "1")
    report = verify(store_path)
    expected = [("queue", str(queue_file(store_path, i, 1)), 0) for i in range(3)]
    assert places(report) == expected
    assert report.problem_count == MESSAGE_COUNT // 2


def test_units_in_another_order_are_found(store_path):
    """Two units in each other's place: each names a record, but not its own."""
    path = queue_file(store_path, 0)
    data = path.read_bytes()
    write(path, 100, data[120:140] + data[100:120])
    report = verify(store_path)
    assert places(report) == [("queue", str(path), 100), ("queue", str(path), 120)]


def test_a_unit_too_many_is_found(store_path):
    path = queue_file(store_path, 2)
    phy_offset = phy_offset_of(store_path, 0, 239)
    write(path, 40 * 20, UNIT.pack(phy_offset, 500, 1))
    report = verify(store_path)
    assert places(report) == [("queue", str(path), 40 * 20)]
    assert report.problems[0].text.startswith("unit 240 is wrong on disk: it contradicts the log")
    assert report.advice and not report.consistent


def test_messages_of_a_destroyed_queue_are_no_problem(store_path):
    """The queue begins again at 0, and the log holds the old messages too."""
    with open_store(store_path) as store:
        store.message_store.clean_unused_topic([])
        for i in range(300):
            store.put("T", b"%d" % i, queue_id=0)
            store.put("T", b"%d" % i, queue_id=1)
        report = store.verify()
    assert report.ok, report.problems
    assert report.repeated == MESSAGE_COUNT
    assert report.units == 600


def test_a_unit_of_the_older_of_two_messages_is_found(store_path):
    """The units of a queue that began again are replaced by the older ones, as 4.9.3 does."""
    with open_store(store_path) as store:
        old = queue_file(store_path, 0).read_bytes()[:60]
        store.message_store.clean_unused_topic([])
        for i in range(MESSAGE_COUNT):
            store.put("T", b"new %d" % i, queue_id=i % 2)
        new = [message.phy_offset for message in itertools.islice(store.read("T", 0), 3)]
    write(queue_file(store_path, 0), 0, old)
    report = verify(store_path)
    path = str(queue_file(store_path, 0))
    assert places(report) == [("queue", path, 20 * i) for i in range(3)]
    assert report.problems[1].text.endswith(f"but a later message of it is at {new[1]}")


# ---- ext and light queues -----------------------------------------------------------------------


def golden_report(name: str, root: Path) -> VerifyReport:
    store = golden_store(name, root, read_only=True)
    try:
        return verify_store(store.files, store.check_root)
    finally:
        store.shutdown()


def test_a_wrong_ext_unit_is_found(tmp_path):
    root = unpack("lmq", tmp_path)
    path = next(iter(sorted((root / "consumequeue_ext").rglob("0*0"))))
    units = root / "consumequeue" / path.relative_to(root / "consumequeue_ext")
    flip(path, 3 * 20 + 9)
    report = golden_report("lmq", root)
    assert places(report) == [("queue", str(units), 3 * 20)]
    flip(path, 3 * 20 + 9)
    flip(path, 3 * 20 + 17)
    report = golden_report("lmq", root)
    assert places(report) == [("ext", str(units), 3 * 20)]


def test_missing_ext_units_are_found(tmp_path):
    root = unpack("lmq", tmp_path)
    path = next(iter(sorted((root / "consumequeue_ext").rglob("0*0"))))
    path.unlink()
    report = golden_report("lmq", root)
    assert {(p.kind, p.path) for p in report.problems} == {("ext", str(path.parent))}


def test_a_wrong_unit_of_a_light_queue_is_found(tmp_path):
    root = unpack("lmq", tmp_path)
    path = next(iter(sorted((root / "consumequeue").glob("%LMQ%*/0/0*"))))
    phy_offset, size, code = UNIT.unpack_from(path.read_bytes(), 40)
    write(path, 40, UNIT.pack(phy_offset + 8, size, code))
    report = golden_report("lmq", root)
    assert places(report) == [("queue", str(path), 40)]


# ---- the index ----------------------------------------------------------------------------------


def entry_place(number: int) -> int:
    return ENTRIES_AT + number * 20


@pytest.mark.parametrize(
    ("inside", "text"),
    [(0, "no such key"), (4, "no record"), (12, "s old"), (16, "does not name")],
    ids=["hash", "phy_offset", "time", "chain"],
)
def test_a_wrong_index_entry_is_found(store_path, inside, text):
    path = index_files(store_path)[0]
    flip(path, entry_place(77) + inside + (0 if inside == 0 else 3))
    report = verify(store_path)
    found = [("index", str(path), entry_place(77))]
    if inside < 12:
        # Its record is not found by that key any more.
        phy_offset = records(store_path)[76][3]
        where, position = log_place(store_path, phy_offset)
        found.append(("index", str(where), position))
        assert report.missing_keys == 1
    assert sorted(places(report)) == sorted(found)
    assert any(text in problem.text for problem in report.problems)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (7, "begin timestamp"),
        (15, "end timestamp"),
        (23, "begin phy_offset"),
        (31, "end phy_offset"),
        (35, "slots in use"),
    ],
)
def test_a_wrong_index_header_is_found(store_path, position, text):
    path = index_files(store_path)[0]
    flip(path, position)
    report = verify(store_path)
    assert any(
        p.path == str(path) and text in p.text and p.position == position // 8 * 8
        for p in report.problems
    ), report.problems


def test_an_index_file_that_recovery_passes_over_is_found(store_path):
    """It ends far behind the log, so that it is built again in memory: after a clean stop that
    must not go unsaid."""
    path = index_files(store_path)[0]
    flip(path, 26)
    report = verify(store_path)
    assert places(report) == [("index", str(path), 24)]
    assert report.rebuilt_index_entries >= INDEX_COUNT - 1
    (store_path / "abort").touch()
    assert verify(store_path).ok


def test_a_wrong_slot_is_found(store_path):
    path = index_files(store_path)[0]
    slot = next(
        i for i in range(SLOT_COUNT) if path.read_bytes()[40 + 4 * i : 44 + 4 * i] != bytes(4)
    )
    write(path, 40 + 4 * slot, struct.pack(">i", 1 if slot else 2))
    report = verify(store_path)
    assert places(report) == [("index", str(path), 40 + 4 * slot)]


def test_a_missing_index_file_is_no_damage_but_not_complete(store_path):
    """4.9.3 drops files after a crash: the keys that are not indexed are counted."""
    index_files(store_path)[0].unlink()
    report = verify(store_path)
    assert report.consistent and not report.complete and not report.ok
    assert report.not_indexed == INDEX_COUNT - 1 and report.problem_count == 0
    index_files(store_path)[0].unlink()
    report = verify(store_path)
    assert report.consistent and not report.complete and not report.ok
    assert report.not_indexed == MESSAGE_COUNT


def test_missing_units_leave_a_store_consistent(store_path):
    queue_file(store_path, 1).unlink()
    report = verify(store_path)
    assert not report.complete and not report.ok and report.problem_count > 0


def test_an_index_that_cannot_be_checked_is_not_ok(store_path):
    (path,) = index_files(store_path)[1:]
    path.unlink()
    (store_path / "sync_point").unlink()
    with pyrocketstore.open(store_path, read_only=True, topics_json=False) as store:
        report = store.verify()
    assert "maxHashSlotNum" in report.index_unchecked
    assert not report.complete and not report.ok


def test_an_index_of_garbage_is_not_ok(store_path):
    path = index_files(store_path)[0]
    write(path, 40, random.Random(1).randbytes(ENTRIES_AT + 3000))
    with pytest.warns(pyrocketstore.StoreWarning, match="derived from the log"):
        store = open_store(store_path, read_only=True)
    with store:
        report = store.verify()
        assert [(p.kind, p.path) for p in report.problems] == [("index", str(path))]
        assert not report.ok and not report.complete and not report.consistent
        assert [len(store.query("T", f"key-{i}")) for i in range(MESSAGE_COUNT)] == [1] * 480


def test_lost_entries_at_the_end_are_found(store_path):
    path = index_files(store_path)[1]
    count = int.from_bytes(path.read_bytes()[36:40], "big")
    lost = records(store_path)[-1][3]
    write(path, 36, struct.pack(">i", count - 1))
    report = verify(store_path)
    where, position = log_place(store_path, lost)
    assert ("index", str(where), position) in places(report)


def test_problems_are_bounded_and_all_counted(store_path):
    path = index_files(store_path)[0]
    write(path, entry_place(1), bytes(20 * (INDEX_COUNT - 1)))
    report = verify(store_path)
    assert len(report.problems) == PROBLEMS_MAX
    assert report.missing_keys >= INDEX_COUNT - 2
    assert report.problem_count > INDEX_COUNT


# ---- bytes at random ----------------------------------------------------------------------------


def used_bytes(root: Path) -> Iterator[tuple[Path, int, int]]:
    """Ranges of queues and index in which every byte must be right: (file, start, end)."""
    for queue_id in (0, 1):
        for number in range(3):
            units = min(UNITS_PER_FILE, 240 - number * UNITS_PER_FILE)
            yield queue_file(root, number, queue_id), 0, units * 20
    for path in index_files(root):
        count = int.from_bytes(path.read_bytes()[36:40], "big")
        yield path, 0, ENTRIES_AT
        yield path, entry_place(1), entry_place(count)


@pytest.mark.bad_input
def test_any_flip_in_queues_and_index_is_found(store_path):
    seed = 20210331
    print("seed", seed)
    rng = random.Random(seed)
    regions = list(used_bytes(store_path))
    for _ in range(120):
        path, start, end = rng.choice(regions)
        position = rng.randrange(start, end)
        before = path.read_bytes()
        write(path, position, bytes([before[position] ^ 1 << rng.randrange(8)]))
        try:
            report = verify(store_path)
        except StoreError as error:
            assert str(path.parent) in str(error)
        else:
            assert not report.ok, (path, position)
            assert report.problem_count >= len(report.problems) > 0
        path.write_bytes(before)
    assert verify(store_path).ok


@pytest.mark.bad_input
def test_garbage_anywhere_is_survived(store_path):
    seed = 20210401
    print("seed", seed)
    rng = random.Random(seed)
    paths = sorted(p for p in store_path.rglob("*") if p.is_file() and p.stat().st_size)
    for _ in range(60):
        path = rng.choice(paths)
        before = path.read_bytes()
        size = rng.choice((1, 4, 8, 20, 512, 4096))
        write(path, rng.randrange(max(1, len(before) - size)), rng.randbytes(size))
        with contextlib.suppress(StoreError):
            verify(store_path)
        path.write_bytes(before)


# ---- parts --------------------------------------------------------------------------------------


def test_intervals_agree_with_a_set():
    rng = random.Random(5)
    for _ in range(200):
        intervals, plain = Intervals(), set()
        for _ in range(rng.randrange(8)):
            start = rng.randrange(30)
            end = start + rng.randrange(1, 6)
            intervals.add(start, end)
            plain |= set(range(start, end))
        inside = [x for start, end in intervals for x in range(start, end)]
        assert inside == sorted(plain)
        assert all(a < b for a, b in zip(intervals.ends, intervals.starts[1:], strict=False))
        gaps = [x for start, end in intervals.gaps(3, 33) for x in range(start, end)]
        assert gaps == [x for x in range(3, 33) if x not in plain]
        offsets = np.arange(-2, 40)
        assert intervals.holds(offsets).tolist() == [x in plain for x in range(-2, 40)]


def entries(rows: list[tuple[int, int]]) -> bytes:
    """Index entries of (hash, previous)."""
    return b"".join(struct.pack(">iqii", key_hash, 0, 0, prev) for key_hash, prev in rows)


def test_chains_agree_with_how_they_are_put():
    walk = ChainWalk(4, 6)
    assert walk.entries(entries([(1, 0), (5, 1), (2, 0), (9, 2), (2, 3)]), 1).tolist() == []
    slots = struct.pack(">4i", 0, 4, 5, 0)
    assert walk.check_slots(slots, 0, False).tolist() == []
    assert walk.slots_used() == 2
    assert walk.check_slots(struct.pack(">4i", 0, 2, 5, 9), 0, False).tolist() == [1, 3]
    assert walk.check_slots(struct.pack(">4i", 0, 4, 5, 9), 0, True).tolist() == []
    walk = ChainWalk(4, 6)
    # Entry 2 names a wrong one: only it is wrong, though entry 4 continues from it.
    assert walk.entries(entries([(1, 0), (5, 0), (2, 0), (9, 2), (2, 3)]), 1).tolist() == [2]
    assert walk.check_slots(slots, 0, False).tolist() == []


def test_a_problem_says_where():
    problem = Problem("log", "/s/commitlog/0", 7, "torn")
    assert str(problem) == "/s/commitlog/0 at byte 7: torn"
    assert tags_code("Tag0") != tags_code("Tag1")
