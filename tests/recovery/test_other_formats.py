"""Goal: directories of 5.x and of DLedger mode are read, never written, or refused with a reason.
Method: stores of ours that the test turns into such directories, byte by byte as the formats say;
each answer is compared with the store that they came from. tests/interop asks the real brokers."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreFormatError
from support.dledger import FILE_SIZE, SIZES_DLEDGER, Ledger, as_dledger, as_v2, records
from support.sizes import SIZES

LONG_TOPIC = "topic-" + "x" * 150
COUNT = 120


def fill(path: Path, topics: tuple[str, ...] = ("a", "b")) -> None:
    with pyrocketstore.open(path, **SIZES) as store:
        for number in range(COUNT):
            topic = topics[number % len(topics)]
            store.put(
                topic,
                b"body %d " % number * (number % 40),
                queue_id=number % 3,
                tags="AB"[number % 2],
                keys=f"k{number}",
                properties={"n": str(number)},
            )


def digest(path: Path) -> dict[str, str]:
    """Return {path: hash} of all files of a directory."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def check(store: pyrocketstore.Store) -> None:
    """Require that only the files of the queues are missing."""
    others = [one for one in store.verify().problems if "their file is missing" not in one.text]
    assert not others


def answers(store: pyrocketstore.Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each queue answers, apart from physical offsets."""
    return {
        f"{topic}/{queue_id}": [
            (m.body, m.tags, m.keys, m.queue_offset, m.store_timestamp, m.properties["n"])
            for m in store.read(topic, queue_id)
        ]
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }


# ---- 5.x ----------------------------------------------------------------------------------------


def with_v2_records(path: Path, every: int, topic: str | None) -> None:
    """Write the log again, in one file, with each `every`-th record in the form of 5.x."""
    found, log = list(records(path)), bytearray()
    for number, record in enumerate(found):
        if number % every == every - 1:
            log += as_v2(record, len(log), None if topic is None else topic.encode())
        else:
            plain = bytearray(record)
            struct.pack_into(">q", plain, 28, len(log))
            log += plain
    shutil.rmtree(path / "commitlog")
    (path / "commitlog").mkdir()
    size = 1 << 20
    (path / "commitlog" / f"{0:020d}").write_bytes(bytes(log) + bytes(size - len(log)))
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()


READ_SIZES = {**SIZES, "mapped_file_size_commit_log": 1 << 20}


@pytest.mark.parametrize("every", [1, 3, 7])
def test_records_of_5x_are_read(tmp_path: Path, every: int) -> None:
    fill(tmp_path)
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        wanted = answers(store)
    with_v2_records(tmp_path, every, None)
    before = digest(tmp_path)
    with pyrocketstore.open(tmp_path, read_only=True, **READ_SIZES) as store:
        assert answers(store) == wanted
        assert [m.body for m in store.query("a", "k4")] == [b"body 4 " * 4]
        check(store)
        batch = store.read_batch("a", 0, start=0)
        assert batch.num_rows == len(wanted["a/0"])
    assert digest(tmp_path) == before


def test_a_long_topic_of_5x_is_read(tmp_path: Path) -> None:
    fill(tmp_path, ("a",))
    with_v2_records(tmp_path, 4, LONG_TOPIC)
    with pyrocketstore.open(tmp_path, read_only=True, **READ_SIZES) as store:
        assert set(store.topics()) == {"a", LONG_TOPIC}
        found = sorted(int(m.properties["n"]) for m in store.read(LONG_TOPIC, None))
        assert found == list(range(3, COUNT, 4))
        (one,) = store.query(LONG_TOPIC, "k7")
        assert (one.topic, one.body) == (LONG_TOPIC, b"body 7 " * 7)
        assert store.get(one.phy_offset) == one


@pytest.mark.parametrize("every", [1, 3, COUNT])
@pytest.mark.parametrize("killed", [False, True])
def test_a_log_with_records_of_5x_is_not_written(tmp_path: Path, every: int, killed: bool) -> None:
    fill(tmp_path)
    with_v2_records(tmp_path, every, None)
    if killed:
        (tmp_path / "abort").touch()
    log = tmp_path / "commitlog" / f"{0:020d}"
    before = log.read_bytes()
    with pytest.raises(StoreCorruptionError, match="read-only"):
        pyrocketstore.open(tmp_path, **READ_SIZES)
    assert log.read_bytes() == before
    assert (tmp_path / "abort").exists() == killed


MARKS: dict[str, Any] = {
    "timerwheel": b"x",
    "timerlog": None,
    "compaction": None,
    "abort.bak": b"4711",
    "consumequeue_r": None,
    "batchconsumequeue": None,
    "checkpoint": (24, "end"),
    "checkpoint 2": (32, "end"),
    "checkpoint 3": (32, "record"),
    "checkpoint 4": (24, "none"),
}


def place_in_log(root: Path, place: str) -> int:
    """Return the end of the log, the begin of a record, or the -1 of 5.x."""
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        if place == "none":
            return -1
        if place == "end":
            return store.message_store.get_max_phy_offset()
        return next(iter(store.read("b"))).phy_offset


@pytest.mark.parametrize("mark", MARKS)
def test_a_directory_of_5x_is_only_read(tmp_path: Path, mark: str) -> None:
    fill(tmp_path)
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        wanted = answers(store)
    path, content = tmp_path / mark.split()[0], MARKS[mark]
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("r+b") as file:
            file.seek(content[0])
            file.write(struct.pack(">q", place_in_log(tmp_path, content[1])))
    before = digest(tmp_path)
    with pytest.raises(StoreFormatError, match=r"5\.x.*read_only"):
        pyrocketstore.open(tmp_path, **SIZES)
    assert digest(tmp_path) == before
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert answers(store) == wanted


@pytest.mark.parametrize("bit", [0, 3, 7, 12, 20, 33, 62, 63, 64, 68, 127])
def test_a_flipped_bit_of_the_checkpoint_refuses_no_opening(tmp_path: Path, bit: int) -> None:
    """In the fields of 5.x: a byte of the log where no record begins or ends proves nothing."""
    fill(tmp_path)
    with (tmp_path / "checkpoint").open("r+b") as file:
        file.seek(24)
        value = int.from_bytes(file.read(16), "big") ^ 1 << bit
        file.seek(24)
        file.write(value.to_bytes(16, "big"))
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert [problem.kind for problem in store.verify().problems] == ["checkpoint"]
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert sum(1 for topic in "ab" for _ in store.read(topic, None)) == COUNT
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert store.verify().ok


@pytest.mark.parametrize("read_only", [False, True])
def test_batch_consume_queues_are_refused(tmp_path: Path, read_only: bool) -> None:
    fill(tmp_path)
    (tmp_path / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)
    with pytest.raises(StoreFormatError, match="batches has a batch consume queue"):
        pyrocketstore.open(tmp_path, read_only=read_only, **SIZES)


# ---- DLedger ------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, dict[str, list[tuple[Any, ...]]]]:
    path = tmp_path / "store"
    fill(path)
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        return path, answers(store)


def opened(path: Path, **more: Any) -> pyrocketstore.Store:
    return pyrocketstore.open(path, read_only=True, **{**SIZES_DLEDGER, **more})


@pytest.mark.parametrize("killed", [False, True])
def test_a_dledger_log_is_read(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], killed: bool
) -> None:
    path, wanted = filled
    ledger = as_dledger(path, COUNT - 1)
    assert len(list((ledger.node / "data").iterdir())) > 2
    if killed:
        (path / "abort").touch()
    before = digest(path)
    with opened(path) as store:
        assert answers(store) == wanted
        assert store.message_store.get_max_phy_offset() == ledger.ends[-1]
        first = next(iter(store.read("a", 0)))
        assert store.message_store.get_earliest_message_time() == first.store_timestamp
        (one,) = store.query("b", "k5")
        assert one.body == b"body 5 " * 5
        assert store.get(one.phy_offset) == one
        check(store)
        assert [m.body for m in store.read("a", 0, where="n = '6'")] == [b"body 6 " * 6]
    assert digest(path) == before


def test_a_dledger_log_with_its_queues_is_read(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], tmp_path: Path
) -> None:
    """The queues of a broker name records by pos + 48, and sizes without the header."""
    path, wanted = filled
    places = {}
    ledger = Ledger(path)
    plain = 0
    for record in records(path):
        (phy,) = struct.unpack_from(">q", record, 28)
        places[phy] = ledger.append(record)
        plain += len(record)
    ledger.write(COUNT - 1)
    shutil.rmtree(path / "commitlog")
    shutil.rmtree(path / "index")
    (path / "checkpoint").unlink()
    for file in (path / "consumequeue").rglob("0*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            for at in range(0, len(data), 20):
                phy, size = struct.unpack_from(">qi", data, at)
                if size > 0:
                    struct.pack_into(">q", data, at, places[phy])
            file.write_bytes(data)
    before = digest(path)
    with opened(path) as store:
        assert answers(store) == wanted
        assert {one.kind for one in store.verify().problems} <= {"index"}  # it has no file
        plan = store.message_store.plan
        assert plan is not None and not plan.repairs and not plan.broken
    assert digest(path) == before


@pytest.mark.parametrize("committed", [-1, 0, 50, COUNT - 2])
def test_entries_that_are_not_committed_are_not_read(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], committed: int
) -> None:
    path, _ = filled
    as_dledger(path, committed)
    with opened(path) as store:
        assert committed < 0 or store.verify().recovery["ended_by"] == "no later entry is committed"
        found = [m for topic in store.topics() for m in store.read(topic, None)]
        assert sorted(int(m.properties["n"]) for m in found) == list(range(committed + 1))


@pytest.mark.parametrize("damage", ["checkpoint", "text", "index", "number"])
def test_without_a_committed_index_all_entries_are_read(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], damage: str
) -> None:
    path, wanted = filled
    ledger = as_dledger(path, None if damage == "checkpoint" else 50)
    if damage == "text":
        (ledger.node / "checkpoint").write_text("committedIndex=x\n")
    if damage == "index":
        shutil.rmtree(ledger.node / "index")
    if damage == "number":
        (ledger.node / "checkpoint").write_text("committedIndex=999999\n")
    with opened(path) as store:
        assert answers(store) == wanted


@pytest.mark.parametrize("last", [b"\0\0\0\1\0\0\0\x99", b"\0\0\0\1" + b"\xff" * 60, b"junk" * 20])
def test_a_torn_last_entry_ends_the_log(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], last: bytes
) -> None:
    path, wanted = filled
    ledger = as_dledger(path, None, last=last)
    with opened(path) as store:
        assert answers(store) == wanted
        assert store.message_store.get_max_phy_offset() == ledger.ends[-1]


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("field", [0, 4, 24, 44, 48, 76])
def test_a_damaged_entry_is_stepped_over_or_ends_the_log(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], field: int
) -> None:
    path, _ = filled
    ledger = as_dledger(path, COUNT - 1)
    first = ledger.node / "data" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    at = ledger.ends[4]
    data[at + field : at + field + 4] = b"\x7f\x01\x02\x03"
    first.write_bytes(data)
    with opened(path) as store:
        found = sorted(
            int(m.properties["n"])
            for topic in store.topics()
            for m in store.read(topic, None, on_corrupt="skip")
        )
    assert found[:5] == list(range(5))


def test_a_mixed_log_is_read(filled: tuple[Path, dict[str, list[tuple[Any, ...]]]]) -> None:
    """A store that was turned into DLedger mode keeps its plain files, which end with a BLANK."""
    path, wanted = filled
    found = list(records(path))
    shutil.rmtree(path / "commitlog")
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "commitlog").mkdir()
    plain = b"".join(found[:10])
    left = FILE_SIZE - len(plain)
    assert left > 8
    blank = struct.pack(">i", left) + bytes.fromhex("CBD43194") + bytes(left - 8)
    (path / "commitlog" / f"{0:020d}").write_bytes(plain + blank)
    ledger = Ledger(path, FILE_SIZE)
    for record in found[10:]:
        ledger.append(record)
    ledger.write(COUNT - 11)
    with opened(path) as store:
        assert answers(store) == wanted
        check(store)


def test_a_dledger_log_is_not_written(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]],
) -> None:
    path, _ = filled
    as_dledger(path, COUNT - 1)
    before = digest(path)
    with pytest.raises(StoreFormatError, match=r"DLedger.*read_only"):
        pyrocketstore.open(path, **SIZES_DLEDGER)
    config = pyrocketstore.MessageStoreConfig().at_root(path)
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match="DLedger"):
            pyrocketstore.DefaultMessageStore(config, read_only=read_only).load()
    assert digest(path) == before


def test_several_nodes_need_a_name(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]],
) -> None:
    path, wanted = filled
    as_dledger(path, COUNT - 1)
    (path / "dledger-n1" / "data").mkdir(parents=True)
    with pytest.raises(StoreFormatError, match="dledger-n0, dledger-n1"):
        opened(path)
    with opened(path, dleger_self_id="n0") as store:
        assert answers(store) == wanted


def test_a_refresh_finds_new_entries(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]],
) -> None:
    path, wanted = filled
    ledger = as_dledger(path, 50)
    with opened(path) as store:
        assert sum(map(len, answers(store).values())) == 51
        ledger.write(COUNT - 1)
        assert store.refresh() > 0
        assert answers(store) == wanted


def test_the_commands_read_a_dledger_log(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    from click.testing import CliRunner

    from pyrocketstore.cli.app import app

    path, wanted = filled
    as_dledger(path, COUNT - 1)
    sizes = path.parent / "broker.conf"
    sizes.write_text("maxHashSlotNum=500\nmaxIndexNum=2000\n")
    words = ["--config", str(sizes), "--json"]
    run = CliRunner().invoke(app, ["cat", str(path), "a", "--queue", "0", *words])
    assert run.exit_code == 0, run.output
    lines = [json.loads(line) for line in run.output.splitlines()]
    assert [line["queue_offset"] for line in lines] == [row[3] for row in wanted["a/0"]]
    for command in ("info", "dump", "verify"):
        run = CliRunner().invoke(app, [command, str(path), *words[: 2 if command == "dump" else 3]])
        if command == "verify":
            assert "for writing once" not in run.output
            assert "the broker that writes this store" in run.output
        if command == "info":
            assert "not complete" not in run.output
        # The queues have no files.
        assert run.exit_code == (1 if command == "verify" else 0), run.output


def test_a_log_whose_first_file_has_expired_is_read(tmp_path: Path) -> None:
    """Its queues begin with a gap, and have no files: they are made record by record."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for _ in range(100):
            store.put("T", bytes(700))
    ledger = as_dledger(tmp_path, 99)
    first = ledger.node / "data" / f"{0:020d}"
    first.unlink()
    kept = [n for n, end in enumerate(ledger.ends) if end > FILE_SIZE]
    with opened(tmp_path) as store:
        assert [m.queue_offset for m in store.read("T")] == kept


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_a_wrong_queue_offset_hides_no_other_message(tmp_path: Path, bit: int) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(60):
            store.put("T", bytes(700), queue_id=number % 2)
    ledger = as_dledger(tmp_path)

    def read() -> set[int]:
        with opened(tmp_path) as store:
            return {m.phy_offset for q in store.queues("T") for m in store.read("T", q)}

    full = sorted(read())
    assert len(full) == 60
    path = ledger.node / "data" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[full[10] + 20 + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    assert len(read() & set(full)) >= 58


def test_damage_before_the_committed_end_is_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    ledger = as_dledger(tmp_path, COUNT - 1)
    path = ledger.node / "data" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[ledger.ends[4] + 48 + 4] ^= 0xFF
    path.write_bytes(data)
    with (
        pytest.warns(pyrocketstore.StoreWarning, match="though valid records follow"),
        pytest.warns(pyrocketstore.StoreWarning, match="are committed"),
        opened(tmp_path) as store,
    ):
        assert len([m for topic in store.topics() for m in store.read(topic, None)]) == 5


@pytest.mark.parametrize("node", ["nothing", "a file", "a link", "no data"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_node_without_data_is_refused(tmp_path: Path, node: str, read_only: bool) -> None:
    fill(tmp_path)
    shutil.rmtree(tmp_path / "commitlog")
    path = tmp_path / "dledger-n0"
    if node == "a file":
        path.write_bytes(b"")
    elif node == "a link":
        path.symlink_to("/nowhere/mounted")
    else:
        path.mkdir()
        if node == "no data":
            (path / "data").symlink_to("/nowhere/mounted")
    before = digest(tmp_path)
    with pytest.raises(StoreFormatError, match="dledger-n0"):
        pyrocketstore.open(tmp_path, read_only=read_only, **SIZES)
    assert digest(tmp_path) == before


def test_a_node_of_another_name_is_refused(
    filled: tuple[Path, dict[str, list[tuple[Any, ...]]]],
) -> None:
    path, _ = filled
    as_dledger(path, COUNT - 1)
    with pytest.raises(StoreFormatError, match=r"dledger-n0.*not 'n7'"):
        opened(path, dleger_self_id="n7")


@pytest.mark.parametrize("killed", [False, True])
def test_a_queue_of_a_long_topic_is_refused_before_anything_is_written(
    tmp_path: Path, killed: bool
) -> None:
    fill(tmp_path)
    (tmp_path / "consumequeue" / LONG_TOPIC / "0").mkdir(parents=True)
    if killed:
        (tmp_path / "abort").touch()
    before = digest(tmp_path)
    with pytest.raises(StoreFormatError, match=r"5\.x"):
        pyrocketstore.open(tmp_path, **SIZES)
    assert digest(tmp_path) == before
