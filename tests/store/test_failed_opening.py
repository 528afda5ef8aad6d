"""Goal: an opening that fails, at whichever call, leaves a store that opens with all its messages.
Method: one call of a kind fails in the opening of a copy of a store, closed or not."""

from __future__ import annotations

import errno
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreError, StoreIOError
from pyrocketstore.message_store.loading import Loading
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.sizes import SIZES

TOPICS = ("one", "two")
#: The last messages have no keys. The log files that a recovery scans begin after the others.
KEYLESS_FROM = 100
SETTINGS: dict[str, Any] = {**SIZES, "mapped_file_size_commit_log": 1 << 14}


def bodies(store: pyrocketstore.Store) -> list[list[bytes]]:
    found = [[message.body for message in store.read(topic)] for topic in TOPICS]
    return [*found, [message.body for message in store.query("one", "k7")]]


@pytest.fixture(scope="module", params=["killed", "closed"])
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[bytes]]]:
    """A copy of a store, made while it is open or later, and what it holds."""
    root = tmp_path_factory.mktemp("store")
    with pyrocketstore.open(root / "live", **SETTINGS) as store:
        for i in range(300):
            keys = None if i >= KEYLESS_FROM else f"k{i // 20}"
            store.put(TOPICS[i % 2], b"%d" % i * 100, keys=keys, queue_id=i % 3)
            if i == 200:
                store.flush()
        store.wait_dispatched()
        expected = bodies(store)
        shutil.copytree(root / "live", root / "killed")
    shutil.copytree(root / "live", root / "closed")
    return root / request.param, expected


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("call", ["open", "pread", "list_directory", "file_size"])
def test_a_failed_opening_releases_the_store(
    tmp_path: Path, image: tuple[Path, list[list[bytes]]], call: str, read_only: bool
) -> None:
    source, expected = image
    env = Env()

    def attempt(number: int) -> int:
        """Fail the call with this number; return how many there were."""
        root = tmp_path / str(number)
        shutil.copytree(source, root)
        count = 0
        errors: list[StoreError] = []  # kept, as a program that reports them may do

        def fails_once(original: Any, *args: Any) -> int:
            nonlocal count
            count += 1
            return -errno.EIO if count == number else original(*args)

        with broken(env, call, fails_once), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damage that a failed read of a record looks like
            try:
                pyrocketstore.open(root, env=env, read_only=read_only, **SETTINGS).close()
            except StoreError as error:
                errors.append(error)
        assert all(f"errno {errno.EIO}" in str(error) for error in errors)
        with pyrocketstore.open(root, env=env, **SETTINGS) as store:
            assert bodies(store) == expected
        shutil.rmtree(root)
        return count

    total = attempt(0)
    assert total, f"an opening calls no {call}"
    for number in range(1, total + 1, 1 + total // 500):
        attempt(number)


@pytest.mark.parametrize("missing", ["consumequeue/one/0/0*", "index/*"])
@pytest.mark.parametrize("number", [1, 2])
def test_units_and_keys_for_which_there_is_no_memory(
    tmp_path: Path, missing: str, number: int
) -> None:
    """A reader that cannot build what the owner has not written does not open without it."""
    image = tmp_path / "image"
    with pyrocketstore.open(tmp_path / "live", **SETTINGS) as store:
        store.put_many("one", [b"%d" % i for i in range(300)], keys=["k"] * 300)
        store.wait_dispatched()
        shutil.copytree(tmp_path / "live", image)
    for file in sorted(image.glob(missing))[1 if "consumequeue" in missing else 0 :]:
        file.unlink()
    env, count = Env(), 0

    def fails(original: Any, *args: Any) -> int:
        nonlocal count
        count += 1
        return -errno.ENOMEM if count >= number else original(*args)

    with broken(env, "mmap", fails), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            store = pyrocketstore.open(image, env=env, read_only=True, **SETTINGS)
        except StoreError as error:
            assert f"errno {errno.ENOMEM}" in str(error)
            store = pyrocketstore.open(image, read_only=True, **SETTINGS)
    with store:
        assert [message.body for message in store.read("one")] == [b"%d" % i for i in range(300)]
        assert len(store.query("one", "k", max_num=300)) == 300


def test_an_error_of_an_earlier_attempt_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has deleted a file while a reader built units: the reader loads again."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.put("one", b"x")
    load = Loading.load
    attempts = 0

    def fails_once(self: Loading) -> None:
        nonlocal attempts
        attempts += 1
        load(self)
        if attempts == 1:
            gone = str(tmp_path / "commitlog" / "gone")
            self.files.running_flags.write_error = StoreIOError(errno.ENOENT, "open", gone)

    monkeypatch.setattr(Loading, "load", fails_once)
    with pyrocketstore.open(tmp_path, read_only=True, **SETTINGS) as store:
        assert [message.body for message in store.read("one")] == [b"x"]
    assert attempts == 2
