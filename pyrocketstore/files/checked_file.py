"""A JSON file of ROOT/config that has a checksum of its content; 4.9.3 has no such file."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import NOT_REGULAR, StoreCorruptionError, StoreError, StoreIOError
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import ConfigFile

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["CHECKSUM", "CheckedFile"]

CHECKSUM = "contentCrc"
#: Errors of a path that has no readable file; others, such as EIO or EMFILE, may pass.
_NO_FILE = frozenset((errno.EISDIR, errno.EACCES, errno.ELOOP, NOT_REGULAR))


class CheckedFile(ConfigFile):
    """A config file with one table and a checksum, which finds changes that leave valid JSON.

    Parameters
    ----------
    env, path, valid_part, remedy : see ConfigFile
    table : the name of the table; another name beside it counts as damage without a checksum

    A file without a checksum, as older versions have written it, counts as it is.
    Threads: as ConfigFile.
    """

    def __init__(
        self,
        env: Env,
        path: str,
        table: str,
        valid_part: Callable[[dict[str, Any]], dict[str, Any]],
        remedy: str,
    ) -> None:
        super().__init__(env, path, valid_part, remedy)
        self._table = table

    def _doubt(self, content: dict[str, Any]) -> str:
        if CHECKSUM not in content:
            foreign = "".join(sorted(name for name in content if name != self._table)[:1])
            return f"{foreign}: a name that this file does not have" if foreign else ""
        if content[CHECKSUM] == _checksum_of(content):
            return ""
        return f"{CHECKSUM} is not the checksum of the content"

    def _encoded(self, content: dict[str, Any]) -> bytes:
        return fastjson.encode({CHECKSUM: _checksum_of(content), **_without_checksum(content)})

    def _is_damage(self, error: StoreError) -> bool:
        if isinstance(error, StoreIOError):
            return error.errno in _NO_FILE
        return isinstance(error, StoreCorruptionError)


def _without_checksum(content: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in content.items() if name != CHECKSUM}


def _checksum_of(content: dict[str, Any]) -> int:
    """Return the CRC-32 of the content as it is written, without the checksum itself."""
    return zlib.crc32(fastjson.encode(_without_checksum(content)))
