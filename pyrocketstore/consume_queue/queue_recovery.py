"""Recover one consume queue: find its end, cut it there, and put lost units back.

`recover_queue` ends a queue at its first unit that is not valid. Units after a cut are kept until
the log has been dispatched again: the dispatch restores the units of records that the log still
has, and `give_back_units` those of records that the log has lost, so that readers report them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyrocketstore.consume_queue.ext import NO_ADDRESS
from pyrocketstore.consume_queue.kept_units import KeptUnit, KeptUnits
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, NO_LIMIT
from pyrocketstore.display import logger

__all__ = [
    "begin_again",
    "cover_at_most",
    "end_before",
    "erase_torn_end",
    "give_back_units",
    "give_up_torn_end",
    "keep_units",
    "recover_queue",
    "restart_queue",
]

LOG = logger(__name__)


def recover_queue(
    queue: ConsumeQueue,
    phy_offset: int = NO_LIMIT,
    before_cut: Callable[[], None] = lambda: None,
) -> None:
    """Find the end of a queue, and delete the files after it.

    The last three files are scanned, and each file that may name messages at or after `phy_offset`,
    bytes of the log, from which on units may not have been durable. `before_cut` is called before
    units are lost.

    The bytes after the end stay as they are until units are written there; then they are zeroed
    first, so that units of an earlier process never come back.

    Raises StoreIOError.
    Source: RocketMQ 4.9.3 ConsumeQueue#recover.
    """
    mapped_files = queue.mapped_file_queue.mapped_files
    queue.unsure_from = phy_offset
    queue.stated_max_physic_offset = -1
    queue.cut_short = False
    end, max_phy_offset = 0, -1
    if not mapped_files:
        queue.set_end(-1)
        return
    last_address = NO_ADDRESS
    for mapped_file in mapped_files[queue.reader.first_to_scan(phy_offset) :]:
        valid_size, phy_offset, address = queue.reader.scan(mapped_file, NO_LIMIT)
        end = mapped_file.file_from_offset + valid_size
        if phy_offset >= 0:
            max_phy_offset = phy_offset
        if address != NO_ADDRESS:
            last_address = address
        if valid_size < queue.mapped_file_size:
            is_last = mapped_file is mapped_files[-1]
            queue.cut_short = not is_last or queue.reader.has_data(mapped_file, valid_size)
            if queue.cut_short:
                # The owner of a read-only store may have written units there since the scan.
                queue.cut_short = queue.reader.scan(mapped_file, NO_LIMIT)[0] == valid_size
            break
    if queue.cut_short:
        LOG.warning("%s/%d: units are lost from byte %d on", queue.topic, queue.queue_id, end)
        before_cut()
        keep_units(queue, end)
    queue.cut_to(end, drop_empty=False)
    if max_phy_offset < 0:
        max_phy_offset = queue.reader.last_phy_offset()
    queue.set_end(max_phy_offset)
    queue.tail_is_clean = False
    if queue.ext is not None:
        queue.ext.recover()
        queue.ext.truncate_by_max_address(last_address)


def keep_units(queue: ConsumeQueue, position: int) -> None:
    """Remember the durable units from byte `position` of the queue on, before they are cut off.

    A later unit that the log supplies again puts the ones before it back with it; see also
    `give_back_units`. Raises StoreIOError.
    """

    def plain_code(code: int) -> int:
        # The ext unit at that address may be another one by then.
        return queue.resolve_tags(code)[1] or 0

    if queue.kept_units is None:
        queue.kept_units = KeptUnits()
    queue.kept_units.keep(queue.reader, position, queue.unsure_from, plain_code)


def give_back_units(queue: ConsumeQueue, log_end: int, is_lost: Callable[[KeptUnit], bool]) -> None:
    """Put kept units back, up to the last one after the queue's end that names a record which the
    log has lost before its end; forget the others.

    `is_lost` is called for units that name bytes before `log_end`, bytes of the log. Raises
    StoreIOError.
    """
    if queue.kept_units is None:
        return
    covered = max(0, queue.core.max_physic_offset)
    last = queue.kept_units.last(queue.core.unit_count, covered, log_end, is_lost)
    if last is not None:
        queue.put_message_position_info(*last.unit, last.queue_offset)
    queue.kept_units = None


def give_up_torn_end(queue: ConsumeQueue, phy_offset: int) -> None:
    """Drop the last unit if a power cut may have torn it and its message is not before
    `phy_offset`, bytes of the log, from which on the log is dispatched again. Nothing is written.
    """
    position = (queue.core.unit_count - 1) * CQ_STORE_UNIT_SIZE
    if queue.core.max_physic_offset > phy_offset and queue.reader.is_two_sectors(position):
        queue.cut_to(position, drop_empty=False)
        queue.set_end(queue.reader.last_phy_offset())
        queue.torn_end = position


def end_before(queue: ConsumeQueue, queue_offset: int) -> None:
    """End a queue before a unit that contradicts the log, which gives it and those behind it again.
    Nothing is written. Raises StoreIOError."""
    position = queue_offset * CQ_STORE_UNIT_SIZE
    count = queue.core.unit_count - queue_offset
    LOG.warning(
        "%s/%d: a unit did not name its record: the last %d are derived from the log again",
        queue.topic,
        queue.queue_id,
        count,
    )
    keep_units(queue, position)
    queue.cut_to(position, drop_empty=False)
    queue.set_end(queue.reader.last_phy_offset())
    queue.truncate_ext()
    queue.torn_end = position
    queue.tail_is_clean = False


def erase_torn_end(queue: ConsumeQueue) -> None:
    """Zero the units that were dropped from the end of a queue and that the log did not give again;
    else they come back once the log has grown over the physical offsets that they name.

    Raises StoreIOError."""
    files = queue.mapped_file_queue.mapped_files
    is_end = queue.torn_end == queue.mapped_file_queue.get_max_offset()
    if files and is_end and files[-1].mode != "read":
        files[-1].zero_tail(files[-1].wrote)


def cover_at_most(queue: ConsumeQueue, log_end: int) -> None:
    """Have the queue claim no byte of the log at or after `log_end`, where new records will be:
    dispatch takes a record that the queue claims for a repeat, and queues it nowhere.
    """
    if queue.core.max_physic_offset > log_end:
        LOG.warning(
            "%s/%d: its units name bytes up to %d of the log, which ends at %d",
            queue.topic,
            queue.queue_id,
            queue.core.max_physic_offset,
            log_end,
        )
        queue.core.reset(queue.core.unit_count, log_end)


def begin_again(queue: ConsumeQueue) -> None:
    """Delete all files of a queue that recovery builds again from its first message on."""
    keep_units(queue, 0)
    while queue.mapped_file_queue.mapped_files:
        queue.mapped_file_queue.delete_last_mapped_file()
    recover_queue(queue)
    queue.truncate_ext()


def restart_queue(queue: ConsumeQueue, queue_offset: int, phy_offset: int) -> None:
    """Drop the units from `queue_offset` on, which name older messages than the one at
    `phy_offset`, byte of the log. The queue then takes no message before that one.

    Raises StoreIOError.
    """
    files = queue.mapped_file_queue
    position = queue_offset * CQ_STORE_UNIT_SIZE
    queue.core.retire()
    if position < files.get_min_offset():
        while files.mapped_files:
            files.delete_last_mapped_file()
    queue.cut_to(position, drop_empty=True)
    if files.mapped_files and files.mapped_files[-1].mode != "read":
        files.mapped_files[-1].zero_tail(files.mapped_files[-1].wrote)
    queue.core.min_logic_offset = min(queue.core.min_logic_offset, position)
    queue.set_end(phy_offset)
    queue.truncate_ext()
