"""Decide where the log ends.

The scan starts at the file that the checkpoint names, and walks over the records up to the first
one that is not valid: there the log ends. Bytes after the end are searched for valid records.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log._scan import TopicQueueMap, find_valid_record, scan_file
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.config.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC
from pyrocketstore.consume_queue.unit_check import UnitCheck
from pyrocketstore.consume_queue.units import NO_LIMIT
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.record._record import (
    HEADER_SIZE,
    MESSAGE_MAGIC_CODE_V2,
    RecordHeader,
    allow_records,
    has_torn_properties,
    record_size,
    record_size_max,
)
from pyrocketstore.results import Status
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.recovery.store_files import StoreFiles

LOG = logger(__name__)

#: Bytes of memory for data that the scan keeps of the records; the rest is read again.
RECORDS_MAX = 256 << 20
#: How often a reader reads a last record again that another process is still writing.
LAST_RECORD_TRIES = 40
LAST_RECORD_WAIT_S = 0.005


def scan_start(store: StoreFiles, clean: bool) -> int:
    """Return the physical offset from which on an unclean exit may have lost data; NO_LIMIT after a
    clean exit."""
    files = store.commit_log.mapped_file_queue.mapped_files
    return NO_LIMIT if clean or not files else files[start_file(store, files)].file_from_offset


def start_file(store: StoreFiles, files: tuple[MappedFile, ...]) -> int:
    """Return the number of the newest file whose first record is older than the checkpoint, or
    0.
    """
    config = store.config
    if config.message_index_enable and config.message_index_safe:
        limit = store.checkpoint.get_min_timestamp_index()
    else:
        limit = store.checkpoint.get_min_timestamp()
    for index in range(len(files) - 1, -1, -1):
        stored = first_store_time(files[index])
        if stored is not None and stored != 0 and stored <= limit:
            return index
    return 0


def first_store_time(file: MappedFile) -> int | None:
    """Return the store time (Unix ms) of a file's first record, None without one."""
    data = file.read(0, min(ENTRY_HEADER_SIZE + HEADER_SIZE, file.wrote))
    header = RecordHeader(data)
    if data[:4] == ENTRY_MAGIC and not header.is_message:  # a damaged size may look like an entry
        header = RecordHeader(data[ENTRY_HEADER_SIZE:])
    is_whole = header.size == HEADER_SIZE and header.is_message
    return header.store_timestamp if is_whole else None


def check_not_newer(store: StoreFiles) -> None:
    """Refuse a log with records that 4.9.3 cannot read, where a file begins with one.

    Raises StoreCorruptionError with the file.
    """
    for file in store.commit_log.mapped_file_queue.mapped_files:
        header = RecordHeader(file.read(0, min(8, file.wrote)))
        if header.magic_code == MESSAGE_MAGIC_CODE_V2:
            raise _newer(file.path, 0)


def _newer(path: str, position: int) -> StoreCorruptionError:
    reason = "a record of RocketMQ 5.x (magic DAA320AB), which 4.9.3 would cut off with all later"
    return StoreCorruptionError(path, position, f"{reason} ones: open the store read-only")


@dataclasses.dataclass(repr=False, eq=False)
class LogEnd:
    """The end of the log.

    Parameters
    ----------
    at_file : int, number of its file
    phy_offset : int, byte of the log after the last valid record
    status : int, the verdict that ended the log
    records : int, how many records were scanned
    chunks : chunks of the log that the scan has kept, in order, as far as memory allowed
    seen : the queues that the records belong to
    last_record : int, byte of the log at which the last record begins; -1 without a record
    keyed_end : int, end of the last record that has keys, bytes of the log; -1 without one
    keys_from : int, physical offset before which records with keys may not count as such
    later : those of the records from `keep_from` of the scan on
    has_keep_from : bool, a record ends at `keep_from` of the scan, if that is inside the scan
    damaged : (path, position, end) of damaged bytes that the scan has passed
    """

    at_file: int
    phy_offset: int = 0
    status: int = Status.END
    records: int = 0
    chunks: deque[LogChunk] = dataclasses.field(default_factory=deque)
    seen: TopicQueueMap = dataclasses.field(default_factory=TopicQueueMap)
    last_record: int = -1
    keyed_end: int = -1
    keys_from: int = 0
    later: TopicQueueMap = dataclasses.field(default_factory=TopicQueueMap)
    has_keep_from: bool = True
    damaged: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)

    def add(self, chunk: LogChunk, *, is_later: bool) -> None:
        """Count the records of the next chunk of the scan."""
        self.seen.add(chunk.queues)
        if is_later:
            self.later.add(chunk.queues)
        self.records += chunk.count
        if chunk.last_begin >= 0:
            self.last_record = chunk.file_from_offset + chunk.last_begin
        self.phy_offset = chunk.file_from_offset + chunk.end
        self.keyed_end = max(self.keyed_end, chunk.keyed_end)
        self.status = chunk.status


