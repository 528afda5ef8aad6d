"""The log of a store in DLedger mode: where its files are, and how many of its bytes are committed.

A DLedger log is read, never written. Its directory is ROOT/dledger-NODE, with the entries in `data`
and their places in `index`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrocketstore.config.file_sizes import find_files
from pyrocketstore.config.properties_file import read_properties
from pyrocketstore.errors import StoreFormatError

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

DLEDGER_PREFIX = "dledger-"
#: The first number of an entry, as bytes too, and the bytes of its header, which a record follows.
ENTRY_MAGIC_CODE, ENTRY_MAGIC, ENTRY_HEADER_SIZE = 1, b"\0\0\0\1", 48
_DATA = "data"
_NUMBER = re.compile(r"-?[0-9]{1,18}")
#: magic, position of the entry, its size, its index, its term
_INDEX_UNIT = struct.Struct(">iqiqq")


def dledger_directories(env: Env, root: str) -> list[str]:
    """Return the directories of DLedger entries below the root of a store, sorted."""
    names = env.listdir(root) if env.is_dir(root) else []
    found = [f"{root}/{name}/{_DATA}" for name in names if name.startswith(DLEDGER_PREFIX)]
    return sorted(path for path in found if env.is_dir(path))


def dledger_log_of(paths: Sequence[str]) -> str | None:
    """Return the directory of DLedger entries among the paths of a log, None without one."""
    for path in paths:
        *_, node, name = ["", *path.split("/")]
        if name == _DATA and node.startswith(DLEDGER_PREFIX):
            return path
    return None


def with_dledger_log(
    env: Env, root: str, paths: Sequence[str], self_id: str | None
) -> Sequence[str]:
    """Return the paths for reading the log of a store: with its DLedger log, if it has one.

    The log begins with the plain files from before the store's time in DLedger mode, if there are.

    Parameters
    ----------
    paths : those of the plain log
    self_id : the setting `dleger_self_id`

    Raises StoreFormatError: there are several nodes, and `self_id` names none of them.
    """
    found = dledger_directories(env, root)
    if not found or dledger_log_of(paths) is not None:
        return paths
    own = f"{root}/{DLEDGER_PREFIX}{self_id}/{_DATA}"
    if own not in found and (self_id is not None or len(found) > 1):
        nodes = ", ".join(path.split("/")[-2] for path in found)
        given = "" if self_id is None else f", not {self_id!r}"
        raise StoreFormatError(
            f"{root}: has {nodes}: name one by dleger_self_id (dLegerSelfId){given}"
        )
    found = [own] if own in found else found
    found = [*(path for path in paths if find_files(env, 1, path)), *found]
    if any("," in path for path in found):
        raise StoreFormatError(f"{root}: a DLedger log cannot be read below a path with a comma")
    return found


def committed_end(env: Env, data: str) -> int | None:
    """Return the physical offset behind the last committed entry of a DLedger log.

    0 where nothing is committed; None where `checkpoint` or `index` cannot tell.

    Raises StoreIOError.
    """
    node = data.removesuffix(f"/{_DATA}")
    for name in ("checkpoint", "checkpoint.bak"):
        index = _committed_index(env, f"{node}/{name}")
        if index is not None:
            return _end_of_entry(env, f"{node}/index", index) if index >= 0 else 0
    return None


def _committed_index(env: Env, path: str) -> int | None:
    if not env.exists(path):
        return None
    try:
        line = read_properties(env.read_file(path), path).get("committedIndex")
    except StoreFormatError:
        return None
    number = None if line is None else _NUMBER.fullmatch(line.value.strip())
    return None if number is None else int(number[0])


def _end_of_entry(env: Env, directory: str, index: int) -> int | None:
    position = index * _INDEX_UNIT.size
    for file in find_files(env, 1, directory):
        if file.offset <= position <= file.offset + file.size - _INDEX_UNIT.size:
            data = env.read_part(file.path, position - file.offset, _INDEX_UNIT.size)
            if len(data) < _INDEX_UNIT.size:
                return None
            _, begin, size, found, _ = _INDEX_UNIT.unpack(data)
            return begin + size if found == index and begin >= 0 and size > 0 else None
    return None
