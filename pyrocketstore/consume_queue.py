"""ConsumeQueue: for each message of one topic and queue id, where the log has it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy
from numpy.typing import NDArray

from pyrocketstore._consume_queue import MAX_PHY_OFFSET, VERDICTS, UnitAppender
from pyrocketstore._mapped_file import MappedFile, SelectMappedBufferResult
from pyrocketstore.consume_queue_ext import NO_ADDRESS, ConsumeQueueExt, CqExtUnit, is_ext_addr
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreIOError, StoreStateError, is_passing
from pyrocketstore.kept_units import KeptUnit, KeptUnits
from pyrocketstore.mapped_file_queue import MappedFileQueue
from pyrocketstore.message import LMQ_PREFIX, java_split, parse_java_int
from pyrocketstore.queue_units import (
    CQ_STORE_UNIT_SIZE,
    NO_LIMIT,
    PRE_BLANK,
    QueueFlags,
    QueueUnits,
    UnitReader,
)
from pyrocketstore.results import DispatchRequest

__all__ = ["ConsumeQueue", "QueueUnits"]

LOG = logger(__name__)

#: A put that fails is tried this often, this long apart.
MAX_RETRIES = 30
RETRY_INTERVAL_S = 1.0
MIN_RECORD_SIZE = 91  # bytes in the log: no queue can have more messages than such records fit
_CONFIRM_STEP = 65536
_READ_SIZE = 1 << 20
_RS_OK = VERDICTS["RS_OK"]
_RS_REPEAT = VERDICTS["RS_REPEAT"]
_RS_NEED_FILE = VERDICTS["RS_NEED_FILE"]
_RS_NEED_PYTHON = VERDICTS["RS_NEED_PYTHON"]


class ConsumeQueue(UnitAppender):
    """The units of one queue, 20 bytes each, in files of one length.

    Unit n stands at byte 20 n of the stream, always: n is the message's queue offset.

    Parameters
    ----------
    store_path : str, directory of all queues; the files lie in TOPIC/QUEUE_ID below it
    mapped_file_size : int, bytes of each file, rounded up to whole units
    ext : ConsumeQueueExt or None
    min_phy_offset : callable giving the first byte that the log still has, for calls that do not
        name it themselves
    flags : told when an entry had to be given up
    find_consume_queue : callable(topic, queue_id), for multi-dispatch
    enable_lmq : bool, light queues have queue id 0
    by_write : bool, see MappedFile

    Threads: put, provide_file, put_units, attach, detach from the one thread that dispatches;
    reading, flush and deletion of expired files from anyone; load, recover and truncation before
    dispatching starts.
    Durability: none before `flush`; what is lost is built again from the log.
    Source: RocketMQ 4.9.3 ConsumeQueue.
    Differs: a gap is filled with pre-blank units instead of being closed silently; these count
    neither for max_physic_offset nor for the minimum.
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
        flags: QueueFlags | None = None,
        find_consume_queue: Callable[[str, int], ConsumeQueue | None] | None = None,
        enable_lmq: bool = False,
        by_write: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.store_path = store_path
        self.mapped_file_size = -(-mapped_file_size // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE
        self.env = env
        self.read_only = read_only
        self.ext = ext
        self.min_phy_offset = min_phy_offset
        self.flags = flags
        self.find_consume_queue = find_consume_queue
        self.enable_lmq = enable_lmq
        self.by_write = by_write
        self.core.needs_python = ext is not None
        self._open_files()
        #: recovery found units behind the queue's end: some have been lost before them
        self.cut_short = False
        #: bytes of the log, from where on nothing was surely forced before recovery
        self.unsure_from = NO_LIMIT
        self._kept = KeptUnits()
        self._stated_max_physic_offset = -1
        self._tail_is_clean = True
        self._torn_end = -1
        self._first_readable: tuple[int, int] | None = None

    def _open_files(self) -> None:
        self.mapped_file_queue = MappedFileQueue(
            self.env,
            f"{self.store_path}/{self.topic}/{self.queue_id}",
            self.mapped_file_size,
            read_only=self.read_only,
            confirm_step=min(_CONFIRM_STEP, self.mapped_file_size),
            zero_fill="folios",
            sole_writer=True,
            by_write=self.by_write,
            derived=True,
        )
        self.reader = UnitReader(self.mapped_file_queue, self.mapped_file_size)

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id}, {self.core.unit_count} units>"

    # ---- what it holds ---------------------------------------------------------------------------

    @property
    def units_per_file(self) -> int:
        """Units in one file."""
        return self.mapped_file_size // CQ_STORE_UNIT_SIZE

    @property
    def is_lmq(self) -> bool:
        """Whether this is a light message queue. Source: RocketMQ 4.9.3 MixAll#isLmq."""
        return self.topic.startswith(LMQ_PREFIX)

    @property
    def max_physic_offset(self) -> int:
        """One past the last message that was queued, bytes of the log; -1 for none.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMaxPhysicOffset. After a truncation that left nothing
        it is the offset cut at, as there; `covered_phy_offset` is what decides.
        """
        covered = self.core.max_physic_offset
        return covered if covered >= 0 else self._stated_max_physic_offset

    @property
    def covered_phy_offset(self) -> int:
        """Messages of the log below it are in this queue already; -1 when it is empty."""
        return self.core.max_physic_offset

    def get_max_offset_in_queue(self) -> int:
        """Queue offset of the next message; 0 for a queue without files.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMaxOffsetInQueue.
        """
        return self.core.unit_count

    def get_min_offset_in_queue(self) -> int:
        """The minimum as 4.9.3 states it; see `first_readable_offset`.

        Source: RocketMQ 4.9.3 ConsumeQueue#getMinOffsetInQueue.
        """
        return self.core.min_logic_offset // CQ_STORE_UNIT_SIZE

    @property
    def min_logic_offset(self) -> int:
        """The minimum in bytes of the stream. Source: RocketMQ 4.9.3 ConsumeQueue."""
        return self.core.min_logic_offset

    def get_message_total_in_queue(self) -> int:
        """Units between minimum and end. Source: RocketMQ 4.9.3 ConsumeQueue."""
        return self.get_max_offset_in_queue() - self.get_min_offset_in_queue()

    @staticmethod
    def is_ext_addr(tags_code: int) -> bool:
        """Whether a tags code is an ext address. Source: RocketMQ 4.9.3 ConsumeQueue#isExtAddr."""
        return is_ext_addr(tags_code)

    def get_ext(self, address: int) -> CqExtUnit | None:
        """The ext unit at `address`, or None. Source: RocketMQ 4.9.3 ConsumeQueue#getExt."""
        return None if self.ext is None else self.ext.get(address)

    def resolve_tags(self, tags_code: int) -> tuple[CqExtUnit | None, int | None]:
        """The ext unit (None without one) and the tags code of a unit; no code if its ext unit is
        gone or cannot be read: whoever filters must look at the record then.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        if not is_ext_addr(tags_code):
            return None, tags_code
        try:
            unit = self.get_ext(tags_code)
        except StoreIOError as error:
            LOG.warning("%s/%d: an ext unit is not read: %s", self.topic, self.queue_id, error)
            unit = None
        return unit, None if unit is None else unit.tags_code

    # ---- life cycle ------------------------------------------------------------------------------

    def load(self) -> bool:
        """Read the list of files; `restore_queue` must follow where some are mismatched, and
        `recover`. Raises StoreIOError.
        """
        loaded = self.mapped_file_queue.load()
        if self.ext is not None:
            loaded = self.ext.load() and loaded
        self._set_end(-1)
        self._tail_is_clean = False
        return loaded

    def recover(
        self, phy_offset: int = NO_LIMIT, before_cut: Callable[[], None] = lambda: None
    ) -> None:
        """Find the end of the queue, and drop the files behind it.

        The last three files are looked at, and each that may name messages at or behind
        `phy_offset`, bytes of the log, from where on nothing was surely forced. `before_cut` is
        called where units are lost.

        The bytes behind the end stay as they are until something is written there; then they are
        zeroed first, so that units of an earlier life never come back.

        Raises StoreIOError.
        Source: RocketMQ 4.9.3 ConsumeQueue#recover.
        """
        mapped_files = self.mapped_file_queue.mapped_files
        self.unsure_from = phy_offset
        self._stated_max_physic_offset = -1
        self.cut_short = False
        end, max_phy_offset = 0, -1
        if not mapped_files:
            self._set_end(-1)
            return
        last_address = NO_ADDRESS
        for mapped_file in mapped_files[self.reader.first_to_scan(phy_offset) :]:
            valid_size, phy_offset, address = self.reader.scan(mapped_file, NO_LIMIT)
            end = mapped_file.file_from_offset + valid_size
            if phy_offset >= 0:
                max_phy_offset = phy_offset
            if address != NO_ADDRESS:
                last_address = address
            if valid_size < self.mapped_file_size:
                is_last = mapped_file is mapped_files[-1]
                self.cut_short = not is_last or self.reader.has_data(mapped_file, valid_size)
                if self.cut_short and self.read_only:
                    # Another process may have gone on writing: then there are units here now.
                    self.cut_short = self.reader.scan(mapped_file, NO_LIMIT)[0] == valid_size
                break
        if self.cut_short:
            LOG.warning("%s/%d: units are lost from byte %d on", self.topic, self.queue_id, end)
            before_cut()
            self.keep_units(end)
        self._cut(end, drop_empty=False)
        if max_phy_offset < 0:
            max_phy_offset = self.reader.last_phy_offset()
        self._set_end(max_phy_offset)
        self._tail_is_clean = False
        if self.ext is not None:
            self.ext.recover()
            self.ext.truncate_by_max_address(last_address)

    @property
    def keeps_units(self) -> bool:
        """Whether `keep_units` remembers any."""
        return len(self._kept) > 0

    def keep_units(self, position: int) -> None:
        """Remember the units from byte `position` of the stream on, which are about to be cut off,
        as far as they were surely forced.

        Where the log does not give them again, but one behind them, they are put back with it; see
        also `give_back`. Raises StoreIOError.
        """

        def plain_code(code: int) -> int:
            # What the ext has there may be another unit by then.
            return self.resolve_tags(code)[1] or 0

        self._kept.keep(self.reader, position, self.unsure_from, plain_code)

    def give_back(self, log_end: int, is_lost: Callable[[KeptUnit], bool]) -> None:
        """Put back what `keep_units` remembers up to the last unit behind the queue's end that
        names a record which the log has lost before its end; forget the others.

        `is_lost` is asked of units that name a place before `log_end`, bytes of the log. Raises
        StoreIOError.
        """
        covered = max(0, self.core.max_physic_offset)
        last = self._kept.last(self.core.unit_count, covered, log_end, is_lost)
        if last is not None:
            self.put_message_position_info(*last.unit, last.queue_offset)
        self._kept = KeptUnits()

    def give_up_torn_end(self, phy_offset: int) -> None:
        """Drop the last unit where a power cut may have torn it, if its message is not before
        `phy_offset`, bytes of the log, from where the log gives it again. Nothing is written."""
        position = (self.core.unit_count - 1) * CQ_STORE_UNIT_SIZE
        if self.core.max_physic_offset > phy_offset and self.reader.is_two_sectors(position):
            self._cut(position, drop_empty=False)
            self._set_end(self.reader.last_phy_offset())
            self._torn_end = position

    def erase_torn_end(self) -> None:
        """Zero what `give_up_torn_end` dropped and the log did not give again; else it comes back
        once the log has grown over the place that it names. Raises StoreIOError."""
        files = self.mapped_file_queue.mapped_files
        is_end = self._torn_end == self.mapped_file_queue.get_max_offset()
        if files and is_end and files[-1].mode != "read":
            files[-1].zero_tail(files[-1].wrote)

    def cover_at_most(self, log_end: int) -> None:
        """See to it that the queue claims no byte of the log at or behind `log_end`, where new
        records will lie: dispatch takes what a queue claims for a repeat, and queues it nowhere.
        """
        if self.core.max_physic_offset > log_end:
            LOG.warning(
                "%s/%d: its units name bytes up to %d of the log, which ends at %d",
                self.topic,
                self.queue_id,
                self.core.max_physic_offset,
                log_end,
            )
            self.core.reset(self.core.unit_count, log_end)

    def begin_anew(self) -> None:
        """Delete all files, for a queue that recovery builds from its first message on."""
        self.keep_units(0)
        while self.mapped_file_queue.mapped_files:
            self.mapped_file_queue.delete_last_mapped_file()
        self.recover()
        self._truncate_ext()

    def truncate_dirty_logic_files(self, phy_offset: int) -> None:
        """Drop the units at or behind `phy_offset`, bytes of the log.

        Nothing is written where nothing is to be dropped.

        Raises StoreIOError.
        Durability: they are gone from the device on return.
        Source: RocketMQ 4.9.3 ConsumeQueue#truncateDirtyLogicFiles.
        Differs: an empty last file is dropped (a first one stays, and keeps the queue's end) rather
        than given a unit of zeros; pre-blank units do not count for max_physic_offset, and go with
        the units at or behind `phy_offset` before them; what is cut off is zeroed; the ext units go
        too.
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
            self._cut(end, drop_empty=True)
            last = self.mapped_file_queue.mapped_files[-1]
            if last.mode != "read":
                last.zero_tail(last.wrote)
        self._stated_max_physic_offset = phy_offset
        self._set_end(self.reader.last_phy_offset())
        self._truncate_ext()

    def units_before(self, phy_offset: int) -> int:
        """What get_max_offset_in_queue would be after truncate_dirty_logic_files(phy_offset)."""
        end = self._end_before(phy_offset)
        return 0 if end is None else end // CQ_STORE_UNIT_SIZE

    def destroy(self) -> None:
        """Delete all files; the queue is empty then and starts at queue offset 0.

        A writer that is inside of the last file right now harms nobody: the file is gone from the
        directory but stays mapped until it comes out. Raises StoreIOError: the queue goes on with
        its later units then, or is empty.

        Source: RocketMQ 4.9.3 ConsumeQueue#destroy.
        """
        self.mapped_file_queue.destroy_from_first(self._empty)
        if self.ext is not None:
            self.ext.destroy()

    def forget_files(self) -> None:
        """Start empty because the directory was moved away; no file of the queue is touched.

        Ext files that are still there are deleted: nothing names their units any more.
        """
        self._empty()
        self._open_files()
        if self.ext is not None:
            self.ext.forget_files()

    def _empty(self) -> None:
        self.core.reset(0, -1)
        self.core.min_logic_offset = 0
        self._stated_max_physic_offset = -1
        self._first_readable = None
        self._kept = KeptUnits()
        self.failed = False

    def flush(self, flush_least_pages: int) -> bool:
        """Force written pages of one file to the device; True when there was nothing to do.

        With 0 pages, repeated until True, everything that was put before is durable.

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

    def _is_flushed(self) -> bool:
        return bool(self.mapped_file_queue.flushed_where >= self.mapped_file_queue.get_max_offset())

    def delete_expired_file(self, min_phy_offset: int) -> int:
        """Delete the files whose last unit lies before `min_phy_offset`, never the last file.

        Returns how many. Source: RocketMQ 4.9.3 ConsumeQueue#deleteExpiredFile.
        Differs: pre-blank units at the end of a file do not hide the messages before them.
        """
        count = self.mapped_file_queue.delete_expired_file_by_offset(
            min_phy_offset, self.reader.newest_phy_offset_in
        )
        self.correct_min_offset(min_phy_offset)
        return int(count)

    def check_self(self) -> None:
        """Log where files do not follow each other. Source: RocketMQ 4.9.3 ConsumeQueue."""
        self.mapped_file_queue.check_self()
        if self.ext is not None:
            self.ext.check_self()

    def shutdown(self) -> None:
        """Give all mappings back; the queue is not used after it. Nothing is deleted or forced."""
        self.core.detach()
        self.mapped_file_queue.shutdown()
        if self.ext is not None:
            self.ext.shutdown()

    def unmap_idle(self) -> None:
        """Drop the mappings that nobody uses; they come back when needed."""
        for mapped_file in self.mapped_file_queue.mapped_files:
            mapped_file.unmap_idle()

    # ---- minimum ---------------------------------------------------------------------------------

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Set the minimum to the first unit of the first file that the log still has.

        Where that file has none the minimum stays as it was, as in 4.9.3.

        Source: RocketMQ 4.9.3 ConsumeQueue#correctMinOffset.
        Differs: pre-blank units never match.
        """
        mapped_files = self.mapped_file_queue.mapped_files
        if not mapped_files:
            return
        first = mapped_files[0]
        found = self.reader.find_min(first, min_phy_offset)
        if found is None:
            return
        position, unit = found
        self.core.min_logic_offset = first.file_from_offset + position
        if self.ext is not None:
            self.ext.truncate_by_min_address(unit[2])

    def first_readable_offset(self, min_phy_offset: int | None = None) -> int:
        """Queue offset of the first message that the log still has; the end if there is none.

        Parameters
        ----------
        min_phy_offset : int, bytes of the log; None: ask the log
        """
        limit = self._min_phy_offset(min_phy_offset)
        end = self.get_max_offset_in_queue()
        known = self._first_readable
        if known is not None and known[0] <= limit and known[1] < end:
            unit = self.reader.unit(known[1])
            if unit is not None and unit[0] >= limit and unit != PRE_BLANK:
                return known[1]
        found = self.reader.first_readable(limit)
        if found is None or found > end:
            found = end
        self._first_readable = (limit, found)
        return found

    def _min_phy_offset(self, given: int | None) -> int:
        if given is not None:
            return given
        if self.min_phy_offset is None:
            raise StoreStateError(f"{self!r} was not told where the log begins")
        return self.min_phy_offset()

    # ---- writing ---------------------------------------------------------------------------------

    def put_message_position_info_wrapper(
        self, request: DispatchRequest, multi: bool = False
    ) -> bool:
        """Queue one record of the log; with `multi`, in the queues that it names as well.

        Waits and tries again while the cause may pass (the device is full); else, or when it does
        not pass, the flag is raised and this queue takes no more: what is missing can then be built
        again from the log. Returns whether the queue holds the unit.

        Source: RocketMQ 4.9.3 ConsumeQueue#putMessagePositionInfoWrapper. The times of the
        checkpoint are the dispatcher's.
        Differs: a record that is queued already adds no ext unit, and a retry none either.
        """
        tags_code = request.tags_code
        repeat = self._is_repeat(
            request.commit_log_offset, request.msg_size, request.consume_queue_offset
        )
        if self.ext is not None and not repeat and self._may_write():
            unit = CqExtUnit(tags_code, request.store_timestamp, request.bit_map)
            address = self.ext.put(unit)
            if is_ext_addr(address):
                tags_code = address
        stored = repeat or self._persist(
            lambda: self.put_message_position_info(
                request.commit_log_offset,
                request.msg_size,
                tags_code,
                request.consume_queue_offset,
            )
        )
        if stored and multi and self.find_consume_queue is not None:
            self.multi_dispatch_lmq_queue(request)
        return stored

    def multi_dispatch_lmq_queue(self, request: DispatchRequest) -> None:
        """Queue the record in every queue that its properties name.

        Source: RocketMQ 4.9.3 ConsumeQueue#multiDispatchLmqQueue.
        Differs: an offset that is not a number is logged and left out, and stops nothing.
        """
        properties = request.properties_map or {}
        names = java_split(properties.get("INNER_MULTI_DISPATCH", ""))
        offsets = java_split(properties.get("INNER_MULTI_QUEUE_OFFSET", ""))
        if len(names) != len(offsets):
            LOG.error("%s: %d queues but %d offsets", self.topic, len(names), len(offsets))
            return
        if self.find_consume_queue is None:
            raise StoreStateError(f"{self.topic}: multi-dispatch needs find_consume_queue")
        for name, text in zip(names, offsets, strict=True):
            queue_offset = parse_java_int(text, 64)
            if queue_offset is None:
                LOG.error("%s: queue %s has the offset %r", self.topic, name, text)
                continue
            light = self.enable_lmq and name.startswith(LMQ_PREFIX)
            queue = self.find_consume_queue(name, 0 if light else request.queue_id)
            if queue is not None:
                queue.put_light(request, queue_offset)

    def put_light(self, request: DispatchRequest, queue_offset: int) -> bool:
        """Queue a record that names this queue; its tags code is stored, never an ext address."""
        return self._persist(
            lambda: self.put_message_position_info(
                request.commit_log_offset, request.msg_size, request.tags_code, queue_offset
            )
        )

    def _put_slowly(self, phy_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """put_message_position_info where it takes a file, or a gap, or fails."""
        for _ in range(4):  # a gap, then a file, then the unit, and one for a race with destroy
            status = self.core.put(phy_offset, size, tags_code, queue_offset)
            if status in (_RS_OK, _RS_REPEAT):
                return True
            if status == _RS_NEED_FILE:
                self._attach_last_file()
            elif status == _RS_NEED_PYTHON:
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
        """Append a run of units at the end of the queue, over as many files as it takes.

        The caller has left out what is queued already. Raises StoreIOError; `unit_count` says then
        how far it came.
        """
        done = 0
        while done < len(phy_offset):
            count = self.core.put_units(phy_offset[done:], size[done:], tags_code[done:])
            if count == 0:
                self._attach_last_file()
            done += count

    def provide_file(self, queue_offset: int) -> bool:
        """Give the writer a file to write to after RS_NEED_FILE; waits as a put does.

        Returns False when that was given up; the flag is raised then.
        """
        if queue_offset > self.core.unit_count:
            return True  # a gap: the put itself sees to it
        return self._persist(self._attach_last_file)

    def detach(self) -> None:
        """Let go of the last file, to bound how many files are mapped; a put maps it again."""
        self.core.detach()

    def _may_write(self) -> bool:
        return not self.failed and (self.flags is None or self.flags.is_cq_writeable())

    def _persist(self, action: Callable[[], bool]) -> bool:
        """Run `action` until it works or cannot any more; raises the flag in that case."""
        cause: StoreIOError | StoreCorruptionError | None = None
        # What is mended was tried long enough before, and is tried again later.
        retries = 1 if self.flags is not None and self.flags.is_mending() else MAX_RETRIES
        for attempt in range(retries):
            if not self._may_write():
                break
            try:
                return action()
            except (StoreIOError, StoreCorruptionError) as error:
                cause = error
                LOG.warning("%s/%d: attempt %d: %s", self.topic, self.queue_id, attempt + 1, error)
                if not is_passing(error):
                    break
            if attempt + 1 < retries:
                self.env.sleep(RETRY_INTERVAL_S)
        LOG.error(
            "%s/%d: an entry was given up; the queue takes no more", self.topic, self.queue_id
        )
        self.failed = True
        if self.flags is not None:
            self.flags.make_logics_queue_error(cause)
        return False

    def _is_repeat(self, phy_offset: int, size: int, queue_offset: int) -> bool:
        covered = self.core.max_physic_offset
        return phy_offset + size <= covered or queue_offset < self.core.unit_count

    def _is_plausible(self, phy_offset: int, size: int, queue_offset: int) -> bool:
        """Whether a record can have that queue offset; a damaged one must not fill the device."""
        gap = queue_offset - self.core.unit_count
        gap_max = phy_offset // MIN_RECORD_SIZE + 2 * self.units_per_file
        if size > 0 and 0 <= phy_offset <= MAX_PHY_OFFSET and gap <= gap_max:
            return True
        LOG.error(
            "%s/%d: no unit for the record of %d bytes at %d: its queue offset %d cannot be",
            self.topic,
            self.queue_id,
            size,
            phy_offset,
            queue_offset,
        )
        return False

    def _attach_last_file(self) -> bool:
        """Have the file at the end of the queue mapped and held; it is made if need be."""
        queue = self.mapped_file_queue
        last = queue.get_last_mapped_file(need_create=False)
        if last is None or last.is_full():
            last = queue.get_last_mapped_file(self.core.unit_count * CQ_STORE_UNIT_SIZE)
            if last is None:
                raise StoreIOError(errno.EIO, "create", self.store_path)
            self._tail_is_clean = True
        self._attach(last)
        return True

    def _attach(self, mapped_file: MappedFile) -> None:
        if mapped_file.mode == "read":
            mapped_file.to_memory()
        if not self._tail_is_clean:
            self._clean_tail(mapped_file)
            self._tail_is_clean = True
        units = (mapped_file.file_from_offset + mapped_file.wrote) // CQ_STORE_UNIT_SIZE
        if units != self.core.unit_count:
            self.core.reset(units, self.core.max_physic_offset)
        if not self.core.attach(mapped_file):
            raise StoreStateError(f"{mapped_file.path} is being deleted")

    def _clean_tail(self, mapped_file: MappedFile) -> None:
        """Zero what an earlier life may have left behind the end of a file found on disk."""
        wrote, end = mapped_file.wrote, mapped_file.file_size
        if mapped_file.mode != "shared":
            return  # the disk is not written, and memory has zeros there
        for start, stop in self.env.data_ranges(mapped_file.path, wrote, end):
            for position in range(max(start, wrote), min(stop, end), _READ_SIZE):
                piece = mapped_file.read(position, min(_READ_SIZE, stop - position, end - position))
                if piece.count(0) != len(piece):
                    mapped_file.zero_tail(wrote)
                    return

    def _put_kept(self, queue_offset: int, phy_offset: int) -> None:
        """Put back the kept units before `queue_offset` that the log has not given again and that
        name places between the queue's last message and `phy_offset`, bytes of the log."""
        while self._kept:
            start, covered = self.core.unit_count, max(0, self.core.max_physic_offset)
            kept = self._kept.first(start, queue_offset, covered, phy_offset)
            if kept is None or not self._put_slowly(*kept.unit, kept.queue_offset):
                return

    def _fill_gap(self, queue_offset: int) -> None:
        """Put pre-blank units up to `queue_offset`."""
        queue = self.mapped_file_queue
        expect = queue_offset * CQ_STORE_UNIT_SIZE
        if queue.get_last_mapped_file(need_create=False) is None:
            # The first file of a queue starts where its first message wants it.
            first = queue.get_last_mapped_file(expect)
            if first is None:
                raise StoreIOError(errno.EIO, "create", self.store_path)
            self._tail_is_clean = True
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
        """The units from `start_index` to the end of that file; None if there are none.

        The caller releases it. Source: RocketMQ 4.9.3 ConsumeQueue#getIndexBuffer.
        """
        position = start_index * CQ_STORE_UNIT_SIZE
        if position < self.core.min_logic_offset:
            return None
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if mapped_file is None:
            return None
        return mapped_file.select_mapped_buffer(position % self.mapped_file_size)

    def read_units(self, start: int, max_count: int) -> QueueUnits:
        """Units from queue offset `start` on, over file boundaries, pre-blank ones included.

        Fewer than `max_count` (none, even) where the queue ends or a file is gone.

        Raises StoreIOError.
        """
        count = min(max_count, self.get_max_offset_in_queue() - start)
        return self.reader.columns(start, count if start >= 0 and count > 0 else 0)

    def roll_next_file(self, queue_offset: int) -> int:
        """First queue offset of the next file. Source: RocketMQ 4.9.3 ConsumeQueue#rollNextFile."""
        return queue_offset + self.units_per_file - queue_offset % self.units_per_file

    def get_last_offset(self) -> int:
        """One past the last message named by the queue, bytes of the log; -1 if there is none.

        Source: RocketMQ 4.9.3 ConsumeQueue#getLastOffset.
        Differs: it works on an exactly full file, and never looks behind the queue's end.
        """
        return self.reader.last_phy_offset()

    def get_offset_in_queue_by_time(
        self,
        timestamp: int,
        pickup_store_timestamp: Callable[[int, int], int],
        min_phy_offset: int | None = None,
    ) -> int:
        """The queue offset that 4.9.3 finds for a time: near it, and only in one file.

        Parameters
        ----------
        timestamp : int, Unix ms
        pickup_store_timestamp : callable(phy_offset, size), Unix ms; -1 for an unreadable message
        min_phy_offset : int, bytes of the log; None: ask the log

        Source: RocketMQ 4.9.3 ConsumeQueue#getOffsetInQueueByTime. The file is chosen by the time
        at which it was last written, and equal times give whichever unit the search meets.
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
        """First queue offset whose message was stored at `timestamp` or later; the end if none.

        Parameters as for get_offset_in_queue_by_time. Units without a readable message are passed
        over. Store times are taken to rise with the offset.
        """
        low = self.first_readable_offset(min_phy_offset)
        high = self.get_max_offset_in_queue()
        return self.reader.lower_bound_by_time(low, high, timestamp, pickup_store_timestamp)

    # ---- files -----------------------------------------------------------------------------------

    def _end_before(self, phy_offset: int) -> int | None:
        if 0 <= self.core.max_physic_offset <= phy_offset:
            return self.mapped_file_queue.get_max_offset()  # as nearly always: nothing to look for
        return self.reader.end_before(phy_offset)

    def _cut(self, end: int, *, drop_empty: bool) -> None:
        """Delete the files behind byte `end` of the stream and set the last one's positions.

        `drop_empty`: a last file that would be left without a unit goes too, unless it is the only
        one. What lies behind `end` in a kept file stays as it is.
        """
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

    def _set_end(self, max_phy_offset: int) -> None:
        end = self.mapped_file_queue.get_max_offset()
        self.core.reset(int(end) // CQ_STORE_UNIT_SIZE, max_phy_offset)
        self._first_readable = None
        self.failed = False

    def _truncate_ext(self) -> None:
        if self.ext is None:
            return
        if not self.mapped_file_queue.mapped_files:
            self.ext.truncate_all()
            return
        unit = self.reader.last_unit(with_ext=True)
        if unit is not None:
            self.ext.truncate_by_max_address(unit[2])
