"""Goal: `Follower` publishes what the owner of a store appends, and says when the store must be
loaded again.
Method: the follower of a reader, beside an owner in the same process that puts, rolls files, makes
queues, or does anything else; a failing call between two looks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreError, StoreIOError
from pyrocketstore.recovery.refresh import Follower
from support.broken_env import failing
from support.sizes import TINY_SIZES


class Scene:
    """An owner with five messages in t/0, and the follower of a reader."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.owner = pyrocketstore.open(root, **TINY_SIZES)
        self.put(5)
        self.reader = pyrocketstore.open(root, read_only=True, **TINY_SIZES)
        self.follower: Follower = self.reader.message_store.reader.follower

    def put(self, count: int, topic: str = "t", **more: Any) -> None:
        for _ in range(count):
            self.owner.put(topic, b"body" * 20, queue_id=0, keys="k", **more)
        self.owner.flush()

    def close(self) -> None:
        self.reader.close()
        self.owner.close()

    def check(self) -> None:
        """The reader has all that the owner has."""
        for topic in self.owner.topics():
            expected = [m.phy_offset for m in self.owner.read(topic)]
            assert [m.phy_offset for m in self.reader.read(topic)] == expected
            found = self.reader.query(topic, "k", max_num=1000)
            assert [m.phy_offset for m in found] == expected


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path / "store")
    yield found
    found.close()


def test_without_a_change_nothing_is_taken(scene: Scene) -> None:
    before = scene.reader.message_store.get_max_phy_offset()
    assert scene.follower.follow() and scene.follower.follow()
    assert scene.reader.message_store.get_max_phy_offset() == before
    scene.check()


def test_appended_messages_are_published(scene: Scene) -> None:
    for count in (1, 3, 100):  # the last one over several files of each kind
        scene.put(count)
        assert len(list(scene.reader.read("t"))) < scene.owner.max_offset("t")
        assert scene.follower.follow()
        scene.check()


def test_new_queues_are_published(scene: Scene) -> None:
    scene.put(3, "u")
    scene.owner.put("t", b"body", queue_id=7)
    scene.owner.flush()
    assert scene.follower.follow()
    scene.check()
    assert scene.reader.queues("t") == [0, 7]


def test_units_that_the_owner_has_not_written_are_built(scene: Scene) -> None:
    with scene.owner.message_store.dispatch_paused():
        scene.owner.put("t", b"body", queue_id=0, keys="k")
        scene.owner.message_store.flush()
        assert scene.follower.follow()
        assert scene.reader.max_offset("t") == 6
        assert len(scene.reader.query("t", "k")) == 6
    scene.owner.wait_dispatched()
    scene.put(4)
    assert scene.follower.follow()
    scene.check()


def remove_queue(scene: Scene) -> None:
    shutil.rmtree(scene.root / "consumequeue" / "t" / "0")


def touch_lock(scene: Scene) -> None:
    os.utime(scene.root / "lock", (1, 1))


def change_last_record(scene: Scene) -> None:
    plan = scene.reader.message_store.plan
    assert plan is not None
    with open(scene.root / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(plan.last_record + 60)
        file.write(b"\xff\xff")


def replace_log_file(scene: Scene) -> None:
    path = scene.root / "commitlog" / f"{0:020d}"
    shutil.copyfile(path, scene.root / "copy")
    (scene.root / "copy").rename(path)


def change_unit(scene: Scene) -> None:
    scene.put(1)
    with open(scene.root / "consumequeue" / "t" / "0" / f"{0:020d}", "r+b") as file:
        file.seek(5 * 20)
        file.write(b"\0\0\0\0\0\0\0\1")


@pytest.mark.parametrize(
    "change", [remove_queue, touch_lock, change_last_record, replace_log_file, change_unit]
)
def test_anything_else_asks_for_another_load(scene: Scene, change: Callable[[Scene], None]) -> None:
    known = [m.phy_offset for m in scene.reader.read("t")]
    change(scene)
    assert not scene.follower.follow()
    assert scene.reader.max_offset("t") >= len(known)


def test_a_failing_call_is_raised_and_the_next_look_continues(scene: Scene) -> None:
    scene.put(100)
    env = scene.reader.message_store.env
    with failing(env, "open", errno.EIO), pytest.raises(StoreIOError) as caught:
        scene.follower.follow()
    assert caught.value.errno == errno.EIO
    assert len(list(scene.reader.read("t"))) >= 5
    assert scene.follower.follow()
    scene.check()


def test_a_file_that_is_gone_asks_for_another_load(scene: Scene) -> None:
    scene.put(100)
    env = scene.reader.message_store.env
    with failing(env, "open", errno.ENOENT):
        assert not scene.follower.follow()


def test_an_empty_store_is_followed(tmp_path: Path) -> None:
    with (
        pyrocketstore.open(tmp_path, **TINY_SIZES) as owner,
        pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as reader,
    ):
        follower = reader.message_store.reader.follower
        assert follower.follow()
        owner.put("t", b"body")
        owner.flush()
        assert not follower.follow(), "the first file of the log needs a load"


@pytest.mark.parametrize("change", ["put", "queue", "close", "first file"])
def test_a_store_with_ext_units_is_loaded_again_once_something_has_changed(
    tmp_path: Path, change: str
) -> None:
    """Its ext units cannot be followed; a look at an idle store must cost no load."""
    settings = {**TINY_SIZES, "enable_consume_queue_ext": True}
    owner = pyrocketstore.open(tmp_path, **settings)
    for _ in range(100):
        owner.put("t", b"body" * 20, queue_id=0)
    owner.flush()
    with pyrocketstore.open(tmp_path, read_only=True, **settings) as reader:
        follower = reader.message_store.reader.follower
        assert follower.follow() and follower.follow()
        if change == "put":
            owner.put("t", b"body")
            owner.flush()
        elif change == "queue":
            shutil.rmtree(tmp_path / "consumequeue" / "t" / "0")
        elif change == "close":
            owner.close()
        else:
            (tmp_path / "commitlog" / f"{0:020d}").unlink()
        assert not follower.follow()
    with contextlib.suppress(StoreError):  # its files are gone
        owner.close()
