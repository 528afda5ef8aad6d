"""The command follow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pyrocketstore.cli.commands import end_with
from pyrocketstore.cli.inspect import has_lost_end
from pyrocketstore.cli.store_command import (
    INTERRUPTED,
    Target,
    WholeNumber,
    app,
    body_option,
    json_option,
    on_corrupt_option,
    queue_option,
    store_command,
    tags_option,
    where_option,
)
from pyrocketstore.errors import DamagedMessageError, MessagesRemovedError

if TYPE_CHECKING:
    from pyrocketstore.filter.sql92 import Sql92Filter


@app.command()
@store_command
@json_option
@click.argument("topic")
@queue_option
@click.option("--start", type=WholeNumber(0), help="First queue offset; requires --queue.")
@click.option("--from-end", is_flag=True, help="Omit the messages that are there already.")
@tags_option
@where_option
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    help="End after so many seconds without a message; default: never.",
)
@click.option(
    "--on-loss",
    type=click.Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="Messages that expired before they were read: end with an error, or continue.",
)
@on_corrupt_option
@body_option
def follow(
    target: Target,
    topic: str,
    queue_id: int | None,
    start: int | None,
    from_end: bool,
    tags: str,
    where: Sql92Filter | None,
    timeout: float | None,
    on_loss: str,
    on_corrupt: str,
    with_body: bool,
) -> None:
    """Print the messages of TOPIC, and wait for more until Ctrl-C.

    Another process, such as a broker, may write them meanwhile. TOPIC need not exist yet. The
    output is that of `cat`; messages that arrive together are in the order of their store times.

    The exit code is 130 after Ctrl-C, and 1 if a message cannot be read, if a body is damaged, if
    the log has lost its end with messages of these queues, or if messages expired before they were
    read.
    """
    if start is not None and (queue_id is None or from_end):
        raise click.UsageError("--start requires --queue, and excludes --from-end")
    with target.open() as store:
        messages = store.follow(
            topic,
            queue_id,
            start=start if start is not None else "latest" if from_end else "earliest",
            tags=tags,
            where=where,
            timeout=timeout,
            on_loss=on_loss,
            on_corrupt=on_corrupt,
        )
        messages.on_wait = sys.stdout.flush
        try:
            target.output.messages(messages, with_bodies=with_body)
        except MessagesRemovedError as error:
            raise click.ClickException(f"{error}; --on-loss skip does so here") from error
        except DamagedMessageError as error:
            raise click.ClickException(f"{error}; --on-corrupt skip omits it") from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)  # the usual end
        end_with(target.output, messages.skipped)
        if has_lost_end(store, topic, queue_id):
            sys.exit(1)  # the opening has reported it
