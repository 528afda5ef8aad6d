"""Goal: a log in several directories is one log, and no file exists in two of them.
Method: two or three paths, disks that the test reports as full, and every way to open such a
store."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageStoreConfig, PutMessageStatus, StoreCorruptionError, StoreIOError
from pyrocketstore.config.message_store_config import detect_sizes
from pyrocketstore.files.mapped_file_queue import AllocateMappedFileService
from pyrocketstore.files.multi_path import MultiPathMappedFileQueue
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines
from support.broken_env import broken
from support.cleaned_stores import LOG_SIZE, SetEnv, config_of, fill, message, opened
from support.gates import wait_until
from support.sizes import TINY_SIZES


@pytest.fixture
def env() -> SetEnv:
    return SetEnv()


def numbers(*paths: Path) -> list[list[int]]:
    return [sorted(int(p.name) // LOG_SIZE for p in path.iterdir()) for path in paths]


def two(tmp_path: Path, **more: object) -> dict[str, object]:
    return {"store_path_commit_log": f"{tmp_path}/a, {tmp_path}/b", **more}


def test_files_take_turns_and_are_one_log(tmp_path: Path, env: SetEnv) -> None:
    root, a, b = (tmp_path / name for name in ("r", "a", "b"))
    with opened(root, env, **two(tmp_path)) as store:
        fill(store, 100)
        last = store.get_max_phy_offset() // LOG_SIZE
        wait_until(
            lambda: sum(map(len, numbers(a, b))) == last + 2, "the one made ahead is missing"
        )
        found = numbers(a, b)
        assert [found[0][:3], found[1][:3]] == [[0, 2, 4], [1, 3, 5]]
        assert sorted(found[0] + found[1]) == list(range(last + 2))
        store.flush_all()
        crashed = tmp_path / "crashed"
        for name in ("r", "a", "b"):
            shutil.copytree(tmp_path / name, crashed / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "crashed", "r"]
    assert not (root / "commitlog").exists()
    for place in (tmp_path, crashed):
        settings = {**TINY_SIZES, **two(place)}
        config = config_of(place / "r", **two(place))
        lines = list(dump_lines(place / "r", config))
        with pyrocketstore.open(place / "r", read_only=True, **settings) as face:
            assert face.verify().ok
        with pyrocketstore.open(place / "r", **settings) as face:
            assert [m.body[:4] for m in face.read("t")] == [b"%04d" % i for i in range(100)]
            assert [m.queue_offset for m in face.query("t", "k42")] == [42]
            assert face.verify().ok
            assert numbers(place / "a", place / "b")[last % 2][-1] == last
            face.put("t", b"after")
        messages = [line for line in lines if line.startswith('{"message"')]
        assert len(messages) == 100
        assert messages == list(dump_lines(place / "r", config))[-101:-1]
    # Sizes that nobody gives are those of the files, wherever they lie.
    (a / f"{0:020d}").unlink()
    assert detect_sizes(
        Env(), str(root), MessageStoreConfig(**two(tmp_path))
    ).mapped_file_size_commit_log == LOG_SIZE  # fmt: skip


def test_cleaning_and_destroying_reach_every_path(tmp_path: Path, env: SetEnv) -> None:
    env.used["/a"] = 86
    env.used["/b"] = 87
    with opened(tmp_path / "r", env, **two(tmp_path)) as store:
        fill(store, 100)
        log = store.services.clean_commit_log
        assert log is not None
        assert log.delete_expired_files() > 4, "both are full: files go at once"
        last = store.get_max_phy_offset() // LOG_SIZE
        found = numbers(tmp_path / "a", tmp_path / "b")
        assert sorted(found[0] + found[1]) == [last, last + 1]
        assert store.get_min_phy_offset() == last * LOG_SIZE
        fill(store, 1)
    store.destroy()
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_a_full_path_gets_no_new_files(tmp_path: Path, env: SetEnv) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    env.used["/a"] = 86
    with opened(tmp_path / "r", env, **two(tmp_path)) as store:
        fill(store, 60)
        assert numbers(a) == [[]]
        count = len(numbers(b)[0])
        env.used["/a"] = 85
        fill(store, 60)
        assert numbers(a, b)[0]
        env.used.update({"/a": 99, "/b": 99})
        before = [len(names) for names in numbers(a, b)]
        fill(store, 90)
        assert all(len(n) > k + 1 for n, k in zip(numbers(a, b), before, strict=True))
        assert count > 3
    with pyrocketstore.open(tmp_path / "r", **TINY_SIZES, **two(tmp_path)) as face:
        assert face.max_offset("t") == 210
        assert face.verify().ok


def test_a_place_is_chosen_once(tmp_path: Path) -> None:
    full: set[str] = set()
    env = Env()
    service = AllocateMappedFileService(env)
    service.start()
    paths = (f"{tmp_path}/a", f"{tmp_path}/b")
    files = MultiPathMappedFileQueue(
        env, paths, (), LOG_SIZE, is_full=full.__contains__, allocate_service=service
    )
    try:
        for number in range(6):
            file = files.get_last_mapped_file(0)  # and the next one is made ahead
            assert file is not None
            file.append_message(bytes(LOG_SIZE))
            assert file.path == f"{paths[number % 2]}/{number * LOG_SIZE:020d}"
            full.clear()  # where the next one was made ahead fills up before it is used
            full.add(paths[(number + 1) % 2])
    finally:
        service.shutdown()
    names = [path.name for path in tmp_path.rglob("0*")]
    assert sorted(names) == [f"{i * LOG_SIZE:020d}" for i in range(6)]
    again = MultiPathMappedFileQueue(env, paths, (), LOG_SIZE)
    assert again.load()
    assert [f.path for f in again.mapped_files] == [f.path for f in files.mapped_files]


def test_a_place_that_fails_is_chosen_again(tmp_path: Path) -> None:
    full: set[str] = set()
    env = Env()
    paths = (f"{tmp_path}/a", f"{tmp_path}/b")
    files = MultiPathMappedFileQueue(env, paths, (), LOG_SIZE, is_full=full.__contains__)

    def refuse(original, fd, size):
        return -errno.ENOSPC

    with broken(env, "ftruncate", refuse), pytest.raises(StoreIOError, match="/a/"):
        files.get_last_mapped_file(0)
    full.add(paths[0])
    file = files.get_last_mapped_file(0)
    assert file is not None
    assert file.path == f"{paths[1]}/{0:020d}"
    assert numbers(tmp_path / "a") == [[]]


def test_a_name_in_two_paths_is_refused(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path / "r", env, **two(tmp_path)) as store:
        fill(store, 30)
    name = f"{0:020d}"
    shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    for read_only in (False, True):
        with pytest.raises(StoreCorruptionError) as caught:
            pyrocketstore.open(tmp_path / "r", read_only=read_only, **TINY_SIZES, **two(tmp_path))
        assert f"{tmp_path}/b/{name}" in str(caught.value)
        assert f"{tmp_path}/a/{name}" in str(caught.value)
    (tmp_path / "b" / name).unlink()
    with pyrocketstore.open(tmp_path / "r", **TINY_SIZES, **two(tmp_path)) as face:
        assert face.max_offset("t") == 30


def test_nothing_is_made_in_paths_for_reading(tmp_path: Path, env: SetEnv) -> None:
    with opened(tmp_path / "r", env, store_path_commit_log=f"{tmp_path}/old,{tmp_path}/b") as store:
        fill(store, 60)
    before = numbers(tmp_path / "old")
    only = {"read_only_commit_log_store_paths": f"{tmp_path}/old, {tmp_path}/none,"}
    for paths in (f"{tmp_path}/b,", f"{tmp_path}/old,{tmp_path}/b,{tmp_path}/c"):
        with opened(tmp_path / "r", env, store_path_commit_log=paths, **only) as store:
            assert store.get_min_phy_offset() == 0
            fill(store, 60, start=60)
            assert numbers(tmp_path / "old") == before
    assert numbers(tmp_path / "c")[0]
    assert not (tmp_path / "none").exists()
    # One path alone: 4.9.3 does not look at the others then.
    assert MessageStoreConfig(store_path_commit_log="/b", **only).read_only_commit_log_paths == ()


def test_no_path_to_write_is_a_status(tmp_path: Path, env: SetEnv) -> None:
    settings = two(tmp_path, read_only_commit_log_store_paths=f"{tmp_path}/a,{tmp_path}/b")
    with opened(tmp_path / "r", env, **settings) as store:
        result = store.put_message(message(b"x"))
        assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert isinstance(result.error, StoreIOError)
        assert result.error.errno == errno.EROFS


def test_paths_below_the_root_move_with_it() -> None:
    config = MessageStoreConfig(
        store_path_root_dir="/old",
        store_path_commit_log="/old/a,/mnt/b/, /old/deep/c,,/mnt/b",
        read_only_commit_log_store_paths="/old/z",
    )
    assert config.commit_log_paths == ("/old/a", "/mnt/b/", "/old/deep/c")
    moved = config.at_root("/new")
    assert moved.commit_log_paths == ("/new/a", "/mnt/b/", "/new/deep/c")
    assert moved.read_only_commit_log_paths == ("/new/z",)
    assert moved.commit_log_path == "/new/a"
    assert MessageStoreConfig(store_path_root_dir="/r").commit_log_paths == ("/r/commitlog",)


def test_each_path_has_its_figure_and_the_least_counts(tmp_path: Path, env: SetEnv) -> None:
    """As 4.9.3 answered for such paths: one that is missing is -1, and so the least."""
    with opened(tmp_path / "r", env, **two(tmp_path)) as store:
        env.used = {"": 30, "/a": 70, "/b": 40}
        info = store.get_runtime_info()
        ratios = {key: text for key, text in info.items() if key.startswith("commitLogDiskRatio")}
        assert ratios == {
            f"commitLogDiskRatio_{tmp_path}/a": "0.7",
            f"commitLogDiskRatio_{tmp_path}/b": "0.4",
            "commitLogDiskRatio": "0.4",
        }
        assert info["consumeQueueDiskRatio"] == "0.3"
        assert store.stats().commit_log_disk_ratio == 0.4
        (tmp_path / "a").rename(tmp_path / "elsewhere")
        info = store.get_runtime_info()
        assert info[f"commitLogDiskRatio_{tmp_path}/a"] == info["commitLogDiskRatio"] == "-1.0"
        (tmp_path / "elsewhere").rename(tmp_path / "a")
