"""Goal: the simulated device keeps what was flushed, and nothing else for certain. Method: each
call alone, on plain files, and the content that may be left after it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from device import PAGE, Device
from pyrocketstore.errors import StoreIOError
from pyrocketstore.system.env import Env
from support.broken_env import PROTOTYPES
from survivors import NAME_CLASSES, PAGE_CLASSES, Choice, Tree, image_of, read, write

WRITABLE = os.O_RDWR | os.O_CREAT
OLD = Choice("old", "old", "old")
NEW = Choice("new", "new", "new")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    root = tmp_path / "root"
    root.mkdir()
    (root / "there").write_bytes(b"a" * 3 * PAGE)
    made = Device(root, "seed")
    yield made
    made.release()


@pytest.fixture
def env(device: Device) -> Env:
    return device.attach(Env())


def after(device: Device, choice: Choice) -> Tree:
    return image_of(device.capture("test"), choice, random.Random(1))


def open_file(env: Env, device: Device, name: str) -> int:
    return env.open(f"{device.root}/{name}", WRITABLE)


def test_bytes_are_durable_after_a_flush(device: Device, env: Env) -> None:
    fd = open_file(env, device, "there")
    env.pwrite_all(fd, b"b", PAGE)
    assert after(device, OLD) == {"there": b"a" * 3 * PAGE}
    assert after(device, NEW)["there"][PAGE : PAGE + 2] == b"ba"
    env.fdatasync(fd)
    assert after(device, OLD) == after(device, NEW)
    env.close(fd)


def test_an_msync_flushes_its_pages_alone(device: Device, env: Env) -> None:
    fd = open_file(env, device, "there")
    base = ctypes.c_void_p()
    call = PROTOTYPES["mmap"](env.address("mmap"))
    assert call(fd, 3 * PAGE, 1, ctypes.byref(base)) == 0
    assert base.value is not None
    env.close(fd)
    ctypes.memset(base.value, ord("b"), 3 * PAGE)
    assert PROTOTYPES["msync"](env.address("msync"))(base.value + PAGE, 100) == 0
    assert after(device, OLD)["there"] == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE
    assert PROTOTYPES["munmap"](env.address("munmap"))(base.value, 3 * PAGE) == 0
    assert after(device, NEW)["there"] == b"b" * 3 * PAGE
    assert mmap.PAGESIZE == PAGE


def test_a_name_is_durable_after_its_directory_was_flushed(device: Device, env: Env) -> None:
    fd = open_file(env, device, "new")
    env.ftruncate(fd, 5)
    env.fsync(fd)
    env.close(fd)
    assert "new" not in after(device, OLD)
    assert after(device, NEW)["new"] == bytes(5)
    env.fsync_directory(device.root)
    assert after(device, OLD)["new"] == bytes(5)
    env.unlink(f"{device.root}/new")
    assert after(device, OLD)["new"] == bytes(5)
    assert "new" not in after(device, NEW)


def test_a_length_is_durable_after_a_flush(device: Device, env: Env) -> None:
    fd = open_file(env, device, "new")
    env.fsync_directory(device.root)
    env.ftruncate(fd, 5)
    assert [after(device, c)["new"] for c in (OLD, NEW)] == [b"", bytes(5)]
    env.fdatasync(fd)
    assert after(device, OLD)["new"] == bytes(5)
    env.close(fd)


def test_a_syncfs_leaves_bytes_in_the_cache_of_the_device(device: Device, env: Env) -> None:
    fd = open_file(env, device, "new")
    other = open_file(env, device, "there")
    env.pwrite_all(fd, b"written", 0)
    assert env.syncfs(fd)
    assert after(device, OLD)["new"] == b"", "the name is in the journal"
    env.pwrite_all(fd, b"later", 7)
    env.fdatasync(other)
    assert after(device, OLD)["new"] == b"written"
    env.fdatasync(fd)
    assert after(device, OLD)["new"] == b"writtenlater"
    env.pwrite_all(fd, b"lost", 0)
    device.sync_fails_from_here(1)
    with pytest.raises(StoreIOError):
        env.syncfs(fd)
    assert env.syncfs(fd)
    env.fdatasync(fd)
    assert after(device, OLD)["new"] == b"writtenlater"
    assert after(device, NEW)["new"] == b"losttenlater"
    env.close(fd)
    env.close(other)


def test_a_rename_leaves_the_old_or_the_new(device: Device, env: Env) -> None:
    env.write_file(f"{device.root}/there", b"first")
    fd = open_file(env, device, "there.tmp")
    env.pwrite_all(fd, b"second", 0)
    env.fsync(fd)
    env.close(fd)
    env.fsync_directory(device.root)
    env.rename(f"{device.root}/there.tmp", f"{device.root}/there")
    old, new = {"there": b"first", "there.tmp": b"second"}, {"there": b"second"}
    assert [after(device, c) for c in (OLD, NEW)] == [old, new]
    seen = [image_of(device.capture("test"), Choice("new", "mixed", "new"), random.Random(i))
            for i in range(20)]  # fmt: skip
    assert all(image in (old, new) for image in seen)


def test_a_new_directory_is_gone_with_all_that_is_in_it(device: Device, env: Env) -> None:
    env.mkdir(f"{device.root}/d")
    env.write_file(f"{device.root}/d/file", b"x")
    assert "d" not in after(device, OLD)
    env.fsync_directory(device.root)
    assert after(device, OLD)["d"] == {"file": b"x"}


@pytest.mark.parametrize("pages", PAGE_CLASSES)
def test_every_sector_is_old_or_new(device: Device, env: Env, pages: str) -> None:
    fd = open_file(env, device, "there")
    env.pwrite_all(fd, b"b" * 3 * PAGE, 0)
    env.close(fd)
    found = set()
    for seed in range(30):
        image = image_of(device.capture("test"), Choice(pages, "new", "new"), random.Random(seed))
        data = image["there"]
        assert isinstance(data, bytes) and len(data) == 3 * PAGE
        sectors = [data[at : at + 512] for at in range(0, len(data), 512)]
        assert all(sector in (b"a" * 512, b"b" * 512) for sector in sectors)
        found.add(data)
    assert len(found) == {"old": 1, "new": 1}.get(pages, len(found))
    assert len(found) >= {"old": 1, "new": 1}.get(pages, 3)


def test_what_a_killed_process_left_is_still_not_durable(
    device: Device, env: Env, tmp_path: Path
) -> None:
    fd = open_file(env, device, "there")
    env.pwrite_all(fd, b"b", 0)
    env.close(fd)
    env.mkdir(f"{device.root}/d")
    env.write_file(f"{device.root}/d/file", b"x")
    env.unlink(f"{device.root}/there")
    moment = device.capture("killed")
    write(image_of(moment, NEW, random.Random(0)), tmp_path / "next")
    heir = Device(tmp_path / "next", "heir")
    heir.inherit(moment)
    assert read(tmp_path / "next") == {"d": {"file": b"x"}}
    assert after(heir, OLD) == after(device, OLD) == {"there": b"a" * 3 * PAGE}
    assert after(heir, NEW) == after(device, NEW)
    heir.attach(Env()).fsync_directory(heir.root)
    assert after(heir, OLD) == {"d": {"file": b"x"}}
    heir.release()


def test_the_classes_of_names_differ(device: Device, env: Env) -> None:
    for number in range(6):
        env.close(open_file(env, device, f"n{number}"))
    kinds = {}
    for names in NAME_CLASSES:
        images = [image_of(device.capture("t"), Choice("new", names, "new"), random.Random(i))
                  for i in range(30)]  # fmt: skip
        kinds[names] = {tuple(sorted(image)) for image in images}
    assert len(kinds["old"]) == len(kinds["new"]) == 1
    assert len(kinds["first ones"]) == 7
    assert len(kinds["mixed"]) > 15


def unnamed(env: Env, device: Device, size: int) -> int:
    folder = os.fsencode(device.root)
    fd = PROTOTYPES["open_unnamed"](env.address("open_unnamed"))(folder, 0o644)
    assert fd >= 0
    env.ftruncate(fd, size)
    return int(fd)


def test_a_file_without_a_name_is_not_there(device: Device, env: Env) -> None:
    fd = unnamed(env, device, 5)
    env.fsync(fd)
    assert "new" not in after(device, NEW)
    link = PROTOTYPES["link_unnamed"](env.address("link_unnamed"))
    assert link(fd, f"{device.root}/there".encode()) == -errno.EEXIST
    assert link(fd, f"{device.root}/new".encode()) == 0
    env.close(fd)
    assert "new" not in after(device, OLD)
    assert after(device, NEW)["new"] == bytes(5)
    env.fsync_directory(device.root)
    assert after(device, OLD)["new"] == bytes(5)


def test_a_name_does_not_bring_the_length_down(device: Device, env: Env) -> None:
    fd = unnamed(env, device, 5)
    link = PROTOTYPES["link_unnamed"](env.address("link_unnamed"))
    assert link(fd, f"{device.root}/new".encode()) == 0
    env.fsync_directory(device.root)
    assert after(device, OLD)["new"] == b""
    env.fdatasync(fd)
    env.close(fd)
    assert after(device, OLD)["new"] == bytes(5)


def test_a_second_name_is_durable_by_itself(device: Device, env: Env) -> None:
    link = PROTOTYPES["link"](env.address("link"))
    source, target = f"{device.root}/there", f"{device.root}/second"
    assert link(source.encode(), target.encode()) == 0
    assert list(after(device, OLD)) == ["there"]
    assert after(device, NEW)["second"] == b"a" * 3 * PAGE
    env.fsync_directory(device.root)
    env.unlink(source)
    assert set(after(device, OLD)) == {"there", "second"}
    env.fsync_directory(device.root)
    assert list(after(device, OLD)) == ["second"]
