"""Goal: a batch of named topics plans what a batch of all topics plans for them, from their queues
alone.
Method: damage one file of a closed store and of a killed one in each way, and compare the ranges
and units of a topic; remove directories of queues; note which queues are loaded."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets, bucket_of
from pyrocketstore.errors import StoreError, StoreFormatError, StoreTypeError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.recovery import clean_stop
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

from pyrocketstore.spark.options import StorePlace, read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.plan.open_snapshot import open_snapshot
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.task_types import DataLossError

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")

STATES = ("closed", "killed")
OTHERS = [f"other-{number}" for number in range(8)]
NAMES = [name for name, _, _ in FILES if not name.startswith("`config")]
NAMES = [name for name in NAMES if "`consumequeue_ext" not in name]
Planned = dict[tuple[str, int], tuple[int, int, list[int], list[int]]]


@pytest.fixture(scope="module", autouse=True)
def short_logs_have_the_file() -> Any:
    """Let a closed store with a short log have `clean_stop`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_stop, "SCANNED_MIN", 0)
        yield


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, Made, dict[str, Path]]:
    """A store with several topics, another one, and the first one by state."""
    root = tmp_path_factory.mktemp("stores")
    made, other = make_store(root / "a", b"ours", "plain"), make_store(root / "b", b"more", "plain")
    roots = {state: root / state for state in STATES}
    shutil.copytree(made.root, roots["closed"])
    with pyrocketstore.open(roots["closed"], **made.settings) as store:
        for number in range(400):
            store.put(OTHERS[number % 8], b"body %d" % number, queue_id=0)
            if number % 10 == 0:
                store.put(TOPIC, b"more %d" % number, queue_id=number % 20 // 10)
        store.wait_dispatched()
        store.flush()
        store.put(TOPIC, b"not flushed", queue_id=0)
        store.wait_dispatched()
        shutil.copytree(roots["closed"], roots["killed"])
    assert (roots["closed"] / "clean_stop").exists()
    assert bucket_of(TOPIC) not in {bucket_of(topic) for topic in OTHERS}
    return made, other, roots


def planned(
    root: Path, made: Made, topics: set[str] | None, **words: str
) -> tuple[Planned | str, list[str]]:
    """The range and units of each queue of TOPIC, or the error of a store that cannot be planned;
    and the warnings."""
    words = {"path": str(root), "topics": TOPIC, "brokerConf": str(made.conf)} | words
    options = read_options(words)
    found: Planned = {}
    with caught() as warnings:
        try:
            with open_snapshot(StorePlace("b", str(root)), options, topics) as snapshot:
                for queue in snapshot.queues(options):
                    whole = snapshot.whole_range(queue)
                    units = RangeUnits(snapshot.store.env, whole, fail_on_data_loss=False)
                    read = units.read(whole.start, whole.stop)
                    rest = read.phy_offset.tolist(), read.size.tolist()
                    if whole.stop:
                        found[queue.topic, queue.queue_id] = (whole.start, whole.stop, *rest)
        except (StoreError, DataLossError) as error:
            return f"{type(error).__name__}: {error}", warnings
    return found, warnings


@contextlib.contextmanager
def caught() -> Iterator[list[str]]:
    """Collect the warnings of planning."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pyrocketstore.spark")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("name", mostly_slow(NAMES, 3))
@pytest.mark.parametrize("state", STATES)
def test_one_topic_is_planned_as_with_all(
    stores: tuple[Made, Made, dict[str, Path]], tmp_path: Path, name: str, state: str
) -> None:
    made, other, roots = stores
    pattern, which = next(file[1:] for file in FILES if file[0] == name)
    assert kind_of(name)
    for number, damage in enumerate(DAMAGES):
        root = tmp_path / f"{number}"
        shutil.copytree(roots[state], root)
        do_damage(path_of(root, pattern, which), path_of(other.root, pattern, which), damage)
        for words in ({}, {"onCorrupt": "skip", "failOnDataLoss": "false"}):
            whole = planned(root, made, None, **words)
            assert planned(root, made, {TOPIC}, **words) == whole, (name, damage, state)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("removed", ["one", "all", "others"])
def test_removed_queues_are_planned_from_the_log(
    stores: tuple[Made, Made, dict[str, Path]], tmp_path: Path, removed: str, state: str
) -> None:
    made, _, roots = stores
    root = tmp_path / "s"
    shutil.copytree(roots[state], root)
    for path in (root / "consumequeue").iterdir():
        if removed == "all" or (path.name == TOPIC) == (removed == "one"):
            shutil.rmtree(path)
    found = planned(root, made, {TOPIC})
    assert found == planned(root, made, None)
    assert len(found[0]) == 2


def test_the_queues_of_other_topics_are_not_read(
    stores: tuple[Made, Made, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, roots = stores
    seen = []
    load = DefaultMessageStore.load

    def noted(self: DefaultMessageStore) -> bool:
        done = load(self)
        seen.append({queue.topic for queue in self.consume_queues()})
        return done

    monkeypatch.setattr(DefaultMessageStore, "load", noted)
    for state in STATES:
        words = {"path": str(roots[state]), "brokerConf": str(made.conf)}
        assert plan(read_options(words | {"topics": TOPIC})).tasks
        assert plan(read_options(words | {"assign": f'{{"{TOPIC}":[0]}}'})).tasks
        assert plan(read_options(words)).tasks
        starts = f'{{"{OTHERS[0]}":{{"0":3}}}}'
        assert plan(read_options(words | {"topics": TOPIC, "startingOffsets": starts})).tasks
    assert seen == 2 * [{TOPIC}, {TOPIC}, {TOPIC, *OTHERS}, {TOPIC, OTHERS[0]}]


def test_a_store_for_some_topics(
    stores: tuple[Made, Made, dict[str, Path]], tmp_path: Path
) -> None:
    made, _, roots = stores
    config = pyrocketstore.MessageStoreConfig(**made.settings).at_root(str(roots["closed"]))
    store = DefaultMessageStore(config, read_only=True, only_topics=[OTHERS[2]])
    store.load()
    try:
        assert store.get_max_offset_in_queue(OTHERS[2], 0) == 50
        assert store.get_message("g", OTHERS[2], 0, 0, 16).message_count == 16
    finally:
        store.shutdown()


def test_a_store_for_some_topics_is_refreshed(tmp_path: Path) -> None:
    """While its owner puts, makes queues, is restarted and drops a topic."""
    settings = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 200}
    config = pyrocketstore.MessageStoreConfig(**settings).at_root(str(tmp_path))
    others = [topic for topic in map(str, range(50)) if topic not in TopicBuckets(["a", "new"])]
    writer = pyrocketstore.open(tmp_path, **settings)
    writer.put("a", b"x")
    writer.put(others[0], b"x")
    store = DefaultMessageStore(config, read_only=True, only_topics=["a", "new"])
    store.load()
    loaded = [store.files]
    try:
        for number in range(60):
            if number in (20, 40):
                writer.close()
                writer = pyrocketstore.open(tmp_path, **settings)
            if number == 50:
                writer.drop_topic("a")
            for topic in ("a", "new", others[number % 3])[number % 2 :]:
                writer.put(topic, b"y", queue_id=number // 10)
            if number % 3:
                writer.wait_dispatched()
            store.refresh()
            assert store.get_max_phy_offset() == writer.message_store.get_max_phy_offset()
            writer.wait_dispatched()
            ends = {
                (queue.topic, queue.queue_id): queue.get_max_offset_in_queue()
                for queue in writer.message_store.consume_queues()
                if queue.topic in ("a", "new") and queue.get_max_offset_in_queue()
            }
            found = {(q.topic, q.queue_id): q for q in store.consume_queues()}
            assert {key: q.get_max_offset_in_queue() for key, q in found.items()} == ends, number
            for key, queue in found.items():
                units = queue.read_units(0, ends[key])
                theirs = writer.message_store.get_consume_queue(*key).read_units(0, ends[key])
                assert units.phy_offset.tolist() == theirs.phy_offset.tolist()
            if store.files is not loaded[-1]:
                loaded.append(store.files)
        assert len(loaded) <= 8  # else it follows
    finally:
        store.shutdown()
        writer.close()


def test_odd_topics_are_refused(tmp_path: Path) -> None:
    config = pyrocketstore.MessageStoreConfig().at_root(str(tmp_path))
    for odd in ("t", b"t", 5, object(), [5], [None], [b"t"]):
        with pytest.raises(StoreTypeError, match="only_topics"):
            DefaultMessageStore(config, read_only=True, only_topics=odd)  # type: ignore[arg-type]
    with pytest.raises(StoreFormatError, match="needs all topics"):
        DefaultMessageStore(config, only_topics=["t"])
    DefaultMessageStore(config, read_only=True, only_topics={"t", "\ud800"})


def test_a_clean_stop_of_an_earlier_version_is_ignored(
    stores: tuple[Made, Made, dict[str, Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, _, roots = stores
    root = tmp_path / "s"
    shutil.copytree(roots["closed"], root)
    (root / "clean_stop").write_bytes(b"rsstop01" + bytes(68))
    with pyrocketstore.open(root, read_only=True, **made.settings) as store:
        assert store.max_offset(TOPIC, 0) > 0
    assert "clean_stop" not in caplog.text
    (root / "clean_stop").write_bytes(b"rsstop03" + bytes(68))
    with pyrocketstore.open(root, read_only=True, **made.settings) as store:
        assert store.max_offset(TOPIC, 0) > 0
    assert "damaged, and not used" in caplog.text
