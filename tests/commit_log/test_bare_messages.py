"""Goal: under enableMultiDispatch each record has a property, however it was put, since 4.9.3 can
dispatch none without; elsewhere nothing is added. Method: every way to put, the records' own bytes,
and 4.9.3 over what a kill leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBatch, MessageExtBrokerInner
from pyrocketstore.config.message_store_config import java_name
from pyrocketstore.record._message import encode_messages
from pyrocketstore.record.message import Message
from support.java_store import require_java
from support.sizes import SIZES, SYNC_SIZES

WAYS = 11
HOST = "127.0.0.1:10911"


def put_every_way(store: pyrocketstore.Store) -> None:
    """WAYS messages without properties, and one with."""
    low = store.message_store
    store.put("t", b"first of its queue")
    store.put("t", b"compiled")
    store.put("t", b"slow", born_host="127.0.0.1:9")
    store.put_many("t", [b"many 0", bytearray(b"many 1")], tags=[None, None])
    store.put_batch("t", [b"batch 0", {"body": b"batch 1"}])
    asyncio.run(store.aput("t", b"async"))
    low.put_message(MessageExtBrokerInner("t", b"message", 0))
    low.async_put_message(MessageExtBrokerInner("t", b"future", 0)).result(20)
    body = encode_messages([Message("t", b"messages")])
    low.put_messages(MessageExtBatch("t", body, 0, born_host=HOST, store_host=HOST))
    store.put("t", b"with", properties={"a": "b"}, tags="x", keys="k")


@pytest.mark.parametrize("settings", [SIZES, SYNC_SIZES], ids=["async", "sync"])
@pytest.mark.parametrize("multi", [True, False])
def test_messages_without_properties(tmp_path: Path, settings: dict[str, int], multi: bool) -> None:
    with pyrocketstore.open(tmp_path, enable_multi_dispatch=multi, **settings) as store:
        put_every_way(store)
        *bare, full = store.read("t")
        assert len(bare) == WAYS
        assert [m.properties for m in bare] == [{"WAIT": "true"} if multi else {}] * WAYS
        assert full.properties == {"a": "b", "TAGS": "x", "KEYS": "k"}
        assert store.verify().ok
    with pyrocketstore.open(tmp_path, **settings) as store:
        assert [m.body for m in store.read("t")] == [m.body for m in (*bare, full)]


@pytest.mark.java
def test_4_9_3_dispatches_them_after_a_kill(tmp_path: Path) -> None:
    root = tmp_path / "store"
    child = os.fork()
    if child == 0:
        try:
            store = pyrocketstore.open(root, enable_multi_dispatch=True, **SIZES)
            put_every_way(store)
            store.wait_dispatched()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    shutil.rmtree(root / "consumequeue")  # so that 4.9.3 dispatches all of the log
    config = {java_name(name): value for name, value in SIZES.items()}
    lines = require_java().dump(root, config | {"enableMultiDispatch": True})
    assert sum(line.startswith('{"message"') for line in lines) == WAYS + 1, sys.stderr
