"""How results are printed: rich on a terminal, tab-separated in a pipe, JSON lines on demand."""

from __future__ import annotations

import base64
import codecs
import datetime
import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pyrocketstore.display import REPORTED_ELSEWHERE, is_text, json_text, logger, printable
from pyrocketstore.errors import StoreCorruptionError

#: Characters of a body that a line shows.
PREVIEW_COUNT = 60

#: Fields of a message in the order in which `--json` prints them, the body apart.
MESSAGE_FIELDS = tuple(
    """
    topic queue_id queue_offset phy_offset size msg_id tags keys flag sys_flag body_crc
    born_timestamp store_timestamp born_host store_host reconsume_times
    prepared_transaction_offset properties
    """.split()
)

_LINE_COLUMNS = (
    "store time",
    "queue",
    "offset",
    "phy offset",
    "size",
    "tags",
    "keys",
    "damage",
    "body",
)
WRONG_CRC = "wrong CRC"


def time_text(time_ms: int) -> str:
    """Unix ms as ISO 8601 in UTC, as a number where no calendar has it."""
    if time_ms <= 0:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def body_text(body: bytes, count: int | None, *, is_requested: bool) -> str:
    """A body, printable and on one line; its first `count` characters, None for all.

    A body that is not text is shown as its size; `is_requested`: each body is printed as a whole.
    """
    if not is_requested and not is_text(body):
        return f"<{len(body)} byte{'' if len(body) == 1 else 's'}>"
    if is_requested or count is None:
        return printable(body.decode("utf-8", "backslashreplace"))
    text = printable(body[: 4 * count].decode("utf-8", "backslashreplace"))
    return text if len(text) <= count and len(body) <= 4 * count else text[: count - 1] + "…"


def body_of(message: Any) -> tuple[bytes | None, str | None]:
    """The body, None where it does not inflate; and what is wrong with it, None for nothing."""
    damage = None if message.is_crc_valid else WRONG_CRC
    try:
        return message.body, damage
    except StoreCorruptionError as error:
        return None, damage or error.reason


def message_object(message: Any) -> dict[str, Any]:
    """A message for `--json`.

    `body_base64` is always the body; `body` is its text, null where it is not UTF-8. `damage`
    is null, or what is wrong with the body; both are null for one that does not inflate.
    """
    row: dict[str, Any] = {name: getattr(message, name) for name in MESSAGE_FIELDS}
    row["properties"] = dict(row["properties"] or {})
    if isinstance(row["keys"], tuple):
        row["keys"] = list(row["keys"])
    body, row["damage"] = body_of(message)
    row["body"] = row["body_base64"] = None
    if body is not None:
        row["body_base64"] = base64.b64encode(body).decode("ascii")
        with suppress(UnicodeDecodeError):
            row["body"] = body.decode("utf-8")
    return row


def _keys_text(keys: Any) -> str:
    if not keys:
        return ""
    return keys if isinstance(keys, str) else " ".join(keys)


def message_cells(message: Any, count: int | None, *, is_requested: bool) -> list[str]:
    """A message as the cells of one line; `count` and `is_requested` as for `body_text`."""
    body, damage = body_of(message)
    return [
        time_text(message.store_timestamp),
        str(message.queue_id),
        str(message.queue_offset),
        str(message.phy_offset),
        str(message.size),
        printable(message.tags or ""),
        printable(_keys_text(message.keys)),
        printable(damage or ""),
        "" if body is None else body_text(body, count, is_requested=is_requested),
    ]


