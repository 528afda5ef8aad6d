"""One JSON file of ROOT/config: read with its backup, written whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.files import fastjson

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

BACKUP_SUFFIX = ".bak"


class ConfigFile:
    """A JSON file of ROOT/config and its backup.

    Parameters
    ----------
    env : Env
    path : the file; its directory is made by `write`
    is_valid : callable(content), whether the parts that are used have their types
    remedy : what to do about a damaged file, for the error

    Threads: the caller lets one call at a time in.
    Source: RocketMQ 4.9.3 ConfigManager.
    Differs: written to a temporary file, synced and renamed, where 4.9.3 deletes before it renames;
    a damaged file without a valid backup is an error, where 4.9.3 begins with an empty table.
    """

    def __init__(
        self, env: Env, path: str, is_valid: Callable[[dict[str, Any]], bool], remedy: str
    ) -> None:
        self.env = env
        self.path = path
        self._is_valid = is_valid
        self._remedy = remedy
        self._is_name_flushed = True
        self._written = b""

    def read(self) -> dict[str, Any]:
        """Return the content of the file, or of its backup where the file is missing, empty or
        damaged; {} where neither exists.

        An empty file without a backup counts as damaged: a power cut may have emptied it.

        Raises StoreCorruptionError when one exists and neither can be read; StoreIOError.
        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
        folder = os.path.dirname(self.path)
        if self.env.exists(folder) and not self.env.is_dir(folder):
            reason = f"must be a directory; move it away, or {self._remedy}"
            raise StoreCorruptionError(folder, -1, reason)
        self.env.check_directory(folder)
        broken = None
        for path in (self.path, self.path + BACKUP_SUFFIX):
            data = self._bytes_of(path)
            if data is None:
                continue
            content = self._parsed(data)
            if content is not None:
                return content
            broken = broken or path
        if broken is not None:
            raise StoreCorruptionError(broken, -1, f"not valid JSON; repair it, or {self._remedy}")
        return {}

    def _parsed(self, data: bytes) -> dict[str, Any] | None:
        content = fastjson.parse(data)
        return content if content is not None and self._is_valid(content) else None

    def _bytes_of(self, path: str) -> bytes | None:
        """Return the bytes of a file, None if it is missing. A symbolic link is refused, because
        the next `write` would replace it."""
        return self.env.read_file(path, follow=False) if self.env.exists(path) else None

    def note_unclean_stop(self) -> None:
        """Have the next `flush_name` flush the file's name: a process that ended between the rename
        of a new file and its flush has left the name in memory only."""
        self._is_name_flushed = False

    def flush_name(self) -> None:
        """Flush the file's name if an unclean stop may have left it in memory only."""
        if not self._is_name_flushed and self.env.exists(self.path):
            self.env.fsync_directory(os.path.dirname(self.path))
        self._is_name_flushed = True

    def write(self, content: dict[str, Any]) -> None:
        """Write the file; its old content becomes the backup.

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        data = fastjson.encode(content)
        self.env.make_directories(os.path.dirname(self.path))
        old = self._bytes_of(self.path)
        # Only valid content: the backup of a damaged file must be kept.
        if old and (old == self._written or self._parsed(old) is not None):
            self.env.write_file(self.path + BACKUP_SUFFIX, old)
        self.env.write_file(self.path, data)
        self._written = data
        self._is_name_flushed = True
