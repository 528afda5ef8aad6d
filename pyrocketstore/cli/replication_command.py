"""The command follow-broker."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import click

import pyrocketstore
from pyrocketstore.cli.output import Output
from pyrocketstore.cli.store_command import (
    INTERRUPTED,
    app,
    json_option,
    number_of,
    showing_warnings,
)
from pyrocketstore.config.message_store_config import absolute_path
from pyrocketstore.ha.ha_client import ReplicaState
from pyrocketstore.store.replication import address_of, range_of_master

if TYPE_CHECKING:
    from pyrocketstore.store.api import Store

#: The interval of looks at the copy (s).
LOOK_S = 0.2
COLUMNS = ("state", "master", "end", "error")


def _begin_of(context: click.Context, parameter: click.Parameter, text: str) -> Any:
    number = number_of(text)
    if text in ("first", "last"):
        return text
    if number is None or number < 0:
        raise click.BadParameter("first, last or a physical offset", context, parameter)
    return number


@app.command("follow-broker")
@click.argument("address", metavar="HOST:HAPORT")
@click.argument("store", type=click.Path(file_okay=False))
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False),
    help="The broker.conf of the broker: sizes of its files.",
)
@click.option(
    "--from",
    "begin",
    default="first",
    show_default=True,
    callback=_begin_of,
    help="Where a new copy begins: first or last file of the broker, or a physical offset.",
)
@click.option("--once", is_flag=True, help="End when the copy has what the broker has now.")
@json_option
def follow_broker(
    address: str,
    store: str,
    config_path: str | None,
    begin: Any,
    once: bool,
    as_json: bool,
) -> None:
    """Copy the log of a running broker of 4.9.3 into the directory STORE, until Ctrl-C.

    HAPORT is the broker's listenPort + 1. The broker is not changed, and what is copied
    is not acknowledged. A copy that was ended continues where it was. Other processes may read
    STORE meanwhile: all reading commands and Spark.

    The exit code is 130 after Ctrl-C, and 1 if the copy has ended by an error: the logs differ, the
    broker's log is shorter, its files have another size, or a file cannot be written.
    """
    output = Output(as_json=as_json)
    path = absolute_path(store, "STORE")
    with (
        showing_warnings(output, lambda message, *_, **__: output.warn(str(message))),
        pyrocketstore.open(path, config=config_path, follow=address, follow_from=begin) as opened,
    ):
        try:
            _watch(output, opened, address, once)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)  # the usual end


def _watch(output: Output, store: Store, address: str, once: bool) -> None:
    """Print the state of the copy when it changes, until it ends."""
    goal = None
    if once:
        goal = range_of_master(*address_of("HOST:HAPORT", address)).end
        if store.message_store.get_max_phy_offset() > goal:
            raise click.ClickException(
                f"the broker's log ends at {goal}, and the copy at"
                f" {store.message_store.get_max_phy_offset()}: it is another log, or was cut"
            )
    wait = threading.Event().wait
    shown: ReplicaState | None = None
    while True:
        state = store.replication
        assert state is not None
        if shown is None or (state.state, state.error) != (shown.state, shown.error):
            shown = state
            end = store.message_store.get_max_phy_offset()
            output.table("copy", COLUMNS, [(state.state, state.master, end, state.error)])
            sys.stdout.flush()
        if state.state == "failed":
            sys.exit(1)
        has_all = state.state == "following" and state.end >= (goal or 0)
        if goal is not None and has_all:
            return
        wait(LOOK_S)
