"""The manifest of a lake: which ranges of which queues are in it, so that a kill loses nothing.

    OUT/messages/topic=T/date=YYYY-MM-DD/BROKER-QUEUE-START-END.parquet
                                   T is escaped as Hive does, or a hash where that is too long
    OUT/_manifest/000001.jsonl     a run: its plan, later what became of it
    OUT/_manifest/000001.X.tasks/  what each task of a run that goes on has finished
    OUT/_manifest/lock             held by the one that writes

A run's plan is on disk before its first file is written and never changes, so whoever writes a file
of it, at whatever time, writes the same rows under the same name.
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
from typing import Any, NamedTuple, TypeVar

from pyrocketstore.env import Env
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)

_Value = TypeVar("_Value")
_Record = TypeVar("_Record", "Split", "SkippedRange")

VERSION = 1
MESSAGES_DIRECTORY = "messages"
MANIFEST_DIRECTORY = "_manifest"
#: Bytes that a file of a manifest may have: it names every file of a run.
LARGEST_MANIFEST = 256 << 20
TEMPORARY = ".tmp-"
NOTES, TAKEN = ".tasks", ".taken"
RUNNING, DONE = "running", "done"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
TOPIC_PREFIX = "topic="
#: Begins the hash that stands for a name that is too long.
SHORT = "~"
#: Bytes of a file's name; and of a broker in it, which leaves room for the rest of a temporary one.
NAME_BYTES_MAX, BROKER_BYTES_MAX = 255, 176
#: What Hive's partition directories cannot hold as it is.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")

#: broker -> topic -> queue id -> the first queue offset that is not in the lake
Next = dict[str, dict[str, dict[int, int]]]


class Mark(NamedTuple):
    """A queue's last message that a lake has: a store that goes on from there has the same one.

    `phy_offset` and `size` are its unit's; the others (Unix ms, the CRC of the body that the head
    says) are None where the record was damaged.
    """

    queue_offset: int
    phy_offset: int
    size: int
    store_timestamp: int | None
    body_crc: int | None


#: broker -> topic -> queue id -> its mark
Marks = dict[str, dict[str, dict[int, Mark]]]


@dataclasses.dataclass(frozen=True)
class Split:
    """Queue offsets [start, stop) of a queue, which become one file for each day.

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
        """The name of its files, without an ending."""
        broker = fitting(escaped(self.broker), self.broker, BROKER_BYTES_MAX)
        if broker[:1] in ("_", "."):  # such files are hidden from Spark
            broker = f"%{ord(broker[0]):02X}{broker[1:]}"
        return f"{broker}-{self.queue_id}-{self.start:020d}-{self.stop:020d}"


@dataclasses.dataclass(frozen=True)
class SkippedRange:
    """Queue offsets [start, stop) of which `records` are not in the lake.

    `path` is the file that would hold the first of them, "" where that is not known; `bytes` are
    those of the records.
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
    """What became of a split: `bytes` are the records', `file_bytes` those of `files` below OUT."""

    split: Split
    rows: int
    bytes: int
    file_bytes: int
    files: tuple[str, ...]
    crc_failures: int
    skipped: tuple[SkippedRange, ...]


