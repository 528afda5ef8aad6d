"""ROOT/config/delayOffset.json: for each delay level the queue offset to deliver next."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import StoreError, without_frames
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import ConfigFile, java_number, table_of

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

_TABLE = "offsetTable"
#: Bins of the broker's table of offsets, a ConcurrentHashMap made for 32.
_BINS = 64
_REMEDY = "delete it and its backup: delayed messages that the log has are then delivered again"


class DelayOffsets:
    """The offset of each delay level in the form of 4.9.3's ScheduleMessageService.

    Parameters
    ----------
    env : Env
    root : the store's root directory

    An offset that is negative or not a long, and a level below 1, are damaged entries: see
    ConfigFile.

    Attributes: `error`, why the last `persist` has failed, None when it succeeded.

    Threads: any; the offsets of a level are moved by one thread.
    Source: RocketMQ 4.9.3 ScheduleMessageService, DelayOffsetSerializeWrapper.
    """

    def __init__(self, env: Env, root: str) -> None:
        self.path = os.path.join(root, "config", "delayOffset.json")
        self.error: StoreError | None = None
        self._file = ConfigFile(env, self.path, _valid_part, _REMEDY)
        self._write_lock = threading.Lock()
        self._content: dict[str, Any] = {}
        self._offsets: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def load(self) -> None:
        """Read the file or its backup. Raises StoreCorruptionError, StoreIOError.

        Source: RocketMQ 4.9.3 ScheduleMessageService#load.
        """
        self._content = self._file.read()
        table = self._content.get(_TABLE, {})
        self._offsets = {_level_of(text): offset for text, offset in table.items()}
        self._written = dict(self._offsets)
        self.error = None

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name."""
        self._file.note_unclean_stop()

    def next_offset(self, level: int) -> int:
        """Return the queue offset to deliver next, 0 for a level without deliveries."""
        return self._offsets.get(level, 0)

    def offsets(self) -> dict[int, int]:
        """Return {level: queue offset to deliver next}."""
        return dict(self._offsets)

    def move(self, level: int, queue_offset: int) -> None:
        """Set the queue offset to deliver next."""
        self._offsets[level] = queue_offset

    def is_changed(self) -> bool:
        """Return True if `persist` would write."""
        return self._offsets != self._written

    def persist(self, offsets: dict[int, int]) -> None:
        """Write offsets whose deliveries are durable, if they differ from those of the file.

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError,
        and the next call tries again.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._write_lock:
            try:
                if offsets == self._written:
                    self._file.flush_name()
                else:
                    table = fastjson.map_order({}, offsets, _BINS)
                    self._file.write({**self._content, _TABLE: table})
                    self._written = offsets
            except StoreError as error:
                self.error = without_frames(error)
                raise
            self.error = None


def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content without entries that have no level or no offset. Raises ContentError."""
    found = {text: java_number(value) for text, value in table_of(content, _TABLE).items()}
    valid = {
        text: offset
        for text, offset in found.items()
        if _level_of(text) >= 1 and offset is not None and offset >= 0
    }
    return {**content, _TABLE: valid} if _TABLE in content else content


def _level_of(text: str) -> int:
    """Return the level of a key, 0 for a text that is not an int."""
    return java_number(text, 32) or 0
