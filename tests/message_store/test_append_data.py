"""Goal: bytes of another store's log make the same store, however they are divided.
Method: copy logs, those of 4.9.3 included, in random pieces into an empty store, and compare the
files and the answers; cut, kill and reopen between pieces; damage the data; put in between."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import FlushDiskType, PutMessageStatus, StoreStateError
from pyrocketstore.config.message_store_config import MessageStoreConfig, detect_sizes
from pyrocketstore.errors import (
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreTypeError,
)
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines
from support.broken_env import broken
from support.golden_lines import compare_lines
from support.golden_stores import GOLDEN, expected_lines, unpack
from support.grids import mostly_slow
from support.seed import SEED
from support.sizes import SIZES, SYNC_SIZES, TINY_SIZES

#: Golden stores whose queues and index are as their log says.
COMPLETE = ["lmq", "mixed", "plain", "x-hosts"]
PIECES = [1, 3, 7, 8, 9, 100, 1000, 32768, 1 << 20]
WAYS: list[dict[str, Any]] = [
    {},
    {"flush_disk_type": "SYNC_FLUSH"},
    {"write_without_mmap": True},
    {"transient_store_pool_enable": True},
]


def settings_of(root: Path, **settings: Any) -> MessageStoreConfig:
    return MessageStoreConfig(**{**SIZES, **settings}).at_root(root)


def started(config: MessageStoreConfig, env: Env | None = None) -> DefaultMessageStore:
    store = DefaultMessageStore(config, env=env)
    store.load()
    store.start()
    return store


def fill(root: Path, count: int = 400, **settings: Any) -> None:
    """A store of three topics whose log has several files."""
    rng = random.Random(count)
    with pyrocketstore.open(root, **{**SIZES, **settings}) as store:
        for i in range(count):
            body = rng.randbytes(rng.choice([0, 1, 50, 400, 900]))
            store.put(f"T{i % 3}", body, queue_id=i % 2, keys=f"k{i}", tags="ab"[i % 2])


def chunks_of(source: DefaultMessageStore) -> Iterator[tuple[int, bytes]]:
    """(physical offset, bytes up to the end of the file) of a whole log."""
    end = source.get_max_phy_offset()
    at = source.get_min_phy_offset()
    while at < end:
        view = source.get_commit_log_data(at)
        assert view is not None
        with view:
            data = bytes(view.byte_buffer)[: end - at]
        yield at, data
        at += len(data)


def pieces_of(data: bytes, rng: random.Random, largest: int = 1 << 20) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = min(rng.choice(PIECES), largest)
        yield data[at : at + size]
        at += size


def log_of(root: Path) -> bytes:
    """All bytes of a closed store's log."""
    with pyrocketstore.open(root, read_only=True) as store:
        return b"".join(data for _, data in chunks_of(store.message_store))


def append(store: DefaultMessageStore, data: bytes, rng: random.Random) -> None:
    at = store.get_data_end()
    for piece in pieces_of(data, rng):
        at += len(piece)
        assert store.append_data(at - len(piece), piece) == at == store.get_data_end()


def files_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


