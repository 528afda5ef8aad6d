"""Apply a recovery plan: cut the log, the queues and the index, and replay what they lack.

`Applying` does that in memory, for a read-only store; `ApplyingToWrite` changes the files.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING

from pyrocketstore.commit_log.log_end import begun_files, data_behind
from pyrocketstore.consume_queue.queues_recovery import QueuesCut
from pyrocketstore.dispatch.replay import QueuesReplay
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.files.broken_folder import copy_to_broken, move_to_broken
from pyrocketstore.index.gaps import fill_gaps

if TYPE_CHECKING:
    from pyrocketstore.recovery.recovery_plan import RecoveryPlan
    from pyrocketstore.recovery.store_files import StoreFiles

__all__ = ["Applying", "ApplyingToWrite", "keep_lost_messages", "unforced_directories"]

LOG = logger(__name__)


def keep_lost_messages(store: StoreFiles, plan: RecoveryPlan) -> RecoveryPlan:
    """Copy what is left of the messages that the log loses, and note the warnings of the loss.

    Bytes after the log's end that hold valid records, and of a log that has lost its end those that
    units of a queue name, are copied to ROOT/.broken/<time>. Returns the plan with these bytes and
    warnings.

    Durability: durable on return. Raises StoreIOError.
    """
    remains = _remains(store, plan)
    copy_to_broken(store.env, store.root, [*plan.broken, *remains])
    earlier = store.loss_notices.read()
    notices = list(dict.fromkeys([*earlier, *_loss_texts(plan, has_remains=bool(remains))]))
    if notices != earlier:
        store.loss_notices.write(notices)
    return dataclasses.replace(plan, remains=remains, loss_notices=notices)


def _loss_texts(plan: RecoveryPlan, *, has_remains: bool) -> list[str]:
    """Return the warnings of what an opening for writing removes from the log."""
    texts = []
    if plan.broken:
        texts.append(f"{plan.early_end}; the records behind it were kept in .broken")
    if plan.lost:
        kept = " what is left of them was kept in .broken;" if has_remains else ""
        texts.append(
            # The opening erases the BLANK of the file in which the log ends.
            f"{plan.lost}; these messages are missing:{kept} restore the lost files, and the file"
            " in which the log ends now, from a copy, before new messages get their queue offsets;"
            " then run `verify`"
        )
    return [text.replace("\n", " ") for text in texts]  # one line each, also with odd paths


def _remains(store: StoreFiles, plan: RecoveryPlan) -> list[tuple[str, int, int]]:
    """Return (path, position, size) of the bytes after the log's end that lost messages had: those
    in front of later valid records, and those that units name.

    Files that `broken` has, one that ends with a BLANK, and zeros are left out.
    """
    known = {path for path, _, _ in plan.broken}
    ends = [int(os.path.basename(path)) for path in known]
    end = max(ends + (list(plan.beyond.values()) if plan.lost else []), default=0)
    if plan.ends_with_blank:
        known.add(plan.end_path)
    found = data_behind(store.commit_log, plan.log_end, end)
    return [part for part in found if part[0] not in known]


class Applying:
    """Applies the plan of a read-only store, in memory.

    Parameters
    ----------
    store : StoreFiles
    plan : RecoveryPlan

    `keyless` has ranges of the log that no index file covers and that have no keys.
    """

    #: A reader returns all messages of a queue without its first file, and finds that again at each
    #: opening.
    missing_file_level = logging.INFO

    def __init__(self, store: StoreFiles, plan: RecoveryPlan) -> None:
        self._store, self._plan = store, plan
        self._log, self._index = store.commit_log, store.index_service
        self.keyless = list(plan.keyless)

    def apply_plan(self) -> None:
        """Cut the log and the queues, and dispatch records again that queues or index lack.

        Raises StoreIOError.
        """
        store, plan, log, index = self._store, self._plan, self._log, self._index
        index.remove_left_out()
        trusted = store.unsure_from(clean=False) if plan.clean else plan.synced_to
        start = plan.replay_from
        is_early = start is not None and (trusted is None or start < trusted)
        if is_early:
            store.checkpoint.uncover_log()
        index.correct_sync_point(plan.log_end)
        if plan.empty:
            self._set_queues_aside()
            log.open_end(0)
            store.dispatcher.position = 0
            return
        for text in (plan.early_end if plan.broken else "", plan.lost):
            if text:
                LOG.warning("%s", text, extra=REPORTED_ELSEWHERE)
        queues = QueuesCut(store.queue_table, plan.log_end, clean=plan.clean)
        if plan.cut_queues:
            # Before the log: a unit that names a byte far after the log's files looks damaged.
            queues.cut()
        self._cut_minimums()
        log.mapped_file_queue.truncate_dirty_files(plan.log_end)
        if plan.clean:
            store.checkpoint.begin_log(plan.log_end, [])
        else:
            begun = begun_files(log, plan.scan_from, plan.log_end)
            store.checkpoint.begin_log(plan.scan_from, begun)
        log.open_end(plan.log_end, None if plan.clean else plan.scan_from)
        if store.config.message_index_enable:
            index.drop_files_after(plan.log_end, replays=plan.replay_from is not None)
            index.uncover_missing_files()
        queues.begin_again(plan.missing_first_file, plan.synced_to, self.missing_file_level)
        if plan.replay_from is not None:
            self._replay(plan.replay_from)
        self._fill_gaps()
        queues.finish()
        store.dispatcher.position = plan.log_end

    def _replay(self, start: int) -> None:
        """Replay records that 4.9.3 would leave out first, then from 4.9.3's own start on."""
        plan, index, dispatcher = self._plan, self._index, self._store.dispatcher
        kept, queues = index.files, QueuesReplay(self._store.queue_table, dispatcher)
        if not plan.clean and start < plan.scan_from and self._store.index_enabled:
            queues.run(start, plan.scan_from)
            start = plan.scan_from
            if not kept or kept[-1].is_write_full():
                last = kept[-1] if kept else None
                dispatcher.set_index_file(index.begin_new_file(last))
        queues.run(start, plan.log_end, plan.chunks)
        for queue in self._store.consume_queues() if plan.clean else ():
            if (queue.topic, queue.queue_id) in plan.repairs:
                queue.core.repeated_at = -1  # no topic was made again since the clean stop
        queues.finish(plan.log_end)

    def _set_queues_aside(self) -> None:
        """Set aside the queues and the index of an empty log, which name records that are gone.

        Source: RocketMQ 4.9.3 DefaultMessageStore#destroyLogics.
        Differs: moved to ROOT/.broken/<time> instead of deleted; the index too, because it would
        count the first records of a new log as indexed.
        """
        queues = self._store.consume_queues()
        count = sum(queue.get_max_offset_in_queue() > 0 for queue in queues)
        if count or any(file.end_phy_offset > 0 for file in self._index.files):
            text = f"the commit log is empty, and its {count} consume queues and the index"
            self._move_aside(f"{self._store.root}: {text}")
            for queue in queues:
                queue.forget_files()

    # ---- what a writer does otherwise ------------------------------------------------------------

    def _move_aside(self, text: str) -> None:
        LOG.warning("%s are ignored; opening the store for writing moves them to .broken", text)

    def _cut_minimums(self) -> None:
        """Lower the minimums of topics to a log that is cut: they must not hide what is put
        next."""

    def _fill_gaps(self) -> None:
        """Put keys into the index that the log has between its files."""


