"""The commands that run on Spark: export, report."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import sys
from collections.abc import Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pyrocketstore.cli.output import Output
from pyrocketstore.cli.store_command import WholeNumber, app, json_option
from pyrocketstore.errors import MissingExtraError
from pyrocketstore.spark.local_paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SKIPPED_COLUMNS = tuple("broker topic queue start stop records bytes reason path".split())
_SPARK_NEEDED = "{0} runs on Spark and needs the flag --spark: pyrocketstore {0} --spark ..."
_spark_flag = click.option("--spark", "on_spark", is_flag=True, help="Run on Spark; required.")
_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master, if the environment sets neither one nor SPARK_REMOTE.",
)


@contextlib.contextmanager
def spark_session(what: str, master: str) -> Iterator[SparkSession]:
    """A session that ends with the command, with `rocketmq-store` registered: over Spark Connect
    where SPARK_REMOTE names a server.

    Raises MissingExtraError without pyspark or pyarrow, ClickException where Java is missing.
    """
    try:
        import pyarrow
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from pyrocketstore.spark import register
    except ImportError as error:
        raise MissingExtraError(what, "spark") from error
    assert pyarrow
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"pyrocketstore {what}")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    if "SPARK_REMOTE" not in os.environ:  # a server has its own master and settings
        if "MASTER" not in os.environ and "SPARK_ENV_LOADED" not in os.environ:
            builder = builder.master(master)
        for name, value in (
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.log.level", "ERROR"),
        ):
            builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise click.ClickException(f"Spark does not start: {error}") from error
    try:
        register(session)
        yield session
    except PySparkException as error:
        raise click.ClickException(_last_line(str(error))) from error
    finally:
        session.stop()


def _last_line(text: str) -> str:
    """Return the error of a Python traceback that the JVM has passed on."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = (re.search(r"(?:^|(?<=: ))pyrocketstore\.[\w.]+: (.*)", line) for line in lines)
    named = [each[1] for each in found if each is not None]
    return named[-1] if named else (lines[0] if lines else "an error without a text")


@app.command()
@click.argument(
    "stores", metavar="STORE...", nargs=-1, required=True, type=click.Path(path_type=str)
)
@click.argument("out", type=click.Path(file_okay=False, path_type=str))
@_spark_flag
@_master
@json_option
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the data source, such as topics=orders,payments or onCorrupt=skip.",
)
@click.option(
    "--compression",
    default="zstd",
    show_default=True,
    help="Compression of the Parquet files: zstd, snappy, gzip, lz4 or none.",
)
def export(
    stores: tuple[str, ...],
    out: str,
    on_spark: bool,
    master: str,
    as_json: bool,
    options: tuple[str, ...],
    compression: str,
) -> None:
    """Copy the new messages of each STORE into the Parquet lake OUT.

    A STORE is a directory or LABEL=DIRECTORY. Directories and OUT are paths or file: URIs. The
    files of the lake are in OUT/messages/topic=T/date=D. A further run finishes a run that was
    killed, and copies only messages that the lake does not have.
    """
    if not on_spark:
        raise click.UsageError(_SPARK_NEEDED.format("export"))
    from pyrocketstore.spark.pipeline import EXPORT_OPTIONS
    from pyrocketstore.spark.pipeline import export as export_stores

    output = Output(as_json=as_json)
    labelled, named = _labelled(stores), _named_options(options, EXPORT_OPTIONS)
    with (
        spark_session("export --spark", master) as spark,
        output.progress("writing the lake") as advance,
    ):
        report = export_stores(
            spark,
            labelled,
            out,
            progress=advance if output.is_rich else None,
            compression=compression,
            **named,
        )
    facts = report.to_dict()
    skipped = facts.pop("skipped")
    facts["skipped records"] = sum(each["records"] for each in skipped)
    output.facts("export", facts)
    if skipped:
        output.table("skipped", SKIPPED_COLUMNS, [tuple(each.values()) for each in skipped])


def _labelled(stores: tuple[str, ...]) -> Any:
    """LABEL=DIRECTORY where one is labelled so; else the directories, labelled by their names."""
    found = {}
    for text in stores:
        label, mark, directory = text.partition("=")
        if not mark or text.lower().startswith("file:") or os.path.isdir(text):
            label, directory = os.path.basename(local_path(text, "STORE")), text
        if label in found:
            raise click.UsageError(f"two stores are named {label!r}: write LABEL=DIRECTORY")
        found[label] = directory
    return found


def _existing(directory: str) -> str:
    path = local_path(directory, "STORE|LAKE")
    if not os.path.exists(path):
        raise click.BadParameter(f"Path {directory!r} does not exist.", param_hint="STORE|LAKE")
    return path


def _named_options(options: tuple[str, ...], allowed: Set[str]) -> dict[str, str]:
    found = {}
    for text in options:
        name, mark, value = text.partition("=")
        if not mark:
            raise click.UsageError(f"--option {text!r}: write NAME=VALUE")
        if name not in allowed:
            names = ", ".join(sorted(allowed))
            raise click.UsageError(f"--option {text!r}: the options are {names}")
        found[name] = value
    return found


@app.command()
@click.argument("name", type=click.Choice(("traffic", "latency", "keys", "duplicates", "retries")))
@click.argument("directory", metavar="STORE|LAKE", type=click.Path(path_type=str))
@_spark_flag
@_master
@json_option
@click.option(
    "--count", type=WholeNumber(1), default=100, show_default=True, help="Maximum number of rows."
)
def report(
    name: str, directory: str, on_spark: bool, master: str, as_json: bool, count: int
) -> None:
    """Print a report on the messages of a store or of an exported lake.

    \b
    traffic     messages and bytes per topic and hour
    latency     milliseconds from creation to storage, per topic and hour
    keys        the most frequent keys
    duplicates  messages that a topic has more than once
    retries     retry and dead-letter messages per consumer group
    """
    if not on_spark:
        raise click.UsageError(_SPARK_NEEDED.format("report"))
    output = Output(as_json=as_json)
    directory = _existing(directory)
    with spark_session("report --spark", master) as spark:
        from pyrocketstore.spark import FORMAT
        from pyrocketstore.spark.jobs import JOB_COLUMNS, JOBS, key_frequency
        from pyrocketstore.spark.pipeline import is_lake, read_lake
        from pyrocketstore.spark.schemas import MESSAGES, ddl_of

        if is_lake(directory):
            messages = read_lake(spark, directory)
        else:
            columns = {column: MESSAGES[column] for column in JOB_COLUMNS[name]}
            reader = spark.read.format(FORMAT).schema(ddl_of(columns))
            messages = reader.option("includeSystemTopics", "true").load(directory)
        # This one has a limit of its own.
        job = partial(key_frequency, count=count) if name == "keys" else JOBS[name]
        found = job(messages).limit(count)
        rows = [tuple(map(_plain, row)) for row in found.collect()]
        output.table(name, found.columns, rows)


def _plain(value: Any) -> Any:
    """A value of a row in types that json knows; a time is ISO 8601 in UTC."""
    if isinstance(value, datetime.datetime):  # Spark returns local times without a zone
        moment = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return list(value) if isinstance(value, tuple) else value
