"""Decide where the log ends.

The scan starts at the file that the checkpoint names, and walks over the records up to the first
one that is not valid: there the log ends. Bytes after the end are searched for valid records.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log._scan import TopicQueueMap, find_valid_record, scan_file, verdict_of
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.config.dledger import ENTRY_HEADER_SIZE, ENTRY_MAGIC
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.files.mapped_file_queue import LAST_FILES, has_data
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
    from collections.abc import Callable, Sequence

    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.files._mapped_file import FileSequence, MappedFile
    from pyrocketstore.system.env import Env

LOG = logger(__name__)

Files: TypeAlias = "FileSequence | tuple[MappedFile, ...]"

#: Bytes of memory for data that the scan keeps of the records; the rest is read again.
RECORDS_MAX = 256 << 20
#: How often a reader reads a last record again that another process is still writing.
LAST_RECORD_TRIES = 40
LAST_RECORD_WAIT_S = 0.005


def start_file(files: Files, limit: int | None) -> int:
    """Return the number of the file with which the scan begins: the newest one whose first record
    was stored at `limit` (Unix ms) at the latest, or 0; after a clean exit (None) the third last.
    """
    if limit is None:
        return max(0, len(files) - LAST_FILES)
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


def begun_files(log: CommitLog, begin: int, end: int) -> list[tuple[int, int]]:
    """Return (first byte, store time of the first record in Unix ms) of each file with a record
    that begins behind byte `begin` of the log and before `end`."""
    files = log.mapped_file_queue.mapped_files
    later = [f for f in files if begin < f.file_from_offset < end]
    times = [(f.file_from_offset, first_store_time(f)) for f in later]
    return [(offset, stored) for offset, stored in times if stored is not None]


def check_not_newer(files: Files) -> None:
    """Refuse a log with records that 4.9.3 cannot read, where a file begins with one.

    Raises StoreCorruptionError with the file.
    """
    for file in files:
        header = RecordHeader(file.read(0, min(8, file.wrote)))
        if header.magic_code == MESSAGE_MAGIC_CODE_V2:
            raise _newer(file.path, 0)


def check_chunk_not_newer(chunk: LogChunk) -> None:
    """As `check_not_newer`, for a part of the log that was scanned."""
    if chunk.first_v2 >= 0:
        raise _newer(chunk.path, chunk.first_v2)


def _newer(path: str, position: int) -> StoreCorruptionError:
    reason = "a record of RocketMQ 5.x (magic DAA320AB), which 4.9.3 would cut off with all later"
    return StoreCorruptionError(path, position, f"{reason} ones: open the store read-only")


@dataclasses.dataclass(repr=False, eq=False)
class LogEnd:
    """The end of the log.

    Parameters
    ----------
    files : the files of the log
    at_file : int, number of the file in which it ends
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

    files: Files
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

    @property
    def file(self) -> MappedFile:
        """The file in which the log ends."""
        return self.files[self.at_file]

    @property
    def is_usual(self) -> bool:
        """True when the log ends in front of zeros, or with a BLANK."""
        return self.status in (Status.END, Status.BLANK)

    @property
    def is_blank(self) -> bool:
        """True when the log ends with a BLANK."""
        return self.status == Status.BLANK

    @property
    def verdict(self) -> str:
        """The verdict that ended the log."""
        return verdict_of(self.status, self.file.wrote == self.file.file_size)

    @property
    def is_refused(self) -> bool:
        """True when only the limit on record sizes may have ended the log."""
        return self.status == Status.BAD_SIZE

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


@dataclasses.dataclass(frozen=True)
class KnownLog:
    """Facts about a log that is not scanned yet.

    Parameters
    ----------
    named_to : int, byte of the log after the last record that units of queues name, -1 without any:
        after a clean exit the log ends there. After a kill they may lack any number
    durable_to : int, physical offset at which a valid record ended once, -1: unknown. Damage before
        it does not end the log if valid records follow it there
    proven_file : int, physical offset at which a file begins: damage in files before it does not
        end the log; -1: unknown
    """

    named_to: int
    durable_to: int = -1
    proven_file: int = -1


def find_log_end(
    log: CommitLog,
    first: int,
    known: KnownLog,
    takes: Sequence[Callable[[LogChunk], None]],
    *,
    keep_from: int | None,
    keys_from: int | None = None,
) -> LogEnd:
    """Scan the log from its file number `first` on, up to its end.

    Parameters
    ----------
    takes : each one gets each chunk
    keep_from : int or None, `chunks` keeps the records from this physical offset on, because they
        are likely to be dispatched again; no chunk begins before it and ends after it. None: none
    keys_from : int or None, physical offset: no data of the records is kept, but the end of the
        last one behind it that has keys is found

    Raises StoreIOError.
    """
    files = log.mapped_file_queue.mapped_files
    limit = log.committed_limit(known.named_to)
    while first > 0 and files[first].file_from_offset >= limit:
        first -= 1
    found = LogEnd(files, first, files[first].file_from_offset, keys_from=keys_from or 0)
    start = files[first].file_from_offset
    stop = min(files[-1].file_from_offset + files[-1].file_size, limit)
    if stop <= start:
        return found  # nothing is committed
    expected = known.named_to if keep_from is None else -1
    keep_from = stop if keep_from is None else keep_from
    complete = keys_from is None
    while True:
        keeps = keep_from <= start
        until = stop if keeps else min(keep_from, stop)
        records_max = 0 if keys_from is not None else max(1, min(RECORDS_MAX, stop - start))
        scan = LogScan(
            log.env,
            files[first:],
            start,
            until,
            delay_levels=log.delay_levels,
            check_crc=log.config.check_crc_on_recover,
            records_max=records_max if keeps or keys_from is not None else None,
            min_offsets=log.min_offsets,
            hash_keys=keeps,
            keys_from=found.keys_from,
            expected_end=expected,
        )
        for chunk in scan.chunks():
            check_abandoned()
            while files[found.at_file].file_from_offset != chunk.file_from_offset:
                found.at_file += 1
            found.add(chunk, is_later=keeps)
            for take in takes:
                take(chunk)
            complete = complete and not (keeps and chunk.has_own_memory)
            if complete and keeps:
                found.chunks.append(chunk)
        if until < stop and found.status in (Status.OK, Status.BLANK):
            found.has_keep_from = found.phy_offset == until
            start = found.phy_offset
            if found.status == Status.BLANK:
                start = log.roll_next_file(start)
            keep_from = start
            continue
        if found.status == Status.OK and found.phy_offset >= limit:
            found.status = Status.END  # of the committed entries
            return found
        start = _behind_damage(log.env, files, found, known)
        if start < 0:
            return found
        first, complete = found.at_file, False


