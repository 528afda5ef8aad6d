"""The commands: dump, info, cat, query, get, verify."""

from __future__ import annotations

import sys
from itertools import islice

import click

from pyrocketstore.cli.app import Target, TimeMs, WholeNumber, app, number_of, store_command
from pyrocketstore.cli.inspect import (
    FILE_COLUMNS,
    PROBLEM_COLUMNS,
    QUEUE_COLUMNS,
    file_rows,
    has_lost_end,
    queue_rows,
    store_facts,
)
from pyrocketstore.cli.output import WRONG_CRC, Output
from pyrocketstore.dump import dump_lines
from pyrocketstore.errors import DamagedMessageError
from pyrocketstore.skipped import SkippedMessages

#: Ranges of skipped messages that are printed; the count is of all.
REPORTED_RANGES = 100


@app.command()
@store_command
@click.option(
    "--queries",
    "queries_path",
    type=click.Path(exists=True, dir_okay=False),
    help="Key queries, one a line: topic, key, max_num, begin ms, end ms, tab-separated.",
)
def dump(target: Target, queries_path: str | None) -> None:
    """Print everything a store answers, as 4.9.3 does, in JSON lines.

    The same store gives the same lines: made for comparing two stores, or two versions.
    """
    target.output.lines(dump_lines(target.path, target.config(), queries_path))


@app.command()
@store_command
@click.option("--files", is_flag=True, help="List the files too.")
def info(target: Target, files: bool) -> None:
    """Topics, queues, offsets, sizes, and whether the store was stopped cleanly.

    The exit code is 1 if the log has lost its end: queues name messages behind it.
    """
    output = target.output
    with target.open() as store:
        config = store.message_store.config
        log_paths = config.all_commit_log_paths
        output.facts("store", store_facts(target.path, log_paths, store))
        output.table("queue", QUEUE_COLUMNS, queue_rows(store))
        lost = has_lost_end(store)
    if files:
        output.table("file", FILE_COLUMNS, file_rows(target.path, log_paths))
    if lost:  # the opening has said what
        sys.exit(1)


@app.command()
@store_command
@click.argument("topic")
@click.option("--queue", "queue_id", type=WholeNumber(), help="One queue; all of them if left out.")
@click.option("--start", type=WholeNumber(), help="Queue offset to start at (needs --queue).")
@click.option("--count", type=WholeNumber(0), help="At most so many messages.")
@click.option("--tags", default="*", show_default=True, help='For example "TagA || TagB".')
@click.option(
    "--on-corrupt",
    type=click.Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="At a message that cannot be read: end with an error, or pass over it and report it.",
)
def cat(
    target: Target,
    topic: str,
    queue_id: int | None,
    start: int | None,
    count: int | None,
    tags: str,
    on_corrupt: str,
) -> None:
    """Print the messages of TOPIC; without --queue in the order of their store time.

    The exit code is 1 if a message cannot be read, a body is damaged, or the log has lost its end
    and messages of these queues with it. With --json each message has its body as `body_base64`,
    and as `body` if it is UTF-8, else null.
    """
    if start is not None and queue_id is None:
        raise click.UsageError("--start needs --queue: an offset belongs to one queue")
    with target.open() as store:
        messages = store.read(topic, queue_id, start=start, tags=tags, on_corrupt=on_corrupt)
        try:
            found = target.output.messages(islice(messages, count))
        except DamagedMessageError as error:
            raise click.ClickException(f"{error}; --on-corrupt skip passes over it") from error
        _end_with(target.output, messages.skipped)
        if (count is None or found < count) and has_lost_end(store, topic, queue_id):
            sys.exit(1)  # the opening has said what


def _end_with(output: Output, skipped: SkippedMessages | None = None) -> None:
    """Report damage on standard error; exit code 1 if there is any."""
    found = output.damaged_count
    if found:
        output.warn(f"{found} of the messages have a damaged body")
    if skipped:
        for part in skipped.ranges[:REPORTED_RANGES]:
            where = f"{part.topic}/{part.queue_id}, queue offsets {part.start} to {part.stop - 1}"
            at = f" at byte {part.position}" if part.position >= 0 else ""
            output.warn(f"skipped: {where}: {part.path}{at}: {part.reason}")
        output.warn(f"{skipped.count} messages cannot be read, in {len(skipped.ranges)} ranges")
    if found or skipped:
        sys.exit(1)


@app.command()
@store_command
@click.argument("topic")
@click.argument("key")
@click.option("--begin", type=TimeMs(), default=0, help="Earliest store time.")
@click.option("--end", type=TimeMs(), help="Latest store time.")
@click.option("--max", "max_num", type=WholeNumber(1), default=32, show_default=True)
def query(target: Target, topic: str, key: str, begin: int, end: int | None, max_num: int) -> None:
    """Print the newest messages of TOPIC that have KEY.

    The exit code is 1 if there is none, one cannot be read, or a body is damaged.
    """
    with target.open() as store:
        messages = store.query(topic, key, begin=begin, end=end, max_num=max_num)
        found = target.output.messages(messages)
        _end_with(target.output)
        if found == 0 or target.has_unreadable_hits:
            sys.exit(1)


@app.command()
@store_command
@click.argument("which", metavar="PHY_OFFSET|MSG_ID")
@click.option("--raw", is_flag=True, help="Print the body alone, byte by byte.")
def get(target: Target, which: str, raw: bool) -> None:
    """Print one message with all its fields; exit code 1 if its body is damaged."""
    with target.open() as store:
        message = store.get(_phy_offset_or_msg_id(which))
        if message is None:
            raise click.ClickException(f"there is no message at {which}")
        if raw:
            sys.stdout.buffer.write(message.body)
            if not message.is_crc_valid:
                target.output.warn(f"{WRONG_CRC}: the body is damaged")
                sys.exit(1)
        else:
            target.output.message(message)
            _end_with(target.output)


def _phy_offset_or_msg_id(text: str) -> int | str:
    """A message id is 16 bytes (IPv4) or 28 bytes (IPv6) in hexadecimal."""
    if len(text) in {32, 56}:
        return text
    number = number_of(text)
    if number is None:
        raise click.UsageError(f"{text!r} is neither an offset nor a message id")
    return number


@app.command()
@store_command
def verify(target: Target) -> None:
    """Check log, queues and index against each other; exit code 1 if there is damage."""
    output = target.output
    with target.open() as store, output.progress("checking the log") as advance:
        report = store.verify(advance)
    facts = report.to_dict()
    problems, rebuilt = facts.pop("problems"), facts.pop("rebuilt")
    recovery = facts.pop("recovery")
    output.facts("verify", facts)
    output.facts("recovery", recovery)
    for kind, found in (("problem", problems), ("rebuilt", rebuilt)):
        if found:
            output.table(kind, PROBLEM_COLUMNS, [tuple(item.values()) for item in found])
    for text in report.advice:
        output.warn(text)
    if not report.ok:
        sys.exit(1)
