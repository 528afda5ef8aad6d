"""Mutants of the small files and texts that are parsed in Python: manifests and notes of a lake,
topics.json, broker.conf, options and offsets of the Spark source, headers of index files.

Each parser may refuse a mutant with a StoreError, which names the file where there is one, and with
nothing else. A mutant is TARGET:SEED:NUMBER.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError
from pyrocketstore.index.directory import find_index_files
from pyrocketstore.index.geometry import geometry_fits
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.spark.lake.manifest import (
    DONE,
    Manifest,
    Run,
    SkippedRange,
    Split,
    SplitResult,
    read_note,
    write_note,
)
from pyrocketstore.spark.options import read_options
from pyrocketstore.spark.plan.offsets import decode_marks, decode_offset, encode_offset
from pyrocketstore.spark.task_types import Mark
from pyrocketstore.system.env import Env

SLOTS, ENTRIES = 5, 8
INDEX_SIZE = 40 + 4 * SLOTS + 20 * ENTRIES

#: Unusual JSON values.
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1 << 31, 1 << 63, -(1 << 70), 10**400, "", "x", "1", "\ud800", "\0",
    "\x1b[31m", [], [[]], [1], {}, {"": {}}, {"x": 1}, {"T": {"0": "1"}}, float("inf"),
    float("nan"), "9" * 5000,
)  # fmt: skip
#: Unusual parts of a text.
PIECES = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\\u12", b"\\", b"\n", b"\r", b"\x85", b"\xe2\x80\xa8", b"{",
    b"[" * 3000, b"}", b'"', b":", b",", b"9" * 5000, b"NaN", b"1e999", b"-", b"=", b"#",
)  # fmt: skip


# ---- mutation ------------------------------------------------------------------------------------
def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Make one to three changes of bytes, parts or length."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data = data[:at] + rng.choice(PIECES) + data[at:]
        else:
            end = min(len(data), at + rng.randint(1, 30))
            data = data[:at] + data[end:]
    return data


def mutated_value(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one part replaced, removed or moved to another name."""
    value = json.loads(json.dumps(value))
    slots = list(_slots(value))
    if not slots or rng.random() < 0.05:
        return rng.choice(ODD)
    holder, name = rng.choice(slots)
    kind = rng.randrange(5)
    if kind == 0:
        del holder[name]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(rng.choice(ODD))] = holder.pop(name)
    elif kind == 2:
        deep: Any = rng.choice(ODD)
        for _ in range(rng.choice((3, 100, 3000))):
            deep = [deep] if rng.random() < 0.5 else {"x": deep}
        holder[name] = deep
    else:
        holder[name] = rng.choice(ODD)
    return value


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in parts:
        yield value, name
        if isinstance(part, (dict, list)):
            yield from _slots(part)


