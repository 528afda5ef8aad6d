"""Goal: answer as RocketMQ 4.9.3 does over its own stores, and leave them untouched.
Method: dump each golden store and compare with 4.9.3's answers line by line; where 4.9.3 lost
something that the log still has, ask the log."""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden_lines import compare_lines, message_lines
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.dump import dump_lines

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
UNCLEAN = {"killed", "torn", "x-lmqkilled"}
LOST = {"x-lostfiles"}

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
TRANSACTION_MASK = 0xC
IN_QUEUE_TYPES = {0x0, 0x8}


def unpack(name: str, target: Path) -> Path:
    """Unpack a golden store, with the times of its files."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def expected_lines(name: str) -> list[str]:
    return (GOLDEN / f"{name}.jsonl").read_text(encoding="ascii").splitlines()


def dump(name: str, store: Path) -> list[str]:
    config, warnings = MessageStoreConfig.from_broker_conf(GOLDEN / f"{name}.conf", root=store)
    assert not warnings
    return list(dump_lines(store, config, GOLDEN / f"{name}.tsv"))


def snapshot(root: Path) -> list[tuple[str, int, int, str]]:
    """Every path below `root` with its mode, its time in ns, and a digest of its bytes."""
    return [
        (
            str(path.relative_to(root)),
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [root, *sorted(root.rglob("*"))]
    ]


def test_all_golden_stores_are_here():
    assert len(NAMES) == 10
    assert set(NAMES) >= UNCLEAN | LOST


@pytest.mark.parametrize("name", NAMES)
def test_dump_prints_what_the_real_store_answers(name, tmp_path):
    store = unpack(name, tmp_path)
    before = snapshot(store)
    actual = dump(name, store)
    assert snapshot(store) == before
    compare_lines(expected_lines(name), actual, unclean=name in UNCLEAN, lost=name in LOST)


def test_what_the_real_store_lost_is_found_again(tmp_path):
    store = unpack("x-lostfiles", tmp_path)
    have = {
        (m["topic"], m["queue_id"], m["cq_offset"]): m
        for m in message_lines(dump("x-lostfiles", store))
    }
    records = list(scan_log(store / "commitlog"))
    theirs = {m["phy_offset"] for m in message_lines(expected_lines("x-lostfiles"))}
    assert {record[3] for record in records} > theirs, "the store is not damaged after all"
    for topic, queue_id, queue_offset, phy_offset in records:
        assert have[topic, queue_id, queue_offset]["phy_offset"] == phy_offset
    assert len(have) == len(records)


def scan_log(commit_log: Path) -> Iterator[tuple[str, int, int, int]]:
    """(topic, queue_id, queue_offset, phy_offset) of every record that belongs in a queue."""
    for path in sorted(commit_log.iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic != MESSAGE_MAGIC:
                assert magic in {BLANK_MAGIC, 0}
                break
            queue_id, _, queue_offset, phy_offset, sys_flag = struct.unpack_from(
                ">iiqqi", data, at + 12
            )
            hosts = (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
            body = at + 68 + hosts
            topic_at = body + 4 + struct.unpack_from(">i", data, body)[0]
            topic = data[topic_at + 1 : topic_at + 1 + data[topic_at]].decode()
            if sys_flag & TRANSACTION_MASK in IN_QUEUE_TYPES:
                yield topic, queue_id, queue_offset, phy_offset
            at += size


# ---- the comparison itself can fail -------------------------------------------------------


def test_comparison_sees_a_changed_line():
    lines = expected_lines("plain")
    changed = [line.replace('"flag":0', '"flag":1', 1) for line in lines]
    with pytest.raises(AssertionError, match="line 3 differs"):
        compare_lines(lines, [*lines[:2], *changed[2:]])


@pytest.mark.parametrize("unclean", [False, True])
def test_comparison_sees_a_missing_line(unclean):
    lines = expected_lines("killed")
    with pytest.raises(AssertionError):
        compare_lines(lines, lines[:-1], unclean=unclean)
    with pytest.raises(AssertionError):
        compare_lines(lines[:-1], lines, unclean=unclean)


def edited_query(lines, edit):
    """The lines with one query changed by `edit`, the first that found something."""
    lines = list(lines)
    for number, line in enumerate(lines):
        parsed = json.loads(line)
        if parsed.get("query", {}).get("phy_offsets"):
            edit(parsed["query"]["phy_offsets"])
            lines[number] = json.dumps(parsed, separators=(",", ":"))
            return lines
    raise AssertionError("no query found anything")


@pytest.mark.parametrize("degree", ["exact", "unclean", "lost"])
def test_comparison_sees_a_missing_hit(degree):
    lines = expected_lines("killed")
    degrees = {"unclean": degree == "unclean", "lost": degree == "lost"}
    compare_lines(lines, lines, **degrees)
    with pytest.raises(AssertionError):
        compare_lines(lines, edited_query(lines, lambda hits: hits.pop()), **degrees)


def test_comparison_sees_a_false_hit():
    lines = expected_lines("killed")
    stranger = message_lines(lines)[0]["phy_offset"]
    with_stranger = edited_query(lines, lambda hits: hits.insert(0, stranger))
    with pytest.raises(AssertionError):
        compare_lines(lines, with_stranger, unclean=True)


def test_comparison_of_a_damaged_store_sees_a_lost_message():
    lines = expected_lines("x-lostfiles")
    right = [line for line in lines if '"cq_topic":"Topic-2","cq_queue_id":3,' not in line]
    where = next(i for i, line in enumerate(right) if line.startswith('{"message"'))
    with pytest.raises(AssertionError, match="Topic"):
        compare_lines(right, [*right[:where], *right[where + 1 :]], lost=True)
