"""What `make demo` shows: a broker's store is read; a new one is written, killed and recovered.

Part one unpacks the store that a RocketMQ 4.9.3 broker wrote (tests/golden) and reads it. Part two
lets a child process put a million messages into a new store, kills it in the middle with SIGKILL,
opens the store again, and proves from a side journal that every acknowledged message is there. Part
three brings both stores into a Parquet lake with Spark, where there is a java, and asks in SQL.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

import pyrocketstore

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
TOPIC = "orders"
QUEUES = 4
#: number of the message, queue offset, physical offset
ENTRY = struct.Struct("<qqq")

console = Console(highlight=False)


def body_of(number: int) -> bytes:
    """About 200 bytes that anyone can compute again."""
    digest = hashlib.blake2b(b"%d" % number, digest_size=50).hexdigest()
    return f"order {number} of customer {number % 997}: {digest}{digest[:60]}".encode()


# ---- a broker's store -----------------------------------------------------------------------


def show_broker_store(folder: Path) -> None:
    """Topics, queues, some messages and some keys of the store that a broker wrote."""
    console.rule("[bold]A store that a RocketMQ 4.9.3 broker wrote")
    with tarfile.open(GOLDEN / "broker-clean.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    config = GOLDEN / "broker-clean.conf"
    with pyrocketstore.open(folder / "broker-clean", config=config, read_only=True) as store:
        table = Table("topic", "queues", "messages", title_justify="left")
        for topic in store.topics():
            counts = [store.max_offset(topic, q) - store.min_offset(topic, q)
                      for q in store.queues(topic)]  # fmt: skip
            table.add_row(topic, str(len(counts)), str(sum(counts)))
        console.print(table)
        show_messages(store)
        report = store.verify()
        console.print(
            f"verify: {report.records:,} records, {report.units:,} queue units, "
            f"{report.index_entries:,} index entries: "
            + (
                "[green]consistent"
                if report.consistent
                else f"[red]{report.problem_count} problems"
            )
            + f", {report.not_indexed} records not in the index"
        )


def show_messages(store: pyrocketstore.Store) -> None:
    """The first messages of a topic, then some found by key."""
    for message in list(store.read(TOPIC, None))[:5]:
        console.print(
            f"  {TOPIC}/{message.queue_id}/{message.queue_offset}  tags={message.tags}  "
            f"keys={message.keys}  {len(message.body):,} bytes"
        )
    for key in ("tx-4", "order-1490", "cust-19"):
        hits = store.query(TOPIC, key)
        places = ", ".join(f"{m.queue_id}/{m.queue_offset}" for m in hits) or "nowhere"
        console.print(f"  key {key}: {len(hits)} found, at queue/offset {places}")


# ---- a new store, killed in the middle -------------------------------------------------------


def write(path: str, journal_path: str, count: int) -> None:
    """The child: puts `count` messages, and notes each in the journal once it is acknowledged."""
    with pyrocketstore.open(path) as store, open(journal_path, "ab", buffering=0) as journal:
        pending = []
        for number in range(count):
            result = store.put(
                TOPIC,
                body_of(number),
                queue_id=number % QUEUES,
                tags=f"Tag{number % 3}",
                keys=f"order-{number} customer-{number % 997}",
            )
            pending.append(ENTRY.pack(number, result.queue_offset, result.phy_offset))
            if len(pending) == 100:
                journal.write(b"".join(pending))
                pending.clear()
        journal.write(b"".join(pending))


def write_and_kill(store: Path, journal: Path, count: int) -> tuple[int, float]:
    """Start the writer, watch its journal, kill it about half way; (acknowledged, seconds)."""
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
        sys.exit(f"the writer ended by itself with {child.returncode}")
    return acknowledged, seconds


def prove(store_path: Path, journal: Path) -> None:
    """Open the killed store; every message of the journal must be there, whole and found by key."""
    entries = list(ENTRY.iter_unpack(journal.read_bytes()[: journal.stat().st_size // 24 * 24]))
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing may have to be set aside
        store = pyrocketstore.open(store_path)
    opened = time.perf_counter() - begin
    with store:
        plan = store.message_store.plan
        assert plan is not None
        console.print(
            f"recovered in {opened:.2f} s: {plan.records:,} records checked, "
            f"the log ends at byte {plan.log_end:,} ({plan.ended_by})"
        )
        begin = time.perf_counter()
        found = [list(store.read(TOPIC, queue_id)) for queue_id in range(QUEUES)]
        total = sum(map(len, found))
        for number, queue_offset, phy_offset in entries:
            message = found[number % QUEUES][queue_offset]
            if message.phy_offset != phy_offset or message.body != body_of(number):
                sys.exit(f"message {number} is not as it was put")
        console.print(
            f"[green]all {len(entries):,} acknowledged messages are there, whole and in order"
            f"[/green] ({total:,} in the log; {total / (time.perf_counter() - begin):,.0f}/s)"
        )
        begin = time.perf_counter()
        step = max(1, len(entries) // 20_000)
        for number, _, phy_offset in entries[::step]:
            hits = store.query(TOPIC, f"order-{number}")
            if [m.phy_offset for m in hits] != [phy_offset]:
                sys.exit(f"message {number} is not found by its key")
        looked = len(entries[::step])
        console.print(
            f"[green]{looked:,} of them looked up by key and found[/green] "
            f"({looked / (time.perf_counter() - begin):,.0f}/s)"
        )
        console.print(f"the next put gets offset {store.put(TOPIC, b'next').queue_offset:,}")


# ---- a lake ----------------------------------------------------------------------------------

QUESTIONS = {
    "What is in the lake?": """
        SELECT brokerName, topic, count(*) AS messages, round(sum(storeSize) / 1e6, 1) AS MB
        FROM messages GROUP BY ALL ORDER BY messages DESC LIMIT 5""",
    "Which customers order most?": """
        SELECT key, count(*) AS orders
        FROM messages LATERAL VIEW explode(split(keys, ' ')) AS key
        WHERE topic = 'orders' AND key LIKE 'cust%'
        GROUP BY key ORDER BY orders DESC, key LIMIT 3""",
    "How long from the producer to the log (ms)?": """
        SELECT brokerName, percentile_approx(ms, 0.5) AS p50, percentile_approx(ms, 0.99) AS p99,
               max(ms) AS max
        FROM (SELECT brokerName, topic,
                     unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS ms FROM messages)
        WHERE topic = 'orders' GROUP BY brokerName ORDER BY brokerName""",
}


def show_lake(stores: dict[str, Path], lake: Path) -> None:
    """Export the stores to Parquet on two cores of this machine, and ask in SQL."""
    console.rule("[bold]Both stores in a Parquet lake, by Spark")
    try:
        from pyspark.sql import SparkSession

        from pyrocketstore.spark.pipeline import export, read_lake
    except ImportError as error:
        console.print(f"[yellow]SKIPPED: {error}; pip install 'pyrocketstore\\[spark]'")
        return
    if shutil.which("java") is None:
        console.print("[yellow]SKIPPED: Spark needs a java, and there is none")
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        with Progress(console=console) as bar:
            task = bar.add_task("writing", total=None)
            report = export(
                spark, stores, lake,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
        console.print(
            f"[green]{report.rows:,} messages, {report.bytes / 1e6:,.0f} MB of records[/green] in "
            f"{report.files} files of {report.file_bytes / 1e6:,.0f} MB: {report.seconds:.1f} s, "
            f"{report.crc_failures} CRC failures, {len(report.skipped)} ranges skipped"
        )
        read_lake(spark, lake).createOrReplaceTempView("messages")
        for question, text in QUESTIONS.items():
            answer = spark.sql(text)
            table = Table(*answer.columns)
            for row in answer.collect():
                table.add_row(*map(str, row))
            console.print(question, table)
    finally:
        spark.stop()


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--write", nargs=3, metavar=("STORE", "JOURNAL", "COUNT"))
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write[0], arguments.write[1], int(arguments.write[2]))
        return
    with tempfile.TemporaryDirectory(prefix="pyrocketstore-demo-") as folder:
        show_broker_store(Path(folder))
        console.rule("[bold]A new store, killed in the middle")
        store, journal = Path(folder, "store"), Path(folder, "journal")
        acknowledged, seconds = write_and_kill(store, journal, arguments.count)
        console.print(
            f"killed with SIGKILL after {acknowledged:,} acknowledged messages: "
            f"{acknowledged / seconds:,.0f} puts/s with their bodies made, tags, keys and index"
        )
        prove(store, journal)
        stores = {"broker": Path(folder, "broker-clean"), "new": store}
        show_lake(stores, Path(folder, "lake"))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
