"""Goal: a store adopts only file sizes that its files prove, or requires a setting; no file is at
an offset that overflows. Method: logs that were cut to lengths of all kinds, and names near 2^63.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreWarning
from pyrocketstore.config.file_sizes import MAX_FILE_END
from pyrocketstore.errors import StoreCorruptionError, StoreError
from support.grids import mostly_slow

LOG_SIZE = 1 << 20
NAME = "0" * 20
SMALL_QUEUE = 20480


def fill(root: Path, count: int, size: int = LOG_SIZE) -> None:
    with pyrocketstore.open(root, mapped_file_size_commit_log=size) as store:
        for i in range(count):
            store.put("T", b"%d" % i + b"x" * 1000)


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one") / "store"
    fill(root, 500)
    names = sorted((root / "commitlog").iterdir())
    for path in names[1:]:
        path.unlink()
    return root


@pytest.mark.parametrize("length", mostly_slow([300_000, 7, 303_104, 4096, 100, LOG_SIZE - 1], 2))
def test_a_single_log_file_that_was_cut_does_not_set_the_file_size(
    one_file: Path, tmp_path: Path, length: int
) -> None:
    root = Path(shutil.copytree(one_file, tmp_path / "store"))
    os.truncate(root / "commitlog" / NAME, length)
    with pytest.raises(StoreError) as raised:
        pyrocketstore.open(root)
    for text in (str(root / "commitlog" / NAME), str(length), "mapped_file_size_commit_log"):
        assert text in str(raised.value)
    assert os.path.getsize(root / "commitlog" / NAME) == length
    with pytest.raises(StoreCorruptionError, match=f"{length} bytes and must have {LOG_SIZE}"):
        pyrocketstore.open(root, mapped_file_size_commit_log=LOG_SIZE)
    for settings in ({}, {"mapped_file_size_commit_log": LOG_SIZE}):
        with (
            pytest.warns(StoreWarning, match=f"{length} bytes.*as far as the file goes"),
            pyrocketstore.open(root, read_only=True, **settings) as store,
        ):
            assert store.message_store.get_max_phy_offset() <= length
            report = store.verify()
        assert [str(problem.path) for problem in report.problems][:1] == [
            str(root / "commitlog" / NAME)
        ]
        assert not report.ok


@pytest.mark.parametrize("whole_pages", [False, True])
def test_a_file_that_ends_right_behind_a_record_was_cut(tmp_path: Path, whole_pages: bool) -> None:
    """A record leaves room for a BLANK. A log that continued with this length as its file size lost
    what was put next."""
    with pyrocketstore.open(tmp_path, mapped_file_size_commit_log=LOG_SIZE) as store:
        store.put("T", b"first")
        bare = store.put("T", b"").phy_offset - len(b"first")  # bytes of a record without a body
        store.put("T", bytes(8192 - 3 * bare - len(b"first") if whole_pages else 1000))
        length = store.put("T", b"lost").phy_offset
    assert (length % 4096 == 0) == whole_pages
    os.truncate(tmp_path / "commitlog" / NAME, length)
    with pytest.raises(StoreCorruptionError, match="mapped_file_size_commit_log"):
        pyrocketstore.open(tmp_path)
    assert os.path.getsize(tmp_path / "commitlog" / NAME) == length
    with (
        pytest.warns(StoreWarning, match=f"{length} bytes.*as far as the file goes"),
        pyrocketstore.open(tmp_path, read_only=True) as store,
    ):
        assert len(list(store.read("T"))) == 3
    os.truncate(tmp_path / "commitlog" / NAME, LOG_SIZE)
    with pytest.warns(StoreWarning, match="these messages are missing"):
        store = pyrocketstore.open(tmp_path)
    with store:
        assert store.put("T", b"new").queue_offset == 3
    with pyrocketstore.open(tmp_path) as store:
        assert [m.body for m in store.read("T")][3:] == [b"new"]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_single_queue_file_that_was_cut_does_not_set_the_file_size(
    tmp_path: Path, read_only: bool
) -> None:
    """A file that is cut at a unit looks like a full file of a smaller size."""
    fill(tmp_path, 100)
    path = tmp_path / "consumequeue/T/0" / NAME
    size = path.stat().st_size
    os.truncate(path, 700)
    with (
        pytest.warns(StoreWarning, match="700 bytes"),
        pyrocketstore.open(tmp_path, read_only=read_only) as store,
    ):
        assert len(list(store.read("T"))) == 100
        assert store.message_store.config.mapped_file_size_consume_queue == size
    assert path.stat().st_size == (700 if read_only else size)


def test_a_single_queue_file_that_is_full_sets_the_file_size(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, mapped_file_size_consume_queue=700) as store:
        for number in range(35):
            store.put("T", b"%d" % number)
    with pyrocketstore.open(tmp_path) as store:
        assert store.message_store.config.mapped_file_size_consume_queue == 700


@pytest.mark.parametrize("size", [LOG_SIZE, None])
def test_a_queue_file_that_was_cut_to_the_length_of_a_preset(
    tmp_path: Path, size: int | None
) -> None:
    """It does not set the size in a log that is not of the preset."""
    sizes: dict[str, Any] = {} if size is None else {"mapped_file_size_commit_log": size}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        store.put_many("T", [b"x"] * 1100)
    path = tmp_path / "consumequeue/T/0" / NAME
    os.truncate(path, SMALL_QUEUE)
    with (
        pytest.warns(StoreWarning, match=f"{SMALL_QUEUE} bytes and must have 6000000"),
        pyrocketstore.open(tmp_path) as store,
    ):
        assert len(list(store.read("T"))) == 1100
    assert path.stat().st_size == 6_000_000


@pytest.mark.parametrize(
    ("dispatched", "lost"),
    [
        ([("a", 1024)], [("a", 1000)]),
        ([("a", 1024), ("b", 1024)], [("a", 1), ("b", 1)]),
        ([("a", 1024)], [("b", 1)]),
        ([("a", 3072)], [("a", 1)]),
        ([], [("a", 10)]),
        ([("a", 1024), ("b", 5)], []),
    ],
)
@pytest.mark.parametrize("has_ext", [False, True])
def test_a_small_store_keeps_its_queue_size_after_a_kill(
    tmp_path: Path,
    dispatched: list[tuple[str, int]],
    lost: list[tuple[str, int]],
    has_ext: bool,
) -> None:
    """Also where each queue's files are exactly full, and where there is no queue yet."""
    root = tmp_path / "killed"
    counts: Counter[str] = Counter()
    with pyrocketstore.open(
        tmp_path / "store", preset="small", enable_consume_queue_ext=has_ext
    ) as store:

        def put(pairs: list[tuple[str, int]]) -> None:
            for topic, count in pairs:
                store.put_many(
                    topic,
                    [b"x"] * count,
                    tags=["tag"] * count,
                    keys=[f"k{i}" for i in range(count)],
                )
                counts[topic] += count

        put(dispatched)
        store.wait_dispatched()
        with store.message_store.dispatch_paused():
            put(lost)
            shutil.copytree(tmp_path / "store", root, ignore=lambda *_: {"lock"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreWarning)
        ext = {"enable_consume_queue_ext": has_ext}
        with pyrocketstore.open(root, read_only=True, **ext) as reader:
            assert reader.verify().ok
        with pyrocketstore.open(root, **ext) as store:
            assert {topic: len(list(store.read(topic))) for topic in counts} == counts
            store.wait_dispatched()
            assert store.verify().ok
    lengths = {
        path.stat().st_size for path in (root / "consumequeue").rglob("0*0") if path.is_file()
    }
    assert lengths == {SMALL_QUEUE}
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {172_072}


def test_a_queue_file_of_a_small_store_that_was_cut_gets_the_presets_length(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, preset="small") as store:
        store.put_many("T", [b"x"] * 1000)
    path = tmp_path / "consumequeue/T/0" / NAME
    os.truncate(path, 700)
    with (
        pytest.warns(StoreWarning, match=f"700 bytes and must have {SMALL_QUEUE}"),
        pyrocketstore.open(tmp_path) as store,
    ):
        assert len(list(store.read("T"))) == 1000
    assert path.stat().st_size == SMALL_QUEUE


def test_all_files_that_were_cut_to_one_length_do_not_set_it(tmp_path: Path) -> None:
    fill(tmp_path, 2500)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 2
    for path in files:
        os.truncate(path, 300_000)
    with pytest.raises(StoreCorruptionError, match="mapped_file_size_commit_log"):
        pyrocketstore.open(tmp_path)


@pytest.mark.parametrize("size", [LOG_SIZE, 1 << 16, 12288])
@pytest.mark.parametrize("count", [1, 5, 200])
def test_a_length_of_whole_pages_is_adopted(tmp_path: Path, size: int, count: int) -> None:
    fill(tmp_path, count, size)
    with pyrocketstore.open(tmp_path) as store:
        assert store.message_store.config.mapped_file_size_commit_log == size
        assert store.max_offset("T") == count


@pytest.mark.parametrize("size", [100_000, 5_001])
def test_an_odd_length_is_adopted_where_the_files_prove_it(tmp_path: Path, size: int) -> None:
    """A second file, the name of the only one, or records that fill it exactly prove a size."""
    fill(tmp_path, 300, size)
    files = sorted((tmp_path / "commitlog").iterdir())
    for kept in (files, files[:2], files[1:2], files[:1]):
        root = tmp_path / str(len(kept)) / kept[0].name
        (root / "commitlog").mkdir(parents=True)
        for path in kept:
            shutil.copy(path, root / "commitlog")
        with pyrocketstore.open(root, read_only=True) as store:
            assert store.message_store.config.mapped_file_size_commit_log == size


def test_a_single_file_of_an_odd_length_that_is_not_full_asks_for_the_size(tmp_path: Path) -> None:
    fill(tmp_path, 1, 100_000)
    for path in sorted((tmp_path / "commitlog").iterdir())[1:]:
        path.unlink()
    with pytest.raises(StoreCorruptionError, match=r"100000 bytes is not a multiple of 4096"):
        pyrocketstore.open(tmp_path)
    with pyrocketstore.open(tmp_path, mapped_file_size_commit_log=100_000) as store:
        assert store.max_offset("T") == 1


def test_one_short_file_among_others_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 2500)
    files = sorted((tmp_path / "commitlog").iterdir())
    for path in (files[0], files[1]):
        os.truncate(path, LOG_SIZE // 2)
        with pytest.raises(StoreCorruptionError, match=path.name):
            pyrocketstore.open(tmp_path)
        os.truncate(path, LOG_SIZE)


# ---- names near 2^63 -----------------------------------------------------------------------------

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 400}
LAST = MAX_FILE_END - (1 << 16)


