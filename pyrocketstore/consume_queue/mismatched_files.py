"""Repair files of a consume queue that have a wrong length or name, in memory in a read-only store.

Units that a repaired file lacks are put again from the log."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy

from pyrocketstore.config.file_sizes import MismatchedFile, has_possible_name
from pyrocketstore.consume_queue._units import unit_at
from pyrocketstore.consume_queue.ext import ConsumeQueueExt, is_ext_addr, un_decorate
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import keep_units
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, NO_LIMIT
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.system.env import O_RDWR

__all__ = ["restore_queue"]

LOG = logger(__name__)

#: Units that are read at a time.
_READ_COUNT = 1 << 16


def restore_queue(
    queue: ConsumeQueue,
    min_phy_offset: int,
    before_cut: Callable[[], None],
    broken_path: str,
    found: list[MismatchedFile],
) -> bool:
    """Give the mismatched files of a queue their length, before the queue is recovered.

    Complete units stay at their queue offsets. A file that is too long is cut, and one whose name
    is not a valid offset is moved away; both are kept below `broken_path`.

    Parameters
    ----------
    min_phy_offset : int, first byte that the log still has
    before_cut : called before a file is changed
    broken_path : directory for files that are set aside, made when it is needed
    found : the mismatched files are appended to it

    Returns whether units after the queue's new end must be put again from the log.

    Raises StoreIOError. Differs: 4.9.3 does not start with such a file.
    """
    mismatched = list(queue.mapped_file_queue.mismatched)
    if queue.ext is not None:
        mismatched += queue.ext.mapped_file_queue.mismatched
    lost = False
    if mismatched:
        found += mismatched
        before_cut()
        lost = _restore_units(queue, min_phy_offset, f"{broken_path}/consumequeue")
    if queue.ext is not None:
        kept_at = f"{broken_path}/consumequeue_ext"
        lost = _restore_ext(queue, queue.ext, kept_at, before_cut, found) or lost
    return lost


def _restore_units(queue: ConsumeQueue, min_phy_offset: int, broken_path: str) -> bool:
    files = queue.mapped_file_queue
    kept_at = f"{broken_path}/{queue.topic}/{queue.queue_id}"
    mismatched, files.mismatched = files.mismatched, []
    restored = [_restore(files, file, CQ_STORE_UNIT_SIZE, kept_at) for file in mismatched]
    lost = not all(restored)
    for file, is_restored in zip(mismatched, restored, strict=True):
        if not is_restored or file.size > files.mapped_file_size:
            continue
        mapped_file = files.find_mapped_file_by_offset(file.offset, False)
        if mapped_file is not None:  # unless the queue was cut before it
            lost = _cut_at_end_of(queue, mapped_file, min_phy_offset) or lost
    return lost


def _restore(files: MappedFileQueue, file: MismatchedFile, unit: int, kept_at: str) -> bool:
    """Give a file its length, and keep its complete units; False: it does not belong to the
    queue.
    """
    env, size, name = files.env, files.mapped_file_size, os.path.basename(file.path)
    text = "%s: %s; it is rebuilt from the log"
    # A read-only store may be loaded again, with the sizes of files that its owner has made since.
    LOG.log(files.changes.level, text, file.path, file.reason, extra=REPORTED_ELSEWHERE)
    whole = file.size - file.size % unit
    if file.size == 0 or not has_possible_name(file.offset, size):

        def set_aside() -> None:
            env.make_directories(kept_at)
            env.rename(file.path, f"{kept_at}/{name}")
            files.fsync_directory()

        files.changes.add(set_aside)
        return False
    mapped_file = files.settings.open(env, file.path, mode="memory")
    mapped_file.set_positions(size)
    if whole < size:
        mapped_file.zero_tail(whole)

    def give_length() -> None:
        if file.size > size:
            env.make_directories(kept_at)
            env.copy_range(file.path, f"{kept_at}/{name}", 0, file.size)
        fd = env.open(file.path, O_RDWR)
        try:
            env.ftruncate(fd, min(whole, size), file.path)
            env.ftruncate(fd, size, file.path)
        finally:
            env.close(fd, file.path)
        files.repaired(mapped_file)

    files.add_file(mapped_file)
    files.changes.add(give_length)
    return True


def _cut_at_end_of(queue: ConsumeQueue, mapped_file: MappedFile, min_phy_offset: int) -> bool:
    """End the queue where a file lost its end, unless all messages there have expired."""
    files = queue.mapped_file_queue
    base = mapped_file.file_from_offset
    behind = files.find_mapped_file_by_offset(base + files.mapped_file_size, False)
    first = None if behind is None else unit_at(behind.read(0, CQ_STORE_UNIT_SIZE))
    if behind is not None and first is not None and first[1] > 0 and first[0] <= min_phy_offset:
        files.delete_files_before(behind.file_from_offset + 1)
        return False
    valid_size, _, _ = queue.reader.scan(mapped_file, NO_LIMIT)
    keep_units(queue, base + valid_size)
    files.truncate_dirty_files(base + valid_size)
    mapped_file.set_positions(files.mapped_file_size)  # recovery scans the whole file
    return True


def _restore_ext(
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    broken_path: str,
    before_cut: Callable[[], None],
    found: list[MismatchedFile],
) -> bool:
    """Repair the files of ext units, and end the queue before the first unit whose ext unit is
    lost."""
    files = ext.mapped_file_queue
    kept_at = f"{broken_path}/{queue.topic}/{queue.queue_id}"
    mismatched, files.mismatched = files.mismatched, []
    lost_from = NO_LIMIT
    for file in mismatched:
        is_restored = _restore(files, file, 1, kept_at)
        mapped_file = files.find_mapped_file_by_offset(file.offset, False)
        if is_restored and mapped_file is not None and file.size < files.mapped_file_size:
            end = mapped_file.file_from_offset + ext.end_of_units(mapped_file)
            lost_from = min(lost_from, end)
    if not files.mapped_files:
        lost_from = 0  # no file is left; a single address without an ext unit proves less
    position = _first_with_ext(queue, lost_from)
    if position is None:
        return False
    if not mismatched:
        reason = f"the ext units from byte {lost_from} on are missing"
        found.append(MismatchedFile(files.store_path, lost_from, 0, reason))
    before_cut()
    keep_units(queue, position)
    ext.truncate_at(lost_from)
    queue.mapped_file_queue.truncate_dirty_files(position)
    return True


def _first_with_ext(queue: ConsumeQueue, lost_from: int) -> int | None:
    """Return the byte of the queue of the first unit whose ext unit is at or after `lost_from`."""
    start = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
    while lost_from < NO_LIMIT and start >= 0:
        codes = queue.reader.columns(start, _READ_COUNT).tags_code
        if not len(codes):
            break
        for index in numpy.flatnonzero(codes < 0).tolist():
            code = int(codes[index])
            if is_ext_addr(code) and un_decorate(code) >= lost_from:
                return (start + index) * CQ_STORE_UNIT_SIZE
        start += len(codes)
    return None
