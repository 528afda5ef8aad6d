"""Goal: recovery learns from `sync_point` and `checkpoint` what was durable, each on its own.
Method: both files with chosen content, damaged or missing; the files of a store."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreIOError
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.sync_point import (
    SYNC_POINT,
    Flushed,
    SyncPoint,
    SyncPointFile,
    read_flushed,
)
from pyrocketstore.system.env import Env
from support.broken_env import failing
from support.sizes import SIZES

POINT = SyncPoint(phy_offset=300, last_phy_offset=200, record_crc=7)
TIME_MS = 1_700_000_000_000


@pytest.fixture
def env() -> Env:
    return Env()


def write_checkpoint(env: Env, root: Path) -> None:
    checkpoint = StoreCheckpoint(env, str(root / "checkpoint"))
    checkpoint.note_log_flushed(TIME_MS, 300)
    checkpoint.note_queues_flushed(TIME_MS + 1, 300)
    checkpoint.flush()


def test_nothing_is_known_without_the_files(tmp_path: Path, env: Env) -> None:
    assert read_flushed(env, str(tmp_path)) == Flushed(phy_offset=-1, timestamp=0)
    assert list(tmp_path.iterdir()) == [], "a reader makes no file"


def test_each_file_says_its_part(tmp_path: Path, env: Env) -> None:
    SyncPointFile(env, str(tmp_path)).write(POINT)
    assert read_flushed(env, str(tmp_path)) == (300, 0)
    write_checkpoint(env, tmp_path)
    assert read_flushed(env, str(tmp_path)) == (300, TIME_MS)
    (tmp_path / SYNC_POINT).unlink()
    assert read_flushed(env, str(tmp_path)) == (-1, TIME_MS)


@pytest.mark.bad_input
@pytest.mark.parametrize("position", [0, 8, 15, 30, -1])
def test_a_damaged_sync_point_says_nothing(tmp_path: Path, env: Env, position: int) -> None:
    write_checkpoint(env, tmp_path)
    data = bytearray(POINT.encode())
    data[position] ^= 1
    (tmp_path / SYNC_POINT).write_bytes(data)
    assert read_flushed(env, str(tmp_path)) == (-1, TIME_MS)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, env: Env) -> None:
    SyncPointFile(env, str(tmp_path)).write(POINT)
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError) as caught:
        read_flushed(env, str(tmp_path))
    assert caught.value.errno == errno.EIO and SYNC_POINT in str(caught.value)


def test_a_closed_store_has_all_of_its_log(tmp_path: Path, env: Env) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(5):
            last = store.put("t", b"%d" % number, keys="k")
        message = store.get(last.phy_offset)
        end = store.message_store.get_max_phy_offset()
    assert read_flushed(env, str(tmp_path)) == (end, message.store_timestamp)