def make_file(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("begin", [LAST + (1 << 16), (1 << 63) - (1 << 17), (1 << 63) - (1 << 16)])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_log_file_where_no_message_can_be_queued_is_refused(
    tmp_path: Path, begin: int, read_only: bool
) -> None:
    make_file(tmp_path / "commitlog" / f"{begin:020d}", 1 << 16)
    with pytest.raises(StoreCorruptionError, match=f"{begin:020d}"):
        pyrocketstore.open(tmp_path, read_only=read_only, **SIZES)


def test_a_queue_file_near_the_last_offset_is_set_aside(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("T", b"x")
    begin = ((1 << 63) - 1) // 400 * 400 - 400
    make_file(tmp_path / "consumequeue" / "T" / "1" / f"{begin:020d}", 400)
    with (
        pytest.warns(StoreWarning, match=f"{begin:020d}.*would end behind"),
        pyrocketstore.open(tmp_path, **SIZES) as store,
    ):
        assert store.put("T", b"y", queue_id=1).queue_offset == 0
    (kept,) = (tmp_path / ".broken").glob("*/consumequeue/T/1/*")
    assert kept.name == f"{begin:020d}"


def test_the_last_file_that_there_can_be_is_used_and_none_is_made_behind_it(tmp_path: Path) -> None:
    make_file(tmp_path / "commitlog" / f"{LAST:020d}", 1 << 16)
    bodies = []
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        with pytest.raises(StoreError, match="File too large"):
            for i in range(100):
                store.put("T", b"%d" % i * 500, keys=f"k{i}")
                bodies.append(b"%d" % i * 500)
        assert len(bodies) > 50
        assert [m.body for m in store.read("T")] == bodies
    assert os.listdir(tmp_path / "commitlog") == [f"{LAST:020d}"]
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [m.body for m in store.read("T")] == bodies
        assert [m.body for m in store.query("T", "k7")] == [bodies[7]]
        assert store.verify().ok
