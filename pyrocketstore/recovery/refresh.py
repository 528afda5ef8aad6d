"""Follow the owner of a read-only store: find what it has appended since the last look.

`Follower` scans the log from its known end on. New records are compared with the units that the
owner has written for them; units that it has not written yet, and keys, are put in memory, as
recovery does. Each round takes a part of one log file, and publishes in the order in which a writer
makes things visible: the log, then the queues, then the index. A reader beside it therefore finds
the state of a store whose dispatcher is a little behind.

Files that have expired are forgotten. When the owner did anything else (it opened the store again,
cut the log, removed a queue), or left damage, the store must be loaded again: see `Follower`.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log._scan import TopicQueueMap, verdict_of
from pyrocketstore.commit_log.log import END_FILE_MIN_BLANK_LENGTH
from pyrocketstore.commit_log.log_end import await_last_record, has_grown, valid_records_after
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.consume_queue.growth import QueueChanged, take_written_units
from pyrocketstore.consume_queue.multi_dispatch import put_unit
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.consume_queue.unit_check import Log, UnitCheck
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.replay import replay
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError, without_frames
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.record._record import HEADER_SIZE, has_torn_properties, record_size
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.recovery.owner_trace import Owner, QueueFolders, owner_of
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.results import Status
from pyrocketstore.system._env import Event
from pyrocketstore.system.live_stores import was_removed
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyrocketstore.commit_log._chunk_scan import LogChunk
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.index._file import IndexFile
    from pyrocketstore.recovery.recovery_plan import RecoveryPlan
    from pyrocketstore.results import DispatchRequest

__all__ = ["Follower"]

LOG = logger(__name__)

#: Bytes of the log that one round takes: bounds its memory.
ROUND_SIZE = 64 << 20
#: Bytes of the last known record that are compared; they include its times, offsets and checksum.
COMPARED_SIZE = 4096

Key = tuple[str, int]
#: (first queue offset, its physical offset, next queue offset, count); see TopicQueueMap.seen
Seen = tuple[int, int, int, int]


class _Changed(Exception):
    """The owner did more than append: the store must be loaded again."""


class _Part(NamedTuple):
    """The records of a part of one log file.

    They are in [start, end), bytes of the log; `status` is the verdict at `end`. `log` is a copy of
    the log's object that has the file up to there.
    """

    file: MappedFile
    chunks: list[LogChunk]
    start: int
    end: int
    status: int
    log: CommitLog

    @property
    def is_full(self) -> bool:
        """True when no further record fits into the file."""
        end = self.file.file_from_offset + self.file.file_size
        return self.status == Status.BLANK or self.end == end

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(chunk.count for chunk in self.chunks)


class Follower:
    """Finds what the owner of a loaded read-only store appends.

    Parameters
    ----------
    store : the loaded store
    plan : its plan; the store gets others with what was found
    owner : the result of `owner_of` from before the store was loaded

    Threads: one at a time, beside readers.
    """

    def __init__(self, store: StoreFiles, plan: RecoveryPlan, owner: Owner) -> None:
        self._store = store
        self._plan = plan
        self._owner = owner
        self._expired = store.expired_in
        self._folders = QueueFolders(store.env, store.queue_table)
        files = store.commit_log.mapped_file_queue.mapped_files
        self._first_path = files[0].path if files else ""
        self._end = plan.log_end
        self._index_names: set[str] | None = None
        #: byte of the log at which the last known record begins, -1 without one; its first bytes,
        #: and device and inode of its file
        self._last = -1
        self._last_bytes, self._last_file = b"", (0, 0)
        #: published records whose keys are not in the index yet
        self._unindexed: _Part | None = None
        #: queues with units in memory that the owner may have written meanwhile
        self._built: set[Key] = {
            (queue.topic, queue.queue_id)
            for queue in store.consume_queues()
            if any(file.mode != "read" for file in queue.mapped_file_queue.mapped_files)
        }
        unusual = (plan.broken, plan.mismatched, plan.repairs, plan.missing_first_file)
        self._can_follow = not (
            any(unusual) or store.config.enable_consume_queue_ext or store.commit_log.is_dledger
        )
        if plan.last_record >= 0 and self._can_follow:
            try:
                self._note_last()
            except _Changed:  # the next `follow` has the store loaded again
                self._can_follow = False

    def follow(self) -> bool:
        """Make readable what was appended; return False when the store must be loaded again.

        Raises StoreIOError: what was published so far is complete; the next call continues.
        """
        try:
            if not self._can_follow or self._has_owner_changed():
                return False
            self._forget_expired()
            new, is_removed = self._folders.look()
            if is_removed or not self._is_end_known() or not self._fits_index():
                return False
            self._built.update(new)
            self._index()
            while self._next_part():
                check_abandoned()
            self._note_last()
        except (_Changed, QueueChanged, StoreCorruptionError) as error:
            root = self._store.config.store_path_root_dir
            LOG.info("%s: the store is loaded again: %r", root, error)
            return False
        except StoreIOError as error:
            self._folders.forget()
            if was_removed(error):
                return False
            raise
        except BaseException:
            self._folders.forget()
            raise
        return True

    # ---- what is known ---------------------------------------------------------------------------

    def _has_owner_changed(self) -> bool:
        env, root = self._store.env, self._store.config.store_path_root_dir
        return owner_of(env, root) != self._owner

    def _forget_expired(self) -> None:
        """Forget files that the owner has deleted because their messages have expired.

        The minimum of a queue becomes that of a new opening.
        """
        env, table = self._store.env, self._store.queue_table
        files, first_path = self._store.commit_log.mapped_file_queue, self._first_path
        if first_path and not env.exists(first_path):
            files.forget_deleted()  # unless a reader has done so
            first = files.get_first_mapped_file()
            if first is None:
                raise _Changed
            first_path, queues, expired = first.path, table.all(), []
            built = [queue for key in self._built if (queue := table.get(*key)) is not None]
            if not all(_has_first_file(queue) for queue in built):
                raise _Changed  # its expired units are in memory alone
        else:
            known = [queue for key in self._expired if (queue := table.get(*key)) is not None]
            queues = [queue for queue in known if not _has_first_file(queue)]
            expired = [(queue.topic, queue.queue_id) for queue in known if queue not in queues]
        lowest = self._store.commit_log.get_min_offset()
        for queue in queues:
            check_abandoned()
            queue.mapped_file_queue.forget_deleted()
            if not queue.correct_min_offset(lowest):
                queue.core.min_logic_offset = 0
                if len(queue.mapped_file_queue.mapped_files) > 1:
                    expired.append((queue.topic, queue.queue_id))
        self._expired, self._first_path = expired, first_path

    def _is_end_known(self) -> bool:
        """Return whether the log still has the last known record."""
        log = self._store.commit_log.mapped_file_queue
        if self._last < 0:
            return not log.mapped_files and not log.open_from(0)
        file = log.find_mapped_file_by_offset(self._last, False)
        if file is None or self._store.env.identity(file.path) != self._last_file:
            return False
        position = self._last - file.file_from_offset
        return file.read(position, len(self._last_bytes)) == self._last_bytes

    def _note_last(self) -> None:
        """Remember the last known record."""
        phy_offset = self._plan.last_record
        if phy_offset == self._last:
            return
        log = self._store.commit_log.mapped_file_queue
        file = log.find_mapped_file_by_offset(phy_offset, False)
        if file is None:
            raise _Changed
        position = phy_offset - file.file_from_offset
        # A file that was cut may end with this record. Another owner may have zeroed it meanwhile.
        header = file.read(position, HEADER_SIZE)
        size = max(HEADER_SIZE, min(COMPARED_SIZE, record_size(header), file.file_size - position))
        self._last_bytes = file.read(position, size)
        self._last_file = self._store.env.identity(file.path)
        self._last = phy_offset

    def _fits_index(self) -> bool:
        """Return False when the owner has made index files that can replace full ones in memory."""
        memory = [f for f in self._store.index_service.files if f.mode == "memory"]
        if self._index_names is not None and len(memory) < 2:
            return True
        root = os.path.join(self._store.config.store_path_root_dir, "index")
        names = set(self._store.env.listdir(root))
        if self._index_names is None:
            self._index_names = names
        return names <= self._index_names

    # ---- the log ---------------------------------------------------------------------------------

    def _next_part(self) -> bool:
        """Take the next part of the log; return whether more may follow."""
        files = self._store.commit_log.mapped_file_queue
        known = files.find_mapped_file_by_offset(self._end, False)
        if known is not None:
            if not self._built and self._is_blank(known):
                return False
            part = self._scan(files.settings.open(self._store.env, known.path, mode="read"))
            if part.record_count or self._built:
                self._take(part)
            if not part.is_full:
                return part.status == Status.OK
        last = files.get_last_mapped_file(need_create=False)
        if last is None:
            return False
        start = last.file_from_offset + last.file_size
        newer = files.open_from(start)
        if not newer:
            return False
        if newer[0].file_from_offset != start:
            raise _Changed
        last.set_positions(last.file_size)
        self._end = start
        part = self._scan(newer[0])
        self._take(part)
        return part.status == Status.OK or part.is_full

    def _is_blank(self, file: MappedFile) -> bool:
        """Return whether nothing follows the known end: no record or BLANK begins with zeros."""
        position = self._end - file.file_from_offset
        size = min(END_FILE_MIN_BLANK_LENGTH, file.file_size - position)
        return not any(file.read(position, size))

    def _scan(self, file: MappedFile) -> _Part:
        """Scan a log file from the known end on, at most ROUND_SIZE bytes."""
        file.set_positions(file.file_size)
        chunks = self._chunks(file)
        found = [chunk for chunk in chunks if chunk.count]
        if found and chunks[-1].status not in (Status.OK, Status.BLANK):
            last = found[-1]
            position = last.position(last.count - 1)
            if has_torn_properties(file.read(position, last.end - position)):
                await_last_record(self._store.env, file, last)
                chunks = self._chunks(file)
                found = [chunk for chunk in chunks if chunk.count]
        end, status = self._end, int(Status.OK)
        if chunks:
            end, status = file.file_from_offset + chunks[-1].end, chunks[-1].status
        if status not in (Status.OK, Status.BLANK, Status.END):
            self._check_damage(file, end, status)
        file.set_positions(end - file.file_from_offset)
        log = copy.copy(self._store.commit_log)
        log.mapped_file_queue = copy.copy(log.mapped_file_queue)
        log.mapped_file_queue.replace_from([file])
        return _Part(file, found, self._end, end, status, log)

    def _chunks(self, file: MappedFile) -> list[LogChunk]:
        store = self._store
        stop = min(self._end + ROUND_SIZE, file.file_from_offset + file.file_size)
        scan = LogScan(
            store.env,
            (file,),
            self._end,
            stop,
            delay_levels=store.commit_log.delay_levels,
            check_crc=store.config.check_crc_on_recover,
            records_max=None,
            min_offsets=store.commit_log.min_offsets,
        )
        return list(scan.chunks())

    def _check_damage(self, file: MappedFile, end: int, status: int) -> None:
        """Raise _Changed for bytes that are no record, unless the owner is writing one there."""
        env = self._store.env
        is_torn = status == Status.BAD_SIZE or valid_records_after(env, (file,), end)
        if is_torn and not has_grown(env, file, end, status):
            raise _Changed

    # ---- the queues ------------------------------------------------------------------------------

    def _take(self, part: _Part) -> None:
        """Make the records of a part readable."""
        grown = self._grow(part)
        self._publish(part, grown)
        self._unindexed = part
        self._index()

    def _grow(self, part: _Part) -> dict[Key, ConsumeQueue]:
        """Return new objects of the queues that have records in a part, or units in memory."""
        flags = RunningFlags()
        flags.begin_repair()  # an error is not tried again: the next call does that
        seen = self._store.selected(self._seen(part))
        grown: dict[Key, ConsumeQueue] = {}
        stops: dict[Key, int] = {}
        for key in seen.keys() | self._built:
            if is_safe_name(key[0]) and key[1] >= 0:
                stops[key] = self._stop_of(key, seen.get(key))
                grown[key] = self._store.queue_table.new_queue(*key, flags)
                old = self._store.queue_table.get(*key)
                take_written_units(grown[key], old, stops[key], part.end)
        self._compare(part, grown)
        if any(queue.get_max_offset_in_queue() < stops[key] for key, queue in grown.items()):
            self._put_units(part, grown)
            if flags.write_error is not None:
                raise without_frames(flags.write_error)
            if any(queue.get_max_offset_in_queue() != stops[key] for key, queue in grown.items()):
                raise _Changed
        lowest = self._store.commit_log.get_min_offset()
        for key, queue in grown.items():
            old = self._store.queue_table.get(*key)
            if old is None:
                queue.correct_min_offset(lowest)
            else:
                queue.keep_minimum(old, lowest)
        return grown

    def _seen(self, part: _Part) -> dict[Key, Seen]:
        """Return the queues that have records in a part."""
        seen = TopicQueueMap()
        for chunk in part.chunks:
            seen.add(chunk.queues)
        if not self._store.config.enable_multi_dispatch:
            return seen.seen()
        check = self._check_of(part, {})
        check.finish(self._log_of(part))
        return check.with_further(seen)

    def _stop_of(self, key: Key, seen: Seen | None) -> int:
        """Return the queue offset after a queue's last record.

        Raises _Changed for records that do not continue the queue: it was deleted and made again,
        or records are lost.
        """
        old = self._store.queue_table.get(*key)
        count = 0 if old is None else old.get_max_offset_in_queue()
        if seen is None:
            return count
        config = self._store.config
        if old is None and key[0].startswith(LMQ_PREFIX) and not config.enable_lmq:
            raise _Changed  # an opening enables light queues once one exists
        first, _, stop, number = seen
        if stop - first != number or (count and first != count):
            raise _Changed
        return stop

    def _check_of(self, part: _Part, queues: dict[Key, ConsumeQueue]) -> UnitCheck:
        config = self._store.config
        check = UnitCheck(queues, multi=config.enable_multi_dispatch, lmq=config.enable_lmq)
        for chunk in part.chunks:
            check.add(chunk)
        return check

    def _log_of(self, part: _Part) -> Log:
        return Log.of(part.log, part.file.file_from_offset, part.end, part.end)

    def _compare(self, part: _Part, grown: dict[Key, ConsumeQueue]) -> None:
        """Raise _Changed if a unit contradicts its record."""
        if self._check_of(part, grown).finish(self._log_of(part)):
            raise _Changed

    def _put_units(self, part: _Part, grown: dict[Key, ConsumeQueue]) -> None:
        """Put the units in memory that the owner has not written yet."""

        def find(topic: str, queue_id: int) -> ConsumeQueue | None:
            return grown.get((topic, queue_id))

        def put(request: DispatchRequest, multi: bool) -> None:
            lmq, minimums = self._store.config.enable_lmq, part.log.min_offsets
            put_unit(request, find, multi=multi, enable_lmq=lmq, min_offsets=minimums)

        dispatcher = self._dispatcher(find, put, lambda *given: None, index_enabled=False)
        replay(part.log, dispatcher, part.start, part.end, deque(part.chunks))

    def _dispatcher(
        self,
        find: Callable[[str, int], ConsumeQueue | None],
        put: Callable[[DispatchRequest, bool], None],
        on_error: Callable[[str, str, int, int], None],
        *,
        index_enabled: bool,
    ) -> Dispatcher:
        return Dispatcher(
            on_new_queue=find,
            on_queue_record=put,
            on_index_file=self._index_file,
            on_index_record=self._index_record,
            on_error=on_error,
            delay_levels=self._store.commit_log.delay_levels,
            index_enabled=index_enabled,
            multi_dispatch=self._store.config.enable_multi_dispatch,
            moved=Event(),
            min_offsets=self._store.commit_log.min_offsets,
        )

    # ---- readers see it --------------------------------------------------------------------------

    def _publish(self, part: _Part, grown: dict[Key, ConsumeQueue]) -> None:
        """Let readers find the records and units of a part: first the log, then the queues."""
        log, plan, last = self._store.commit_log, self._plan, part.chunks[-1:]
        files = log.mapped_file_queue
        files.replace_from([part.file])
        files.flushed_where = files.committed_where = part.end
        log.core.set_end_offset(part.end)
        for key, queue in grown.items():
            self._store.queue_table.replace(queue)
            log.core.set_next_offset(*key, queue.get_max_offset_in_queue())
            self._built.discard(key)
            if any(file.mode != "read" for file in queue.mapped_file_queue.mapped_files):
                self._built.add(key)
        self._end = part.end
        self._plan = self._store.plan = dataclasses.replace(
            plan,
            log_end=part.end,
            end_path=part.file.path,
            end_position=part.end - part.file.file_from_offset,
            ended_by=verdict_of(part.status, True),
            records=plan.records + part.record_count,
            beyond={key: end for key, end in plan.beyond.items() if end > part.end},
            last_record=last[0].file_from_offset + last[0].last_begin if last else plan.last_record,
        )

    # ---- the index -------------------------------------------------------------------------------

    def _index(self) -> None:
        """Put the keys of the records that are published. Raises StoreIOError."""
        part = self._unindexed
        if part is None:
            return
        errors: list[int] = []
        if self._store.index_enabled and part.record_count:
            dispatcher = self._dispatcher(
                self._store.queue_table.get,
                lambda request, multi: None,  # the queues have it
                lambda kind, topic, queue_id, error: errors.append(error),
                index_enabled=True,
            )
            replay(self._store.commit_log, dispatcher, part.start, part.end, deque(part.chunks))
            if errors:
                path = os.path.join(self._store.config.store_path_root_dir, "index")
                raise StoreIOError(errors[0] or errno.EIO, "append", path)
        self._store.dispatcher.position = part.end
        self._unindexed = None

    def _index_file(self) -> IndexFile:
        """Return the file for the next key: never one that readers read from disk."""
        service = self._store.index_service
        last = service.files[-1] if service.files else None
        if last is not None and last.mode == "read":
            return service.begin_new_file(last)
        return service.get_and_create_last_index_file()

    def _index_record(self, request: DispatchRequest) -> IndexFile:
        self._store.index_service.build_index(request)
        return self._index_file()


def _has_first_file(queue: ConsumeQueue) -> bool:
    """Return whether the first file of a queue is on disk."""
    first = queue.mapped_file_queue.get_first_mapped_file()
    return first is not None and queue.env.exists(first.path)
