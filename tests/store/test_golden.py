"""Goal: answer as RocketMQ 4.9.3 does over its own stores, and leave them untouched.
Method: dump each golden store and compare with 4.9.3's answers line by line; where 4.9.3 lost
something that the log still has, ask the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import compare_lines, message_lines
from support.golden_stores import GOLDEN, LOST, NAMES, UNCLEAN, expected_lines, scan_log, unpack
from support.snapshot import snapshot


def dump(name: str, store: Path) -> list[str]:
    config, warnings = MessageStoreConfig.from_broker_conf(GOLDEN / f"{name}.conf", root=store)
    assert not warnings
    omitted: list[str] = []
    lines = list(dump_lines(store, config, GOLDEN / f"{name}.tsv", omitted.append))
    assert omitted == []
    return lines


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
