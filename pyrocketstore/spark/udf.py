"""Functions for Spark SQL over columns of encoded records, queue units, tags and properties."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyrocketstore.display import shown
from pyrocketstore.errors import MissingExtraError, StoreFormatError
from pyrocketstore.spark import encoded
from pyrocketstore.spark.border import guarded
from pyrocketstore.spark.fields import FIELDS

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
    """The message that each encoded record is, as a struct.

    Parameters
    ----------
    col : a binary column, one record of the commit log in each value; what follows a record in its
        value is not looked at
    fields : names out of FIELDS, for a struct of these alone: what is not asked for is not decoded,
        and a body that nobody asks for is not inflated. None: all
    on_error : "null": the struct has a last field `error` (string), which says what is wrong; a
        record that is damaged is null in all others, and a body that does not inflate is null.
        "fail": both end the query with StoreCorruptionError
    verify_crc : compare each stored body with its CRC; a wrong one is damage

    Returns
    -------
    Column: struct<topic:string,...>; null for null. A time that is no timestamp of Spark is null.

    Raises
    ------
    StoreFormatError: a field or word that there is not. MissingExtraError without pyspark.
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
    """As decode_message over a whole DataFrame, and faster, since no row goes back to its others.

    Parameters
    ----------
    df, input_col : the column with the records
    fields, on_error, verify_crc : as of decode_message
    keep : other columns of `df` that are passed through

    Returns
    -------
    DataFrame: the columns `keep`, then one for each field, then `error` with on_error="null". A
    null record is null in all fields.

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
    _, sql_types = _require("decode_batches")
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
    """As decode_message, from a Series of bytes to a DataFrame of one column a field, for functions
    of pandas. Properties are dicts, times are UTC; numbers of which some are null are float64, as
    pandas has it.

    Raises
    ------
    StoreFormatError, and with on_error="fail" StoreCorruptionError. MissingExtraError.
    """
    names = encoded.checked_names(fields)
    _check_on_error(on_error)
    pa, _ = _require("decode_pandas")
    array = pa.array(series, pa.binary(), from_pandas=True)
    batch, errors, _ = encoded.decode_array(array, names, on_error=on_error, verify_crc=verify_crc)
    if errors is not None:
        batch = batch.append_column(encoded.ERROR_FIELD, errors)
    frame = batch.to_pandas(maps_as_pydicts="strict")
    frame.index = series.index
    return frame


def decode_cq_unit(col: Column | str) -> Column:
    """The queue unit that each binary value of 20 bytes is: struct<commitLogOffset:bigint,size:int,
    tagsCode:bigint>; null for null and for another length."""
    return _udf("decode_cq_unit", encoded.decode_cq_units, _CQ_UNIT_DDL)(col)


def tags_code(col: Column | str) -> Column:
    """What a queue unit keeps of tags (string): Java's hash as bigint, 0 for null and for none.

    Source: RocketMQ 4.9.3 MessageExtBrokerInner#tagsString2tagsCode.
    """
    return _udf("tags_code", encoded.tags_code_array, "bigint")(col)


def properties_map(col: Column | str) -> Column:
    """The map behind a properties text (string or binary): map<string,string>, of equal names the
    last one's value; null for null.

    Source: RocketMQ 4.9.3 MessageDecoder#string2messageProperties.
    """
    return _udf("properties_map", encoded.properties_map_array, "map<string,string>")(col)


def verify_crc(col: Column | str) -> Column:
    """Whether each binary value is a whole record whose body has its CRC; null for null."""
    return _udf("verify_crc", encoded.verify_crcs, "boolean")(col)


def register_functions(spark: SparkSession) -> None:
    """Give the functions names in SQL: rmq_decode (all fields and `error`), rmq_decode_cq_unit,
    rmq_tags_code, rmq_properties_map and rmq_verify_crc.

    Raises
    ------
    MissingExtraError without pyspark.
    """
    _require("register_functions")
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


def _require(what: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyspark.sql.types. Raises MissingExtraError."""
    try:
        import pyarrow
        from pyspark.sql import types as sql_types
    except ImportError as error:
        raise MissingExtraError(what, "spark") from error
    return pyarrow, sql_types


def _udf(name: str, function: Callable[[Any], Any], ddl: str) -> Callable[..., Column]:
    """A function of Spark that gives each array of its column to `function`."""
    pa, _ = _require(name)
    from pyspark.sql.pandas import functions

    def apply(arrays: Iterator[Any]) -> Iterator[Any]:
        return map(guarded(function), arrays)

    # What kind of function it is Spark reads from these types, which are not known without it.
    kind = types.GenericAlias(Iterator, pa.Array)
    apply.__annotations__ = {"arrays": kind, "return": kind}
    apply.__name__ = name
    arrow_udf: Any = functions.arrow_udf
    made: Callable[..., Column] = arrow_udf(apply, ddl)
    return made
