"""ConsumeQueueExt: ext units, which hold data that does not fit into a queue unit.

An ext unit is i16 size, i64 tagsCode, i64 store time, i16 size of the bit map, bit map. The queue
unit holds its address in place of the tags code; addresses are below every tags code.
"""

from __future__ import annotations

import dataclasses
import struct

from pyrocketstore.consume_queue._units import scan_ext_units
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreTypeError
from pyrocketstore.files.mapped_file_queue import MappedFileQueue, check_mapped_file
from pyrocketstore.files.planned_changes import PlannedChanges
from pyrocketstore.system.env import Env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile

LOG = logger(__name__)

MIN_EXT_UNIT_SIZE = 20  # bytes, a unit without bit map
MAX_EXT_UNIT_SIZE = 32767  # bytes: the size is a signed short
END_BLANK_DATA_LENGTH = 4  # bytes at the end of every file that stay free
MAX_ADDR = -(2**31) - 1  # a tags code at or below it is an address
NO_ADDRESS = 1  # the result of a put that failed
MAX_REAL_OFFSET = MAX_ADDR + 2**63  # bytes of the stream that addresses can name

_HEADER = struct.Struct(">hqqh")
_END_MARK = b"\xff\xff"
_CONFIRM_STEP = 65536
_READ_SIZE = 1 << 20  # a multiple of the longest unit


def is_ext_addr(address: int) -> bool:
    """Return whether a tags code is the address of an ext unit.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#isExtAddr.
    """
    return address <= MAX_ADDR


def decorate(position: int) -> int:
    """Return the address of a byte of the stream; an address is returned unchanged.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#decorate.
    """
    return position if is_ext_addr(position) else position - 2**63


def un_decorate(address: int) -> int:
    """Return the byte of the stream that an address names; other values are returned unchanged.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#unDecorate.
    """
    return address + 2**63 if is_ext_addr(address) else address


@dataclasses.dataclass(slots=True, frozen=True)
class CqExtUnit:
    """One ext unit: `msg_store_time` in Unix ms, `bit_map` None without one.

    Source: RocketMQ 4.9.3 ConsumeQueueExt.CqExtUnit.
    """

    tags_code: int
    msg_store_time: int
    bit_map: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return MIN_EXT_UNIT_SIZE + len(self.bit_map or b"")

    def encode(self) -> bytes:
        """Encode the unit as its bytes on disk; `size` must be at most 32767."""
        bit_map = self.bit_map or b""
        header = _HEADER.pack(self.size, self.tags_code, self.msg_store_time, len(bit_map))
        return header + bit_map


