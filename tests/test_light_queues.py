"""Goal: a store shows the messages of its light queues, also where nobody says that it has any.
Method: a store with light queues is copied as a kill leaves it, without the light queues' last
units, and is opened with no setting but what its files tell."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageStoreConfig
from pyrocketstore.config import detect_sizes
from pyrocketstore.env import Env

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 400}
COUNT = 50
Places = Counter[tuple[str, int, int]]


def places(root: Path, **settings: object) -> Places:
    """What each queue of a store gives."""
    with pyrocketstore.open(root, read_only=True, **settings) as store:
        return Counter(
            (topic, queue_id, offset)
            for topic in store.topics()
            for queue_id in store.queues(topic)
            for offset, _ in enumerate(store.read(topic, queue_id))
        )


def dispatched() -> Places:
    own = [("t", i % 3, i // 3) for i in range(COUNT)]
    return Counter([*own, *(("%LMQ%a", 0, i) for i in range(COUNT))])


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose light queue lost its last units, as where a kill came before they were put."""
    with pyrocketstore.open(tmp_path / "live", **SIZES, **LIGHT) as store:
        for number in range(COUNT):
            names = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
            store.put("t", b"%d" % number, queue_id=number % 3, properties=names)
        store.wait_dispatched()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / "killed" / "consumequeue" / "%LMQ%a" / "0" / f"{800:020d}"
    units = path.read_bytes()
    path.write_bytes(units[:140].ljust(len(units), b"\0"))
    return tmp_path / "killed"


def test_a_killed_store_without_settings_has_every_light_unit(killed: Path) -> None:
    assert places(killed, **LIGHT) == dispatched()
    assert places(killed) == dispatched()


def test_recovery_without_settings_puts_them_on_the_disk(killed: Path) -> None:
    with pyrocketstore.open(killed) as store:
        assert store.max_offset("%LMQ%a", 0) == COUNT
    assert places(killed, enable_lmq=False) == dispatched()


def test_what_is_given_stays(killed: Path) -> None:
    with pyrocketstore.open(killed, read_only=True, enable_multi_dispatch=False) as store:
        assert store.max_offset("%LMQ%a", 0) == 47


def test_only_directories_of_light_queues_count(tmp_path: Path) -> None:
    plain = MessageStoreConfig()
    for name in ("t/0", "LMQ/0", "%LMQ%b/1"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "%LMQ%file").touch()
    assert detect_sizes(Env(), str(tmp_path), plain) is plain
    (tmp_path / "consumequeue" / "%LMQ%b" / "0").mkdir()
    found = detect_sizes(Env(), str(tmp_path), plain)
    assert (found.enable_lmq, found.enable_multi_dispatch) == (True, True)


def test_a_batch_has_every_light_unit_too(killed: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.options import read_options
    from pyrocketstore.spark.source import plan, read_task

    options = read_options({"path": str(killed)})
    planned = plan(options)
    columns = {"topic": "string", "queueId": "int", "queueOffset": "bigint"}
    rows = Counter(
        tuple(row.values())
        for part in planned.partitions
        for batch in read_task(part, columns, options, planned.common)
        for row in batch.to_pylist()
    )
    assert rows == dispatched()
