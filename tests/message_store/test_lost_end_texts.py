"""Goal: the files that a log lacks are named exactly, few of them one by one.
Method: ranges of bytes around the limits of the texts; directories with empty, odd and no files; a
log without one of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageStoreConfig
from pyrocketstore.config.file_sizes import FoundFile
from pyrocketstore.message_store.lost_ends import (
    LostEnd,
    gap_text,
    listed_log_files,
    lost_end,
    missing_files,
    missing_names,
    reason_without_files,
)
from pyrocketstore.system.env import Env
from support.sizes import TINY_SIZES

SIZE = 4096


def name(number: int) -> str:
    return f"{number * SIZE:020d}"


@pytest.mark.parametrize(
    ("begin", "end", "text"),
    [
        (0, SIZE, name(0)),
        (SIZE, 2 * SIZE, name(1)),
        (SIZE, 2 * SIZE + 1, f"{name(1)}, {name(2)}"),
        (SIZE, 4 * SIZE, f"{name(1)}, {name(2)}, {name(3)}"),
        (SIZE, 4 * SIZE + 1, f"{name(1)} to {name(4)} (4 files)"),
        (0, 1000 * SIZE, f"{name(0)} to {name(999)} (1000 files)"),
    ],
)
def test_names(begin: int, end: int, text: str) -> None:
    assert missing_names(begin, end, SIZE) == text
    assert gap_text(begin, end, SIZE) == (
        f"{end - begin} bytes of the log are missing before this file: {text}"
    )


def config_of(*directories: Path) -> MessageStoreConfig:
    paths = ",".join(str(path) for path in directories)
    return MessageStoreConfig(store_path_commit_log=paths)


def test_files_are_listed_in_order_and_empty_ones_left_out(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory, number, data in ((second, 1, b"xy"), (first, 2, b"x"), (first, 0, b"")):
        directory.mkdir(exist_ok=True)
        (directory / name(number)).write_bytes(data)
    (first / "readme").write_bytes(b"x")
    (first / ("1" * 19)).write_bytes(b"x")
    found = listed_log_files(Env(), config_of(first, second))
    assert found == [
        FoundFile(f"{second}/{name(1)}", SIZE, 2),
        FoundFile(f"{first}/{name(2)}", 2 * SIZE, 1),
    ]


def test_a_log_without_bytes_says_why(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    config = config_of(first, second)
    assert listed_log_files(Env(), config) == []
    assert reason_without_files(Env(), config) == "the log has no file"
    second.mkdir()
    (second / name(3)).write_bytes(b"")
    assert reason_without_files(Env(), config) == "all files of the log are empty (length 0)"


def test_the_text_of_a_lost_end() -> None:
    assert str(LostEnd("path", "why")) == "path: why"
    assert LostEnd("path", "why")[2:] == (-1, -1)


def fill(root: Path) -> None:
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        for number in range(80):
            store.put("t", b"%3d" % number * 100, keys="k")


def test_a_missing_file_between_files_is_found(tmp_path: Path) -> None:
    fill(tmp_path)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) >= 6
    files[2].unlink()
    with pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as store:
        engine = store.message_store
        (text,) = missing_files(engine.commit_log.mapped_file_queue.mapped_files)
        assert text == f"{files[3]}: {gap_text(2 * SIZE, 3 * SIZE, SIZE)}"
        assert lost_end(engine.files, engine.plan, {}) is None


def test_missing_files_at_the_end_are_found_from_the_units(tmp_path: Path) -> None:
    fill(tmp_path)
    files = sorted((tmp_path / "commitlog").iterdir())
    for path in files[-3:]:
        path.unlink()
    with pyrocketstore.open(tmp_path, read_only=True, **TINY_SIZES) as store:
        engine = store.message_store
        plan = engine.plan
        assert lost_end(engine.files, None, {("t", 0): 1 << 40}) is None, "nothing is certain"
        end = (len(files) - 1) * SIZE + 10
        found = lost_end(engine.files, plan, {("t", 0): end, ("u", 1): end - 5})
        assert found is not None
        assert (found.path, found.begin, found.end) == (
            str(files[-4]),
            (len(files) - 3) * SIZE,
            end,
        )
        assert "2 queues name messages after it, t/0 up to byte" in found.reason
        assert found.reason.endswith(f"missing: {', '.join(path.name for path in files[-3:])}")
        one = lost_end(engine.files, plan, {("u", 1): end})
        assert one is not None and "the queue u/1 names messages after it" in one.reason
        assert missing_files(engine.commit_log.mapped_file_queue.mapped_files) == []
