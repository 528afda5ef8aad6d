"""Goal: `drop_topic` and `trim(topic=...)` remove messages of one topic for good: no restart,
recovery or rebuild finds them again, and no other message is lost.
Method: stores of small files; queues and index are deleted, system calls fail, and copies of a
moment are opened, as after a kill."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    Store,
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
    UnknownTopicError,
)
from pyrocketstore.cleaning.topic_removal import TopicRemoval
from pyrocketstore.commit_log import topic_min_offset_file
from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.damaged_stores import halt
from support.far_stores import BEGINS, begin_log_at
from support.sizes import SIZES, TINY_SIZES

FILE = "config/topicMinOffset.json"
LIGHT: dict[str, Any] = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}


def fill(store: Store, count: int = 30, first: int = 0) -> None:
    """Put messages of two topics with equal keys, `gone` in two queues."""
    for i in range(first, first + count):
        store.put("gone", b"gone %d" % i, queue_id=i % 2, keys=f"k{i}")
        store.put("kept", b"kept %d" % i, keys=f"k{i}")


def bodies(store: Store, topic: str, queue_id: int | None = None) -> list[bytes]:
    return [m.body for m in store.read(topic, queue_id)]


def found(store: Store, topic: str, key: str) -> list[bytes]:
    many = store.query_many(topic, [key])
    messages = store.query(topic, key)
    assert [m.phy_offset for m in messages] == many.phy_offset.tolist()
    return [m.body for m in messages]


def assert_gone(store: Store, count: int = 30) -> None:
    """The topic is unknown, the other one is whole."""
    assert store.topics() == ["kept"]
    with pytest.raises(UnknownTopicError):
        store.read("gone")
    assert found(store, "gone", "k3") == []
    assert bodies(store, "kept") == [b"kept %d" % i for i in range(count)]
    assert found(store, "kept", "k3") == [b"kept 3"]
    assert_whole(store)


def assert_whole(store: Store) -> None:
    report = store.verify()
    assert report.ok, report.problems[:5]


def table(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / FILE).read_text())["topicMinOffsetTable"]
    return content


def without_queues(root: Path) -> None:
    """Have the next opening build queues and index from the whole log."""
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    halt(root)


# ---- drop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "kill", "rebuild"])
def test_a_dropped_topic_does_not_come_back(tmp_path: Path, damage: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
        assert_gone(store)
        assert not (tmp_path / "consumequeue" / "gone").exists()
        assert '"gone"' not in (tmp_path / "config" / "topics.json").read_text()
        assert store.get(0) is not None, "the log keeps the record"
    if damage == "kill":
        halt(tmp_path)
    elif damage == "rebuild":
        without_queues(tmp_path)
    for read_only in (True, False, True):
        with pyrocketstore.open(tmp_path, read_only=read_only, **SIZES) as store:
            assert_gone(store)


@pytest.mark.parametrize("damage", ["none", "kill", "rebuild"])
def test_a_topic_begins_again_after_its_drop(tmp_path: Path, damage: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        for _ in range(2):
            store.drop_topic("gone")
            assert [store.put("gone", b"%d" % i, keys="k3").queue_offset for i in range(3)] == [
                0, 1, 2,
            ]  # fmt: skip
    if damage == "kill":
        halt(tmp_path)
    elif damage == "rebuild":
        without_queues(tmp_path)
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path, read_only=read_only, **SIZES) as store:
            assert bodies(store, "gone", 0) == [b"0", b"1", b"2"]
            assert found(store, "gone", "k3") == [b"0", b"1", b"2"]
            assert (store.min_offset("gone"), store.max_offset("gone")) == (0, 3)
            assert_whole(store)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.put("gone", b"3").queue_offset == 3


def test_the_engines_own_query_leaves_removed_messages_out(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
        store.put("gone", b"new", keys="k3")
        store.wait_dispatched()
        result = store.message_store.query_message("gone", "k3", 32, 0, 1 << 62)
        assert len(result.phy_offsets) == 1
        result.release()


def test_groups_forget_a_dropped_topic(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        with store.consumer("g", ["gone", "kept"]) as consumer:
            while consumer.poll(100, 0):
                pass
            consumer.commit()
        store.drop_topic("gone")
        assert {row.topic for row in store.consumer_positions()} == {"kept"}
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store, first=30)
        store.drop_topic("gone")  # before a consumer has read the file
        assert {row.topic for row in store.consumer_positions()} == {"kept"}


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "rmq_sys_x"]
)
def test_topics_of_the_broker_stay(tmp_path: Path, topic: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        with pytest.raises(StoreFormatError, match="belong to the broker"):
            store.drop_topic(topic)
        with pytest.raises(StoreFormatError, match="belong to the broker"):
            store.trim(topic, before=10**11)


def test_arguments_of_a_removal_are_checked(tmp_path: Path) -> None:
    wrong: Any = 7
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("kept", b"x")
        for call in (store.drop_topic, lambda topic: store.trim(topic, before=10**11)):
            with pytest.raises(StoreTypeError):
                call(wrong)
            with pytest.raises(StoreFormatError):
                call("a/b")
            with pytest.raises(UnknownTopicError, match="gone"):
                call("gone")
    with pytest.raises(StoreStateError, match="closed"):
        store.drop_topic("kept")
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        with pytest.raises(StoreStateError, match="read-only"):
            store.drop_topic("kept")
        with pytest.raises(StoreStateError, match="read-only"):
            store.trim("kept", before=10**11)


@pytest.mark.parametrize("begin", [0, BEGINS[1]])
def test_a_topic_without_messages_is_dropped(tmp_path: Path, begin: int) -> None:
    begin_log_at(tmp_path, begin, SIZES["mapped_file_size_commit_log"])
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.message_store.topics is not None
        store.message_store.topics.request("gone", 3)
        store.message_store.topics.persist()
        store.drop_topic("gone")
        with pytest.raises(UnknownTopicError):
            store.read("gone")
        assert not (tmp_path / FILE).exists(), "an empty log has nothing to remove"


def test_a_reader_sees_a_drop_with_its_next_refresh(tmp_path: Path) -> None:
    with (
        pyrocketstore.open(tmp_path, **SIZES) as store,
        pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader,
    ):
        fill(store)
        store.flush()
        reader.refresh()
        assert reader.topics() == ["gone", "kept"]
        store.drop_topic("gone")
        reader.refresh()
        assert_gone(reader)
        store.put("gone", b"new", keys="k3")
        store.flush()
        reader.refresh()
        assert bodies(reader, "gone") == found(reader, "gone", "k3") == [b"new"]


def test_a_drop_beside_puts_and_reads(tmp_path: Path) -> None:
    """Each put that began after the drop is there, none that ended before it."""
    done = threading.Event()
    put: list[int] = []

    def put_all() -> None:
        while not done.is_set():
            store.put("gone", b"%d" % len(put), keys=f"k{len(put)}")
            store.put("kept", b"%d" % len(put))
            put.append(len(put))
            time.sleep(0.0002)  # so that not too many are compared below

    def read_all() -> None:
        while not done.is_set():
            try:
                numbers = [int(body) for body in bodies(store, "gone", 0)]
            except (UnknownTopicError, pyrocketstore.OffsetOutOfRange):
                continue
            except StoreIOError as error:
                assert error.errno == errno.ENOENT, error  # its file has just been deleted
                continue
            assert numbers == sorted(numbers)

    with pyrocketstore.open(tmp_path, **SIZES) as store, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(put_all), pool.submit(read_all)]
        before = after = 0
        for _ in range(10):
            time.sleep(0.02)
            before = len(put)
            store.drop_topic("gone")
            after = len(put)
        time.sleep(0.02)
        done.set()
        for each in running:
            each.result(60)
        numbers = [int(body) for body in bodies(store, "gone", 0)]
        assert numbers == list(range(numbers[0], len(put)))
        assert before <= numbers[0] <= after + 1
        assert [int(body) for body in bodies(store, "kept")] == put
        assert_whole(store)
        count = store.max_offset("gone")
    without_queues(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [int(body) for body in bodies(store, "gone", 0)] == numbers
        assert store.max_offset("gone") == count
        assert_whole(store)


# ---- failures and kills --------------------------------------------------------------------------


def nth(number: int, then: Callable[[], None]) -> Callable[..., int]:
    """Call `then` before call `number` of a system call, and fail that one and all later ones."""
    calls = [0]

    def call(original: Callable[..., int], *arguments: Any) -> int:
        calls[0] += 1
        if calls[0] < number:
            return original(*arguments)
        if calls[0] == number:
            then()
        return -errno.EIO

    return call


@pytest.mark.parametrize("name", ["rename", "unlink", "rmdir", "fsync_directory", "fsync"])
@pytest.mark.parametrize("number", range(1, 8))
def test_an_interrupted_drop_is_completed(tmp_path: Path, name: str, number: int) -> None:
    """The call raises; a copy of that moment is opened, and the call is repeated."""
    root, killed, env = tmp_path / "store", tmp_path / "killed", Env()

    def copy() -> None:
        shutil.copytree(root, killed, ignore=lambda *_: {"lock"})

    with pyrocketstore.open(root, env=env, **SIZES) as store:
        fill(store)
        store.flush()
        with broken(env, name, nth(number, copy)):
            try:
                store.drop_topic("gone")
            except StoreIOError:
                pass
            else:
                assert not killed.exists()
                return
        if name.startswith("fsync"):  # a failed one is final
            with pytest.raises(StoreIOError):
                store.close()
        else:
            store.drop_topic("gone")
            assert_gone(store)
            with pytest.raises(UnknownTopicError):
                store.drop_topic("gone")
    for _ in range(2):
        with pyrocketstore.open(killed, **SIZES) as store:
            if store.topics() == ["kept"]:
                assert_gone(store)
            else:  # nothing was written yet
                assert not (killed / FILE).exists()
                assert len(bodies(store, "gone")) == len(bodies(store, "kept")) == 30
                assert_whole(store)


def test_puts_during_a_drop_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are removed or readable: no message is in the log behind the topic's minimum, with an
    offset of the removed queue."""
    root, killed = tmp_path / "store", tmp_path / "killed"
    forget, flush = TopicRemoval._forget, TopicRemoval._flush_removal

    def forget_and_put(self: TopicRemoval, topic: str) -> None:
        forget(self, topic)
        for number in range(5):
            store.put(topic, b"during %d" % number, keys="during")

    def put_and_copy(self: TopicRemoval, topic: str) -> None:
        store.put(topic, b"after", keys="after")
        store.wait_dispatched()
        shutil.copytree(root, killed, ignore=lambda *_: {"lock"})
        flush(self, topic)

    monkeypatch.setattr(TopicRemoval, "_forget", forget_and_put)
    monkeypatch.setattr(TopicRemoval, "_flush_removal", put_and_copy)
    with pyrocketstore.open(root, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
    monkeypatch.undo()
    for directory in (root, killed):
        with pyrocketstore.open(directory, **SIZES) as store:
            assert [message.body for message in store.read("gone", None)] == [b"after"]
            assert not store.query("gone", "during")
            assert [message.body for message in store.query("gone", "after")] == [b"after"]
            assert store.verify().ok


def test_a_queue_that_cannot_be_deleted_is_empty(tmp_path: Path) -> None:
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **TINY_SIZES) as store:
        fill(store)
        with broken(env, "unlink", nth(2, lambda: None)), pytest.raises(StoreIOError):
            store.drop_topic("gone")
        assert bodies(store, "gone") == found(store, "gone", "k3") == []
        put = store.put("gone", b"new")
        assert bodies(store, "gone") == [b"new"]
    for _ in range(2):
        with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
            assert bodies(store, "gone") == [b"new"], "it was put after the drop"
            assert store.min_offset("gone") == put.queue_offset
            assert_whole(store)
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        store.drop_topic("gone")
        assert_gone(store)


