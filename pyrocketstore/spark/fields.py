"""The fields of a message as Spark shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.arrow import to_record_batch

if TYPE_CHECKING:
    import pyarrow


@dataclasses.dataclass(frozen=True)
class Field:
    """`column` is a name of decode_records, `spark_ddl` a type of Spark SQL."""

    column: str
    spark_ddl: str


FIELDS: dict[str, Field] = {
    "topic": Field("topic", "string"),
    "queueId": Field("queue_id", "int"),
    "queueOffset": Field("queue_offset", "bigint"),
    "commitLogOffset": Field("phy_offset", "bigint"),
    "storeSize": Field("size", "int"),
    "tags": Field("tags", "string"),
    "keys": Field("keys", "string"),
    "uniqKey": Field("uniq_key", "string"),
    "flag": Field("flag", "int"),
    "sysFlag": Field("sys_flag", "int"),
    "bornTimestamp": Field("born_timestamp", "timestamp"),
    "storeTimestamp": Field("store_timestamp", "timestamp"),
    "bornHost": Field("born_host", "string"),
    "storeHost": Field("store_host", "string"),
    "reconsumeTimes": Field("reconsume_times", "int"),
    "preparedTransactionOffset": Field("prepared_transaction_offset", "bigint"),
    "bodyCRC": Field("body_crc", "int"),
    "msgId": Field("msg_id", "string"),
    "properties": Field("properties_map", "map<string,string>"),
    "body": Field("body", "binary"),
}


def arrow_type(ddl: str) -> Any:
    """The Arrow type of a Spark type."""
    import pyarrow as pa

    return {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }[ddl]


def arrow_schema(names: Sequence[str]) -> pyarrow.Schema:
    """These fields; all may be null."""
    import pyarrow as pa

    return pa.schema([pa.field(name, arrow_type(FIELDS[name].spark_ddl)) for name in names])


def to_fields_batch(columns: Mapping[str, Any], names: Sequence[str]) -> pyarrow.RecordBatch:
    """Decoded columns as the fields `names`."""
    import pyarrow as pa

    taken = {FIELDS[name].column: columns[FIELDS[name].column] for name in names}
    batch = to_record_batch(taken)
    arrays = []
    for name in names:
        array = batch.column(batch.schema.get_field_index(FIELDS[name].column))
        if FIELDS[name].spark_ddl == "timestamp":
            ms = np.asarray(columns[FIELDS[name].column])
            array = pa.array(ms * 1000, pa.timestamp("us", "UTC"))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
