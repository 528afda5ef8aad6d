"""Goal: a preset makes small files, and changes nothing in a store that has files.
Method: the lengths of all files are added; stores are opened again with other arguments."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreFormatError
from pyrocketstore.store import api
from support.sizes import SIZES

COUNT = 9000
NAMES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)


def apparent_size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def sizes_of(root: Path, *folders: str) -> set[int]:
    """The lengths of the files below some folders."""
    paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    return {path.stat().st_size for path in paths}


def test_a_small_store_with_one_message_takes_less_than_a_mebibyte(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, preset="small") as store:
        store.put("t", b"body", keys="k")
        store.flush()
        assert apparent_size(tmp_path) < 1 << 20, "also while it is open"
    assert apparent_size(tmp_path) < 1 << 20
    assert (tmp_path / "index").exists()


@pytest.mark.parametrize("again", ["small", None])
@pytest.mark.parametrize("clean", [True, False])
def test_a_small_store_keeps_its_sizes(tmp_path: Path, again: Any, clean: bool) -> None:
    """Also without the preset, and after more than one file of each kind."""
    root = tmp_path / "store"
    store = pyrocketstore.open(root, preset="small")
    store.put("t", b"first", keys="first")
    store.flush()
    if clean:
        store.close()
    else:
        shutil.copytree(root, tmp_path / "killed", ignore=lambda *_: {"lock"})
        store.close()
        root = tmp_path / "killed"
    with pyrocketstore.open(root, preset=again) as store:
        store.put_many("t", [b"x" * 20] * COUNT, keys=[f"k{i}" for i in range(COUNT)])
        store.wait_dispatched()
        assert sizes_of(root, "commitlog") == {256 << 10}
        assert sizes_of(root, "consumequeue") == {20 << 10}
        assert len(list((root / "index").iterdir())) == 2
        assert len(sizes_of(root, "index")) == 1
        assert [m.body for m in store.query("t", "first")] == [b"first"]
        assert len(store.query("t", f"k{COUNT - 1}")) == 1
    with pyrocketstore.open(root, read_only=True, preset=again) as store:
        assert len(list(store.read("t"))) == COUNT + 1
        report = store.verify()
        assert report.ok, report.problems[:5]


def test_files_take_precedence_over_the_preset(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put_many("t", [b"x" * 100] * 200, keys=[f"k{i}" for i in range(200)])
    before = sizes_of(tmp_path, "commitlog", "consumequeue", "index")
    with pyrocketstore.open(tmp_path, preset="small") as store:
        store.put_many("t", [b"x" * 100] * 200, keys=[f"n{i}" for i in range(200)])
        store.wait_dispatched()
        assert store.query("t", "k7")[0].queue_offset == 7
        assert store.query("t", "n199")[0].queue_offset == 399
    assert sizes_of(tmp_path, "commitlog", "consumequeue", "index") == before


def after_next_sizes(patch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` called once after the next detection of sizes, before its result is used."""
    with_sizes = api.with_sizes

    def sizes_then(*arguments: Any) -> Any:
        found = with_sizes(*arguments)
        patch.setattr(api, "with_sizes", with_sizes)
        act()
        return found

    patch.setattr(api, "with_sizes", sizes_then)


@pytest.mark.parametrize("made", ["queue", "log"])
def test_a_reader_that_opens_while_the_first_files_are_made(
    tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses their sizes, and reports no damage."""
    with pyrocketstore.open(tmp_path, preset="small") as owner:
        paused = owner.message_store.dispatch_paused()
        paused.__enter__()
        if made == "queue":
            owner.put("t", b"first")

        def make_files() -> None:
            owner.put("t", b"x")
            paused.__exit__(None, None, None)
            owner.wait_dispatched()

        after_next_sizes(monkeypatch, make_files)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pyrocketstore.StoreWarning)
            with pyrocketstore.open(tmp_path, read_only=True) as reader:
                assert [m.body for m in reader.read("t")][-1] == b"x"
                assert reader.verify().ok


def test_a_refresh_while_the_first_queue_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is loaded with the size of the queue's file, and no damage is reported."""
    with (
        pyrocketstore.open(tmp_path, preset="small") as owner,
        pyrocketstore.open(tmp_path, read_only=True) as reader,
    ):
        paused = owner.message_store.dispatch_paused()
        paused.__enter__()
        owner.put("t", b"x")

        def make_queue() -> None:
            paused.__exit__(None, None, None)
            owner.wait_dispatched()

        after_next_sizes(monkeypatch, make_queue)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pyrocketstore.StoreWarning)
            reader.refresh()
            assert [m.body for m in reader.read("t")] == [b"x"]
        assert reader.verify().ok
    assert not caplog.records


def test_a_refresh_finds_queues_of_another_size(tmp_path: Path) -> None:
    """The owner opens the store again, with another size, when it has no queue."""
    with pyrocketstore.open(tmp_path, preset="small") as owner:
        owner.put("t", b"x")
    with pyrocketstore.open(tmp_path, read_only=True) as reader:
        messages = reader.follow("t", timeout=0.1)
        assert next(messages).body == b"x"
        with pyrocketstore.open(tmp_path) as owner:
            owner.drop_topic("t")
        with pyrocketstore.open(tmp_path, mapped_file_size_consume_queue=6_000_000) as owner:
            owner.put("t", b"y")
            owner.wait_dispatched()
            (queue,) = owner.message_store.consume_queues()
            assert queue.mapped_file_size == 6_000_000
            reader.refresh()
            assert [message.body for message in reader.read("t")] == [b"y"]
            assert reader.verify().ok


def test_settings_take_precedence_over_the_preset(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("mappedFileSizeConsumeQueue=4000\nmaxIndexNum=400\n")
    with pyrocketstore.open(
        tmp_path / "store",
        config=tmp_path / "broker.conf",
        preset="small",
        mapped_file_size_commit_log=1 << 20,
    ) as store:
        config = store.message_store.config
        assert [getattr(config, name) for name in NAMES] == [1 << 20, 4000, 2048, 400]
        store.put("t", b"x", keys="k")
    assert sizes_of(tmp_path / "store", "index") == {40 + 4 * 2048 + 20 * 400}


def test_a_preset_enables_no_cleaning(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, preset="small") as store:
        assert store.message_store.services.clean_resource is None


@pytest.mark.parametrize("preset", ["tiny", "", 1, ["small"]])
def test_an_unknown_preset_is_refused(tmp_path: Path, preset: Any) -> None:
    with pytest.raises(StoreFormatError, match=r"preset=.*: must be one of 'small', or None"):
        pyrocketstore.open(tmp_path / "store", preset=preset)
    assert not (tmp_path / "store").exists()
