"""Decode chunks of records to columns, and set damaged records apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import check_records, compressed_records, decode_records
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.reading._file_columns import decode_file_records
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read.records import Chunk, Skipped, is_dispatched_to, is_light

Bools = npt.NDArray[np.bool_]

#: Compressed bodies that are inflated for one batch; each may have 64 MiB.
INFLATED_AT_ONCE = 8
#: Why a record has no row, besides the status numbers of `check_records`.
NO_BODY, MISMATCHED, FILE_GONE = -1, -2, -3
_REASONS = {
    NO_BODY: "the body does not inflate",
    MISMATCHED: "the unit names a record of another queue or queue offset",
    FILE_GONE: "the log's file is gone",
}


def reason_of(status: int) -> str:
    """Return the text for a status of Damage."""
    return _REASONS.get(status) or status_name(status)


class Damage(NamedTuple):
    """Records without a row of their own, and the reason of each: a status number of
    `check_records`, NO_BODY, MISMATCHED or FILE_GONE (int16[n])."""

    records: Chunk
    status: npt.NDArray[np.int16]


class Decoded(NamedTuple):
    """The columns of a chunk, and its damage.

    `columns` has the rows `decoded` of `chunk` (bool[n]; None: all). Of these, only the rows `good`
    (bool[n]; None: all) are messages. `columns` is None where the chunk's file is gone.
    """

    chunk: Chunk
    columns: Mapping[str, Any] | None
    decoded: Bools | None = None
    good: Bools | None = None
    damage: Damage | None = None


class RecordDecoder:
    """Decodes chunks of records.

    A chunk without damage is decoded once. A chunk with damage is checked record by record, and its
    valid records are decoded once more.

    Parameters
    ----------
    names : columns of `decode_records`; among them topic, queue_id, queue_offset and size
    skipped : the account of the task

    Threads: one.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions, skipped: Skipped) -> None:
        self.names = list(names)
        self.options = options
        self.skipped = skipped
        # Such bodies are inflated a few at a time: columns decoded before one is met are lost.
        self._met_compressed = False

    @property
    def shows_damage(self) -> bool:
        """Whether a damaged record has a row with its physical offset."""
        return self.options.on_corrupt == "null" or self.options.view == "commitlog"

    def decode(self, chunk: Chunk) -> Iterator[Decoded]:
        """Decode a chunk, in several parts where bodies are inflated.

        Raises StoreCorruptionError under onCorrupt=fail.
        """
        if chunk.data is None:
            columns = None if self._met_compressed else self._file_columns(chunk)
            if columns is not None:
                yield Decoded(chunk, columns)
                return
            loaded = chunk.loaded()
            if loaded is None:
                status = np.full(len(chunk.sizes), FILE_GONE, np.int16)
                yield Decoded(chunk, None, damage=Damage(chunk, status))
                return
            chunk = loaded
        for part in self._parts(chunk):
            yield self._decoded(part)

    def _parts(self, chunk: Chunk) -> Iterator[Chunk]:
        """Split a chunk so that no part has more than INFLATED_AT_ONCE compressed bodies."""
        is_compressed = None
        if "body" in self.names:
            is_compressed = compressed_records(chunk.data, chunk.positions, chunk.sizes)
        if is_compressed is None:
            yield chunk
            return
        group = np.maximum(np.cumsum(is_compressed) - 1, 0) // INFLATED_AT_ONCE
        edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        if len(edges) == 2:
            yield chunk
            return
        for begin, end in pairwise(edges):
            yield chunk.take(slice(begin, end))

    def _file_columns(self, chunk: Chunk) -> dict[str, Any] | None:
        """Decode records out of their file; None where a record needs a closer look."""
        assert chunk.file is not None
        try:
            columns = decode_file_records(
                chunk.file,
                chunk.phy_offsets,
                chunk.sizes,
                self.names,
                check_crc=self.options.verify_crc,
                inflate=False,
            )
        except (StoreCorruptionError, StoreIOError):  # the loaded records raise it again
            return None
        if columns is None:
            self._met_compressed = True
            return None
        return _with_body(columns) if _differing(chunk, columns) is None else None

    def _decoded(self, chunk: Chunk) -> Decoded:
        status = np.zeros(len(chunk.sizes), np.int16)
        rows = np.arange(len(status))
        decoded, valid = None, chunk
        try:
            columns = self._columns(chunk)
        except StoreCorruptionError as error:
            if self.options.on_corrupt == "fail":
                raise _in_file(error, chunk) from None
            status = self._checked(chunk)
            decoded = status == 0
            rows, valid = np.flatnonzero(decoded), chunk.take(decoded)
            columns = self._columns(valid, on_bad_body="null")
            status[rows[self._lost_bodies(valid, columns)]] = NO_BODY
        mismatched = self._mismatched(valid, columns, status[rows] == 0)
        if mismatched is not None:
            self._note_mismatched(valid, columns, mismatched)
            status[rows[mismatched]] = MISMATCHED
        good = status == 0
        if good.all():
            return Decoded(chunk, columns, decoded)
        return Decoded(chunk, columns, decoded, good, Damage(chunk.take(~good), status[~good]))

    def _columns(self, chunk: Chunk, on_bad_body: str = "raise") -> dict[str, Any]:
        columns = decode_records(
            chunk.data,
            chunk.positions,
            chunk.sizes,
            self.names,
            phy_offsets=chunk.phy_offsets,
            check_crc=self.options.verify_crc,
            path=chunk.path,
            on_bad_body=on_bad_body,
        )
        return _with_body(columns)

    def _checked(self, chunk: Chunk) -> npt.NDArray[np.int16]:
        """Return the status number of each record, and note those that are damaged."""
        status = check_records(
            chunk.data,
            chunk.positions,
            chunk.sizes,
            phy_offsets=chunk.phy_offsets,
            check_crc=self.options.verify_crc,
        ).astype(np.int16)
        bad = status != 0
        if bad.any():
            self._note(chunk, bad, status_name(int(status[bad][0])))
        return status

    def _note(self, chunk: Chunk, bad: Bools, reason: str) -> None:
        """Count records that have no row of their own; `reason` is that of the first."""
        where = f"{chunk.path} at byte {_first_position(chunk, bad)}: {reason}"
        if self.shows_damage:
            self.skipped.show(where, int(bad.sum()))
        else:
            self.skipped.add(where, int(bad.sum()), int(chunk.sizes[bad].sum()))

    def _lost_bodies(self, chunk: Chunk, columns: Mapping[str, Any]) -> Bools:
        """Return, and note, the records whose body does not inflate; none of them under
        onCorrupt=null, which shows such a record without its body."""
        body = columns.get("body")
        if body is None or not body.null_count or self.options.on_corrupt != "skip":
            return np.zeros(len(chunk.sizes), np.bool_)
        lost = np.unpackbits(body.validity, count=len(body), bitorder="little") == 0
        self._note(chunk, lost, _REASONS[NO_BODY])
        return np.asarray(lost, np.bool_)

    @staticmethod
    def _mismatched(chunk: Chunk, columns: Mapping[str, Any], valid: Bools) -> Bools | None:
        """Return the valid records that have another queue, queue offset or size than the unit
        that names them; None where no record does."""
        differing = _differing(chunk, columns)
        if differing is None:
            return None
        differing &= valid
        for row in np.flatnonzero(differing).tolist():
            differing[row] = not is_dispatched_to(chunk, row)
        return differing if differing.any() else None

    def _note_mismatched(self, chunk: Chunk, columns: Mapping[str, Any], mismatched: Bools) -> None:
        """Raise StoreCorruptionError under onCorrupt=fail, else count the records."""
        assert chunk.queue_offsets is not None
        row = int(np.flatnonzero(mismatched)[0])
        said = f"{columns['topic'][row]}/{columns['queue_id'][row]}, {columns['queue_offset'][row]}"
        unit = f"unit {chunk.queue_offsets[row]} of {chunk.topic}/{chunk.queue_id}"
        reason = (
            f"{unit} names a record of {chunk.sizes[row]} bytes here; the record says {said}, "
            f"{columns['size'][row]} bytes"
        )
        if self.options.on_corrupt == "fail":
            raise StoreCorruptionError(chunk.path, _first_position(chunk, mismatched), reason)
        self._note(chunk, mismatched, reason)


