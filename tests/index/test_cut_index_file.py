"""Goal: an index file that was cut refuses no opening where nothing else shows the sizes of the
index; a file that may be a whole one of other sizes is refused and kept.
Method: the only file of a store is cut to many lengths, and files of unusual sizes are made.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.index._file import INDEX_SIZE, IndexFile, index_file_size
from pyrocketstore.index.directory import entry_position, find_index_files
from pyrocketstore.index.geometry import check_files
from pyrocketstore.system.env import Env

COUNT = 100
SLOTS, ENTRIES = 2048, 8192
WHOLE = index_file_size(SLOTS, ENTRIES)
#: Lengths of files that end in the header, in the slots, in an entry, and behind the entries.
NO_WHOLE_FILES = [1, 39, 40, 41, 1000, 8231, 8232, 9000, 50_000, WHOLE - 1]
#: Lengths that a whole file with the same slots and fewer entries has.
WHOLE_ENTRIES = [entry_position(SLOTS, COUNT + 1), WHOLE - INDEX_SIZE]

pytestmark = pytest.mark.bad_input


@pytest.fixture(scope="module")
def store_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys") / "store"
    with pyrocketstore.open(root, preset="small") as store:
        store.put_many("t", [b"x"] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
    return root


def cut_copy(store: Path, root: Path, length: int) -> Path:
    """Copy a store, and cut its index file, whose path is returned."""
    shutil.copytree(store, root)
    (path,) = (root / "index").iterdir()
    assert path.stat().st_size == WHOLE
    os.truncate(path, length)
    return path


def check_repaired(
    root: Path, cut: bytes | None, whole: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Open a store: all keys are found, the file is kept, and a new one has `whole` bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        with pyrocketstore.open(root, read_only=True) as reader:
            assert len(reader.query("t", "k7")) == 1
    caplog.clear()
    store = pyrocketstore.open(root)
    assert ("moved to" in caplog.text) == (cut is not None)
    with store:
        assert [m.queue_offset for m in store.query("t", "k7")] == [7]
        assert store.verify().ok
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {whole}
    kept = [path.read_bytes() for path in root.glob(".broken/*/index/*")]
    assert kept == ([] if cut is None else [cut])


@pytest.mark.parametrize("length", NO_WHOLE_FILES + WHOLE_ENTRIES)
def test_sync_point_names_the_sizes_of_a_file_that_was_cut(
    store_with_keys: Path, tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    path = cut_copy(store_with_keys, root, length)
    check_repaired(root, path.read_bytes(), WHOLE, caplog)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("length", NO_WHOLE_FILES)
def test_a_file_that_fits_no_sizes_gets_those_of_new_files(
    store_with_keys: Path,
    tmp_path: Path,
    length: int,
    is_killed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "store"
    path = cut_copy(store_with_keys, root, length)
    (root / "sync_point").unlink()
    if is_killed:  # files that are not known to be durable are built again, and not kept
        (root / "abort").touch()
    check_repaired(root, None if is_killed else path.read_bytes(), WHOLE, caplog)


def test_the_sizes_of_new_files_are_the_defaults_without_a_preset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with pyrocketstore.open(
        root, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=10, max_index_num=200
    ) as store:
        store.put_many("t", [b"x"] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
    (path,) = (root / "index").iterdir()
    os.truncate(path, 1001)
    (root / "sync_point").unlink()
    check_repaired(root, path.read_bytes(), index_file_size(5_000_000, 20_000_000), caplog)


def put_and_remove_index(root: Path, **sizes: int) -> int:
    """Make a store with an index of unusual sizes, and delete the directory of the index.

    Returns the length of an index file.
    """
    with pyrocketstore.open(root, max_hash_slot_num=10, max_index_num=200, **sizes) as store:
        store.put_many("t", [b"x"] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
    shutil.rmtree(root / "index")
    return index_file_size(10, 200)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("log_size", [256 << 10, 1 << 20])  # the first one is that of a preset
def test_an_index_that_was_removed_gets_the_sizes_in_sync_point(
    tmp_path: Path, log_size: int, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    whole = put_and_remove_index(root, mapped_file_size_commit_log=log_size)
    if is_killed:
        (root / "abort").touch()
    check_repaired(root, None, whole, caplog)


@pytest.mark.parametrize("is_killed", [False, True])
def test_sync_point_names_the_sizes_until_it_names_the_new_file(
    tmp_path: Path, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Openings that build the index again are killed before their first flush."""
    root = tmp_path / "store"
    whole = put_and_remove_index(root, mapped_file_size_commit_log=1 << 20)
    if is_killed:
        (root / "abort").touch()
    for number in range(2):
        with pyrocketstore.open(root):
            copy = tmp_path / f"killed {number}"
            shutil.copytree(root, copy, ignore=shutil.ignore_patterns("lock"))
        assert {path.stat().st_size for path in (copy / "index").iterdir()} == {whole}
        root = copy
    check_repaired(root, None, whole, caplog)


