"""Goal: a name below `consumequeue` that is not a queue does not keep a store from opening: a
warning names it, the store does not touch it, and a put that could not be dispatched is refused.
Method: files, odd names and names that are not UTF-8 at each level, opened in each way; 4.9.3 opens
the same directories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.display import printable
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files.queue_directories import find_queues
from pyrocketstore.spark.options import StorePlace
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import compare_lines
from support.java_store import require_java
from support.sizes import SIZES

#: Path below the root, and whether it is a directory; bytes, since names need not be text.
ODD = {
    "file-of-a-queue": (b"consumequeue/T/9", False),
    "file-in-a-topic": (b"consumequeue/T/abc", False),
    "file-of-a-topic": (b"consumequeue/U", False),
    "directory-in-a-topic": (b"consumequeue/T/abc", True),
    "number-too-large": (b"consumequeue/T/99999999999", True),
    "digits-of-another-script": ("consumequeue/T/\u0663".encode(), True),
    "topic-not-utf8": (b"consumequeue/\xff\x1b/0", True),
    "queue-not-utf8": (b"consumequeue/T/\xff", True),
    "file-not-utf8": (b"consumequeue/\xfe", False),
}
#: Odd, but not at a place where a queue's directory would be.
SILENT = {
    "file-of-an-ext-queue": (b"consumequeue_ext/T/0", False),
    "file-of-an-ext-topic": (b"consumequeue_ext/T", False),
    "file-in-a-queue": (b"consumequeue/T/0/\xff", False),
    "log": (b"commitlog/\xff", False),
    "index": (b"index/\xff", False),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SIZES) as store:
        for i in range(5):
            store.put("T", b"body %d" % i, queue_id=0, keys=f"k{i}")
    return path


def put_there(root: Path, name: bytes, is_directory: bool) -> str:
    """Make it; its path."""
    path = os.path.join(os.fsencode(root), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if is_directory:
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(b"precious")
    return os.fsdecode(path)


def judged(root: Path, name: bytes, is_directory: bool, settings: dict[str, int]) -> None:
    for read_only in (True, False):
        with pyrocketstore.open(root, read_only=read_only, **settings) as store:
            assert sorted(store.topics()) == ["T"]
            assert list(store.queues("T")) == [0]
            assert len(list(store.read("T"))) >= 5
            assert store.verify().ok
            if not read_only:
                store.put("T", b"more", queue_id=0)
                store.wait_dispatched()
    path = os.path.join(os.fsencode(root), name)
    if is_directory:
        assert os.listdir(path) == []
    else:
        with open(path, "rb") as file:
            assert file.read() == b"precious"


@pytest.mark.parametrize("kind", [*ODD, *SILENT])
def test_an_odd_name_does_not_keep_a_store_from_opening(
    root: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, is_directory = (ODD | SILENT)[kind]
    path = put_there(root, name, is_directory)
    for settings in ({}, SIZES):
        caplog.clear()
        judged(root, name, is_directory, settings)
        wrong = path if kind != "topic-not-utf8" else os.path.dirname(path)
        logged = [line for line in caplog.messages if printable(wrong) in line]
        assert bool(logged) == (kind in ODD), caplog.text
        assert all(line.isprintable() for line in caplog.messages)
    with StoreSnapshot(StorePlace("b", str(root)), None, "fail"):
        pass


@pytest.mark.parametrize("name", [b"consumequeue/T/9", b"consumequeue/U"])
def test_no_put_is_taken_for_a_queue_that_can_have_no_directory(root: Path, name: bytes) -> None:
    """Such a message could be dispatched nowhere."""
    path = put_there(root, name, False)
    topic, queue_id = ("T", 9) if name.endswith(b"9") else ("U", 0)
    calls: list[Callable[[pyrocketstore.Store], object]] = [
        lambda store: store.put(topic, b"x", queue_id=queue_id),
        lambda store: store.put_many(topic, [b"x"] * 3, queue_ids=[queue_id] * 3),
    ]
    with pyrocketstore.open(root, **SIZES) as store:
        end = store.message_store.get_max_phy_offset()
        for call in calls:
            with pytest.raises(StoreIOError) as refused:
                call(store)
            assert refused.value.path == path
        assert store.message_store.get_max_phy_offset() == end
        store.put("T", b"other queues continue", queue_id=1)
        os.unlink(path)
        store.put(topic, b"x", queue_id=queue_id)
        store.wait_dispatched()
        assert [message.body for message in store.read(topic, queue_id)] == [b"x"]


def test_the_names_that_are_queues(tmp_path: Path) -> None:
    for name in ("0", "00", "7", "+3", "-2", "-", "1_0", "2147483647", "2147483648", "٣", " 1"):
        (tmp_path / "T" / name).mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    found = list(find_queues(Env(), str(tmp_path)))
    assert found == [("T", [-2, 0, 3, 7, 2147483647], False), ("empty", [], False)]
    assert list(find_queues(Env(), str(tmp_path / "none"))) == []


@pytest.mark.java
def test_4_9_3_opens_such_a_directory_too(root: Path, tmp_path: Path) -> None:
    java = require_java()
    for name, is_directory in ODD.values():
        if not os.path.lexists(os.path.join(os.fsencode(root), name)):
            put_there(root, name, is_directory)
    settings = {
        "mappedFileSizeCommitLog": 1 << 16,
        "mappedFileSizeConsumeQueue": 2000,
        "maxHashSlotNum": 500,
        "maxIndexNum": 2000,
    }
    ours = list(dump_lines(root))
    theirs, phantoms = [], set()
    for line in java.dump(root, settings):
        queue = json.loads(line).get("queue", {})
        if queue.get("topic") == "T" and queue["queue_id"] != 0:
            assert queue["max_offset"] == 0
            phantoms.add(queue["queue_id"])
        else:
            theirs.append(line)
    # Of the file and of the digit of another script 4.9.3 makes empty queues.
    assert phantoms == {3, 9}
    compare_lines(theirs, ours)
