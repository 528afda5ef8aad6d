"""`sync_point`: a file in the store's root that says how much of the store is durable.

4.9.3 covers full index files only, and log and queues by the first record of a log file, both by
the times in `checkpoint`. This file names the last record that is durable in the log, in its queue
and in the index: recovery need not read the log before its end. 4.9.3 ignores the file, and may
have written to the store since: recovery believes only what the files prove.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from pyrocketstore.arguments.scalars import INT32_MAX
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index._entries import SlotTable
from pyrocketstore.index._file import INDEX_HEADER, INDEX_SIZE, index_file_size
from pyrocketstore.index.directory import FoundIndexFile, entry_position
from pyrocketstore.system.env import Env

__all__ = [
    "SYNC_POINT",
    "Flushed",
    "SyncPoint",
    "SyncPointFile",
    "entry_phy_offsets",
    "proven_slots",
    "read_flushed",
    "with_crc",
    "without_crc",
]

LOG = logger(__name__)

#: The name of the file.
SYNC_POINT = "sync_point"
MAGIC = b"rssync01"
_NAME_SIZE = 32
#: The magic, and the fields of SyncPoint in their order. The CRC of all these bytes follows.
_FIELDS = struct.Struct(f">8sqqIiiiIqqqq{_NAME_SIZE}s")
_CRC = struct.Struct(">I")
#: The hash code of an entry's key, and the physical offset of its message.
_ENTRY_BEGIN = struct.Struct(">iq")


def with_crc(body: bytes) -> bytes:
    """Return bytes and their CRC-32."""
    return body + _CRC.pack(zlib.crc32(body))


def without_crc(data: bytes, size: int) -> bytes | None:
    """Return the `size` bytes that `with_crc` has got; None if `data` is not its result."""
    return data[:size] if len(data) >= size and data == with_crc(data[:size]) else None


class SyncPoint(NamedTuple):
    """Says: the records before `phy_offset` are durable, with all their units and keys.

    Parameters
    ----------
    phy_offset : int, end of the record at `last_phy_offset`; 0: only the sizes of the index are
        known
    record_crc : int, CRC of that record's first bytes
    hash_slot_num, index_num : int, of the index files; 0 without a file of a usual length
    index_count : int, number of the entry after those that are durable; 1 without such a file
    entries_crc : int, their CRC
    begin_timestamp, end_timestamp : int, Unix ms, in the file's header after them
    begin_phy_offset, end_phy_offset : int, as well
    name : str, the file's name; "" without such a file
    """

    phy_offset: int
    last_phy_offset: int
    record_crc: int
    hash_slot_num: int = 0
    index_num: int = 0
    index_count: int = 1
    entries_crc: int = 0
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    name: str = ""

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        *numbers, name = self
        return with_crc(_FIELDS.pack(MAGIC, *numbers, name.encode("ascii")))

    @classmethod
    def decode(cls, data: bytes) -> SyncPoint | None:
        """Return the content of a file; None if it is damaged."""
        body = without_crc(data, _FIELDS.size)
        if body is None:
            return None
        magic, raw = body[: len(MAGIC)], body[-_NAME_SIZE:]
        name = raw.rstrip(b"\0")
        if magic != MAGIC or name.strip(b"0123456789"):
            return None
        numbers: list[int] = list(_FIELDS.unpack(body)[1:-1])
        fields = dict(zip(cls._fields, numbers, strict=False))
        found = cls(**fields, name=name.decode("ascii"))
        return found if found._is_possible() else None

    @classmethod
    def of_sizes(cls, hash_slot_num: int, index_num: int) -> SyncPoint:
        """Return a content that names the sizes of index files, and no record."""
        return cls(0, 0, 0, hash_slot_num, index_num)

    def _is_possible(self) -> bool:
        is_geometry = self.hash_slot_num >= 1 and self.index_num >= 2
        if not self.phy_offset:
            return is_geometry and self == self.of_sizes(*self.geometry)
        if not 0 <= self.last_phy_offset < self.phy_offset <= self.last_phy_offset + INT32_MAX:
            return False  # a record's size is an i32
        if not self.name:
            return self.index_count == 1 and (is_geometry or self.geometry == (0, 0))
        is_count = is_geometry and 2 <= self.index_count <= self.index_num
        return is_count and 0 <= self.begin_phy_offset <= self.end_phy_offset

    @property
    def geometry(self) -> tuple[int, int]:
        """(slots, entries) of the index files."""
        return self.hash_slot_num, self.index_num

    def has_geometry(self, hash_slot_num: int | None, index_num: int | None) -> bool:
        """Return whether the index file has these slots and entries; None: any number of them."""
        return hash_slot_num in (None, self.hash_slot_num) and index_num in (None, self.index_num)

    def describes(self, found: FoundIndexFile) -> bool:
        """Return whether a file has the name, the length, the begin and enough entries."""
        return (
            found.name == self.name != ""
            and found.size >= index_file_size(*self.geometry)
            and found.index_count >= self.index_count
            and found.begin_timestamp == self.begin_timestamp
            and found.begin_phy_offset == self.begin_phy_offset
        )

    def shows_cut(self, files: Sequence[FoundIndexFile]) -> bool:
        """Return whether the file of that name is shorter than its geometry says, and all others
        have the length of a whole one."""
        size = index_file_size(*self.geometry)
        shorter = {file.name for file in files if file.size != size}
        return shorter == {self.name} and all(file.size <= size for file in files)

    def header(self, slot_count: int) -> bytes:
        """Return the header of the index file after the last durable entry."""
        return INDEX_HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            slot_count,
            self.index_count,
        )


class SyncPointFile:
    """The file in the directory `root`.

    Raises StoreIOError. Threads: one at a time.
    """

    def __init__(self, env: Env, root: str) -> None:
        self._env = env
        self._path = f"{root}/{SYNC_POINT}"

    def read(self) -> SyncPoint | None:
        """Return the content; None without a valid one."""
        try:
            data = self._env.read_file(self._path, size=_FIELDS.size + _CRC.size + 1)
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        found = SyncPoint.decode(data)
        if found is None:
            LOG.warning("%s: damaged: it is ignored", self._path)
        return found

    def write(self, content: SyncPoint) -> None:
        """Replace the content. Durability: durable on return; a crash leaves the old or the new."""
        self._env.write_file(self._path, content.encode())

    def remove(self) -> None:
        """Delete the file. Durability: durable on return."""
        self._env.remove(self._path)


def proven_slots(env: Env, found: FoundIndexFile, content: SyncPoint) -> SlotTable | None:
    """Return the slots for the entries of `content`; None unless the file begins with them.

    The file may have more entries, and slots that name them. Raises StoreIOError.
    """
    if not content.describes(found):
        return None
    number = content.index_count - 1
    last, following = entry_phy_offsets(env, found.path, content.hash_slot_num, number)
    if last != content.end_phy_offset:
        return None
    # Records before `phy_offset` have no more entries; the bytes after these may be any later ones.
    if found.index_count > content.index_count and last < following < content.phy_offset:
        return None
    table = SlotTable(env, found.path, content.hash_slot_num, content.index_count)
    return table if table.valid and table.entries_crc == content.entries_crc else None


def entry_phy_offsets(env: Env, path: str, hash_slot_num: int, number: int) -> tuple[int, int]:
    """Return the physical offsets in an entry of an index file and in the one after it; -1 where
    the file ends before an entry. Raises StoreIOError."""
    fd = env.open(path, 0)
    try:
        data = env.pread(fd, 2 * INDEX_SIZE, entry_position(hash_slot_num, number), path)
    finally:
        env.close(fd)
    found = [
        int(_ENTRY_BEGIN.unpack_from(data, at)[1]) if len(data) >= at + INDEX_SIZE else -1
        for at in (0, INDEX_SIZE)
    ]
    return found[0], found[1]


class Flushed(NamedTuple):
    """A part of the log that was durable.

    Parameters
    ----------
    phy_offset : int, byte of the log before which everything was durable, by `sync_point`, also if
        recovery does not believe the rest of that file; -1: unknown
    timestamp : int, Unix ms, store time up to which it was, by `checkpoint`; 0: unknown
    """

    phy_offset: int
    timestamp: int


def read_flushed(env: Env, root: str) -> Flushed:
    """Return the part of the log that flushes have made durable.

    The caller lists the log after this call: the log of a live owner then has all of that part.
    Raises StoreIOError.
    """
    point = SyncPointFile(env, root).read()
    checkpoint = StoreCheckpoint(env, f"{root}/checkpoint", read_only=True)
    phy_offset = point.phy_offset if point is not None and point.phy_offset else -1
    return Flushed(phy_offset, checkpoint.physic_msg_timestamp)