# ---- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", mostly_slow(COMPLETE))
def test_a_copy_of_a_log_of_4_9_3_answers_as_its_source(name: str, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    source_root = unpack(name, tmp_path)
    config, _ = MessageStoreConfig.from_broker_conf(GOLDEN / f"{name}.conf", root=source_root)
    config = detect_sizes(Env(), str(source_root), config, read_only=True)
    source = DefaultMessageStore(config, read_only=True)
    source.load()
    copy_config = config.at_root(tmp_path / "copy")
    copy = started(copy_config)
    for _, data in chunks_of(source):
        append(copy, data, rng)
    assert copy.get_max_phy_offset() == source.get_max_phy_offset()
    copy.shutdown()
    source.shutdown()
    lines = list(dump_lines(tmp_path / "copy", copy_config, GOLDEN / f"{name}.tsv"))
    compare_lines(expected_lines(name), lines)


def test_a_log_that_begins_later_is_copied_from_its_first_file_on(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    source_root = unpack("x-expired", tmp_path)
    config, _ = MessageStoreConfig.from_broker_conf(GOLDEN / "x-expired.conf", root=source_root)
    source = DefaultMessageStore(config, read_only=True)
    source.load()
    begin = source.get_min_phy_offset()
    assert begin > 0
    copy = started(config.at_root(tmp_path / "copy"))
    for wrong in (begin + 1, -1, begin - config.mapped_file_size_commit_log // 2):
        with pytest.raises(StoreFormatError, match="next byte of this log is 0"):
            copy.append_data(wrong, b"x")
    for at, data in chunks_of(source):
        for piece in pieces_of(data, rng):
            at = copy.append_data(at, piece)
    copy.flush_all()
    assert copy.get_min_phy_offset() == begin
    for topic, queues in source.get_consume_queue_table().items():
        for queue_id, queue in queues.items():
            copied = copy.find_consume_queue(topic, queue_id)
            low, high = copied.get_min_offset_in_queue(), queue.get_max_offset_in_queue()
            assert 0 < low < high == copied.get_max_offset_in_queue()
            ours = copied.read_units(low, high - low)
            theirs = queue.read_units(low, high - low)
            assert ours.phy_offset.tolist() == theirs.phy_offset.tolist()
    copy.shutdown()
    source.shutdown()


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_copy_of_many_files_is_equal(way: int, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    fill(tmp_path / "a")
    data = log_of(tmp_path / "a")
    copy = started(settings_of(tmp_path / "b", **WAYS[way]))
    append(copy, data, rng)
    copy.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    ours = list(dump_lines(tmp_path / "b", settings_of(tmp_path / "b")))
    assert ours == list(dump_lines(tmp_path / "a", settings_of(tmp_path / "a")))
    with pyrocketstore.open(tmp_path / "b", read_only=True) as store:
        assert store.verify().ok
        assert [m.body for m in store.query("T1", "k1")]


def test_one_call_may_have_many_files(tmp_path: Path) -> None:
    fill(tmp_path / "a", **TINY_SIZES)
    data = log_of(tmp_path / "a")
    copy = started(settings_of(tmp_path / "b", **TINY_SIZES))
    for view in (bytearray(data[:10_001]), memoryview(data)[10_001:]):
        copy.append_data(copy.get_data_end(), view)
    copy.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


# ---- puts between and after ------------------------------------------------------------------


def message(topic: str = "T0", **fields: Any) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(topic, b"later", 0, **fields)


def test_puts_wait_until_they_may_continue(tmp_path: Path) -> None:
    fill(tmp_path / "a", 50)
    data = log_of(tmp_path / "a")
    with pyrocketstore.open(tmp_path / "b", **SIZES) as store:
        low = store.message_store
        for cut in (1, 7, 8, 9, len(data) - 1):
            low.append_data(low.get_data_end(), data[low.get_data_end() : cut])
            assert low.get_max_phy_offset() <= cut == low.get_data_end()
            result = low.put_message(message())
            assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert "continue_puts" in str(result.error)
            with pytest.raises(StoreStateError, match="append the rest"):
                low.continue_puts()
            for put in (
                lambda: store.put("T0", b"x"),
                lambda: store.put_many("T0", [b"x"]),
                lambda: store.put_batch("T0", [b"x"]),
            ):
                with pytest.raises(PutError, match="continue_puts") as caught:
                    put()
                assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            with pytest.raises(StoreFormatError, match=f"next byte of this log is {cut}"):
                low.append_data(cut - 1, data[cut - 1 :])
        low.append_data(len(data) - 1, data[-1:])
        with pytest.raises(PutError, match="continue_puts"):
            store.put("T0", b"x")
        low.continue_puts()
        low.continue_puts()
        ends = {(t, q): store.max_offset(t, q) for t in ("T0", "T1", "T2") for q in (0, 1)}
        assert sum(ends.values()) == 50
        for (topic, queue_id), end in ends.items():
            assert store.put(topic, b"later", queue_id=queue_id).queue_offset == end
        assert [m.queue_offset for m in store.read("T0", 0)] == list(range(ends["T0", 0] + 1))
    with pyrocketstore.open(tmp_path / "b", read_only=True) as store:
        assert store.verify().ok


@pytest.mark.parametrize("kind", ["put", "put_many", "put_batch", "message", "future"])
def test_each_first_put_behind_data_has_the_next_queue_offset(kind: str, tmp_path: Path) -> None:
    fill(tmp_path / "a", 60)
    data = log_of(tmp_path / "a")
    with pyrocketstore.open(tmp_path / "b", **SIZES) as store:
        low = store.message_store
        store.put("T0", b"own", queue_id=5)
        low.drop_topic("T0")
    with pyrocketstore.open(tmp_path / "c", **SIZES) as store:
        low = store.message_store
        low.append_data(0, data)
        low.continue_puts()
        puts: dict[str, Any] = {
            "put": lambda: store.put("T1", b"x").queue_offset,
            "put_many": lambda: store.put_many("T1", [b"x"])[0][0],
            "put_batch": lambda: store.put_batch("T1", [b"x", b"y"]).queue_offset,
            "message": lambda: low.put_message(message("T1")).queue_offset,
            "future": lambda: low.async_put_message(message("T1")).result().queue_offset,
        }
        before = sum(1 for i in range(60) if i % 3 == 1 and i % 2 == 0)
        assert puts[kind]() == before


def test_light_queues_continue_too(tmp_path: Path) -> None:
    lmq = {"enable_lmq": True, "enable_multi_dispatch": True}
    with pyrocketstore.open(tmp_path / "a", **SIZES, **lmq) as store:
        for _ in range(3):
            store.put("T", b"x", light_queues=["L", "M"])
    with pyrocketstore.open(tmp_path / "b", **SIZES, **lmq) as store:
        store.message_store.append_data(0, log_of(tmp_path / "a"))
        store.message_store.continue_puts()
        store.put("T", b"y", light_queues=["M"])
        assert [m.body for m in store.read("%LMQ%M")] == [b"x"] * 3 + [b"y"]
        assert store.max_offset("%LMQ%L", 0) == 3


def test_a_partial_record_can_be_dropped(tmp_path: Path) -> None:
    fill(tmp_path / "a", 10)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    store.append_data(0, data[:-1])
    end = store.get_max_phy_offset()
    assert store.drop_partial_record() == len(data) - 1 - end
    assert store.drop_partial_record() == 0
    assert store.get_data_end() == end
    assert store.append_data(end, data[end:]) == len(data)
    store.append_data(len(data), data[:0])
    store.continue_puts()
    assert store.put_message(message()).phy_offset == len(data)
    store.shutdown()


def test_puts_and_data_of_two_threads_never_mix(tmp_path: Path) -> None:
    """Whichever comes first moves the end of the log, and the other one is refused or follows."""
    fill(tmp_path / "a", 300)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    refused, errors = [], []

    def puts() -> None:
        try:
            for _ in range(200):
                result = store.put_message(message())
                refused.append(result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=puts)
    at = 0
    thread.start()
    rng = random.Random(SEED)
    for piece in pieces_of(data, rng, 1000):
        try:
            at = store.append_data(at, piece)
        except (StoreFormatError, StoreCorruptionError):
            break
    thread.join()
    assert not errors
    store.drop_partial_record()
    store.continue_puts()
    assert store.put_message(message()).status is PutMessageStatus.PUT_OK
    store.shutdown()
    with pyrocketstore.open(tmp_path / "b", read_only=True) as reader:
        assert reader.verify().ok


@pytest.mark.parametrize("kind", ["message", "light", "future", "continue"])
def test_a_listener_that_puts_does_not_wait_for_itself(tmp_path: Path, kind: str) -> None:
    fill(tmp_path / "a", 3)
    data = log_of(tmp_path / "a")
    seen: list[object] = []

    def arriving(*_: object) -> None:
        try:
            seen.append(put())
        except StoreStateError as error:
            seen.append(str(error))

    def put() -> object:
        if kind == "continue":
            return store.continue_puts()
        if kind == "future":
            return store.async_put_message(message("other")).result().status
        light = {"INNER_MULTI_DISPATCH": "%LMQ%L"} if kind == "light" else {}
        return store.put_message(message("other", properties=light)).status

    settings = settings_of(
        tmp_path / "b",
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    store = DefaultMessageStore(settings, message_arriving_listener=arriving)
    store.load()
    store.start()
    store.append_data(0, data)
    store.wait_dispatched()
    assert len(seen) >= 3
    if kind == "continue":
        assert "cannot wait" in str(seen[0])
    else:
        assert seen[0] is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.continue_puts()
    store.shutdown()


def test_puts_need_the_confirm_offset(tmp_path: Path) -> None:
    fill(tmp_path / "a", 20)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b", duplication_enable=True))
    store.set_confirm_offset(0)
    store.append_data(0, data)
    with pytest.raises(StoreStateError, match="set_confirm_offset"):
        store.continue_puts()
    store.set_confirm_offset(len(data))
    store.continue_puts()
    assert store.put_message(message()).queue_offset == 4
    store.shutdown()


def test_copied_delayed_messages_are_delivered_once_puts_continue(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "a", **SIZES, message_delay_level="1s 1h") as store:
        store.put("T0", b"soon", delay_level=1)
        store.flush()
        data = log_of(tmp_path / "a")
    with pyrocketstore.open(tmp_path / "b", **SIZES, message_delay_level="1s 1h") as store:
        store.message_store.append_data(0, data)
        store.message_store.wait_dispatched()
        time.sleep(1.5)
        assert store.message_store.get_max_phy_offset() == len(data)
        store.message_store.continue_puts()
        with store.consumer("g", "T0") as consumer:
            assert [m.body for m in consumer.poll(1, timeout=30)] == [b"soon"]


def test_a_put_behind_a_dropped_record_begins_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint knows of each file before its first record."""
    fill(tmp_path / "a", 400)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    size = store.commit_log.file_size
    assert len(data) > size + 5
    store.append_data(0, data[: size + 5])
    begun: list[int] = []
    monkeypatch.setattr(store.commit_log, "begin_file", lambda at, now_ms: begun.append(at))
    store.drop_partial_record()
    store.continue_puts()
    assert store.put_message(message()).phy_offset == size
    assert begun == [size]
    store.shutdown()


def test_a_refused_call_leaves_puts_as_they_were(tmp_path: Path) -> None:
    store = started(settings_of(tmp_path / "b"))
    assert store.put_message(message()).status is PutMessageStatus.PUT_OK
    for data in (b"no record at all" * 50, "text", None):
        with pytest.raises(StoreError):
            store.append_data(store.get_data_end(), data)  # type: ignore[arg-type]
        assert store.put_message(message()).status is PutMessageStatus.PUT_OK
    store.shutdown()


# ---- refusals and damage ---------------------------------------------------------------------


def test_what_is_not_accepted(tmp_path: Path) -> None:
    fill(tmp_path / "a", 5)
    data = log_of(tmp_path / "a")
    store = DefaultMessageStore(settings_of(tmp_path / "b"))
    store.load()
    with pytest.raises(StoreStateError, match="closed or not started"):
        store.append_data(0, data)
    store.start()
    odd: list[tuple[Any, Any]] = [(0, "text"), (0, 5), (0, None), (0.0, data), (True, data)]
    for phy_offset, bad in odd:
        with pytest.raises(StoreTypeError):
            store.append_data(phy_offset, bad)
    with pytest.raises(StoreFormatError):
        store.append_data(1 << 64, data)
    with pytest.raises(StoreFormatError, match="phy_offset 1: the next byte of this log is 0"):
        store.append_data(1, data)
    assert store.get_data_end() == 0
    assert not store.commit_log.mapped_file_queue.mapped_files
    store.append_data(0, memoryview(data))
    store.shutdown()
    with pytest.raises(StoreStateError):
        store.append_data(len(data), data)
    reader = DefaultMessageStore(settings_of(tmp_path / "b"), read_only=True)
    reader.load()
    with pytest.raises(StoreStateError, match="read-only"):
        reader.append_data(len(data), data)
    assert reader.get_data_end() == len(data)
    reader.shutdown()


def test_a_slave_takes_data_and_no_puts(tmp_path: Path) -> None:
    fill(tmp_path / "a", 30)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b", broker_role="SLAVE"))
    store.append_data(0, data)
    assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.shutdown()
    store = started(settings_of(tmp_path / "b"))
    assert store.put_message(message()).queue_offset == 5
    store.shutdown()


def damaged(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch) :]


@pytest.mark.parametrize("step", [1 << 20, 5])
@pytest.mark.parametrize(
    ("position", "patch"),
    [
        (0, bytes(4)),
        (0, b"\x7f\xff\xff\xff"),
        (0, b"\xff\xff\xff\xff"),
        (4, b"\xda\xa3\x20\xa8"),  # the magic code of 5.x
        (4, bytes(4)),
        (4, b"\xcb\xd4\x31\x94"),  # BLANK, with another size than that to the end of the file
        (28, b"\x00\x00\x00\x00\x00\x00\x00\x01"),
        (84, b"\x7f\x00\x00\x00"),  # the size of the body
        (8, b"\x00\x00\x00\x01"),  # its CRC
    ],
)
def test_data_that_are_no_records_end_before_them(
    position: int, patch: bytes, step: int, tmp_path: Path
) -> None:
    fill(tmp_path / "a", 30)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    reader = DefaultMessageStore(settings_of(tmp_path / "a"), read_only=True)
    reader.load()
    units = reader.find_consume_queue("T0", 0).read_units(3, 1)
    begin = int(units.phy_offset[0])
    reader.shutdown()
    bad = damaged(data, begin + position, patch)
    with pytest.raises(StoreCorruptionError, match="not records of a log") as caught:
        for at in range(0, len(bad), step):
            store.append_data(store.get_data_end(), bad[at : at + step])
    assert caught.value.position == begin
    assert store.get_data_end() == store.get_max_phy_offset() == begin
    assert store.append_data(begin, data[begin:]) == len(data)
    store.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_log_with_other_files_is_refused_at_the_end_of_its_first_file(tmp_path: Path) -> None:
    fill(tmp_path / "a", 400)
    data = log_of(tmp_path / "a")
    for size in (1 << 15, 1 << 17):
        store = started(settings_of(tmp_path / str(size), mapped_file_size_commit_log=size))
        with pytest.raises(StoreCorruptionError, match=f"files have {size} bytes"):
            store.append_data(0, data)
        assert store.get_data_end() <= min(size, 1 << 16)
        store.shutdown()


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    fill(tmp_path / "a", 20)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    for _ in range(300):
        end = store.get_data_end()
        bad = bytearray(data[end : end + rng.randrange(1, 3000)] or rng.randbytes(50))
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            store.append_data(end, bad)
        except StoreCorruptionError:
            assert store.get_data_end() == store.get_max_phy_offset()
        else:
            store.drop_partial_record()
    end = store.get_data_end()
    store.shutdown()
    with pyrocketstore.open(tmp_path / "b", read_only=True) as reader:
        assert reader.message_store.get_max_phy_offset() == end


def in_the_log(original: Any, fd: int, *arguments: Any) -> int:
    """Fail for a file of the log alone: the dispatcher writes to queues meanwhile."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    return -errno.EIO if "/commitlog/" in name else int(original(fd, *arguments))


@pytest.mark.parametrize("way", [{}, {"write_without_mmap": True}])
def test_after_an_error_of_the_system_the_data_come_again(
    way: dict[str, Any], tmp_path: Path
) -> None:
    """4.9.3 swallows the error and moves on over a hole of zeros."""
    fill(tmp_path / "a", 40)
    data = log_of(tmp_path / "a")
    env = Env()
    store = started(settings_of(tmp_path / "b", **way), env)
    store.append_data(0, data[: len(data) // 4 * 3])
    store.wait_dispatched()  # each queue has its file
    file = store.commit_log.mapped_file_queue.mapped_files[-1]
    for step in (30, len(data)):
        end = store.get_max_phy_offset()
        with broken(env, "fallocate", in_the_log), broken(env, "pwrite", in_the_log):
            file.wrote = file.wrote  # gives up what was allocated ahead
            with pytest.raises(StoreIOError):
                for at in range(store.get_data_end(), len(data), step):
                    store.append_data(at, data[at : at + step])
        assert store.get_max_phy_offset() == end
        at = store.get_data_end()
        store.append_data(at, data[at : at + 1000])
        assert store.get_max_phy_offset() > end
    at = store.get_data_end()
    store.append_data(at, data[at:])
    store.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_whole_record_that_could_not_be_stored_needs_no_more_data(tmp_path: Path) -> None:
    fill(tmp_path / "a", 40)
    data = log_of(tmp_path / "a")
    env = Env()
    store = started(settings_of(tmp_path / "b"), env)
    store.append_data(0, data[:-5])
    store.wait_dispatched()
    file = store.commit_log.mapped_file_queue.mapped_files[-1]
    with broken(env, "fallocate", in_the_log), broken(env, "pwrite", in_the_log):
        file.wrote = file.wrote
        with pytest.raises(StoreIOError):
            store.append_data(len(data) - 5, data[-5:])
    assert store.get_data_end() == len(data) > store.get_max_phy_offset()
    assert store.append_data(len(data), b"") == len(data) == store.get_max_phy_offset()
    store.continue_puts()
    store.shutdown()


# ---- durability and kills --------------------------------------------------------------------


def test_whole_records_are_durable_on_return_under_sync_flush(tmp_path: Path) -> None:
    fill(tmp_path / "a", 300, **SYNC_SIZES)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b", **SYNC_SIZES))
    rng = random.Random(SEED)
    for piece in pieces_of(data, rng):
        store.append_data(store.get_data_end(), piece)
        assert store.stats().flushed_where >= store.get_max_phy_offset()
    store.shutdown()


KILLED = """
import os, random, sys
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore

root, log, seed, sizes = sys.argv[1:]
store = DefaultMessageStore(MessageStoreConfig(**eval(sizes)).at_root(root))
store.load()
store.start()
with open(log, "rb") as file:
    data = file.read()
rng = random.Random(seed)
begin = at = store.get_data_end()
while at < len(data):
    size = rng.choice([1, 9, 100, 1000, 10_000])
    at = store.append_data(at, data[at : at + size])
    if at > begin + 20_000 and rng.random() < 0.1:
        print(store.get_max_phy_offset(), flush=True)
        os.kill(os.getpid(), 9)
store.shutdown()
print(len(data))
"""


@pytest.mark.parametrize("way", mostly_slow([0, 1]))
def test_a_killed_copy_continues_at_its_last_whole_record(way: int, tmp_path: Path) -> None:
    fill(tmp_path / "a", 400)
    data = log_of(tmp_path / "a")
    (tmp_path / "log").write_bytes(data)
    settings = {**SIZES, **WAYS[way]}
    end = kills = 0
    while end < len(data):
        words = [sys.executable, "-c", KILLED, str(tmp_path / "b"), str(tmp_path / "log")]
        child = subprocess.run(
            [*words, f"{SEED}-{kills}", repr(settings)], capture_output=True, text=True, check=False
        )
        assert child.returncode in (0, -signal.SIGKILL), child.stderr
        end = int(child.stdout)
        kills += 1
        with pyrocketstore.open(tmp_path / "b", read_only=True) as store:
            assert store.message_store.get_max_phy_offset() == end
    assert kills > 1
    with pyrocketstore.open(tmp_path / "b", **settings):  # a kill may leave the next, empty file
        pass
    copied = files_of(tmp_path / "b")
    for name, content in files_of(tmp_path / "a").items():
        assert copied.pop(name) == content
    assert not any(map(any, copied.values()))
    ours = list(dump_lines(tmp_path / "b", settings_of(tmp_path / "b")))
    assert ours == list(dump_lines(tmp_path / "a", settings_of(tmp_path / "a")))


def test_half_a_record_at_the_end_of_a_file_is_cut_and_comes_again(tmp_path: Path) -> None:
    """A slave of 4.9.3 that was killed leaves one."""
    fill(tmp_path / "a", 100)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    store.append_data(0, data[:5000])
    end = store.get_max_phy_offset()
    assert end < 5000
    store.shutdown()
    path = tmp_path / "b" / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(end)
        file.write(data[end:5000])
    (tmp_path / "b" / "abort").touch()
    store = started(settings_of(tmp_path / "b"))
    assert store.get_data_end() == end
    store.append_data(end, data[end:])
    store.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_times_of_another_clock_are_covered(tmp_path: Path) -> None:
    """The first record of a file may be much older than the file: the checkpoint must not cover a
    file that begins with a time which earlier records have, too."""
    fill(tmp_path / "a", 200)
    data = log_of(tmp_path / "a")
    env = Env()
    store = started(settings_of(tmp_path / "b"), env)
    begun: list[tuple[int, int]] = []
    original = store.commit_log.begin_file

    def begin_file(offset: int, time_ms: int) -> None:
        begun.append((offset, time_ms))
        original(offset, time_ms)

    store.commit_log.begin_file = begin_file
    append(store, data, random.Random(SEED))
    assert [offset for offset, _ in begun] == [i << 16 for i in range(len(begun))]
    for offset, time_ms in begun:
        message = store.look_message_by_offset(offset)
        assert message is not None
        assert message.store_timestamp == time_ms
    store.shutdown()


def test_data_are_refused_when_puts_are(tmp_path: Path) -> None:
    fill(tmp_path / "a", 10)
    data = log_of(tmp_path / "a")
    store = started(settings_of(tmp_path / "b"))
    store.append_data(0, data[:100])
    flags = store.running_flags
    flags.get_and_make_disk_full(StoreIOError(errno.ENOSPC, "write", "/disk"))
    with pytest.raises(StoreStateError, match="no data can be appended: write failed: /disk"):
        store.append_data(100, data[100:])
    flags.get_and_make_disk_ok()
    assert store.append_data(100, data[100:]) == len(data)
    store.shutdown()
