"""The command group, the types of its parameters, and the store that a command opens."""

from __future__ import annotations

import datetime
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pyrocketstore
from pyrocketstore.arguments.scalars import Time, time_of
from pyrocketstore.cli.output import Output
from pyrocketstore.config.dledger import dledger_directories
from pyrocketstore.config.message_store_config import MessageStoreConfig, absolute_path
from pyrocketstore.display import printable
from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.store.unreadable_hits import UnreadableHitsWarning
from pyrocketstore.system.env import Env

#: Prints the help where no command is named; click has it since 8.2.
_HELP: tuple[type[BaseException], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)


#: The exit code of a command that SIGINT ended.
INTERRUPTED = 130


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape the text of click's errors, which repeat names and arguments; end with 130 on Ctrl-C.

    Click itself would end with 1, the code for damage and for messages that are not found.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Aborted!", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except click.ClickException as error:
        if isinstance(error, _HELP):  # its text is our own
            raise
        vars(error)["message"] = printable(error.message)  # typed as final
        raise


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Report a StoreError or OSError as one line, with exit code 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly: the reader of our output has closed it
    except (StoreError, OSError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise click.ClickException(text) from error


class StoreGroup(click.Group):
    """Reports an error of a store as one line, with exit code 1."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Parse the words before the command's name."""
        with _printable_errors(), _one_line_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a StoreError or OSError becomes a ClickException."""
        with _printable_errors(), _one_line_errors():
            return super().invoke(ctx)


if TYPE_CHECKING:
    from pyrocketstore.filter.sql92 import Sql92Filter

    IntType = click.ParamType[int]
else:  # generic since click 8.3 only
    IntType = click.ParamType


def number_of(text: str) -> int | None:
    """A number in ASCII digits, as many as 64 bits may have; None for anything else."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


class WholeNumber(IntType):
    """A number in ASCII digits, at least `low` and at most what 64 bits hold."""

    name = "integer"

    def __init__(self, low: int = -(1 << 63)) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a default is one already."""
        if isinstance(value, int):
            return value
        number = number_of(value)
        if number is None:
            self.fail(f"{value!r} is not a whole number of 64 bits", param, ctx)
        if not self.low <= number < 1 << 63:
            self.fail(f"{value} is not between {self.low} and {(1 << 63) - 1}", param, ctx)
        return number


class TimeMs(IntType):
    """A time as Unix ms or as ISO 8601; without an offset it is local time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds since 1970."""
        time: Time | None = value if isinstance(value, int) else number_of(value)
        if time is None:
            try:
                moment = datetime.datetime.fromisoformat(value)
                time = moment if moment.utcoffset() is not None else moment.astimezone()
            except (OSError, OverflowError, ValueError):
                self.fail(f"{value!r} is neither Unix ms nor ISO 8601", param, ctx)
        try:
            return time_of("the time", time)
        except StoreFormatError as error:
            self.fail(str(error), param, ctx)


@contextmanager
def showing_warnings(output: Output, show: Callable[..., None]) -> Iterator[None]:
    """Call `show` with each warning, and print the lines that the package logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        with output.log_lines():
            yield


class Target:
    """The store of a command, and its output."""

    def __init__(self, path: str, config_path: str | None, output: Output) -> None:
        self.path = path
        self.config_path = config_path
        self.output = output
        #: a query has found messages that cannot be read
        self.has_unreadable_hits = False

    def config(self) -> MessageStoreConfig | None:
        """The settings of `--config`, their warnings printed; None without the option.

        Raises
        ------
        click.ClickException
            There is no commit log: an empty answer would hide a mistyped path.
        """
        config: MessageStoreConfig | None = None
        if self.config_path is not None:
            config, found = MessageStoreConfig.from_broker_conf(self.config_path, root=self.path)
            for text in found:
                self.output.warn(text)
        paths: tuple[str, ...] = (f"{self.path}/commitlog",)
        if config is not None:
            config = config.absolute()
            paths = config.all_commit_log_paths
        in_dledger_mode = bool(dledger_directories(Env(), str(self.path)))
        for log_path in paths:
            if not in_dledger_mode and not Path(log_path).is_dir():
                raise click.ClickException(f"{self.path} contains no store: there is no {log_path}")
        return config

    @contextmanager
    def open(self) -> Iterator[Any]:
        """The store, read-only; warnings of its opening go to standard error."""
        config = self.config()
        with (
            showing_warnings(self.output, self._show_warning),
            pyrocketstore.open(self.path, config=config, read_only=True) as store,
        ):
            yield store

    def _show_warning(self, message: Warning | str, *_: object, **__: object) -> None:
        self.output.warn(str(message))
        self.has_unreadable_hits |= isinstance(message, UnreadableHitsWarning)


#: For a command whose output is not JSON anyway.
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)


def _filter_of(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Sql92Filter | None:
    """Return the filter of an option. Raises BadParameter: its text is wrong usage."""
    try:
        return None if text is None else pyrocketstore.Sql92Filter(text)
    except StoreFormatError as error:
        raise click.BadParameter(str(error), context, parameter) from None


#: For commands that print the messages of a topic.
queue_option = click.option(
    "--queue", "queue_id", type=WholeNumber(0), help="Queue id; default: all queues."
)
tags_option = click.option(
    "--tags", default="*", show_default=True, help='Tags, as "TagA || TagB".'
)
where_option = click.option(
    "--where", callback=_filter_of, help='SQL92 filter of properties, as "a > 5 AND b IS NOT NULL".'
)
#: For commands that print messages.
body_option = click.option(
    "--body",
    "with_body",
    is_flag=True,
    help="Print whole bodies, escaped; default: only the size of a body that is not text.",
)
on_corrupt_option = click.option(
    "--on-corrupt",
    type=click.Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="Messages that cannot be read: end with an error, or omit and report them.",
)


def store_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add STORE and `--config`; the function gets a Target first, which has the `json_option`."""

    @click.argument("store", type=click.Path(exists=True, file_okay=False))
    @click.option(
        "--config",
        "config_path",
        type=click.Path(exists=True, dir_okay=False),
        help="The broker.conf that the store was written with.",
    )
    @functools.wraps(function)
    def command(store: str, config_path: str | None, as_json: bool = False, **rest: Any) -> Any:
        target = Target(absolute_path(store, "STORE"), config_path, Output(as_json=as_json))
        try:
            return function(target, **rest)
        except StoreFormatError as error:
            if config_path is not None or "maxHashSlotNum" not in str(error):
                raise
            advice = "--config names the broker.conf that has these settings"
            raise click.ClickException(f"{error}; {advice}") from error

    return command


@click.group(cls=StoreGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pyrocketstore.__version__, prog_name="pyrocketstore")
def app() -> None:
    """Inspect a store directory of Apache RocketMQ 4.9.3 or of pyrocketstore.

    Every command but follow-broker opens the store read-only: it creates, locks and changes nothing
    there.
    """
