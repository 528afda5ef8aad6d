"""Stores that copy the log of a master, and the logs that they copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore import Store
from pyrocketstore.ha.ha_client import HAClient
from support.ha_master import ScriptedMaster
from support.sizes import SIZES

FILE = SIZES["mapped_file_size_commit_log"]
LONGEST_S = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def log_of(root: Path, end: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))[:end]


def make_log(root: Path, count: int, size: int = 300, **sizes: Any) -> bytes:
    """Write messages to a store; return the bytes of its log."""
    with pyrocketstore.open(root, **(sizes or SIZES)) as store:
        for number in range(count):
            store.put("t", b"%d " % number + b"x" * size, keys=f"k{number}", queue_id=number % 3)
        end = store.message_store.get_max_phy_offset()
    return log_of(root, end)


def client_of(store: Store) -> HAClient:
    client = store.message_store.services.ha_client
    assert client is not None
    return client


def copied_to(store: Store, end: int) -> None:
    """Wait until everything up to `end` is compared with the master's bytes, or copied."""
    client = client_of(store)
    wait_until(lambda: client.state.end >= end or client.failure_of_copy is not None)
    assert client.failure_of_copy is None, client.state
    assert store.message_store.get_max_phy_offset() == end


def follow(root: Path, master: ScriptedMaster, **more: Any) -> Store:
    """Open a store that follows a master from physical offset 0 on."""
    return pyrocketstore.open(root, follow=master.address, **{"follow_from": 0, **SIZES, **more})


def arrived_to(store: Store, end: int) -> None:
    """Wait until everything before `end` has arrived, partial records excepted."""
    client = client_of(store)
    wait_until(lambda: client.state.end >= end or client.failure_of_copy is not None)
    assert client.failure_of_copy is None, client.state
