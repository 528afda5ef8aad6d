"""Goal: an opening for writing changes nothing in the directory before it has planned everything.
Method: stores with each file damaged in each way, closed and killed; names, bytes and times of all
files are compared where the plan is complete."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.planned_changes import PlannedChanges, changes_of
from pyrocketstore.message_store import loading
from pyrocketstore.system.env import Env
from support.damage_table import (
    DAMAGES,
    FILES,
    KINDS,
    TOPIC,
    TRIMMED,
    Made,
    do_damage,
    kind_of,
    make_store,
    path_of,
)
from support.sizes import SIZES
from support.snapshot import snapshot

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")

State = dict[str, tuple[int, int, str]]


def state_of(root: Path) -> State:
    """All files but `lock`, which names the owner of the store."""
    own = {".", "lock"}
    return {name: rest for name, *rest in snapshot(root) if name not in own}  # type: ignore[misc]


class Watch:
    """The state of the directory when the plan is complete."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: State | None = None
        self._keep = loading.keep_lost_messages
        monkeypatch.setattr(loading, "keep_lost_messages", self)

    def __call__(self, store: Any, plan: Any) -> Any:
        self.seen = state_of(Path(store.root))
        return self._keep(store, plan)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Made]:
    root = tmp_path_factory.mktemp("made")
    return {
        (kind, mark): make_store(root / f"{kind}-{mark}", mark.encode(), kind)
        for kind in KINDS
        for mark in ("one", "other")
    }


def check(root: Path, settings: dict[str, Any], watch: Watch, what: str) -> None:
    """Open a store, and require that nothing had changed when the plan was complete."""
    before, watch.seen = state_of(root), None
    try:
        with pyrocketstore.open(root, **settings):
            pass
    except pyrocketstore.StoreError:
        watch.seen = watch.seen or state_of(root)
    assert watch.seen is not None
    changed = {n for n in before.keys() | watch.seen if before.get(n) != watch.seen.get(n)}
    assert not changed, f"{what}: {sorted(changed)}"


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", [name for name, _, _ in FILES])
def test_nothing_changes_before_the_plan(
    made: dict[tuple[str, str], Made], tmp_path: Path, watch: Watch, name: str, killed: bool
) -> None:
    pattern, which = next(file[1:] for file in FILES if file[0] == name)
    kind = kind_of(name)
    for damage in DAMAGES:
        work = tmp_path / damage
        shutil.copytree(made[kind, "one"].root, work)
        if killed:
            (work / "abort").touch()
        other = path_of(made[kind, "other"].root, pattern, which)
        do_damage(path_of(work, pattern, which), other, damage)
        check(work, made[kind, "one"].settings, watch, damage)
        shutil.rmtree(work)


@pytest.mark.parametrize("kind", KINDS)
def test_temporary_files_and_empty_ones_wait(
    made: dict[tuple[str, str], Made], tmp_path: Path, watch: Watch, kind: str
) -> None:
    """Files that a killed process was creating are deleted once everything is planned."""
    work = tmp_path / "store"
    shutil.copytree(made[kind, "one"].root, work)
    left = [
        work / ".commitlog.00000000000000098304.new",
        work / ".index.20260101000000000.new",
        work / "consumequeue" / TOPIC / ".0.00000000000000004000.new",
    ]
    if kind == "ext":
        left.append(work / "consumequeue_ext" / TOPIC / ".0.00000000000000004096.new")
    for path in left:
        path.write_bytes(b"x" * 100)
    (work / "abort").touch()
    check(work, made[kind, "one"].settings, watch, "temporary files")
    assert not any(path.exists() for path in left)


def test_an_interrupted_removal_waits(
    made: dict[tuple[str, str], Made],
    tmp_path: Path,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, settings = tmp_path / "store", made["filtered", "one"].settings
    shutil.copytree(made["filtered", "one"].root, work)
    store = pyrocketstore.open(work, **settings)
    with monkeypatch.context() as patch:

        def fail(*arguments: object) -> None:
            raise StoreIOError(5, "unlink", "a file of a queue")

        patch.setattr(type(store.message_store.queue_table), "remove", fail)
        with pytest.raises(StoreIOError):
            store.drop_topic(TRIMMED)
    store.close()
    file = TopicMinOffsetFile(store.message_store.env, str(work))
    file.read()
    file.load(store.message_store.commit_log)
    assert file.dropping() == [TRIMMED]
    check(work, settings, watch, "removal")
    assert not (work / "consumequeue" / TRIMMED).exists()


@pytest.fixture
def changes() -> Iterator[tuple[PlannedChanges, list[int]]]:
    yield PlannedChanges(), []


def test_changes_are_made_in_their_order(changes: tuple[PlannedChanges, list[int]]) -> None:
    planned, made = changes
    planned.add(lambda: made.append(0))
    assert made == [0] and not planned.is_planning
    planned.plan()
    planned.add(lambda: made.append(1))
    planned.add(lambda: planned.add(lambda: made.append(2)))
    planned.add(lambda: made.append(3))
    assert made == [0] and planned.is_planning
    planned.make()
    assert made == [0, 1, 2, 3] and not planned.is_planning
    planned.make()
    assert made == [0, 1, 2, 3]


def test_a_new_plan_forgets_the_one_before(changes: tuple[PlannedChanges, list[int]]) -> None:
    planned, made = changes
    planned.plan()
    planned.add(lambda: made.append(1))
    planned.plan()
    planned.make()
    assert made == []


def test_a_store_that_failed_to_load_can_be_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"body")
    engine = pyrocketstore.DefaultMessageStore(store.message_store.config)

    def fail(*_: object) -> None:
        raise StoreIOError(errno.EIO, "read", "f")

    with monkeypatch.context() as patch:
        patch.setattr(loading.PlanningToWrite, "make_plan", fail)
        with pytest.raises(StoreIOError):
            engine.load()
    engine.destroy()
    assert not (tmp_path / "consumequeue" / "t" / "0").exists()
    assert not (tmp_path / "commitlog").exists()


def test_a_reader_makes_no_change() -> None:
    changes, made = changes_of(read_only=True), list[int]()
    changes.plan()
    changes.add(lambda: made.append(1))
    changes.make()
    changes.add(lambda: made.append(2))
    assert made == [] and not changes.is_planning and changes.mode == "read"
    changes.accept(StoreCorruptionError("f", 0, "damaged"))
    gone = StoreIOError(errno.ENOENT, "open", "f")
    assert changes.is_of_owner(gone) and not changes_of(read_only=False).is_of_owner(gone)


def test_a_reader_changes_files_in_memory(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(b"old_" * 16)
    for read_only, found in ((True, b"old_" * 16), (False, b"new_" + b"old_" * 15)):
        changes = changes_of(read_only=read_only)
        file = MappedFile(Env(), str(path), 64, mode=changes.mode)
        file.set_positions(64)
        changes.overwrite(Env(), file, 0, b"new_")
        assert file.read(0, 8) == b"new_old_" and path.read_bytes() == found
        file.destroy()
