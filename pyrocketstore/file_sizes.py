"""Which size the files of a store have, where no setting says it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from pyrocketstore.errors import StoreCorruptionError

__all__ = [
    "MAX_FILE_END",
    "DirectoryReader",
    "FoundFile",
    "MismatchedFile",
    "find_files",
    "has_possible_name",
    "is_store_file",
    "log_file_size",
    "mismatch_of",
    "queue_file_size",
    "usual_size",
]

#: No file of a store may end behind this byte, so that an offset plus a size stays an int64.
MAX_FILE_END = 0x7FFFFFFF00000000
PAGE_SIZE = 4096
#: Fewer bytes cannot be a record or a BLANK.
MIN_RECORD_SIZE = 8
MESSAGE_MAGICS = frozenset(
    {bytes.fromhex("DAA320A7"), bytes.fromhex("CBD43194"), bytes.fromhex("DAA320AB")}
)
_READ_SIZE = 1 << 20
#: So many queues are looked at.
DETECT_QUEUE_COUNT_MAX = 64
_O_RDONLY = 0


class DirectoryReader(Protocol):
    """The part of Env that detect_sizes needs."""

    def listdir(self, path: str, /) -> list[str]:
        """Sorted names in a directory, none if it is missing."""
        ...

    def is_dir(self, path: str, /) -> bool:
        """Whether a path is a directory's."""
        ...

    def size(self, path: str, /) -> int:
        """Size of a file in bytes."""
        ...

    def open(self, path: str, flags: int, /) -> int:
        """A descriptor of a file."""
        ...

    def read_part(self, path: str, position: int, size: int, /) -> bytes:
        """Bytes of a file, fewer at its end; none where it is missing."""
        ...

    def pread(self, fd: int, size: int, position: int, path: str, /) -> bytes:
        """Bytes of a file, fewer at its end."""
        ...

    def close(self, fd: int, path: str, /) -> None:
        """Close a descriptor."""
        ...


class FoundFile(NamedTuple):
    """A file of a sequence: the offset of its first byte, which is its name, and its length."""

    path: str
    offset: int
    size: int

    @property
    def is_consistent(self) -> bool:
        """Whether the file's own length explains its name."""
        return self.offset % self.size == 0 and self.offset + self.size <= MAX_FILE_END


class MismatchedFile(NamedTuple):
    """A file of a sequence whose length, or name, is not what its sequence needs.

    `offset` and `size` are bytes: its name, and its length on disk.
    """

    path: str
    offset: int
    size: int
    reason: str


def has_possible_name(offset: int, file_size: int) -> bool:
    """Whether a file of a sequence of files of `file_size` bytes may begin at byte `offset`."""
    return offset % file_size == 0 and offset <= MAX_FILE_END - file_size


def mismatch_of(offset: int, size: int, file_size: int) -> str | None:
    """Why a file of that name and length is not one of a sequence of files of `file_size` bytes;
    None where it is one."""
    if offset % file_size:
        return f"the file name is not a multiple of the file size {file_size}"
    if offset > MAX_FILE_END - file_size:
        return (
            f"a file of {file_size} bytes of that name would end behind byte {MAX_FILE_END}, the"
            " last that a store can have"
        )
    if size != file_size:
        return f"the file has {size} bytes and must have {file_size}"
    return None


def is_store_file(name: str) -> bool:
    """Whether a name is that of a file of a sequence: the offset of its first byte, 20 digits."""
    return len(name) == 20 and name.isascii() and name.isdigit()


def find_files(env: DirectoryReader, unit: int, *directories: str) -> list[FoundFile]:
    """The files of a sequence that have a length of whole units."""
    found = [
        FoundFile(f"{directory}/{name}", int(name), env.size(f"{directory}/{name}"))
        for directory in directories
        for name in env.listdir(directory)
        if is_store_file(name)
    ]
    return [file for file in found if file.size > 0 and file.size % unit == 0]


def usual_size(files: list[FoundFile]) -> int | None:
    """The length that most files have whose name fits it: one damaged file must not decide.

    Where two lengths are equally frequent, one that explains a name other than 0 is preferred, then
    the greater one, since a file that was cut short is shorter.
    """
    counted = Counter(file.size for file in files if file.is_consistent)
    proven = {file.size for file in files if file.is_consistent and file.offset > 0}
    best = max(((n, size in proven, size) for size, n in counted.items()), default=None)
    return None if best is None else best[2]


def log_file_size(
    env: DirectoryReader, *directories: str, assumed: int | None = None
) -> int | None:
    """The length of the commit log's files; None where there are none.

    Parameters
    ----------
    assumed : for a log that is only read, the length of a single file that was cut short; None: a
        length without evidence is an error

    A length is adopted only with evidence, since a log that goes on with a wrong one cannot be read
    with the right one any more. Evidence is a file whose name, other than 0, is a multiple of it,
    or a whole number of pages and records that do not go on behind the file's end.

    Raises StoreCorruptionError, which asks for the size; StoreIOError.
    """
    files = find_files(env, 1, *directories)
    size = usual_size(files)
    fitting = [f for f in files if f.size == size and f.is_consistent]
    if not files or any(f.offset > 0 for f in fitting):
        return size
    file = fitting[0] if fitting else files[-1]
    if len(files) == 1 and file.offset == 0 and assumed is not None and _is_cut(env, file):
        return max(assumed, -(-file.size // PAGE_SIZE) * PAGE_SIZE)
    if size is None:
        raise _implausible(file, f"its name is not a multiple of its length of {file.size} bytes")
    if size % PAGE_SIZE and not _is_full(env, file):
        raise _implausible(file, f"its length of {file.size} bytes is not a multiple of 4096")
    if not _ends_whole(env, file):
        raise _implausible(file, f"its length is {file.size} bytes, and its last record is cut off")
    return size


def queue_file_size(
    env: DirectoryReader, directory: str, log_directories: Sequence[str], unit: int, usual: int
) -> int | None:
    """The length that the files of most queues below `directory` have; None where nothing shows it.

    A length that only files named 0 have shows nothing where they are full of units, and records
    follow those of the last units: then they may all have been cut. `unit` and `usual`, the length
    that 4.9.3 has without a setting, are bytes.
    """
    counted: Counter[int] = Counter()
    doubtful: Counter[int] = Counter()
    for path in itertools.islice(_queue_paths(env, directory), DETECT_QUEUE_COUNT_MAX):
        files = find_files(env, unit, path)
        size = usual_size(files)
        if size is None:
            continue
        counted[size] += 1
        fitting = [file for file in files if file.size == size and file.is_consistent]
        if size != usual and unit > 1 and all(file.offset == 0 for file in fitting):
            doubtful[size] += _may_be_cut(env, fitting[0], unit, log_directories)
    if not counted:
        return None
    size = max(counted, key=lambda size: (counted[size], size))
    return None if doubtful[size] == counted[size] else size


def _queue_paths(env: DirectoryReader, directory: str) -> Iterator[str]:
    for topic in env.listdir(directory):
        topic_path = f"{directory}/{topic}"
        for queue_id in env.listdir(topic_path) if env.is_dir(topic_path) else ():
            path = f"{topic_path}/{queue_id}"
            if env.is_dir(path):
                yield path


def _may_be_cut(
    env: DirectoryReader, file: FoundFile, unit: int, log_directories: Sequence[str]
) -> bool:
    """Whether a queue's first file ends with a unit behind whose record the log has another."""
    last = env.read_part(file.path, file.size - unit, 12)
    phy_offset, size = (int.from_bytes(part, "big", signed=True) for part in (last[:8], last[8:]))
    if size <= 0 or phy_offset < 0:
        return False  # there is room in it: its length is its own
    end = phy_offset + size
    for log_file in find_files(env, 1, *log_directories):
        if log_file.offset <= end < log_file.offset + log_file.size:
            head = env.read_part(log_file.path, end - log_file.offset, MIN_RECORD_SIZE)
            return head[4:8] in MESSAGE_MAGICS
    return False


def _implausible(file: FoundFile, reason: str) -> StoreCorruptionError:
    return StoreCorruptionError(
        file.path,
        -1,
        f"{reason}, so the size of log files cannot be taken from it: open the store with "
        "mapped_file_size_commit_log (mappedFileSizeCommitLog), as it was written with",
    )


def _is_cut(env: DirectoryReader, file: FoundFile) -> bool:
    has_end = file.size % PAGE_SIZE == 0 or _is_full(env, file)
    return not (has_end and _ends_whole(env, file))


def _ends_whole(env: DirectoryReader, file: FoundFile) -> bool:
    """False where a record goes on behind the end of the file."""
    return _last_end(env, file) <= file.size


def _is_full(env: DirectoryReader, file: FoundFile) -> bool:
    """Whether a record or a BLANK ends exactly where the file ends."""
    return _last_end(env, file) == file.size


def _last_end(env: DirectoryReader, file: FoundFile) -> int:
    """Where the last record of a log file ends, by the lengths alone; bytes into the file."""
    return max(_record_ends(env, file), default=0)


def _record_ends(env: DirectoryReader, file: FoundFile) -> Iterator[int]:
    fd = env.open(file.path, _O_RDONLY)
    try:
        start, piece, at = 0, b"", 0
        while at + MIN_RECORD_SIZE <= file.size:
            if at + MIN_RECORD_SIZE > start + len(piece):
                start, piece = at, env.pread(fd, _READ_SIZE, at, file.path)
            head = piece[at - start : at - start + MIN_RECORD_SIZE]
            size = int.from_bytes(head[:4], "big", signed=True)
            if head[4:8] not in MESSAGE_MAGICS or size < MIN_RECORD_SIZE:
                return
            at += size
            yield at
    finally:
        env.close(fd, file.path)
