"""The command group with all its commands."""

from __future__ import annotations

import sys
from typing import NoReturn

from pyrocketstore.cli import (  # noqa: F401  they register themselves
    commands,
    consumer_commands,
    follow_command,
    replication_command,
    spark_commands,
)
from pyrocketstore.cli.store_command import app

__all__ = ["app", "run"]


def run() -> NoReturn:
    """Run the command line of this process; ends in SystemExit."""
    if sys.stdout is None:  # closed by the parent process
        sys.exit("Error: standard output is closed")
    app.main(prog_name="pyrocketstore")
