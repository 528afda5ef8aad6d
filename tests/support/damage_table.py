"""Every file of a store, damaged in each way, and what the commands and openings do about it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

import pyrocketstore
from pyrocketstore.cli.app import app
from pyrocketstore.system.env import Env
from support.broken_env import broken

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 20,
    "max_index_num": 100,
}
EXT: dict[str, Any] = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 2048,
    "bit_map_length_consume_queue_ext": 64,
}
CONF = """
mappedFileSizeCommitLog=8192
mappedFileSizeConsumeQueue=400
maxHashSlotNum=20
maxIndexNum=100
"""
CONF_EXT = """
enableConsumeQueueExt=true
mappedFileSizeConsumeQueueExt=2048
bitMapLengthConsumeQueueExt=64
"""
COUNT = 320
BEGIN_MS = 1_700_000_000_000
TOPIC = "t"
#: With ext units; with filters of consumers and removed messages; with neither.
KINDS = ("ext", "filtered", "plain")
#: A topic of which messages were removed, though the log has them.
TRIMMED = "trimmed"

AND_BACKUP = " and its backup"

#: The files: name in the table, pattern, which of the files with that pattern.
FILES: tuple[tuple[str, str, int], ...] = (
    ("`commitlog`, first file", "commitlog/*", 0),
    ("`commitlog`, middle file", "commitlog/*", 2),
    ("`commitlog`, last file but one", "commitlog/*", -2),
    ("`commitlog`, last file", "commitlog/*", -1),
    ("`consumequeue`, first file of a queue", "consumequeue/t/0/*", 0),
    ("`consumequeue`, last file of a queue", "consumequeue/t/0/*", -1),
    ("`consumequeue_ext`, a file", "consumequeue_ext/t/0/*", 0),
    ("`index`, first file", "index/*", 0),
    ("`index`, last file", "index/*", -1),
    ("`checkpoint`", "checkpoint", 0),
    ("`abort`", "abort", 0),
    ("`lock`", "lock", 0),
    ("`sync_point`", "sync_point", 0),
    ("`lost_messages`", "lost_messages", 0),
    ("`config/topics.json`", "config/topics.json", 0),
    ("`config/consumerOffset.json`", "config/consumerOffset.json", 0),
    ("`config/delayOffset.json`", "config/delayOffset.json", 0),
    ("`config/subscriptionGroup.json`", "config/subscriptionGroup.json", 0),
    ("`config/consumerFilter.json`", "config/consumerFilter.json", 0),
    (f"`config/consumerFilter.json`{AND_BACKUP}", "config/consumerFilter.json", 0),
    ("`config/topicMinOffset.json`", "config/topicMinOffset.json", 0),
    (f"`config/topicMinOffset.json`{AND_BACKUP}", "config/topicMinOffset.json", 0),
    ("`config/topics.json.bak`", "config/topics.json.bak", 0),
)
DAMAGES = ("missing", "empty", "zeros", "random", "one flipped bit", "cut", "from another store")
#: Files that are derived from the log: they refuse no opening, and no message depends on them.
DERIVED = tuple(name for name, _, _ in FILES if not name.startswith(("`commitlog", "`config")))


#: Topic, queue id, queue offset and body.
Message = tuple[str, int, int, bytes]


class Outcome(NamedTuple):
    """The cells of one row."""

    info: str
    verify: str
    read_only: str
    writable: str


class Made(NamedTuple):
    """A store that the damage is done to."""

    root: Path
    conf: Path
    settings: dict[str, Any]
    messages: list[Message]
    #: physical offset of each
    positions: list[int]


def kind_of(name: str) -> str:
    """Return which kind of store has a file: one of KINDS."""
    if "Filter" in name or "MinOffset" in name:
        return "filtered"
    return "ext" if "ext" in name else "plain"


def make_store(root: Path, mark: bytes, kind: str) -> Made:
    """Make a store by a clock of its own, closed cleanly."""
    ext = kind == "ext"
    settings = SIZES | (EXT if ext else {})
    env = Env()
    now = [BEGIN_MS]

    def clock(_original: Callable[[], int]) -> int:
        now[0] += 1
        return now[0]

    with (
        broken(env, "now_ms", clock),
        pyrocketstore.open(root, env=env, **settings) as store,
    ):
        if kind == "filtered":
            for number in range(10):
                store.put(TRIMMED, b"old %d" % number, keys=f"r{number}")
            store.trim(TRIMMED, before=now[0] + 1000)
            store.consumer("filtered", TOPIC, where="a > 5").close()
        for number in range(COUNT):
            body = mark + b"%d " % number * 20
            store.put(TOPIC, body, queue_id=number % 2, tags="A", keys=f"k{number}")
        store.wait_dispatched()
        store.flush()
        with store.consumer("group", TOPIC) as consumer:
            consumer.poll(10, timeout=0)
            consumer.commit()
    # The middle file is before the last three, which an opening scans.
    assert len(list((root / "commitlog").iterdir())) > 6
    conf = root.parent / f"{root.name}.conf"
    conf.write_text(CONF + (CONF_EXT if ext else ""))
    with pyrocketstore.open(root, read_only=True, **settings) as store:
        places = {(m.queue_id, m.queue_offset): m.phy_offset for m in store.read(TOPIC, None)}
        messages = read(store)
    assert {message[0] for message in messages} == {TOPIC}
    return Made(root, conf, settings, messages, [places[m[1:3]] for m in messages])


def read(store: pyrocketstore.Store) -> list[Message]:
    """Return the readable messages, by topic, queue and offset."""
    found: list[Message] = []
    for topic in (TOPIC, TRIMMED):
        with contextlib.suppress(pyrocketstore.UnknownTopicError):
            found += [
                (topic, m.queue_id, m.queue_offset, m.body)
                for m in store.read(topic, None, on_corrupt="skip")
                if m.is_crc_valid
            ]
    return sorted(found)


def path_of(root: Path, pattern: str, which: int) -> Path:
    """Return the file of a pattern; a file that a closed store does not have, by its name."""
    return sorted(root.glob(pattern))[which] if "*" in pattern else root / pattern


def do_damage(path: Path, other: Path, damage: str) -> None:
    """Damage a file; `other` is its counterpart in another store."""
    data = path.read_bytes() if path.exists() else b"4711" * 8
    used = len(data.rstrip(b"\0"))
    if damage == "missing":
        path.unlink(missing_ok=True)
        return
    if damage == "empty":
        data = b""
    elif damage == "zeros":
        data = bytes(len(data))
    elif damage == "random":
        data = random.Random(7).randbytes(len(data))
    elif damage == "one flipped bit":
        at = min(len(data) - 1, used // 2)
        data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] if data else b"\x10"
    elif damage == "cut":
        data = data[: max(1, used // 2)]
    else:
        data = other.read_bytes() if other.exists() else b"1234" * 8
    path.write_bytes(data)


def digest(root: Path) -> dict[str, str]:
    """Return the hash of each file."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def command(name: str, made: Made, root: Path) -> tuple[str, list[str]]:
    """Run a command; return its cell and the kinds of its problems."""
    result = CliRunner().invoke(app, [name, str(root), "--config", str(made.conf), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1) and "Traceback" not in result.output
    if "Error: " in result.stderr:
        return "refuses", []
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    kinds = sorted({line["problem"]["kind"] for line in lines if "problem" in line})
    if result.exit_code == 0:
        return ("warns" if "warning: " in result.stderr else "ok"), kinds
    return "reports" + (f": {', '.join(kinds)}" if kinds else ""), kinds


class _Warned(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def opening(made: Made, root: Path, *, read_only: bool) -> tuple[str, list[Any]]:
    """Open the store, read and close it; return the cell and the messages."""
    handler = _Warned()
    log = logging.getLogger("pyrocketstore")
    log.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with pyrocketstore.open(root, read_only=read_only, **made.settings) as store:
                messages = read(store)
    except pyrocketstore.StoreError:
        return "refuses", []
    finally:
        log.removeHandler(handler)
    cell = "warns" if warned or handler.count else "ok"
    return cell, messages


def outcome_of(
    name: str, damage: str, made: Made, other: Made, work: Path
) -> tuple[Outcome, list[str]]:
    """Return the row of a damage, and the promises that it breaks."""
    pattern, which = next(file[1:] for file in FILES if file[0] == name)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(made.root, work)
    path = path_of(work, pattern, which)
    do_damage(path, path_of(other.root, pattern, which), damage)
    if name.endswith(AND_BACKUP):
        backup = f"{pattern}.bak"
        do_damage(work / backup, other.root / backup, damage)
    faults = []
    before = digest(work)
    info, _ = command("info", made, work)
    verify, _ = command("verify", made, work)
    read_only, seen = opening(made, work, read_only=True)
    if digest(work) != before:
        faults.append("a reader has changed the store")
    writable, after = opening(made, work, read_only=False)
    is_lost = writable != "refuses" and not set(after) >= set(made.messages)
    if writable == "refuses" and digest(work).keys() - {"lock"} != before.keys() - {"lock"}:
        faults.append("a refused opening has changed the store")
    if name in DERIVED:
        if writable == "refuses" or read_only == "refuses":
            faults.append("a derived file refuses an opening")
    elif is_lost:
        kept = b"".join(f.read_bytes() for f in (work / ".broken").rglob("*") if f.is_file())
        first = int(path.name) if path.name.isdigit() else -1
        others = [
            message
            for message, position in zip(made.messages, made.positions, strict=True)
            if position - position % SIZES["mapped_file_size_commit_log"] != first
        ]
        if any(message not in after and message[3] not in kept for message in others):
            faults.append("an opening has lost intact messages")
    if writable != "refuses":
        again, _ = command("verify", made, work)
        if verify.startswith("reports"):
            writable += ", repairs" if not again.startswith("reports") else ", verify still reports"
        writable += returned(after, made)
        if is_lost and name in DERIVED and built_again(made, work) != made.messages:
            faults.append("messages of the log are lost though only a derived file was damaged")
    if read_only != "refuses":
        read_only += returned(seen, made)
    return Outcome(info, verify, read_only, writable), faults


def returned(messages: list[Message], made: Made) -> str:
    """Return the end of a cell: whether messages are lost, or removed ones are found again."""
    if not set(messages) >= set(made.messages):
        return ", returns fewer messages"
    return ", returns removed messages" if messages != made.messages else ""


def built_again(made: Made, root: Path) -> list[Any]:
    """Return the messages after the remedy of verify for units of queues."""
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    return opening(made, root, read_only=False)[1]


def rows(found: dict[tuple[str, str], Outcome], name: str) -> Iterator[tuple[list[str], Outcome]]:
    """Yield the damages of a file with one outcome together, in the order of DAMAGES."""
    grouped: dict[Outcome, list[str]] = {}
    for damage in DAMAGES:
        grouped.setdefault(found[name, damage], []).append(damage)
    yield from ((damages, outcome) for outcome, damages in grouped.items())


HEAD = "| file | damage | `info` | `verify` | `open`, read-only | `open`, for writing |"


def table(found: dict[tuple[str, str], Outcome]) -> str:
    """Return the table of the page."""
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for name, _, _ in FILES:
        for damages, outcome in rows(found, name):
            lines.append(f"| {name} | {', '.join(damages)} | {' | '.join(outcome)} |")
    return "\n".join(lines) + "\n"


def parsed(page: str) -> dict[tuple[str, str], Outcome]:
    """Return the outcomes of a page."""
    found = {}
    for line in page[page.index(HEAD) :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, damages, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {(name, damage): Outcome(*cells) for damage in damages.split(", ")}
    return found
