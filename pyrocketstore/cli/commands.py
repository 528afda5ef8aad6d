"""The commands: dump, info, cat, query, get, verify."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pyrocketstore.cli.inspect import (
    FILE_COLUMNS,
    PROBLEM_COLUMNS,
    QUEUE_COLUMNS,
    file_rows,
    has_lost_end,
    has_wrong_files,
    plan_texts,
    queue_rows,
    queue_spans,
    quiet_damage,
    store_facts,
)
from pyrocketstore.cli.output import WRONG_CRC, Output, time_text
from pyrocketstore.cli.store_command import (
    Target,
    TimeMs,
    WholeNumber,
    app,
    body_option,
    json_option,
    number_of,
    on_corrupt_option,
    queue_option,
    store_command,
    tags_option,
    where_option,
)
from pyrocketstore.cli.verdict import verdict_lines
from pyrocketstore.display import shown
from pyrocketstore.errors import DamagedMessageError, StoreFormatError, UnknownTopicError
from pyrocketstore.message_store.lost_ends import missing_files
from pyrocketstore.reading.skipped import SkippedMessages
from pyrocketstore.verify.dump import dump_lines

if TYPE_CHECKING:
    from pyrocketstore.filter.sql92 import Sql92Filter
    from pyrocketstore.store.api import Store

#: Characters of an offset message id, with an IPv4 and with an IPv6 host.
_MSG_ID_LENGTHS = (32, 56)
#: Ranges of skipped messages that are printed; the count is of all.
REPORTED_RANGES = 100
#: Queue ids that an error names.
REPORTED_QUEUES = 20


@app.command()
@store_command
@click.option(
    "--queries",
    "queries_path",
    type=click.Path(exists=True, dir_okay=False),
    help="Key queries, one per line, tab-separated: topic, key, max_num, begin ms, end ms.",
)
def dump(target: Target, queries_path: str | None) -> None:
    """Print the contents of a store, one JSON object per line.

    The contents are as 4.9.3 reports them. The output is reproducible, so that two stores, or two
    versions, can be compared.

    The exit code is 1 if messages are omitted because the log or a queue is damaged. Standard error
    names what is omitted.
    """
    output = target.output
    omitted: list[str] = []
    with output.log_lines():
        output.lines(dump_lines(target.path, target.config(), queries_path, omitted.append))
    for text in omitted[:REPORTED_RANGES]:
        output.warn(text)
    if len(omitted) > REPORTED_RANGES:
        output.warn(f"{len(omitted) - REPORTED_RANGES} more omissions")
    if omitted:
        sys.exit(1)


@app.command()
@store_command
@json_option
@click.option("--files", is_flag=True, help="Also list the files.")
def info(target: Target, files: bool) -> None:
    """Show queues, offsets, sizes, and how the store was stopped.

    A message is counted once for each queue that it can be read from, and keys of the log that no
    index file covers as "not indexed keys", as by `verify --details`.

    The exit code is 1 if it reports damage: files that are missing, have a wrong length or cannot
    be parsed, or a log that has lost its end, that is, queues refer to messages behind it.
    """
    output = target.output
    with target.open() as store:
        config = store.message_store.config
        log_paths = config.all_commit_log_paths
        spans = queue_spans(store)
        output.facts("store", store_facts(target.path, log_paths, store, spans))
        output.table("queue", QUEUE_COLUMNS, queue_rows(store, spans))
        gaps = missing_files(store.message_store.commit_log.mapped_file_queue.mapped_files)
        quiet = quiet_damage(store)
        for text in (*gaps, *quiet):
            output.warn(text)
        is_damaged = bool(gaps or quiet) or has_lost_end(store) or has_wrong_files(store)
    if files:
        output.table("file", FILE_COLUMNS, file_rows(target.path, log_paths))
    if is_damaged:  # the opening has reported the rest
        sys.exit(1)


@app.command()
@store_command
@json_option
@click.argument("topic")
@queue_option
@click.option("--start", type=WholeNumber(0), help="First queue offset; requires --queue.")
@click.option("--count", type=WholeNumber(0), help="Maximum number of messages.")
@tags_option
@where_option
@on_corrupt_option
@body_option
def cat(
    target: Target,
    topic: str,
    queue_id: int | None,
    start: int | None,
    count: int | None,
    tags: str,
    where: Sql92Filter | None,
    on_corrupt: str,
    with_body: bool,
) -> None:
    """Print the messages of TOPIC.

    With --queue they are in queue order, otherwise in the order of their store times.

    The exit code is 1 if a message cannot be read, if a body is damaged, if the log has lost its
    end with messages of these queues, or if there is no such topic or queue.

    With --json, `body_base64` is the body of a message. `body` is its text, or null if the body is
    not UTF-8.
    """
    if start is not None and queue_id is None:
        raise click.UsageError("--start requires --queue: an offset belongs to one queue")
    with target.open() as store:
        _check_queue(store, topic, queue_id)
        messages = store.read(
            topic, queue_id, start=start, tags=tags, where=where, on_corrupt=on_corrupt
        )
        try:
            found = target.output.messages(islice(messages, count), with_bodies=with_body)
        except DamagedMessageError as error:
            raise click.ClickException(f"{error}; --on-corrupt skip omits it") from error
        end_with(target.output, messages.skipped)
        if (count is None or found < count) and has_lost_end(store, topic, queue_id):
            sys.exit(1)  # the opening has reported it
        if found == 0:
            _warn_of_no_units(target.output, store, topic, queue_id)


def _check_queue(store: Store, topic: str, queue_id: int | None) -> None:
    """Raise UnknownTopicError, or ClickException for a queue id that the topic does not have."""
    queue_ids = store.queues(topic)
    if queue_id is None or queue_id in queue_ids:
        return
    store.read(topic)
    if not queue_ids:
        return  # somebody has put to the topic, and it has no message yet
    known = ", ".join(map(str, queue_ids[:REPORTED_QUEUES]))
    more = ", ..." if len(queue_ids) > REPORTED_QUEUES else ""
    raise click.ClickException(
        f"{store.path}: the topic {topic!r} has no queue {queue_id}; its queues: {known}{more}"
    )


def _warn_of_no_units(output: Output, store: Store, topic: str, queue_id: int | None) -> None:
    """Warn if the queues have no unit at all: whether the log has messages of them, only a walk
    over the whole log shows, which `verify` makes."""
    queue_ids = store.queues(topic) if queue_id is None else [queue_id]
    if not any(store.max_offset(topic, each) for each in queue_ids):
        which = f"the topic {topic!r}" if queue_id is None else f"the queue {topic}/{queue_id}"
        output.warn(
            f"{store.path}: {which} has no units below `consumequeue`: it has no message yet, or"
            " its files were lost; `verify` reports messages of the log without a unit"
        )


def end_with(output: Output, skipped: SkippedMessages | None = None) -> None:
    """Report damage on standard error; end with exit code 1 if there is any."""
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
@json_option
@click.argument("topic")
@click.argument("key")
@click.option("--begin", type=TimeMs(), default=0, help="Earliest store time: Unix ms or ISO 8601.")
@click.option("--end", type=TimeMs(), help="Latest store time: Unix ms or ISO 8601.")
@click.option(
    "--max",
    "max_num",
    type=WholeNumber(1),
    default=32,
    show_default=True,
    help="Maximum number of messages.",
)
@body_option
def query(
    target: Target,
    topic: str,
    key: str,
    begin: int,
    end: int | None,
    max_num: int,
    with_body: bool,
) -> None:
    """Print the newest messages of TOPIC that have KEY.

    The exit code is 1 if no message is found, if a message cannot be read, or if a body is damaged.
    """
    if end is not None and begin > end:
        times = f"--begin {time_text(begin)} is after --end {time_text(end) if end > 0 else end}"
        raise click.UsageError(f"{times}: no store time is in between")
    with target.open() as store:
        messages = store.query(topic, key, begin=begin, end=end, max_num=max_num)
        found = target.output.messages(messages, with_bodies=with_body)
        end_with(target.output)
        if found == 0 and not target.has_unreadable_hits:
            target.output.warn(_why_nothing(store, topic, key, begin, end))
        if found == 0 or target.has_unreadable_hits:
            sys.exit(1)


def _why_nothing(store: Any, topic: str, key: str, begin: int, end: int | None) -> str:
    """Say that no message was found: the topic is unknown, or where the key was looked for."""
    try:
        store.read(topic)
    except UnknownTopicError as error:
        return str(error)
    first = max(begin, store.stats().earliest_message_timestamp)
    last = "the end" if end is None else time_text(end)
    where = f"store times from {time_text(first)} to {last}"
    return f"no message of topic {shown(topic)} has the key {shown(key)}; searched: {where}"


@app.command()
@store_command
@json_option
@click.argument("which", metavar="PHY_OFFSET|MSG_ID|UNIQ_KEY")
@click.option("--raw", is_flag=True, help="Print only the bytes of the body.")
@body_option
def get(target: Target, which: str, raw: bool, with_body: bool) -> None:
    """Print one message with all its fields.

    A UNIQ_KEY, the message id that a producer has made, is looked up in all topics; of several
    messages, the newest is printed.

    The exit code is 1 if there is no such message or if its body is damaged.
    """
    with target.open() as store:
        message = _message_of(store, which)
        if raw:
            sys.stdout.buffer.write(message.body)
            if not message.is_crc_valid:
                target.output.warn(f"{WRONG_CRC}: the body is damaged")
                sys.exit(1)
        else:
            target.output.message(message, with_body=with_body)
            end_with(target.output)


def _message_of(store: Any, which: str) -> Any:
    """Return the message at a physical offset, with an offset message id, or with a UNIQ_KEY.

    An offset message id is 16 bytes (IPv4) or 28 bytes (IPv6) in hexadecimal; a UNIQ_KEY of Java's
    clients is 16 bytes too.
    """
    number = number_of(which)
    if number is not None and len(which) not in _MSG_ID_LENGTHS:
        message = store.get(number)
        if message is None:
            raise click.ClickException(f"there is no message at {which}")
        return message
    is_id = len(which) in _MSG_ID_LENGTHS
    refused: StoreFormatError | None = None
    try:
        message = store.get(which) if is_id else None
    except StoreFormatError as error:
        message, refused = None, error
    found = [message] if message is not None else _with_unique_key(store, which)
    if found:
        return found[-1]
    if refused is not None:
        raise refused
    if not is_id:
        reason = "neither an offset nor a message id, and no message has it as its UNIQ_KEY"
        raise click.UsageError(f"{which!r} is {reason}")
    raise click.ClickException(f"there is no message at {which}, and none has it as its UNIQ_KEY")


def _with_unique_key(store: Any, key: str) -> list[Any]:
    """Return the newest message of each topic that has this UNIQ_KEY, ascending."""
    found = [
        message
        for topic in store.topics()
        for message in store.query(topic, key, max_num=1)
        if message.uniq_key == key
    ]
    return sorted(found, key=lambda message: message.phy_offset)


def _with_dashes(facts: dict[str, Any]) -> dict[str, Any]:
    """Replace empty texts and lists by None, which is printed as "-"."""
    return {name: None if value in ("", []) else value for name, value in facts.items()}


@app.command()
@store_command
@json_option
@click.option("--details", is_flag=True, help="Also print all counts and the recovery.")
def verify(target: Target, details: bool) -> None:
    """Check log, queues and index against each other.

    Three lines have the verdict, what is lost or wrong, and what to do. Messages are those that
    `info` counts; records are all that the log has, also those of transactions without a message.

    The verdict is on the store as the recovery of the next opening leaves it. The exit code is 1 if
    anything is then missing or damaged.

    After a kill, recovery builds missing units of queues and entries of the index from the log. The
    exit code is then 0. "rebuilt units" counts units that are missing or wrong on disk. "rebuilt
    index entries" counts entries that recovery puts again, whether or not the file has them.
    RocketMQ 4.9.3 itself would not rebuild all of them.
    """
    output = target.output
    with target.open() as store, output.progress("checking the log") as advance:
        report = store.verify(advance)
        lines = verdict_lines(store, report)
    facts = report.to_dict()
    problems, rebuilt = facts.pop("problems"), facts.pop("rebuilt")
    recovery = facts.pop("recovery")
    if not output.as_json:
        scanned = "records that recovery scanned"
        recovery = {scanned if k == "records" else k: v for k, v in plan_texts(recovery).items()}
        facts, recovery = _with_dashes(facts), _with_dashes(recovery)
        for item in (*problems, *rebuilt):
            item["position"] = None if item["position"] < 0 else item["position"]
        output.facts("verdict", lines)
    if output.as_json or details:
        output.facts("verify", facts)
        output.facts("recovery", recovery)
    for kind, found in (("problem", problems), ("rebuilt", rebuilt)):
        if found:
            output.table(kind, PROBLEM_COLUMNS, [tuple(item.values()) for item in found])
    for text in report.advice:
        output.warn(text)
    if report.ok and report.only_read:
        output.warn(report.only_read)
    if not report.ok:
        sys.exit(1)