def _behind_damage(env: Env, files: Files, found: LogEnd, known: KnownLog) -> int:
    """Return where a scan continues that has ended at damage, and note the damage; -1 if the log
    ends here."""
    if found.status in (Status.OK, Status.BLANK):
        return -1
    file, at_last = files[found.at_file], found.at_file + 1 == len(files)
    base, position = file.file_from_offset, found.phy_offset - file.file_from_offset
    is_proven = base < known.proven_file
    if (found.phy_offset < known.durable_to or is_proven) and found.status != Status.BAD_SIZE:
        at, end = -1, base + file.file_size
        limit = file.file_size if is_proven else min(known.durable_to - base, file.file_size)
        if position + 1 < limit:
            at = find_valid_record(env, file.path, base, position + 1, limit, check_crc=True)
        follows = is_proven or (not at_last and known.durable_to >= end)
        if follows and not is_proven and known.durable_to == end:
            follows = bool(first_store_time(files[found.at_file + 1]))
        if at >= 0 or follows:
            found.damaged.append((file.path, position, at if at >= 0 else file.file_size))
            if at >= 0:
                return base + at
            found.at_file += 1
            return files[found.at_file].file_from_offset
    # Only a reader opens a log with a file that has lost its end.
    if (file.wrote < file.file_size and not at_last) or is_proven:
        found.at_file += 1
        return files[found.at_file].file_from_offset
    return -1


def warn_of_gaps(files: Files) -> None:
    """Log a warning for each hole in the list of log files, also before the scan; read none."""
    for before, file in pairwise(files):
        if file.file_from_offset != before.file_from_offset + before.file_size:
            LOG.warning("%s: the file before it is missing", file.path, extra=REPORTED_ELSEWHERE)


def allow_record(env: Env, file: MappedFile, phy_offset: int) -> bool:
    """Raise the limit on record sizes for a record that is larger, if all its bytes are written;
    return whether that was done. Its checksum decides then.

    A hole in the file shows that the size is wrong.
    """
    position = phy_offset - file.file_from_offset
    size = record_size(file.read(position, 4))
    if not record_size_max() < size <= file.file_size - position:
        return False
    ranges = env.data_ranges(file.path, position, position + size)
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
    env: Env, files: Files, log_end: int, *, is_usual: bool = False
) -> list[tuple[str, int, int]]:
    """Return (path, position, size) of each file whose bytes after the end hold valid records.

    Parameters
    ----------
    files : the file with the end, and later ones
    is_usual : bool, such records in the first file alone are those that 4.9.3 leaves after a cut
    """
    if is_usual and len(files) == 1:
        return []
    found: list[tuple[str, int, int]] = []
    for file in files:
        base = file.file_from_offset
        start = max(0, log_end - base) if file is files[0] else 0
        for begin, end in env.data_ranges(file.path, start, file.file_size):
            begin = max(start, begin)
            if find_valid_record(env, file.path, base, begin, end, check_crc=True) >= 0:
                found.append((file.path, start, file.file_size - start))
                break
    return [] if is_usual and all(path == files[0].path for path, _, _ in found) else found


def await_last_record(env: Env, file: MappedFile, chunk: LogChunk) -> None:
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
        env.sleep(LAST_RECORD_WAIT_S)


def has_grown(env: Env, file: MappedFile, log_end: int, status: int) -> bool:
    """Return True when a record, or a BLANK, has appeared where the scan found the end."""
    position = log_end - file.file_from_offset
    now, _, count, _ = scan_file(
        env, file.path, file.file_from_offset, position, file.file_size, True
    )
    return count > 0 or (now == Status.BLANK and status != Status.BLANK)


def data_behind(log: CommitLog, log_end: int, stop: int) -> list[tuple[str, int, int]]:
    """Return (path, position, size) of the bytes [log_end, stop) of each file of a log that has
    any but zeros there."""
    found = []
    for file in log.mapped_file_queue.mapped_files:
        begin = max(0, log_end - file.file_from_offset)
        end = min(file.wrote, stop - file.file_from_offset)
        if begin < end and has_data(log.env, file, begin, end):
            found.append((file.path, begin, end - begin))
    return found
