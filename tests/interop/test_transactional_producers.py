"""Goal: a 4.9.3 broker with its transactional producers and an embedded program decide each other's
transactions, in one directory.
Method: a name server, a broker and clients run in turn with a store of ours; records are compared
field by field."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from broker import Cluster, Line

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

HALF, OP, DISCARD = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "flushConsumerOffsetInterval": 500,
    "transactionTimeOut": 100,
    "transactionCheckInterval": 3_600_000,
}
CHECKING = CONFIG | {"transactionCheckInterval": 300, "transactionCheckMax": 10_000}
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "transaction_time_out": 100,
}
LONGEST_S = 60.0


def opened(path: Path, **settings: Any) -> pyrocketstore.Store:
    return pyrocketstore.open(path, **{**SETTINGS, **settings})


def request(body: bytes, local: str) -> Line:
    encoded = base64.b64encode(body).decode()
    pairs = [["color", "red"]]
    line: Line = {"topic": "t", "tags": "A", "keys": "k", "body": encoded, "properties": pairs}
    return {**line, "local": local}


def bodies(store: pyrocketstore.Store, topic: str = "t") -> list[bytes]:
    return sorted(m.body for m in records(store, topic))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def fields(message: pyrocketstore.MessageExt) -> dict[str, Any]:
    """Return what two records of one kind must have in common."""
    named = dict(message.properties)
    for name in ("UNIQ_KEY", "CLUSTER", "PGROUP", "REAL_QID"):
        named.pop(name, None)
    return {
        "topic": message.topic,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "properties": named,
        "tags_code": message.tags_code,
    }


def records(store: pyrocketstore.Store, topic: str) -> list[pyrocketstore.MessageExt]:
    return list(store.read(topic, None)) if store.queues(topic) else []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_we_decide_what_a_broker_has_left_open(
    cluster: Cluster, tmp_path: Path, ending: signal.Signals
) -> None:
    path = tmp_path / "store"
    with cluster.broker(path, CONFIG, ending):
        sent = cluster.transact(
            [request(b"committed %d" % n, "COMMIT_MESSAGE") for n in range(3)]
            + [request(b"rolled back %d" % n, "ROLLBACK_MESSAGE") for n in range(2)]
            + [request(b"open %d" % n, "UNKNOW") for n in range(3)],
            "shop",
        )
        time.sleep(1)  # the second phase is sent one way
    ids = {n: sent[5 + n]["msg_id"] for n in range(3)}
    with opened(path) as store:
        found = store.transactions()
        assert [one.transaction_id for one in found] == list(ids.values())
        assert [one.message.body for one in found] == [b"open %d" % n for n in range(3)]
        assert {(one.group, one.topic, one.check_times) for one in found} == {("shop", "t", 0)}
        theirs = [m for m in records(store, "t") if m.sys_flag & 0xC == 8]
        assert len(theirs) == 3
        result = found[0].commit()
        assert result is not None
        found[1].rollback()
        ours = store.get(result.phy_offset)
        assert ours is not None
        assert fields(ours) == fields(theirs[0])
        half = store.get(ours.prepared_transaction_offset)
        assert half is not None
        assert half.topic == HALF
        assert ours.properties == half.properties
        assert (ours.born_host, ours.born_timestamp) == (half.born_host, half.born_timestamp)
        ops = records(store, OP)
        assert sorted(op.body for op in ops) == [b"%d" % n for n in (0, 1, 2, 3, 4, 5, 6)]
        # One form, byte by byte, but for numbers, hosts and times.
        assert {op.properties_string for op in ops} == {ops[0].properties_string}
        assert len({str(fields(op)) for op in ops}) == 1
        with store.prepare("t", b"ours", group="shop", tags="A", keys="k",
                           properties={"color": "red"}) as transaction:  # fmt: skip
            pass
        assert fields(transaction.message) == fields(half)
        names = [name for name in half.properties if name != "CLUSTER"]
        assert list(transaction.message.properties) == names  # the order in the text
    with opened(path) as store:
        assert [one.transaction_id for one in store.transactions()] == [ids[2]]
        assert bodies(store) == sorted(
            [b"committed %d" % n for n in range(3)] + [b"open 0", b"ours"]
        )
        with store.consumer("g", "t") as consumer:
            assert len(consumer.poll(10, 5)) == 5
    with cluster.broker(path, CHECKING, signal.SIGTERM):
        checked = cluster.transact([], "shop", answer="ROLLBACK_MESSAGE", checks=1)
        assert [line["transaction_id"] for line in checked] == [ids[2]]
        time.sleep(1)
        got = cluster.consume(["t"], 5, "h")
        assert len(got) == 5
    with opened(path) as store:
        assert store.transactions() == []


def test_a_broker_checks_what_we_have_prepared(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        made = [store.prepare("t", b"%d" % n, group="shop", keys="k", queue_id=n) for n in range(4)]
        made[0].commit()
        made[1].rollback()
        ids = {one.transaction_id for one in made[2:]}
    with cluster.broker(path, CHECKING, signal.SIGTERM):
        lines = cluster.transact([], "shop", answer="COMMIT_MESSAGE", checks=2)
        assert {line["transaction_id"] for line in lines} == ids
        got = cluster.consume(["t"], 3, "g")
        assert sorted(base64.b64decode(line["body"]) for line in got) == [b"0", b"2", b"3"]
    with opened(path) as store:
        assert store.transactions() == []
        assert bodies(store) == [b"0", b"2", b"3"]
        queues = {m.body: m.queue_id for m in records(store, "t")}
        assert queues == {b"0": 0, b"2": 2, b"3": 3}


def test_both_count_the_same_checks_and_discard(cluster: Cluster, tmp_path: Path) -> None:
    """Both put an undecided message back, and move it away after transactionCheckMax checks."""
    path = tmp_path / "store"
    with opened(path) as store:
        store.prepare("t", b"x", group="shop", tags="A", flag=5)
    with cluster.broker(path, CHECKING, signal.SIGTERM):
        lines = cluster.transact([], "shop", answer="UNKNOW", checks=2)
    assert len(lines) >= 2
    asked: list[int] = []

    def check(transaction: pyrocketstore.Transaction) -> None:
        asked.append(transaction.check_times)

    with opened(path) as store:
        (transaction,) = store.transactions()
        times = transaction.check_times
        assert times >= 2
        theirs = records(store, HALF)[-1]
        assert theirs.flag == 0  # 4.9.3 resets it when it puts back
    settings = {"transaction_check_interval": 20, "transaction_check_max": times + 2}
    with opened(path, transaction_check=check, **settings) as store:
        until(lambda: bool(store.queues(DISCARD)))
        until(lambda: not store.transactions())
        assert asked == [times, times + 1]
        ours = records(store, HALF)[-1]
        wanted = dict(theirs.properties, TRANSACTION_CHECK_TIMES=str(times + 2))
        assert ours.properties == wanted
        assert fields(ours) | {"properties": 0} == fields(theirs) | {"properties": 0}
        (discarded,) = records(store, DISCARD)
        assert discarded.properties == wanted
        assert discarded.queue_id == 0
    with opened(path) as store:
        assert store.transactions() == []
        store.prepare("t", b"y", group="shop", tags="A")
    with cluster.broker(path, CHECKING | {"transactionCheckMax": 1}, signal.SIGTERM):
        cluster.transact([], "shop", answer="UNKNOW", checks=1)
        time.sleep(2)
    with opened(path) as store:
        first, second = records(store, DISCARD)
        assert second.body == b"y"
        assert first.sys_flag == second.sys_flag
        assert store.transactions() == []


def test_we_commit_what_a_broker_has_put_back(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with cluster.broker(path, CHECKING, signal.SIGKILL):
        cluster.transact([request(b"x", "UNKNOW")], "shop", answer="UNKNOW", checks=2)
    answers: list[str] = []

    def check(transaction: pyrocketstore.Transaction) -> str:
        answers.append(transaction.transaction_id)
        return "commit"

    with opened(path, transaction_check=check, transaction_check_interval=20) as store:
        until(lambda: bool(answers) and not store.transactions())
        assert bodies(store) == [b"x"]
    with cluster.broker(path, CHECKING, signal.SIGTERM):
        assert cluster.transact([], "shop", answer="COMMIT_MESSAGE") == []
        time.sleep(2)
    with opened(path) as store:
        assert bodies(store) == [b"x"]
        assert store.transactions() == []


def test_a_broker_decides_nothing_again(cluster: Cluster, tmp_path: Path) -> None:
    """An undecided message keeps the positions before half messages that were put back."""
    path = tmp_path / "store"
    settings = {"transaction_check_interval": 20, "transaction_time_out": 0}
    with opened(path, transaction_check=lambda one: None, **settings) as store:
        late = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}
        store.prepare("t", b"undecided", group="shop", properties=late)
        paid = store.prepare("t", b"paid", group="shop")
        refused = store.prepare("t", b"refused", group="shop")
        until(lambda: min(paid.check_times, refused.check_times) > 3)
        paid.commit()
        refused.rollback()
    with cluster.broker(path, CHECKING, signal.SIGTERM):
        assert cluster.transact([], "shop", answer="COMMIT_MESSAGE", checks=0) == []
        time.sleep(3)  # ten rounds of checks
        assert cluster.transact([], "shop", answer="COMMIT_MESSAGE", checks=0) == []
    with opened(path) as store:
        assert bodies(store) == [b"paid"]
        assert [one.message.body for one in store.transactions()] == [b"undecided"]
