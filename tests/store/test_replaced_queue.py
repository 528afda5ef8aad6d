"""Goal: a reader that finds damage learns whether the owner has removed the queue or made it again,
with one refresh, and a refresh that fails decides nothing.
Method: a reader's queue, and an owner in the same process that drops the topic and puts again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import SkippedMessages, StoreIOError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import QueueDamage
from pyrocketstore.store.replaced_queue import ReplacedQueue
from support.sizes import SIZES


class Scene:
    def __init__(self, root: Path) -> None:
        self.owner = pyrocketstore.open(root, **SIZES)
        self.put(5)
        self.reader = pyrocketstore.open(root, read_only=True, **SIZES)
        self.engine = self.reader.message_store

    def put(self, count: int) -> None:
        for _ in range(count):
            self.owner.put("t", b"body", queue_id=0)
        self.owner.flush()

    def question(self, stop: int) -> ReplacedQueue:
        queue = self.engine.queue_table.get("t", 0)
        assert queue is not None
        damage = QueueDamage("t", 0, "skip", SkippedMessages())
        part = QueueRange(self.engine.commit_log, queue, 0, None, damage, False)
        engine = self.engine
        return ReplacedQueue(lambda: engine.refresh(), lambda: engine.reads, part, stop)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.reader.close()
    found.owner.close()


@pytest.mark.parametrize("added", [0, 3])
def test_a_queue_that_is_there_was_not_replaced(scene: Scene, added: int) -> None:
    asked = scene.question(5)
    scene.put(added)
    assert not asked() and not asked()
    assert scene.reader.max_offset("t") == 5 + added, "the store was refreshed"


@pytest.mark.parametrize("again", [0, 1, 5, 9])
def test_a_queue_that_was_removed(
    scene: Scene, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scene.question(5)
    scene.owner.drop_topic("t")
    scene.put(again)
    assert asked()
    calls: list[int] = []
    monkeypatch.setattr(DefaultMessageStore, "refresh", lambda self: calls.append(1))
    assert asked() and calls == [], "known from then on"


def test_nothing_before_the_stop_cannot_be_lost(scene: Scene) -> None:
    asked = scene.question(0)
    scene.owner.drop_topic("t")
    assert not asked()


def test_a_refresh_that_fails_decides_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = scene.question(5)
    scene.owner.drop_topic("t")

    def fail(self: DefaultMessageStore) -> None:
        raise StoreIOError(errno.EIO, "open", "a")

    with monkeypatch.context() as patch:
        patch.setattr(DefaultMessageStore, "refresh", fail)
        assert not asked()
    assert "could not be refreshed" in caplog.text
    assert asked(), "the next call tries again"
