"""Comparison of both engines over the same damage: ours has all messages that 4.9.3 kept, and each
kind of difference is a row of docs/differs.md."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from actors import ActorError, SilentError
from damaged_index import QUERY_COUNT_MAX, Index
from pyrocketstore.errors import StoreError
from pyrocketstore.files.store_checkpoint import checkpoint_damage
from support import oracle
from support.golden_lines import Line, index_hash, java_hash

# The kinds of differences.
ZERO_UNIT = "a unit that was never written is not a message"
EMPTY_FILE = "an empty last file gets no unit of zeros"
NO_RECORD = "bytes that are not a record are undecodable, not a message"
STALE_KEYS = "index entries behind the end of the log are removed"
REBUILT = "queues and index entries are rebuilt from the log"
OTHER_PLACE = "a record whose stored physicalOffset differs from its position ends the log"
NO_LENGTH = "a file of length zero is deleted"
RESTORED = "a file of units or ext units with a wrong length or name is restored from the log"
WRONG_LENGTH = "a log file of a wrong length is an error"
NO_HIT = "`queryMessage` omits every hit that is not a record"
CHAINS = "a search follows the chain of a hash slot only to smaller entry numbers"
LENGTHS = "a length is checked against the remaining bytes before it is used"
NAMES = "no two index files get one name"
REPAIRED = "units that contradict the log are repaired"
CHECKPOINT = "a damaged `checkpoint` counts as missing"
_RECORDS = "Damaged records, or missing ranges of the log, where no opening scans it"
_UNITS = "Damaged, exchanged or copied units"
#: The first cell of the row that explains each kind.
ROWS = {
    ZERO_UNIT: _UNITS,
    EMPTY_FILE: _UNITS,
    NO_RECORD: _RECORDS,
    STALE_KEYS: "The log has lost its end or all its files, or is damaged where an opening scans"
    " it",
    REBUILT: "Missing files of queues or of the index, a whole directory, or an index file without"
    " its header",
    OTHER_PLACE: _RECORDS,
    NO_LENGTH: "A power cut",
    RESTORED: "A file of units or ext units with a wrong length or name",
    WRONG_LENGTH: "A log file of a wrong length or name, or a length that nothing proves",
    NO_HIT: _RECORDS,
    CHAINS: "Damaged, cut, exchanged, renamed or foreign index files",
    LENGTHS: _RECORDS,
    NAMES: "A wall clock that goes back or forward",
    REPAIRED: _UNITS,
    CHECKPOINT: "A damaged or old `checkpoint`, `sync_point`, `clean_stop` or `lost_messages`",
}


class Answer:
    """The parsed lines of a dump."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        self.queues: dict[tuple[str, int], Line] = {}
        self.messages: dict[tuple[str, int], list[Line]] = {}
        self.queries: list[Line] = []
        #: By queue and phy_offset: the queue offset of a message's unit, if units were read. The
        #: dump, like that of 4.9.3, counts from the start of a pull instead.
        self.unit_offsets: dict[tuple[str, int], dict[int, int]] = {}
        #: The physical offsets of the messages that `Store.query` finds for a topic and a key. It
        #: also reads parts of the log that no index file covers; the dump, like 4.9.3, does not.
        self.query: Callable[[str, str], set[int]] = lambda topic, key: set()
        self.undecodable = 0
        key = ("", 0)
        for line in map(json.loads, self.lines):
            if "store" in line:
                self.store = line["store"]
            elif "queue" in line:
                key = line["queue"]["topic"], line["queue"]["queue_id"]
                self.queues[key] = line["queue"]
                self.messages[key] = []
            elif "message" in line:
                self.messages[key].append(line["message"])
            elif "query" in line:
                self.queries.append(line["query"])
            self.undecodable += "undecodable" in line

    @property
    def end(self) -> int:
        """Return the end of the log."""
        return int(self.store["max_phy_offset"])


