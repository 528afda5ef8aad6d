"""Goal: the log of a node of DLedger mode is found or refused by name, and its committed end is
that of the last committed entry, or unknown.
Method: directories of each shape; checkpoints and index files, valid and damaged, against the ends
of the entries that the test wrote."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyrocketstore import StoreFormatError
from pyrocketstore.config.dledger import (
    committed_end,
    dledger_directories,
    dledger_log_of,
    with_dledger_log,
)
from pyrocketstore.system.env import Env
from support.dledger import Ledger

COUNT = 20


def make_nodes(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "data").mkdir(parents=True)


def test_nodes_are_directories_with_data(tmp_path: Path) -> None:
    make_nodes(tmp_path, "dledger-n1", "dledger-n0", "other-n2")
    (tmp_path / "dledger-n3").mkdir()
    (tmp_path / "dledger-n4").write_bytes(b"")
    (tmp_path / "dledger-n5").mkdir()
    (tmp_path / "dledger-n5" / "data").write_bytes(b"")
    expected = [f"{tmp_path}/dledger-n{n}/data" for n in (0, 1)]
    assert dledger_directories(Env(), str(tmp_path)) == expected
    assert dledger_directories(Env(), str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ([], None),
        (["/a/commitlog"], None),
        (["/a/commitlog", "/a/dledger-n0/data"], "/a/dledger-n0/data"),
        (["/a/dledger-n0"], None),
        (["/a/dledger-n0/data/x"], None),
        (["data"], None),
        (["dledger-n0/data"], "dledger-n0/data"),
    ],
)
def test_the_log_among_paths(paths: list[str], found: str | None) -> None:
    assert dledger_log_of(paths) == found


class TestPaths:
    def paths(self, root: Path, self_id: str | None, *paths: str) -> list[str]:
        return list(with_dledger_log(Env(), str(root), paths or [f"{root}/commitlog"], self_id))

    def test_a_plain_store_keeps_its_paths(self, tmp_path: Path) -> None:
        assert self.paths(tmp_path, "n0") == [f"{tmp_path}/commitlog"]

    def test_the_only_node_needs_no_name(self, tmp_path: Path) -> None:
        make_nodes(tmp_path, "dledger-n0")
        for self_id in (None, "n0"):
            assert self.paths(tmp_path, self_id) == [f"{tmp_path}/dledger-n0/data"]

    def test_plain_files_come_first(self, tmp_path: Path) -> None:
        make_nodes(tmp_path, "dledger-n0")
        (tmp_path / "commitlog").mkdir()
        (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"x")
        node = f"{tmp_path}/dledger-n0/data"
        assert self.paths(tmp_path, None) == [f"{tmp_path}/commitlog", node]

    def test_paths_that_name_a_node_stay(self, tmp_path: Path) -> None:
        make_nodes(tmp_path, "dledger-n0", "dledger-n1")
        node = f"{tmp_path}/dledger-n1/data"
        assert self.paths(tmp_path, None, node) == [node]

    def test_one_of_several_is_named(self, tmp_path: Path) -> None:
        make_nodes(tmp_path, "dledger-n0", "dledger-n1")
        assert self.paths(tmp_path, "n1") == [f"{tmp_path}/dledger-n1/data"]
        with pytest.raises(StoreFormatError, match="has dledger-n0, dledger-n1: name one by"):
            self.paths(tmp_path, None)

    @pytest.mark.parametrize("names", [["dledger-n0"], ["dledger-n0", "dledger-n1"]])
    def test_a_wrong_name_is_refused(self, tmp_path: Path, names: list[str]) -> None:
        make_nodes(tmp_path, *names)
        with pytest.raises(StoreFormatError, match="not 'n7'"):
            self.paths(tmp_path, "n7")

    def test_a_comma_is_refused(self, tmp_path: Path) -> None:
        make_nodes(tmp_path / "a,b", "dledger-n0")
        with pytest.raises(StoreFormatError, match="comma"):
            self.paths(tmp_path / "a,b", None)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path)
    for number in range(COUNT):
        found.append(bytes(100 + number))
    found.write(None)
    return found


def end_of(ledger: Ledger) -> int | None:
    return committed_end(Env(), str(ledger.node / "data"))


def state(ledger: Ledger, text: str, name: str = "checkpoint") -> None:
    (ledger.node / name).write_text(text)


def test_without_a_checkpoint_the_end_is_unknown(ledger: Ledger) -> None:
    assert end_of(ledger) is None


@pytest.mark.parametrize("number", [0, 1, COUNT - 1])
def test_the_end_of_the_last_committed_entry(ledger: Ledger, number: int) -> None:
    state(ledger, f"endIndex=19\ncommittedIndex={number}\n")
    assert end_of(ledger) == ledger.ends[number]


@pytest.mark.parametrize("text", ["committedIndex=-1", "committedIndex = -1 "])
def test_nothing_is_committed(ledger: Ledger, text: str) -> None:
    state(ledger, text)
    assert end_of(ledger) == 0


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "text",
    [
        "",
        "committedIndex=",
        "committedIndex=x",
        "committedIndex=1.5",
        "committedIndex=" + "9" * 19,
        "endIndex=5",
        "committedIndex=\\u00",
    ],
)
def test_of_a_damaged_checkpoint_the_backup_counts(ledger: Ledger, text: str) -> None:
    state(ledger, text)
    assert end_of(ledger) is None
    state(ledger, "committedIndex=3", "checkpoint.bak")
    assert end_of(ledger) == ledger.ends[3]


@pytest.mark.bad_input
@pytest.mark.parametrize("number", [COUNT, 1 << 40])
def test_an_entry_that_the_index_lacks(ledger: Ledger, number: int) -> None:
    state(ledger, f"committedIndex={number}")
    assert end_of(ledger) is None


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("position", "value"),
    [(4, struct.pack(">q", -1)), (12, struct.pack(">i", 0)), (16, struct.pack(">q", 7))],
    ids=["begin", "size", "number"],
)
def test_a_damaged_unit_of_the_index(ledger: Ledger, position: int, value: bytes) -> None:
    state(ledger, "committedIndex=3")
    ledger.index[3 * 32 + position : 3 * 32 + position + len(value)] = value
    ledger.write(None)
    assert end_of(ledger) is None


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [0, 3 * 32, 4 * 32 - 1])
def test_an_index_that_is_cut(ledger: Ledger, size: int) -> None:
    state(ledger, "committedIndex=3")
    path = ledger.node / "index" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:size])
    assert end_of(ledger) is None
