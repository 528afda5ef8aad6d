"""ConsumeQueue: one queue, with a unit for each message that names its record in the log.

Units are written by `_units` and recovered by `queue_recovery`."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable, Iterable

import numpy
from numpy.typing import NDArray

from pyrocketstore.consume_queue._units import MAX_PHY_OFFSET, UnitAppender, has_file
from pyrocketstore.consume_queue.ext import ConsumeQueueExt, CqExtUnit, is_ext_addr
from pyrocketstore.consume_queue.kept_units import KeptUnits
from pyrocketstore.consume_queue.mappings import QueueMapping, QueueMappings
from pyrocketstore.consume_queue.retries import GivenUp, retry
from pyrocketstore.consume_queue.units import (
    CQ_STORE_UNIT_SIZE,
    NO_LIMIT,
    PRE_BLANK,
    FoundQueue,
    QueueUnits,
    UnitReader,
)
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.files._mapped_file import MappedFile, SelectMappedBufferResult
from pyrocketstore.files.file_systems import FileSystems, Unflushed
from pyrocketstore.files.mapped_file_queue import MappedFileQueue, has_data
from pyrocketstore.files.planned_changes import PlannedChanges, changes_of
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.results import DispatchRequest, Status
from pyrocketstore.system.env import Env

__all__ = ["ConsumeQueue", "QueueUnits", "flush_queues"]

LOG = logger(__name__)

MIN_RECORD_SIZE = 91  # bytes of the smallest record: bounds how many messages a queue can have
#: A file grows from one page by doubling, by at most this much at once (bytes).
_CONFIRM_STEP = 4 << 20


class ConsumeQueue(UnitAppender):
    """The units of one queue, 20 bytes each, in files of one length.

    Unit n is always at byte 20 n of the file sequence: n is the message's queue offset.

    Parameters
    ----------
    store_path : str, directory of all queues; the files are in TOPIC/QUEUE_ID below it
    mapped_file_size : int, bytes of each file, rounded up to whole units
    ext : ConsumeQueueExt or None
    min_phy_offset : callable that returns the first byte of the log, for calls without that
        argument
    flags : gets the error when a unit is given up
    by_write : bool, see MappedFile
    mappings : bounds how many queues keep their last file mapped; None: no bound
    changes : see MappedFileQueue

    Threads: put, provide_file, put_units, attach, detach from the one thread that dispatches;
    reading, flush and deletion of expired files from any; load, recovery and truncation before
    dispatching starts.
    Durability: none before `flush`; lost units are rebuilt from the log.
    Source: RocketMQ 4.9.3 ConsumeQueue.
    Differs: a gap is filled with pre-blank units, where 4.9.3 closes it silently; pre-blank units
    count neither for max_physic_offset nor for the minimum.
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
        ext: ConsumeQueueExt | None = None,
        min_phy_offset: Callable[[], int] | None = None,
        flags: RunningFlags | None = None,
        by_write: bool = False,
        mappings: QueueMappings | None = None,
        changes: PlannedChanges | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.store_path = store_path
        self.mapped_file_size = -(-mapped_file_size // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE
        self.env = env
        self.ext = ext
        self.min_phy_offset = min_phy_offset
        self.flags = flags
        self.by_write = by_write
        self.mappings = mappings
        self.changes = changes_of(read_only=read_only) if changes is None else changes
        self.read_only = self.changes.read_only
        self._mapping: QueueMapping | None = None
        self.core.needs_python = ext is not None
        self._open_files()
        # The next four belong to `queue_recovery`.
        #: recovery found units after the queue's end: some before them are lost
        self.cut_short = False
        #: bytes of the log, from which on units may not have been durable before recovery
        self.unsure_from = NO_LIMIT
        #: units that were cut off, kept until the log has been dispatched again
        self.kept_units: KeptUnits | None = None
        #: byte of the last unit that a power cut may have torn, -1 without one
        self.torn_end = -1
        self.stated_max_physic_offset = -1
        self.tail_is_clean = True
        self._first_readable: tuple[int, int] | None = None
        #: another object once the queue has lost units at its end, or all of them
        self.content = object()
        #: messages before this byte of the log are removed from the topic
        self.removed_before = 0
        #: called with a byte of the log: makes the records before it and their units durable
        self.flush_up_to: Callable[[int], None] = lambda phy_offset: None

    def _open_files(self) -> None:
        self.mapped_file_queue = MappedFileQueue(
            self.env,
            f"{self.store_path}/{self.topic}/{self.queue_id}",
            self.mapped_file_size,
            confirm_step=min(_CONFIRM_STEP, self.mapped_file_size),
            zero_fill="folios",
            sole_writer=True,
            by_write=self.by_write,
            derived=True,
            changes=self.changes,
        )
        # Weak, so that a queue that is taken away frees its files at once.
        flush_next_file = weakref.WeakMethod(self._flush_next_file)

        def before_deletion(file: MappedFile) -> None:
            method = flush_next_file()
            if method is not None:
                method(file)

        self.mapped_file_queue.before_deletion = before_deletion
        self.reader = UnitReader(self.mapped_file_queue, self.mapped_file_size)

    def _flush_next_file(self, file: MappedFile) -> None:
        """Have the file after `file` durable, with a unit: without any file a queue begins at
        queue offset 0 again."""
        unit = self.reader.unit(
            (file.file_from_offset + self.mapped_file_size) // CQ_STORE_UNIT_SIZE
        )
        if unit is not None:
            end = self.covered_phy_offset if unit == PRE_BLANK else unit[0] + unit[1]
            self.flush_up_to(end)

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id}, {self.core.unit_count} units>"

    # ---- content ---------------------------------------------------------------------------

    @property
    def units_per_file(self) -> int:
        """Units in one file."""
        return self.mapped_file_size // CQ_STORE_UNIT_SIZE

    @property
    def is_lmq(self) -> bool:
        """True for a light message queue. Source: RocketMQ 4.9.3 MixAll#isLmq."""
        return self.topic.startswith(LMQ_PREFIX)

    @property
    def is_in_memory(self) -> bool:
        """True when a read-only store has built units that are not read from disk."""
        return any(file.mode != "read" for file in self.mapped_file_queue.mapped_files)

    @property
    def max_physic_offset(self) -> int:
        """One past the last message that was queued, bytes of the log; -1 for none.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMaxPhysicOffset. After a truncation that left no unit
        it is the offset of the cut, as in 4.9.3; decisions use `covered_phy_offset`.
        """
        covered = self.core.max_physic_offset
        return covered if covered >= 0 else self.stated_max_physic_offset

    @property
    def covered_phy_offset(self) -> int:
        """Messages of the log before this byte are in the queue; -1 when it is empty."""
        return self.core.max_physic_offset

    def get_max_offset_in_queue(self) -> int:
        """Return the queue offset of the next message; 0 for a queue without files.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMaxOffsetInQueue.
        """
        return self.core.unit_count

    def get_min_offset_in_queue(self) -> int:
        """Return the minimum as 4.9.3 reports it; see `first_readable_offset`.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMinOffsetInQueue.
        """
        return self.core.min_logic_offset // CQ_STORE_UNIT_SIZE

    @property
    def min_logic_offset(self) -> int:
        """The minimum in bytes of the file sequence. Source: RocketMQ 4.9.3 ConsumeQueue."""
        return self.core.min_logic_offset

    def get_message_total_in_queue(self) -> int:
        """Return the units between minimum and end. Source: RocketMQ 4.9.3 ConsumeQueue."""
        return self.get_max_offset_in_queue() - self.get_min_offset_in_queue()

    @staticmethod
    def is_ext_addr(tags_code: int) -> bool:
        """Return whether a tags code is an ext address.

        Source: RocketMQ 4.9.3 ConsumeQueue#isExtAddr.
        """
        return is_ext_addr(tags_code)

    def get_ext(self, address: int) -> CqExtUnit | None:
        """Return the ext unit at `address`, or None. Source: RocketMQ 4.9.3 ConsumeQueue#getExt."""
        return None if self.ext is None else self.ext.get(address)

    def resolve_tags(self, tags_code: int) -> tuple[CqExtUnit | None, int | None]:
        """Return the ext unit (None without one) and the tags code of a unit.

        The code is None when the ext unit is deleted or cannot be read: a filter must read the
        record then.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        if not is_ext_addr(tags_code):
            return None, tags_code
        try:
            unit = self.get_ext(tags_code)
        except StoreIOError as error:
            LOG.warning("%s/%d: an ext unit cannot be read: %s", self.topic, self.queue_id, error)
            unit = None
        return unit, None if unit is None else unit.tags_code

    # ---- life cycle ------------------------------------------------------------------------------

    def load(self) -> bool:
        """Read the list of files. Call `restore_queue`, if files are mismatched, and
        `recover_queue` next. Raises StoreIOError.
        """
        loaded = self.mapped_file_queue.load()
        if self.ext is not None:
            loaded = self.ext.load() and loaded
        self.set_end(-1)
        self.tail_is_clean = False
        return loaded

    def load_found(self, found: FoundQueue) -> None:
        """Load and recover the queue as it was found on disk, without reading it again."""
        self.mapped_file_queue.load_only(found.file_from_offset, found.size)
        self.set_end(found.max_phy_offset)
        self.tail_is_clean = False

    def truncate_dirty_logic_files(self, phy_offset: int) -> None:
        """Drop the units at or after `phy_offset`, bytes of the log.

        Nothing is written when there is no such unit.

        Raises StoreIOError.
        Durability: the units are removed from the device on return.
        Source: RocketMQ 4.9.3 ConsumeQueue#truncateDirtyLogicFiles.
        Differs: an empty last file is dropped (a first one stays, and keeps the queue's end) rather
        than given a unit of zeros; pre-blank units do not count for max_physic_offset, and are
        dropped with the units at or after `phy_offset` before them; dropped bytes are zeroed; ext
        units are dropped too.
        """
        end = self._end_before(phy_offset)
        kept = self.mapped_file_queue.mapped_files
        if end is None:
            self.core.retire()
            while self.mapped_file_queue.get_last_mapped_file(need_create=False) is not None:
                self.mapped_file_queue.delete_last_mapped_file()
            self._where_at_most(0)
        elif kept and end < self.mapped_file_queue.get_max_offset():
            self.core.retire()
            self.cut_to(end, drop_empty=True)
            last = self.mapped_file_queue.mapped_files[-1]
            if last.mode != "read":
                last.zero_tail(last.wrote)
        self.stated_max_physic_offset = phy_offset
        self.set_end(self.reader.last_phy_offset())
        self.truncate_ext()

    def units_before(self, phy_offset: int) -> int:
        """Return get_max_offset_in_queue as it would be after truncate_dirty_logic_files."""
        end = self._end_before(phy_offset)
        return 0 if end is None else end // CQ_STORE_UNIT_SIZE

    def destroy(self) -> None:
        """Delete all files; the queue is empty then and starts at queue offset 0.

        A writer may be storing into the last file: the deleted file stays mapped until the writer
        has left it. After a StoreIOError the queue is empty or keeps its later units.

        Source: RocketMQ 4.9.3 ConsumeQueue#destroy.
        """
        self.mapped_file_queue.destroy_from_first(self._empty)
        if self.ext is not None:
            self.ext.destroy()

    def forget_files(self) -> None:
        """Start empty, because the directory was moved away; no file of the queue is touched.

        Remaining ext files are deleted: nothing names their units any more.
        """
        self._empty()
        self._open_files()
        if self.ext is not None:
            self.ext.forget_files()

    def _empty(self) -> None:
        self.content = object()
        self.core.reset(0, -1)
        self.core.min_logic_offset = 0
        self.stated_max_physic_offset = -1
        self._first_readable = None
        self.kept_units = None
        self.failed = False
        self._forget_mapping()

    def flush(self, flush_least_pages: int) -> bool:
        """Flush written pages of one file to the device; return True when there was nothing to do.

        With 0 pages, repeated until True, all units that were put before are durable.

        Raises StoreIOError.
        Source: RocketMQ 4.9.3 ConsumeQueue#flush.
        """
        result = True
        if self.core.dirty or not self._is_flushed():
            self.core.dirty = False
            result = self.mapped_file_queue.flush(flush_least_pages)
            if not self._is_flushed():
                self.core.dirty = True
        if self.ext is not None:
            result = self.ext.flush(flush_least_pages) and result
        return result

    def unflushed(self) -> list[Unflushed]:
        """Return the files that `flush(0)` would write; after FileSystems.flush, call
        `pass_flushed`."""
        found = []
        if self.core.dirty or not self._is_flushed():
            self.core.dirty = False
            found = self.mapped_file_queue.unflushed()
        if self.ext is not None:
            found += self.ext.mapped_file_queue.unflushed()
        return found

    def pass_flushed(self) -> None:
        """Take note that the files of `unflushed` are flushed."""
        self.mapped_file_queue.pass_flushed()
        if not self._is_flushed():
            self.core.dirty = True
        if self.ext is not None:
            self.ext.mapped_file_queue.pass_flushed()

    def _is_flushed(self) -> bool:
        return bool(self.mapped_file_queue.flushed_where >= self.mapped_file_queue.get_max_offset())

    def delete_expired_file(self, min_phy_offset: int) -> int:
        """Delete the files whose last unit is before `min_phy_offset`, but not the last file.

        Returns how many. Source: RocketMQ 4.9.3 ConsumeQueue#deleteExpiredFile.
        Differs: pre-blank units at the end of a file do not hide the messages before them; removed
        messages count as expired.
        """
        count = self.mapped_file_queue.delete_expired_file_by_offset(
            max(min_phy_offset, self.removed_before), self.reader.newest_phy_offset_in
        )
        self.correct_min_offset(min_phy_offset)
        return int(count)

    def check_self(self) -> None:
        """Log gaps between the files. Source: RocketMQ 4.9.3 ConsumeQueue."""
        self.mapped_file_queue.check_self()
        if self.ext is not None:
            self.ext.check_self()

    def shutdown(self) -> None:
        """Drop all mappings; the queue must not be used afterwards.

        Nothing is deleted or flushed.
        """
        self.core.detach()
        self._forget_mapping()
        self.mapped_file_queue.shutdown()
        if self.ext is not None:
            self.ext.shutdown()

    def unmap_idle(self) -> None:
        """Drop the mappings that are not held; the next use maps the files again."""
        self.mapped_file_queue.unmap_idle()
        if self.ext is not None:
            self.ext.mapped_file_queue.unmap_idle()

    # ---- minimum ---------------------------------------------------------------------------------

    def correct_min_offset(self, min_phy_offset: int) -> bool:
        """Set the minimum to the first unit of the first file whose record the log still has.

        Without such a unit in that file the minimum does not change, as in 4.9.3, and the result is
        False.

        Source: RocketMQ 4.9.3 ConsumeQueue#correctMinOffset.
        Differs: pre-blank units never match; removed messages are before the minimum, which is then
        in any file.
        """
        if self.removed_before > min_phy_offset:
            first_kept = self.first_readable_offset(min_phy_offset)
            self.core.min_logic_offset = first_kept * CQ_STORE_UNIT_SIZE
            return True
        mapped_files = self.mapped_file_queue.mapped_files
        if not mapped_files:
            return False
        first = mapped_files[0]
        found = self.reader.find_min(first, min_phy_offset)
        if found is None:
            return False
        position, unit = found
        self.core.min_logic_offset = first.file_from_offset + position
        if self.ext is not None:
            self.ext.truncate_by_min_address(unit[2])
        return True

    def has_first_file(self) -> bool:
        """Return whether the first file is on disk."""
        first = self.mapped_file_queue.get_first_mapped_file()
        return first is not None and self.env.exists(first.path)

    def forget_deleted(self, min_phy_offset: int) -> bool:
        """Forget files that the owner of a read-only store has deleted; the minimum becomes that of
        a new opening. Returns True if all messages of the first file have expired."""
        self.mapped_file_queue.forget_deleted()
        if self.correct_min_offset(min_phy_offset):
            return False
        self.core.min_logic_offset = 0
        return len(self.mapped_file_queue.mapped_files) > 1

    def keep_minimum(self, old: ConsumeQueue, min_phy_offset: int) -> None:
        """Take the minimum from an object of the same queue with the same first file, unless it is
        out of date."""
        unit = old.reader.unit(old.min_logic_offset // CQ_STORE_UNIT_SIZE)
        low = max(min_phy_offset, self.removed_before)
        if unit is not None and unit[0] >= low and unit != PRE_BLANK:
            self.core.min_logic_offset = old.min_logic_offset
            self._first_readable = old._first_readable
        elif not self.correct_min_offset(min_phy_offset):
            self.core.min_logic_offset = old.min_logic_offset

    def first_readable_offset(self, min_phy_offset: int | None = None) -> int:
        """Return the queue offset of the first message that the log still has; the end without one.

        Parameters
        ----------
        min_phy_offset : int, first byte of the log; None: call the queue's `min_phy_offset`
        """
        limit = min_phy_offset
        if limit is None or limit < self.removed_before:
            limit = self._min_phy_offset(limit)
        end = self.core.unit_count
        known = self._first_readable
        if known is not None and known[0] <= limit and known[1] < end:
            # Only an owner's cleaning deletes files, after those of the log.
            if known[0] == limit and (not self.read_only or has_file(self.reader, known[1])):
                return known[1]
            unit = self.reader.unit(known[1])
            if unit is not None and unit[0] >= limit and unit != PRE_BLANK:
                return known[1]
        found = self.reader.first_readable(limit)
        if found is None or found > end:
            found = end
        self._first_readable = (limit, found)
        return found

    def _min_phy_offset(self, given: int | None) -> int:
        if given is None:
            if self.min_phy_offset is None:
                reason = "pass min_phy_offset: the queue was made without it"
                raise StoreStateError(f"{self!r}: {reason}")
            given = self.min_phy_offset()
        return given if given > self.removed_before else self.removed_before

    # ---- writing ---------------------------------------------------------------------------------

    def put_message_position_info_wrapper(self, request: DispatchRequest) -> bool:
        """Append the unit of one record of the log; return whether the queue holds it.

        Tries again while the cause of an error may pass: see `retries`. When the unit is given up,
        the queue accepts no more units, so that recovery can build the missing ones from the log.

        Source: RocketMQ 4.9.3 ConsumeQueue#putMessagePositionInfoWrapper. The times of the
        checkpoint are the dispatcher's.
        Differs: neither a repeated record nor a retry adds an ext unit.
        """
        tags_code = request.tags_code
        repeat = self._is_repeat(
            request.commit_log_offset, request.msg_size, request.consume_queue_offset
        )
        if repeat:
            self.core.put(  # notes a queue offset that comes again
                request.commit_log_offset, request.msg_size, tags_code, request.consume_queue_offset
            )
        elif self.ext is not None and self._may_write():
            unit = CqExtUnit(tags_code, request.store_timestamp, request.bit_map)
            address = self.ext.put(unit)
            if is_ext_addr(address):
                tags_code = address
            if self.core.unmapped:
                self.ext.mapped_file_queue.unmap_idle()
        return repeat or self._persist(
            lambda: self.put_message_position_info(
                request.commit_log_offset,
                request.msg_size,
                tags_code,
                request.consume_queue_offset,
            )
        )

    def put_light(self, request: DispatchRequest, queue_offset: int) -> bool:
        """Append the unit of a record that names this queue as a further one, without an ext
        unit.
        """
        return self._persist(
            lambda: self.put_message_position_info(
                request.commit_log_offset, request.msg_size, request.tags_code, queue_offset
            )
        )

    def _put_slowly(self, phy_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Put a unit that needs a file or follows a gap, or whose compiled put has failed."""
        for _ in range(4):  # a gap, a file, the unit, and one more for a race with destroy
            status = self.core.put(phy_offset, size, tags_code, queue_offset)
            if status in (Status.OK, Status.REPEAT):
                return True
            if status == Status.NEED_FILE:
                self._attach_last_file()
            elif status == Status.NEED_PYTHON:
                if not self._is_plausible(phy_offset, size, queue_offset):
                    return False
                self._put_kept(queue_offset, phy_offset)
                self._fill_gap(queue_offset)
            else:
                file = self.core.attached_file
                path = self.store_path if file is None else file.path
                raise StoreIOError(-status, "fallocate", path)
        raise StoreStateError(f"{self.topic}/{self.queue_id} is being destroyed")

    def put_units(
        self,
        phy_offset: NDArray[numpy.int64],
        size: NDArray[numpy.int32],
        tags_code: NDArray[numpy.int64],
    ) -> None:
        """Append a run of units at the end of the queue, over as many files as needed.

        The caller leaves out units that the queue has. Raises StoreIOError; `unit_count` then says
        how many were appended.
        """
        done = 0
        while done < len(phy_offset):
            count = self.core.put_units(phy_offset[done:], size[done:], tags_code[done:])
            if count == 0:
                self._attach_last_file()
            done += count

    def provide_file(self, queue_offset: int) -> bool:
        """Attach a file with room after Status.NEED_FILE; try again as a put does.

        Returns False when that was given up; the flag of write errors is set then.
        """
        if queue_offset > self.core.unit_count:
            return True  # a gap, which the put fills
        return self._persist(self._attach_last_file)

    def detach(self) -> None:
        """Release the last file, to bound how many files are mapped; a put attaches it again."""
        self.core.detach()
        self.unmap_idle()

    def _forget_mapping(self) -> None:
        if self.mappings is not None and self._mapping is not None:
            self.mappings.remove(self._mapping)

    def _persist(self, action: Callable[[], bool]) -> bool:
        """Run `action` with retries; when it is given up, mark the queue and the flags.

        A queue that is marked gives up without a try, and without another line in the log.
        """
        if self.failed:
            if self.flags is not None:
                self.flags.make_logics_queue_error()
            return False
        try:
            return retry(
                self.env, self.flags, f"{self.topic}/{self.queue_id}", self._may_write, action
            )
        except GivenUp as given_up:
            self.failed = True
            if self.flags is not None:
                self.flags.make_logics_queue_error(given_up.cause)
            return False

    def _may_write(self) -> bool:
        return not self.failed and (self.flags is None or self.flags.is_cq_writeable())

    def _is_repeat(self, phy_offset: int, size: int, queue_offset: int) -> bool:
        covered = self.core.max_physic_offset
        return phy_offset + size <= covered or queue_offset < self.core.unit_count

    def _is_plausible(self, phy_offset: int, size: int, queue_offset: int) -> bool:
        """Return whether a record can have that queue offset: a damaged record must not fill the
        device with pre-blank units."""
        gap = queue_offset - self.core.unit_count
        gap_max = phy_offset // MIN_RECORD_SIZE + 2 * self.units_per_file
        if size > 0 and 0 <= phy_offset <= MAX_PHY_OFFSET and gap <= gap_max:
            return True
        LOG.error(
            "%s/%d: no unit for the record of %d bytes at %d: its queue offset %d is not possible",
            self.topic,
            self.queue_id,
            size,
            phy_offset,
            queue_offset,
        )
        return False

    def _attach_last_file(self) -> bool:
        """Attach the file at the end of the queue, made if necessary; return True."""
        queue = self.mapped_file_queue
        last = queue.get_last_mapped_file(need_create=False)
        if last is None or last.is_full():
            start = self.core.unit_count * CQ_STORE_UNIT_SIZE
            last = queue.get_last_mapped_file(start, mapped=self._may_map())
            if last is None:
                raise StoreIOError(errno.EIO, "create", self.store_path)
            self.tail_is_clean = True
        self._attach(last)
        return True

    def _attach(self, mapped_file: MappedFile) -> None:
        if mapped_file.mode == "read":
            mapped_file.to_memory()
        if not self.tail_is_clean:
            self._clean_tail(mapped_file)
            self.tail_is_clean = True
        units = (mapped_file.file_from_offset + mapped_file.wrote) // CQ_STORE_UNIT_SIZE
        if units != self.core.unit_count:
            self.core.reset(units, self.core.max_physic_offset)
        if not self._attach_shared(mapped_file):
            raise StoreStateError(f"{mapped_file.path} is being deleted")

    def _attach_shared(self, mapped_file: MappedFile) -> bool:
        """Map and hold the file, or leave it unmapped where there are mappings enough."""
        if self.mappings is None or mapped_file.mode != "shared":
            return self.core.attach(mapped_file)
        if self._may_map():
            try:
                return self.core.attach(mapped_file)
            except StoreIOError as error:
                if error.errno != errno.ENOMEM or self._mapping is None:
                    raise
                self.mappings.refuse(self._mapping)
        return self.core.attach_unmapped(mapped_file)

    def _may_map(self) -> bool:
        """Return whether the last file is to be mapped; the queue counts as mapped then."""
        if self.mappings is None:
            return False
        if self._mapping is None:
            self._mapping = QueueMapping(self.core, self)
        return self._mapping.index >= 0 or self.mappings.admit(self._mapping)

    def _clean_tail(self, mapped_file: MappedFile) -> None:
        """Zero bytes that an earlier process may have left after the end of a file."""
        wrote, end = mapped_file.wrote, mapped_file.file_size
        if mapped_file.mode != "shared":
            return  # the disk is not written, and memory holds zeros there
        if has_data(self.env, mapped_file, wrote, end):
            mapped_file.zero_tail(wrote)

    def _put_kept(self, queue_offset: int, phy_offset: int) -> None:
        """Put back kept units before `queue_offset` that the log has not supplied again.

        They name records between the queue's last message and `phy_offset`, bytes of the log.
        """
        while self.kept_units:
            start, covered = self.core.unit_count, max(0, self.core.max_physic_offset)
            kept = self.kept_units.first(start, queue_offset, covered, phy_offset)
            if kept is None or not self._put_slowly(*kept.unit, kept.queue_offset):
                return

    def _fill_gap(self, queue_offset: int) -> None:
        """Append pre-blank units up to `queue_offset`."""
        queue = self.mapped_file_queue
        expect = queue_offset * CQ_STORE_UNIT_SIZE
        if queue.get_last_mapped_file(need_create=False) is None:
            # The first message of a queue decides where its first file starts.
            first = queue.get_last_mapped_file(expect, mapped=self._may_map())
            if first is None:
                raise StoreIOError(errno.EIO, "create", self.store_path)
            self.tail_is_clean = True
            self._attach(first)
            self.core.min_logic_offset = expect
            queue.flushed_where = expect
            queue.committed_where = expect
        elif self.core.unit_count < queue_offset:
            LOG.warning(
                "%s/%d: no messages for the offsets %d to %d",
                self.topic,
                self.queue_id,
                self.core.unit_count,
                queue_offset - 1,
            )
        while self.core.unit_count < queue_offset:
            if self.core.fill_pre_blank(queue_offset - self.core.unit_count) == 0:
                self._attach_last_file()

    # ---- reading ---------------------------------------------------------------------------------

    def get_index_buffer(self, start_index: int) -> SelectMappedBufferResult | None:
        """Return the units from `start_index` to the end of that file; None without any.

        The caller releases the view. Source: RocketMQ 4.9.3 ConsumeQueue#getIndexBuffer.
        """
        position = start_index * CQ_STORE_UNIT_SIZE
        if position < self.core.min_logic_offset:
            return None
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if mapped_file is None:
            return None
        return mapped_file.select_mapped_buffer(position % self.mapped_file_size)

    def read_units(self, start: int, max_count: int) -> QueueUnits:
        """Return units from queue offset `start` on, over file boundaries, with pre-blank ones.

        Fewer than `max_count`, perhaps none, where the queue ends or a file is deleted.

        Raises StoreIOError.
        """
        count = min(max_count, self.get_max_offset_in_queue() - start)
        return self.reader.columns(start, count if start >= 0 and count > 0 else 0)

    def roll_next_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the next file.

        Source: RocketMQ 4.9.3 ConsumeQueue#rollNextFile.
        """
        return queue_offset + self.units_per_file - queue_offset % self.units_per_file

    def get_last_offset(self) -> int:
        """Return one past the last message that the queue names, bytes of the log; -1 without one.

        Source: RocketMQ 4.9.3 ConsumeQueue#getLastOffset.
        Differs: also right for an exactly full file, and never reads after the queue's end.
        """
        return self.reader.last_phy_offset()

    def get_offset_in_queue_by_time(
        self,
        timestamp: int,
        pickup_store_timestamp: Callable[[int, int], int],
        min_phy_offset: int | None = None,
    ) -> int:
        """Return the queue offset that 4.9.3 finds for a time: a near one, from one file only.

        Parameters
        ----------
        timestamp : int, Unix ms
        pickup_store_timestamp : callable(phy_offset, size), Unix ms; -1 for an unreadable message
        min_phy_offset : int, first byte of the log; None: call the queue's `min_phy_offset`

        Source: RocketMQ 4.9.3 ConsumeQueue#getOffsetInQueueByTime. The file is chosen by the time
        at which it was last written; of units with equal times the search finds any.
        """
        limit = self._min_phy_offset(min_phy_offset)
        return self.reader.nearest_by_time(
            timestamp, pickup_store_timestamp, self.core.min_logic_offset, limit
        )

    def lower_bound_by_time(
        self,
        timestamp: int,
        pickup_store_timestamp: Callable[[int, int], int],
        min_phy_offset: int | None = None,
    ) -> int:
        """Return the first queue offset whose message was stored at `timestamp` or later, or the
        end.

        Parameters as for get_offset_in_queue_by_time. Units without a readable message are skipped.
        Assumes store times that rise with the offset.
        """
        low = self.first_readable_offset(min_phy_offset)
        high = self.get_max_offset_in_queue()
        return self.reader.lower_bound_by_time(low, high, timestamp, pickup_store_timestamp)

    # ---- files -----------------------------------------------------------------------------------

    def _end_before(self, phy_offset: int) -> int | None:
        if 0 <= self.core.max_physic_offset <= phy_offset:
            return self.mapped_file_queue.get_max_offset()  # the common case: no search
        return self.reader.end_before(phy_offset)

    def cut_to(self, end: int, *, drop_empty: bool) -> None:
        """Delete the files after byte `end` of the queue, and set the positions of the last one.

        `drop_empty`: a last file that would have no unit is deleted too, unless it is the only one.
        The bytes after `end` in a kept file do not change.
        """
        self.content = object()
        queue = self.mapped_file_queue
        mapped_files = queue.mapped_files
        limit = end - 1 if drop_empty else end
        while len(mapped_files) > 1 and mapped_files[-1].file_from_offset > limit:
            queue.delete_last_mapped_file()
            mapped_files = queue.mapped_files
        if mapped_files:
            last = mapped_files[-1]
            last.set_positions(min(end - last.file_from_offset, last.file_size))
        self._where_at_most(end)

    def _where_at_most(self, end: int) -> None:
        queue = self.mapped_file_queue
        queue.flushed_where = min(queue.flushed_where, end)
        queue.committed_where = min(queue.committed_where, end)

    def set_end(self, max_phy_offset: int) -> None:
        """Set the end of the queue to the end of its files, after a change of the files."""
        end = self.mapped_file_queue.get_max_offset()
        self.core.reset(int(end) // CQ_STORE_UNIT_SIZE, max_phy_offset)
        self._first_readable = None
        self.failed = False

    def truncate_ext(self) -> None:
        """Drop the ext units that no unit of the queue names."""
        if self.ext is None:
            return
        if not self.mapped_file_queue.mapped_files:
            self.ext.truncate_all()
            return
        unit = self.reader.last_unit(with_ext=True)
        if unit is not None:
            self.ext.truncate_by_max_address(unit[2])


def flush_queues(queues: Iterable[ConsumeQueue], file_systems: FileSystems) -> None:
    """Flush all units that were put before, of all queues together.

    Raises StoreIOError: some queues may be flushed.
    """
    files: list[Unflushed] = []
    touched = []
    for queue in queues:
        found = queue.unflushed()
        if found:
            touched.append(queue)
            files += found
    try:
        file_systems.flush(files)
    finally:
        for queue in touched:
            queue.pass_flushed()
