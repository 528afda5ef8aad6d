"""Goal: a rebuild on Spark writes the queues and the index that the engine's own rebuild writes.
Method: both rebuilds over only the log of golden stores and of small ones with gaps, damage or
many files; files are compared byte for byte, and 4.9.3 opens one of the results."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.spark.jobs import rebuild as rebuild_job
from pyrocketstore.spark.jobs import rebuild_log
from pyrocketstore.spark.options import BATCH, read_options
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.rebuild import RebuildReport, rebuild
from pyrocketstore.system.env import Env
from support.deliveries import no_deliveries
from support.golden_stores import KEPT
from support.java_store import require_java

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
MADE = ("consumequeue", "consumequeue_ext", "index")


def unpack(name: str, home: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    return home / name


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def indexes(store: Path) -> list[bytes]:
    """Their names are times."""
    return [path.read_bytes() for path in sorted((store / "index").glob("*"))]


def engine_rebuild(store: Path, home: Path, conf: str | None, **settings: Any) -> Path:
    copy = home / "engine"
    shutil.copytree(store, copy)
    for name in MADE:
        shutil.rmtree(copy / name, ignore_errors=True)
    kept = {} if conf is None else KEPT
    with no_deliveries():
        pyrocketstore.open(copy, config=conf, **kept, **settings).close()
    return copy


def compare(spark: Any, store: Path, home: Path, conf: str | None) -> tuple[RebuildReport, Path]:
    """Both rebuilds must agree, and the source must stay as it is."""
    before = files(store)
    report = rebuild(spark, store, home / "out", broker_conf=conf)
    assert files(store) == before
    engine, out = engine_rebuild(store, home, conf), home / "out"
    for name in ("consumequeue", "consumequeue_ext"):
        assert files(out / name) == files(engine / name)
    assert indexes(out) == indexes(engine)
    log = files(engine / "commitlog")
    assert files(out / "commitlog") == {name: log[name] for name in files(out / "commitlog")}
    logics_and_index = slice(8, 24)
    ours, theirs = ((each / "checkpoint").read_bytes()[logics_and_index] for each in (out, engine))
    assert ours == theirs
    assert not (out / "abort").exists()
    assert not (out / "rebuild.tmp").exists()
    assert report.index_files == len(indexes(out))
    return report, out


@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(spark, tmp_path, name):
    conf = str(GOLDEN / f"{name}.conf")
    report, out = compare(spark, unpack(name, tmp_path), tmp_path, conf)
    assert report.units > 0
    with pyrocketstore.open(out, config=conf, read_only=True) as store:
        found = store.verify()
    assert found.ok
    assert (found.records, found.keys) == (report.records, report.keys)


LOG_SIZE = 4096
CONF = f"""mappedFileSizeCommitLog={LOG_SIZE}
mappedFileSizeConsumeQueue=200
maxHashSlotNum=20
maxIndexNum=80
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many files of every kind; its last records have no keys."""
    home = tmp_path_factory.mktemp("made")
    (home / "broker.conf").write_text(CONF)
    with pyrocketstore.open(home / "store", config=home / "broker.conf") as store:
        left = 5 * (80 - 1)  # the last index file is full then
        for number in range(300):
            names = [f"k{number}", f"k{number % 7}"][: left if number % 5 else 0]
            left -= len(names)
            keys = " ".join(names) or None
            store.put("t", b"body %d" % number, queue_id=number % 3, keys=keys, tags=f"a{number}")
    return home


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store"


def topics_removed(store: Path) -> None:
    """One topic is dropped, another one dropped and filled again, a third one trimmed; the last
    records of the log are removed."""
    with pyrocketstore.open(store, config=store.parent / "broker.conf") as opened:
        for topic in ("gone", "again", "trimmed"):
            for number in range(20):
                opened.put(topic, b"old %d" % number, keys=f"k{number}", queue_id=number % 2)
        opened.drop_topic("again")
        opened.put("again", b"new", keys="k0")
        opened.trim("trimmed", before=1 << 62)
        opened.put("trimmed", b"new", keys="k0")
        opened.put("gone", b"old")
        opened.drop_topic("gone")


def topics_removed_in_a_crash(store: Path) -> None:
    topics_removed(store)
    crash_without_checkpoint(store)


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def crash(store: Path) -> None:
    """Recovery begins in the last file, and the index has a new file from there on."""
    (store / "abort").touch()
    path = store / "checkpoint"
    times = np.frombuffer(path.read_bytes()[:16], ">i8") + 5000
    path.write_bytes(times.astype(">i8").tobytes() + path.read_bytes()[16:])


def crash_without_checkpoint(store: Path) -> None:
    (store / "abort").touch()
    (store / "checkpoint").unlink()


def first_files_gone(store: Path) -> None:
    for path in log_files(store)[:2]:
        path.unlink()


def a_file_gone(store: Path) -> None:
    """The queues have gaps."""
    log_files(store)[4].unlink()


def change(path: Path) -> None:
    """Damage its second record."""
    data = path.read_bytes()
    at = data.index(b"body", int.from_bytes(data[:4], "big"))
    path.write_bytes(data[:at] + b"BODY" + data[at + 4 :])


def an_old_file_damaged(store: Path) -> None:
    """Recovery does not look there; a body that has changed is queued as ever."""
    change(log_files(store)[1])


def an_old_head_damaged(store: Path) -> None:
    path = log_files(store)[1]
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"nope" + data[8:])


def the_end_damaged(store: Path) -> None:
    change(log_files(store)[-2])


def the_end_damaged_in_a_crash(store: Path) -> None:
    crash_without_checkpoint(store)
    change(log_files(store)[3])


def ends_with_a_file(store: Path) -> None:
    log_files(store)[-1].unlink()


def nothing(store: Path) -> None:
    """As it was made."""


@pytest.mark.parametrize(
    "damage",
    [
        nothing,
        crash,
        crash_without_checkpoint,
        first_files_gone,
        a_file_gone,
        an_old_file_damaged,
        an_old_head_damaged,
        the_end_damaged,
        the_end_damaged_in_a_crash,
        ends_with_a_file,
        topics_removed,
        topics_removed_in_a_crash,
    ],
)
@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_small_stores(spark, store, tmp_path, damage: Callable[[Path], None]):
    damage(store)
    report, _ = compare(spark, store, tmp_path, str(tmp_path / "broker.conf"))
    assert report.index_files > 2
    assert bool(report.skipped) == (damage is an_old_head_damaged)


@pytest.mark.parametrize("seed", range(20))
def test_units_are_put_as_one_by_one(tmp_path, seed):
    chance = random.Random(seed)
    phy_offset = offset = chance.randrange(50)
    rows = []
    for _ in range(60):
        rows.append((offset, phy_offset, 100, chance.randrange(1 << 40)))
        offset += chance.choice([1, 1, 1, 1, 1, 0, 2, 15, -3])
        phy_offset += chance.choice([100, 100, 100, 100, 250, 0])
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    columns[2] = columns[2].astype(np.int32)
    for name in ("run", "each"):
        queue = ConsumeQueue("t", 0, str(tmp_path / name), 200, Env())
        cut = chance.randrange(60)
        for part in (slice(0, cut), slice(cut, None)):
            if name == "run":
                rebuild_job._put_run(queue, *(column[part] for column in columns))
            else:
                for at, place, size, code in rows[part]:
                    queue.put_message_position_info(place, size, code, at)
        queue.shutdown()
    assert files(tmp_path / "run") == files(tmp_path / "each")


def wanted(*rows: tuple[str, int, int]) -> pyarrow.RecordBatch:
    """A batch of units: topic, physical offset, queue offset."""
    topics, places, offsets = zip(*rows, strict=True)
    columns: dict[str, Any] = {"topic": topics, "queueId": [0] * len(rows)}
    columns |= {"queueOffset": offsets, "commitLogOffset": places, "size": [9] * len(rows)}
    columns |= {"tagsCode": [0] * len(rows), "storeTimestamp": [1] * len(rows)}
    return pyarrow.RecordBatch.from_pydict(columns)


def test_units_wait_and_are_written_by_queue(monkeypatch):
    monkeypatch.setattr(rebuild_log, "UNITS_AT_ONCE", 4)
    written: list[pyarrow.RecordBatch] = []
    held = rebuild_log._Held(SimpleNamespace(write=written.append))
    held.begin_walk()
    held.add(wanted(("a", 0, 7), ("b", 100, 3), ("a", 200, 8)), False)
    held.add(wanted(("b", 0, 2), ("a", 200, 9), ("b", 200, 4)), True)
    held.begin_walk()
    held.add(wanted(("b", 300, 5)), False)
    held.write()
    held.write()
    found = [
        [(row["topic"], row["queueOffset"], row["light"]) for row in batch.to_pylist()]
        for batch in written
    ]
    a = [("a", 7, False), ("a", 8, False), ("a", 9, True)]
    b = [("b", 2, True), ("b", 3, False), ("b", 4, True)]
    assert found == [a + b, [("b", 5, False)]]


def test_a_queue_of_old_files_alone(spark, tmp_path):
    """After a clean exit recovery looks at the last files, whose queues all begin there."""
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    with pyrocketstore.open(tmp_path / "store", config=conf) as store:
        for topic in ("old", "old", "t1", "t2", "t3"):  # a file each
            store.put(topic, topic.encode() * 1200, keys="k")
    report = rebuild(spark, tmp_path / "store", tmp_path / "out", broker_conf=str(conf))
    assert (report.queues, report.units, report.keys) == (4, 5, 5)
    with pyrocketstore.open(tmp_path / "out", config=conf) as opened:
        assert len(list(opened.read("old"))) == len(opened.query("old", "k")) == 2
        assert opened.put("old", b"more").queue_offset == 2
        assert opened.verify().ok


def test_a_store_of_no_message(spark, tmp_path):
    pyrocketstore.open(tmp_path / "store").close()
    report = rebuild(spark, tmp_path / "store", tmp_path / "out")
    assert (report.records, report.queues, report.log_end) == (0, 0, 0)
    pyrocketstore.open(tmp_path / "out").close()


def test_topics_and_sizes_come_along(spark, store, tmp_path):
    rebuild(spark, store, tmp_path / "out", broker_conf=str(tmp_path / "broker.conf"))
    assert files(tmp_path / "out" / "config") == files(store / "config")
    rebuild(spark, tmp_path / "out", tmp_path / "again", broker_conf=None)
    for name in ("consumequeue", "commitlog", "config"):
        assert files(tmp_path / "again" / name) == files(tmp_path / "out" / name)


def index_cut(store: Path) -> None:
    path = index_files(store)[-1]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 20)


def index_first_cut(store: Path) -> None:
    os.truncate(index_files(store)[0], 100)


def index_empty(store: Path) -> None:
    os.truncate(index_files(store)[-1], 0)


def index_garbage(store: Path) -> None:
    for path in index_files(store)[:1]:
        path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def index_gone(store: Path) -> None:
    for path in index_files(store):
        path.unlink()


def index_of_another_size(store: Path) -> None:
    first = index_files(store)[0]
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size + 400)


def no_sync_point(store: Path) -> None:
    (store / "sync_point").unlink(missing_ok=True)


def killed(store: Path) -> None:
    (store / "abort").touch()


def index_files(store: Path) -> list[Path]:
    return sorted((store / "index").iterdir())


INDEX_CHANGES = (
    index_cut,
    index_first_cut,
    index_empty,
    index_garbage,
    index_gone,
    index_of_another_size,
)
INDEX_CONFS = ["", "maxHashSlotNum=20", "maxIndexNum=80", "maxHashSlotNum=20\nmaxIndexNum=80"]
INDEX_CONFS += ["maxHashSlotNum=21", "maxIndexNum=81", "messageIndexEnable=false"]


@pytest.mark.parametrize("change", [None, *INDEX_CHANGES])
@pytest.mark.parametrize("sizes", [(20, 80), (100, 500)], ids=str)
def test_sizes_of_the_index_are_those_of_an_opening(tmp_path, change, sizes):
    """Verify checks an index of these sizes, or says that it does not know them."""
    store = tmp_path / "store"
    with pyrocketstore.open(
        store,
        mapped_file_size_commit_log=LOG_SIZE,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=sizes[0],
        max_index_num=sizes[1],
    ) as opened:
        for number in range(5 * sizes[1] // 2):
            opened.put("t", b"body", keys=f"k{number}")
    if change is not None:
        change(store)
    for state in [(), (killed,), (no_sync_point,), (killed, no_sync_point)]:
        root = tmp_path / "-".join(["state", *(each.__name__ for each in state)])
        shutil.copytree(store, root)
        for each in state:
            each(root)
        for text in INDEX_CONFS:
            conf = tmp_path / "broker.conf"
            conf.write_text(f"{text}\nmappedFileSizeCommitLog={LOG_SIZE}\n")
            expected = sizes_of_opening(root, conf)
            try:
                source = rebuild_job._source_of(Env(), str(root), str(tmp_path / "x"), str(conf))
            except StoreFormatError as error:
                assert expected is None, f"{state} {text}: {error}"
                assert "broker_conf" in str(error)
            else:
                is_free = text.count("max") == 2 or "false" in text  # for new files
                assert source.geometry == expected or is_free, f"{state} {text}"


def sizes_of_opening(root: Path, conf: Path) -> tuple[int, int] | None:
    """The sizes by which verify reads an index; None where it does not know them."""
    options = read_options({"path": str(root), "brokerConf": str(conf)}, BATCH)
    with contextlib.closing(StoreSnapshot(options.places[0], str(conf), "skip")) as snapshot:
        service = snapshot.index_service
        return None if service.geometry_error is not None else service.geometry


def test_what_is_refused(spark, store, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    with pytest.raises(StoreStateError, match="not an empty directory"):
        rebuild(spark, store, full)
    with pytest.raises(StoreStateError, match="inside the store"):
        rebuild(spark, store, store / "new")
    with pytest.raises(StoreFormatError, match="not a directory"):
        rebuild(spark, tmp_path / "missing", tmp_path / "out")
    assert [path.name for path in full.iterdir()] == ["x"]
    assert not (tmp_path / "out").exists()


def test_a_rebuild_that_fails_leaves_nothing(spark, store, tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(rebuild_job, "_put_run", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        rebuild(spark, store, tmp_path / "out", broker_conf=str(tmp_path / "broker.conf"))
    assert list((tmp_path / "out").iterdir()) == []


def test_the_real_store_opens_it(spark, tmp_path):
    java = require_java()
    store = unpack("mixed", tmp_path)
    conf, queries = GOLDEN / "mixed.conf", GOLDEN / "mixed.tsv"
    settings = dict(line.split("=", 1) for line in conf.read_text().split())
    rebuild(spark, store, tmp_path / "out", broker_conf=str(conf))
    assert java.dump(tmp_path / "out", settings, queries) == java.dump(store, settings, queries)
