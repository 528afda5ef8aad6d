"""Executor half of verify: index entries, and searches in ranges of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyrocketstore.spark.read.tables import read_index
from pyrocketstore.spark.task_types import IndexTask

if TYPE_CHECKING:
    import pyarrow

INDEX_COLUMNS = MappingProxyType(
    {
        "brokerName": "string",
        "commitLogOffset": "bigint",
        "keyHash": "int",
        "timeDiffSec": "int",
        "indexNo": "int",
        "fileName": "string",
        "beginTimestamp": "timestamp",
    }
)


def index_entries(named: tuple[str, IndexTask]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the entries of a task; the task has the label of its store."""
    label, task = named
    return read_index(task, INDEX_COLUMNS, label)


class Ranges:
    """Ranges (label, begin, end) that do not overlap, in order. Threads: any."""

    def __init__(self, ranges: Sequence[tuple[str, int, int]]) -> None:
        self.begins = np.array([begin for _, begin, _ in ranges], np.int64)
        self.ends = np.array([end for *_, end in ranges], np.int64)
        self._rows: dict[str, tuple[int, int]] = {}
        for row, (label, *_) in enumerate(ranges):
            self._rows[label] = (self._rows.get(label, (row, row))[0], row + 1)

    def find(self, labels: pyarrow.Array, offsets: pyarrow.Array) -> npt.NDArray[np.int64]:
        """Return the number of the range that has each physical offset (int64[N]); -1 for none."""
        import pyarrow.compute as pc

        values = np.asarray(offsets.fill_null(0))
        found = np.full(len(values), -1, np.int64)
        for label, (first, stop) in self._rows.items():
            mine = pc.and_(pc.equal(labels, label), offsets.is_valid()).fill_null(False)
            rows = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            number = first - 1 + np.searchsorted(self.begins[first:stop], values[rows], "right")
            inside = (number >= first) & (values[rows] < self.ends[number])
            found[rows[inside]] = number[inside]
        return found


def are_in_ranges(
    labels: pyarrow.Array, offsets: pyarrow.Array, *, ranges: Ranges
) -> pyarrow.Array:
    """Return whether each physical offset is in one of the ranges; never null."""
    import pyarrow as pa

    return pa.array(ranges.find(labels, offsets) >= 0, pa.bool_())


def log_places(
    labels: pyarrow.Array, offsets: pyarrow.Array, *, ranges: Ranges, paths: tuple[str, ...]
) -> pyarrow.Array:
    """Return the path of the range with each physical offset, and the position there; null
    without a range."""
    import pyarrow as pa

    number = ranges.find(labels, offsets)
    is_none = pa.array(number < 0)
    path = pa.array(paths, pa.string()).take(pa.array(number, mask=number < 0))
    position = np.asarray(offsets.fill_null(0)) - ranges.begins[number] if paths else number
    return pa.StructArray.from_arrays(
        [path, pa.array(position, pa.int64())], ["path", "position"], mask=is_none
    )