class ApplyingToWrite(Applying):
    """Applies the plan of a store that is opened for writing."""

    missing_file_level = logging.WARNING

    def _move_aside(self, text: str) -> None:
        env, root = self._store.env, self._store.root
        folder = move_to_broken(env, root, ("consumequeue", "consumequeue_ext", "index"))
        env.make_directories(os.path.join(root, "consumequeue"))
        self._index.forget_files()
        LOG.warning("%s were moved to %s", text, folder)

    def _cut_minimums(self) -> None:
        minimums = self._store.topic_minimums
        minimums.cut(self._store.env, self._log, self._plan.log_end)
        self._store.set_min_offsets(minimums.offsets().by_topic())

    def _fill_gaps(self) -> None:
        if self._store.index_enabled:
            limit = self._store.config.max_key_search_bytes
            self.keyless += fill_gaps(self._index, self._log, self._plan.log_end, limit)
            self._index.erase_rest()


def unforced_directories(store: StoreFiles, plan: RecoveryPlan, *, rewrite: bool) -> list[str]:
    """Have the next flush make the units durable that a killed process has written, after its plan
    was applied; return the directories whose names must be durable, too.

    With `rewrite`, after a failed fsync, the bytes are written again first: no fsync would write
    clean pages. Otherwise they are dirty pages, which the next fsync writes. Raises StoreIOError.
    """
    env, root = store.env, store.root
    again = env.write_again if rewrite else lambda path: None
    for file in store.commit_log.mapped_file_queue.mapped_files:
        if file.file_from_offset >= plan.scan_from:
            again(file.path)
    store.index_service.write_continued_again(again)
    queues = QueuesCut(store.queue_table, plan.log_end, clean=plan.clean)
    topics = queues.write_again(plan.scan_from, again)
    folders = {os.path.join(root, name) for name in ("", "config", "consumequeue", "index")}
    folders.update(store.config.commit_log_paths)
    topics.update(folder for folder in folders if env.is_dir(folder))
    return sorted(topics)
