"""Goal: the files of positions and groups have 4.9.3's text, no position in them passes a message
that is not durable, and damage is an error and not an empty table.
Method: the files themselves, byte for byte, also of a 4.9.3 broker; failing and damaged files."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    MessageExtBrokerInner,
    PutMessageStatus,
    Store,
    StoreCorruptionError,
    StoreError,
    StoreStateError,
)
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.golden_stores import unpack
from support.sizes import SIZES


def loaded(root: Path, *, lmq: bool = False) -> ConsumerOffsets:
    offsets = ConsumerOffsets(Env(), str(root), lmq=lmq)
    offsets.load()
    return offsets


def test_the_text_with_light_queues_is_that_of_4_9_3(tmp_path: Path) -> None:
    offsets = loaded(tmp_path, lmq=True)
    offsets.commit_offset("%LMQ%g", "%LMQ%q", 0, 7)
    offsets.commit_offset("g", "t", 1, 3)
    offsets.commit_offset("g", "t", 0, 2)
    offsets.persist()
    assert Path(offsets.path).name == "lmqConsumerOffset.json"
    assert Path(offsets.path).read_text() == (
        '{\n\t"lmqOffsetTable":{\n\t\t"%LMQ%q@%LMQ%g":7\n\t},\n'
        '\t"offsetTable":{\n\t\t"t@g":{0:2,1:3\n\t\t}\n\t}\n}'
    )
    again = loaded(tmp_path, lmq=True)
    assert again.positions() == {("g", "t", 0): 2, ("g", "t", 1): 3, ("%LMQ%g", "%LMQ%q", 0): 7}


def test_groups_continue_when_a_store_gets_light_queues(tmp_path: Path) -> None:
    """Their positions are those of consumerOffset.json until the other file is written."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put_many("t", [b"x"] * 9)
        for group in ("g", "%LMQ%g"):
            with store.consumer(group, "t") as consumer:
                consumer.poll(7, 0)
                consumer.commit()
    light = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}
    message = MessageExtBrokerInner("t", b"y", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    with pyrocketstore.open(tmp_path, **light) as store:
        assert store.message_store.put_message(message).status is PutMessageStatus.PUT_OK
    with pyrocketstore.open(tmp_path, **SIZES) as store:  # the light queue's directory counts
        known = [one[:4] for one in store.consumer_positions()]
        assert known == [("%LMQ%g", "t", 0, 7), ("g", "t", 0, 7)]
        for group in ("g", "%LMQ%g"):
            with store.consumer(group, "t", start="latest") as consumer:
                assert len(consumer.poll(timeout=0)) == 3
                consumer.commit()
    found = loaded(tmp_path, lmq=True).positions()
    assert found == {("g", "t", 0): 10, ("%LMQ%g", "t", 0): 10}
    assert set(loaded(tmp_path).positions().values()) == {7}


def test_a_light_group_has_one_position_in_a_topic(tmp_path: Path) -> None:
    """As in 4.9.3; a commit of two queues would pass over the messages of one."""
    with pyrocketstore.open(tmp_path, **SIZES, enable_lmq=True) as store:
        for number in range(6):
            store.put("t", b"x", queue_id=number % 2)
        with store.consumer("%LMQ%g", "t") as consumer:
            assert len(consumer.poll(timeout=0)) == 6
            with pytest.raises(StoreStateError, match="one position in each topic"):
                consumer.commit()
        with store.consumer("g", "t") as consumer:
            consumer.poll(timeout=0)
            consumer.commit()
        assert [one[:4] for one in store.consumer_positions()] == [
            ("g", "t", 0, 3),
            ("g", "t", 1, 3),
        ]


def test_a_file_of_4_9_3_keeps_its_text(tmp_path: Path) -> None:
    root = unpack("broker-clean", tmp_path)
    offsets = loaded(root)
    before = Path(offsets.path).read_text()
    offsets.commit_offset("cg-1", "orders", 2, 611)
    offsets.persist()
    assert Path(offsets.path).read_text() == before.replace("2:610", "2:611")
    assert Path(offsets.path + ".bak").read_text() == before


def test_a_new_group_is_where_4_9_3_would_print_it(tmp_path: Path) -> None:
    root = unpack("broker-clean", tmp_path)
    groups = SubscriptionGroups(Env(), str(root))
    groups.load()
    before = Path(groups.path).read_text()
    ours = SubscriptionGroups(Env(), str(tmp_path / "ours"))
    ours.load()
    for name in groups.groups():
        ours.ensure(name)
    ours.persist()
    theirs = before[before.index('"subscriptionGroupTable"') :]
    assert Path(ours.path).read_text().endswith(theirs)


def test_a_new_position_is_where_4_9_3_would_print_it(tmp_path: Path) -> None:
    """A broker that has read its file prints a table in the order of a smaller map."""
    offsets = loaded(unpack("broker-clean", tmp_path))
    file = tmp_path / "config" / "consumerOffset.json"
    file.parent.mkdir()
    file.write_text('{"offsetTable":{"%RETRY%cg-1@cg-1":{0:56}}}')
    ours = loaded(tmp_path)
    for (group, topic, queue_id), offset in sorted(offsets.positions().items(), reverse=True):
        ours.commit_offset(group, topic, queue_id, offset)
    ours.persist()
    assert file.read_bytes() == Path(offsets.path).read_bytes()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("consumerOffset.json", {}),
        ("lmqConsumerOffset.json", {"enable_lmq": True}),
        ("subscriptionGroup.json", {}),
    ],
)
@pytest.mark.parametrize("backup", [None, "[1]"])
def test_a_damaged_file_is_an_error(
    tmp_path: Path, name: str, settings: dict[str, Any], backup: str | None
) -> None:
    file = tmp_path / "config" / name
    file.parent.mkdir()
    file.write_text("{")
    if backup is not None:
        file.with_name(name + ".bak").write_text(backup)
    with pyrocketstore.open(tmp_path, **SIZES, **settings) as store:
        store.put("t", b"")  # a program without consumers does not need the file
        with pytest.raises(StoreCorruptionError, match=f"{name}: not valid JSON"):
            store.consumer("g", "t")
    assert file.read_text() == "{"
    file.with_name(name + ".bak").write_text("{}")
    with pyrocketstore.open(tmp_path, **SIZES, **settings) as store:
        assert len(store.consumer("g", "t").poll(1, 0)) == 1


