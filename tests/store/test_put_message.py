"""Goal: the compiled put of a whole message stores and returns what the put of the engine does.
Method: the same messages through both, among them those that only the engine puts or refuses, and
random ones; the two logs are compared but for their store times."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.store._store_calls import MessagePuts
from support.seed import SEED

SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 16, "max_message_size": 1 << 14}
MESSAGE_MAGIC = bytes.fromhex("DAA320A7")
IPV6 = "[2001:db8::1]:10911"


def message(**more: Any) -> MessageExtBrokerInner:
    fields: dict[str, Any] = {
        "topic": "t",
        "body": b"body",
        "properties": {"TAGS": "a"},
        "properties_string": "TAGS\x01a",
        "born_timestamp": 5,
        **more,
    }
    return MessageExtBrokerInner(**fields)


CASES = {
    "plain": message(),
    "fields": message(flag=-7, reconsume_times=3, prepared_transaction_offset=99, sys_flag=1),
    "commit": message(sys_flag=0x8, prepared_transaction_offset=1 << 40),
    "prepared": message(sys_flag=0x4),
    "rollback": message(sys_flag=0xC),
    "IPv6": message(born_host=IPV6, store_host=IPV6),
    "IPv6 born": message(born_host=IPV6),
    "no properties": message(properties={}, properties_string=None),
    "empty properties": message(properties={}, properties_string=""),
    "new queue": message(queue_id=40),
    "new topic": message(topic="other"),
    "bad topic": message(topic="a/b"),
    "long topic": message(topic="t" * 128),
    "delayed": message(properties={"DELAY": "1"}, properties_string="DELAY\x011"),
    "further queues": message(properties={"INNER_MULTI_DISPATCH": "u,v"}),
    "large": message(body=bytes(1 << 13)),
    "too large": message(body=bytes(1 << 14)),
    "long properties": message(properties_string="a\x01" + "b" * 40_000),
    "zero at the end": message(properties_string="a\x01b\0"),
    "lazy": message(properties={"WAIT": "false"}),
}


def copied(one: MessageExtBrokerInner) -> MessageExtBrokerInner:
    return dataclasses.replace(one, properties=dict(one.properties))


def path_of(store: pyrocketstore.Store) -> MessagePuts:
    return MessagePuts(store.message_store.commit_log.core, store._state, store._slow_puts)


def log_of(store: pyrocketstore.Store) -> list[bytes]:
    """The records without their store times."""
    log, at, records = store.message_store.commit_log, 0, list[bytes]()
    while at < log.get_max_offset():
        size = log.record_size(at)
        view = log.get_message(at, size) if size > 0 else None
        if view is None:
            at = log.roll_next_file(at)
            continue
        with view:
            record = bytes(view.byte_buffer)
        at += size
        if record[4:8] == MESSAGE_MAGIC:  # else the BLANK at the end of a file
            time_at = 68 if record[39] & 0x10 else 56  # before it is the born host, IPv6 or IPv4
            record = record[:time_at] + record[time_at + 8 :]
        records.append(record)
    return records


def outcome(result: Any) -> tuple[Any, ...]:
    where = (result.phy_offset, result.queue_offset, result.wrote_bytes, result.message_count)
    host = result.msg_id if result.status_code == 0 else None
    return (result.status, result.append_status_code, *where, host)


def compare(tmp_path: Path, messages: list[MessageExtBrokerInner], **more: Any) -> int:
    """Put all by both; return how many are in the log."""
    settings = {**SMALL, **more}
    with (
        pyrocketstore.open(tmp_path / "quick", **settings) as quick,
        pyrocketstore.open(tmp_path / "engine", **settings) as engine,
    ):
        put = path_of(quick).put_message
        for one in messages:
            quickly = put(copied(one))
            slowly = engine.message_store.put_message(copied(one))
            assert outcome(quickly) == outcome(slowly)
        records = log_of(quick)
        assert records == log_of(engine)
        counts = [store.message_store.stats_service for store in (quick, engine)]
        assert counts[0].put_messages_by_status() == counts[1].put_messages_by_status()
        assert sum(counts[0].put_times()) == sum(counts[1].put_times())
    return len(records)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("multi", [False, True])
def test_both_store_the_same(tmp_path: Path, name: str, multi: bool) -> None:
    compare(tmp_path, [message(), CASES[name], CASES[name]], enable_multi_dispatch=multi)


def test_random_messages_over_several_files(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    chosen = [
        dataclasses.replace(
            copied(CASES[chance.choice(list(CASES))]),
            body=chance.randbytes(chance.randrange(3000)),
            queue_id=chance.randrange(4),
        )
        for _ in range(300)
    ]
    assert compare(tmp_path, chosen) > 150


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SMALL) as store:
        put = path_of(store).put_message
        assert put(message()).status_code == 0
    with pytest.raises(pyrocketstore.StoreStateError, match="closed"):
        store._slow_puts.checked(put(message()), 1)
