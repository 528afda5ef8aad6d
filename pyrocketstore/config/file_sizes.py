"""Detection of the file sizes of a store from its files, where no setting names them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.record._record import (
    BLANK_MAGIC_CODE,
    HEADER_SIZE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    RecordHeader,
    follow_sizes,
)
from pyrocketstore.system.env import O_RDONLY, Env, is_zeros

#: Sizes of the files of a kind of store, by the names of the settings. Slots and entries of an
#: index file stay at 4.9.3's ratio of 1 to 4: a later opening that names neither of them infers
#: both from the length of the file.
PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "small": MappingProxyType(
            {
                "mapped_file_size_commit_log": 256 << 10,
                "mapped_file_size_consume_queue": 20 << 10,
                "max_hash_slot_num": 2048,
                "max_index_num": 8192,
            }
        )
    }
)
#: The settings that index files determine where there are some.
INDEX_NAMES = ("max_hash_slot_num", "max_index_num")
#: 4.9.3's default length of the log's files.
LOG_SIZE = 1 << 30
#: Largest offset at which a file of a store may end: an offset plus a size then fits an int64.
MAX_FILE_END = 0x7FFFFFFF00000000
PAGE_SIZE = 4096
#: Smallest size in bytes of a record or a BLANK.
MIN_RECORD_SIZE = 8
MAGIC_CODES = (MESSAGE_MAGIC_CODE, BLANK_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
_READ_SIZE = 1 << 20
_MAGIC_POSITION = 4
_MAGIC, _MAGIC_V2 = (
    code.to_bytes(4, "big", signed=True) for code in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
)
#: Magic codes that are looked at: a body may hold records of another log.
_LATE_RECORD_TRIES = 64
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

    4.9.3's default length needs no evidence: 4.9.3 itself would open such a file with it.

    Parameters
    ----------
    assumed : for a log that is only read, the length of a single file that was truncated; None: a
        length without evidence is an error

    Raises StoreCorruptionError if there is no evidence, and StoreIOError.
    """
    files = find_files(env, 1, *directories)
    size = usual_size(files)
    fitting = [f for f in files if f.size == size and f.is_consistent]
    if not files or any(f.offset > 0 for f in fitting) or (fitting and size == LOG_SIZE):
        return size
    file = fitting[0] if fitting else files[-1]
    if file.offset > 0:
        raise _implausible(file, f"its name is not a multiple of its length of {file.size} bytes")
    last = _last_record(env, file)
    has_end = file.size % PAGE_SIZE == 0 or last.fills(file)
    if len(files) == 1 and assumed is not None and not (has_end and last.ends_in(file)):
        return max(assumed, -(-file.size // PAGE_SIZE) * PAGE_SIZE)
    if not has_end:
        raise _implausible(file, f"its length of {file.size} bytes is not a multiple of 4096")
    if not last.ends_in(file):
        raise _implausible(file, f"its last record continues behind its end, byte {file.size}")
    return size


def has_index(env: Env, root: str) -> bool:
    """Return True if the store in `root` has an index file that is not empty."""
    directory = f"{root}/index"
    return any(env.size(f"{directory}/{name}") > 0 for name in env.listdir(directory))


def sizes_beside(log_size: int | None) -> Mapping[str, int]:
    """Return the sizes of the preset with log files of `log_size` bytes; empty without one.

    They are those of a store whose queues and index show none: a kill came before their files were
    made, or leaves a queue file that is exactly full, as if it had been cut.
    """
    by_log = {sizes["mapped_file_size_commit_log"]: sizes for sizes in PRESETS.values()}
    return by_log.get(log_size or 0, {})


def queue_file_size(
    env: Env, directory: str, log_directories: Sequence[str], unit: int, usual: int
) -> int | None:
    """Return the file length of most queues below `directory`; None without evidence.

    A length that only files named 0 have proves nothing if all of these files may be truncated: a
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


class _LastRecord(NamedTuple):
    """The last record or BLANK of a log file, by the size fields alone: the byte of the file at
    which it ends, and its magic code. Both are 0 without one."""

    end: int
    magic_code: int

    def ends_in(self, file: FoundFile) -> bool:
        """Return False if the file ends in the record, or right behind it.

        A record leaves room for a BLANK: a file that ends right behind one was cut.
        """
        room = 0 if self.magic_code in (0, BLANK_MAGIC_CODE) else MIN_RECORD_SIZE
        return self.end + room <= file.size

    def fills(self, file: FoundFile) -> bool:
        """Return True for a BLANK that ends exactly at the end of the file."""
        return self == (file.size, BLANK_MAGIC_CODE)


def _last_record(env: Env, file: FoundFile) -> _LastRecord:
    """Return the last record or BLANK of a log file whose name is 0. Raises StoreIOError.

    The time does not grow with the number of records: the walk begins at a late record.
    """
    fd = env.open(file.path, O_RDONLY)
    try:
        found = _LastRecord(0, 0)
        if not follow_sizes(env.pread(fd, MIN_RECORD_SIZE, 0, file.path))[0]:
            return found
        at = _late_record(env, fd, file)
        while at + MIN_RECORD_SIZE <= file.size:
            size, magic_code = follow_sizes(env.pread(fd, _READ_SIZE, at, file.path))
            if not size:
                break
            at += size
            found = _LastRecord(at, magic_code)
        return found
    finally:
        env.close(fd, file.path)


def _late_record(env: Env, fd: int, file: FoundFile) -> int:
    """Return the first byte of a record, of the last one if possible; 0 if none is found.

    The search by halves for the first page of zeros ends where data ends, mostly at the last
    record. It need not: each record there proves itself, as it holds its own offset in the log.
    """
    first, last = 0, file.size // PAGE_SIZE
    while first < last:
        middle = (first + last) // 2
        if is_zeros(env.pread(fd, PAGE_SIZE, middle * PAGE_SIZE, file.path)):
            last = middle
        else:
            first = middle + 1
    begin = max(0, first * PAGE_SIZE - _READ_SIZE)
    data = env.pread(fd, _READ_SIZE + PAGE_SIZE, begin, file.path)
    stop = len(data)
    for _ in range(_LATE_RECORD_TRIES):
        at = data.rfind(_MAGIC, 0, stop)
        # Only behind the other one: a search backwards through all of `data` takes long.
        at = max(at, data.rfind(_MAGIC_V2, max(0, at), stop)) - _MAGIC_POSITION
        if at < 0:
            break
        header = RecordHeader(data[at : at + HEADER_SIZE])
        if header.phy_offset == begin + at and header.total_size >= MIN_RECORD_SIZE:
            return begin + at
        stop = at + _MAGIC_POSITION
    return 0