def as_json(value: Any) -> str:
    """Return a mutated value as JSON; deep lists where it is too deep to be written."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 3000 + "1" + "]" * 3000


def mutated_json(rng: random.Random, lines: list[Any]) -> bytes:
    """Mutate one of several JSON lines as a value, or the text as bytes."""
    texts = [json.dumps(line) for line in lines]
    if rng.random() < 0.7:
        at = rng.randrange(len(lines))
        texts[at] = as_json(mutated_value(rng, lines[at]))
        return "\n".join(texts).encode("utf-8", "surrogatepass")
    return mutated_bytes(rng, "\n".join(texts).encode("utf-8"))


# ---- parsers -------------------------------------------------------------------------------------
class Fuzz:
    """Original files in a directory, and the calls made with a mutant of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = Env()
        self.manifest = Manifest(path / "lake")
        self.manifest.directory.mkdir(parents=True)
        split = Split(0, "b", "T", 3, 10, 20, 999)
        skipped = SkippedRange("b", "T", 3, 12, 13, 1, 100, "damaged", "/log")
        result = SplitResult(split, 9, 900, 800, ("T/a.parquet",), 1, (skipped,))
        marks = {"b": {"T": {3: Mark(19, 1900, 100, 17, None)}}}
        run = Run(
            1, DONE, 5, 0.5, {"topics": "T"}, {"b": {"T": {3: 20}}},
            [split, Split(1, "b", "T", 4, 0, 5, 10)], [result], [skipped], marks, [{"a": "b"}],
        )  # fmt: skip
        self.manifest.save(run)
        write_note(self.manifest.directory, 7, [result, result])
        self.run_path = self.manifest.directory / "000001.jsonl"
        self.note_path = self.manifest.directory / "7.jsonl"
        self.run_lines, self.note_lines = self._lines(self.run_path), self._lines(self.note_path)
        self.topics = {
            "dataVersion": {"counter": 3, "timestamp": 5},
            "topicConfigTable": {
                "T": {"order": False, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4,
                      "topicFilterType": "SINGLE_TAG", "topicName": "T", "topicSysFlag": 0},
            },
        }  # fmt: skip
        self.index = path / "index"
        self.index.mkdir()
        self.note_path.rename(path / "7.jsonl")
        self.targets: dict[str, Callable[[random.Random], None]] = {
            "run": self._run,
            "note": self._note,
            "topics": self._topics,
            "conf": self._conf,
            "options": self._options,
            "offset": self._offset,
            "index": self._index,
        }

    @staticmethod
    def _lines(path: Path) -> list[Any]:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def examine(self, target: str, seed: str, number: int) -> str:
        """Return `taken` or `refused`; raise AssertionError for any other result."""
        name = f"{target}:{seed}:{number}"
        try:
            self.targets[target](random.Random(name))
        except StoreError as error:
            text = str(error)
            assert text.isprintable(), name
            if target not in ("options", "offset"):
                assert str(self.path) in text, f"{name}: names no file: {text}"
            return "refused"
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        return "taken"

    def _run(self, rng: random.Random) -> None:
        self.run_path.write_bytes(mutated_json(rng, self.run_lines))
        for run in self.manifest.runs():
            run.task_count()
            run.splits_left()
            [split.file_name for split in run.splits]

    def _note(self, rng: random.Random) -> None:
        (self.path / "7.jsonl").write_bytes(mutated_json(rng, self.note_lines))
        for result in read_note(self.path, 7):
            assert isinstance(result.split.file_name, str)

    def _topics(self, rng: random.Random) -> None:
        path = self.path / "config" / "topics.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(mutated_json(rng, [self.topics]))
        (path.parent / "topics.json.bak").unlink(missing_ok=True)
        file = TopicConfigFile(self.env, str(path))
        file.load()
        file.topics()
        file.ensure("T", 9)
        file.ensure("U", 0)
        file.persist()
        again = TopicConfigFile(self.env, str(path))
        again.load()
        assert again.topics()["U"] == 1

    def _conf(self, rng: random.Random) -> None:
        path = self.path / "broker.conf"
        text = (
            b"mappedFileSizeCommitLog=65536\nflushDiskType=SYNC_FLUSH\nbrokerName=a\\u0041\\\n b\n"
        )
        text += b"storePathCommitLog=/a,/b\nlistenPort=10911\nmaxMessageSize: 4194304\n"
        path.write_bytes(mutated_bytes(rng, text))
        MessageStoreConfig.from_broker_conf(path, root=str(self.path))

    def _options(self, rng: random.Random) -> None:
        times = {"T": {"0": 10**12, "1": 2 * 10**12}}
        given = {
            "stores": {"a": str(self.path / "a"), "b": str(self.path / "b")},
            "assign": {"T": [0, 1]},
            "startingOffsets": {"T": {"a": {"0": 3}, "b": {"1": 4}}},
            "endingOffsetsByTimestamp": times,
        }
        texts = {"topicPattern": "T.*", "partitionBytes": "64m", "minPartitions": "3"}
        texts |= {name: json.dumps(value) for name, value in given.items()}
        del texts[rng.choice(("assign", "topicPattern"))]
        name = rng.choice(sorted(texts))
        if name in given and rng.random() < 0.7:
            texts[name] = as_json(mutated_value(rng, given[name]))
        else:
            data = mutated_bytes(rng, texts[name].encode("utf-8"))
            texts[name] = data.decode("utf-8", rng.choice(("replace", "surrogateescape")))
        read_options(texts, rng.choice(("batch", "stream")))

    def _offset(self, rng: random.Random) -> None:
        marks = {("b", "T", 0): Mark(4, 100, 50, 7, 8), ("b", "U", 1): Mark(5, 9, 50, None, None)}
        offset = encode_offset({("b", "T", 0): 5, ("b", "U", 1): 6}, {("b", "T", 0): 1}, marks)
        mutant = mutated_value(rng, offset)
        decode_offset(mutant)
        decode_marks(mutant)

    def _index(self, rng: random.Random) -> None:
        """A file that is cut after its length was read, as by another process."""
        path = self.index / "20240101000000000"
        data = bytes(rng.choice((0, 0, 1, 255)) for _ in range(INDEX_SIZE))
        path.write_bytes(data)
        size = rng.choice((0, 1, 39, 40, 41, rng.randrange(INDEX_SIZE)))
        env = CuttingEnv(path, size)
        if rng.random() < 0.5:
            find_index_files(env, str(self.index))
        else:
            geometry_fits(env, str(path), SLOTS, ENTRIES)


class CuttingEnv(Env):
    """Cuts a file once it is open."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self.target, self.cut = path, size

    def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
        found = super().open(path, flags, mode)
        with self.target.open("r+b") as file:
            file.truncate(self.cut)
        return found
