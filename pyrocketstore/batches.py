"""A range of a queue as one Arrow record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import COLUMNS, decode_records
from pyrocketstore._reader import gather_records
from pyrocketstore.arrow import require_pyarrow, to_record_batch
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.tags import TagsExpression

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore._mapped_file import MappedFile

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


def by_file(
    log: CommitLog, phy_offset: Int64s, size: Int32s
) -> Iterator[tuple[MappedFile, Int64s, Int32s]]:
    """The pieces of these places that lie in one commit log file each; gone files are left out."""
    first = 0
    numbers = phy_offset // log.file_size
    for edge in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(phy_offset)]:
        if edge > first:
            file = log.mapped_file_queue.find_mapped_file_by_offset(int(phy_offset[first]), False)
            if file is not None:
                yield (
                    file,
                    np.ascontiguousarray(phy_offset[first:edge]),
                    np.ascontiguousarray(size[first:edge]),
                )
        first = edge


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
    phy_offset, size = units.phy_offset[:taken][keep], units.size[:taken][keep]
    data = np.empty(int(size.sum()), np.uint8)
    done = 0
    kept_sizes = []
    for file, file_offsets, file_sizes in by_file(log, phy_offset, size):
        gather_records(file, file_offsets, file_sizes, data, done)
        done += int(file_sizes.sum())
        kept_sizes.append(file_sizes)
    all_sizes = np.concatenate(kept_sizes) if kept_sizes else np.empty(0, np.int32)
    positions = np.cumsum(all_sizes, dtype=np.int64) - all_sizes
    found = decode_records(data[:done], positions, all_sizes, decoded)
    batch = to_record_batch(found, {"next_offset": str(start + taken)})
    if wanted is not None:
        batch = _with_tags(batch, wanted)
    return batch if decoded == names else batch.select(names)


def _with_tags(batch: pyarrow.RecordBatch, wanted: TagsExpression) -> pyarrow.RecordBatch:
    import pyarrow.compute

    mask = pyarrow.compute.is_in(
        batch["tags"], value_set=pyarrow.array(sorted(wanted.tags), pyarrow.string())
    )
    return batch.filter(mask)
