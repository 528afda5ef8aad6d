"""One JSON file of ROOT/config: read with its backup, written whole.

Each entry of a file is read on its own: a damaged one counts as missing, and stays in the file.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrocketstore.display import logger, printable
from pyrocketstore.errors import StoreCorruptionError, StoreError
from pyrocketstore.files import fastjson
from pyrocketstore.record.message import parse_java_int

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["BACKUP_SUFFIX", "ConfigFile", "ContentError", "java_number", "table_of", "with_counter"]

LOG = logger(__name__)

BACKUP_SUFFIX = ".bak"
#: Damaged entries that a warning names; it counts the others.
_NAMED = 5
#: Characters of an entry that a warning repeats, at most.
_TEXT_MAX = 60
#: The warnings of each environment, each given once.
_WARNED: weakref.WeakKeyDictionary[Env, set[str]] = weakref.WeakKeyDictionary()

#: The names from the content down to an entry.
Path = tuple[str, ...]


class ContentError(ValueError):
    """Valid JSON in which a whole table has another type."""


def table_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a content; {} where it is missing.

    Raises ContentError for a value of another type.
    """
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ContentError(f"{name}: must be an object, not {_text_of(table)}")
    return table


def with_counter(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a content whose version, a table of numbers, has an int as `counter`; without the
    version if it is damaged."""
    if name not in content:
        return content
    version = {} if content[name] is None else content[name]
    if isinstance(version, dict):
        value = version.get("counter")
        counter = 0 if value is None else java_number(value)
        if counter is not None:
            return {**content, name: {**version, "counter": counter}}
    return {key: part for key, part in content.items() if key != name}


def java_number(value: Any, bits: int = 64) -> int | None:
    """Return the long, or the int with 32 bits, that fastjson makes of a value; None without one.

    Differs: the result is None for a number outside of the range, where fastjson wraps around if it
    has decimals, and for a text that is a date.
    """
    if isinstance(value, str):
        return parse_java_int(value.replace(",", ""), bits)
    if not isinstance(value, (int, fastjson.RealNumber)):
        return None
    limit = 1 << (bits - 1)
    return int(value) if -limit <= value < limit else None


class ConfigFile:
    """A JSON file of ROOT/config and its backup.

    Parameters
    ----------
    env : Env
    path : the file; its directory is made by `write`
    valid_part : callable(content), returns the content without the entries that are damaged, under
        the names that it has in the file; raises ContentError if a whole table has another type
    remedy : what to do about a damaged file, for the error

    An entry that `valid_part` leaves out stays in the file: `write` adds it to the new content,
    unless that has an entry of its name. A warning names such entries, once for each `env`.

    Threads: the caller lets one call at a time in.
    Source: RocketMQ 4.9.3 ConfigManager.
    Differs: written to a temporary file, synced and renamed, where 4.9.3 deletes before it renames;
    a damaged file without a valid backup is an error, where 4.9.3 begins with an empty table. One
    damaged entry costs this entry, where 4.9.3 uses the backup, or nothing.
    """

    def __init__(
        self,
        env: Env,
        path: str,
        valid_part: Callable[[dict[str, Any]], dict[str, Any]],
        remedy: str,
    ) -> None:
        self.env = env
        self.path = path
        self._valid_part = valid_part
        self._remedy = remedy
        self._is_name_flushed = True
        self._written = b""
        self._damaged: dict[Path, Any] = {}
        self._damaged_entries: frozenset[Path] = frozenset()

    def read(self) -> dict[str, Any]:
        """Return the valid part of the file, or of its backup where the file is missing, empty,
        not valid JSON, or doubtful; {} where neither exists. Where both are doubtful, the file
        counts.

        An empty file without a backup counts as damaged: a power cut may have emptied it. A warning
        says that the backup is used, and where the file is damaged.

        Raises StoreCorruptionError when one exists and neither can be read; StoreIOError.
        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
        folder = os.path.dirname(self.path)
        if self.env.exists(folder) and not self.env.is_dir(folder):
            reason = f"must be a directory; move it away, or {self._remedy}"
            raise StoreCorruptionError(folder, -1, reason)
        self.env.check_directory(folder)
        broken: tuple[str, str] | None = None
        unread: StoreError | None = None
        doubtful: tuple[str, str, dict[str, Any], dict[str, Any]] | None = None
        for path in (self.path, self.path + BACKUP_SUFFIX):
            try:
                data = self._bytes_of(path)
                if data is None:
                    continue
                content = fastjson.parse(data)
                valid = self._valid_part(content)
            except (fastjson.JsonError, ContentError) as error:
                broken = broken or (path, _reason_of(error))
                continue
            except StoreError as error:
                if not self._is_damage(error):
                    raise
                unread = unread or error
                broken = broken or (path, _reason_of(error))
                continue
            doubt = self._doubt(content)
            if doubt:
                broken = broken or (path, doubt)
                doubtful = doubtful or (path, doubt, content, valid)
                continue
            if broken is not None:
                text = f"{broken[0]}: {broken[1]}; its backup is used, and replaces it at the next"
                self._warn(f"{text} write: repair it before, or {self._remedy}")
            self._note_damaged(path, content, valid)
            return valid
        if doubtful is not None:
            path, doubt, content, valid = doubtful
            text = f"{path}: {doubt}, and no other copy of it is intact; what it has is used"
            self._warn(f"{text}: repair it, or {self._remedy}")
            self._note_damaged(path, content, valid)
            return valid
        if unread is not None:
            raise unread
        if broken is not None:
            reason = f"{broken[1]}; repair it, or {self._remedy}"
            raise StoreCorruptionError(broken[0], -1, reason)
        self._set_damaged({})
        return {}

    def _doubt(self, content: dict[str, Any]) -> str:
        """Return why a content is not what was written, "" without a reason."""
        return ""

    def _encoded(self, content: dict[str, Any]) -> bytes:
        """Return the bytes to write for a content."""
        return fastjson.encode(content)

    def _is_damage(self, error: StoreError) -> bool:
        """Return whether a file that cannot be read counts as damaged, so that its backup is
        used."""
        return False

    def backup(self) -> dict[str, Any]:
        """Return the valid part of the backup if the last `read` has found damaged entries in the
        file; {} without damaged entries or a valid backup. Raises StoreIOError."""
        try:
            data = self._bytes_of(self.path + BACKUP_SUFFIX) if self._damaged else None
            return {} if data is None else self._valid_part(fastjson.parse(data))
        except (fastjson.JsonError, ContentError):
            return {}
        except StoreError as error:
            if not self._is_damage(error):
                raise
            return {}

    def _note_damaged(self, path: str, content: dict[str, Any], valid: dict[str, Any]) -> None:
        found: dict[Path, Any] = {}
        _find_damaged((), content, valid, found)
        self._set_damaged(found)
        if found:
            entries = [
                f"{printable(' > '.join(names))}: {_text_of(value)}"
                for names, value in itertools.islice(found.items(), _NAMED)
            ]
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            self._warn(
                f"{path}: damaged entries count as missing and stay in the file:"
                f" {', '.join(entries)}{more}; repair or remove them"
            )

    def _set_damaged(self, found: dict[Path, Any]) -> None:
        self._damaged = found
        self._damaged_entries = frozenset(path[:2] for path in found)

    def _warn(self, text: str) -> None:
        known = _WARNED.setdefault(self.env, set())
        if text not in known:
            known.add(text)
            LOG.warning("%s", text)

    def is_damaged(self, table: str, name: str) -> bool:
        """Return whether the last `read` has found an entry of a table damaged, or a part of it."""
        return (table, name) in self._damaged_entries

    def forget_damaged(self, are_gone: Callable[[Path], bool]) -> bool:
        """Have the next `write` leave out damaged entries; return True if there are any.

        `are_gone` is called with the names from the content down to the entry.
        """
        kept = {path: value for path, value in self._damaged.items() if not are_gone(path)}
        is_changed = len(kept) < len(self._damaged)
        self._set_damaged(kept)
        return is_changed

    def _is_valid(self, data: bytes) -> bool:
        try:
            content = fastjson.parse(data)
            self._valid_part(content)
        except (fastjson.JsonError, ContentError):
            return False
        return not self._doubt(content)

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
        data = self._encoded(self._with_damaged(content))
        self.env.make_directories(os.path.dirname(self.path))
        old = self._bytes_of(self.path)
        # Only valid content: the backup of a damaged file must be kept.
        if old and (old == self._written or self._is_valid(old)):
            self.env.write_file(self.path + BACKUP_SUFFIX, old)
        self.env.write_file(self.path, data)
        self._written = data
        self._is_name_flushed = True

    def _with_damaged(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a content with the damaged entries that it has no valid ones for."""
        found = dict(content)
        copies: dict[Path, dict[Any, Any] | None] = {(): found}
        for path, value in self._damaged.items():
            parent = _copied_parent(copies, path[:-1])
            if parent is not None and _known_name(parent, path[-1]) not in parent:
                parent[path[-1]] = value
        return found


def _copied_parent(copies: dict[Path, dict[Any, Any] | None], path: Path) -> dict[Any, Any] | None:
    """Return the copy of an object in a content, made and kept in `copies`; None for a value of
    another type."""
    if path not in copies:
        above, copy = _copied_parent(copies, path[:-1]), None
        if above is not None:
            name = _known_name(above, path[-1])
            inner = above.get(name, {})
            if isinstance(inner, dict):
                copy = above[name] = dict(inner)
        copies[path] = copy
    return copies[path]


def _known_name(table: dict[Any, Any], name: str) -> str | int:
    """Return the key of an entry in a table whose keys may be numbers."""
    number = parse_java_int(name)
    return number if number is not None and number in table else name


def _find_damaged(
    path: Path, content: dict[str, Any], valid: dict[str, Any], found: dict[Path, Any]
) -> None:
    for name, value in content.items():
        if name not in valid:
            found[(*path, name)] = value
        elif isinstance(value, dict) and isinstance(valid[name], dict):
            _find_damaged((*path, name), value, valid[name], found)


def _reason_of(error: Exception) -> str:
    if isinstance(error, StoreError):
        return f"cannot be read: {error}"
    return f"not valid JSON: {error}" if isinstance(error, fastjson.JsonError) else str(error)


def _text_of(value: Any) -> str:
    """Return a value for a message, shortened."""
    text = printable(" ".join(fastjson.render(value).split()))
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
