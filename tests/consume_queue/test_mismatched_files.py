"""Goal: a file of a wrong length or name hides no data: every message of the log is read through
its queue, units in the files of the queue are kept, and a reader changes nothing.
Method: cut, extend or rename files of stores, one at a time and many at random, and compare reads
with the puts."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreWarning
from support.seed import SEED
from support.snapshot import snapshot

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 200,
    "max_index_num": 1000,
}
EXT: dict[str, Any] = SETTINGS | {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 4096,
}
COUNT = 600


def fill(path: Path, settings: dict[str, Any]) -> Path:
    with pyrocketstore.open(path, **settings) as store:
        for number in range(COUNT):
            if number % 50 == 20:  # queues whose last message may be anywhere
                store.put(f"once{number}", b"once")
            store.put(
                "T", b"%04d" % number * 50, queue_id=number % 2, tags="AB"[number // 2 % 2],
                keys=f"k{number}",
            )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("plain") / "store", SETTINGS)


@pytest.fixture(scope="module")
def with_ext(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("ext") / "store", EXT)


def check_whole(store: pyrocketstore.Store) -> None:
    """Everything that was put is found by queue, by tag and by key."""
    for queue_id in (0, 1):
        numbers = [int(m.body[:4]) for m in store.read("T", queue_id)]
        assert numbers == list(range(queue_id, COUNT, 2))
        assert store.max_offset("T", queue_id) == COUNT // 2
        tagged = [int(m.body[:4]) for m in store.read("T", queue_id, tags="B")]
        assert tagged == [number for number in numbers if number // 2 % 2]
    for number in range(0, COUNT, 37):
        assert [m.body[:4] for m in store.query("T", f"k{number}")] == [b"%04d" % number]


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 999)


def rename(path: Path) -> None:
    path.rename(path.with_name(path.name[:-1] + "7"))


EMPTY = cut(0)


def expect_warning(name: str) -> Any:
    return pytest.warns(StoreWarning, match=name)


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    "damage", [cut(700), cut(705), cut(719), cut(1), lengthen, rename],
    ids=["700", "705", "719", "1", "longer", "renamed"],
)  # fmt: skip
def test_a_queue_file_is_restored_from_the_log(
    plain: Path, tmp_path: Path, damage: Callable[[Path], None], which: int, abort: bool
) -> None:
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    if abort:
        (path / "abort").touch()
    file = sorted((path / "consumequeue/T/0").iterdir())[which]
    damage(file)
    before = snapshot(path)
    with expect_warning("built in memory from"), pyrocketstore.open(
        path, read_only=True, **SETTINGS
    ) as store:  # fmt: skip
        check_whole(store)
        report = store.verify()
        assert not report.ok
        assert report.problems[0].kind == "queue"
    assert snapshot(path) == before
    with expect_warning("were built from"), pyrocketstore.open(path, **SETTINGS) as store:
        check_whole(store)
        assert store.verify().ok
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreWarning)
        with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
            check_whole(store)
            assert store.verify().ok
    kept = list(path.glob(".broken/*/consumequeue/T/0/*"))
    assert bool(kept) == (damage in (lengthen, rename))


@pytest.mark.parametrize(
    "damage", [cut(100), cut(4095), EMPTY, Path.unlink, lengthen],
    ids=["100", "4095", "0", "gone", "longer"],
)  # fmt: skip
@pytest.mark.parametrize("which", [0, -1])
def test_an_ext_file_is_restored_from_the_log(
    with_ext: Path, tmp_path: Path, damage: Callable[[Path], None], which: int
) -> None:
    path = Path(shutil.copytree(with_ext, tmp_path / "store"))
    files = sorted((path / "consumequeue_ext/T/0").iterdir())
    assert len(files) > 1
    if which and damage in (EMPTY, Path.unlink):
        pytest.skip("the files before it do not say that there was another")
    if which == 0 and damage not in (lengthen,):
        for file in files[1:]:  # else it has expired, or a hole is in the middle
            file.unlink()
    damage(files[which])
    before = snapshot(path)
    for read_only in (True, False, True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", StoreWarning)
            with pyrocketstore.open(path, read_only=read_only, **EXT) as store:
                check_whole(store)
                whole = store.verify()
        if read_only and caught:
            assert snapshot(path) == before
            assert not whole.ok
    assert not caught
    assert whole.ok
    assert whole.ext_unresolved == 0


def test_offsets_of_a_queue_that_the_log_has_lost_are_kept(tmp_path: Path) -> None:
    """All its messages have expired: only its files know where it continues."""
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SETTINGS) as store:
        for _ in range(30):
            store.put("old", b"x")
        for _ in range(400):
            store.put("T", b"y" * 500)
    (path / "commitlog" / f"{0:020d}").unlink()
    os.truncate(path / "consumequeue/old/0" / f"{0:020d}", 605)
    with expect_warning("605 bytes"), pyrocketstore.open(path, **SETTINGS) as store:
        assert store.put("old", b"z").queue_offset == 30


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 30_000])
def test_a_log_file_is_read_as_far_as_it_goes(
    plain: Path, tmp_path: Path, which: int, length: int
) -> None:
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    files = sorted((path / "commitlog").iterdir())
    if which >= len(files):
        pytest.skip("the log has fewer files")
    is_last = which == len(files) - 1
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        places = {int(m.body[:4]): m for q in (0, 1) for m in store.read("T", q)}
    os.truncate(files[which], length)
    base = which << 16
    kept = {
        number for number, m in places.items()
        if not base + length < m.phy_offset + m.size <= base + (1 << 16)
        or m.phy_offset >= base + (1 << 16)
    }  # fmt: skip
    if not (is_last and length == 0):
        with pytest.raises(StoreCorruptionError, match=r"must have 65536.*restore it"):
            pyrocketstore.open(path, **SETTINGS)
    before = snapshot(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
            for number in range(COUNT):
                found = store.get(places[number].phy_offset)
                assert (found is not None) == (number in kept), number
                hits = [m.body[:4] for m in store.query("T", f"k{number}")]
                assert hits == ([b"%04d" % number] if number in kept else []), number
            assert not store.verify().ok
    assert snapshot(path) == before


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("left", [1, 7])
def test_a_log_file_may_end_with_a_record(
    plain: Path, tmp_path: Path, left: int, is_last: bool
) -> None:
    """The last file with records is cut at the end of one, and an unused file may follow it."""
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        messages = sorted((m for q in (0, 1) for m in store.read("T", q)), key=key_of)
    base = messages[-1].phy_offset >> 16 << 16
    last = [m for m in messages if m.phy_offset >= base][left - 1]
    os.truncate(path / "commitlog" / f"{base:020d}", last.phy_offset + last.size - base)
    behind = path / "commitlog" / f"{base + (1 << 16):020d}"
    behind.unlink(missing_ok=True)
    if not is_last:
        behind.write_bytes(bytes(1 << 16))
    with pytest.warns(StoreWarning):
        store = pyrocketstore.open(path, read_only=True, **SETTINGS)
    with store:
        for _ in range(2):
            parts = [store.read("T", q, on_corrupt="skip") for q in (0, 1)]
            found = sorted((m for part in parts for m in part), key=key_of)
            assert [m.body for m in found] == [
                m.body for m in messages if m.phy_offset <= last.phy_offset
            ]
            store.refresh()
        assert not store.verify().ok


def key_of(message: pyrocketstore.MessageExt) -> int:
    return message.phy_offset


def test_a_configured_size_that_no_queue_file_has_changes_nothing(
    plain: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    before = snapshot(path)
    for size in (4000, 1000, 20):
        wrong = SETTINGS | {"mapped_file_size_consume_queue": size}
        for read_only in (True, False):
            with pytest.raises(StoreCorruptionError, match="mapped_file_size_consume_queue"):
                pyrocketstore.open(path, read_only=read_only, **wrong)
    assert [f for f in snapshot(path) if f[0] != "lock"] == [f for f in before if f[0] != "lock"]


def test_random_damage_to_lengths_loses_nothing(plain: Path, tmp_path: Path) -> None:
    """Seed: ROCKETSTORE_SEED."""
    for number in range(12):
        rng = random.Random(f"{SEED}/{number}")
        path = Path(shutil.copytree(plain, tmp_path / f"store{number}"))
        if rng.random() < 0.5:
            (path / "abort").touch()
        files = sorted(path.glob("consumequeue/T/*/*"))
        for file in rng.sample(files, rng.randrange(1, len(files) - 1)):
            rng.choice([cut(rng.randrange(2000)), lengthen, rename])(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            for read_only in (True, False, True):
                try:
                    with pyrocketstore.open(path, read_only=read_only, **SETTINGS) as store:
                        check_whole(store)
                        whole = store.verify().ok
                except AssertionError as error:
                    error.add_note(f"ROCKETSTORE_SEED={SEED}, store {number}, {read_only=}")
                    raise
        assert whole


@pytest.mark.parametrize("length", [1, 20, 40_000])
def test_a_single_queue_file_that_has_grown_is_restored(tmp_path: Path, length: int) -> None:
    path = tmp_path / "store"
    settings = SETTINGS | {"mapped_file_size_consume_queue": 20_000}
    with pyrocketstore.open(path, **settings) as store:
        store.put_many("T", [b"x"] * 300)
    with (path / "consumequeue/T/0" / f"{0:020d}").open("ab") as file:
        file.write(b"x" * length)
    for read_only in (True, False):
        with expect_warning("must have 20000"), pyrocketstore.open(
            path, read_only=read_only, **settings
        ) as store:  # fmt: skip
            assert len(list(store.read("T"))) == 300


def test_a_log_that_lost_its_last_file_is_reported(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without keys too: the queues name messages behind the log's end."""
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    shutil.rmtree(path / "index")
    files = sorted((path / "commitlog").iterdir())
    files[-1].unlink()
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        report = store.verify()
    assert any("name messages after it" in text for text in caplog.messages)
    assert not report.ok
    assert [p.path for p in report.problems if p.kind == "log"] == [str(files[-2])]


def test_a_log_size_that_no_file_has_is_refused(plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(plain, tmp_path / "store"))
    for size in (1 << 15, 1 << 17, 1 << 20):
        wrong = SETTINGS | {"mapped_file_size_commit_log": size}
        for read_only in (True, False):
            with pytest.raises(StoreCorruptionError, match="All files have another length"):
                pyrocketstore.open(path, read_only=read_only, **wrong)