class Output:
    """Where a command prints.

    Names, properties and bodies are printed with `printable` and `json_text`, and a character that
    standard output's encoding lacks as an escape.

    Parameters
    ----------
    as_json : JSON lines, whatever standard output is
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        # The escapes of the stream's encoder are not JSON.
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        self._json_in_ascii = codecs.lookup(encoding).name != "utf-8"
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.errors = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.is_rich = self.console.is_terminal and not as_json
        #: messages that were printed and whose body is damaged
        self.damaged_count = 0

    def json_line(self, row: Mapping[str, Any]) -> None:
        """One object on one line, in ASCII where standard output is not UTF-8."""
        sys.stdout.write(json_text(row, ascii_only=self._json_in_ascii) + "\n")

    def lines(self, lines: Iterable[str]) -> int:
        """Print lines as they are; their count."""
        count = 0
        for line in lines:
            sys.stdout.write(line + "\n")
            count += 1
        return count

    def warn(self, text: str) -> None:
        """One line on standard error."""
        self.errors.print(Text(f"warning: {printable(text)}", style="yellow"))

    @contextmanager
    def log_lines(self) -> Iterator[None]:
        """Print the warnings and errors that the package logs, each once, with no line for damage
        that is reported elsewhere."""
        handler = _LogLines(self)
        log = logger("pyrocketstore")
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)

    def table(
        self, kind: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = ""
    ) -> None:
        """Rows under names: a table, tab-separated lines, or `{kind: {...}}` a line."""
        if self.as_json:
            for row in rows:
                names = (column.replace(" ", "_") for column in columns)
                self.json_line({kind: dict(zip(names, row, strict=True))})
            return
        if not self.is_rich:
            self.lines(["\t".join(map(printable, columns))])
            self.lines(
                "\t".join(_cell(name, v) for name, v in zip(columns, row, strict=True))
                for row in rows
            )
            return
        table = Table(title=title or None, title_justify="left")
        for column in columns:
            # Folded: never cut what someone may copy.
            table.add_column(Text(printable(column)), overflow="fold")
        for row in rows:
            cells = [_cell(name, value) for name, value in zip(columns, row, strict=True)]
            for at, name in enumerate(columns):
                if _is_time(name):
                    cells[at] = cells[at].replace("T", " ")  # the line may break here
            table.add_row(*map(Text, cells))
        self.console.print(table)

    def facts(self, kind: str, facts: Mapping[str, Any], *, as_named: bool = False) -> None:
        """Names and values, one a line, also each item of a list; `as_named`: the names are data,
        and printed as they are."""
        if self.as_json:
            self.json_line({kind: dict(facts)})
            return
        for name, value in facts.items():
            label = printable(name if as_named else name.replace("_", " "))
            for item in value if isinstance(value, list) else [value]:
                text = printable(item) if as_named else _cell(name, item)
                if self.is_rich:
                    self.console.print(Text.assemble((f"{label:<20} ", "bold"), text))
                else:
                    self.lines([f"{label}\t{text}"])

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar on a terminal; yields its callable(done, total)."""
        if not self.is_rich:
            yield lambda done, total: None
            return
        with Progress(console=self.errors, transient=True) as bar:
            task = bar.add_task(text, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def messages(self, messages: Iterable[Any], *, with_bodies: bool) -> int:
        """Print messages, one a line; return their count.

        `with_bodies`: print whole bodies, also those that are no text; JSON always has them.
        """
        count = 0
        if not self.as_json and not self.is_rich:
            self.lines(["\t".join(_LINE_COLUMNS)])
        for message in messages:
            count += 1
            if self.as_json:
                row = message_object(message)
                self.damaged_count += row["damage"] is not None
                self.json_line(row)
                continue
            # A pipe receives whole bodies: its reader cannot request the rest.
            size = PREVIEW_COUNT if self.is_rich else None
            cells = message_cells(message, size, is_requested=with_bodies)
            self.damaged_count += bool(cells[_LINE_COLUMNS.index("damage")])
            if self.is_rich:
                self.console.print(_styled(cells))
            else:
                self.lines(["\t".join(cells)])
        return count

    def message(self, message: Any, *, with_body: bool) -> None:
        """One message with all its fields; `with_body` as for `messages`."""
        row = message_object(message)
        self.damaged_count += row["damage"] is not None
        if self.as_json:
            self.json_line(row)
            return
        row.pop("body")
        row.pop("body_base64")
        properties = row.pop("properties")
        row["keys"] = _keys_text(row["keys"])
        self.facts("message", row)
        for name in sorted(properties):
            self.facts("property", {f"property {name}": properties[name]}, as_named=True)
        body, _ = body_of(message)
        size = 10 * PREVIEW_COUNT if self.is_rich else None
        text = "-" if body is None else body_text(body, size, is_requested=with_body)
        self.facts("body", {"body": text}, as_named=True)


class _LogLines(logging.Handler):
    """Prints log lines as warnings, each text once: a check may open the store again."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, unless the damage is reported elsewhere."""
        text = record.getMessage()
        is_reported = any(getattr(record, name, False) for name in REPORTED_ELSEWHERE)
        if not is_reported and text not in self._printed:
            self._printed.add(text)
            self._output.warn(text)


def _is_time(name: str) -> bool:
    return name.endswith(("timestamp", "time"))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and _is_time(name):
        return time_text(value)
    return printable(str(value))


def _styled(cells: Sequence[str]) -> Text:
    time, queue_id, queue_offset, phy_offset, size, tags, keys, damage, body = cells
    return Text.assemble(
        (time, "dim"),
        (f"  {queue_id}/{queue_offset}", "bold"),
        (f"  @{phy_offset} {size} B", "dim"),
        (f"  {tags}", "cyan") if tags else "",
        (f"  {keys}", "green") if keys else "",
        (f"  [{damage}]", "bold red") if damage else "",
        f"  {body}",
    )