def test_a_reader_of_an_interrupted_drop_finds_no_message(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
        store.drop_topic("kept")
        fill(store, first=30)
    content = json.loads((tmp_path / FILE).read_text())
    end = sum(path.stat().st_size for path in (tmp_path / "commitlog").iterdir())
    assert end
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader:
        last = next(iter(reader.read("kept", start=29)))
        mark = reader.message_store.commit_log.record_mark(last.phy_offset)
    assert mark is not None
    entry = {
        "minPhyOffset": last.phy_offset + mark[0],
        "recordPhyOffset": last.phy_offset,
        "recordSize": mark[0],
        "recordCrc": mark[1],
        "dropping": True,
    }
    content = {"topicMinOffsetTable": content["topicMinOffsetTable"] | {"gone": entry}}
    (tmp_path / FILE).write_text(json.dumps(content))
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader:
        assert bodies(reader, "gone") == found(reader, "gone", "k33") == []
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.topics() == ["kept"]
    assert not table(tmp_path)["gone"]["dropping"]


def test_units_that_another_engine_has_put_again(tmp_path: Path) -> None:
    """As after a recovery of 4.9.3, which takes new messages for repeats of removed ones."""
    queue, saved = tmp_path / "store" / "consumequeue" / "gone", tmp_path / "saved"
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        fill(store)
        store.flush()
        shutil.copytree(queue, saved)
        store.drop_topic("gone")
        for number in range(3):
            store.put("gone", b"%d" % number)
    shutil.rmtree(queue)
    shutil.copytree(saved, queue)
    for read_only in (True, False, True):
        path = tmp_path / "store"
        with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
            assert bodies(store, "gone", 1) == []
            assert [m.body for m in store.read("gone", on_corrupt="skip")] == [b"0", b"1", b"2"]
            assert found(store, "gone", "k3") == []


@pytest.mark.parametrize("text", ["{", "[]", '{"topicMinOffsetTable":[]}'])
def test_a_damaged_file_refuses_openings_for_writing_alone(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
    for name in (FILE, f"{FILE}.bak"):
        (tmp_path / name).write_text(text)
    with pytest.raises(StoreCorruptionError, match="removed messages of topics may then be"):
        pyrocketstore.open(tmp_path, **SIZES)
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert found(store, "gone", "k1")
        report = store.verify()
        (problem,) = (each for each in report.problems if each.kind == "config")
        assert problem.path == str(tmp_path / FILE)
        assert any("an opening for writing is refused" in each for each in report.advice)
    assert "messages that were removed are found again" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"minPhyOffset": 0},
        {"minPhyOffset": 1 << 63},
        {"recordSize": -1},
        {"recordCrc": "1"},
        {"minPhyOffset": True},
        {"minPhyOffset": 1 << 40},
        {"dropping": 0},
    ],
)
@pytest.mark.parametrize("trims", [False, True])
def test_removed_messages_stay_removed_with_a_damaged_entry(
    tmp_path: Path, change: dict[str, Any], trims: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The backup has the entry, too. Without one, the store opens, says so, and keeps the rest."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        if trims:
            store.trim("gone", before=time.time_ns() // 10**6 + 1000)
        else:
            store.drop_topic("gone")
    content = {"topicMinOffsetTable": {"gone": table(tmp_path)["gone"] | change}}
    (tmp_path / FILE).write_text(json.dumps(content))
    without_queues(tmp_path)
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path, read_only=read_only, **SIZES) as store:
            assert found(store, "gone", "k3") == []
            assert "gone" not in store.topics() or bodies(store, "gone") == []
            assert bodies(store, "kept") == [b"kept %d" % i for i in range(30)]
    assert "gone: {" in caplog.text
    (tmp_path / f"{FILE}.bak").unlink()
    (tmp_path / FILE).write_text(json.dumps(content))
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert bodies(store, "kept") == [b"kept %d" % i for i in range(30)]
        store.put("other", b"x")
        store.drop_topic("other")
        assert table(tmp_path)["gone"] == content["topicMinOffsetTable"]["gone"]
        store.put("gone", b"x")
        store.drop_topic("gone")
        assert_gone(store)
    assert table(tmp_path)["gone"] != content["topicMinOffsetTable"]["gone"]


def test_another_log_keeps_its_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("first", "second"):
        with pyrocketstore.open(tmp_path / name, **SIZES) as store:
            fill(store)
            if name == "first":
                store.drop_topic("gone")
    shutil.rmtree(tmp_path / "first" / "commitlog")
    shutil.copytree(tmp_path / "second" / "commitlog", tmp_path / "first" / "commitlog")
    without_queues(tmp_path / "first")
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path / "first", read_only=read_only, **SIZES) as store:
            assert len(bodies(store, "gone")) == 30
        assert "the log was cut or exchanged" in caplog.text
    assert table(tmp_path / "first") == {}


