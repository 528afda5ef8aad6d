"""Goal: the directory of a 4.9.3 broker in DLedger mode is read as its consumers read it, beside
the broker and after its end.
Method: a broker that is its own group of nodes, its clients, and a read-only store."""

from __future__ import annotations

import base64
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from broker import Cluster, Line, free_ports
from pyrocketstore import StoreFormatError

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "enableDLegerCommitLog": True,
    "dLegerGroup": "group",
    "dLegerSelfId": "n0",
    "brokerId": -1,
}
SIZES = {"max_hash_slot_num": 1000, "max_index_num": 4000}
LONGEST_S = 60.0


def request(number: int) -> Line:
    body = base64.b64encode(b"%d" % number * 200).decode()
    return {"topic": "t", "tags": "A", "keys": f"k{number}", "body": body, "properties": []}


def sent(cluster: Cluster, numbers: range) -> list[Line]:
    """Send messages once the node is the leader, and the name server knows it."""
    end = time.monotonic() + LONGEST_S
    while True:
        try:
            return cluster.produce([request(number) for number in numbers])
        except AssertionError:
            if time.monotonic() > end:
                raise


def bodies(store: pyrocketstore.Store) -> list[bytes]:
    return sorted(m.body for m in store.read("t", None)) if store.queues("t") else []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_directory_in_dledger_mode(
    cluster: Cluster, tmp_path: Path, ending: signal.Signals
) -> None:
    path = tmp_path / "store"
    (port,) = free_ports(1)
    config: dict[str, Any] = CONFIG | {"dLegerPeers": f"n0-127.0.0.1:{port}"}
    first = [b"%d" % number * 200 for number in range(400)]
    with cluster.broker(path, config, ending):
        results = sent(cluster, range(400))
        with pyrocketstore.open(path, read_only=True, **SIZES) as live:
            end = time.monotonic() + LONGEST_S
            while bodies(live) != sorted(first):
                assert time.monotonic() < end
                time.sleep(0.1)
                live.refresh()
            results += sent(cluster, range(400, 410))
            while len(bodies(live)) < 410:
                assert time.monotonic() < end
                time.sleep(0.1)
                live.refresh()
        time.sleep(4)  # the node writes its checkpoint every 3 s
    assert len(list((path / "dledger-n0" / "data").iterdir())) > 1
    wanted = sorted([*first, *(b"%d" % number * 200 for number in range(400, 410))])
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert bodies(store) == wanted
        assert store.verify().ok
        for number in (0, 7, 250, 409):
            (found,) = store.query("t", f"k{number}")
            assert found.body == b"%d" % number * 200
            assert found.queue_offset == results[number]["queue_offset"]
            again = store.get(results[number]["offset_msg_id"])
            assert again is not None and again.body == found.body
    with pytest.raises(StoreFormatError, match="DLedger"):
        pyrocketstore.open(path)
    with cluster.broker(path, config, signal.SIGTERM):  # nothing has changed
        got = cluster.consume(["t"], 410, "group")
        assert sorted(base64.b64decode(line["body"]) for line in got) == wanted
