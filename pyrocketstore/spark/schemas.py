"""Columns of the views, with the names and types that Spark shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.fields import FIELDS, arrow_type

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from pyrocketstore.spark.options import SourceOptions

_FIELDS = {name: field.spark_ddl for name, field in FIELDS.items()}

#: Column -> type in Spark SQL, in the order shown.
MESSAGES: dict[str, str] = {"topic": "string", "brokerName": "string", **_FIELDS}
#: Column that a query has only if it names it -> the field of the record.
FIELD_OF = {"msgTopic": "topic", "msgQueueId": "queueId", "msgQueueOffset": "queueOffset"}
MESSAGES_ON_DEMAND: dict[str, str] = {name: _FIELDS[field] for name, field in FIELD_OF.items()}
COMMIT_LOG: dict[str, str] = {
    **MESSAGES,
    "recordType": "string",
    "totalSize": "int",
    "magicCode": "int",
    "fileName": "string",
    "filePosition": "bigint",
}
CONSUME_QUEUE: dict[str, str] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "commitLogOffset": "bigint",
    "size": "int",
    "tagsCode": "bigint",
    "isPreBlank": "boolean",
    "fileName": "string",
}
INDEX: dict[str, str] = {
    "fileName": "string",
    "indexNo": "int",
    "slot": "int",
    "keyHash": "int",
    "commitLogOffset": "bigint",
    "timeDiffSec": "int",
    "storeTimestamp": "timestamp",
    "prevIndexNo": "int",
}
INDEX_ON_DEMAND: dict[str, str] = {
    "brokerName": "string",
    "beginTimestamp": "timestamp",
    "endTimestamp": "timestamp",
    "beginPhyOffset": "bigint",
    "endPhyOffset": "bigint",
    "hashSlotCount": "int",
    "indexCount": "int",
}
FILES: dict[str, str] = {
    "brokerName": "string",
    "kind": "string",
    "path": "string",
    "fromOffset": "bigint",
    "size": "bigint",
    "usedTo": "bigint",
    "minStoreTimestamp": "timestamp",
    "maxStoreTimestamp": "timestamp",
}
#: The columns of Spark's Kafka source.
KAFKA: dict[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
KAFKA_HEADERS = "array<struct<key:string,value:binary>>"

_VIEWS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "messages": (MESSAGES, MESSAGES_ON_DEMAND),
    "commitlog": (COMMIT_LOG, {}),
    "consumequeue": (CONSUME_QUEUE, {}),
    "index": (INDEX, INDEX_ON_DEMAND),
    "files": (FILES, {}),
}


def columns_of(options: SourceOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns of the query's view, and those that a query has only if it names them."""
    if not options.kafka_schema:
        return _VIEWS[options.view]
    headers = {"headers": KAFKA_HEADERS} if options.include_headers else {}
    return {**KAFKA, **headers}, {}


def ddl_of(columns: Mapping[str, str]) -> str:
    """Return columns as a schema string."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_schema(schema: StructType, options: SourceOptions) -> dict[str, str]:
    """Return the columns that a schema names, in its order; names are case-insensitive.

    Raises StoreFormatError for an unknown column, a repeated column, another type, and NOT NULL.
    """
    shown, on_demand = columns_of(options)
    known = {**shown, **on_demand}
    taken: dict[str, str] = {}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        name = name_in(known, field.name)
        if name is None:
            raise StoreFormatError(
                f"rocketmq-store: view {options.view} has no column {field.name!r}; it has "
                f"{', '.join(known)}"
            )
        if name in taken:
            raise StoreFormatError(f"rocketmq-store: the schema has the column {name} twice")
        if kind != known[name]:
            raise StoreFormatError(f"rocketmq-store: {name} is {known[name]}, not {kind}")
        if _excludes_null(field.jsonValue()):
            raise StoreFormatError(
                f"rocketmq-store: {field.name} is NOT NULL in the schema, and every column may be "
                "null: leave NOT NULL out"
            )
        taken[name] = kind
    return taken


def name_in(known: Iterable[str], name: str) -> str | None:
    """Return the column with a name; names are case-insensitive, as by Spark's default."""
    return next((each for each in known if each.lower() == name.lower()), None)


def _excludes_null(described: Any) -> bool:
    """Whether the JSON description of a field excludes null for it or for a part of it."""
    if not isinstance(described, dict):
        return False
    flags = ("nullable", "containsNull", "valueContainsNull")
    return any(described.get(flag) is False for flag in flags) or any(
        _excludes_null(part)
        for value in described.values()
        for part in (value if isinstance(value, list) else [value])
    )


def renamed(
    batches: Iterator[pyarrow.RecordBatch], names: Sequence[str] | None
) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches with the column names of a schema; None keeps the names."""
    for batch in batches:
        yield batch if names is None else batch.rename_columns(list(names))


def arrow_schema_of(columns: Mapping[str, str]) -> pyarrow.Schema:
    """Return columns as an Arrow schema; all may be null."""
    import pyarrow as pa

    return pa.schema([pa.field(name, _arrow(kind)) for name, kind in columns.items()])


def _arrow(kind: str) -> Any:
    import pyarrow as pa

    if kind == KAFKA_HEADERS:
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return arrow_type(kind)


def decoder_columns(names: Sequence[str]) -> list[str]:
    """Return the columns that decode_records must decode for these columns of messages."""
    needed = []
    for name in names:
        field = FIELDS.get(FIELD_OF.get(name, name))
        if field is not None and field.column not in needed:
            needed.append(field.column)
    return needed
