"""Detection of the file sizes of a store from its files, where no setting names them."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.record._record import (
    BLANK_MAGIC_CODE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    RecordHeader,
)
from pyrocketstore.system.env import O_RDONLY, Env

#: Largest offset at which a file of a store may end: an offset plus a size then fits an int64.
MAX_FILE_END = 0x7FFFFFFF00000000
PAGE_SIZE = 4096
#: Smallest size in bytes of a record or a BLANK.
MIN_RECORD_SIZE = 8
MAGIC_CODES = (MESSAGE_MAGIC_CODE, BLANK_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
_READ_SIZE = 1 << 20
#: Number of queues that are examined.
DETECT_QUEUE_COUNT_MAX = 64


class FoundFile(NamedTuple):
    """A file of a sequence: its name, which is the offset of its first byte, and its length."""

    path: str
    offset: int
    size: int

    @property
    def is_consistent(self) -> bool:
        """True if the name is a multiple of the length and the file ends by MAX_FILE_END."""
        return self.offset % self.size == 0 and self.offset + self.size <= MAX_FILE_END


class MismatchedFile(NamedTuple):
    """A file whose length or name does not fit its sequence.

    `offset` (its name) and `size` (its length on disk) are bytes.
    """

    path: str
    offset: int
    size: int
    reason: str


def has_possible_name(offset: int, file_size: int) -> bool:
    """Return True if `offset` is a valid name in a sequence of files of `file_size` bytes."""
    return offset % file_size == 0 and offset <= MAX_FILE_END - file_size


def mismatch_of(offset: int, size: int, file_size: int) -> str | None:
    """Return why a file does not fit a sequence of files of `file_size` bytes; None if it fits.

    `offset` (the file's name) and `size` (its length) are bytes.
    """
    if offset % file_size:
        return f"the file name is not a multiple of the file size {file_size}"
    if offset > MAX_FILE_END - file_size:
        return (
            f"a file of {file_size} bytes with this name would end behind byte {MAX_FILE_END}, the"
            " largest end of a file in a store"
        )
    if size != file_size:
        return f"the file has {size} bytes and must have {file_size}"
    return None


def is_store_file(name: str) -> bool:
    """Return True for a name of 20 digits: the offset of the first byte of a file."""
    return len(name) == 20 and name.isascii() and name.isdigit()


def find_files(env: Env, unit: int, *directories: str) -> list[FoundFile]:
    """Return the files of a sequence whose length is a multiple of `unit` bytes and not 0."""
    found = [
        FoundFile(f"{directory}/{name}", int(name), env.size(f"{directory}/{name}"))
        for directory in directories
        for name in env.listdir(directory)
        if is_store_file(name)
    ]
    return [file for file in found if file.size > 0 and file.size % unit == 0]


def usual_size(files: list[FoundFile]) -> int | None:
    """Return the most frequent length among the files whose names are multiples of their lengths.

    One damaged file therefore does not decide. Of equally frequent lengths, one with a file whose
    name is not 0 is preferred, then the greater one, since a truncated file is shorter.
    """
    counted = Counter(file.size for file in files if file.is_consistent)
    proven = {file.size for file in files if file.is_consistent and file.offset > 0}
    best = max(((n, size in proven, size) for size, n in counted.items()), default=None)
    return None if best is None else best[2]


def log_file_size(env: Env, *directories: str, assumed: int | None = None) -> int | None:
    """Return the length of the commit log's files; None if there are no files.

    A length is adopted only with evidence: a log that continues with a wrong file size can no
    longer be read with the right one. Evidence is a file whose name is not 0 and a multiple of the
    length, or a length of whole pages in a file whose last record ends inside the file.

    Parameters
    ----------
    assumed : for a log that is only read, the length of a single file that was truncated; None: a
        length without evidence is an error

    Raises StoreCorruptionError if there is no evidence, and StoreIOError.
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
        raise _implausible(file, f"its last record continues behind its end, byte {file.size}")
    return size


def queue_file_size(
    env: Env, directory: str, log_directories: Sequence[str], unit: int, usual: int
) -> int | None:
    """Return the file length of most queues below `directory`; None without evidence.

    A length that only files named 0 have is no evidence if all of these files may be truncated: a
    file is full of units, and the log holds a record after that of its last unit.

    Parameters
    ----------
    unit : bytes of a unit
    usual : bytes of a file under 4.9.3's default setting
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


def _queue_paths(env: Env, directory: str) -> Iterator[str]:
    for topic in env.listdir(directory):
        topic_path = f"{directory}/{topic}"
        for queue_id in env.listdir(topic_path) if env.is_dir(topic_path) else ():
            path = f"{topic_path}/{queue_id}"
            if env.is_dir(path):
                yield path


def _may_be_cut(env: Env, file: FoundFile, unit: int, log_directories: Sequence[str]) -> bool:
    """Return True if the log continues after the record of the last unit of a queue file."""
    last = env.read_part(file.path, file.size - unit, 12)
    phy_offset, size = (int.from_bytes(part, "big", signed=True) for part in (last[:8], last[8:]))
    if size <= 0 or phy_offset < 0:
        return False  # the file has free room, so it was not truncated
    end = phy_offset + size
    for log_file in find_files(env, 1, *log_directories):
        if log_file.offset <= end < log_file.offset + log_file.size:
            data = env.read_part(log_file.path, end - log_file.offset, MIN_RECORD_SIZE)
            return RecordHeader(data).magic_code in MAGIC_CODES
    return False


def _implausible(file: FoundFile, reason: str) -> StoreCorruptionError:
    return StoreCorruptionError(
        file.path,
        -1,
        f"{reason}, so the size of log files cannot be derived from it: open the store with the "
        "mapped_file_size_commit_log (mappedFileSizeCommitLog) that it was written with",
    )


def _is_cut(env: Env, file: FoundFile) -> bool:
    has_end = file.size % PAGE_SIZE == 0 or _is_full(env, file)
    return not (has_end and _ends_whole(env, file))


def _ends_whole(env: Env, file: FoundFile) -> bool:
    """Return False if the file ends in its last record, or right behind it.

    A record leaves room for a BLANK: a file that ends right behind one was cut.
    """
    end, magic_code = _last_record(env, file)
    room = 0 if magic_code in (0, BLANK_MAGIC_CODE) else MIN_RECORD_SIZE
    return end + room <= file.size


def _is_full(env: Env, file: FoundFile) -> bool:
    """Return True if a BLANK ends exactly at the end of the file."""
    return _last_record(env, file) == (file.size, BLANK_MAGIC_CODE)


def _last_record(env: Env, file: FoundFile) -> tuple[int, int]:
    """Return the end of the last record or BLANK of a log file, by the sizes alone (bytes), and its
    magic code; 0, 0 without one."""
    last = deque(_records(env, file), maxlen=1)
    return last[0] if last else (0, 0)


def _records(env: Env, file: FoundFile) -> Iterator[tuple[int, int]]:
    fd = env.open(file.path, O_RDONLY)
    try:
        start, chunk, at = 0, b"", 0
        while at + MIN_RECORD_SIZE <= file.size:
            if at + MIN_RECORD_SIZE > start + len(chunk):
                start, chunk = at, env.pread(fd, _READ_SIZE, at, file.path)
            header = RecordHeader(chunk[at - start : at - start + MIN_RECORD_SIZE])
            if header.magic_code not in MAGIC_CODES or header.total_size < MIN_RECORD_SIZE:
                return
            at += header.total_size
            yield at, header.magic_code
    finally:
        env.close(fd, file.path)
