"""Read a broker's store, then write, kill and recover a new one (`make demo`).

1. Unpack a store that a RocketMQ 4.9.3 broker wrote (tests/golden) and read it.
2. Start a child process that puts a million orders into a new store. Kill it with SIGKILL half way,
   open the store again, and prove from a journal that every acknowledged message is there.
3. If Java is installed, export both stores to Parquet with Spark and query them in SQL.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Column, Table

import pyrocketstore

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
TOPIC = "orders"
QUEUES = 4
CUSTOMERS = 1000
#: Fields of a journal entry: number of the message, queue offset, physical offset.
ENTRY = struct.Struct("<qqq")

console = Console(highlight=False)


class Order(NamedTuple):
    """One message of the new store, computed from its number alone."""

    body: bytes
    customer: str
    state: str


def order(number: int) -> Order:
    """Return the order with this number: a body of about 200 bytes, its customer, and its state.

    Low customer numbers order more often: customer n about 1/n as often as customer 1. Customer 3
    cancels 30 % of its orders, every other customer 4 %.
    """
    digest = hashlib.blake2b(b"%d" % number, digest_size=50).digest()
    rank = int(CUSTOMERS ** (int.from_bytes(digest[:4]) / 2**32))
    cancelled = int.from_bytes(digest[4:8]) % 100 < (30 if rank == 3 else 4)
    text = digest.hex()
    body = f"order {number} of customer {rank}: {text}{text[:60]}".encode()
    return Order(body, f"customer-{rank}", "cancelled" if cancelled else "paid")


# ---- a broker's store -----------------------------------------------------------------------


def show_broker_store(folder: Path) -> None:
    """Print topics, some messages and some key queries of the store that a broker wrote."""
    console.rule("[bold]A store that a RocketMQ 4.9.3 broker wrote")
    with tarfile.open(GOLDEN / "broker-clean.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    config = GOLDEN / "broker-clean.conf"
    with pyrocketstore.open(folder / "broker-clean", config=config, read_only=True) as store:
        table = Table("topic", numeric("queues"), numeric("messages"))
        for topic in store.topics():
            counts = [store.max_offset(topic, q) - store.min_offset(topic, q)
                      for q in store.queues(topic)]  # fmt: skip
            table.add_row(topic, str(len(counts)), f"{sum(counts):,}")
        console.print(table)
        show_messages(store)
        report = store.verify()
        verdict = (
            "[green]consistent"
            if report.consistent
            else f"[red]{report.problem_count} inconsistencies"
        )
        console.print(
            f"verify: {report.records:,} records, {report.units:,} queue units, "
            f"{report.index_entries:,} index entries: {verdict}"
        )
        if report.not_indexed:
            console.print(
                f"{report.not_indexed:,} messages are older than the index that the broker kept"
            )


def numeric(name: str) -> Column:
    """Return a table column for numbers, aligned to the right."""
    return Column(name, justify="right")


def show_messages(store: pyrocketstore.Store) -> None:
    """Print the first messages of a topic, then some key queries."""
    for message in list(store.read(TOPIC, None))[:5]:
        console.print(
            f"  {TOPIC}/{message.queue_id}/{message.queue_offset}  tags={message.tags}  "
            f"keys={message.keys}  {len(message.body):,} bytes"
        )
    for key in ("tx-4", "order-1490", "cust-19"):
        hits = store.query(TOPIC, key)
        found = [f"{hit.queue_id}/{hit.queue_offset}" for hit in hits]
        more = ", ..." if len(found) > 3 else ""
        console.print(
            f"  query {key}: {len(found)} found, at queue/offset {', '.join(found[:3])}{more}"
        )


# ---- a new store, killed in the middle -------------------------------------------------------


def write(path: str, journal_path: str, count: int) -> None:
    """Put `count` orders (child process) and append each acknowledged one to the journal."""
    with pyrocketstore.open(path) as store, open(journal_path, "ab", buffering=0) as journal:
        pending = []
        for number in range(count):
            one = order(number)
            result = store.put(
                TOPIC,
                one.body,
                queue_id=number % QUEUES,
                tags=one.state,
                keys=f"order-{number} {one.customer}",
            )
            pending.append(ENTRY.pack(number, result.queue_offset, result.phy_offset))
            if len(pending) == 100:
                journal.write(b"".join(pending))
                pending.clear()
        journal.write(b"".join(pending))


def write_and_kill(store: Path, journal: Path, count: int) -> tuple[int, float]:
    """Start the writer and kill it half way; return (acknowledged messages, seconds)."""
    journal.touch()
    command = [sys.executable, __file__, "--write", str(store), str(journal), str(count)]
    with (
        Progress(
            "putting", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as bar,  # fmt: skip
        subprocess.Popen(command) as child,
    ):
        task = bar.add_task("putting", total=count)
        started = 0.0
        while child.poll() is None:
            done = journal.stat().st_size // ENTRY.size
            started = started or (time.perf_counter() if done else 0.0)
            bar.update(task, completed=done)
            if done >= count * 0.55:
                child.send_signal(signal.SIGKILL)
                child.wait()
            time.sleep(0.002)
        seconds = time.perf_counter() - started
        acknowledged = journal.stat().st_size // ENTRY.size
        bar.update(task, completed=acknowledged)
    if child.returncode != -signal.SIGKILL:
        sys.exit(f"the writer exited with status {child.returncode} before it was killed")
    return acknowledged, seconds


def prove(store_path: Path, journal: Path, count: int) -> Counter[tuple[str, str]]:
    """Open the killed store and check each message of the journal: its bytes and its key.

    Return how often each (customer, state) is among the first `count` orders.
    """
    size = journal.stat().st_size // ENTRY.size * ENTRY.size
    entries = list(ENTRY.iter_unpack(journal.read_bytes()[:size]))
    written: Counter[tuple[str, str]] = Counter()
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # recovery must have nothing to warn about
        store = pyrocketstore.open(store_path)
    opened = time.perf_counter() - begin
    with store:
        plan = store.message_store.plan
        assert plan is not None
        console.print(
            f"recovered in {opened:.2f} s: {plan.records:,} records checked, "
            f"{plan.log_end:,} bytes of log"
        )
        begin = time.perf_counter()
        found = [list(store.read(TOPIC, queue_id)) for queue_id in range(QUEUES)]
        total = sum(map(len, found))
        for number, queue_offset, phy_offset in entries:
            message, one = found[number % QUEUES][queue_offset], order(number)
            if (message.phy_offset, message.body, message.tags) != (
                phy_offset,
                one.body,
                one.state,
            ):
                sys.exit(f"message {number} differs from the one that was put")
            if number < count:
                written[one.customer, one.state] += 1
        console.print(
            f"[green]all {len(entries):,} acknowledged messages are there, unchanged and in order"
            f"[/green] ({total:,} in the log; {total / (time.perf_counter() - begin):,.0f}/s)"
        )
        begin = time.perf_counter()
        step = max(1, len(entries) // 20_000)
        for number, _, phy_offset in entries[::step]:
            hits = store.query(TOPIC, f"order-{number}")
            if [m.phy_offset for m in hits] != [phy_offset]:
                sys.exit(f"query order-{number}: the message is missing")
        queried = len(entries[::step])
        console.print(
            f"[green]{queried:,} of them found by key[/green] "
            f"({queried / (time.perf_counter() - begin):,.0f}/s)"
        )
        result = store.put(TOPIC, b"the first put after recovery")
        console.print(f"the next put succeeds, at queue offset {result.queue_offset:,}")
    return written


# ---- a lake ----------------------------------------------------------------------------------

CONTENT = """
    SELECT brokerName AS store, topic, count(*) AS messages,
           round(sum(storeSize) / 1e6, 1) AS MB
    FROM messages GROUP BY ALL ORDER BY messages DESC LIMIT 5"""

#: Number the orders by their first key, since the writer was killed at no fixed one.
CUSTOMERS_BY_ORDERS = """
    SELECT customer, count(*) AS orders,
           round(100 * count(*) / {count}, 1) AS `% of all orders`,
           round(100 * avg(int(tags = 'cancelled')), 1) AS `% cancelled`
    FROM (SELECT split(keys, ' ')[1] AS customer, tags,
                 int(substr(split(keys, ' ')[0], 7)) AS number
          FROM messages WHERE brokerName = 'new')
    WHERE number < {count}
    GROUP BY customer ORDER BY orders DESC LIMIT 5"""


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let child processes that start meanwhile, such as the JVM, log to a file."""
    saved = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def start_spark(log: Path) -> SparkSession:
    """Start Spark on two cores; the JVM logs to the file `log`."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # A JVM that ends after a few seconds is faster without the optimizing compiler.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    try:
        with stderr_to(log):
            return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    except Exception:
        sys.stderr.write(log.read_text(errors="replace"))
        raise


def show_lake(folder: Path, stores: dict[str, Path], written: Counter[tuple[str, str]]) -> None:
    """Export the stores to Parquet, query them in SQL, and compare the answer with `written`."""
    console.rule("[bold]Both stores exported to Parquet by Spark, and queried in SQL")
    try:
        from pyrocketstore.spark.pipeline import export, read_lake
    except ImportError as error:
        console.print(f"[yellow]SKIPPED: {error}; pip install 'pyrocketstore\\[spark]'")
        return
    if shutil.which("java") is None:
        console.print("[yellow]SKIPPED: Spark requires Java; no `java` command was found")
        return
    spark = start_spark(folder / "spark.log")
    try:
        with Progress(console=console) as bar:
            task = bar.add_task("exporting", total=None)
            report = export(
                spark, stores, folder / "lake",
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
        console.print(
            f"[green]{report.rows:,} messages, {report.bytes / 1e6:,.0f} MB of records[/green] in "
            f"{report.files} files of {report.file_bytes / 1e6:,.0f} MB: {report.seconds:.1f} s, "
            f"{report.crc_failures} CRC failures, {len(report.skipped)} ranges skipped"
        )
        read_lake(spark, folder / "lake").createOrReplaceTempView("messages")
        ask(spark, "What does the lake contain?", CONTENT)
        count = written.total()
        question = f"Of the first {count:,} orders: who placed most, and who cancels most?"
        rows = ask(spark, question, CUSTOMERS_BY_ORDERS.format(count=count))
        for row in rows:
            if row[1] != written[row[0], "paid"] + written[row[0], "cancelled"]:
                sys.exit(f"SQL counts {row[1]} orders of {row[0]}; the writer put another number")
        console.print("[green]these counts equal the writer's")
    finally:
        spark.stop()


def ask(spark: SparkSession, question: str, text: str) -> list[Row]:
    """Print a question and the table that answers it; return the rows."""
    answer = spark.sql(text)
    rows = answer.collect()
    table = Table(*(name if kind == "string" else numeric(name) for name, kind in answer.dtypes))
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console.print(question, table)
    return rows


def main() -> None:
    """Run the demo, or the writer that it starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="orders (default 1000000)")
    parser.add_argument(
        "--write", nargs=3, metavar=("STORE", "JOURNAL", "COUNT"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write[0], arguments.write[1], int(arguments.write[2]))
        return
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pyrocketstore-demo-") as name:
        folder = Path(name)
        show_broker_store(folder)
        console.rule("[bold]A new store, killed in the middle")
        store, journal = folder / "store", folder / "journal"
        acknowledged, seconds = write_and_kill(store, journal, arguments.count)
        console.print(
            f"killed with SIGKILL after {acknowledged:,} acknowledged messages: "
            f"{acknowledged / seconds:,.0f} puts/s, including the time to make the bodies"
        )
        written = prove(store, journal, arguments.count // 2)
        show_lake(folder, {"broker": folder / "broker-clean", "new": store}, written)
    console.print(f"done in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