def _first_position(chunk: Chunk, rows: Bools) -> int:
    """Return the position in its file of the first of some records."""
    return int(chunk.phy_offsets[rows][0]) - chunk.file_from_offset


def _with_body(columns: dict[str, Any]) -> dict[str, Any]:
    """Rename the stored body to body."""
    if "stored_body" in columns:
        columns["body"] = columns.pop("stored_body")
    return columns


def _differing(chunk: Chunk, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_] | None:
    """Return the records whose queue, queue offset or size differs from that of their unit
    (bool[n]); None where no record does."""
    if chunk.queue_offsets is None or chunk.topic is None or is_light(chunk.topic):
        return None
    differs = np.asarray(
        (columns["queue_offset"] != chunk.queue_offsets)
        | (columns["queue_id"] != chunk.queue_id)
        | (columns["size"] != chunk.sizes),
        np.bool_,
    )
    topic = chunk.topic.encode("utf-8", "surrogateescape")
    names = columns["topic"]
    if (
        len(names.data) != len(topic) * len(names)
        or (names.data.reshape(len(names), len(topic)) != np.frombuffer(topic, np.uint8)).any()
    ):
        differs |= np.array([name != chunk.topic for name in names.to_list()], np.bool_)
    return differs if differs.any() else None


def _in_file(error: StoreCorruptionError, chunk: Chunk) -> StoreCorruptionError:
    """Convert an error at a position of the chunk's data to one at a position of the file."""
    row = np.flatnonzero(chunk.positions == error.position)
    if not len(row):
        return error
    position = int(chunk.phy_offsets[row[0]]) - chunk.file_from_offset
    return StoreCorruptionError(chunk.path, position, error.reason)
