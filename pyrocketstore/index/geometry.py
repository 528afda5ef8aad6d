"""Infer the geometry of index files (slots and entries), which they do not store, and check files.

An index file is derived from the log. A file whose content fits no geometry is not an index file
any more: it is set aside and rebuilt. A file that fits another geometry than the one in use is
valid, and the caller must give its geometry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from pyrocketstore.config.file_sizes import sizes_beside
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.index._file import (
    HASH_SLOT_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    index_file_size,
)
from pyrocketstore.index.directory import INDEX_HEADER, FoundIndexFile, entry_position, read_exactly
from pyrocketstore.system.env import Env

__all__ = [
    "DEFAULT_GEOMETRY",
    "DEFAULT_HASH_SLOT_NUM",
    "DEFAULT_INDEX_NUM",
    "candidates_of",
    "check_files",
    "fitting_geometry",
    "geometry_fits",
    "infer_geometry",
    "usual_geometry",
]

#: 4.9.3's maxHashSlotNum and maxIndexNum.
DEFAULT_HASH_SLOT_NUM = 5_000_000
DEFAULT_INDEX_NUM = 20_000_000
DEFAULT_GEOMETRY = (DEFAULT_HASH_SLOT_NUM, DEFAULT_INDEX_NUM)
_O_RDONLY = 0
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_SAMPLE = 16
#: An entry names no record more than this many bytes after the last one of the header.
_SLACK = 1 << 24
#: Entries of each file that are checked, besides those of the first and last files.
_FEW = 4
#: Bytes that are read at once while a file is searched.
_READ_SIZE = 1 << 20
#: Positions of a file that are tried as that of its first entry.
_TRIES_MAX = 64
#: Part of errors: nothing is lost without the index.
_DERIVED = "index files are derived from the log"


def geometry_fits(
    env: Env,
    path: str,
    hash_slot_num: int,
    index_num: int,
    *,
    lenient: bool = False,
    sample: int = _SAMPLE,
) -> bool:
    """Return whether the entries of a file are where this geometry says, with a possible header.

    Up to three times `sample` of its entries are checked: an entry's hash modulo the slots must be
    a slot whose newest entry is this one or a later one of the same slot. A file without entries
    fits any geometry of its length. With `lenient`, entries of zeros (lost in a crash) are ignored;
    a longer file must have others, or it has them where another geometry puts them.

    Raises: StoreIOError; StoreCorruptionError for a file that was cut meanwhile.
    """
    size, its_size = index_file_size(hash_slot_num, index_num), env.size(path)
    if its_size < size:
        return False
    fd = env.open(path, _O_RDONLY)
    try:
        header = INDEX_HEADER.unpack(read_exactly(env, fd, INDEX_HEADER_SIZE, 0, path))
        begin_phy_offset, end_phy_offset, _, count = header[2:]
        if min(header[2:]) < 0 or begin_phy_offset > end_phy_offset > 0:
            return False
        if count > index_num and not lenient:
            return False
        checked = agreed = 0
        for number in _sample(min(count, index_num), sample):
            verdict = _entry_agrees(
                env, fd, path, number, hash_slot_num, index_num, end_phy_offset + _SLACK
            )
            if verdict is None and lenient:
                continue
            checked += 1
            agreed += verdict is True
    finally:
        env.close(fd)
    if not checked and count > 1 and its_size > size:
        return False
    # A wrong geometry agrees nowhere; a file damaged by a crash agrees nearly everywhere.
    return agreed * 4 >= checked * 3


def _sample(count: int, each: int) -> list[int]:
    """Return the entry numbers of [1, count) to check: `each` first, last and in between."""
    if count <= 3 * each:
        return list(range(1, count))
    step = count // each
    numbers = {*range(1, each + 1), *range(count - each, count), *range(step, count, step)}
    return sorted(numbers)


def _entry_agrees(
    env: Env, fd: int, path: str, number: int, hash_slot_num: int, index_num: int, limit: int
) -> bool | None:
    """Return whether an entry agrees; None for an entry of zeros, or whose slot names one."""

    def entry(at: int) -> tuple[int, int, int, int]:
        raw = read_exactly(env, fd, INDEX_SIZE, entry_position(hash_slot_num, at), path)
        return _ENTRY.unpack(raw)

    key_hash, phy_offset, time_diff, previous = entry(number)
    if not (key_hash or phy_offset or time_diff or previous):
        return None
    if key_hash < 0 or time_diff < 0 or not 0 <= previous < number:
        return False
    if not 0 <= phy_offset <= limit:
        return False
    slot = key_hash % hash_slot_num
    raw = read_exactly(env, fd, HASH_SLOT_SIZE, INDEX_HEADER_SIZE + slot * HASH_SLOT_SIZE, path)
    (newest,) = _SLOT.unpack(raw)
    if not number <= newest < index_num:
        return False
    newest_entry = entry(newest)
    if not any(newest_entry):
        return None
    newest_hash = newest_entry[0]
    return newest_hash >= 0 and newest_hash % hash_slot_num == slot


def usual_geometry(log_size: int) -> tuple[int, int]:
    """Return slots and entries in a store with log files of `log_size` bytes: those of the preset
    with this size, else the defaults."""
    sizes = sizes_beside(log_size)
    hash_slot_num = sizes.get("max_hash_slot_num", DEFAULT_HASH_SLOT_NUM)
    return hash_slot_num, sizes.get("max_index_num", DEFAULT_INDEX_NUM)


def candidates_of(
    size: int, hash_slot_num: int | None, index_num: int | None
) -> list[tuple[int, int]]:
    """Return the possible geometries of a file of `size` bytes."""
    body = size - INDEX_HEADER_SIZE
    if hash_slot_num is not None and index_num is not None:
        return [(hash_slot_num, index_num)]
    found: list[tuple[int, int]] = []
    if hash_slot_num is not None:
        rest = body - hash_slot_num * HASH_SLOT_SIZE
        found = [(hash_slot_num, rest // INDEX_SIZE)] if rest % INDEX_SIZE == 0 else []
    elif index_num is not None:
        rest = body - index_num * INDEX_SIZE
        found = [(rest // HASH_SLOT_SIZE, index_num)] if rest % HASH_SLOT_SIZE == 0 else []
    else:
        if size == index_file_size(DEFAULT_HASH_SLOT_NUM, DEFAULT_INDEX_NUM):
            found.append((DEFAULT_HASH_SLOT_NUM, DEFAULT_INDEX_NUM))
        slots, rest = divmod(body, HASH_SLOT_SIZE + 4 * INDEX_SIZE)
        if rest == 0:
            found.append((slots, 4 * slots))
    return [(h, n) for h, n in found if h >= 1 and n >= 2]


def infer_geometry(
    env: Env,
    path_list: Sequence[str],
    configured: tuple[int | None, int | None] | None = None,
) -> tuple[int, int]:
    """Return the slots and entries of the index files, which do not store them.

    Parameters
    ----------
    path_list : the files; empty ones are ignored
    configured : (maxHashSlotNum, maxIndexNum), None for an unknown one

    Returns
    -------
    (int, int): the configured values, if the files do not contradict them; else the defaults or the
    1:4 ratio, if the length and the used slots of the files agree; the defaults without files

    Raises: StoreFormatError when no geometry fits: maxHashSlotNum must then be given; StoreIOError.
    """
    hash_slot_num, index_num = configured if configured is not None else (None, None)
    sizes = {path: env.size(path) for path in path_list}
    paths = [path for path in path_list if sizes[path] > 0]
    if not paths:
        return hash_slot_num or DEFAULT_HASH_SLOT_NUM, index_num or DEFAULT_INDEX_NUM
    fully = hash_slot_num is not None and index_num is not None
    if not fully and len({sizes[path] for path in paths}) > 1:
        raise StoreFormatError(
            f"{paths[0]}: the index files differ in length: give the maxHashSlotNum"
            " and maxIndexNum that the store was written with"
        )
    # The first and the last ones: all have the same geometry unless the settings were changed.
    looked_at = paths if len(paths) <= 4 else [paths[0], *paths[-3:]]
    for candidate in candidates_of(sizes[paths[0]], hash_slot_num, index_num):
        size = index_file_size(*candidate)
        if any(
            # A file that is too short for the configured geometry is another error.
            sizes[path] >= size and not geometry_fits(env, path, *candidate, lenient=fully)
            for path in looked_at
        ):
            continue
        return candidate
    raise _unfit(paths[-1], (hash_slot_num, index_num))


# ---- which files are wrong -----------------------------------------------------------------------


def check_files(
    env: Env,
    files: Sequence[FoundIndexFile],
    configured: tuple[int | None, int | None],
    usual: tuple[int, int] = DEFAULT_GEOMETRY,
) -> tuple[tuple[int, int], dict[str, str]]:
    """Infer the geometry of index files, and find files that are not index files any more.

    Parameters
    ----------
    files : the files, none of them empty, oldest first
    configured : (maxHashSlotNum, maxIndexNum), None for an unknown one
    usual : the same, where no whole file shows it

    Returns
    -------
    (geometry, {path: what is wrong}): a wrong file fits no geometry at all, or was cut; without
        files the configured geometry or the usual one

    Raises: StoreFormatError when a file fits another geometry than the others or the configured
    one, or when no geometry is known for new files; StoreIOError.
    """
    if not files:
        return (configured[0] or usual[0], configured[1] or usual[1]), {}
    error, is_assumed = None, False
    looked_at = {file.path for file in (files[0], *files[-3:])}
    try:
        geometry = infer_geometry(env, [file.path for file in files], configured)
    except StoreFormatError as unfit:
        error, looked_at = unfit, set()
        found = _most_likely(env, files, configured)
        is_assumed = found is None
        geometry = found or (configured[0] or usual[0], configured[1] or usual[1])
        if is_assumed and not _are_all_cut(files, index_file_size(*geometry)):
            raise
    size = index_file_size(*geometry)
    lenient = None not in configured
    wrong = {}
    for file in files:
        if file.size < size:
            wrong[file.path] = f"the file has {file.size} bytes and must have {size}"
        elif file.path not in looked_at:
            sample = _FEW if error is None else _SAMPLE
            if not geometry_fits(env, file.path, *geometry, lenient=lenient, sample=sample):
                wrong[file.path] = "its content is not a valid index"
    lengths = {file.size for file in files}
    is_uniform = len(files) > 1 and len(lengths) == 1
    for file in files:
        other = fitting_geometry(env, file.path, file.size) if file.path in wrong else None
        if other is None or (
            # A file that was cut fits fewer entries of the same number of slots.
            file.size < size
            and not is_assumed
            and other[0] == geometry[0]
            and not is_uniform
            and other not in candidates_of(file.size, None, None)
        ):
            continue
        text = str(error or _unfit(file.path, configured))
        raise StoreFormatError(f"{text}; it fits maxHashSlotNum={other[0]}, maxIndexNum={other[1]}")
    return geometry, wrong


def _most_likely(
    env: Env,
    files: Sequence[FoundIndexFile],
    configured: tuple[int | None, int | None],
) -> tuple[int, int] | None:
    """Return a geometry that fits a file with entries; else one that a length suggests, or None."""
    guesses = [
        guess
        for size in dict.fromkeys(file.size for file in files)
        for guess in candidates_of(size, *configured)
    ]
    for guess in guesses:
        for file in files:
            if file.index_count > 1 and geometry_fits(env, file.path, *guess):
                return guess
    return guesses[0] if guesses else None


def _are_all_cut(files: Sequence[FoundIndexFile], size: int) -> bool:
    """Return False if a file may be a whole one of a geometry that is not known.

    `size` is the length of a file of the assumed geometry. Whole files have one length; a file
    without entries shows no geometry. The caller looks at the entries of the others.
    """
    return len({file.size for file in files}) == len(files) and all(
        file.size < size and (file.index_count > 1 or not _is_possible_size(file.size))
        for file in files
    )


def _is_possible_size(size: int) -> bool:
    """Return True if some numbers of slots and entries make an index file of `size` bytes."""
    rest = size - index_file_size(1, 2)
    return rest >= 0 and rest % HASH_SLOT_SIZE == 0


def _unfit(path: str, configured: tuple[int | None, int | None]) -> StoreFormatError:
    names = {"maxHashSlotNum": configured[0], "maxIndexNum": configured[1]}
    given = ", ".join(f"{name}={value}" for name, value in names.items() if value is not None)
    return StoreFormatError(
        f"{path}: the index does not fit {given or 'the usual geometries'}: give the"
        " maxHashSlotNum (and maxIndexNum) that the store was written with, or move the directory"
        f" of the index away, so that it is rebuilt ({_DERIVED})"
    )


def fitting_geometry(env: Env, path: str, size: int) -> tuple[int, int] | None:
    """Return any geometry that a file of `size` bytes with entries fits, or None."""
    if size < index_file_size(1, 2):
        return None
    fd = env.open(path, _O_RDONLY)
    try:
        header = INDEX_HEADER.unpack(read_exactly(env, fd, INDEX_HEADER_SIZE, 0, path))
    finally:
        env.close(fd)
    begin_phy_offset, _, _, count = header[2:]
    if not 1 < count <= size // INDEX_SIZE:
        return None
    tried = set()
    for entries_at in _entry_positions(env, path, size, begin_phy_offset, count):
        slots, odd = divmod(entries_at - INDEX_HEADER_SIZE, HASH_SLOT_SIZE)
        entries, rest = divmod(size - entries_at, INDEX_SIZE)
        if odd or rest or slots < 1 or entries < 2 or entries_at in tried:
            continue
        tried.add(entries_at)
        if geometry_fits(env, path, slots, entries):
            return slots, entries
        if len(tried) >= _TRIES_MAX:
            break
    return None


def _entry_positions(
    env: Env, path: str, size: int, begin_phy_offset: int, count: int
) -> Iterator[int]:
    """Yield possible positions of entry 0: the last byte that is not zero belongs to the last
    entry, and the first entry names the header's first record."""
    ranges = env.data_ranges(path, INDEX_HEADER_SIZE, size)
    fd = env.open(path, _O_RDONLY)
    try:
        last = _last_byte(env, fd, path, ranges)
        # A process that was killed may have written one entry more than its header counts.
        for entries in (count, count + 1) if last >= 0 else ():
            first = last - entries * INDEX_SIZE + 1
            yield from range(first + -first % HASH_SLOT_SIZE, first + INDEX_SIZE, HASH_SLOT_SIZE)
        pattern = begin_phy_offset.to_bytes(8, "big", signed=True)
        for begin, end in ranges if begin_phy_offset > 0 else ():
            for at in range(begin, end, _READ_SIZE):
                data = env.pread(fd, min(_READ_SIZE + 7, end - at), at, path)
                found = data.find(pattern)
                while found >= 0:
                    yield at + found - 4 - INDEX_SIZE
                    found = data.find(pattern, found + 1)
    finally:
        env.close(fd)


def _last_byte(env: Env, fd: int, path: str, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the position of the last byte that is not zero, -1 without one."""
    for begin, end in reversed(ranges):
        for stop in range(end, begin, -_READ_SIZE):
            start = max(begin, stop - _READ_SIZE)
            data = env.pread(fd, stop - start, start, path).rstrip(b"\0")
            if data:
                return start + len(data) - 1
    return -1