def refused(
    java: Answer | ActorError | None, ours: Answer | StoreError, root: Path, *, loops: bool = False
) -> set[str]:
    """Return the kind of a refusal by one side or by both.

    `loops`: a query of 4.9.3 followed a chain of its index that has no end.
    """
    text = str(ours) if isinstance(ours, StoreError) else ""
    if java is None and text:
        assert "the file has" in text, text
        return {WRONG_LENGTH}
    if java is None:
        files = [path for path in root.glob("c*/**/*") if path.is_file()]
        empty = [path for path in files if not path.stat().st_size]
        queues = [path for path in empty if path.parts[-4] == "consumequeue"]
        last = [path for path in empty if path == max(path.parent.iterdir())]
        if queues or last:
            return {NO_LENGTH}
        assert any(is_mismatched(path) for path in root.glob("c*/*/*/*")), "4.9.3 does not load it"
        return {RESTORED}
    assert not text, f"only 4.9.3 opens it: {text}"
    problem = str(java)
    if isinstance(java, SilentError):
        assert loops, f"no chain loops, and {problem}"
        return {CHAINS}
    if "OutOfMemoryError" in problem and "checkMessageAndReturnSize" in problem:
        return {LENGTHS}
    if "newLimit < 0" in problem and "selectMappedBuffer" in problem:
        return {LENGTHS}
    assert "IndexOutOfBounds" in problem, problem
    return {ZERO_UNIT}


def is_mismatched(path: Path) -> bool:
    """Return True if a queue file's length differs from that of most queue files."""
    sizes = Counter(each.stat().st_size for each in path.parent.parent.glob("*/*"))
    return path.stat().st_size != sizes.most_common(1)[0][0]


def differences(java: Answer, ours: Answer, log: Log, index: Index) -> set[str]:
    """Return the kinds of the differences.

    Raises AssertionError for any other difference: our answer lacks data of 4.9.3, or has data that
    the damaged files do not contain.
    """
    if _comparable_lines(java, ours) == _comparable_lines(ours, ours):
        return set()
    rows = set()
    if java.store != ours.store:
        assert java.store["min_phy_offset"] == ours.store["min_phy_offset"]
        rows.add(_compare_ends(java, ours, log))
    if java.undecodable > ours.undecodable:
        rows.add(ZERO_UNIT)
    for key in ours.queues:
        _check_extra_messages(key, java, ours, log)
    for key, queue in java.queues.items():
        rows |= _compare_messages(key, java, ours, log)
        if key not in ours.queues:
            continue
        rows |= _compare_ends_of_queue(key, java, ours)
        if _plain(java.messages[key]) != _plain(ours.messages[key]) or queue != ours.queues[key]:
            rows.add(REBUILT)
        if _has_other_tags(java.messages[key], ours.messages[key], log):
            rows.add(REPAIRED)
    for want, have in zip(java.queries, ours.queries, strict=True):
        if want != have:
            _check_extra_hits(want, have, ours, log, index)
            rows |= _compare_query(want, have, ours, log)
    if ours.queues.keys() - java.queues.keys():
        rows.add(REBUILT)
    assert rows, f"unexplained: {set(java.lines) ^ set(ours.lines)}"
    return rows


def _comparable_lines(answer: Answer, ours: Answer) -> list[str]:
    """Return the lines of a dump without those that say nothing about messages.

    Omitted are empty queues that our dump lacks: only the start that emptied a queue knows where it
    was cut, and our dump may follow a second start. And a pull that found only damaged units: they
    end an earlier pull of 4.9.3 if it takes them for units on disk.
    """
    omitted = [
        queue
        for key, queue in answer.queues.items()
        if key not in ours.queues and queue["max_offset"] == 0
    ]
    return [
        line
        for line in answer.lines
        if '"get_status":"MESSAGE_WAS_REMOVING"' not in line
        and json.loads(line).get("queue") not in omitted
    ]


class Log(NamedTuple):
    """The damaged log, read by the plain-Python oracle."""

    root: Path
    file_size: int

    def data(self, phy_offset: int) -> bytes:
        """Return the bytes from an offset to the end of the file."""
        position = phy_offset % self.file_size
        path = self.root / "commitlog" / f"{phy_offset - position:020d}"
        return path.read_bytes()[position:] if path.exists() else b""

    def is_record(self, phy_offset: int) -> bool:
        """Return True if a whole record is at an offset; its body may be damaged."""
        return oracle.check_record(self.data(phy_offset), check_crc=False)[0] == "ok"

    def record(self, phy_offset: int) -> oracle.Record:
        """Return the record at an offset."""
        data = self.data(phy_offset)
        size = oracle.check_record(data, check_crc=False)[1]
        return oracle.decode_record(data[:size])

    def has_key(self, phy_offset: int, topic: str, key: str) -> bool:
        """Return True if the record at an offset has a key with that hash."""
        asked = index_hash(topic, key)
        return any(index_hash(*own) == asked for own in oracle.index_keys(self.record(phy_offset)))

    def store_timestamp(self, phy_offset: int) -> int:
        """Return the store timestamp of the record at an offset."""
        return self.record(phy_offset).store_timestamp


