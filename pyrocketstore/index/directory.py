"""The files in the index directory, before they are opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyrocketstore.arguments.scalars import INT64_MAX
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.files.broken_folder import broken_folder
from pyrocketstore.index._file import (
    HASH_SLOT_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
)
from pyrocketstore.system.env import O_RDWR, READ_SIZE, Env, is_zeros, parent_directory

__all__ = [
    "INDEX_HEADER",
    "FoundIndexFile",
    "find_index_files",
    "first_out_of_order",
    "has_lost_header",
    "read_exactly",
    "set_aside",
    "set_begin",
    "zero_rest",
]

LOG = logger(__name__)

#: Bytes of a file's first entries that are checked; entries are filled in order.
_LOOK_BYTES = 64 << 10


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class FoundIndexFile:
    """A file in the index directory: `size` in bytes, and the fields of its header."""

    path: str
    name: str
    size: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    index_count: int = 0

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key of the files."""
        return int(self.name), self.begin_timestamp, self.name


def find_index_files(env: Env, root: str, *, follow: bool = True) -> list[FoundIndexFile]:
    """Return the files of a directory whose names are numbers, in order; `follow`: also through
    symbolic links.

    Raises StoreIOError, also for a number that names neither a file nor a directory.
    """
    found = []

    def is_wanted(name: str) -> bool:
        return name.isascii() and name.isdigit() and not env.is_dir(f"{root}/{name}")

    for name, size in env.files_named(root, is_wanted, follow=follow):
        path = f"{root}/{name}"
        item = FoundIndexFile(path, name, size)
        if item.size >= INDEX_HEADER_SIZE:
            _read_header(env, item)
        found.append(item)
    return sorted(found, key=lambda item: item.order)


def first_out_of_order(found: Sequence[FoundIndexFile]) -> int:
    """Return the number of the first file whose header ends after the begin of a later file; the
    count of files without one.

    Keys are put in the order of the log, so that each file covers the next part of it; neighbours
    may share a record. Files that were exchanged, copied or renamed, or a damaged header, break
    that order.
    """
    first, begin = len(found), INT64_MAX
    for number in range(len(found) - 1, -1, -1):
        item = found[number]
        if item.index_count > 1:
            if item.end_phy_offset > begin:
                first = number
            begin = min(begin, item.begin_phy_offset)
    return first


def _read_header(env: Env, item: FoundIndexFile) -> None:
    fd = env.open(item.path, 0)
    try:
        raw = read_exactly(env, fd, INDEX_HEADER_SIZE, 0, item.path)
    finally:
        env.close(fd)
    header = INDEX_HEADER.unpack(raw)
    item.begin_timestamp, item.end_timestamp, item.begin_phy_offset, item.end_phy_offset = header[
        :4
    ]
    item.index_count = header[5]


def read_exactly(env: Env, fd: int, size: int, position: int, path: str) -> bytes:
    """Return `size` bytes at `position` of a file that was longer when it was measured.

    Raises StoreCorruptionError where the file has become shorter since; StoreIOError.
    """
    raw = env.pread(fd, size, position, path)
    if len(raw) < size:
        reason = "the file ends here, and was longer when the directory was listed"
        raise StoreCorruptionError(path, position + len(raw), reason)
    return raw


def entry_position(hash_slot_num: int, number: int = 0) -> int:
    """Return the position of an entry in an index file (bytes). Entry 0 is never used."""
    return INDEX_HEADER_SIZE + hash_slot_num * HASH_SLOT_SIZE + number * INDEX_SIZE


def has_lost_header(env: Env, path: str, hash_slot_num: int) -> bool:
    """Return whether the header of a file is all zeros and its first entries are not.

    A new file without keys has zeros there. Raises StoreIOError.
    """
    fd = env.open(path, 0)
    try:
        header = env.pread(fd, INDEX_HEADER_SIZE, 0, path)
        if any(header):
            return False
        return not is_zeros(env.pread(fd, _LOOK_BYTES, entry_position(hash_slot_num), path))
    finally:
        env.close(fd)


def set_aside(env: Env, root: str, paths: Sequence[str]) -> None:
    """Move files of the index to ROOT/.broken/<time>/index. Raises StoreIOError.

    Durability: the files are durably removed from the directory on return.
    """
    folder = f"{broken_folder(env, parent_directory(root))}/index"
    env.make_directories(folder)
    for path in paths:
        env.rename(path, f"{folder}/{path.rpartition('/')[2]}")
        LOG.warning("%s: moved to %s; its keys are put again from the log", path, folder)
    env.fsync_directory(root)


def set_begin(env: Env, path: str, header: bytes) -> None:
    """Write the header of an index file. Raises StoreIOError."""
    fd = env.open(path, O_RDWR)
    try:
        env.pwrite_all(fd, header, 0, path)
    finally:
        env.close(fd, path)


def zero_rest(env: Env, path: str, position: int, stop: int) -> None:
    """Write zeros to the bytes [position, stop) of a file, except to holes. Raises StoreIOError."""
    ranges = env.data_ranges(path, position, stop)
    fd = env.open(path, O_RDWR)
    try:
        for begin, end in ranges:
            for at in range(begin, end, READ_SIZE):
                size = min(READ_SIZE, end - at)
                if not is_zeros(env.pread(fd, size, at, path)):
                    env.pwrite_all(fd, bytes(size), at, path)
    finally:
        env.close(fd, path)
