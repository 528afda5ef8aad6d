"""Goal: every failure on Python's side of the border to Spark arrives as an error, and no call
hangs.
Method: exceptions whose texts no encoding accepts, raised at each place where Spark calls this
package; one such exception through a real Spark, with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyrocketstore.arguments.scalars import is_encodable
from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.spark.encodable_errors import encodable, guarded, guarded_class

BAD = "x\udcff"


def formatted(error: BaseException) -> bytes:
    """As PySpark sends it."""
    import traceback

    return "".join(traceback.TracebackException.from_exception(error).format()).encode()


def _raise(text: str, cause: str | None = None) -> None:
    if cause is None:
        raise ValueError(text)
    try:
        raise KeyError("x")
    except KeyError as error:
        error.add_note(cause)
        raise ValueError(text) from error


def _yield(text: str) -> Iterator[int]:
    yield 1
    raise ValueError(text)


@pytest.mark.parametrize("cause", [None, "fine", BAD])
@pytest.mark.parametrize("text", ["fine", BAD])
def test_an_exception_that_cannot_be_encoded(text: str, cause: str | None) -> None:
    with pytest.raises((ValueError, StoreError)) as caught:
        guarded(_raise)(text, cause)
    formatted(caught.value)
    assert isinstance(caught.value, ValueError) == (BAD not in (text, cause))
    assert encodable(text) in str(caught.value)


def test_a_generator() -> None:
    items = guarded(_yield)(BAD)
    assert next(items) == 1
    with pytest.raises(StoreError, match=r"ValueError: x\\udcff") as caught:
        next(items)
    formatted(caught.value)
    guarded(_yield)(BAD).close()


def test_texts() -> None:
    assert encodable("é\ufffd \\ \x00") == "é\ufffd \\ \x00"
    assert encodable("a\udcff\ud800") == r"a\udcff\ud800"
    assert is_encodable("é") and not is_encodable("\ud800")


def test_every_method_that_spark_calls_is_guarded() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.source.batch import RocketMQStoreSource, StoreReader
    from pyrocketstore.spark.source.stream import StoreStreamReader
    from pyrocketstore.spark.source.writer import StoreStreamWriter, StoreWriter

    classes = (RocketMQStoreSource, StoreReader, StoreStreamReader, StoreWriter, StoreStreamWriter)
    for cls in classes:
        called = {name for name in dir(cls) if not name.startswith("_")} - {"name"}
        of_spark = {name for name in called if getattr(cls, name).__module__.startswith("pyspark.")}
        for name in called - of_spark:
            assert hasattr(getattr(cls, name), "is_guarded"), f"{cls.__name__}.{name}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["schema", "reader", "partitions", "read"])
def test_spark_reports_the_failure(spark: Any, where: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    def fail(name: str) -> None:
        if name == where:
            raise ValueError(f"{name} \udcff")

    @guarded_class
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            fail("partitions")
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            fail("read")
            yield (1,)

    @guarded_class
    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def schema(self) -> str:
            fail("schema")
            return "a int"

        def reader(self, schema: Any) -> DataSourceReader:
            fail("reader")
            return Reader()

    spark.dataSource.register(Source)
    with pytest.raises(PySparkException, match=rf"ValueError: {where} \\udcff"):
        spark.read.format("failing").load().collect()


@pytest.mark.timeout(120)
def test_a_caller_s_mistake_comes_without_a_traceback(spark: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq-store").option("path", "/x").option("no", "1").load()
    text = str(caught.value)
    assert "StoreFormatError: rocketmq-store: unknown option 'no'" in text
    assert "Traceback" not in text
    assert len(text.strip().split("\n")) <= 2, text


def test_a_mistake_in_this_process_changes_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    before = dict(os.environ)
    with pytest.raises(StoreFormatError):
        guarded(lambda: encodable_or_raise(BAD))()
    assert dict(os.environ) == before


def encodable_or_raise(text: str) -> None:
    raise StoreFormatError(text)
