"""The views' columns, as Spark names and types them."""

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
#: Columns of a message that are there when they are named.
MESSAGES_ON_DEMAND: dict[str, str] = {
    "msgTopic": "string",
    "msgQueueId": "int",
    "msgQueueOffset": "bigint",
}
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
#: The columns that Spark's Kafka source has.
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
    """The columns of the view that is asked for, and those that must be named to be there."""
    if not options.kafka_schema:
        return _VIEWS[options.view]
    headers = {"headers": KAFKA_HEADERS} if options.include_headers else {}
    return {**KAFKA, **headers}, {}


def ddl_of(columns: Mapping[str, str]) -> str:
    """Columns as a schema string."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_schema(schema: StructType, options: SourceOptions) -> dict[str, str]:
    """The columns that a schema names, in its order; the case of their names does not matter.

    Raises StoreFormatError for a column that the view has not, one twice, another type, or one that
    is not to be null.
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
    """The column that a name means, as Spark has it by default: its case does not matter."""
    return next((each for each in known if each.lower() == name.lower()), None)


def _excludes_null(described: Any) -> bool:
    """Whether a field, as JSON describes it, or a part of it may not be null."""
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
    """Batches with the names that a schema gives their columns; None: their own."""
    for batch in batches:
        yield batch if names is None else batch.rename_columns(list(names))


def arrow_schema_of(columns: Mapping[str, str]) -> pyarrow.Schema:
    """Columns as an Arrow schema; all may be null."""
    import pyarrow as pa

    return pa.schema([pa.field(name, _arrow(kind)) for name, kind in columns.items()])


def _arrow(kind: str) -> Any:
    import pyarrow as pa

    if kind == KAFKA_HEADERS:
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return arrow_type(kind)


def decoder_columns(names: Sequence[str]) -> list[str]:
    """What decode_records must give for these columns of messages."""
    needed = []
    for name in names:
        plain = {"msgTopic": "topic", "msgQueueId": "queueId", "msgQueueOffset": "queueOffset"}
        field = FIELDS.get(plain.get(name, name))
        if field is not None and field.column not in needed:
            needed.append(field.column)
    return needed
