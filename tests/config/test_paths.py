"""Goal: a path keeps the meaning that it had at the opening of the store, in every accepted form.
Method: relative paths in each argument; a working directory that changes or is deleted."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageStoreConfig,
    StoreError,
    StoreFormatError,
    StoreTypeError,
)
from pyrocketstore.cli.inspect import file_rows

SMALL = {"mapped_file_size_commit_log": 1 << 14, "mapped_file_size_consume_queue": 2000}
COUNT = 60


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the working directory, which has a sibling."""
    (tmp_path / "home").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    yield tmp_path / "home"
    assert list((tmp_path / "other").iterdir()) == []


def fill(store: pyrocketstore.Store) -> None:
    """Put messages over several files of the log and of new queues."""
    for number in range(COUNT):
        store.put(f"t{number // 10}", b"%d" % number + bytes(1000), keys="k")


def numbers(store: pyrocketstore.Store) -> list[int]:
    bodies = [message.body for topic in sorted(store.topics()) for message in store.read(topic)]
    return [int(body.rstrip(b"\0")) for body in bodies]


def test_a_relative_path_survives_chdir(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pyrocketstore.open("st", **SMALL) as store:
        assert store.path == str(home / "st")
        store.put("t0", b"0")
        monkeypatch.chdir(home.parent / "other")
        fill(store)
        store.flush()
        assert store.verify().ok
    with pyrocketstore.open(home / "st") as store:
        assert numbers(store) == [0, *range(COUNT)]
    monkeypatch.chdir(home)
    with pyrocketstore.open("../home/./st", read_only=True) as store:
        monkeypatch.chdir(home.parent / "other")
        assert numbers(store) == [0, *range(COUNT)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_root_beside_the_path_is_refused(home: Path, read_only: bool) -> None:
    """The store was opened at the setting, and the path was ignored."""
    for name in ("s", "other"):
        with pyrocketstore.open(name, **SMALL) as store:
            store.put(name, b"0")
    for other in ("other", str(home / "other"), "missing"):
        with pytest.raises(StoreFormatError, match=r"store_path_root_dir is .*leave the setting"):
            pyrocketstore.open("s", read_only=read_only, store_path_root_dir=other)
    assert sorted(os.listdir()) == ["other", "s"]
    for same in ("s", "./s", str(home / "s")):
        with pyrocketstore.open("s", read_only=read_only, store_path_root_dir=same) as store:
            assert store.path == str(home / "s")
            assert store.topics() == ["s"]


@pytest.mark.parametrize("several", [False, True])
def test_relative_settings_survive_chdir(
    home: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    (home / "broker.conf").write_text(
        "storePathRootDir=elsewhere\n"
        f"storePathCommitLog={'log1,log2' if several else 'log1'}\n"
        "mappedFileSizeCommitLog=16384\nmappedFileSizeConsumeQueue=2000\n"
    )
    with pyrocketstore.open("st", config="broker.conf") as store:
        monkeypatch.chdir(home.parent / "other")
        fill(store)
    assert len(list((home / "log1").iterdir())) > 1
    assert (home / "log2").exists() is several
    monkeypatch.chdir(home)
    with pyrocketstore.open("st", config=pathlib.PurePath("broker.conf"), read_only=True) as store:
        monkeypatch.chdir(home.parent / "other")
        assert numbers(store) == [*range(COUNT)]


def test_a_store_below_the_public_one_survives_chdir(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MessageStoreConfig(store_path_root_dir="st", store_path_commit_log="log", **SMALL)
    store = DefaultMessageStore(config)
    monkeypatch.chdir(home.parent / "other")
    store.load()
    store.start()
    store.shutdown()
    assert sorted(os.listdir(home)) == ["log", "st"]
    assert store.config.store_path_root_dir == str(home / "st")


def test_two_stores_of_one_relative_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.parent / "second").mkdir()
    with pyrocketstore.open("st", **SMALL) as one:
        monkeypatch.chdir(home.parent / "second")
        with pyrocketstore.open("st", **SMALL) as two:
            fill(one)
            fill(two)
            assert numbers(one) == numbers(two) == [*range(COUNT)]
    assert sorted(os.listdir(home)) == sorted(os.listdir(home.parent / "second")) == ["st"]


def test_paths_of_every_kind(home: Path) -> None:
    name = os.fsdecode("st\u00e4rke".encode() + b"\xff")  # a name that is not UTF-8
    for path in (os.fsencode(name), name, Path(name), f"{name}/", f".//{name}"):
        with pyrocketstore.open(path, **SMALL) as store:
            assert store.path == f"{home}/{name}"
            store.put("t", b"0")
    assert os.listdir(os.fsencode(home)) == [os.fsencode(name)]
    log = MessageStoreConfig(store_path_commit_log=os.fsencode(home / "log"))
    assert log.commit_log_paths == (str(home / "log"),)


def test_paths_that_cannot_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", b""):
        with pytest.raises(StoreFormatError, match=r"the path is empty; '\.' is the working"):
            pyrocketstore.open(path)
    for path in ("a\0b", b"a\0b"):
        with pytest.raises(StoreFormatError, match=r"'a\\x00b': a path cannot hold a NUL"):
            pyrocketstore.open(path)
    with pytest.raises(StoreFormatError, match=r"store_path_commit_log=.*cannot hold a NUL"):
        pyrocketstore.open("st", store_path_commit_log="a\0b")
    with pytest.raises(StoreFormatError, match="config: the path is empty"):
        pyrocketstore.open("st", config="")
    with pytest.raises(StoreFormatError, match="store_path_root_dir: the path is empty"):
        DefaultMessageStore(MessageStoreConfig(store_path_root_dir=""))
    (home / "a,b").mkdir()
    monkeypatch.chdir(home / "a,b")
    with pytest.raises(StoreFormatError, match="a directory with a comma in its name"):
        pyrocketstore.open(home / "st", store_path_commit_log="log")
    (home / "a,b").rmdir()
    with pytest.raises(StoreFormatError, match="a working directory that was deleted"):
        pyrocketstore.open("st")
    monkeypatch.chdir(home)
    assert os.listdir(home) == []


@pytest.mark.parametrize("path", [None, 5, [], object()])
def test_a_value_that_is_not_a_path(home: Path, path: Any) -> None:
    for call in (
        lambda: pyrocketstore.open(path),
        lambda: pyrocketstore.open("st", config=path or 0),
        lambda: MessageStoreConfig().at_root(path),
        lambda: MessageStoreConfig.from_broker_conf(path),
    ):
        with pytest.raises(StoreTypeError, match="must be a str or another path, not"):
            call()
    assert os.listdir(home) == []


# ---- links ---------------------------------------------------------------------------------------
def test_directories_that_are_named_may_be_links(home: Path) -> None:
    """The root and the log's directories may be links; directories below them may not."""
    for name in ("root", "log"):
        (home / f"real-{name}").mkdir()
        (home / name).symlink_to(home / f"real-{name}")
    with pyrocketstore.open("root", store_path_commit_log=str(home / "log"), **SMALL) as store:
        fill(store)
        store.flush()
    assert len(os.listdir(home / "real-log")) > 1
    # A broker.conf that names the directory of the log below its root names it too.
    (home / "real-root" / "commitlog").symlink_to(home / "real-log")
    with pytest.raises(StoreError, match=f"{home}/root/commitlog: a symbolic link"):
        pyrocketstore.open("root", **SMALL)
    (home / "broker.conf").write_text(
        f"storePathRootDir={home}/root\nstorePathCommitLog={home}/root/commitlog\n"
    )
    with pyrocketstore.open("root", config="broker.conf") as store:
        assert numbers(store) == [*range(COUNT)]


def test_dots_behind_a_link_lead_where_the_kernel_goes(home: Path) -> None:
    (home / "disk" / "deep").mkdir(parents=True)
    (home / "link").symlink_to(home / "disk" / "deep")
    for path, real in (("link/../store", "disk/store"), ("missing/../new", "new")):
        for _ in range(2):
            with pyrocketstore.open(path, **SMALL) as store:
                fill(store)
        assert not (home / real / "abort").exists()
        with pyrocketstore.open(home / real, read_only=True) as store:
            assert sum(len(list(store.read(topic))) for topic in store.topics()) == 2 * COUNT
            assert store.verify().ok
    assert not (home / "store").exists()


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue/t1", "index", "config"])
def test_a_link_below_the_root_is_refused_and_can_be_read(home: Path, name: str) -> None:
    with pyrocketstore.open("st", **SMALL) as store:
        fill(store)
    (home / "st" / name).rename(home / "away")
    (home / "st" / name).symlink_to(home / "away")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{home}/st/{name}: a symbolic link"):
            pyrocketstore.open("st", **SMALL)
    with pyrocketstore.open("st", read_only=True, **SMALL) as store:
        assert numbers(store) == [*range(COUNT)]
    (home / "st" / name).unlink()
    (home / "away").rename(home / "st" / name)
    with pyrocketstore.open("st", **SMALL) as store:
        assert numbers(store) == [*range(COUNT)]


def test_info_stays_in_the_directory(home: Path) -> None:
    (home / "st" / "commitlog").mkdir(parents=True)
    (home / "st" / "a").write_bytes(b"1234")
    (home / "outside").mkdir()
    (home / "outside" / "secret").write_bytes(b"x")
    (home / "st" / "link").symlink_to(home / "outside")
    (home / "st" / "loop").symlink_to(home / "st")
    rows = list(file_rows(str(home / "st"), [str(home / "st" / "commitlog")]))
    assert [(path.removeprefix(f"{home}/st/"), size) for path, size, _ in rows] == [
        ("a", 4),
        ("link", len(str(home / "outside"))),
        ("loop", len(str(home / "st"))),
    ]
    # The log's directories are named: they may be links.
    (home / "st" / "log").symlink_to(home / "outside")
    rows = list(file_rows(str(home / "st"), [str(home / "st" / "log")]))
    assert f"{home}/st/log/secret" in [path for path, _, _ in rows]


class Place(str):
    """As a member of an enum of strings, whose `str` is its name."""

    def __str__(self) -> str:
        return "Place.STORE"


def test_a_path_of_a_subclass_of_str_has_its_characters(home: Path) -> None:
    with pyrocketstore.open(Place("data"), **SMALL) as store:
        assert store.path == str(home / "data")
    assert [path.name for path in home.iterdir()] == ["data"]
