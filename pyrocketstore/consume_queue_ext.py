"""ConsumeQueueExt: what does not fit into a queue unit, in a stream of its own.

A unit is i16 size, i64 tagsCode, i64 store time, i16 size of the bit map, bit map. Its address
stands in the queue unit in place of the tags code; addresses lie below every tags code.
"""

from __future__ import annotations

import dataclasses
import struct

from pyrocketstore._consume_queue import scan_ext_units
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreError
from pyrocketstore.mapped_file_queue import MappedFileQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyrocketstore._mapped_file import MappedFile

LOG = logger(__name__)

MIN_EXT_UNIT_SIZE = 20  # bytes, a unit without bit map
MAX_EXT_UNIT_SIZE = 32767  # bytes: the size is a signed short
END_BLANK_DATA_LENGTH = 4  # bytes that every file keeps spare
MAX_ADDR = -(2**31) - 1  # a tags code at or below it is an address
NO_ADDRESS = 1  # what put answers when there is none
MAX_REAL_OFFSET = MAX_ADDR + 2**63  # bytes of the stream that addresses can name

_HEADER = struct.Struct(">hqqh")
_END_MARK = b"\xff\xff"
_CONFIRM_STEP = 65536
_READ_SIZE = 1 << 20  # a piece holds the longest unit many times


def is_ext_addr(address: int) -> bool:
    """Whether a tags code is the address of an ext unit.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#isExtAddr.
    """
    return address <= MAX_ADDR


def decorate(position: int) -> int:
    """The address of a byte of the stream; an address stays what it is.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#decorate.
    """
    return position if is_ext_addr(position) else position - 2**63


def un_decorate(address: int) -> int:
    """The byte of the stream that an address names; anything else stays what it is.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#unDecorate.
    """
    return address + 2**63 if is_ext_addr(address) else address


@dataclasses.dataclass(slots=True, frozen=True)
class CqExtUnit:
    """One unit: `msg_store_time` in Unix ms, `bit_map` None where there is none.

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
        """The bytes on disk; `size` must be at most 32767."""
        bit_map = self.bit_map or b""
        header = _HEADER.pack(self.size, self.tags_code, self.msg_store_time, len(bit_map))
        return header + bit_map


class ConsumeQueueExt:
    """The ext units of one queue.

    Parameters
    ----------
    store_path : str, directory of all ext units; the files lie in TOPIC/QUEUE_ID below it
    mapped_file_size : int, bytes of each file

    Threads: put from the queue's one writer; get from anyone.
    Source: RocketMQ 4.9.3 ConsumeQueueExt.
    Differs: an address whose file is gone is never looked up in another file; a damaged unit (its
    size below 20 or past the file) ends the walk instead of leading it astray.
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
        )

    is_ext_addr = staticmethod(is_ext_addr)
    decorate = staticmethod(decorate)
    un_decorate = staticmethod(un_decorate)

    def load(self) -> bool:
        """Read the list of files. Raises StoreIOError."""
        return self.mapped_file_queue.load()

    def get(self, address: int) -> CqExtUnit | None:
        """The unit at `address`, or None: no address, no such unit any more, or a damaged one.

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
        """Append a unit; gives its address, or 1 where that is not possible.

        Durability: none before `flush`.
        Source: RocketMQ 4.9.3 ConsumeQueueExt#put.
        """
        size = unit.size
        end = self.mapped_file_queue.get_max_offset()
        if size > min(MAX_EXT_UNIT_SIZE, self.mapped_file_size - END_BLANK_DATA_LENGTH):
            LOG.error("%s/%d: an ext unit of %d bytes is too long", self.topic, self.queue_id, size)
            return NO_ADDRESS
        if end + size > MAX_REAL_OFFSET:
            LOG.error("%s/%d: the ext stream is at its end", self.topic, self.queue_id)
            return NO_ADDRESS
        try:
            return self._append(unit.encode(), end)
        except (StoreError, struct.error) as error:
            LOG.error("%s/%d: ext unit not stored: %s", self.topic, self.queue_id, error)
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
        """Position of a file behind the last unit that the steps from its first one reach."""
        position = 0
        end = min(mapped_file.get_read_position(), self.mapped_file_size)
        while end - position >= MIN_EXT_UNIT_SIZE:
            piece = mapped_file.read(position, min(end - position, _READ_SIZE))
            valid_size = scan_ext_units(piece)
            if valid_size == 0:
                break
            position += valid_size
        return position

    def recover(self) -> None:
        """Find the end of the stream and cut off what lies behind it.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#recover.
        """
        mapped_files = self.mapped_file_queue.mapped_files
        if not mapped_files:
            return
        # Every earlier file is full whatever it holds; only the last one's end is unknown.
        last = mapped_files[-1]
        end = last.file_from_offset + self.end_of_units(last)
        self._cut(end)

    def _cut(self, end: int) -> None:
        self.mapped_file_queue.truncate_dirty_files(end)
        self.mapped_file_queue.flushed_where = min(self.mapped_file_queue.flushed_where, end)
        self.mapped_file_queue.committed_where = self.mapped_file_queue.flushed_where

    def truncate_by_min_address(self, min_address: int) -> None:
        """Delete the files that end before `min_address`; no-op where it is not an address.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#truncateByMinAddress.
        """
        if is_ext_addr(min_address):
            real = un_decorate(min_address)
            self.mapped_file_queue.delete_files_before(real)

    def truncate_by_max_address(self, max_address: int) -> None:
        """Keep everything up to and including the unit at `max_address`, and drop the rest.

        Nothing changes where it is not an address, or its unit cannot be read.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#truncateByMaxAddress.
        """
        if not is_ext_addr(max_address):
            return
        unit = self.get(max_address)
        if unit is None:
            LOG.error("%s/%d: no ext unit at %d", self.topic, self.queue_id, max_address)
            return
        self._cut(un_decorate(max_address) + unit.size)

    def truncate_at(self, position: int) -> None:
        """Drop every unit at or behind byte `position` of the stream."""
        self._cut(position)

    def truncate_all(self) -> None:
        """Drop every unit: the queue that named them is empty."""
        self._cut(self.mapped_file_queue.get_min_offset())

    def flush(self, flush_least_pages: int) -> bool:
        """Force written pages to the device; True when there was nothing to do."""
        return self.mapped_file_queue.flush(flush_least_pages)

    def shutdown(self) -> None:
        """Give all mappings back; the object is not used after it."""
        self.mapped_file_queue.shutdown()

    def forget_files(self) -> None:
        """Start empty: the queue's directory was moved away, and nothing names these units."""
        self.destroy()

    def destroy(self) -> None:
        """Delete all files. Raises StoreIOError: it goes on with the later ones then."""
        self.mapped_file_queue.destroy_from_first(lambda: None)

    def check_self(self) -> None:
        """Log where the files do not follow each other."""
        self.mapped_file_queue.check_self()

    def get_min_address(self) -> int:
        """Address of the first byte that is still there.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#getMinAddress.
        """
        return decorate(max(self.mapped_file_queue.get_min_offset(), 0))

    def get_max_address(self) -> int:
        """Address that the next unit would have if it fits into its file.

        Source: RocketMQ 4.9.3 ConsumeQueueExt#getMaxAddress.
        """
        return decorate(self.mapped_file_queue.get_max_offset())
