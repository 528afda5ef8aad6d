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

import dataclasses
import errno
import os
from functools import partial
from typing import TYPE_CHECKING

from pyrocketstore.commit_log.appended import AppendedLog, LogChanged, LogPart
from pyrocketstore.commit_log.topic_min_offset_file import TOPIC_MIN_OFFSET
from pyrocketstore.consume_queue.growth import QueueChanged, QueueFolders, QueuesGrowth
from pyrocketstore.dispatch.replay import put_keys, put_units
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.system.live_stores import was_removed
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore.recovery.recovery_plan import RecoveryPlan
    from pyrocketstore.recovery.store_files import StoreFiles
    from pyrocketstore.system.env import Env

__all__ = ["Follower", "owner_of"]

LOG = logger(__name__)

_Identity = tuple[int, int] | None
Owner = tuple[_Identity, int, _Identity, bytes]


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
        self._store, self._plan, self._owner = store, plan, owner
        self._expired = store.expired_in
        self._folders = QueueFolders(store.env, store.queue_table)
        first = store.commit_log.mapped_file_queue.get_first_mapped_file()
        self._first_path = "" if first is None else first.path
        self._log = AppendedLog(store.commit_log, plan.log_end)
        self._index_names: set[str] | None = None
        #: published records whose keys are not in the index yet
        self._unindexed: LogPart | None = None
        #: queues with units in memory that the owner may have written meanwhile
        self._built = {
            (queue.topic, queue.queue_id) for queue in store.consume_queues() if queue.is_in_memory
        }
        unusual = (plan.broken, plan.mismatched, plan.repairs, plan.missing_first_file)
        self._can_follow = not (
            any(unusual) or store.config.enable_consume_queue_ext or store.commit_log.is_dledger
        )
        #: nothing need be loaded again until the owner does something
        self._can_wait = not store.commit_log.is_dledger
        if plan.last_record >= 0 and self._can_wait:
            try:
                self._log.note_last(plan.last_record)
            except LogChanged:  # the next `follow` has the store loaded again
                self._can_follow = self._can_wait = False

    def follow(self) -> bool:
        """Make readable what was appended; return False when the store must be loaded again.

        Raises StoreIOError: what was published so far is complete; the next call continues.
        """
        try:
            return self._follow()
        except (LogChanged, QueueChanged, StoreCorruptionError) as error:
            LOG.info("%s: the store is loaded again: %r", self._store.root, error)
            return False
        except StoreIOError as error:
            self._folders.forget()
            if was_removed(error):
                return False
            raise
        except BaseException:
            self._folders.forget()
            raise

    def _follow(self) -> bool:
        store = self._store
        if owner_of(store.env, store.root) != self._owner:
            return False
        if not self._can_follow:
            return self._can_wait and self._has_nothing_new()
        self._forget_expired()
        new, is_removed = self._folders.look()
        if is_removed or not self._log.is_end_known() or not self._fits_index():
            return False
        self._built.update(new)
        self._index()
        for part in self._log.parts(lambda: bool(self._built)):
            put = partial(put_units, part, store.config)
            growth = QueuesGrowth(store.queue_table, part, put)
            grown = growth.grow(self._built)
            # Readers find first the log, then the queues, then the index.
            self._log.publish(part)
            growth.publish(grown, self._built)
            self._note(part)
            self._unindexed = part
            self._index()
        self._log.note_last(self._plan.last_record)
        return True

    def _has_nothing_new(self) -> bool:
        """Return whether the owner has done nothing since the store was loaded."""
        if self._first_path and not self._store.env.exists(self._first_path):
            return False
        new, is_removed = self._folders.look()
        return not (new or is_removed) and self._log.is_end_known() and not self._log.has_grown()

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
                raise LogChanged
            first_path, queues, expired = first.path, table.all(), []
            built = [queue for key in self._built if (queue := table.get(*key)) is not None]
            if not all(queue.has_first_file() for queue in built):
                raise LogChanged  # its expired units are in memory alone
        else:
            known = [queue for key in self._expired if (queue := table.get(*key)) is not None]
            queues = [queue for queue in known if not queue.has_first_file()]
            expired = [(queue.topic, queue.queue_id) for queue in known if queue not in queues]
        lowest = self._store.commit_log.get_min_offset()
        for queue in queues:
            check_abandoned()
            if queue.forget_deleted(lowest):
                expired.append((queue.topic, queue.queue_id))
        self._expired, self._first_path = expired, first_path

    def _fits_index(self) -> bool:
        """Return False when the owner has made index files that can replace full ones in memory."""
        index = self._store.index_service
        memory = [f for f in index.files if f.mode == "memory"]
        if self._index_names is not None and len(memory) < 2:
            return True
        names = set(self._store.env.listdir(index.root))
        if self._index_names is None:
            self._index_names = names
        return names <= self._index_names

    def _note(self, part: LogPart) -> None:
        """Give the store a plan with what was found."""
        plan = self._plan
        self._plan = self._store.plan = dataclasses.replace(
            plan,
            log_end=part.end,
            end_path=part.file.path,
            end_position=part.end - part.file.file_from_offset,
            ended_by=part.verdict,
            records=plan.records + part.record_count,
            beyond={key: end for key, end in plan.beyond.items() if end > part.end},
            last_record=part.last_record if part.chunks else plan.last_record,
        )

    def _index(self) -> None:
        """Put the keys of the records that are published. Raises StoreIOError."""
        part, store = self._unindexed, self._store
        if part is None:
            return
        if store.index_enabled and part.record_count:
            put_keys(store.commit_log, part, store.index_service)
        store.dispatcher.position = part.end
        self._unindexed = None


def owner_of(env: Env, root: str) -> Owner:
    """Return a value that changes when a process opens the store for writing, closes it, or
    removes messages of a topic.

    Both engines write to `lock` when they open a store, and create and delete `abort`. A removal of
    messages replaces the file of minimums twice: the second new file may have the inode of the one
    that was there before. Raises StoreIOError.
    """
    lock = os.path.join(root, "lock")
    minimums = os.path.join(root, "config", TOPIC_MIN_OFFSET)
    return (
        env.identity_at(lock),
        env.modified_ms(lock),
        env.identity_at(os.path.join(root, "abort")),
        _bytes(env, minimums),
    )


def _bytes(env: Env, path: str) -> bytes:
    """Return the content of a file, b"" if it is missing."""
    try:
        # A directory that cannot be searched has no such file, as for the loading.
        return env.read_file(path) if env.exists(path) else b""
    except StoreIOError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise
