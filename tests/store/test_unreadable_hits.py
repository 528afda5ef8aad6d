"""Goal: a query warns once if the index names a message that cannot be read, with its position; an
entry of an expired message, after the log's end, or with an equal hash is not damage.
Method: delete or change files and records of the log under a valid index; compare the warnings with
a list of the puts."""

from __future__ import annotations

import random
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pyrocketstore
from pyrocketstore.cli.commands import app

LOG_SIZE = 1 << 14
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 101,
}
COUNT = 300
#: An opening looks at the last three files; damage there would end the log.
LOOKED_AT = 3


def keys_of(i: int) -> list[str]:
    return [f"k{i}", f"group-{i % 20}"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store, and the physical offsets of its messages."""
    root = tmp_path_factory.mktemp("hits") / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        places = [store.put("T", b"%d" % i + bytes(300), keys=keys_of(i)).phy_offset
                  for i in range(COUNT)]  # fmt: skip
    return root, places


@pytest.fixture
def root(filled: tuple[Path, list[int]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[0], tmp_path / "store"))


@pytest.fixture
def places(filled: tuple[Path, list[int]]) -> list[int]:
    return filled[1]


def file_of(root: Path, place: int) -> Path:
    return root / "commitlog" / f"{place // LOG_SIZE * LOG_SIZE:020d}"


def damage(root: Path, place: int, at: int = 4) -> None:
    with file_of(root, place).open("r+b") as file:
        file.seek(place % LOG_SIZE + at)
        file.write(b"no")


def ask(store: pyrocketstore.Store, key: str, **options: Any) -> tuple[list[int], list[str]]:
    """Physical offsets of what `query` gives, and its warnings; `query_many` has the same."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [m.phy_offset for m in store.query("T", key, **options)]
    assert all(issubclass(w.category, pyrocketstore.StoreWarning) for w in caught)
    assert all(w.filename == __file__ for w in caught)
    with warnings.catch_warnings(record=True) as caught_many:
        warnings.simplefilter("always")
        hits = store.query_many("T", [key], **options)
    assert hits.phy_offset.tolist() == found
    assert [str(w.message) for w in caught_many] == [str(w.message) for w in caught]
    assert all(w.filename == __file__ for w in caught_many)
    return found, [str(w.message) for w in caught]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_record_that_is_damaged(root: Path, places: list[int], read_only: bool) -> None:
    """With its file and position; other keys cause no warning."""
    damage(root, places[25])
    with pyrocketstore.open(root, read_only=read_only, **SETTINGS) as store:
        found, (text,) = ask(store, "k25")
        assert found == []
        assert f"{file_of(root, places[25])} at byte {places[25] % LOG_SIZE}" in text
        assert "1 physical offset" in text and "verify" in text
        found, (text,) = ask(store, "group-5")
        assert found == [places[i] for i in range(5, COUNT, 20) if i != 25]
        assert ask(store, "k24") == ([places[24]], [])
        assert ask(store, "nothing") == ([], [])
        # The newest ones are all there: nobody asks for that one.
        assert ask(store, "group-5", max_num=2) == ([places[265], places[285]], [])
        with pytest.warns(pyrocketstore.StoreWarning, match="1 physical offset") as caught:
            store.query_many("T", [f"k{i}" for i in range(COUNT)])
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                with pytest.raises(pyrocketstore.StoreWarning):
                    store.query("T", "k25")
        assert ask(store, "k24") == ([places[24]], [])


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_of_the_log_that_is_missing(root: Path, places: list[int], read_only: bool) -> None:
    gone = file_of(root, places[60])
    lost = [i for i, place in enumerate(places) if file_of(root, place) == gone]
    gone.unlink()
    with pyrocketstore.open(root, read_only=read_only, **SETTINGS) as store:
        found, (text,) = ask(store, "k60")
        assert found == [] and f"{gone} at byte" in text and "missing" in text
        assert ask(store, f"k{lost[0] - 1}") == ([places[lost[0] - 1]], [])
        with pytest.warns(pyrocketstore.StoreWarning, match=f" {len(lost)} physical offsets"):
            store.query_many("T", [f"k{i}" for i in range(COUNT)])


def test_what_is_no_damage(root: Path, places: list[int]) -> None:
    """Expired messages, also of files that go meanwhile, and a log that lost its end."""
    expired = [i for i, place in enumerate(places) if place < 2 * LOG_SIZE]
    last = max(place // LOG_SIZE for place in places)
    cut = [i for i, place in enumerate(places) if place // LOG_SIZE == last]
    late = [i for i, place in enumerate(places) if place // LOG_SIZE == 2]
    (root / "commitlog" / f"{0:020d}").unlink()
    (root / "commitlog" / f"{LOG_SIZE:020d}").unlink()
    (root / "commitlog" / f"{last * LOG_SIZE:020d}").unlink()
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        assert ask(store, f"k{late[0]}") == ([places[late[0]]], [])
        for i in expired + cut:
            assert ask(store, f"k{i}") == ([], [])
        (root / "commitlog" / f"{2 * LOG_SIZE:020d}").unlink()  # by its owner
        for i in late:
            assert ask(store, f"k{i}") == ([], [])


def test_a_log_that_expires_as_a_whole(root: Path) -> None:
    """Its owner has written on, and deleted each file that a read-only store knows."""
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        files = sorted((root / "commitlog").iterdir())
        (root / "commitlog" / f"{len(files) * LOG_SIZE:020d}").write_bytes(bytes(LOG_SIZE))
        for file in files:
            file.unlink()
        assert ask(store, "k25") == ([], [])
        assert ask(store, f"k{COUNT - 1}") == ([], [])


def test_files_that_the_cleaner_is_deleting(root: Path, places: list[int]) -> None:
    """They are still in the file sequence, also when the first one is not the first to go."""
    with pyrocketstore.open(root, **SETTINGS) as store:
        files = store.message_store.commit_log.mapped_file_queue.mapped_files
        for file in (files[1], files[0]):
            file.destroy()
            start = file.file_from_offset
            for i, place in enumerate(places):
                if start <= place < start + LOG_SIZE:
                    assert ask(store, f"k{i}") == ([], [])


def test_a_hash_that_is_shared(tmp_path: Path) -> None:
    """In Java, "T#Aa" and "T#BB" have one hash."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        place = store.put("T", b"", keys="Aa").phy_offset
        assert ask(store, "BB") == ([], [])
        assert ask(store, "Aa") == ([place], [])


@pytest.mark.parametrize("seed", range(6))
def test_random_damage(root: Path, places: list[int], seed: int) -> None:
    """Every key: lost messages cause a warning, and no others do; in the order of the log."""
    rng = random.Random(seed)
    end = places[-1] // LOG_SIZE + 1 - LOOKED_AT
    lost: set[int] = set()
    for number in rng.sample(range(1, end), rng.randrange(3)):
        (root / "commitlog" / f"{number * LOG_SIZE:020d}").unlink()
        lost |= {i for i, place in enumerate(places) if place // LOG_SIZE == number}
    early = [i for i, place in enumerate(places) if place < end * LOG_SIZE]
    for i in set(rng.sample(early, rng.randrange(1, 30))) - lost:
        damage(root, places[i], rng.choice((0, 4, 28)))
        lost.add(i)
    with pyrocketstore.open(root, read_only=rng.random() < 0.5, **SETTINGS) as store:
        for name in [f"k{i}" for i in range(COUNT)] + [f"group-{i}" for i in range(20)]:
            wanted = [i for i in range(COUNT) if name in keys_of(i)]
            found, caught = ask(store, name)
            assert found == [places[i] for i in wanted if i not in lost]
            missing = [i for i in wanted if i in lost]
            assert len(caught) == bool(missing)
            for text in caught:
                assert f" {len(missing)} physical offset" in text
                first = places[missing[0]]
                assert f"{file_of(root, first)} at byte {first % LOG_SIZE}" in text


def test_the_command_ends_with_1(root: Path, places: list[int]) -> None:
    conf = root.parent / "broker.conf"
    conf.write_text("maxHashSlotNum=50\nmaxIndexNum=101\n")
    words = ["query", str(root), "T", "group-5", "--config", str(conf)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 16
    damage(root, places[25])
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == 15
    assert f"warning: {root}: " in result.stderr and "1 physical offset" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_entry_that_names_no_record(root: Path, places: list[int]) -> None:
    """A wrong place in the index, inside of the log."""
    path = min((root / "index").iterdir())
    data = bytearray(path.read_bytes())
    entry = struct.pack(">q", places[25])
    assert data.count(entry) == 2
    data[data.index(entry) + 7] ^= 1
    path.write_bytes(data)
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        texts = ask(store, "k25")[1] + ask(store, "group-5")[1]
        assert len(texts) == 1 and "no whole record" in texts[0]