def find_log_end(
    store: StoreFiles,
    files: tuple[MappedFile, ...],
    first: int,
    check: UnitCheck | None,
    *,
    keep_from: int,
    durable: int = -1,
) -> LogEnd:
    """Scan the log from its file number `first` on, up to its end.

    Parameters
    ----------
    check : gets the records; None: no data of the records is kept
    keep_from : int, `chunks` keeps the records from this physical offset on, because they are
        likely to be dispatched again; no chunk begins before it and ends after it
    durable : int, physical offset at which a valid record ended once. Damage before it does not end
        the log if valid records follow it there

    Raises StoreIOError.
    """
    limit = committed_limit(store)
    while first > 0 and files[first].file_from_offset >= limit:
        first -= 1
    found = LogEnd(first, files[first].file_from_offset)
    start = files[first].file_from_offset
    stop = min(files[-1].file_from_offset + files[-1].file_size, limit)
    if stop <= start:
        return found  # nothing is committed
    proven = proven_file(store) if store.checkpoint.damage else -1
    # After a clean exit the queues name the last record. After a kill they may lack any number.
    expected = max((q.covered_phy_offset for q in store.consume_queues()), default=-1)
    if check is None:
        found.keys_from = max(0, store.index_service.indexed_phy_offset)
    complete = True
    while True:
        keeps = keep_from <= start
        until = stop if keeps else min(keep_from, stop)
        records_max = 0 if check is None else max(1, min(RECORDS_MAX, stop - start))
        scan = LogScan(
            store.env,
            files[first:],
            start,
            until,
            delay_levels=store.commit_log.delay_levels,
            check_crc=store.config.check_crc_on_recover,
            records_max=records_max if keeps or check is None else None,
            min_offsets=store.commit_log.min_offsets,
            hash_keys=keeps,
            keys_from=found.keys_from,
            expected_end=expected if keep_from == NO_LIMIT else -1,
        )
        for chunk in scan.chunks():
            check_abandoned()
            if chunk.first_v2 >= 0 and not store.read_only:
                raise _newer(chunk.path, chunk.first_v2)
            while files[found.at_file].file_from_offset != chunk.file_from_offset:
                found.at_file += 1
            found.add(chunk, is_later=keeps)
            if check is not None:
                check.add(chunk)
            complete = complete and not (keeps and chunk.has_own_memory)
            if complete and keeps:
                found.chunks.append(chunk)
        if until < stop and found.status in (Status.OK, Status.BLANK):
            found.has_keep_from = found.phy_offset == until
            start = found.phy_offset
            if found.status == Status.BLANK:
                start = store.commit_log.roll_next_file(start)
            keep_from = start
            continue
        if found.status == Status.OK and found.phy_offset >= limit:
            found.status = Status.END  # of the committed entries
            return found
        start = _behind_damage(store, files, found, durable, proven)
        if start < 0:
            return found
        first, complete = found.at_file, False


def _behind_damage(
    store: StoreFiles,
    files: tuple[MappedFile, ...],
    found: LogEnd,
    durable: int,
    proven: int,
) -> int:
    """Return where a scan continues that has ended at damage, and note the damage; -1 if the log
    ends here. `durable` and `proven` are those of `find_log_end`."""
    if found.status in (Status.OK, Status.BLANK):
        return -1
    file, at_last = files[found.at_file], found.at_file + 1 == len(files)
    base, position = file.file_from_offset, found.phy_offset - file.file_from_offset
    if found.phy_offset < durable and found.status != Status.BAD_SIZE:
        at, limit = -1, min(durable - base, file.file_size)
        if position + 1 < limit:
            at = find_valid_record(store.env, file.path, base, position + 1, limit, check_crc=True)
        if at >= 0 or (durable > base + file.file_size and not at_last):
            found.damaged.append((file.path, position, at if at >= 0 else file.file_size))
            if at >= 0:
                return base + at
            found.at_file += 1
            return files[found.at_file].file_from_offset
    if _continues_after(store, files, found.at_file) or base < proven:
        found.at_file += 1
        return files[found.at_file].file_from_offset
    return -1