def test_settings_come_before_the_sizes_in_sync_point(tmp_path: Path) -> None:
    root = tmp_path / "store"
    put_and_remove_index(root, mapped_file_size_commit_log=1 << 20)
    with pyrocketstore.open(root, max_hash_slot_num=20) as store:
        assert store.message_store.index_service.geometry == (20, 20_000_000)
        assert len(store.query("t", "k7")) == 1


@pytest.mark.parametrize("length", WHOLE_ENTRIES)
def test_a_file_that_may_be_whole_is_refused_and_kept(
    store_with_keys: Path, tmp_path: Path, length: int
) -> None:
    """Fewer entries of the same number of slots are sizes that a broker may have been given."""
    root = tmp_path / "store"
    path = cut_copy(store_with_keys, root, length)
    (root / "sync_point").unlink()
    before = path.read_bytes()
    entries = (length - entry_position(SLOTS)) // INDEX_SIZE
    with pytest.raises(StoreFormatError, match=f"maxHashSlotNum=2048, maxIndexNum={entries}"):
        pyrocketstore.open(root)
    assert path.read_bytes() == before
    with pyrocketstore.open(root, max_hash_slot_num=SLOTS, max_index_num=entries) as store:
        assert len(store.query("t", "k7")) == 1


@pytest.mark.parametrize(
    "geometry", [(33, 91), (1, 97), (2048, 150), (3000, 7001), (5_000_000, 99)]
)
@pytest.mark.parametrize("begin", [0, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 30, 80])
@pytest.mark.parametrize("uncounted", [0, 1])
def test_a_whole_file_of_unusual_sizes_is_not_taken_for_a_cut_one(
    tmp_path: Path, geometry: tuple[int, int], begin: int, count: int, uncounted: int
) -> None:
    """Also one with an entry that its header does not count yet, as a killed process leaves it."""
    env, path = Env(), tmp_path / "20240101000000000"
    index = IndexFile(env, str(path), *geometry, create=True)
    for number in range(count):
        assert index.put_key(f"t#key-{number}", begin + number * 100, 1_700_000_000_000)
    index.shutdown()
    if uncounted and count:
        with path.open("r+b") as file:
            file.seek(36)
            file.write(count.to_bytes(4, "big"))
    files = find_index_files(env, str(tmp_path))
    for usual in ((5_000_000, 20_000_000), (SLOTS, ENTRIES)):
        with pytest.raises(StoreFormatError, match="does not fit the usual geometries"):
            check_files(env, files, (None, None), usual)


def test_a_preset_is_not_assumed_where_index_files_show_their_sizes(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 256 << 10,
        "max_hash_slot_num": 10,
        "max_index_num": 40,
    }
    with pyrocketstore.open(tmp_path, **sizes) as store:
        store.put_many("t", [b"x"] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
    assert len(list((tmp_path / "index").iterdir())) > 2
    with pyrocketstore.open(tmp_path) as store:
        assert store.message_store.index_service.geometry == (10, 40)
        assert store.verify().ok


def test_files_of_one_length_are_not_cut_ones(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 4)
    env = Env()
    files = find_index_files(env, str(tmp_path))
    with pytest.raises(StoreFormatError):
        check_files(env, files, (None, None))
    (tmp_path / "2").write_bytes(bytes(range(256)) * 3)
    geometry, wrong = check_files(env, find_index_files(env, str(tmp_path)), (None, None))
    assert geometry == (5_000_000, 20_000_000) and len(wrong) == 2