def _compare_ends(java: Answer, ours: Answer, log: Log) -> str:
    """Accept an earlier end of ours at a record that stores another physical offset, and a later
    one where nothing says up to where the log was durable."""
    checkpoint = log.root / "checkpoint"
    if ours.end > java.end and checkpoint.exists() and checkpoint_damage(checkpoint.read_bytes()):
        return CHECKPOINT
    assert ours.end < java.end, f"4.9.3 ends at {java.end}, ours at {ours.end}"
    verdicts = [oracle.check_record(log.data(ours.end), offset)[0] for offset in (-1, ours.end)]
    assert verdicts == ["ok", "bad_offset"], f"4.9.3 ends at {java.end}, ours at {ours.end}"
    return OTHER_PLACE


def _has_other_tags(theirs: Iterable[Line], ours: Iterable[Line], log: Log) -> bool:
    """Return True if only our units have the tags codes of the records."""
    codes = {message["phy_offset"]: message["tags_code"] for message in theirs}
    # A dump that counts past a gap has the tags codes of other units behind it.
    own = [m for m in ours if m["cq_offset"] == m["queue_offset"]]
    other = [m for m in own if codes.get(m["phy_offset"], m["tags_code"]) != m["tags_code"]]
    for message in other:
        tags = log.record(message["phy_offset"]).properties_map().get("TAGS", "")
        assert message["tags_code"] == java_hash(tags), (
            f"the record has the tags {tags!r}: {message}"
        )
    return bool(other)


def _plain(messages: Iterable[Line]) -> list[Line]:
    """Return messages without the fields that the dump of 4.9.3 misnumbers after a gap."""
    return [{k: v for k, v in m.items() if k not in ("cq_offset", "tags_code")} for m in messages]


def _check_extra_messages(key: tuple[str, int], java: Answer, ours: Answer, log: Log) -> None:
    """Require that a message which 4.9.3 lacks in a queue is a record of that queue offset."""
    theirs = {message["phy_offset"] for message in java.messages.get(key, [])}
    for name in ("cq_offset", "phy_offset"):
        offsets = [message[name] for message in ours.messages[key]]
        assert offsets == sorted(set(offsets)), f"{key}: {name} does not ascend: {offsets}"
    for message in ours.messages[key]:
        at = message["phy_offset"]
        if at in theirs:
            continue
        assert at < ours.end and log.is_record(at), f"{key}: never put: {message}"
        record = log.record(at)
        where = oracle.java_text(record.topic), record.queue_id, record.queue_offset
        fields = tuple(message[name] for name in ("topic", "queue_id", "queue_offset"))
        assert fields == where, f"{key}: the log has {where}, ours {message}"
        queue_offset = ours.unit_offsets[key].get(at) if ours.unit_offsets else message["cq_offset"]
        assert (*key, queue_offset) == where, (
            f"{key}: the log has {where}, ours at {queue_offset}: {message}"
        )
        fields = message["size"], message["body_sha256_8"], message["properties"]
        assert fields == _content(record), f"{key}: the log has {_content(record)}, ours {message}"


def _content(record: oracle.Record) -> tuple[int, str, Line]:
    """Return size, body and properties in the form of a dump."""
    digest = hashlib.sha256(record.body).hexdigest()[:16] if record.body else ""
    return record.size, digest, record.properties_map()


def _check_extra_hits(want: Line, have: Line, ours: Answer, log: Log, index: Index) -> None:
    """Require that each hit which 4.9.3 lacks is a record with that key, and occurs once."""
    offsets = have["phy_offsets"]
    assert offsets == sorted(offsets), f"not ascending: {have}"
    assert len(offsets) <= min(have["max_num"], QUERY_COUNT_MAX), f"too many: {have}"
    asked = index_hash(have["topic"], have["key"])
    theirs = Counter(want["phy_offsets"])
    for hit, count in Counter(offsets).items():
        if count <= theirs[hit]:
            continue
        assert hit < ours.end and log.is_record(hit), f"{hit} is not a record: {have}"
        held = sum(index_hash(*key) == asked for key in oracle.index_keys(log.record(hit)))
        if held < count:  # the record may be damaged: an entry of the index proves the key too
            held = index.entries().count((asked, hit))
        assert count <= held, f"{hit} is {count} times a hit, not {held}: {have}"
    last = have["index_last_update_phyoffset"]
    if last > want["index_last_update_phyoffset"]:
        ends = {file.end_phy_offset for file in index.files()}
        assert last in ends or log.is_record(last), f"the index ends at no record: {have}"


