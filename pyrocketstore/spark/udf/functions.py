"""Functions for Spark SQL over columns of encoded records, queue units, tags and properties.

They build columns on the driver. Executors run `encoded`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.encodable_errors import guarded
from pyrocketstore.spark.fields import FIELDS
from pyrocketstore.spark.packages import require_packages
from pyrocketstore.spark.udf import encoded

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import Column, DataFrame, SparkSession

_CQ_UNIT_DDL = "struct<{}>".format(
    ",".join(f"{name}:{ddl}" for name, (ddl, _, _) in encoded.CQ_UNIT_FIELDS.items())
)


def decode_message(
    col: Column | str,
    fields: Sequence[str] | None = None,
    on_error: str = "null",
    verify_crc: bool = False,
) -> Column:
    """Decode each encoded record to a struct.

    Parameters
    ----------
    col : a binary column, one record of the commit log in each value; bytes after the record are
        ignored
    fields : names of FIELDS; other fields are not decoded, and bodies are inflated only for `body`.
        None: all
    on_error : "null": the struct has a last field `error` (string). A damaged record is null in all
        other fields, and a body that does not inflate is null. "fail": both end the query with
        StoreCorruptionError
    verify_crc : compare each stored body with its CRC; a mismatch is damage

    Returns
    -------
    Column: struct<topic:string,...>; null for null. A time outside of Spark's range is null.

    Raises
    ------
    StoreFormatError: an unknown field or on_error. MissingExtraError without pyspark.
    """
    names = encoded.checked_names(fields)
    _check_on_error(on_error)
    decode = functools.partial(
        encoded.decode_structs, names=names, on_error=on_error, verify_crc=verify_crc
    )
    return _udf("decode_message", decode, f"struct<{_ddl(names, on_error, ':')}>")(col)


def decode_batches(
    df: DataFrame,
    input_col: str,
    fields: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    on_error: str = "null",
    verify_crc: bool = False,
) -> DataFrame:
    """Decode each encoded record of a DataFrame to columns: faster than decode_message, because
    Spark need not join the result with the other columns.

    Parameters
    ----------
    df, input_col : the column with the records
    fields, on_error, verify_crc : as of decode_message
    keep : other columns of `df`, which are passed through

    Returns
    -------
    DataFrame: the columns `keep`, then one for each field, then `error` with on_error="null". A
    null record has null in all fields.

    Raises
    ------
    StoreFormatError: as decode_message, and for a kept column that has the name of a field.
    """
    names = encoded.checked_names(fields)
    _check_on_error(on_error)
    kept = (keep,) if isinstance(keep, str) else tuple(keep)
    shown = [*names, encoded.ERROR_FIELD] if on_error == "null" else list(names)
    if clash := sorted(set(kept) & set(shown)) or sorted({k for k in kept if kept.count(k) > 1}):
        raise StoreFormatError(f"two columns would be called {', '.join(clash)}")
    _, sql_types = require_packages("decode_batches")
    schema = sql_types.StructType([df.schema[name] for name in kept])
    for field in sql_types.StructType.fromDDL(_ddl(names, on_error, " ")).fields:
        schema.add(field)

    @guarded
    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        return encoded.decode_record_batches(
            batches, kept, names, on_error=on_error, verify_crc=verify_crc
        )

    # mapInArrow takes no column whose name has a dot.
    quoted = ["`{}`".format(name.replace("`", "``")) for name in (*kept, input_col)]
    plain = [df[name].alias(f"c{i}") for i, name in enumerate(quoted)]
    return df.select(*plain).mapInArrow(decode, schema)


def decode_pandas(
    series: pandas.Series,
    fields: Sequence[str] | None = None,
    on_error: str = "null",
    verify_crc: bool = False,
) -> pandas.DataFrame:
    """Decode a Series of encoded records to a DataFrame of one column a field: decode_message for
    functions of pandas. Properties are dicts, and times are UTC. Numbers with nulls are float64.

    Raises
    ------
    StoreFormatError, and with on_error="fail" StoreCorruptionError. MissingExtraError.
    """
    names = encoded.checked_names(fields)
    _check_on_error(on_error)
    pa, _ = require_packages("decode_pandas")
    array = pa.array(series, pa.binary(), from_pandas=True)
    batch, errors, _ = encoded.decode_array(array, names, on_error=on_error, verify_crc=verify_crc)
    if errors is not None:
        batch = batch.append_column(encoded.ERROR_FIELD, errors)
    frame = batch.to_pandas(maps_as_pydicts="strict")
    frame.index = series.index
    return frame


def decode_cq_unit(col: Column | str) -> Column:
    """Decode each binary value of 20 bytes as a queue unit: struct<commitLogOffset:bigint,size:int,
    tagsCode:bigint>; null for null and for another length."""
    return _udf("decode_cq_unit", encoded.decode_cq_units, _CQ_UNIT_DDL)(col)


def tags_code(col: Column | str) -> Column:
    """Return the tags code of tags (string): Java's hash as bigint, 0 for null and for no tags.

    Source: RocketMQ 4.9.3 MessageExtBrokerInner#tagsString2tagsCode.
    """
    return _udf("tags_code", encoded.tags_code_array, "bigint")(col)


def properties_map(col: Column | str) -> Column:
    """Parse a properties text (string or binary) to map<string,string>. Of equal names, the last
    value counts; null for null.

    Source: RocketMQ 4.9.3 MessageDecoder#string2messageProperties.
    """
    return _udf("properties_map", encoded.properties_map_array, "map<string,string>")(col)


def verify_crc(col: Column | str) -> Column:
    """Return whether each binary value is a record whose body matches its CRC; null for null."""
    return _udf("verify_crc", encoded.verify_crcs, "boolean")(col)


def register_functions(spark: SparkSession) -> None:
    """Register the functions in SQL: rmq_decode (all fields and `error`), rmq_decode_cq_unit,
    rmq_tags_code, rmq_properties_map and rmq_verify_crc.

    Raises
    ------
    MissingExtraError without pyspark.
    """
    require_packages("register_functions")
    names = tuple(FIELDS)
    decode = functools.partial(
        encoded.decode_structs, names=names, on_error="null", verify_crc=False
    )
    functions: dict[str, tuple[Callable[[Any], Any], str]] = {
        "rmq_decode": (decode, f"struct<{_ddl(names, 'null', ':')}>"),
        "rmq_decode_cq_unit": (encoded.decode_cq_units, _CQ_UNIT_DDL),
        "rmq_tags_code": (encoded.tags_code_array, "bigint"),
        "rmq_properties_map": (encoded.properties_map_array, "map<string,string>"),
        "rmq_verify_crc": (encoded.verify_crcs, "boolean"),
    }
    for name, (function, ddl) in functions.items():
        spark.udf.register(name, _udf(name, function, ddl))


def _check_on_error(on_error: str) -> None:
    if on_error not in ("null", "fail"):
        raise StoreFormatError(f"on_error is 'null' or 'fail', not {shown(on_error)}")


def _ddl(names: Sequence[str], on_error: str, between: str) -> str:
    fields = [(name, FIELDS[name].spark_ddl) for name in names]
    if on_error == "null":
        fields.append((encoded.ERROR_FIELD, "string"))
    return ",".join(f"{name}{between}{ddl}" for name, ddl in fields)


def _udf(name: str, function: Callable[[Any], Any], ddl: str) -> Callable[..., Column]:
    """Return a function of Spark that passes each array of its column to `function`."""
    pa, _ = require_packages(name)
    from pyspark.sql.pandas import functions

    def apply(arrays: Iterator[Any]) -> Iterator[Any]:
        return map(guarded(function), arrays)

    # Spark reads the kind of the function from these types, which need pyarrow.
    kind = types.GenericAlias(Iterator, pa.Array)
    apply.__annotations__ = {"arrays": kind, "return": kind}
    apply.__name__ = name
    arrow_udf: Any = functions.arrow_udf
    made: Callable[..., Column] = arrow_udf(apply, ddl)
    return made