class ConsumeQueueExt:
    """The ext units of one queue.

    Parameters
    ----------
    store_path : str, directory of all ext units; the files are in TOPIC/QUEUE_ID below it
    mapped_file_size : int, bytes of each file

    Threads: put from the one writer of the queue; get from any.
    Source: RocketMQ 4.9.3 ConsumeQueueExt.
    Differs: an address whose file is deleted is never looked up in another file; a damaged unit
    (its size below 20 or past the file) ends the scan.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        store_path: str,
        mapped_file_size: int,
        env: Env,
        *,
        read_only: bool = False,
        by_write: bool = False,
        changes: PlannedChanges | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.store_path = store_path
        self.mapped_file_size = mapped_file_size
        self.mapped_file_queue = MappedFileQueue(
            env,
            f"{store_path}/{topic}/{queue_id}",
            mapped_file_size,
            read_only=read_only,
            confirm_step=min(_CONFIRM_STEP, mapped_file_size),
            populate=0,
            by_write=by_write,
            derived=True,
            changes=changes,
        )

    is_ext_addr = staticmethod(is_ext_addr)
    decorate = staticmethod(decorate)
    un_decorate = staticmethod(un_decorate)

    def load(self) -> bool:
        """Read the list of files. Raises StoreIOError."""
        return self.mapped_file_queue.load()

    def get(self, address: int) -> CqExtUnit | None:
        """Return the unit at `address`; None for another value, a deleted unit or a damaged one.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#get.
        """
        if not is_ext_addr(address):
            return None
        real = un_decorate(address)
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(real)
        if mapped_file is None:
            return None
        return self._read_unit(mapped_file, real % self.mapped_file_size)

    def put(self, unit: CqExtUnit) -> int:
        """Append a unit; return its address, or 1 where that is not possible.

        Durability: none before `flush`.
        Source: RocketMQ 4.9.3 ConsumeQueueExt#put.
        """
        if not isinstance(unit, CqExtUnit):
            raise StoreTypeError(f"unit must be a CqExtUnit, not {type(unit).__name__}")
        size = unit.size
        end = self.mapped_file_queue.get_max_offset()
        if size > min(MAX_EXT_UNIT_SIZE, self.mapped_file_size - END_BLANK_DATA_LENGTH):
            LOG.error("%s/%d: an ext unit of %d bytes is too long", self.topic, self.queue_id, size)
            return NO_ADDRESS
        if end + size > MAX_REAL_OFFSET:
            LOG.error("%s/%d: no address is left for an ext unit", self.topic, self.queue_id)
            return NO_ADDRESS
        try:
            return self._append(unit.encode(), end)
        except (StoreError, struct.error) as error:
            LOG.error("%s/%d: an ext unit was not stored: %s", self.topic, self.queue_id, error)
            return NO_ADDRESS

    def _append(self, data: bytes, end: int) -> int:
        for _ in range(2):  # at most two files: the unit may have to go to the next one
            mapped_file = self.mapped_file_queue.get_last_mapped_file(end)
            if mapped_file is None:
                break
            if mapped_file.mode == "read":
                mapped_file.to_memory()
            wrote = mapped_file.wrote
            if len(data) <= self.mapped_file_size - wrote - END_BLANK_DATA_LENGTH:
                if mapped_file.append_message(data):
                    return decorate(mapped_file.file_from_offset + wrote)
                break
            mapped_file.append_message(_END_MARK)
            mapped_file.wrote = self.mapped_file_size
            end = mapped_file.file_from_offset + self.mapped_file_size
        return NO_ADDRESS

    def _read_unit(self, mapped_file: MappedFile, position: int) -> CqExtUnit | None:
        left = min(mapped_file.get_read_position(), self.mapped_file_size) - position
        if left < MIN_EXT_UNIT_SIZE:
            return None
        header = mapped_file.read(position, MIN_EXT_UNIT_SIZE)
        size, tags_code, msg_store_time, bit_map_size = _HEADER.unpack(header)
        if size < MIN_EXT_UNIT_SIZE or size > left or bit_map_size > size - MIN_EXT_UNIT_SIZE:
            return None
        bit_map = None
        if bit_map_size > 0:
            bit_map = mapped_file.read(position + MIN_EXT_UNIT_SIZE, bit_map_size)
        return CqExtUnit(tags_code, msg_store_time, bit_map)

    def end_of_units(self, mapped_file: MappedFile) -> int:
        """Return the position after the last unit of a file, found step by step from its start.

        Raises StoreTypeError, StoreIOError.
        """
        check_mapped_file(mapped_file)
        position = 0
        end = min(mapped_file.get_read_position(), self.mapped_file_size)
        while end - position >= MIN_EXT_UNIT_SIZE:
            chunk = mapped_file.read(position, min(end - position, _READ_SIZE))
            valid_size = scan_ext_units(chunk)
            if valid_size == 0:
                break
            position += valid_size
        return position

    def recover(self) -> None:
        """Find the end of the stream, and cut off the bytes after it.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#recover.
        """
        mapped_files = self.mapped_file_queue.mapped_files
        if not mapped_files:
            return
        # All files but the last one count as full; only the end of the last one is unknown.
        last = mapped_files[-1]
        end = last.file_from_offset + self.end_of_units(last)
        self._cut(end)

    def _cut(self, end: int) -> None:
        self.mapped_file_queue.truncate_dirty_files(end)
        self.mapped_file_queue.flushed_where = min(self.mapped_file_queue.flushed_where, end)
        self.mapped_file_queue.committed_where = self.mapped_file_queue.flushed_where

    def truncate_by_min_address(self, min_address: int) -> None:
        """Delete the files that end before `min_address`; no-op for another value.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#truncateByMinAddress.
        """
        if is_ext_addr(min_address):
            real = un_decorate(min_address)
            self.mapped_file_queue.delete_files_before(real)

    def truncate_by_max_address(self, max_address: int) -> None:
        """Drop every unit after the one at `max_address`.

        Nothing changes when the value is not an address, or its unit cannot be read.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#truncateByMaxAddress.
        """
        if not is_ext_addr(max_address):
            return
        unit = self.get(max_address)
        if unit is None:
            LOG.error("%s/%d: no ext unit at address %d", self.topic, self.queue_id, max_address)
            return
        self._cut(un_decorate(max_address) + unit.size)

    def truncate_at(self, position: int) -> None:
        """Drop every unit at or after byte `position` of the stream."""
        self._cut(position)

    def truncate_all(self) -> None:
        """Drop every unit, because the queue that named them is empty."""
        self._cut(self.mapped_file_queue.get_min_offset())

    def flush(self, flush_least_pages: int) -> bool:
        """Flush written pages to the device; return True when there was nothing to do."""
        return self.mapped_file_queue.flush(flush_least_pages)

    def shutdown(self) -> None:
        """Drop all mappings; the object must not be used afterwards."""
        self.mapped_file_queue.shutdown()

    def forget_files(self) -> None:
        """Start empty, because the queue was moved away and nothing names these units."""
        self.destroy()

    def destroy(self) -> None:
        """Delete all files, the oldest first.

        After a StoreIOError the later files remain usable.
        """
        self.mapped_file_queue.destroy_from_first(lambda: None)

    def check_self(self) -> None:
        """Log gaps between the files."""
        self.mapped_file_queue.check_self()

    def get_min_address(self) -> int:
        """Return the address of the first byte that is not deleted.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#getMinAddress.
        """
        return decorate(max(self.mapped_file_queue.get_min_offset(), 0))

    def get_max_address(self) -> int:
        """Return the address of the next unit, if it fits into the last file.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#getMaxAddress.
        """
        return decorate(self.mapped_file_queue.get_max_offset())
