"""Goal: a command reports each damage once, with what is lost, and exits with 1. Method: damage
copies of a store of twelve log files, and run the commands on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pyrocketstore
from pyrocketstore.cli.app import app
from pyrocketstore.cli.output import time_text

LOG_SIZE, QUEUE_SIZE, COUNT = 1 << 14, 400, 300
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": QUEUE_SIZE,
    "max_hash_slot_num": 50,
    "max_index_num": 101,
}
READING = (["info"], ["cat", "T"], ["verify"], ["dump"], ["query", "T", "k299"])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damage") / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        for i in range(COUNT):
            store.put("T", bytes(500), queue_id=i % 2, keys=f"k{i}")
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=50\nmaxIndexNum=101\n")
    return Path(shutil.copytree(filled, tmp_path / "store"))


def run(root: Path, command: str, *words: str) -> Result:
    conf = str(root.parent / "broker.conf")
    return CliRunner().invoke(app, [command, str(root), *words, "--config", conf])


def log_file(root: Path, number: int) -> Path:
    return root / f"commitlog/{number * LOG_SIZE:020d}"


def queue_file(root: Path, number: int) -> Path:
    return root / f"consumequeue/T/0/{number * QUEUE_SIZE:020d}"


def flip(path: Path, at: int, bits: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, 260)


def lines_about(result: Result, path: Path) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith(f"warning: {path}: ")]


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_damage_at_the_end_of_the_log_is_one_line(root: Path, words: list[str]) -> None:
    """The file after the damaged one is intact: no line is about it."""
    flip(log_file(root, 10), 100)
    result = run(root, *words)
    (line,) = lines_about(result, log_file(root, 10))
    assert "the log ends before byte 0 (body CRC does not match), though valid" in line
    assert log_file(root, 11).name not in result.stderr
    assert result.stderr.count("valid records follow") == 1
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (lambda root: flip(log_file(root, 10), 100), f"commitlog/{10 * LOG_SIZE:020d}"),
        (lambda root: cut(log_file(root, 5)), f"commitlog/{5 * LOG_SIZE:020d}"),
        (lambda root: cut(queue_file(root, 2)), f"consumequeue/T/0/{2 * QUEUE_SIZE:020d}"),
    ],
    ids=["CRC", "log", "queue"],
)
def test_a_process_prints_one_line(root: Path, damage: Callable[[Path], None], path: str) -> None:
    """Without a handler for log lines, which pytest has, Python itself prints them."""
    damage(root)
    words = ["info", str(root), "--config", str(root.parent / "broker.conf")]
    done = subprocess.run(
        [sys.executable, "-m", "pyrocketstore", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {root}/{path}: ")


def test_a_log_that_ends_in_the_file_before_valid_records(root: Path) -> None:
    """The last record of a file is damaged: the log ends in that file, not in the next one."""
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        offsets = [message.phy_offset for message in store.read("T")]
    last = max(offset for offset in offsets if offset < 11 * LOG_SIZE)
    flip(log_file(root, 10), last - 10 * LOG_SIZE + 100)
    result = run(root, "info")
    (line,) = lines_about(result, log_file(root, 10))
    assert f"the log ends before byte {last - 10 * LOG_SIZE} " in line


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
@pytest.mark.parametrize("path", ["commitlog/5", "commitlog/10", "consumequeue/T/0/2"])
def test_a_truncated_file_is_one_line(root: Path, path: str, words: list[str]) -> None:
    folder, _, number = path.rpartition("/")
    is_log = folder == "commitlog"
    damaged = (log_file if is_log else queue_file)(root, int(number))
    cut(damaged)
    result = run(root, *words)
    found = lines_about(result, damaged)
    assert len(found) == (0 if words[0] == "dump" and not is_log else 1), result.stderr
    assert all("the file has 260 bytes" in line for line in found)


def lose_last(root: Path) -> None:
    log_file(root, 11).unlink()


def lose_two(root: Path) -> None:
    log_file(root, 11).unlink()
    log_file(root, 10).unlink()


def lose_all(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "last file": (lose_last, "the log ends with this file"),
    "last two files": (lose_two, "the log ends with this file"),
    "all files": (lose_all, "the log has no file"),
    "middle file": (lambda root: log_file(root, 5).unlink(), f"{LOG_SIZE} bytes of the log are"),
    "recent file": (lambda root: log_file(root, 10).unlink(), f"{LOG_SIZE} bytes of the log are"),
    "truncated": (lambda root: cut(log_file(root, 5)), "the messages that it lacks"),
    "truncated last": (lambda root: cut(log_file(root, 11)), "the messages that it lacks"),
    "unit": (
        lambda root: flip(queue_file(root, 0), 44),
        "the unit at byte 40 names byte 67",
    ),
    "magic code": (lambda root: flip(log_file(root, 3), 4), "no valid record begins at byte 0 (T/"),
    "recent CRC": (lambda root: flip(log_file(root, 10), 100), "valid records follow"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_dump_reports_what_it_omits(root: Path, name: str) -> None:
    damage, text = DAMAGE[name]
    damage(root)
    result = run(root, "dump")
    assert result.exit_code == 1
    omitted = [line for line in result.stderr.splitlines() if "not in this dump" in line]
    assert len(omitted) == 1 and text in omitted[0], result.stderr


def lose_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/T/1")


def lose_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/old")


def zero_file(root: Path) -> None:
    queue_file(root, 0).write_bytes(bytes(QUEUE_SIZE))


def zero_topic(root: Path) -> None:
    (root / f"consumequeue/old/0/{0:020d}").write_bytes(bytes(QUEUE_SIZE))


@pytest.fixture
def with_old(tmp_path: Path) -> Path:
    """A store with a topic whose messages are only in files that no opening scans."""
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=50\nmaxIndexNum=101\n")
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        for _ in range(10):
            store.put("old", bytes(500))
        for i in range(COUNT):
            # The queue T/1 ends before the files that an opening scans.
            store.put("T", bytes(500), queue_id=i % 2 if i < COUNT // 2 else 0)
    return root


@pytest.mark.parametrize(
    ("damage", "count"),
    [(lose_queue, COUNT // 4), (lose_topic, 10), (zero_file, 20), (zero_topic, 10)],
    ids=["queue", "topic", "zero file", "zero topic"],
)
def test_dump_reports_messages_without_units(
    with_old: Path, damage: Callable[[Path], None], count: int
) -> None:
    damage(with_old)
    result = run(with_old, "dump")
    queue = {lose_queue: "T/1", zero_file: "T/0"}.get(damage, "old/0")
    text = f"{count} units are missing in queues, though the log has the messages: {queue} ({count}"
    (line,) = [line for line in result.stderr.splitlines() if "not in this dump" in line]
    assert text in line and result.exit_code == 1
    assert result.stdout.count('{"message"') == COUNT + 10 - count


@pytest.mark.parametrize("queues", [10, 11, 13])
def test_dump_names_the_first_queues_with_missing_units(tmp_path: Path, queues: int) -> None:
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=50\nmaxIndexNum=101\n")
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        for i in range(queues + 1):
            store.put("old", b"x", queue_id=i % queues)
        for _ in range(COUNT // 2):
            store.put("T", bytes(500))
    lose_topic(root)
    result = run(root, "dump")
    (line,) = [line for line in result.stderr.splitlines() if "not in this dump" in line]
    names = "old/0 (2), " + ", ".join(f"old/{i} (1)" for i in range(1, 10))
    more = {10: "", 11: ", and 1 more queue", 13: ", and 3 more queues"}[queues]
    assert f" messages: {names}{more}; they are not in this dump" in line


@pytest.mark.parametrize("damage", [lose_topic, zero_topic], ids=["topic", "zero topic"])
def test_cat_of_a_topic_without_units_warns(with_old: Path, damage: Callable[[Path], None]) -> None:
    assert run(with_old, "cat", "old").stderr == ""
    assert run(with_old, "cat", "old", "--tags", "none").stderr == ""
    damage(with_old)
    result = run(with_old, "cat", "old")
    assert "the topic 'old' has no units below `consumequeue`" in result.stderr
    assert result.stderr.count("warning: ") == 1 and "`verify`" in result.stderr
    assert run(with_old, "verify").exit_code == 1


def test_dump_of_an_undamaged_store(root: Path) -> None:
    result = run(root, "dump")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count('{"message"') == COUNT


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: cut(log_file(root, 5)),
        lambda root: cut(queue_file(root, 2)),
        lambda root: cut(min((root / "index").iterdir())),
        lambda root: log_file(root, 5).unlink(),
        lambda root: log_file(root, 10).unlink(),
        lose_last,
    ],
    ids=["log", "queue", "index", "middle file", "recent file", "last file"],
)
def test_info_exits_with_1_if_it_reports_damage(root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)
    result = run(root, "info")
    assert result.exit_code == 1
    assert result.stderr.count("warning: ") == 1


def test_a_query_that_lacks_the_geometry_names_the_option(root: Path) -> None:
    for path in sorted((root / "index").iterdir())[1:]:
        with path.open("ab") as file:
            file.write(bytes(7))
    result = CliRunner().invoke(app, ["query", str(root), "T", "k1"])
    assert result.exit_code == 1
    assert "maxHashSlotNum" in result.stderr and "--config names the broker.conf" in result.stderr


def test_verify_prints_each_row_once_and_a_dash_for_no_value(root: Path) -> None:
    cut(queue_file(root, 2))
    rows = [line.split("\t") for line in run(root, "verify", "--details").stdout.splitlines()]
    names = [row[0] for row in rows if len(row) == 2]
    assert len(names) == len(set(names))
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    assert [facts[name] for name in ("index unchecked", "broken", "missing first file")] == [
        "-"
    ] * 3
    (problem,) = [row for row in rows if row[-1] == "1" and row[0] == "queue"]
    assert problem[2] == "-"


def test_verify_prints_lists_as_text(root: Path) -> None:
    """A line for each file; JSON keeps the lists."""
    for number in (2, 4):
        cut(queue_file(root, number))
    queue_file(root, 0).with_name("0" * 20).unlink()
    flip(log_file(root, 10), 100)
    rows = [line.split("\t") for line in run(root, "verify", "--details").stdout.splitlines()]
    reason = f"the file has 260 bytes and must have {QUEUE_SIZE}"
    assert [row[1] for row in rows if row[0] == "mismatched"] == [
        f"{queue_file(root, number)}: {reason}" for number in (2, 4)
    ]
    broken = [row[1] for row in rows if row[0] == "broken"]
    assert broken[0] == f"{log_file(root, 10)} at byte 0: {LOG_SIZE} bytes"
    assert broken[1].startswith(f"{log_file(root, 11)} at byte 0: ") and len(broken) == 2
    assert ["missing first file", "T/0"] in rows
    lines = run(root, "verify", "--json").stdout.splitlines()
    (recovery,) = [row["recovery"] for row in map(json.loads, lines) if "recovery" in row]
    assert recovery["mismatched"] == [[str(queue_file(root, n)), reason] for n in (2, 4)]
    assert recovery["broken"][0] == [str(log_file(root, 10)), 0, LOG_SIZE]
    assert recovery["missing_first_file"] == [["T", 0]]


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("which", ["truncated", "wrong unit at the end"])
def test_verify_advises_one_opening_where_one_is_enough(root: Path, which: str) -> None:
    if which == "truncated":
        cut(queue_file(root, 2))
    else:
        count = len(queue_file(root, 7).read_bytes().rstrip(b"\0")) // 20
        flip(queue_file(root, 7), count * 20 + 4)
    result = run(root, "verify")
    assert result.exit_code == 1
    assert "`abort`" not in result.stderr and "for writing once" in result.stderr
    with pyrocketstore.open(root, **SETTINGS):
        pass
    assert run(root, "verify").exit_code == 0


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize(("number", "is_scanned"), [(5, False), (10, True)])
def test_the_advice_for_a_truncated_log_file_is_true(
    root: Path, number: int, is_scanned: bool
) -> None:
    """The log ends in a file that recovery scans; an earlier file loses only its messages."""
    cut(log_file(root, number))
    with pytest.raises(pyrocketstore.StoreCorruptionError) as caught:
        pyrocketstore.open(root, **SETTINGS)
    advice = str(caught.value)
    assert "If the next opening scans this file (after a clean stop one of the last 3" in advice
    assert "are moved to `.broken`" in advice and "only the messages that the file lacks" in advice
    assert "save first the messages that such an opening reads" in advice
    assert "gives up the messages that it lacks" in advice and "all later messages too" in advice
    os.truncate(log_file(root, number), LOG_SIZE)
    with pyrocketstore.open(root, **SETTINGS) as store:
        end = store.message_store.get_max_phy_offset()
        damaged_bytes = store.verify().damaged_bytes
    assert (end == number * LOG_SIZE) == is_scanned
    assert (root / ".broken").exists() == is_scanned
    assert (damaged_bytes > 0) != is_scanned


def test_verify_names_files_that_are_missing(root: Path) -> None:
    """Of the log, of a queue, and index entries without a record."""
    lose_last(root)
    text = run(root, "verify", "--details").stdout
    assert "the header's end offset " in text and " is behind the end of the log; rec" in text
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    text = run(root, "verify", "--details").stdout
    assert "entry 1 refers to physical offset 0, where the log has no record" in text


def test_units_whose_file_is_missing(root: Path) -> None:
    queue_file(root, 7).unlink()
    (root / "abort").touch()
    result = run(root, "verify")
    assert "140 to 149 are missing because their file is missing; recovery" in result.stdout
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_size_past_the_end_of_a_full_file_is_invalid(root: Path) -> None:
    """The file is not torn: it has its whole length."""
    flip(log_file(root, 3), 2, 0x7F)
    result = run(root, "verify")
    assert "invalid size: the record would continue past the end of the file" in result.stdout
    assert "torn" not in result.stdout
    result = run(root, "cat", "T")
    assert "bytes, the queue's unit has " in result.stderr and "torn" not in result.stderr


def stored(root: Path) -> list[tuple[int, str]]:
    """Return the file of the log and the store time, as text, of each message."""
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        found = sorted((m.phy_offset, m.store_timestamp) for m in store.read("T", None))
    return [(offset // LOG_SIZE, time_text(time)) for offset, time in found]


@pytest.mark.parametrize(
    ("gone", "names"),
    [
        ([5], ["{5}"]),
        ([2, 3], ["{2}, {3}"]),
        ([1, 10], ["{1}", "{10}"]),
        ([2, 3, 4, 5, 6, 7], ["{2} to {7} (6 files)"]),
        ([11], ["{11}"]),
        ([9, 10, 11], ["{9}, {10}, {11}"]),
        ([4, 8, 9, 10, 11], ["{4}", "{8} to {11} (4 files)"]),
    ],
    ids=str,
)
def test_verify_names_the_missing_files_of_the_log(
    root: Path, gone: list[int], names: list[str]
) -> None:
    """Never an intact file: each hole, and the end, with the times around it."""
    times = stored(root)
    last = times[-1][0]
    assert last == 11
    for number in gone:
        log_file(root, number).unlink()
    ends = [at for at in gone if at + 1 not in gone]
    begins = [at for at in gone if at - 1 not in gone]
    files = [log_file(root, number).name for number in range(last + 1)]
    wanted = []
    for text, begin, end in zip(names, begins, ends, strict=True):
        name = text.format(*files)
        after = [time for number, time in times if number < begin][-1]
        to = "" if end == last else f" to {next(t for n, t in times if n > end)}"
        wanted.append(f"{name} (messages from {after}{to})")
    result = run(root, "verify")
    line = result.stdout.splitlines()[1].partition("\t")[2]
    assert line.split("; ")[0] == f"missing log files {', '.join(wanted)}"
    assert line.count("log files") == 1
    for text in names:
        assert text.format(*files) in result.stdout.split("to do", 1)[1]
        assert text.format(*files) in run(root, "info").stderr


def test_verify_of_a_missing_and_a_damaged_file(root: Path) -> None:
    """The file behind the hole is damaged itself."""
    flip(log_file(root, 3), 600)
    log_file(root, 2).unlink()
    line = run(root, "verify").stdout.splitlines()[1]
    assert f"missing log files {log_file(root, 2).name} (messages from 20" in line
    assert f"; log files {log_file(root, 3).name} (its first message: 20" in line
