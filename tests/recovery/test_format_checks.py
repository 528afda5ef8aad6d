"""Goal: each trace of 5.x or of DLedger mode has one verdict: read, only read, or refused; a
damaged checkpoint has none.
Method: empty directories with one trace at a time; checkpoints of chosen fields beside a log whose
bytes are known."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyrocketstore import MessageStoreConfig, StoreFormatError
from pyrocketstore.commit_log.other_formats import (
    check_checkpoint,
    check_format,
    check_format_to_write,
    check_writable,
    why_checkpoint_is_damaged,
    why_only_read,
)
from pyrocketstore.system.env import Env

TIME_MS = 1_700_000_000_000
MAGIC = bytes.fromhex("DAA320A7")
#: Bytes of the only record of the log, which ends there.
LOG_END = 200


def config_of(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig().at_root(str(root))


def check(root: Path, *, read_only: bool) -> None:
    check = check_format if read_only else check_format_to_write
    check(Env(), config_of(root))


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_of_4_9_3_is_accepted(tmp_path: Path, exists: bool) -> None:
    root = tmp_path if exists else tmp_path / "none"
    for read_only in (True, False):
        check(root, read_only=read_only)
    check_writable(Env(), config_of(root))
    assert why_only_read(Env(), config_of(root)) == ""


@pytest.mark.parametrize(
    "mark",
    [
        "timerwheel",
        "timerlog",
        "compaction",
        "compactionLog",
        "consumequeue_r",
        "rocksdbstore",
        "abort.bak",
        "batchconsumequeue",
        f"consumequeue/{'t' * 128}",
    ],
)
def test_what_only_5x_makes_is_only_read(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).mkdir(parents=True)
    check(tmp_path, read_only=True)
    with pytest.raises(StoreFormatError, match="read_only=True") as caught:
        check(tmp_path, read_only=False)
    assert str(tmp_path / mark) in str(caught.value)
    assert why_only_read(Env(), config_of(tmp_path)) == str(caught.value)


@pytest.mark.parametrize("topic", ["t" * 127, "\u00e9" * 63])
def test_a_topic_that_4_9_3_can_store_is_no_trace(tmp_path: Path, topic: str) -> None:
    (tmp_path / "consumequeue" / topic).mkdir(parents=True)
    check(tmp_path, read_only=False)


def test_the_length_of_a_topic_is_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / ("\u00e9" * 64)).mkdir(parents=True)
    with pytest.raises(StoreFormatError):
        check(tmp_path, read_only=False)


def test_batch_queues_are_not_even_read(tmp_path: Path) -> None:
    for topic in ("u", "t"):
        (tmp_path / "batchconsumequeue" / topic).mkdir(parents=True)
    for read_only in (True, False):
        with pytest.raises(StoreFormatError, match="the topic t has a batch consume queue"):
            check(tmp_path, read_only=read_only)


@pytest.mark.parametrize("has_data", [True, False])
def test_a_dledger_log_must_be_among_the_paths(tmp_path: Path, has_data: bool) -> None:
    data = tmp_path / "dledger-n0" / "data"
    (data if has_data else data.parent).mkdir(parents=True)
    reason = "not among the paths" if has_data else "no directory `data`"
    with pytest.raises(StoreFormatError, match=reason):
        check(tmp_path, read_only=True)
    with pytest.raises(StoreFormatError, match="only read"):
        check(tmp_path, read_only=False)
    if has_data:
        config = config_of(tmp_path).replace(store_path_commit_log=str(data))
        check_format(Env(), config)


# ---- checkpoint ----------------------------------------------------------------------------------


def write_checkpoint(
    root: Path, *, times: tuple[int, ...] = (TIME_MS,) * 3, of_5x: tuple[int, ...] = (0, 0)
) -> None:
    data = struct.pack(">5q", *times, *of_5x)
    (root / "checkpoint").write_bytes(data.ljust(4096, b"\0"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory whose log has one record of LOG_END bytes."""
    (tmp_path / "commitlog").mkdir()
    record = struct.pack(">i", LOG_END) + MAGIC + b"\1" * (LOG_END - 8)
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(record.ljust(4096, b"\0"))
    return tmp_path


def damage_of(root: Path) -> str:
    return why_checkpoint_is_damaged(Env(), config_of(root))


def test_a_missing_or_plain_checkpoint_is_valid(root: Path) -> None:
    assert damage_of(root) == ""
    write_checkpoint(root)
    assert damage_of(root) == ""
    check_checkpoint(Env(), config_of(root))


@pytest.mark.parametrize("offset", [LOG_END, 4096])
def test_a_checkpoint_of_5x_is_not_written(root: Path, offset: int) -> None:
    write_checkpoint(root, of_5x=(offset, -1))
    assert damage_of(root) == ""
    with pytest.raises(StoreFormatError, match=r"checkpoint: RocketMQ 5\.x has written this"):
        check_checkpoint(Env(), config_of(root))
    assert "checkpoint" in why_only_read(Env(), config_of(root))


@pytest.mark.bad_input
@pytest.mark.parametrize("offset", [1, 100, LOG_END - 1, LOG_END + 100, 4097, 1 << 40])
def test_an_offset_where_no_record_begins_is_damage(root: Path, offset: int) -> None:
    write_checkpoint(root, of_5x=(offset, -1))
    assert f"names byte {offset} of the log" in damage_of(root)
    check_checkpoint(Env(), config_of(root))  # and refuses nothing


@pytest.mark.bad_input
@pytest.mark.parametrize("times", [(-1, 0, 0), (0, 1 << 60, 0), (0, 0, -(1 << 63))])
def test_a_time_that_is_none_is_damage(root: Path, times: tuple[int, ...]) -> None:
    write_checkpoint(root, times=times, of_5x=(LOG_END, LOG_END))
    assert "MsgTimestamp is" in damage_of(root)
    check_checkpoint(Env(), config_of(root))


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [1, 24, 4095])
def test_a_short_checkpoint_is_damage(root: Path, size: int) -> None:
    (root / "checkpoint").write_bytes(bytes(size))
    assert damage_of(root) == f"the file has {size} bytes and must have 4096"
