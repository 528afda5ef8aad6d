"""Files of a consume queue that have a wrong length or name: made whole again, in memory where the
store is read-only, so that the log puts the units again that they lack."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy

from pyrocketstore._consume_queue import unit_at
from pyrocketstore._mapped_file import MappedFile
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.consume_queue_ext import ConsumeQueueExt, is_ext_addr, un_decorate
from pyrocketstore.display import logger
from pyrocketstore.env import O_RDWR
from pyrocketstore.file_sizes import MismatchedFile, has_possible_name
from pyrocketstore.mapped_file_queue import MappedFileQueue
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, NO_LIMIT

__all__ = ["restore_queue"]

LOG = logger(__name__)

#: Units that are looked at in one go.
_READ_COUNT = 1 << 16


def restore_queue(
    queue: ConsumeQueue,
    min_phy_offset: int,
    before_cut: Callable[[], None],
    broken_path: str,
    found: list[MismatchedFile],
) -> bool:
    """Give the mismatched files of a queue their length, before the queue is recovered.

    Units that were whole stay, and keep the queue's offsets. A file that is too long is cut, and
    one whose name cannot be right is moved away; both are kept below `broken_path`.

    Parameters
    ----------
    min_phy_offset : int, first byte that the log still has
    before_cut : called before a file is changed
    broken_path : directory below which files are set aside, made when it is needed
    found : gets the files

    Returns whether the log must give units again that are behind the queue's new end.

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
    lost = None in restored
    for file, mapped_file in zip(mismatched, restored, strict=True):
        if mapped_file is None or file.size > files.mapped_file_size:
            continue
        if mapped_file in files.mapped_files:
            lost = _cut_at_end_of(queue, mapped_file, min_phy_offset) or lost
    return lost


def _restore(
    files: MappedFileQueue, file: MismatchedFile, unit: int, kept_at: str
) -> MappedFile | None:
    """The file with its length, whole units of it as they were; None: it is none of the row."""
    env, size, name = files.env, files.mapped_file_size, os.path.basename(file.path)
    LOG.warning("%s: %s; it is built again from the log", file.path, file.reason)
    whole = file.size - file.size % unit
    if file.size == 0 or not has_possible_name(file.offset, size):
        if not files.read_only:
            env.make_directories(kept_at)
            env.rename(file.path, f"{kept_at}/{name}")
            files.force_names()
        return None
    if files.read_only:
        mapped_file = files.settings.open(env, file.path, mode="memory")
        mapped_file.set_positions(size)
        if whole < size:
            mapped_file.zero_tail(whole)
    else:
        if file.size > size:
            env.make_directories(kept_at)
            env.copy_range(file.path, f"{kept_at}/{name}", 0, file.size)
        fd = env.open(file.path, O_RDWR)
        try:
            env.ftruncate(fd, min(whole, size), file.path)
            env.ftruncate(fd, size, file.path)
        finally:
            env.close(fd, file.path)
        mapped_file = files.settings.open(env, file.path)
        mapped_file.set_positions(size)
    files.add_file(mapped_file)
    return mapped_file


def _cut_at_end_of(queue: ConsumeQueue, mapped_file: MappedFile, min_phy_offset: int) -> bool:
    """End the queue where a file lost its end, unless all that was there has expired."""
    files = queue.mapped_file_queue
    base = mapped_file.file_from_offset
    behind = files.find_mapped_file_by_offset(base + files.mapped_file_size, False)
    first = None if behind is None else unit_at(behind.read(0, CQ_STORE_UNIT_SIZE))
    if behind is not None and first is not None and first[1] > 0 and first[0] <= min_phy_offset:
        files.delete_files_before(behind.file_from_offset + 1)
        return False
    valid_size, _, _ = queue.reader.scan(mapped_file, NO_LIMIT)
    queue.keep_units(base + valid_size)
    files.truncate_dirty_files(base + valid_size)
    mapped_file.set_positions(files.mapped_file_size)  # recovery finds the end of a whole file
    return True


def _restore_ext(
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    broken_path: str,
    before_cut: Callable[[], None],
    found: list[MismatchedFile],
) -> bool:
    """Restore the ext units, and end the queue before the first unit whose ext unit is lost."""
    files = ext.mapped_file_queue
    kept_at = f"{broken_path}/{queue.topic}/{queue.queue_id}"
    mismatched, files.mismatched = files.mismatched, []
    lost_from = NO_LIMIT
    for file in mismatched:
        mapped_file = _restore(files, file, 1, kept_at)
        if mapped_file is not None and file.size < files.mapped_file_size:
            end = mapped_file.file_from_offset + ext.end_of_units(mapped_file)
            lost_from = min(lost_from, end)
    if not files.mapped_files:
        lost_from = 0  # nothing is left; a single address that is wrong says less
    position = _first_with_ext(queue, lost_from)
    if position is None:
        return False
    if not mismatched:
        reason = f"the ext units from byte {lost_from} on are missing"
        found.append(MismatchedFile(files.store_path, lost_from, 0, reason))
    before_cut()
    queue.keep_units(position)
    ext.truncate_at(lost_from)
    queue.mapped_file_queue.truncate_dirty_files(position)
    return True


def _first_with_ext(queue: ConsumeQueue, lost_from: int) -> int | None:
    """Byte of the stream of the first unit whose ext unit is at or behind `lost_from`."""
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
