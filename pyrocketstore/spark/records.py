"""Records to Arrow batches of the columns that Spark asked for."""

from __future__ import annotations

import dataclasses
import errno
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import (
    VarColumn,
    check_records,
    compressed_records,
    decode_records,
    reusable_bytes,
)
from pyrocketstore._file_columns import decode_file_records
from pyrocketstore._mapped_file import MappedFile
from pyrocketstore._reader import gather_records
from pyrocketstore._record import record_size_max
from pyrocketstore._scan import status_name
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.message import LMQ_PREFIX, PROPERTY_INNER_MULTI_DISPATCH
from pyrocketstore.spark.border import encodable
from pyrocketstore.spark.fields import FIELDS, field_array
from pyrocketstore.spark.options import BATCH_BYTES_MAX, SourceOptions
from pyrocketstore.spark.schemas import KAFKA_HEADERS, arrow_schema_of, decoder_columns
from pyrocketstore.spark.snapshot import DataLossError, LogFile

if TYPE_CHECKING:
    import pyarrow

LOG = logger(__name__)

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

#: What each Kafka column is made of.
_KAFKA_SOURCES = {
    "key": "keys",
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}
_RECORD_NAMES = {"msgTopic": "topic", "msgQueueId": "queueId", "msgQueueOffset": "queueOffset"}
LOG_APPEND_TIME = 1
#: Bodies that are inflated for one batch; each may have 64 MiB.
INFLATED_AT_ONCE = 8
#: Of what is gathered at once, one part in so many may lie between records and be read with them:
#: to read it costs less than to copy the records out.
LEFT_BETWEEN = 4
MESSAGE_MAGIC_CODE = -626843481
BLANK_MAGIC_CODE = -875286124
#: Instead of a file's number: where a file is missing, and where the log never was.
_GONE, _NOWHERE = -1, -2
_NOT_HELD = "a queue names bytes that the log does not hold"


@dataclasses.dataclass(frozen=True)
class Piece:
    """Records in memory, or in their file.

    `data` holds them at `positions` (int64[n], bytes), `sizes` int32[n] bytes long; they lie at
    `phy_offsets` (int64[n], bytes of the log) in the file `path`. Where they were found through a
    queue, that is `topic` and `queue_id`, with `queue_offsets` int64[n]. Without `data` they are
    read from `file` when they are decoded, and `positions` says nothing; `load` reads them.
    """

    data: Any
    positions: Int64s
    sizes: Int32s
    phy_offsets: Int64s
    path: str
    file_from_offset: int
    topic: str | None = None
    queue_id: int = 0
    queue_offsets: Int64s | None = None
    file: MappedFile | None = None
    load: Callable[[Int64s, Int32s], Piece | None] | None = None

    def loaded(self) -> Piece | None:
        """The same in memory; None where the file is gone meanwhile, and that was noted."""
        assert self.load is not None
        found = self.load(self.phy_offsets, self.sizes)
        if found is None:
            return None
        return dataclasses.replace(
            found, topic=self.topic, queue_id=self.queue_id, queue_offsets=self.queue_offsets
        )

    def take(self, rows: Any) -> Piece:
        """The rows that an index or mask names."""
        offsets = None if self.queue_offsets is None else self.queue_offsets[rows]
        return dataclasses.replace(
            self,
            positions=np.ascontiguousarray(self.positions[rows]),
            sizes=np.ascontiguousarray(self.sizes[rows]),
            phy_offsets=np.ascontiguousarray(self.phy_offsets[rows]),
            queue_offsets=offsets,
        )


@dataclasses.dataclass(frozen=True)
class Gap:
    """`size` bytes at `position` of a log file that are no record; a BLANK has no `reason`."""

    position: int
    size: int
    reason: str