def _compare_messages(key: tuple[str, int], java: Answer, ours: Answer, log: Log) -> set[str]:
    """Require each message of 4.9.3 before the end of our log, also if our queue is missing."""
    rows = set()
    mine = {message["phy_offset"]: message for message in ours.messages.get(key, [])}
    for message in java.messages[key]:
        found = mine.get(message["phy_offset"])
        if found is None and message["phy_offset"] >= ours.end:
            continue
        if found is None and not log.is_record(message["phy_offset"]):
            rows.add(NO_RECORD)
            continue
        if found is None and _is_elsewhere(message["phy_offset"], ours):
            rows.add(REPAIRED)  # the record states another queue
            continue
        assert found is not None, f"{key} lacks {message}"
        if message["size"] > message["store_size"] == found["size"]:
            message = {**message, "size": found["size"]}  # of the damaged unit, which is repaired
            rows.add(REPAIRED)
        assert _plain([found]) == _plain([message]), f"{key}: 4.9.3 {message}\nours {found}"
        if found["cq_offset"] == found["queue_offset"] and found["topic"] == key[0]:
            code = java_hash(message["properties"].get("TAGS", ""))
            assert found["tags_code"] in (code, message["tags_code"]), f"{key}: {found}"
    return rows


def _is_elsewhere(phy_offset: int, ours: Answer) -> bool:
    return any(m["phy_offset"] == phy_offset for all_ in ours.messages.values() for m in all_)


def _compare_ends_of_queue(key: tuple[str, int], java: Answer, ours: Answer) -> set[str]:
    theirs, have = java.queues[key], ours.queues[key]
    if have["max_offset"] < theirs["max_offset"] and ours.end == java.end:
        # Units of zeros, or misplaced ones behind them by 4.9.3: ours has all their messages.
        last = max((message["queue_offset"] for message in ours.messages[key]), default=-1)
        none = theirs["max_physic_offset"] == 0
        assert none or have["max_offset"] == last + 1, f"{key}: 4.9.3 {theirs}, ours {have}"
        return {EMPTY_FILE if none else REBUILT}
    return set()


def _compare_query(want: Line, have: Line, ours: Answer, log: Log) -> set[str]:
    asked = ("topic", "key", "max_num", "begin", "end")
    assert [want[name] for name in asked] == [have[name] for name in asked]
    rows = set()
    offsets = have["phy_offsets"]
    missing = {hit for hit in want["phy_offsets"] if hit < ours.end} - set(offsets)
    damaged = {hit for hit in missing if not log.is_record(hit)}
    if damaged:
        missing -= damaged
        rows.add(NO_HIT)
    # A torn entry, or a key that the record has lost: our index is built from the log.
    foreign = {h for h in missing if not log.has_key(h, want["topic"], want["key"])}
    if foreign:
        missing -= foreign
        rows.add(REBUILT)
    # Index files that 4.9.3 made in one millisecond are one file with entries of any time.
    stray = {h for h in missing if not want["begin"] <= log.store_timestamp(h) <= want["end"]}
    if stray:
        missing -= stray
        rows.add(NAMES)
    searched = missing & ours.query(want["topic"], want["key"]) if missing else set()
    if searched:
        missing -= searched
        rows.add(REBUILT)
    limit = min(want["max_num"], QUERY_COUNT_MAX)
    pushed_out = len(offsets) == limit and max(missing, default=0) < min(offsets, default=0)
    if missing and not pushed_out:
        raise AssertionError(f"hits are missing: {sorted(missing)}\n4.9.3 {want}\nours  {have}")
    if offsets != want["phy_offsets"]:
        rows.add(REBUILT)
    last = want["index_last_update_phyoffset"]
    if have["index_last_update_phyoffset"] < last:
        # Without an entry in the index: 4.9.3 found the offset of a lost record.
        held = set(want["phy_offsets"]) - damaged - stray - searched
        nothing = not held and not have["index_last_update_phyoffset"]
        assert nothing or last >= ours.end, f"4.9.3 {want}\nours  {have}"
        rows.add(STALE_KEYS)
    return rows or {REBUILT}


def counted(found: dict[str, int], rows: Iterable[str]) -> None:
    """Count the occurrences of each kind of difference."""
    for row in rows:
        found[row] = found.get(row, 0) + 1