def commit_one(store: Store) -> None:
    with store.consumer("g", "t") as consumer:
        assert len(consumer.poll(1, 0)) == 1
        consumer.commit()


def test_a_position_never_passes_a_message_that_is_not_durable(tmp_path: Path) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    env = Env()
    fails = False

    def sync(original: Any, *arguments: Any) -> int:
        return -errno.EIO if fails else int(original(*arguments))

    with (
        pytest.raises(StoreError),
        pyrocketstore.open(tmp_path, env=env, flush_interval_commit_log=10**7, **SIZES) as store,
        broken(env, "fdatasync", sync),
        broken(env, "msync", sync),
    ):
        store.put("t", b"first")
        commit_one(store)
        before = file.read_text()
        assert '"t@g":{0:1' in before
        store.put("t", b"second")
        fails = True
        with pytest.raises(StoreError):
            commit_one(store)
        assert file.read_text() == before
        store.flush()
    assert file.read_text() == before


def copied(path: Path, target: Path) -> Path:
    """Copy the files of an open store: what a kill at this moment leaves."""
    shutil.copytree(path, target)
    return target


def test_a_new_group_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "store"
    env = Env()
    flushed: list[str] = []

    def sync(original: Any, directory: bytes) -> int:
        flushed.append(directory.decode())
        return int(original(directory))

    with pyrocketstore.open(path, env=env, **SIZES) as store:
        with broken(env, "fsync_directory", sync):
            store.consumer("g", "t")
        assert str(path / "config") in flushed
        killed = copied(path, tmp_path / "killed")
    groups = SubscriptionGroups(Env(), str(killed))
    groups.load()
    assert groups.groups() == ["g"]


def test_a_retry_is_durable_with_the_position(tmp_path: Path) -> None:
    """After a commit the log is flushed up to the message that was given back."""
    with pyrocketstore.open(tmp_path, flush_interval_commit_log=10**7, **SIZES) as store:
        store.put("t", b"bad")
        with store.consumer("g", "t") as consumer:
            (message,) = consumer.poll(1, 0)
            consumer.retry(message, 18)
            log = store.message_store.commit_log.mapped_file_queue
            assert log.flushed_where < store.message_store.get_max_phy_offset()
            consumer.commit()
            assert log.flushed_where == store.message_store.get_max_phy_offset()
    with pyrocketstore.open(tmp_path, read_only=True) as store:
        assert [row[:4] for row in store.delayed()] == [(18, 7_200_000, "%RETRY%g", 1)]