class Skipped:
    """What a task left out, and the damage that it gave a row of its own; told once at its end."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.first = ""
        self.shown = 0
        self.first_shown = ""

    def add(self, where: str, records: int, size: int) -> None:
        """`records` of `size` bytes in all; `where` says the place and the reason."""
        if not self.first:
            self.first = where
        self.records += records
        self.bytes += size

    def show(self, where: str, rows: int) -> None:
        """`rows` that stand for damage; `where` as in add."""
        if not self.first_shown:
            self.first_shown = where
        self.shown += rows

    def tell(self) -> None:
        """Log a warning if there was anything."""
        if self.records or self.bytes:
            LOG.warning(
                "rocketmq-store left out %d records, %d bytes, the first: %s",
                self.records,
                self.bytes,
                self.first,
            )
        if self.shown:
            LOG.warning(
                "rocketmq-store shows %d damaged places as rows, the first: %s",
                self.shown,
                self.first_shown,
            )


class LogReader:
    """Records out of commit log files, by pread.

    Raises DataLossError for a file that is gone, unless `fail_on_data_loss` is off: then its
    records are left out and counted. Threads: one.
    """

    def __init__(
        self, env: Env, files: tuple[LogFile, ...], options: SourceOptions, skipped: Skipped
    ) -> None:
        self.env = env
        self.files = files
        self.fail_on_data_loss = options.fail_on_data_loss
        self.on_corrupt = options.on_corrupt
        self.skipped = skipped
        self._begins = np.array([file.from_offset for file in files], np.int64)
        self._ends = self._begins + np.array([file.size for file in files], np.int64)
        self._open: dict[str, MappedFile] = {}

    def pieces(self, phy_offsets: Int64s, sizes: Int32s) -> Iterator[tuple[slice, Piece]]:
        """The records of each run that lies in one file, with its place in the arrays.

        Raises StoreCorruptionError for a place behind the log, unless damage is left out: then its
        record is of no size.
        """
        numbers = self._file_numbers(phy_offsets)
        edges = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        first = 0
        for edge in edges:
            if edge > first:
                rows = slice(first, edge)
                piece = self._piece(int(numbers[first]), phy_offsets[rows], sizes[rows])
                if piece is not None:
                    yield rows, piece
            first = edge

    def _file_numbers(self, phy_offsets: Int64s) -> Int64s:
        """int64[n]: the file that each place lies in, or _GONE or _NOWHERE."""
        if not self.files:
            return np.full(len(phy_offsets), _GONE)
        numbers = np.searchsorted(self._begins, phy_offsets, side="right") - 1
        behind = phy_offsets >= self._ends[numbers]
        numbers[behind & (numbers < len(self.files) - 1)] = _GONE
        numbers[behind & (numbers == len(self.files) - 1)] = _NOWHERE
        numbers[phy_offsets < self._begins[0]] = _GONE
        numbers[phy_offsets < 0] = _NOWHERE
        return numbers

    def _piece(self, number: int, phy_offsets: Int64s, sizes: Int32s) -> Piece | None:
        if number == _GONE:
            self._lost(f"commit log at byte {phy_offsets[0]}", sizes)
            return None
        phy_offsets, sizes = np.ascontiguousarray(phy_offsets), np.ascontiguousarray(sizes)
        last = number == _NOWHERE
        file = self.files[number] if not last else self.files[-1]
        end = int(self._ends[number]) if not last else 0
        beyond = (sizes <= 0) | (phy_offsets > end - sizes.astype(np.int64))
        beyond |= sizes > record_size_max()
        if beyond.any():
            if self.on_corrupt == "fail":
                position = int(phy_offsets[beyond][0]) - file.from_offset
                raise StoreCorruptionError(file.path, position, _NOT_HELD)
            sizes = np.where(beyond, np.int32(0), sizes)
            return self._loaded(file, phy_offsets, sizes)
        try:
            opened = self._mapped_file(file)
        except StoreIOError as error:
            self._note_gone(error, file, sizes)
            return None
        load = functools.partial(self._loaded, file)
        places = phy_offsets, sizes, phy_offsets
        return Piece(None, *places, file.path, file.from_offset, file=opened, load=load)

    def _loaded(self, file: LogFile, phy_offsets: Int64s, sizes: Int32s) -> Piece | None:
        try:
            return self._gathered(file, phy_offsets, sizes)
        except StoreIOError as error:
            self._note_gone(error, file, sizes)
            return None

    def _note_gone(self, error: StoreIOError, file: LogFile, sizes: Int32s) -> None:
        """Raises any other error."""
        if error.errno != errno.ENOENT:
            raise error
        self._lost(file.path, sizes)

    def _gathered(self, file: LogFile, phy_offsets: Int64s, sizes: Int32s) -> Piece:
        """The bytes at these places, whatever they are; no size is a record that is not there."""
        opened = self._mapped_file(file)
        total = int(sizes.sum())
        data = reusable_bytes(total + total // LEFT_BETWEEN)
        there = sizes > 0
        wanted = phy_offsets[there], sizes[there]
        positions = np.zeros(len(wanted[0]), np.int64)
        try:
            gather_records(opened, *wanted, data, 0, check=False, positions=positions)
        except StoreCorruptionError:  # the file is shorter than it was
            if self.on_corrupt == "fail":
                raise
            self._gather_each(opened, *wanted, data, positions)
        places = np.zeros(len(sizes), np.int64)
        places[there] = positions
        return Piece(data, places, sizes, phy_offsets, file.path, file.from_offset)

    @staticmethod
    def _gather_each(
        opened: MappedFile,
        phy_offsets: Int64s,
        sizes: Int32s,
        data: npt.NDArray[np.uint8],
        positions: Int64s,
    ) -> None:
        """One by one; what is not there is zeros."""
        np.cumsum(sizes[:-1], dtype=np.int64, out=positions[1:])
        for row, position in enumerate(positions.tolist()):
            one = slice(row, row + 1)
            try:
                gather_records(opened, phy_offsets[one], sizes[one], data, position, check=False)
            except StoreCorruptionError:
                data[position : position + int(sizes[row])] = 0

    def _mapped_file(self, file: LogFile) -> MappedFile:
        if file.path not in self._open:
            opened = MappedFile(
                self.env,
                file.path,
                file.size,
                mode="read",
                file_from_offset=file.from_offset,
                partial=True,  # records behind the end of a file that was cut are damaged ones
            )
            opened.set_positions(file.size)
            self._open[file.path] = opened
        return self._open[file.path]

    def _lost(self, where: str, sizes: Int32s) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{where}: gone, with {len(sizes)} messages that were asked for; "
                "failOnDataLoss=false reads the others"
            )
        self.skipped.add(f"{where}: gone", len(sizes), int(sizes.sum()))


class MessageBatches:
    """Pieces to record batches.

    Parameters
    ----------
    columns : name -> type, what Spark asked for
    broker_name : str, the store's label

    Threads: one.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        options: SourceOptions,
        broker_name: str,
        skipped: Skipped,
    ) -> None:
        self.columns = columns
        self.schema = arrow_schema_of(columns)
        self.options = options
        self.broker_name = broker_name
        self.skipped = skipped
        self.wanted = options.wanted_tags
        sources = [
            _KAFKA_SOURCES.get(name, name) if options.kafka_schema else name for name in columns
        ]
        self.sources = sources
        decoded = decoder_columns(sources)
        for name in ("topic", "queue_id", "queue_offset", "size"):
            if name not in decoded:
                decoded.append(name)
        if self.wanted is not None and "tags" not in decoded:
            decoded.append("tags")
        if not options.decompress:
            decoded = ["stored_body" if name == "body" else name for name in decoded]
        self.decoded = decoded
        #: the piece of the last call in memory, where some of its records may have given no row
        self.loaded: Piece | None = None
        # Such bodies are inflated a few at a time: what was decoded before one is met is lost.
        self._met_compressed = False

    @property
    def reads_bodies(self) -> bool:
        """Whether bodies are shown."""
        return "body" in self.decoded or "stored_body" in self.decoded

    def batches(self, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a piece, in order; several batches where bodies are inflated.

        Raises StoreCorruptionError under onCorrupt=fail.
        """
        self.loaded = None
        if piece.data is None:
            columns = None if self._met_compressed else self._sound_columns(piece)
            if columns is not None:
                yield from self._shown(piece, None, piece, columns)
                return
            loaded = piece.loaded()
            if loaded is None:
                return
            piece = loaded
        self.loaded = piece
        if "body" not in self.decoded:
            yield from self._batches(piece)
            return
        is_compressed = compressed_records(piece.data, piece.positions, piece.sizes)
        if is_compressed is None:
            yield from self._batches(piece)
            return
        compressed = np.cumsum(is_compressed)
        rows = np.arange(len(piece.sizes))
        group = np.maximum(compressed - 1, 0) // INFLATED_AT_ONCE
        for part in np.split(rows, np.flatnonzero(np.diff(group)) + 1):
            whole = len(part) == len(rows)
            yield from self._batches(piece if whole else piece.take(part))

    def _sound_columns(self, piece: Piece) -> dict[str, Any] | None:
        """The columns of records that are in their file; None where one needs a closer look."""
        assert piece.file is not None
        try:
            columns = decode_file_records(
                piece.file,
                piece.phy_offsets,
                piece.sizes,
                self.decoded,
                check_crc=self.options.verify_crc,
                inflate=False,
            )
        except (StoreCorruptionError, StoreIOError):  # it is met again when they are loaded
            return None
        if columns is None:
            self._met_compressed = True
            return None
        return _with_body(columns) if _differing(piece, columns) is None else None

    def _batches(self, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        bad = None
        try:
            columns = self._decode(piece)
        except StoreCorruptionError as error:
            if self.options.on_corrupt == "fail":
                raise _in_file(error, piece) from None
            bad = self._damaged(piece)
            columns = self._decode(piece.take(~bad), on_bad_body="null")
            lost = self._lost_bodies(piece.take(~bad), columns)
            if lost is not None:
                bad[np.flatnonzero(~bad)[lost]] = True
                columns = self._decode(piece.take(~bad), on_bad_body="null")
        good = piece if bad is None else piece.take(~bad)
        strange = self._strange(good, columns)
        if strange is not None:
            self._tell_strange(good, columns, strange)
            rows = np.flatnonzero(~bad) if bad is not None else np.arange(len(piece.sizes))
            bad = np.ones(len(piece.sizes), np.bool_)
            bad[rows[~strange]] = False
            good = piece.take(~bad)
            columns = self._decode(good, on_bad_body="null")
        yield from self._shown(piece, bad, good, columns)

    def _shown(
        self,
        piece: Piece,
        bad: npt.NDArray[np.bool_] | None,
        good: Piece,
        columns: Mapping[str, Any],
    ) -> Iterator[pyarrow.RecordBatch]:
        """What is shown of a piece whose rows are `good` but for the `bad` ones."""
        batch = self._with_names(good, columns)
        keep = None
        if self.wanted is not None:
            keep = _tags_mask(columns["tags"], self.wanted.tags)
        if bad is not None and self._shows_damage:
            batch = self._with_bad_rows(piece, bad, batch)
            keep = keep if keep is None else _with_bad(keep, bad)
        if keep is not None:
            batch = batch.filter(keep)
        if batch.num_rows == 0:
            return
        yield from _in_limits(batch)

    def _decode(self, piece: Piece, on_bad_body: str = "raise") -> dict[str, Any]:
        columns = decode_records(
            piece.data,
            piece.positions,
            piece.sizes,
            self.decoded,
            phy_offsets=piece.phy_offsets,
            check_crc=self.options.verify_crc,
            path=piece.path,
            on_bad_body=on_bad_body,
        )
        return _with_body(columns)

    def _damaged(self, piece: Piece) -> npt.NDArray[np.bool_]:
        status = check_records(
            piece.data,
            piece.positions,
            piece.sizes,
            phy_offsets=piece.phy_offsets,
            check_crc=self.options.verify_crc,
        )
        bad = status != 0
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            position = int(piece.phy_offsets[first]) - piece.file_from_offset
            where = f"{piece.path} at byte {position}: {status_name(int(status[first]))}"
            self._note(where, piece, bad)
        return np.asarray(bad, np.bool_)

    @property
    def _shows_damage(self) -> bool:
        """Whether a damaged record has a row that says its place."""
        return self.options.on_corrupt == "null" or self.options.view == "commitlog"

    def _note(self, where: str, piece: Piece, bad: npt.NDArray[np.bool_]) -> None:
        """Count records that give no row, or none of their own."""
        if self._shows_damage:
            self.skipped.show(where, int(bad.sum()))
        else:
            self.skipped.add(where, int(bad.sum()), int(piece.sizes[bad].sum()))

    def _lost_bodies(
        self, piece: Piece, columns: Mapping[str, Any]
    ) -> npt.NDArray[np.bool_] | None:
        """bool[n]: under onCorrupt=skip, records whose body does not inflate; None without any."""
        body = columns.get("body")
        if body is None or not body.null_count or self.options.on_corrupt != "skip":
            return None
        lost = np.unpackbits(body.validity, count=len(body), bitorder="little") == 0
        position = int(piece.phy_offsets[lost][0]) - piece.file_from_offset
        where = f"{piece.path} at byte {position}: the body does not inflate"
        self._note(where, piece, lost)
        return np.asarray(lost, np.bool_)

    def _strange(self, piece: Piece, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_] | None:
        """bool[n]: records that say another place, or size, than the unit that names them; None
        when there are none."""
        strange = _differing(piece, columns)
        if strange is None:
            return None
        for row in np.flatnonzero(strange).tolist():
            strange[row] = not is_dispatched_to(piece, row)
        return strange if strange.any() else None

    def _tell_strange(
        self, piece: Piece, columns: Mapping[str, Any], strange: npt.NDArray[np.bool_]
    ) -> None:
        """Raises StoreCorruptionError under onCorrupt=fail, else counts them."""
        assert piece.queue_offsets is not None
        row = int(np.flatnonzero(strange)[0])
        position = int(piece.phy_offsets[row]) - piece.file_from_offset
        said = f"{columns['topic'][row]}/{columns['queue_id'][row]}, {columns['queue_offset'][row]}"
        unit = f"unit {piece.queue_offsets[row]} of {piece.topic}/{piece.queue_id}"
        reason = (
            f"{unit} names a record of {piece.sizes[row]} bytes here; the record says {said}, "
            f"{columns['size'][row]} bytes"
        )
        if self.options.on_corrupt == "fail":
            raise StoreCorruptionError(piece.path, position, reason)
        self._note(f"{piece.path} at byte {position}: {reason}", piece, strange)

    # ---- columns -----------------------------------------------------------------------------

    def _with_names(self, piece: Piece, columns: Mapping[str, Any]) -> pyarrow.RecordBatch:
        import pyarrow as pa

        count = len(piece.sizes)
        arrays = []
        for name, source, field in zip(self.columns, self.sources, self.schema, strict=True):
            found = self._made(name, source, field.type, piece, count)
            if found is None:
                plain = _RECORD_NAMES.get(source, source)
                found = field_array(plain, columns[FIELDS[plain].column])
            arrays.append(
                _as_kafka(name, found, field.type) if self.options.kafka_schema else found
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _made(
        self, name: str, source: str, kind: Any, piece: Piece, count: int
    ) -> pyarrow.Array | None:
        """A column that is not the record's own; None for one that is."""
        import pyarrow as pa

        if source == "brokerName":
            return pa.repeat(pa.scalar(self.broker_name, pa.string()), count)
        if name == "timestampType":
            return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count)
        made = self._made_of_log(source, kind, piece, count)
        if made is not None or piece.topic is None or piece.queue_offsets is None:
            return made
        if source == "topic":
            return pa.repeat(pa.scalar(piece.topic, pa.string()), count)
        if source == "queueId":
            return pa.repeat(pa.scalar(piece.queue_id, pa.int32()), count)
        if source == "queueOffset":
            return pa.array(piece.queue_offsets, kind)
        return None

    @staticmethod
    def _made_of_log(source: str, kind: Any, piece: Piece, count: int) -> pyarrow.Array | None:
        """The columns that the view commitlog has beside a message's."""
        import pyarrow as pa

        if source == "totalSize":
            return pa.array(piece.sizes, kind)
        if source == "filePosition":
            return pa.array(piece.phy_offsets - piece.file_from_offset, kind)
        same = {
            "recordType": "message",
            "magicCode": MESSAGE_MAGIC_CODE,
            "fileName": encodable(piece.path),
        }
        return pa.repeat(pa.scalar(same[source], kind), count) if source in same else None

    def gap(self, path: str, file_from_offset: int, gap: Gap) -> pyarrow.RecordBatch:
        """The row of the view commitlog for bytes that are no record."""
        import pyarrow as pa

        values = {
            "brokerName": self.broker_name,
            "commitLogOffset": file_from_offset + gap.position,
            "recordType": "corrupt" if gap.reason else "blank",
            "totalSize": gap.size,
            "magicCode": None if gap.reason else BLANK_MAGIC_CODE,
            "fileName": encodable(path),
            "filePosition": gap.position,
        }
        arrays = [pa.array([values.get(field.name)], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _with_bad_rows(
        self, piece: Piece, bad: npt.NDArray[np.bool_], batch: pyarrow.RecordBatch
    ) -> pyarrow.RecordBatch:
        """The batch with a row for each damaged record that says where it should be: under
        onCorrupt=null, and in the view commitlog."""
        import pyarrow as pa
        import pyarrow.compute

        rows = np.cumsum(~bad) - 1
        places = pa.array(rows, pa.int64(), mask=bad)
        known = {
            "topic": piece.topic,
            "brokerName": self.broker_name,
            "queueId": piece.queue_id if piece.topic is not None else None,
            "recordType": "corrupt",
            "fileName": encodable(piece.path),
            "timestampType": LOG_APPEND_TIME,
        }
        by_row = {
            "queueOffset": piece.queue_offsets,
            "commitLogOffset": piece.phy_offsets,
            "storeSize": piece.sizes,
            "totalSize": piece.sizes,
            "filePosition": piece.phy_offsets - piece.file_from_offset,
        }
        arrays = []
        for source, field, column in zip(self.sources, self.schema, batch.columns, strict=True):
            taken = column.take(places)
            same, each = known.get(source), by_row.get(source)
            if same is not None:
                said = pa.repeat(pa.scalar(same, field.type), len(bad))
                taken = pa.compute.if_else(pa.array(bad), said, taken)
            elif each is not None:
                taken = pa.compute.if_else(pa.array(bad), pa.array(each, field.type), taken)
            arrays.append(taken)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _with_body(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with what is shown as the body under that name."""
    if "stored_body" in columns:
        columns["body"] = columns.pop("stored_body")
    return columns


def _differing(piece: Piece, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_] | None:
    """bool[n]: records that are of another queue than the piece, or of another place or size; None
    when there are none."""
    if piece.queue_offsets is None or piece.topic is None or is_light(piece.topic):
        return None
    differs = np.asarray(
        (columns["queue_offset"] != piece.queue_offsets)
        | (columns["queue_id"] != piece.queue_id)
        | (columns["size"] != piece.sizes),
        np.bool_,
    )
    topic = piece.topic.encode("utf-8", "surrogateescape")
    names = columns["topic"]
    if (
        len(names.data) != len(topic) * len(names)
        or (names.data.reshape(len(names), len(topic)) != np.frombuffer(topic, np.uint8)).any()
    ):
        differs |= np.array([name != piece.topic for name in names.to_list()], np.bool_)
    return differs if differs.any() else None


def is_light(topic: str) -> bool:
    """Whether a topic is a light queue, whose records are those of others."""
    return topic.startswith(LMQ_PREFIX)


def topic_of(piece: Piece, row: int) -> str:
    """The topic that a record says, U+FFFD for what is not UTF-8.

    Raises StoreCorruptionError where the bytes are not a valid record.
    """
    one = piece.take(slice(row, row + 1))
    columns = decode_records(one.data, one.positions, one.sizes, ["topic"], path=one.path)
    return str(columns["topic"][0])


def is_dispatched_to(piece: Piece, row: int) -> bool:
    """Whether a record says that it stands in the piece's queue beside its own."""
    one = piece.take(slice(row, row + 1))
    columns = decode_records(one.data, one.positions, one.sizes, ["properties"], path=one.path)
    for pair in str(columns["properties"][0]).split("\2"):
        name, _, value = pair.partition("\1")
        if name == PROPERTY_INNER_MULTI_DISPATCH:
            return piece.topic in value.split(",")
    return False


def _in_file(error: StoreCorruptionError, piece: Piece) -> StoreCorruptionError:
    """An error at a place of the piece's data as one at a place of the file."""
    row = np.flatnonzero(piece.positions == error.position)
    if not len(row):
        return error
    position = int(piece.phy_offsets[row[0]]) - piece.file_from_offset
    return StoreCorruptionError(piece.path, position, error.reason)


def _in_limits(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """The batch in parts that Spark takes well: inflated bodies may have made it large."""
    # What all its buffers hold is no less than its own bytes, and faster to say.
    if batch.num_rows == 1 or (
        batch.get_total_buffer_size() <= BATCH_BYTES_MAX or batch.nbytes <= BATCH_BYTES_MAX
    ):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _in_limits(batch.slice(0, half))
    yield from _in_limits(batch.slice(half))


def _tags_mask(tags: VarColumn, wanted: frozenset[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute

    from pyrocketstore.arrow import to_record_batch

    column = to_record_batch({"tags": tags}).column(0)
    return pyarrow.compute.is_in(column, value_set=pa.array(sorted(wanted), pa.string()))


def _with_bad(keep: Any, bad: npt.NDArray[np.bool_]) -> Any:
    """A mask of the sound rows as one of all rows, which keeps the damaged: their tags are lost,
    and their units name tags that are wanted."""
    import pyarrow as pa

    whole = bad.copy()
    whole[~bad] = keep.to_numpy(zero_copy_only=False)
    return pa.array(whole)


def _as_kafka(name: str, column: pyarrow.Array, kind: Any) -> pyarrow.Array:
    """A column as Spark's Kafka source types it."""
    import pyarrow as pa

    if name == "headers":
        items = pa.StructArray.from_arrays(
            [column.keys, column.items.cast(pa.binary())], fields=list(kind.value_type)
        )
        return pa.ListArray.from_arrays(column.offsets, items)
    return column.cast(kind) if column.type != kind else column


__all__ = ["KAFKA_HEADERS", "LogReader", "MessageBatches", "Piece", "Skipped"]
