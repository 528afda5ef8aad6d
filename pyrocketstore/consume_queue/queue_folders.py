"""The directories of the queues of a store that another process writes to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyrocketstore.files.queue_directories import find_queue_ids, find_topics

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.table import ConsumeQueueTable
    from pyrocketstore.system.env import Env

__all__ = ["RECENT_MS", "QueueFolders"]

#: A directory whose time is less than this before its listing may change again without a later
#: time (ms).
RECENT_MS = 1000
#: Also the time of a missing directory.
UNSURE = -1


class QueueFolders:
    """The directories of the queues: which queues are new, and whether one was removed.

    A look costs one stat for each topic, and lists the directories that have changed; the first one
    lists all. Threads: one.
    """

    def __init__(self, env: Env, table: ConsumeQueueTable) -> None:
        self._env = env
        self._table = table
        #: {directory: its time before it was listed, Unix ms, or UNSURE}
        self._times: dict[str, int] = {}
        #: {topic: the queue ids that its directory had}
        self._ids: dict[str, set[int]] = {}

    def forget(self) -> None:
        """Have the next look list all directories."""
        self._times.clear()
        self._ids.clear()

    def look(self) -> tuple[list[tuple[str, int]], bool]:
        """Return the queues on disk that the table lacks and no earlier look has returned, and
        whether a queue of the table was removed. Raises StoreIOError.
        """
        table, is_first = self._table, not self._times
        new: list[tuple[str, int]] = []
        gone: list[tuple[str, int]] = []  # since an earlier look
        if self._has_changed(table.path):
            topics = set(find_topics(self._env, table.path, warn=False))
            if table.only is not None:
                topics = {topic for topic in topics if topic in table.only}
            for topic in self._ids.keys() - topics:
                gone += [(topic, queue_id) for queue_id in self._ids.pop(topic)]
            for topic in topics - self._ids.keys():
                self._ids[topic] = set()
        for topic, known in self._ids.items():
            path = os.path.join(table.path, topic)
            if self._has_changed(path):
                ids = find_queue_ids(self._env, path, warn=False)
                gone += [(topic, queue_id) for queue_id in known - ids]
                new += [(topic, queue_id) for queue_id in sorted(ids - known)]
                self._ids[topic] = ids
        is_removed = any(table.get(*key) is not None for key in gone)
        if is_first:
            keys = ((queue.topic, queue.queue_id) for queue in table.all())
            missing = [key for key in keys if key[1] not in self._ids.get(key[0], ())]
            is_removed = is_removed or any(self._was_on_disk(*key) for key in missing)
        return [key for key in new if table.get(*key) is None], is_removed

    def _was_on_disk(self, topic: str, queue_id: int) -> bool:
        """Return False for a queue that recovery has made in memory."""
        queue = self._table.get(topic, queue_id)
        files = () if queue is None else queue.mapped_file_queue.mapped_files
        return not files or any(file.mode == "read" for file in files)

    def _has_changed(self, path: str) -> bool:
        """Return whether a directory must be listed, and note its time."""
        now = self._env.now_ms()
        time_ms = self._env.modified_ms(path)
        before = self._times.get(path)
        self._times[path] = UNSURE if time_ms > now - RECENT_MS else time_ms
        return self._times[path] == UNSURE or self._times[path] != before
