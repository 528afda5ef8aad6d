"""Which size the files of a store have, where no setting says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pyrocketstore.errors import StoreCorruptionError

__all__ = [
    "MAX_FILE_END",
    "DirectoryReader",
    "FoundFile",
    "find_files",
    "is_store_file",
    "log_file_size",
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


def log_file_size(env: DirectoryReader, *directories: str) -> int | None:
    """The length of the commit log's files; None where there are none.

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
    if size is None:
        raise _implausible(file, f"its name is not a multiple of its length of {file.size} bytes")
    if size % PAGE_SIZE and not _is_full(env, file):
        raise _implausible(file, f"its length of {file.size} bytes is not a multiple of 4096")
    if not _ends_whole(env, file):
        raise _implausible(file, f"its length is {file.size} bytes, and its last record is cut off")
    return size


def _implausible(file: FoundFile, reason: str) -> StoreCorruptionError:
    return StoreCorruptionError(
        file.path,
        -1,
        f"{reason}, so the size of log files cannot be taken from it: open the store with "
        "mapped_file_size_commit_log (mappedFileSizeCommitLog), as it was written with",
    )


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