def test_an_entry_goes_with_the_files_of_its_messages(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        fill(store)
        store.drop_topic("gone")
        for _ in range(100):
            store.put("other", bytes(100))
        assert store.trim(before=1 << 62).files > 0
        assert list(table(tmp_path)) == ["gone"]
        store.drop_topic("other")
        assert list(table(tmp_path)) == ["other"]
        for _ in range(100):
            store.put("kept", bytes(100))
        store.trim(before=1 << 62)
    with pyrocketstore.open(tmp_path, **TINY_SIZES):
        assert table(tmp_path) == {}


def test_a_cut_of_the_log_lowers_the_minimum(tmp_path: Path) -> None:
    """The messages before the cut stay removed, new ones behind it do not count as removed."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        store.drop_topic("gone")
        middle = next(iter(store.read("kept", start=15))).phy_offset
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(middle + 4)
        file.write(b"\0\0\0\0")
    halt(tmp_path)
    with pytest.warns(pyrocketstore.StoreWarning), pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.topics() == ["kept"]
        assert table(tmp_path)["gone"]["minPhyOffset"] == middle
        assert store.put("gone", b"new", keys="k3").queue_offset == 0
    without_queues(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert bodies(store, "gone") == found(store, "gone", "k3") == [b"new"]
        assert len(bodies(store, "kept")) == 15
        assert_whole(store)


def test_the_scan_of_a_file_finds_its_last_record(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        fill(store)
        last = store.put("kept", b"last").phy_offset
        store.wait_dispatched()
        engine = store.message_store
        end = engine.get_max_phy_offset()
        for guess in (-1, 0, last):
            proof = topic_min_offset_file.last_record_before(
                engine.env, engine.commit_log, end, guess
            )
            assert proof is not None
            assert (proof.phy_offset, proof.phy_offset + proof.size) == (last, end)
        assert topic_min_offset_file.last_record_before(engine.env, engine.commit_log, 0) is None


# ---- trim ----------------------------------------------------------------------------------------


def trimmed(root: Path, sizes: dict[str, Any] = SIZES) -> int:
    """Make a store, and trim all but the last ten messages of each topic; return the time."""
    with pyrocketstore.open(root, **sizes) as store:
        fill(store, 60)
        time.sleep(0.01)
        now = int(time.time() * 1000)
        fill(store, 10, first=60)
        files = store.trim("gone", before=now)
        assert (files.files > 0, files.size > 0) == (sizes is TINY_SIZES,) * 2
        assert_trimmed(store)
    return now


def assert_trimmed(store: Store) -> None:
    for queue_id in (0, 1):
        assert bodies(store, "gone", queue_id) == [
            b"gone %d" % i for i in range(60 + queue_id, 70, 2)
        ]
        assert (store.min_offset("gone", queue_id), store.max_offset("gone", queue_id)) == (30, 35)
        engine = store.message_store
        assert engine.get_min_offset_in_queue("gone", queue_id) == 30
    with pytest.raises(pyrocketstore.OffsetOutOfRange):
        store.read("gone", start=29)
    assert found(store, "gone", "k3") == []
    assert found(store, "gone", "k63") == [b"gone 63"]
    assert len(bodies(store, "kept")) == 70
    assert_whole(store)


@pytest.mark.parametrize("sizes", [SIZES, TINY_SIZES])
@pytest.mark.parametrize("damage", ["none", "kill", "rebuild"])
def test_trimmed_messages_do_not_come_back(
    tmp_path: Path, damage: str, sizes: dict[str, Any]
) -> None:
    trimmed(tmp_path, sizes)
    if damage == "kill":
        halt(tmp_path)
    elif damage == "rebuild":
        without_queues(tmp_path)
    for read_only in (True, False, True):
        with pyrocketstore.open(tmp_path, read_only=read_only, **sizes) as store:
            assert_trimmed(store)


def test_a_topic_is_trimmed_to_its_end(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        fill(store)
        store.trim("gone", before=1 << 62)
        assert bodies(store, "gone") == []
        assert (store.min_offset("gone"), store.max_offset("gone")) == (15, 15)
        assert store.message_store.get_min_offset_in_queue("gone", 0) == 15
        assert store.put("gone", b"new").queue_offset == 15
        assert bodies(store, "gone") == [b"new"]
    for change in (halt, without_queues):
        change(tmp_path)
        with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
            assert bodies(store, "gone") == [b"new"]
            assert store.min_offset("gone") == 15
            assert_whole(store)


@pytest.mark.parametrize("kind", [{}, {"enable_consume_queue_ext": True}])
@pytest.mark.parametrize("sizes", [SIZES, TINY_SIZES])
def test_queue_offsets_continue_after_a_trim_to_the_end(
    tmp_path: Path, sizes: dict[str, Any], kind: dict[str, Any]
) -> None:
    """Else a group would pass over what is put next."""
    settings = {**sizes, **kind}
    with pyrocketstore.open(tmp_path / "live", **settings) as store:
        fill(store)
        store.trim("gone", before=1 << 62)
        store.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
        with pyrocketstore.open(tmp_path / "live", read_only=True, **settings) as reader:
            assert (reader.min_offset("gone"), reader.max_offset("gone")) == (15, 15)
    with pyrocketstore.open(tmp_path / "killed", read_only=True, **settings) as reader:
        assert (reader.min_offset("gone"), reader.max_offset("gone")) == (15, 15)
    with pyrocketstore.open(tmp_path / "killed", **settings) as store:
        assert [store.put("gone", b"new", queue_id=i).queue_offset for i in (0, 0, 1)] == [
            15,
            16,
            15,
        ]
        assert bodies(store, "gone", 0) == [b"new"] * 2
        assert_whole(store)


def test_a_trim_of_nothing_changes_nothing(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        assert store.trim("gone", before=10**11) == (0, 0)
        assert len(bodies(store, "gone")) == 30
        now = trimmed(tmp_path / "another")
    with pyrocketstore.open(tmp_path / "another", **SIZES) as store:
        before = table(tmp_path / "another")
        store.trim("gone", before=now - 5)
        assert table(tmp_path / "another") == before
        assert_trimmed(store)


def test_a_trimmed_topic_is_dropped_and_trimmed_again(tmp_path: Path) -> None:
    trimmed(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.drop_topic("gone")
        assert_gone(store, 70)
        for i in range(4):
            store.put("gone", b"%d" % i)
        store.trim("gone", before=1 << 62)
        assert bodies(store, "gone") == []
        assert store.put("gone", b"4").queue_offset == 4
    without_queues(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert bodies(store, "gone") == [b"4"]
        assert_whole(store)


def test_a_consumer_learns_of_trimmed_messages(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        fill(store)
        with store.consumer("g", "gone") as consumer:
            consumer.poll(4, 0)
            consumer.commit()
            store.trim("gone", before=1 << 62)
        store.put("gone", b"new", queue_id=0)
        with store.consumer("g", "gone", on_loss="skip") as consumer:
            assert [m.body for m in consumer.poll(10, 0)] == [b"new"]


def test_a_reader_sees_a_trim_with_its_next_refresh(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        fill(store, 60)
        store.flush()
        with pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as reader:
            time.sleep(0.01)
            now = int(time.time() * 1000)
            fill(store, 10, first=60)
            store.trim("gone", before=now)
            store.flush()
            reader.refresh()
            assert_trimmed(reader)
            fill(store, 1, first=70)
            store.flush()
            reader.refresh()
            assert bodies(reader, "gone", 0)[-1] == b"gone 70"
            assert reader.min_offset("gone") == 30


# ---- several queues of one message ---------------------------------------------------------------


def put_light(store: Store, topic: str, number: int) -> None:
    store.put(
        topic,
        b"%s %d" % (topic.encode(), number),
        keys=f"k{number}",
        properties={"INNER_MULTI_DISPATCH": "%LMQ%a"},
    )


@pytest.mark.parametrize("dropped", ["gone", "%LMQ%a"])
@pytest.mark.parametrize("damage", ["none", "kill", "rebuild"])
def test_light_queues_are_topics_of_their_own(tmp_path: Path, dropped: str, damage: str) -> None:
    """A dropped topic leaves its messages in light queues, and a dropped light queue those in their
    topics."""
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        for i in range(20):
            put_light(store, "gone", i)
            put_light(store, "kept", i)
        store.drop_topic(dropped)
        put_light(store, "kept", 20)
        expected = {topic: bodies(store, topic) for topic in store.topics()}
        assert dropped not in expected or len(expected[dropped]) == 1
        assert sorted({"gone", "kept", "%LMQ%a"} - {"gone" if dropped == "gone" else ""}) == sorted(
            expected
        )
        assert len(expected["%LMQ%a"]) == (41 if dropped == "gone" else 1)
        assert_whole(store)
    if damage == "kill":
        halt(tmp_path)
    elif damage == "rebuild":
        without_queues(tmp_path)
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path, read_only=read_only, **LIGHT) as store:
            assert {topic: bodies(store, topic) for topic in store.topics()} == expected
            assert_whole(store)


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_of_minimums() -> None:
    empty, some = TopicMinOffsets({}), TopicMinOffsets({"a": 7, "é" * 40: 1 << 60})
    assert not empty
    assert some
    assert (some.of("a"), some.of("b"), some.of("é" * 40)) == (7, 0, 1 << 60)
    copied = some.by_topic()
    copied["a"] = 0
    assert some.of("a") == 7
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="not positive"):
            TopicMinOffsets({"a": wrong})
    many = TopicMinOffsets({f"topic{i}": i + 1 for i in range(5000)})
    assert [many.of(f"topic{i}") for i in range(5000)] == list(range(1, 5001))
