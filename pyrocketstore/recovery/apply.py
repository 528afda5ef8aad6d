"""Apply a recovery plan: cut the log, the queues and the index, and replay what they lack.

In a read-only store everything happens in memory: MappedFile knows the difference.
"""

from __future__ import annotations

import logging
import os
from functools import partial

from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.consume_queue.kept_units import KeptUnit
from pyrocketstore.consume_queue.queue import flush_queues
from pyrocketstore.consume_queue.queue_recovery import (
    begin_again,
    cover_at_most,
    erase_torn_end,
    give_back_units,
)
from pyrocketstore.consume_queue.restarted_queues import dispatch_restarted
from pyrocketstore.consume_queue.unit_check import (
    names_record,
    repair_units,
)
from pyrocketstore.dispatch.replay import replay
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.broken_folder import broken_folder
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.mapped_file_queue import has_data
from pyrocketstore.index.gaps import fill_gaps
from pyrocketstore.recovery.log_end import first_store_time, scan_start
from pyrocketstore.recovery.plan import RecoveryPlan, readable_log
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.results import Status

__all__ = ["apply_plan", "flush_recovered", "fsync_again", "keep_lost_messages"]

LOG = logger(__name__)


def keep_lost_messages(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Copy what is left of the messages that the log loses, and note the warnings of the loss.

    Bytes after the log's end that hold valid records, or that units of a queue name, are copied to
    ROOT/.broken/<time>. Durability: durable on return. Raises StoreIOError.
    """
    plan.remains = _remains(store, plan)
    _keep_broken(store, [*plan.broken, *plan.remains])
    earlier = store.loss_notices.read()
    plan.loss_notices = list(dict.fromkeys([*earlier, *_loss_texts(plan)]))
    if plan.loss_notices != earlier:
        store.loss_notices.write(plan.loss_notices)


def _loss_texts(plan: RecoveryPlan) -> list[str]:
    """Return the warnings of what an opening for writing removes from the log."""
    texts = []
    if plan.broken:
        texts.append(f"{plan.early_end}; the records behind it were kept in .broken")
    if plan.lost:
        kept = " what is left of them was kept in .broken;" if plan.remains else ""
        texts.append(
            # The opening erases the BLANK of the file in which the log ends.
            f"{plan.lost}; these messages are missing:{kept} restore the lost files, and the file"
            " in which the log ends now, from a copy, before new messages get their queue offsets;"
            " then run `verify`"
        )
    return [text.replace("\n", " ") for text in texts]  # one line each, also with odd paths


def apply_plan(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Cut the log and the queues, and dispatch records again that queues or index lack.

    Raises StoreIOError.
    """
    log = store.commit_log
    store.index_service.remove_left_out()
    trusted = scan_start(store, False) if plan.clean else plan.synced_to
    is_early = plan.replay_from is not None and plan.replay_from < trusted
    if is_early or (plan.repairs and not store.read_only):
        store.checkpoint.uncover_log()
    store.index_service.forget_sync_point(plan.log_end)
    if plan.empty:
        _set_queues_aside(store)
        log.open_end(0)
        store.dispatcher.position = 0
        return
    if plan.broken:
        LOG.warning("%s", plan.early_end, extra=REPORTED_ELSEWHERE)
    if plan.lost:
        LOG.warning("%s", plan.lost, extra=REPORTED_ELSEWHERE)
    _repair_queues(store, plan)
    if plan.cut_queues:
        # Before the log: a unit that names a byte far after the log's files looks damaged.
        for queue in store.consume_queues():
            queue.truncate_dirty_logic_files(plan.log_end)
    if not store.read_only:
        _cut_minimums(store, plan)
    log.mapped_file_queue.truncate_dirty_files(plan.log_end)
    store.checkpoint.begin_log(*_covered_log(store, plan))
    log.open_end(plan.log_end, None if plan.clean else plan.scan_from)
    if store.config.message_index_enable:
        store.index_service.drop_files_after(plan.log_end, replays=plan.replay_from is not None)
        store.index_service.uncover_missing_files()
    for queue in store.consume_queues():
        if (queue.topic, queue.queue_id) in plan.missing_first_file:
            # A read-only store returns all its messages, and finds this again at each opening.
            level = logging.INFO if store.read_only else logging.WARNING
            LOG.log(level, "%s/%d: its first file is missing", queue.topic, queue.queue_id)
            begin_again(queue)
        elif queue.ext is not None and not plan.clean:
            # Units and ext units are flushed separately: the replay writes both again, except those
            # of removed messages, which keep the queue offsets.
            written_again = max(plan.synced_to, queue.removed_before)
            queue.truncate_dirty_logic_files(min(written_again, plan.log_end))
        cover_at_most(queue, plan.log_end)
    if plan.replay_from is not None:
        had_units = store.queue_table.keys_with_units()
        _replay(store, plan, plan.replay_from)
        again = partial(replay, log, store.dispatcher)
        dispatch_restarted(store.queue_table, plan.log_end, had_units, again)
    if store.index_enabled and not store.read_only:
        limit = store.config.max_key_search_bytes
        plan.keyless += fill_gaps(store.index_service, log, plan.log_end, limit)
        store.index_service.erase_rest()
    _give_back_units(store, plan)
    for queue in store.consume_queues():
        erase_torn_end(queue)
        cover_at_most(queue, plan.log_end)
    store.dispatcher.position = plan.log_end


def _replay(store: StoreFiles, plan: RecoveryPlan, start: int) -> None:
    """Replay records that 4.9.3 would leave out first, then from 4.9.3's own start on."""
    kept = store.index_service.files
    if not plan.clean and start < plan.scan_from and store.index_enabled:
        replay(store.commit_log, store.dispatcher, start, plan.scan_from)
        start = plan.scan_from
        if not kept or kept[-1].is_write_full():
            last = kept[-1] if kept else None
            store.dispatcher.set_index_file(store.index_service.begin_new_file(last))
    replay(store.commit_log, store.dispatcher, start, plan.log_end, plan.chunks)


def _cut_minimums(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Lower the minimums of topics to a log that is cut: they must not hide what is put next."""
    store.topic_minimums.cut(store.env, store.commit_log, plan.log_end)
    store.set_min_offsets(store.topic_minimums.offsets().by_topic())


def _give_back_units(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Put units of lost records back, after the last record that the log has supplied."""
    queues = [queue for queue in store.consume_queues() if queue.kept_units]
    files = store.commit_log.mapped_file_queue.mapped_files
    if not queues or not files:
        return
    log = readable_log(store, files, plan)
    for queue in queues:
        key = queue.topic, queue.queue_id

        def is_lost(kept: KeptUnit, key: tuple[str, int] = key) -> bool:
            if names_record(log, key, kept.queue_offset, kept.unit):
                return True
            return log.lost.range_of(*kept.unit[:2]) is not None

        give_back_units(queue, plan.log_end, is_lost)


def _covered_log(store: StoreFiles, plan: RecoveryPlan) -> tuple[int, list[tuple[int, int]]]:
    """Return the durable part of the log, and the first store time of each later file."""
    if plan.clean:
        return plan.log_end, []
    files = store.commit_log.mapped_file_queue.mapped_files
    later = [f for f in files if plan.scan_from < f.file_from_offset < plan.log_end]
    times = [(f.file_from_offset, first_store_time(f)) for f in later]
    return plan.scan_from, [(offset, stored) for offset, stored in times if stored is not None]


def _repair_queues(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Correct the units that contradict the log; in a read-only store in memory."""
    for queue in store.consume_queues():
        units = plan.repairs.get((queue.topic, queue.queue_id))
        if units:
            repair_units(queue, units)
            covered = queue.reader.last_phy_offset()
            queue.core.reset(queue.get_max_offset_in_queue(), covered)


def fsync_again(store: StoreFiles, plan: RecoveryPlan, file_systems: FileSystems) -> None:
    """Make data of a killed process durable, after its plan was applied: names now, units of queues
    by their next flush.

    After a failed fsync the bytes are written again first: no fsync would write clean pages.
    Raises StoreIOError.
    """
    root = store.config.store_path_root_dir
    again = store.env.write_again
    if not AbortFile(store.env, os.path.join(root, "abort")).is_marked():
        again = _keep
    for file in store.commit_log.mapped_file_queue.mapped_files:
        if file.file_from_offset >= plan.scan_from:
            again(file.path)
    index_file = store.index_service.continued
    if index_file in store.index_service.files and index_file.path is not None:
        again(index_file.path)
    folders = {os.path.join(root, name) for name in ("", "config", "consumequeue", "index")}
    folders.update(store.config.commit_log_paths)
    topics = set()  # directories of queues with files: they exist
    for queue in store.consume_queues():
        if queue.covered_phy_offset > plan.scan_from:
            topics.add(f"{queue.store_path}/{queue.topic}")
            files = queue.mapped_file_queue
            if queue.ext is not None:
                ext_topic = os.path.join(root, "consumequeue_ext", queue.topic)
                folders |= {os.path.dirname(ext_topic), ext_topic}
                ext_files = queue.ext.mapped_file_queue
                for file in ext_files.mapped_files:
                    again(file.path)
                    file.mark_unflushed()
                ext_files.flushed_where = max(ext_files.get_min_offset(), 0)
            for file in reversed(files.mapped_files):
                again(file.path)
                file.mark_unflushed()
                files.flushed_where = min(files.flushed_where, file.file_from_offset)
                if file is files.mapped_files[0]:
                    break
                # Not by the mapping: a hole of a file on a full tmpfs cannot be mapped.
                first = store.env.read_file(file.path, size=8)
                if int.from_bytes(first, "big", signed=True) < plan.scan_from:
                    break  # earlier files were durable before
    topics.update(folder for folder in folders if store.env.is_dir(folder))
    file_systems.fsync_directories(sorted(topics))


def _keep(path: str) -> None:
    """Do not write the bytes again: they are dirty pages, which the next fsync writes."""


def _remains(store: StoreFiles, plan: RecoveryPlan) -> list[tuple[str, int, int]]:
    """Return (path, position, size) of the bytes after the log's end that lost messages had: those
    in front of later valid records, and those that units name.

    Files that `broken` has, one that ends with a BLANK, and zeros are left out.
    """
    known = {path for path, _, _ in plan.broken}
    ends = [int(os.path.basename(path)) for path in known]
    end = max(ends + (list(plan.beyond.values()) if plan.lost else []), default=0)
    if plan.ended_by == status_name(Status.BLANK):
        known.add(plan.end_path)
    found = []
    for file in store.commit_log.mapped_file_queue.mapped_files:
        begin = max(0, plan.log_end - file.file_from_offset)
        stop = min(file.wrote, end - file.file_from_offset)
        if begin < stop and file.path not in known and has_data(store.env, file, begin, stop):
            found.append((file.path, begin, stop - begin))
    return found


def _keep_broken(store: StoreFiles, ranges: list[tuple[str, int, int]]) -> None:
    """Copy bytes after the log's end, each range to a file named by its physical offset."""
    if not ranges:
        return
    env = store.env
    folder = broken_folder(env, store.config.store_path_root_dir)
    env.make_directories(folder)
    for path, position, size in ranges:
        start = int(os.path.basename(path)) + position
        target = os.path.join(folder, f"{start:020d}")
        env.copy_range(path, target, position, size)
        LOG.warning("%d bytes from byte %d of %s were copied to %s", size, position, path, target)


def _set_queues_aside(store: StoreFiles) -> None:
    """Set aside the queues and the index of an empty log, which name records that are gone.

    Source: RocketMQ 4.9.3 DefaultMessageStore#destroyLogics.
    Differs: moved to ROOT/.broken/<time> instead of deleted; the index too, because it would count
    the first records of a new log as indexed.
    """
    queues = [queue for queue in store.consume_queues() if queue.get_max_offset_in_queue() > 0]
    index = any(file.end_phy_offset > 0 for file in store.index_service.files)
    if not queues and not index:
        return
    root = store.config.store_path_root_dir
    text = f"{root}: the commit log is empty, and its {len(queues)} consume queues and the index"
    if store.read_only:
        LOG.warning("%s are ignored; opening the store for writing moves them to .broken", text)
    else:
        env = store.env
        folder = broken_folder(env, root)
        env.make_directories(folder)
        for name in ("consumequeue", "consumequeue_ext", "index"):
            if env.is_dir(os.path.join(root, name)):
                env.rename(os.path.join(root, name), os.path.join(folder, name))
        env.make_directories(os.path.join(root, "consumequeue"))
        store.index_service.forget_files()
        LOG.warning("%s were moved to %s", text, folder)
    for queue in store.consume_queues():
        queue.forget_files()


def flush_recovered(store: StoreFiles, file_systems: FileSystems) -> None:
    """Flush what recovery has changed in a store whose services were not started.

    Raises StoreIOError.
    """
    flush_queues(store.consume_queues(), file_systems)
    while not store.commit_log.mapped_file_queue.flush(0):
        pass
