"""Opens the stores that odd_files.py names on its standard input, one line of JSON each.

For each store it prints a line: {step: error}, with "" for a successful step. `kind` classifies an
error: "store" for a StoreError or an error line of a command, "other" for anything else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner

import pyrocketstore
from pyrocketstore.cli.app import app
from pyrocketstore.spark.options import StorePlace
from pyrocketstore.spark.plan.snapshot import StoreSnapshot, log_files_on_disk, store_settings
from pyrocketstore.system.env import Env

BODY = b"put beside an odd file"


def read_all(store: pyrocketstore.Store, on_corrupt: str = "raise") -> None:
    for topic in store.topics():
        for queue_id in store.queues(topic):
            for message in store.read(topic, queue_id, on_corrupt=on_corrupt):
                assert message.body
    store.query("orders", "k1")


def read_only(root: str, conf: str) -> None:
    with pyrocketstore.open(root, config=conf, read_only=True) as store:
        read_all(store)


def verify(root: str, conf: str) -> None:
    with pyrocketstore.open(root, config=conf, read_only=True) as store:
        store.verify()


def write(root: str, conf: str) -> None:
    with pyrocketstore.open(root, config=conf) as store:
        store.put("orders", BODY, keys="odd")
        store.put("new", BODY, keys="odd")
        store.put_many("orders", [bytes(1000)] * 40)  # continues in the next file
        store.wait_dispatched()
        read_all(store, "skip")  # an error means that the opening was refused


def snapshot(root: str, conf: str) -> None:
    place = StorePlace("b", root)
    with StoreSnapshot(place, conf, "fail"):
        env = Env()
        log_files_on_disk(env, store_settings(env, place, conf))


class Lines(logging.Handler):
    """Collects the log lines of an opening, which a command prints."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


LOGGED = Lines()


def command(name: str) -> Callable[[str, str], None]:
    def run(root: str, conf: str) -> None:
        LOGGED.lines.clear()
        result = CliRunner().invoke(app, [name, root, "--config", conf])
        if isinstance(result.exception, SystemExit):
            # `verify` exits with 1 if it finds damage, and prints the damage.
            if name != "verify":
                raise pyrocketstore.StoreError("\n".join([result.output, *LOGGED.lines]))
        elif result.exception is not None:
            raise result.exception

    return run


STEPS: dict[str, Callable[[str, str], None]] = {
    "read_only": read_only,
    "verify": verify,
    "info": command("info"),
    "dump": command("dump"),
    "snapshot": snapshot,
    "write": write,
}


def attempt(step: Callable[[str, str], None], root: str, conf: str) -> dict[str, str]:
    try:
        step(root, conf)
    except pyrocketstore.StoreError as error:
        return {"kind": "store", "text": str(error)}
    except BaseException as error:  # noqa: BLE001  what it is, is what is judged
        return {"kind": "other", "text": repr(error)}
    return {"kind": "", "text": ""}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger().addHandler(LOGGED)  # and prints nothing to standard error
    for line in sys.stdin:
        case = json.loads(line)
        before = len(os.listdir("/proc/self/fd"))
        found: dict[str, Any] = {}
        for name in case["steps"]:
            found[name] = attempt(STEPS[name], case["root"], case["conf"])
        left = len(os.listdir("/proc/self/fd")) - before
        found["descriptors"] = {"kind": "other" if left > 0 else "", "text": f"{left} left open"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