def committed_limit(store: StoreFiles) -> int:
    """Return the physical offset behind which entries of a DLedger log may not be committed;
    NO_LIMIT for other logs, and if it is unknown.

    A unit of a queue names only committed entries.
    """
    committed = store.commit_log.committed_end
    if committed is None:
        return NO_LIMIT
    ends = [queue.covered_phy_offset for queue in store.consume_queues()]
    return max(committed, *ends, 0)


def proven_file(store: StoreFiles) -> int:
    """Return where the last log file begins that a queue proves: its last unit names a record
    there. -1 without one.

    A damaged checkpoint does not say up to where the log was durable, so that the scan begins at
    its first file. Old damage before that file does not end the log.
    """
    found = -1
    for queue in store.consume_queues():
        unit = queue.reader.unit(queue.core.unit_count - 1)
        file = (
            None
            if unit is None
            else store.commit_log.mapped_file_queue.find_mapped_file_by_offset(unit[0], False)
        )
        if unit is None or file is None:
            continue
        position = unit[0] - file.file_from_offset
        header = RecordHeader(file.read(position, min(HEADER_SIZE, file.wrote - position)))
        if header.is_message and header.phy_offset == unit[0] and header.total_size == unit[1]:
            found = max(found, file.file_from_offset)
    return found


def warn_of_gaps(files: tuple[MappedFile, ...]) -> None:
    """Log a warning for each hole in the list of log files, also before the scan; read none."""
    for before, file in pairwise(files):
        if file.file_from_offset != before.file_from_offset + before.file_size:
            LOG.warning("%s: the file before it is missing", file.path, extra=REPORTED_ELSEWHERE)


def _continues_after(store: StoreFiles, files: tuple[MappedFile, ...], index: int) -> bool:
    """Return whether a file has lost its end and readable files follow. Only a read-only store
    opens such a log."""
    is_partial = store.read_only and files[index].wrote < files[index].file_size
    return is_partial and index + 1 < len(files)


def allow_record(store: StoreFiles, file: MappedFile, phy_offset: int) -> bool:
    """Raise the limit on record sizes for a record that is larger, if all its bytes are written;
    return whether that was done. Its checksum decides then.

    A hole in the file shows that the size is wrong.
    """
    position = phy_offset - file.file_from_offset
    size = record_size(file.read(position, 4))
    if not record_size_max() < size <= file.file_size - position:
        return False
    ranges = store.env.data_ranges(file.path, position, position + size)
    if sum(end - begin for begin, end in ranges) < size:
        return False
    LOG.warning(
        "%s: the limit on records is raised to %d bytes for the record at %d",
        file.path,
        size,
        position,
    )
    allow_records(size)
    return True


def valid_records_after(
    store: StoreFiles,
    files: tuple[MappedFile, ...],
    log_end: LogEnd,
    is_usual: bool,
) -> list[tuple[str, int, int]]:
    """Return (path, position, size) of each file whose bytes after the end hold valid records."""
    at_file = log_end.at_file
    if is_usual and at_file + 1 == len(files):
        return []
    chunks: list[tuple[str, int, int]] = []
    for file in files[at_file:]:
        start = log_end.phy_offset - file.file_from_offset if file is files[at_file] else 0
        for begin, end in store.env.data_ranges(file.path, start, file.file_size):
            found = find_valid_record(
                store.env,
                file.path,
                file.file_from_offset,
                max(start, begin),
                end,
                check_crc=True,
            )
            if found >= 0:
                chunks.append((file.path, start, file.file_size - start))
                break
    if is_usual and all(path == files[at_file].path for path, _, _ in chunks):
        return []  # records that 4.9.3 leaves after a cut
    return chunks


def await_last_record(store: StoreFiles, file: MappedFile, chunk: LogChunk) -> None:
    """Wait while another process is writing the log's last record.

    Its checksum does not cover the properties, which are written last. A record that does not
    change was torn by a crash, and counts as in 4.9.3.
    """
    if chunk.count == 0 or chunk.file_from_offset != file.file_from_offset:
        return
    position = chunk.position(chunk.count - 1)
    for _ in range(LAST_RECORD_TRIES):
        if not has_torn_properties(file.read(position, chunk.end - position)):
            return
        store.env.sleep(LAST_RECORD_WAIT_S)


def has_grown(store: StoreFiles, file: MappedFile, log_end: LogEnd) -> bool:
    """Return True when a record, or a BLANK, has appeared where the scan found the end."""
    position = log_end.phy_offset - file.file_from_offset
    status, _, count, _ = scan_file(
        store.env, file.path, file.file_from_offset, position, file.file_size, True
    )
    return count > 0 or (status == Status.BLANK and log_end.status != Status.BLANK)
