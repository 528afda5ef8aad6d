"""Scripts over a small store, each in a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyrocketstore

TIMEOUT_S = 60
PYTHONPATH = os.pathsep.join(
    [str(Path(pyrocketstore.__file__).parent.parent), str(Path(__file__).parent.parent)]
)
#: Small files, so that making them costs nothing.
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
PRELUDE = f"""\
import gc, os, signal, sys, threading, time, warnings
import pyrocketstore
from pyrocketstore.errors import *
# Who started us in the background had us ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
path = sys.argv[1]
SETTINGS = {SETTINGS!r}
def open_store(target=path, **more):
    return pyrocketstore.open(target, **{{**SETTINGS, **more}})
"""

#: Every public method of Store, with arguments that an open store would take.
CALLS = """
import asyncio
def calls(store):
    return {
        "put": lambda: store.put("T", b"x"),
        "put many": lambda: store.put_many("T", [b"x"]),
        "put_batch": lambda: store.put_batch("T", [b"x"]),
        "aput": lambda: asyncio.run(store.aput("T", b"x")),
        "aput_many": lambda: asyncio.run(store.aput_many("T", [b"x"])),
        "aflush": lambda: asyncio.run(store.aflush()),
        "stats": store.stats,
        "wait_dispatched": lambda: store.wait_dispatched(1),
        "flush": store.flush,
        "refresh": store.refresh,
        "topics": store.topics,
        "queues": lambda: store.queues("T"),
        "min_offset": lambda: store.min_offset("T", 0),
        "max_offset": lambda: store.max_offset("T", 0),
        "offset_at": lambda: store.offset_at("T", 0, 0),
        "read": lambda: list(store.read("T")),
        "read all": lambda: list(store.read("T", None)),
        "follow": lambda: store.follow("T"),
        "consumer": lambda: store.consumer("g", "T"),
        "consumer_positions": store.consumer_positions,
        "delayed": store.delayed,
        "read_batch": lambda: store.read_batch("T", 0, start=0),
        "query": lambda: store.query("T", "k1"),
        "query_many": lambda: store.query_many("T", ["k1"]),
        "get": lambda: store.get(0),
        "get_many": lambda: store.get_many([0]),
        "get id": lambda: store.get("7F00000100002A9F0000000000000000"),
        "verify": store.verify,
        "trim": lambda: store.trim(before=0),
        "prepare": lambda: store.prepare("T", b"x", group="g"),
        "transaction": lambda: store.transaction("id"),
        "transactions": store.transactions,
        "trim topic": lambda: store.trim("T", before=0),
        "drop_topic": lambda: store.drop_topic("T"),
        "consumer": lambda: store.consumer("g", "t"),
        "consumer_positions": store.consumer_positions,
        "delayed": store.delayed,
    }
def all_refuse(store):
    for name, call in calls(store).items():
        try:
            call()
        except StoreStateError:
            continue
        raise AssertionError(f"{name} went through")
    names = {n for n in dir(store) if not n.startswith("_") and callable(getattr(store, n))}
    tried = {name.split(" ")[0] for name in calls(store)} | {"put_many"}
    assert names - tried == {"close"}, names - tried
"""


def start(script: str, *args: object, flags: tuple[str, ...] = (), **options) -> subprocess.Popen:
    """Start a script; it has `path`, `open_store` and `calls`."""
    text = PRELUDE + CALLS + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, *flags, "-c", text, *map(str, args)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(
    script: str, *args: object, flags: tuple[str, ...] = (), code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, within a minute."""
    child = start(script, *args, flags=flags)
    try:
        out, err = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        raise AssertionError(f"still running\n{out}\n{err}") from None
    assert child.returncode == code, f"exit code {child.returncode}\n{out}\n{err}"
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def open_store(root: Path, **options) -> pyrocketstore.Store:
    """Open a store of small files."""
    return pyrocketstore.open(root, **{**SETTINGS, **options})


def filled(root: Path, count: int = 20) -> Path:
    """Make a store of `count` messages and close it."""
    with open_store(root) as store:
        for i in range(count):
            store.put("T", b"%d" % i, keys=f"k{i}")
    return root


def contents(root: Path) -> list[tuple[str, str]]:
    """The store's files by name and digest; without what its owner rewrites at any time, and
    without `lock`: who opens and closes that file loses the lock, as POSIX has it."""
    return [
        (str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("checkpoint", "lock")
    ]