@dataclasses.dataclass
class Run:
    """One run: `next` is where each queue goes on once it is done, `lost` what was gone before.

    `marks` are the last messages before `next`; `resumed` has the options of each later call that
    went on with this run's plan.
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
        """How many tasks the plan has."""
        return 1 + max((split.task for split in self.splits), default=-1)

    def splits_left(self) -> list[Split]:
        """The splits that nothing has become of yet."""
        done = {result.split for result in self.results}
        return [split for split in self.splits if split not in done]


class Manifest:
    """The manifest of the lake at `out`. Use as a context manager: it is locked inside.

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
        done = {run.number for run in self.runs() if run.state == DONE}
        for path in [*self.directory.glob(f"*{NOTES}"), *self.directory.glob(f"*{TAKEN}")]:
            if int(path.name.partition(".")[0]) in done:
                shutil.rmtree(path)

    # ---- runs ----------------------------------------------------------------------------------

    def runs(self) -> Iterator[Run]:
        """All runs, in order."""
        for path in self._run_paths():
            yield self._read(path)

    def last(self) -> Run | None:
        """The latest run."""
        paths = self._run_paths()
        return self._read(paths[-1]) if paths else None

    def short_names(self) -> dict[str, str]:
        """The topics whose directories are named by hashes: hash -> topic.

        Raises StoreCorruptionError, StoreIOError.
        """
        paths = self._run_paths()
        is_short = any((self.out / MESSAGES_DIRECTORY).glob(f"{TOPIC_PREFIX}{SHORT}*"))
        if not is_short or not paths:
            return {}
        with _as_damage(paths[-1]):
            head = json.loads(_read_text(paths[-1]).partition("\n")[0])
            topics = {topic for topics in head["next"].values() for topic in topics}
        named = {topic_name(topic): topic for topic in sorted(topics)}
        return {name: topic for name, topic in named.items() if name.startswith(SHORT)}

    def save(self, run: Run) -> None:
        """Write a run; after a crash there is the old text or the new one."""
        head = {
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
        lines = [head]
        for split in run.splits:
            result = results.get(split)
            lines.append(dataclasses.asdict(split) if result is None else _result_object(result))
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_whole(self.directory / f"{run.number:06d}.jsonl", text.encode())

    def begin(self, run: Run) -> Path:
        """Write a run's plan; the new directory where its tasks note what they have finished."""
        self.save(run)
        directory = self.directory / f"{run.number:06d}.{secrets.token_hex(4)}{NOTES}"
        directory.mkdir()
        return directory

    def resume(self, run: Run) -> None:
        """Take over what the tasks of a run have noted that was not finished.

        Workers may outlive their driver. Their directory is renamed first, so that they can note
        nothing any more: the files of a task that is not taken over here will be swept.
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
        """Write a run that is done; its tasks' notes go."""
        run.state = DONE
        self.save(run)
        self._tidy()

    def sweep(self, splits: Iterable[Split], *, temporary_only: bool = False) -> int:
        """Remove the files of splits that were not finished, and what attempts left; a count.

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
        head = lines[0]
        if head["version"] != VERSION:
            raise StoreFormatError(f"{path}: version {head['version']}, only {VERSION} is known")
        if not isinstance(head["options"], dict) or head["state"] not in (RUNNING, DONE):
            raise ValueError("its first line is not that of a run")
        results = [_result_of(line) for line in lines[1:] if "rows" in line]
        return Run(
            number=_whole(head["run"]),
            state=head["state"],
            began_ms=_whole(head["began_ms"]),
            seconds=float(head["seconds"]),
            options=head["options"],
            next=_by_queue(head["next"], _whole),
            splits=[_split_of(line) for line in lines[1:]],
            results=results,
            lost=_skipped_of(head["lost"]),
            # The first manifests had neither.
            marks=_by_queue(head.get("marks", {}), _mark_of),
            resumed=[dict(each) for each in head.get("resumed", [])],
        )


def write_note(directory: Path, task: int, results: Iterable[SplitResult]) -> None:
    """Note that a task is through: all its files are there for good."""
    text = "".join(json.dumps(_result_object(each)) + "\n" for each in results)
    write_whole(directory / f"{task}.jsonl", text.encode())


def read_note(directory: Path, task: int) -> list[SplitResult]:
    """What a task noted. Raises FileNotFoundError where it did not."""
    path = directory / f"{task}.jsonl"
    with _as_damage(path):
        return [_result_of(line) for line in _read_lines(path)]


def noted(directory: Path) -> list[int]:
    """The tasks that are through."""
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
    """A dataclass of numbers and texts; ValueError for a value of another type."""
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
    for value in mark[:3]:
        _whole(value)
    for other in mark[3:]:
        if other is not None:
            _whole(other)
    return mark


def _whole(value: Any) -> int:
    """A number of 64 bits; ValueError for anything else."""
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
    """Text as Hive writes it into the name of a directory."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def fitting(name: str, text: str, size_max: int) -> str:
    """The name that stands for a text, or a hash of the text where the name has more than
    `size_max` bytes or has no bytes (a lone surrogate): `~` and 64 hexadecimal digits. No other
    name begins with `~`."""
    if name.startswith(SHORT):
        name = f"%{ord(SHORT):02X}{name[1:]}"
    try:
        if len(os.fsencode(name)) <= size_max:
            return name
    except UnicodeEncodeError:
        pass  # no file can have this name
    return SHORT + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def topic_name(topic: str) -> str:
    """What stands for a topic in the name of its directory."""
    name = escaped(topic)
    if name == NO_DATE:  # Hive and Spark read that as null
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return fitting(name, topic, NAME_BYTES_MAX - len(TOPIC_PREFIX))


def topic_directory(out: Path, topic: str) -> Path:
    """Where the messages of a topic are."""
    return out / MESSAGES_DIRECTORY / f"{TOPIC_PREFIX}{topic_name(topic)}"


def make_lake_directory(out: Path, directory: Path) -> None:
    """Make a directory of the lake at `out`. `out` may be a symbolic link, and nothing below it.

    Raises StoreIOError, ELOOP, for such a link; OSError.
    """
    _check_way(out, directory)
    directory.mkdir(parents=True, exist_ok=True)


def _check_way(out: Path, directory: Path) -> None:
    env = Env()
    env.guard([str(out)])
    env.check_directory(str(directory))


def _files_of_days(out: Path, topic: str) -> Iterator[Path]:
    """The files of a topic; raises StoreIOError where a link leads out of the lake."""
    directory = topic_directory(out, topic)
    _check_way(out, directory)
    for day in directory.glob("date=*"):
        _check_way(out, day)
        yield from (path for path in day.glob("*") if path.is_symlink() or not path.is_dir())


def _read_text(path: Path) -> str:
    """A file of the manifest. Raises FileNotFoundError, StoreIOError."""
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
    """Report the damage of a file, whatever a parser makes of it. Raises StoreCorruptionError."""
    try:
        yield
    except (StoreError, OSError):
        raise
    except (
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        reason = f"not a manifest of this lake ({type(error).__name__}: {error})"
        raise StoreCorruptionError(str(path), -1, reason) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}")
    with open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Force the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
