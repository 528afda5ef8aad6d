"""Goal: a store that follows a broker of 4.9.3 has its log, queues and index, byte for byte.
Method: a name server, brokers and producers; a store in this process copies. Then both directories
are dumped by 4.9.3's own store."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import pyrocketstore
from broker import SMALL_FILES, SMALL_SIZES, Cluster, Line, requests_of

pytestmark = [pytest.mark.java, pytest.mark.slow]

LONGEST_S = 60.0
COUNT = 120


def requests(part: int) -> list[Line]:
    return requests_of(b"%d %d " % (part, number) + b"x" * 500 for number in range(COUNT))


def wait_for_end(copy: pyrocketstore.Store, end: int) -> None:
    deadline = time.monotonic() + LONGEST_S
    while copy.message_store.get_max_phy_offset() < end:
        client = copy.message_store.services.ha_client
        assert client is not None and client.failure_of_copy is None, client.state
        assert time.monotonic() < deadline, client.state
        time.sleep(0.02)
    copy.wait_dispatched()


def end_of(store: Path) -> int:
    with pyrocketstore.open(store, read_only=True, **SMALL_SIZES) as reader:
        return reader.message_store.get_max_phy_offset()


def log_bytes(store: Path, end: int) -> bytes:
    files = sorted((store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


@pytest.mark.timeout(600)
def test_a_copy_of_a_broker_that_is_written_killed_and_restarted(
    cluster: Cluster, tmp_path: Path
) -> None:
    master, path = tmp_path / "master", tmp_path / "copy"
    for part, ending in enumerate((signal.SIGKILL, signal.SIGTERM)):
        with cluster.broker(master, SMALL_FILES, ending):
            cluster.produce(requests(2 * part))
            with pyrocketstore.open(
                path, follow=f"127.0.0.1:{cluster.port + 1}", **SMALL_SIZES
            ) as copy:
                wait_for_end(copy, end_of(master))
                cluster.produce(requests(2 * part + 1))
                wait_for_end(copy, end_of(master))
                assert sum(copy.max_offset("t", q) for q in copy.queues("t")) == (
                    2 * COUNT * (part + 1)
                )
                end = copy.message_store.get_max_phy_offset()
    assert log_bytes(path, end) == log_bytes(master, end)
    assert cluster.java.dump(path, SMALL_FILES) == cluster.java.dump(master, SMALL_FILES)


@pytest.mark.timeout(600)
def test_a_sync_master_counts_no_put_for_a_copy(cluster: Cluster, tmp_path: Path) -> None:
    """The connection alone lets the master wait for its time limit: docs/replication.md."""
    config = {**SMALL_FILES, "brokerRole": "SYNC_MASTER", "slaveTimeout": 300}
    with cluster.broker(tmp_path / "master", config, signal.SIGTERM):
        alone = cluster.produce(requests(0)[:3])
        address = f"127.0.0.1:{cluster.port + 1}"
        with pyrocketstore.open(tmp_path / "copy", follow=address, **SMALL_SIZES) as copy:
            wait_for_end(copy, end_of(tmp_path / "master"))
            followed = cluster.produce(requests(1)[:3])
            wait_for_end(copy, end_of(tmp_path / "master"))
        again = cluster.produce(requests(2)[:3])
    assert {line["status"] for line in alone + again} == {"SLAVE_NOT_AVAILABLE"}
    assert {line["status"] for line in followed} == {"FLUSH_SLAVE_TIMEOUT"}


@pytest.mark.timeout(600)
def test_a_sync_master_counts_the_acknowledgements_of_a_slave(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = {**SMALL_FILES, "brokerRole": "SYNC_MASTER"}
    with cluster.broker(tmp_path / "master", config, signal.SIGKILL):
        slave = {
            "broker_role": "SLAVE",
            "ha_master_address": f"127.0.0.1:{cluster.port + 1}",
            "flush_disk_type": "SYNC_FLUSH",
        }
        with pyrocketstore.open(tmp_path / "copy", **slave, **SMALL_SIZES) as copy:
            state = copy.replication
            assert state is not None
            first = cluster.produce(requests(0)[:1])  # the log of the master was empty
            wait_for_end(copy, end_of(tmp_path / "master"))
            lines = cluster.produce(requests(1))
    assert {line["status"] for line in lines} == {"SEND_OK"}, (first, lines)
