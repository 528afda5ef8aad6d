"""Compare what `pyrocketstore dump` prints with what 4.9.3 answers (golden/README.md).

Three degrees: exact; `unclean` (queries may find more than Java, which loses index entries in a
crash); `lost` (the store was damaged: all that Java still has must be there, and more may be).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

QUERY_COUNT_MAX = 64

Line = dict[str, Any]
Messages = dict[int, list[Line]]  # by phy_offset


def compare_lines(
    expected: Iterable[str], actual: Iterable[str], *, unclean: bool = False, lost: bool = False
) -> None:
    """Raise AssertionError that names the first line that differs."""
    wanted, found = list(expected), list(actual)
    messages = _messages_by_phy_offset(found) if unclean or lost else {}
    if lost:
        _compare_lost(wanted, found)
        wanted = [line for line in wanted if line.startswith('{"query"')]
        found = [line for line in found if line.startswith('{"query"')]
    for number, (want, have) in enumerate(zip(wanted, found, strict=False), 1):
        if want == have:
            continue
        if (unclean or lost) and want.startswith('{"query"') and have.startswith('{"query"'):
            _compare_query(json.loads(want)["query"], json.loads(have)["query"], messages)
            continue
        raise AssertionError(f"line {number} differs\n  wanted {want}\n  found  {have}")
    longer = wanted if len(wanted) > len(found) else found
    assert len(wanted) == len(found), (
        f"{len(wanted)} lines wanted, {len(found)} found; the first one over is "
        f"{longer[min(len(wanted), len(found))]}"
    )


def _compare_query(want: Line, have: Line, messages: Messages) -> None:
    asked = ("topic", "key", "max_num", "begin", "end")
    assert [want[name] for name in asked] == [have[name] for name in asked], (want, have)
    limit = min(want["max_num"], QUERY_COUNT_MAX)
    offsets = have["phy_offsets"]
    where = f"\n  wanted at least {want}\n  found           {have}"
    assert offsets == sorted(offsets), f"not ascending{where}"
    assert len(offsets) <= limit, f"more than {limit} hits{where}"
    # The times of an index count from its first record in whole seconds, so that hits that lie just
    # outside depend on where the files of the index begin.
    missing = {
        hit
        for hit in set(want["phy_offsets"]) - set(offsets)
        if _may_lie_between(want["begin"], want["end"], hit, messages)
    }
    # With the limit reached, newer hits that Java lost may have pushed out older ones.
    pushed_out = len(offsets) == limit and max(missing, default=0) < min(offsets, default=0)
    assert not missing or pushed_out, f"hits missing{where}"
    for phy_offset in set(offsets) - set(want["phy_offsets"]):
        holders = messages.get(phy_offset, [])
        # Prepared messages are indexed and in no queue: nothing is known of them here.
        assert not holders or _has_key(holders[0], want["topic"], want["key"]), (
            f"{phy_offset} is not a hit{where}"
        )
    if offsets:  # without a hit nothing is said of the index
        newest = max(want["index_last_update_phyoffset"], *offsets)
        assert have["index_last_update_phyoffset"] >= newest, f"index_last_update_phyoffset{where}"


def _may_lie_between(begin: int, end: int, phy_offset: int, messages: Messages) -> bool:
    """Whether a record may have been stored in the window; of one that no queue names, the times of
    those around it say so."""
    times = {place: found[0]["store_timestamp"] for place, found in messages.items()}
    low = max((t for place, t in times.items() if place <= phy_offset), default=begin)
    high = min((t for place, t in times.items() if place >= phy_offset), default=end)
    return bool(low <= end and high >= begin)


def _compare_lost(wanted: Sequence[str], found: Sequence[str]) -> None:
    """Messages that Java still has of a damaged store are in ours, with unit and queue offset."""
    assert wanted[0] == found[0], f"wanted {wanted[0]}\nfound  {found[0]}"
    want, have = _by_queue(wanted), _by_queue(found)
    assert want.keys() <= have.keys(), f"queues missing: {want.keys() - have.keys()}"
    for key, ours in have.items():
        for message in ours["messages"]:
            is_main_queue = (message["topic"], message["queue_id"]) == key
            assert not is_main_queue or message["cq_offset"] == message["queue_offset"], message
        theirs = want.get(key)
        if theirs is None:
            continue
        if theirs["messages"] == ours["messages"]:
            assert theirs == ours, f"queue {key} differs\n  wanted {theirs}\n  found {ours}"
            continue
        our_records = {m["phy_offset"]: _without_unit(m) for m in ours["messages"]}
        for message in theirs["messages"]:
            record = our_records.get(message["phy_offset"])
            if message["cq_offset"] != message["queue_offset"]:
                # Numbered wrongly by Java, so its tags code was read from another unit, or none.
                message["tags_code"] = java_hash(message["properties"].get("TAGS", ""))
            assert record == _without_unit(message), f"wanted {message}\nfound  {record}"
        assert ours["queue"]["max_offset"] >= theirs["queue"]["max_offset"]
        assert ours["queue"]["max_physic_offset"] >= theirs["queue"]["max_physic_offset"]


def _by_queue(lines: Iterable[str]) -> dict[tuple[str, int], Line]:
    queues: dict[tuple[str, int], Line] = {}
    current: Line = {}
    for line in lines:
        ((kind, value),) = _kind_and_value(line)
        if kind == "queue":
            current = {"queue": value, "messages": [], "others": []}
            queues[value["topic"], value["queue_id"]] = current
        elif kind == "message":
            current["messages"].append(value)
        elif kind in {"get_status", "offset_by_time"}:
            current["others"].append(value)
    return queues


def _kind_and_value(line: str) -> list[tuple[str, Line]]:
    parsed = json.loads(line)
    if "get_status" in parsed:
        return [("get_status", parsed)]
    return list(parsed.items())


def _without_unit(message: Line) -> Line:
    return {name: value for name, value in message.items() if name != "cq_offset"}


def _messages_by_phy_offset(lines: Iterable[str]) -> Messages:
    found: Messages = {}
    for line in lines:
        if line.startswith('{"message"'):
            message = json.loads(line)["message"]
            found.setdefault(message["phy_offset"], []).append(message)
    return found


def _has_key(message: Line, topic: str, key: str) -> bool:
    properties = message["properties"]
    keys = [*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY", "")]
    asked = index_hash(topic, key)
    return any(index_hash(message["topic"], k) == asked for k in keys if k)


def java_hash(text: str) -> int:
    """Java's String.hashCode: a signed 32-bit number over UTF-16 units."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(topic: str, key: str) -> int:
    """The hash under which the index keeps a key, never negative."""
    positive = abs(java_hash(f"{topic}#{key}"))
    return 0 if positive >> 31 else positive


def message_lines(lines: Iterable[str]) -> list[Line]:
    """The messages of a dump, in its order."""
    return [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]


def write_queries(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """A query file: topic, key, max_num, begin and end, tab separated."""
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path
