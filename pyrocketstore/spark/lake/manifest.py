"""The manifest of a lake: the ranges of queues in it, so that a kill loses no message.

    OUT/messages/topic=T/date=YYYY-MM-DD/BROKER-QUEUE-START-END.parquet
                                   T is escaped as Hive does, or a hash where that is too long
    OUT/_manifest/000001.jsonl     a run: its plan, later its results
    OUT/_manifest/000001.X.tasks/  the results of each finished task of an active run
    OUT/_manifest/lock             held by the writing process

A run's plan is on disk before its first file and never changes, so that every attempt to write a
file of the run writes the same rows under the same name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.spark.parse_errors import PARSE_ERRORS
from pyrocketstore.spark.task_types import Mark
from pyrocketstore.system.env import Env

_Value = TypeVar("_Value")
_Record = TypeVar("_Record", "Split", "SkippedRange")

VERSION = 1
MESSAGES_DIRECTORY = "messages"
MANIFEST_DIRECTORY = "_manifest"
#: Limit of a manifest file (bytes): it names every file of a run.
LARGEST_MANIFEST = 256 << 20
TEMPORARY = ".tmp-"
NOTES, TAKEN = ".tasks", ".taken"
RUNNING, DONE = "running", "done"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
TOPIC_PREFIX = "topic="
#: The first character of a hash that replaces a name that is too long.
SHORT = "~"
#: Bytes of a file name; and of the broker in it, with room for the rest of a temporary name.
NAME_BYTES_MAX, BROKER_BYTES_MAX = 255, 176
#: Characters that the names of Hive's partition directories escape.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")

#: broker -> topic -> queue id -> the first queue offset that is not in the lake
Next = dict[str, dict[str, dict[int, int]]]


#: broker -> topic -> queue id -> its mark
Marks = dict[str, dict[str, dict[int, Mark]]]


@dataclasses.dataclass(frozen=True)
class Split:
    """Queue offsets [start, stop) of a queue, written as one file for each day.

    `task` numbers the task that writes it; its records take about `planned_bytes`.
    """

    task: int
    broker: str
    topic: str
    queue_id: int
    start: int
    stop: int
    planned_bytes: int

    @property
    def file_name(self) -> str:
        """The name of its files, without suffix."""
        broker = fitting(escaped(self.broker), self.broker, BROKER_BYTES_MAX)
        if broker[:1] in ("_", "."):  # such files are hidden from Spark
            broker = f"%{ord(broker[0]):02X}{broker[1:]}"
        return f"{broker}-{self.queue_id}-{self.start:020d}-{self.stop:020d}"


@dataclasses.dataclass(frozen=True)
class SkippedRange:
    """Queue offsets [start, stop) of which `records` are not in the lake.

    `path` is the file of the first of them, "" where that is unknown; `bytes` are those of the
    records.
    """

    broker: str
    topic: str
    queue_id: int
    start: int
    stop: int
    records: int
    bytes: int
    reason: str
    path: str = ""


@dataclasses.dataclass(frozen=True)
class SplitResult:
    """The result of a split: `bytes` of records, and `file_bytes` of `files`, relative to OUT."""

    split: Split
    rows: int
    bytes: int
    file_bytes: int
    files: tuple[str, ...]
    crc_failures: int
    skipped: tuple[SkippedRange, ...]


@dataclasses.dataclass
class Run:
    """One run: `next` has the offsets after it, `lost` the messages that were gone before it.

    `marks` are the last messages before `next`; `resumed` has the options of each later call that
    continued this run's plan.
    """

    number: int
    state: str
    began_ms: int
    seconds: float
    options: dict[str, str]
    next: Next
    splits: list[Split]
    results: list[SplitResult]
    lost: list[SkippedRange]
    marks: Marks = dataclasses.field(default_factory=dict)
    resumed: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def task_count(self) -> int:
        """Return the number of tasks of the plan."""
        return 1 + max((split.task for split in self.splits), default=-1)

    def splits_left(self) -> list[Split]:
        """Return the splits without a result."""
        done = {result.split for result in self.results}
        return [split for split in self.splits if split not in done]


class Manifest:
    """The manifest of the lake at `out`. As a context manager, it holds the lock.

    Raises StoreStateError where another process writes to the lake, StoreFormatError for a manifest
    of a later version, OSError.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.directory = out / MANIFEST_DIRECTORY
        self._lock: int | None = None

    def __enter__(self) -> Manifest:
        make_lake_directory(self.out, self.directory)
        make_lake_directory(self.out, self.out / MESSAGES_DIRECTORY)
        self._lock = Env().open(self.directory / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise StoreStateError(f"{self.out}: another export is writing to it") from None
        self._tidy()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _tidy(self) -> None:
        for path in self.directory.glob(f"{TEMPORARY}*"):
            path.unlink(missing_ok=True)
        # Only a run that was killed has left them: the others are not read.
        for number in {int(path.name.partition(".")[0]) for path in self._notes("*")}:
            path = self._path_of(number)
            if path.exists() and self._read(path).state == DONE:
                self._remove_notes(number)

    def _notes(self, number: str) -> list[Path]:
        """Return the directories with results of the tasks of a run."""
        patterns = (f"{number}.*{suffix}" for suffix in (NOTES, TAKEN))
        return [path for pattern in patterns for path in self.directory.glob(pattern)]

    def _remove_notes(self, number: int) -> None:
        for path in self._notes(f"{number:06d}"):
            shutil.rmtree(path)

    def _path_of(self, number: int) -> Path:
        return self.directory / f"{number:06d}.jsonl"

    # ---- runs ----------------------------------------------------------------------------------

    def runs(self) -> Iterator[Run]:
        """Yield all runs, in order."""
        for path in self._run_paths():
            yield self._read(path)

    def last(self) -> Run | None:
        """Return the latest run."""
        paths = self._run_paths()
        return self._read(paths[-1]) if paths else None

    def short_names(self) -> dict[str, str]:
        """Return the topics whose directory names are hashes: hash -> topic.

        Raises StoreCorruptionError, StoreIOError.
        """
        paths = self._run_paths()
        is_short = any((self.out / MESSAGES_DIRECTORY).glob(f"{TOPIC_PREFIX}{SHORT}*"))
        if not is_short or not paths:
            return {}
        with _as_damage(paths[-1]):
            header = json.loads(_read_text(paths[-1]).partition("\n")[0])
            topics = {topic for topics in header["next"].values() for topic in topics}
        named = {topic_name(topic): topic for topic in sorted(topics)}
        return {name: topic for name, topic in named.items() if name.startswith(SHORT)}

    def save(self, run: Run) -> None:
        """Write a run; after a crash, the file has the old text or the new one."""
        header = {
            "version": VERSION,
            "run": run.number,
            "state": run.state,
            "began_ms": run.began_ms,
            "seconds": round(run.seconds, 3),
            "options": run.options,
            "rows": sum(each.rows for each in run.results),
            "bytes": sum(each.bytes for each in run.results),
            "crc_failures": sum(each.crc_failures for each in run.results),
            "next": run.next,
            "marks": run.marks,
            "lost": [dataclasses.asdict(each) for each in run.lost],
            "resumed": run.resumed,
        }
        results = {each.split: each for each in run.results}
        lines = [header]
        for split in run.splits:
            result = results.get(split)
            lines.append(dataclasses.asdict(split) if result is None else _result_object(result))
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_whole(self._path_of(run.number), text.encode())

    def begin(self, run: Run) -> Path:
        """Write a run's plan; return the new directory for its tasks' results."""
        self.save(run)
        directory = self.directory / f"{run.number:06d}.{secrets.token_hex(4)}{NOTES}"
        directory.mkdir()
        return directory

    def resume(self, run: Run) -> None:
        """Take over the results of the tasks of an unfinished run.

        Workers may outlive their driver. The directory is renamed first, so that they cannot add a
        result: `sweep` removes the files of a task without a result.
        """
        for path in self.directory.glob(f"{run.number:06d}.*{NOTES}"):
            path.rename(path.with_suffix(TAKEN))
        taken = list(self.directory.glob(f"{run.number:06d}.*{TAKEN}"))
        for path in taken:
            left = set(run.splits_left())
            for task in noted(path):
                run.results += [each for each in read_note(path, task) if each.split in left]
        self.save(run)
        for path in taken:
            shutil.rmtree(path)

    def finish(self, run: Run) -> None:
        """Write a finished run, and remove its tasks' results."""
        run.state = DONE
        self.save(run)
        self._remove_notes(run.number)

    def sweep(self, splits: Iterable[Split], *, temporary_only: bool = False) -> int:
        """Remove the files of unfinished splits, and temporary files; return the count.

        Raises OSError.
        """
        names: dict[str, set[str]] = {}
        for split in splits:
            names.setdefault(split.topic, set()).add(split.file_name)
        count = 0
        for topic, unfinished in names.items():
            for path in _files_of_days(self.out, topic):
                name = re.sub(r"(\.\d+)?\.parquet$", "", path.name)
                is_left = name in unfinished and not temporary_only
                if is_left or path.name.startswith(TEMPORARY):
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    def _run_paths(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.jsonl") if path.stem.isdigit())

    @staticmethod
    def _read(path: Path) -> Run:
        with _as_damage(path):
            return Manifest._parse(path)

    @staticmethod
    def _parse(path: Path) -> Run:
        lines = _read_lines(path)
        header = lines[0]
        if header["version"] != VERSION:
            raise StoreFormatError(f"{path}: version {header['version']}, only {VERSION} is known")
        if not isinstance(header["options"], dict) or header["state"] not in (RUNNING, DONE):
            raise ValueError("the first line is not that of a run")
        results = [_result_of(line) for line in lines[1:] if "rows" in line]
        return Run(
            number=_whole(header["run"]),
            state=header["state"],
            began_ms=_whole(header["began_ms"]),
            seconds=float(header["seconds"]),
            options=header["options"],
            next=_by_queue(header["next"], _whole),
            splits=[_split_of(line) for line in lines[1:]],
            results=results,
            lost=_skipped_of(header["lost"]),
            # The first manifests had neither.
            marks=_by_queue(header.get("marks", {}), _mark_of),
            resumed=[dict(each) for each in header.get("resumed", [])],
        )


def write_note(directory: Path, task: int, results: Iterable[SplitResult]) -> None:
    """Write the results of a task, whose files are all durable."""
    text = "".join(json.dumps(_result_object(each)) + "\n" for each in results)
    write_whole(directory / f"{task}.jsonl", text.encode())


def read_note(directory: Path, task: int) -> list[SplitResult]:
    """Read the results of a task. Raises FileNotFoundError without them."""
    path = directory / f"{task}.jsonl"
    with _as_damage(path):
        return [_result_of(line) for line in _read_lines(path)]


def noted(directory: Path) -> list[int]:
    """Return the finished tasks."""
    names = os.listdir(directory)
    return sorted(int(name[:-6]) for name in names if re.fullmatch(r"\d+\.jsonl", name))


def _result_object(result: SplitResult) -> dict[str, Any]:
    found = dataclasses.asdict(result)
    return {**found.pop("split"), **found}


def _result_of(line: Mapping[str, Any]) -> SplitResult:
    files = line["files"]
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        raise ValueError("files are not a list of names")
    return SplitResult(
        split=_split_of(line),
        rows=_whole(line["rows"]),
        bytes=_whole(line["bytes"]),
        file_bytes=_whole(line["file_bytes"]),
        files=tuple(files),
        crc_failures=_whole(line["crc_failures"]),
        skipped=tuple(_skipped_of(line["skipped"])),
    )


def _split_of(line: Mapping[str, Any]) -> Split:
    return _made(Split, {field.name: line[field.name] for field in dataclasses.fields(Split)})


def _skipped_of(lines: Iterable[Mapping[str, Any]]) -> list[SkippedRange]:
    return [_made(SkippedRange, each) for each in lines]


def _made(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Make a dataclass of numbers and texts; ValueError for a value of another type."""
    made = kind(**values)
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if field.type == "str" and not isinstance(value, str):
            raise ValueError(f"{field.name} is not a text")
        if field.type == "int":
            _whole(value)
    return made


def _mark_of(found: Sequence[Any]) -> Mark:
    mark = Mark(*found)
    for value in (*mark[:3], *(each for each in mark[3:] if each is not None)):
        _whole(value)
    return mark


def _whole(value: Any) -> int:
    """Check a 64-bit integer; ValueError for anything else."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"not a number of 64 bits: {value!r:.40}")
    return value


def _by_queue(
    found: Mapping[str, Any], made: Callable[[Any], _Value]
) -> dict[str, dict[str, dict[int, _Value]]]:
    return {
        broker: {t: {int(q): made(n) for q, n in queues.items()} for t, queues in topics.items()}
        for broker, topics in found.items()
    }


# ---- files ---------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Escape a text as Hive does in the name of a directory."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def fitting(name: str, text: str, size_max: int) -> str:
    """Return `name`, or a hash of `text` where the name has more than `size_max` bytes or cannot be
    encoded (a lone surrogate): `~` and 64 hexadecimal digits. No other name begins with `~`."""
    if name.startswith(SHORT):
        name = f"%{ord(SHORT):02X}{name[1:]}"
    try:
        if len(os.fsencode(name)) <= size_max:
            return name
    except UnicodeEncodeError:
        pass  # no file can have this name
    return SHORT + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def topic_name(topic: str) -> str:
    """Return the topic's part of its directory name."""
    name = escaped(topic)
    if name == NO_DATE:  # Hive and Spark read that as null
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return fitting(name, topic, NAME_BYTES_MAX - len(TOPIC_PREFIX))


def topic_directory(out: Path, topic: str) -> Path:
    """Return the directory of a topic's messages."""
    return out / MESSAGES_DIRECTORY / f"{TOPIC_PREFIX}{topic_name(topic)}"


def make_lake_directory(out: Path, directory: Path) -> None:
    """Make a directory of the lake at `out`. Only `out` itself may be a symbolic link.

    Raises StoreIOError, ELOOP, for such a link; OSError.
    """
    _check_links(out, directory)
    directory.mkdir(parents=True, exist_ok=True)


def _check_links(out: Path, directory: Path) -> None:
    env = Env()
    env.guard([str(out)])
    env.check_directory(str(directory))


def _files_of_days(out: Path, topic: str) -> Iterator[Path]:
    """Yield the files of a topic; raises StoreIOError for a link out of the lake."""
    directory = topic_directory(out, topic)
    _check_links(out, directory)
    for day in directory.glob("date=*"):
        _check_links(out, day)
        yield from (path for path in day.glob("*") if path.is_symlink() or not path.is_dir())


def _read_text(path: Path) -> str:
    """Read a file of the manifest. Raises FileNotFoundError, StoreIOError."""
    try:
        return Env().read_file(str(path), max_size=LARGEST_MANIFEST).decode("utf-8")
    except StoreIOError as error:
        if error.errno == errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        raise


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in _read_text(path).split("\n") if line]


@contextlib.contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """Raise StoreCorruptionError for any error of a parser."""
    try:
        yield
    except (StoreError, OSError):
        raise
    except PARSE_ERRORS as error:
        reason = f"not a manifest of this lake ({type(error).__name__}: {error})"
        raise StoreCorruptionError(str(path), -1, reason) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}")
    with open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Fsync a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
