"""Make Arrow batches of the columns that Spark requested from decoded records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import PROPERTIES_MAP, VarColumn
from pyrocketstore.record._record import (
    BLANK_MAGIC_CODE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
)
from pyrocketstore.spark.encodable_errors import encodable
from pyrocketstore.spark.fields import FIELDS, field_array
from pyrocketstore.spark.options import BATCH_BYTES_MAX, SourceOptions
from pyrocketstore.spark.read.decode import Damage, Decoded, RecordDecoder
from pyrocketstore.spark.read.records import Chunk, Gap, Skipped
from pyrocketstore.spark.schemas import FIELD_OF, arrow_schema_of, decoder_columns

if TYPE_CHECKING:
    import pyarrow

Bools = npt.NDArray[np.bool_]

#: Byte of a record at which the magic codes of 4.9.3 and of 5.x differ, and its value in 5.x.
_LAST_OF_MAGIC, _V2 = 7, MESSAGE_MAGIC_CODE_V2 & 0xFF
#: Source of each column of the Kafka schema.
_KAFKA_SOURCES = {
    "key": "keys",
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}
LOG_APPEND_TIME = 1


class Rows(NamedTuple):
    """The rows of a part of a chunk, in order, and the records that have no row of their own."""

    batches: tuple[pyarrow.RecordBatch, ...]
    damage: Damage | None


class MessageBatches:
    """Makes record batches of chunks.

    Parameters
    ----------
    columns : name -> type, the columns that Spark requested
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
        self.wanted = options.wanted_tags
        self.where = options.filter
        self.sources = [
            _KAFKA_SOURCES.get(name, name) if options.kafka_schema else name for name in columns
        ]
        decoded = decoder_columns(self.sources)
        for name in ("topic", "queue_id", "queue_offset", "size"):
            if name not in decoded:
                decoded.append(name)
        if self.wanted is not None and "tags" not in decoded:
            decoded.append("tags")
        if self.where is not None and PROPERTIES_MAP not in decoded:
            decoded.append(PROPERTIES_MAP)
        self.reads_bodies = "body" in decoded
        if not options.decompress:
            decoded = ["stored_body" if name == "body" else name for name in decoded]
        self.decoder = RecordDecoder(decoded, options, skipped)

    def batches(self, chunk: Chunk) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a chunk, in order. Raises StoreCorruptionError under onCorrupt=fail."""
        for rows in self.rows(chunk):
            yield from rows.batches

    def rows(self, chunk: Chunk) -> Iterator[Rows]:
        """Yield the rows of a chunk with the damage of each part."""
        for found in self.decoder.decode(chunk):
            batch = None if found.columns is None else self._batch(found, found.columns)
            parts = () if batch is None or not batch.num_rows else tuple(_in_limits(batch))
            yield Rows(parts, found.damage)

    def _batch(self, found: Decoded, columns: Mapping[str, Any]) -> pyarrow.RecordBatch:
        """Make the rows of good records, and of damaged ones where they are shown."""
        import pyarrow as pa

        chunk, good = found.chunk, found.good
        batch = self._with_names(
            chunk if found.decoded is None else chunk.take(found.decoded), columns
        )
        keep = self._selected(columns)
        if good is not None:
            inner = good if found.decoded is None else good[found.decoded]
            if not inner.all():
                batch = batch.filter(pa.array(inner))
                keep = None if keep is None else keep[inner]
            if self.decoder.shows_damage:
                batch = self._with_bad_rows(chunk, ~good, batch)
                if keep is not None:
                    # A damaged record's tags and properties are lost; its unit names wanted tags.
                    kept, keep = keep, ~good
                    keep[good] = kept
        return batch if keep is None else batch.filter(pa.array(keep))

    def _selected(self, columns: Mapping[str, Any]) -> Bools | None:
        """Return bool[n]: the decoded rows that are wanted; None: all."""
        keep = None if self.wanted is None else _tags_mask(columns["tags"], self.wanted.tags)
        if self.where is None:
            return keep
        from pyrocketstore.reading.matching import selected  # few queries filter

        passes = selected(field_array("properties", columns[PROPERTIES_MAP]), self.where)
        return passes if keep is None else keep & passes

    # ---- columns -----------------------------------------------------------------------------

    def _with_names(self, chunk: Chunk, columns: Mapping[str, Any]) -> pyarrow.RecordBatch:
        import pyarrow as pa

        count = len(chunk.sizes)
        arrays = []
        for name, source, field in zip(self.columns, self.sources, self.schema, strict=True):
            found = self._made(name, source, field.type, chunk, count)
            if found is None:
                plain = FIELD_OF.get(source, source)
                found = field_array(plain, columns[FIELDS[plain].column])
            arrays.append(
                _as_kafka(name, found, field.type) if self.options.kafka_schema else found
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _made(
        self, name: str, source: str, kind: Any, chunk: Chunk, count: int
    ) -> pyarrow.Array | None:
        """Make a column that is not a field of the record; None for any other column."""
        import pyarrow as pa

        if source == "brokerName":
            return pa.repeat(pa.scalar(self.broker_name, pa.string()), count)
        if name == "timestampType":
            return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count)
        made = self._made_of_log(source, kind, chunk, count)
        if made is not None or chunk.topic is None or chunk.queue_offsets is None:
            return made
        if source == "topic":
            return pa.repeat(pa.scalar(chunk.topic, pa.string()), count)
        if source == "queueId":
            return pa.repeat(pa.scalar(chunk.queue_id, pa.int32()), count)
        if source == "queueOffset":
            return pa.array(chunk.queue_offsets, kind)
        return None

    @staticmethod
    def _made_of_log(source: str, kind: Any, chunk: Chunk, count: int) -> pyarrow.Array | None:
        """Make a column that only the view commitlog has; None for any other column."""
        import pyarrow as pa

        if source == "totalSize":
            return pa.array(chunk.sizes, kind)
        if source == "filePosition":
            return pa.array(chunk.phy_offsets - chunk.file_from_offset, kind)
        if source == "magicCode":
            is_v2 = np.frombuffer(chunk.data, np.uint8)[chunk.positions + _LAST_OF_MAGIC] == _V2
            codes = np.where(is_v2, MESSAGE_MAGIC_CODE_V2, MESSAGE_MAGIC_CODE)
            return pa.array(codes.astype(np.int32), kind)
        same = {
            "recordType": "message",
            "fileName": encodable(chunk.path),
        }
        return pa.repeat(pa.scalar(same[source], kind), count) if source in same else None

    def gap(self, path: str, file_from_offset: int, gap: Gap) -> pyarrow.RecordBatch:
        """Return the row of the view commitlog for bytes without a valid record."""
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
        self, chunk: Chunk, bad: npt.NDArray[np.bool_], batch: pyarrow.RecordBatch
    ) -> pyarrow.RecordBatch:
        """Insert a row for each damaged record, with its expected queue and position: under
        onCorrupt=null, and in the view commitlog."""
        import pyarrow as pa
        import pyarrow.compute

        rows = np.cumsum(~bad) - 1
        source_rows = pa.array(rows, pa.int64(), mask=bad)
        known = {
            "topic": chunk.topic,
            "brokerName": self.broker_name,
            "queueId": chunk.queue_id if chunk.topic is not None else None,
            "recordType": "corrupt",
            "fileName": encodable(chunk.path),
            "timestampType": LOG_APPEND_TIME,
        }
        by_row = {
            "queueOffset": chunk.queue_offsets,
            "commitLogOffset": chunk.phy_offsets,
            "storeSize": chunk.sizes,
            "totalSize": chunk.sizes,
            "filePosition": chunk.phy_offsets - chunk.file_from_offset,
        }
        arrays = []
        for source, field, column in zip(self.sources, self.schema, batch.columns, strict=True):
            taken = column.take(source_rows)
            same, each = known.get(source), by_row.get(source)
            if same is not None:
                repeated = pa.repeat(pa.scalar(same, field.type), len(bad))
                taken = pa.compute.if_else(pa.array(bad), repeated, taken)
            elif each is not None:
                taken = pa.compute.if_else(pa.array(bad), pa.array(each, field.type), taken)
            arrays.append(taken)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _in_limits(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """Split a batch that inflated bodies have made larger than BATCH_BYTES_MAX."""
    # The size of all buffers is an upper bound of the batch's bytes, and faster to compute.
    if batch.num_rows == 1 or (
        batch.get_total_buffer_size() <= BATCH_BYTES_MAX or batch.nbytes <= BATCH_BYTES_MAX
    ):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _in_limits(batch.slice(0, half))
    yield from _in_limits(batch.slice(half))


def _tags_mask(tags: VarColumn, wanted: frozenset[str]) -> Bools:
    """Return bool[n]: the rows with one of the wanted tags."""
    import pyarrow as pa
    import pyarrow.compute

    from pyrocketstore.columns.arrow import arrow_array

    column = arrow_array(tags)
    found = pyarrow.compute.is_in(column, value_set=pa.array(sorted(wanted), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _as_kafka(name: str, column: pyarrow.Array, kind: Any) -> pyarrow.Array:
    """Cast a column to the type that Spark's Kafka source has."""
    import pyarrow as pa

    if name == "headers":
        items = pa.StructArray.from_arrays(
            [column.keys, column.items.cast(pa.binary())], fields=list(kind.value_type)
        )
        return pa.ListArray.from_arrays(column.offsets, items)
    return column.cast(kind) if column.type != kind else column
