"""A range of a queue as one Arrow record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import COLUMNS, MapColumn, VarColumn, decode_records
from pyrocketstore._file_columns import decode_file_records
from pyrocketstore.arrow import require_pyarrow, to_record_batch
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.shield import imported
from pyrocketstore.tags import TagsExpression

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore._mapped_file import MappedFile

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
#: A commit log file, and where records lie: bytes of the log, and bytes.
Piece = tuple["MappedFile", Int64s, Int32s]
Columns = dict[str, npt.NDArray[Any] | VarColumn | MapColumn]


def by_file(log: CommitLog, phy_offset: Int64s, size: Int32s) -> Iterator[Piece]:
    """The pieces of these places that lie in one commit log file each; gone files are left out."""
    for first, stop in _ranges(log, phy_offset):
        piece = _piece(log, phy_offset[first:stop], size[first:stop])
        if piece is not None:
            yield piece


def _ranges(log: CommitLog, phy_offset: Int64s) -> Iterator[tuple[int, int]]:
    """The ranges of rows whose records lie in one file."""
    first = 0
    numbers = phy_offset // log.file_size
    for stop in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(phy_offset)]:
        if stop > first:
            yield first, stop
        first = stop


def _piece(log: CommitLog, phy_offset: Int64s, size: Int32s) -> Piece | None:
    """Rows of one file with that file; None where the file is gone."""
    file = log.mapped_file_queue.find_mapped_file_by_offset(int(phy_offset[0]), False)
    if file is None:
        return None
    return file, np.ascontiguousarray(phy_offset), np.ascontiguousarray(size)


def read_record_batch(
    log: CommitLog,
    queue: ConsumeQueue,
    start: int,
    stop: int,
    max_bytes: int,
    columns: Sequence[str] | None,
    wanted: TagsExpression | None,
) -> pyarrow.RecordBatch:
    """Records of the queue offsets [start, stop), as far as `max_bytes` go; one always fits.

    Parameters
    ----------
    max_bytes : bytes of records as they are stored, and bytes of bodies once they are inflated:
        neither is more
    columns : names of message attributes, None for all
    wanted : tags to keep, None for all

    Raises MissingExtraError, StoreCorruptionError, StoreIOError, StoreFormatError (a column).
    """
    require_pyarrow()
    names = list(COLUMNS) if columns is None else list(columns)
    decoded = names if wanted is None or "tags" in names else [*names, "tags"]
    units = queue.read_units(start, stop - start)
    keep = ~units.is_pre_blank() & (units.phy_offset >= max(0, log.get_min_offset()))
    sizes = np.where(keep, units.size, 0).astype(np.int64)
    taken = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
    first = int(np.argmax(keep)) if keep.any() else len(keep)
    taken = min(len(sizes), max(taken, first + 1))
    keep = keep[:taken]
    if wanted is not None and queue.ext is None:
        keep &= np.isin(units.tags_code[:taken], wanted.codes)
    phy_offset, size = units.phy_offset[:taken], units.size[:taken]
    if not keep.all():
        phy_offset, size = phy_offset[keep], size[keep]
    batches, rows = _decode_rows(log, phy_offset, size, decoded, max_bytes)
    if rows < len(phy_offset):
        taken = int(np.flatnonzero(keep)[rows])
    batch = _one_batch(batches, start + taken)
    if wanted is not None:
        batch = _with_tags(batch, wanted)
    return batch if decoded == names else batch.select(names)


def _decode_rows(
    log: CommitLog, phy_offset: Int64s, size: Int32s, names: list[str], max_body_bytes: int
) -> tuple[list[pyarrow.RecordBatch], int]:
    """The batches of one file each, and how many of the rows they take.

    A row that lies in a deleted file is taken, and is in no batch. One body always fits.
    """
    batches: list[pyarrow.RecordBatch] = []
    left = max_body_bytes
    for first, stop in _ranges(log, phy_offset):
        piece = _piece(log, phy_offset[first:stop], size[first:stop])
        if piece is None or (columns := _decode(*piece, names, left)) is None:
            continue
        count = _row_count(columns)
        if count == 0 and not batches and names:
            columns = _decode(piece[0], piece[1][:1], piece[2][:1], names, None)
            if columns is None:
                continue
            count = 1
        batches.append(to_record_batch(columns))
        body = columns.get("body")
        if isinstance(body, VarColumn):
            left -= int(body.offsets[-1])
        if names and count < stop - first:
            return batches, first + count
    if not batches:
        empty = np.empty(0, np.int64)
        batches.append(to_record_batch(decode_records(b"", empty, empty.astype(np.int32), names)))
    return batches, len(phy_offset)


def _decode(
    file: MappedFile,
    phy_offset: Int64s,
    size: Int32s,
    names: list[str],
    max_body_bytes: int | None,
) -> Columns | None:
    """Records of one file as columns: out of the mapping, or copied where there is none.

    None for a file that was deleted meanwhile: its records have expired.
    """
    if not file.hold():
        return None
    try:
        return _decode_held(file, phy_offset, size, names, max_body_bytes)
    finally:
        file.release()


def _decode_held(
    file: MappedFile,
    phy_offset: Int64s,
    size: Int32s,
    names: list[str],
    max_body_bytes: int | None,
) -> Columns:
    positions = phy_offset - file.file_from_offset
    beyond = np.flatnonzero((size <= 0) | (positions + size > file.get_read_position()))
    if len(beyond):  # before memory is taken for it
        reason = "a queue names bytes that the log does not hold"
        raise StoreCorruptionError(file.path, int(positions[beyond[0]]), reason)
    if file.mode == "shared":
        view = file.select_mapped_buffer(0, int((positions + size).max()))
        if view is not None:
            with view:
                return decode_records(
                    view.byte_buffer,
                    positions,
                    size,
                    names,
                    phy_offsets=phy_offset,
                    path=file.path,
                    max_body_bytes=max_body_bytes,
                )
    return decode_file_records(file, phy_offset, size, names, max_body_bytes=max_body_bytes)


def _row_count(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _one_batch(batches: list[pyarrow.RecordBatch], next_offset: int) -> pyarrow.RecordBatch:
    """The pieces as one batch that says where to go on."""
    arrow = require_pyarrow()
    whole = batches[0]
    if len(batches) > 1:
        whole = arrow.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return whole.replace_schema_metadata({b"next_offset": str(next_offset).encode()})


def _with_tags(batch: pyarrow.RecordBatch, wanted: TagsExpression) -> pyarrow.RecordBatch:
    arrow = require_pyarrow()
    mask = imported("pyarrow.compute").is_in(
        batch["tags"], value_set=arrow.array(sorted(wanted.tags), arrow.string())
    )
    return batch.filter(mask)
