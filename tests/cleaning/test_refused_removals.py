"""Goal: a `drop_topic` that raises leaves a directory that opens for writing; what can be known to
refuse it refuses it before anything is removed.
Method: each file of ROOT/config is not valid JSON or cannot be read, or a call fails once or from
then on, in the drop and in the part of the opening that completes it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import Store, StoreCorruptionError, StoreError, StoreFsyncError, StoreIOError
from pyrocketstore.cleaning.topic_removal import TopicRemoval
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.sizes import SIZES

NAMES = (
    "consumerOffset.json",
    "subscriptionGroup.json",
    "consumerFilter.json",
    "delayOffset.json",
    "topics.json",
    "topicMinOffset.json",
)
#: Files without which no store opens for writing, whatever was removed.
NEEDED = ("delayOffset.json", "topics.json", "topicMinOffset.json")
CALLS = ("open", "pwrite", "fallocate", "ftruncate", "rename", "unlink", "rmdir", "mkdir")
CALLS += ("fsync", "fdatasync", "fsync_directory", "list_directory", "pread")


def filled(root: Path) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(20):
            store.put("gone", b"%d" % number, queue_id=number % 2, keys="k")
            store.put("kept", b"%d" % number, keys="k")
        store.put("gone", b"later", delay_level=18)
        with store.consumer("g", ["gone", "kept"]) as consumer:
            consumer.poll(99, timeout=0)
            consumer.commit()


def unreadable(env: Env, name: str, code: int) -> contextlib.AbstractContextManager[Any]:
    """Have each opening of a file of ROOT/config fail."""

    def opened(original: Callable[..., int], path: bytes, *rest: Any) -> int:
        return -code if os.path.basename(path).startswith(name.encode()) else original(path, *rest)

    return broken(env, "open", opened)


@contextlib.contextmanager
def fault(env: Env, root: Path, name: str, kind: str) -> Iterator[None]:
    """Have a file of ROOT/config not valid JSON, or not readable."""
    files = [root / "config" / name, root / "config" / f"{name}.bak"]
    if kind != "text":
        with unreadable(env, name, getattr(errno, kind)):
            yield
        return
    before = [file.read_bytes() if file.exists() else None for file in files]
    for file in files:
        file.write_text("{")
    yield
    for file, data in zip(files, before, strict=True):
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)


def assert_writable(root: Path, env: Env | None = None) -> None:
    with pyrocketstore.open(root, env=env, **SIZES) as store:
        store.flush()  # repeats a write of topics.json that failed: without it no new queue is made
        put = store.put("kept", b"x")
        assert [m.body for m in store.read("kept", 0, start=put.queue_offset)] == [b"x"]


def assert_dropped(store: Store) -> None:
    """The topic is gone once a drop is repeated."""
    with contextlib.suppress(pyrocketstore.UnknownTopicError):
        store.drop_topic("gone")
    assert "gone" not in store.topics()
    assert store.query("gone", "k") == []
    assert not [row for row in store.consumer_positions() if row.topic == "gone"]
    assert len(list(store.read("kept", 0))) >= 20
    assert store.verify().ok


@pytest.mark.parametrize("kind", ["text", "EACCES", "EIO"])
@pytest.mark.parametrize("has_consumer", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, name: str, has_consumer: bool, kind: str
) -> None:
    filled(tmp_path)
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        if has_consumer:
            store.consumer_positions()
        with fault(env, tmp_path, name, kind):
            try:
                store.drop_topic("gone")
            except StoreError as error:
                assert isinstance(error, StoreCorruptionError if kind == "text" else StoreIOError)
                if name == "consumerOffset.json" and not has_consumer:
                    assert len(list(store.read("gone", 0))) == 10, "refused before anything"
                    assert not (tmp_path / "config" / "topicMinOffset.json").exists()
    again = Env()
    with fault(again, tmp_path, name, kind):
        if name not in NEEDED:
            assert_writable(tmp_path, again)
    assert_writable(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert_dropped(store)


def failing_from(number: int, code: int) -> Callable[..., int]:
    calls = [0]

    def call(original: Callable[..., int], *arguments: Any) -> int:
        calls[0] += 1
        return original(*arguments) if calls[0] < number else -code

    return call


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_calls_that_fail_in_the_drop_and_in_the_opening(
    tmp_path: Path, name: str, number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop fails from one of its calls on, and so does each completion by an opening."""
    filled(tmp_path)
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    with contextlib.suppress(StoreError), broken(env, name, failing_from(number, code)):
        store.drop_topic("gone")
    with contextlib.suppress(StoreError):
        store.close()
    complete = TopicRemoval.complete
    for first in (1, number):

        def failing(removal: TopicRemoval, first: int = first) -> None:
            with broken(removal.store.env, name, failing_from(first, code)):
                complete(removal)

        monkeypatch.setattr(TopicRemoval, "complete", failing)
        try:
            assert_writable(tmp_path)
        except StoreFsyncError:
            assert "fsync" in name or name == "fdatasync"  # final, but not for the next opening
    monkeypatch.setattr(TopicRemoval, "complete", complete)
    assert_writable(tmp_path)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert_dropped(store)


def test_a_topic_that_is_put_to_before_its_removal_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither are removed messages read again, nor are positions of removed queues used."""
    filled(tmp_path)
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    with broken(env, "unlink", failing_from(1, errno.EIO)), pytest.raises(StoreIOError):
        store.drop_topic("gone")
    store.close()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "config" / name).write_text('{"offsetTable":{"gone@g":{0:1')
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert "the removal of the topic gone is not complete" in caplog.text
        assert "consumerOffset.json: not valid JSON: line 1, column 30" in caplog.text
        assert list(store.read("gone")) == []
        store.put("gone", b"new", queue_id=0)
        assert [m.body for m in store.read("gone")] == [b"new"]
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "config" / name).write_text("{}")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        with store.consumer("g", "gone", start="earliest") as consumer:
            assert [m.body for m in consumer.poll(9, timeout=0)] == [b"new"]
        assert store.verify().ok
