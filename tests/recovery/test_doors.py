"""Goal: every way to look at a store's directory finds the same messages in it: an opening for
writing, a read-only opening, `refresh`, the plans of Spark's batches and streams, and `verify`.
Method: damage one file of a closed store and of a killed one in each way; compare the log's end and
the units of all queues, door by door, with the read-only opening. Each difference that is meant has
a rule below."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import pyrocketstore
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import QueueUnits
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from support.damage_table import (
    DAMAGES,
    FILES,
    TOPIC,
    Made,
    do_damage,
    kind_of,
    make_store,
    path_of,
)
from support.grids import mostly_slow

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyrocketstore.spark.options import STREAM, SourceOptions, StorePlace, read_options
from pyrocketstore.spark.plan.offsets import INITIAL, Limits
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.plan.stream import StreamPlan
from pyrocketstore.spark.plan.stream_store import StreamStore
from pyrocketstore.spark.read.units import RangeUnits

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")

STATES = ("closed", "killed")
#: Messages that the killed store has after those of the closed one.
LATER = 40
NAMES = [name for name, _, _ in FILES if not name.startswith("`config")]


#: The first queue offset and the end of a queue.
Bounds = tuple[int, int]


class QueueView(NamedTuple):
    """The readable part of a queue, and the physical offset of each message; None: none there."""

    first: int
    end: int
    phy_offsets: tuple[int | None, ...]


class View(NamedTuple):
    """The content of a directory, as a door finds it."""

    log_end: int
    queues: dict[tuple[str, int], QueueView]


class Stores(NamedTuple):
    """A store of a kind as `make_store` makes it, another one, and its directories by state."""

    made: Made
    other: Made
    roots: dict[str, Path]
    #: the messages of each state: View of the intact directory
    whole: dict[str, View]


# ---- the doors -----------------------------------------------------------------------------------


def _phy_offsets(units: QueueUnits) -> tuple[int | None, ...]:
    is_message = ~units.is_pre_blank() & (units.size > 0)
    found = zip(units.phy_offset.tolist(), is_message.tolist(), strict=True)
    return tuple(at if is_there else None for at, is_there in found)


def _view_of_units(first: int, end: int, read: Callable[[int, int], QueueUnits]) -> QueueView:
    """Read the units [first, end) by calls of `read` with a part of them."""
    units: tuple[int | None, ...] = ()
    while first + len(units) < end:
        found = _phy_offsets(read(first + len(units), end))
        if not found:
            break
        units += found
    return QueueView(first, end, units)


def _queue_view(queue: ConsumeQueue) -> QueueView:
    first, end = queue.first_readable_offset(), queue.get_max_offset_in_queue()
    return _view_of_units(first, end, lambda at, stop: queue.read_units(at, stop - at))


def view_of(engine: DefaultMessageStore) -> View:
    queues = {(q.topic, q.queue_id): _queue_view(q) for q in engine.consume_queues()}
    # A queue without files and one that is not there hold the same.
    return View(engine.get_max_phy_offset(), {k: q for k, q in queues.items() if q.end})


def by_writer(root: Path, made: Made, work: Path) -> View:
    """On a copy."""
    shutil.copytree(root, work)
    with pyrocketstore.open(work, **made.settings) as store:
        return view_of(store.message_store)


def by_reader(root: Path, made: Made) -> View:
    with pyrocketstore.open(root, read_only=True, **made.settings) as store:
        return view_of(store.message_store)


def by_refresh(root: Path, made: Made, work: Path) -> View:
    """The directory comes in the place of an earlier one that is open."""
    shutil.copytree(made.root, work)
    with pyrocketstore.open(work, read_only=True, **made.settings) as store:
        for path in sorted(work.rglob("*"), reverse=True):
            if path.is_file() and not (root / path.relative_to(work)).exists():
                path.unlink()
        for path in sorted(root.rglob("*")):
            target = work / path.relative_to(root)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            elif not target.exists() or target.read_bytes() != path.read_bytes():
                target.write_bytes(path.read_bytes())
        store.refresh()
        return view_of(store.message_store)


def _view_of_plan(
    snapshot: StoreSnapshot, options: SourceOptions, bounds_of: Callable[[ConsumeQueue], Bounds]
) -> View:
    found = {}
    for queue in snapshot.queues(options):
        whole = snapshot.part_of(queue, *bounds_of(queue))
        units = RangeUnits(snapshot.store.env, whole, fail_on_data_loss=False)
        if whole.stop:
            view = _view_of_units(whole.start, whole.stop, units.read)
            found[queue.topic, queue.queue_id] = view
    return View(snapshot.max_phy_offset, found)


def by_batch(root: Path, made: Made) -> View:
    options = read_options({"path": str(root), "brokerConf": str(made.conf), "onCorrupt": "skip"})
    with StoreSnapshot(StorePlace("b", str(root)), str(made.conf), "skip") as snapshot:
        return _view_of_plan(snapshot, options, snapshot.bounds)


def by_stream(root: Path, made: Made) -> View:
    words = {"path": str(root), "brokerConf": str(made.conf), "startingOffsets": "earliest"}
    options = read_options(words, STREAM)
    StreamPlan(options, 0, None).latest_offset(INITIAL, Limits())
    store = StreamStore(StorePlace("b", str(root)), options)
    ends = store.ends(now=True)

    def bounds(queue: ConsumeQueue) -> Bounds:
        name = queue.topic, queue.queue_id
        return store.min_offset(name), ends[name]

    return _view_of_plan(store.snapshot, options, bounds)


def by_verify(root: Path, made: Made) -> int:
    """Only the number of messages."""
    with pyrocketstore.open(root, read_only=True, **made.settings) as store:
        return store.verify().messages


# ---- the differences -----------------------------------------------------------------------------


def is_refused(name: str, damage: str) -> bool:
    """An opening for writing refuses a log with a file of another length, which it could not
    continue; a read-only one reads the bytes that are there. A kill may leave an empty last file.
    """
    is_empty = damage == "empty" and not name.endswith("last file")
    return name.startswith("`commitlog") and (damage == "cut" or is_empty)


def check_plan(found: View, reader: View, name: str, *, ends_at_message: bool) -> None:
    """With onCorrupt=skip Spark reads behind damage of the log, where a recovery ends it. A stream
    ends at its last message: the owner may put others after it."""
    if found == reader:
        return
    assert name.startswith("`commitlog") or ends_at_message, name
    assert found.log_end >= reader.log_end
    for key, queue in reader.queues.items():
        longer = found.queues[key]
        offsets = queue.phy_offsets
        while ends_at_message and offsets and offsets[-1] is None:
            offsets = offsets[:-1]
        assert longer.first == queue.first
        assert longer.phy_offsets[: len(offsets)] == offsets


# ---- the stores ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stores]:
    root = tmp_path_factory.mktemp("stores")
    found = {}
    for kind in ("ext", "plain"):
        made = make_store(root / f"store-{kind}", b"ours", kind)
        other = make_store(root / f"other-{kind}", b"another", kind)
        roots = {"closed": made.root, "killed": root / f"killed-{kind}"}
        owned = root / f"owned-{kind}"
        shutil.copytree(made.root, owned)
        with pyrocketstore.open(owned, **made.settings) as store:
            for number in range(LATER):
                store.put(TOPIC, b"later %d " % number * 20, queue_id=number % 2, keys=f"l{number}")
                if number == LATER // 2:
                    store.flush()
            store.wait_dispatched()
            shutil.copytree(owned, roots["killed"])
        whole = {state: by_reader(roots[state], made) for state in STATES}
        found[kind] = Stores(made, other, roots, whole)
    return found


@pytest.mark.parametrize("name", mostly_slow(NAMES, 3))
@pytest.mark.parametrize("state", STATES)
def test_doors_agree(stores: dict[str, Stores], tmp_path: Path, name: str, state: str) -> None:
    made, other, roots, _ = stores[kind_of(name)]
    pattern, which = next(file[1:] for file in FILES if file[0] == name)
    for number, damage in enumerate(DAMAGES):
        root, work = tmp_path / f"{number}", tmp_path / f"{number}-copy"
        shutil.copytree(roots[state], root)
        do_damage(path_of(root, pattern, which), path_of(other.root, pattern, which), damage)
        reader = by_reader(root, made)
        where = (name, damage, state)
        if is_refused(name, damage):
            with pytest.raises(pyrocketstore.StoreCorruptionError):
                by_writer(root, made, work)
        else:
            assert by_writer(root, made, work) == reader, where
        shutil.rmtree(work, ignore_errors=True)
        if state == "killed":  # nothing is new in the other directory
            assert by_refresh(root, made, work) == reader, where
        check_plan(by_batch(root, made), reader, name, ends_at_message=False)
        check_plan(by_stream(root, made), reader, name, ends_at_message=True)
        messages = sum(queue.end - queue.first for queue in reader.queues.values())
        assert by_verify(root, made) == messages, where


def test_intact_stores_are_whole(stores: dict[str, Stores]) -> None:
    """The oracle of the test above: what was put, in the order in which it was."""
    for kind, (made, _, roots, whole) in stores.items():
        for state in STATES:
            count = len(made.messages) + (LATER if state == "killed" else 0)
            found = whole[state].queues
            assert found.keys() == {(TOPIC, 0), (TOPIC, 1)}, kind
            offsets = sorted(at for q in found.values() for at in q.phy_offsets if at is not None)
            assert len(offsets) == count and len(set(offsets)) == count, kind
            for (_, queue_id), queue in found.items():
                assert queue.first == 0 and len(queue.phy_offsets) == queue.end == count // 2
                assert list(queue.phy_offsets) == offsets[queue_id::2]
            assert by_verify(roots[state], made) == count
