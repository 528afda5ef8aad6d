"""Goal: keys that the dispatch loop puts together are the bytes of keys put one by one, in every
place where it must stop: a full file, a record with many keys, an error, a call of Python. Method:
records that wait for a paused dispatcher; index files compared with those of `oracle_index`; an
allocation that fails; callbacks that look at the dispatcher."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.index.directory import entry_position
from pyrocketstore.recovery.repair import repair
from support.broken_env import broken
from support.oracle_index import OracleIndexFile, key_hash

SLOTS = 50
#: Entry 0 is not used, so that a file takes one key less.
ENTRIES = 98
CHUNK = 65536
#: Keys of one record: none, few, as many as wait together and one more or less, several files.
KEY_COUNTS = (0, 1, 2, 0, 31, 32, 33, 1, 1, 63, 64, 65, 97, 0, 98, 200, 3)


def messages(rounds: int) -> Iterator[tuple[str, list[str]]]:
    """Yield (topic, keys); some topics and keys are not ASCII."""
    number = 0
    for i in range(rounds * len(KEY_COUNTS)):
        keys = []
        for _ in range(KEY_COUNTS[i * 7 % len(KEY_COUNTS)]):
            keys.append(f"{'é' * (number % 3)}k{number}{'x' * (number % 19)}")
            number += 1
        yield f"topic{'-long' * (i % 3)}", keys


def expected(records: list[tuple[str, list[str], int, int]]) -> list[bytes]:
    """The content of the index files after these records: (topic, keys, physical offset, time)."""
    files: list[OracleIndexFile] = []
    for topic, keys, phy_offset, time_ms in records:
        hashes = [key_hash(f"{topic}#{key}") for key in keys]
        # A record without keys needs a file with room, too.
        while True:
            if not files or files[-1].count >= ENTRIES:
                end = (files[-1].end_phy, files[-1].end_time) if files else (0, 0)
                files.append(OracleIndexFile(SLOTS, ENTRIES, *end))
            while hashes and files[-1].put(hashes[0], phy_offset, time_ms):
                del hashes[0]
            if not hashes:
                break
    return [bytes(file.data) for file in files]


@pytest.mark.parametrize("unique", [False, True])
def test_keys_put_together_are_those_put_one_by_one(tmp_path: Path, unique: bool) -> None:
    root = tmp_path / "s"
    rows = list(messages(8))
    if not unique:
        # The last key that the file takes, and a record without keys: it makes the next file.
        left = -sum(len(keys) for _, keys in rows) % (ENTRIES - 1)
        rows += [("topic", [f"last{i}"]) for i in range(left)] + [("topic", [])]
    with pyrocketstore.open(
        root, max_hash_slot_num=SLOTS, max_index_num=ENTRIES, unique_key=unique
    ) as store:
        engine = store.message_store
        with engine.dispatch_paused():
            results = [
                store.put(topic, b"body", keys=" ".join(keys) if i % 2 else "  ".join(keys))
                if keys
                else store.put(topic, b"body")
                for i, (topic, keys) in enumerate(rows)
            ]
        store.wait_dispatched()
        records = []
        for (topic, keys), result in zip(rows, results, strict=True):
            message = store.get(result.phy_offset)
            own = [message.uniq_key] if unique else []
            records.append((topic, own + keys, result.phy_offset, message.store_timestamp))
        wanted = expected(records)
        assert engine.dispatcher.last_phy_offset == results[-1].phy_offset
        found = [bytes(file.read(0, file.file_size)) for file in engine.index_service.files]
    assert len(found) == len(wanted) > 50
    for number, (file, oracle) in enumerate(zip(found, wanted, strict=True)):
        assert file == oracle, number


def test_an_error_is_that_of_the_record_whose_key_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index ends before this record, and has all keys of the records before it."""

    slots = 5000
    queues = [(f"topic-{i % 3}", i) for i in range(7)]
    # The first entry that ends behind the file's first chunk, with the slots before it.
    last = (CHUNK - entry_position(slots, 0)) // 20

    def full(original: Any, fd: int, position: int, size: int) -> int:
        return -errno.ENOSPC if position == CHUNK else int(original(fd, position, size))

    with pyrocketstore.open(tmp_path / "s", max_hash_slot_num=slots, max_index_num=20_000) as store:
        engine = store.message_store
        results = [store.put(topic, b"body", queue_id=queue, keys="k") for topic, queue in queues]
        store.wait_dispatched()
        index_file = engine.index_service.files[-1]
        with engine.dispatch_paused():
            for i in range(len(results), last + 200):
                topic, queue = queues[i % 7]
                results.append(store.put(topic, b"body", queue_id=queue, keys="k"))
        with broken(engine.env, "fallocate", full), caplog.at_level(logging.ERROR):
            engine.reput_service.wait_dispatched(engine.get_max_phy_offset())
        assert index_file.index_count == last
        assert index_file.end_phy_offset == results[last - 2].phy_offset
        assert engine.dispatcher.last_phy_offset == results[-1].phy_offset
        lines = [line for line in caplog.messages if " entry of " in line]
        topic, queue = queues[(last - 1) % 7]
        assert repair(engine.files, engine.dispatch_paused())
        assert index_file.index_count == len(results) + 1
        assert len(lines) == 1
        assert f"the index entry of {topic}-{queue} could" in lines[0]


def test_python_finds_all_earlier_records_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of a record are in the index before a callback for a later one runs."""
    seen: list[tuple[int, int, int]] = []
    with pyrocketstore.open(tmp_path / "s") as store:
        store.put("first", b"body", keys="k")
        store.wait_dispatched()
        engine = store.message_store
        index_file = engine.index_service.files[-1]
        create = engine.queue_table._new

        def looking(*args: Any) -> Any:
            dispatcher = engine.dispatcher
            seen.append(
                (dispatcher.position, dispatcher.last_phy_offset, index_file.end_phy_offset)
            )
            return create(*args)

        with engine.dispatch_paused():
            results = []
            for i in range(5):
                results.extend(store.put("first", b"body", keys=f"{i}-{j}") for j in range(i))
                results.append(store.put(f"topic-{i}", b"body", keys=f"{i}"))
            monkeypatch.setattr(engine.queue_table, "_new", looking)
        store.wait_dispatched()
        starts = [results[i * (i + 1) // 2 + i] for i in range(5)]
        ends = [result.phy_offset for result in starts]
    assert [position for position, _, _ in seen] == ends
    assert all(last == indexed for _, last, indexed in seen)
