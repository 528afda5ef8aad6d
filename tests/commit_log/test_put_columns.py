"""put_many and put_batch: what is written is what single puts write, however the rows came."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import Message, PutError, StoreFormatError
from pyrocketstore.commit_log._puts import Columns
from pyrocketstore.system.env import Env
from support.broken_env import failing, watched

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 20000,
}
TEXTS = [None, "a", "k1 k2", "schlüssel", "\U0001f600", "x" * 3000]


def rows() -> Iterator[tuple[bytes, str | None, str | None, int]]:
    number = 0
    for tags in TEXTS:
        for keys in TEXTS:
            number += 1
            yield bytes([number]) * (number * 37 % 400), tags, keys, number % 3


def contents(store: pyrocketstore.Store, queue_id: int) -> list[tuple[Any, ...]]:
    return [
        (m.queue_offset, m.body, m.tags, m.keys, m.flag, m.body_crc, m.sys_flag, m.size)
        for m in store.read("t", queue_id)
    ]


def test_many_write_what_single_puts_write(tmp_path: Path) -> None:
    """Over several files and queues, with every kind of text."""
    table = [*rows()] * 20
    with pyrocketstore.open(tmp_path / "one", **SIZES) as store:
        for i, (body, tags, keys, _) in enumerate(table):
            store.put("t", body, queue_id=i % 40, tags=tags, keys=keys)
        single = [contents(store, i) for i in range(40)]
        assert store.message_store.get_max_phy_offset() > 3 * SIZES["mapped_file_size_commit_log"]
    with pyrocketstore.open(tmp_path / "many", **SIZES) as store:
        queue_offsets, phy_offsets = store.put_many(
            "t",
            [row[0] for row in table],
            queue_ids=np.arange(len(table)) % 40,
            tags=[row[1] for row in table],
            keys=[row[2] for row in table],
        )
        assert [contents(store, i) for i in range(40)] == single
        assert queue_offsets.tolist() == [i // 40 for i in range(len(table))]
        for i in range(0, len(table), 7):
            assert store.get(int(phy_offsets[i])).body == table[i][0]
        stamps = [store.get(int(p)).store_timestamp for p in phy_offsets]
        assert stamps == sorted(stamps)


def test_a_batch_of_dicts_is_a_batch_of_messages(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        table = [*rows()][:20]
        items = [{"body": b, "tags": t, "keys": k, "flag": f} for b, t, k, f in table]
        first = store.put_batch("t", items, 0)
        slow = []
        for body, tags, keys, flag in table:
            named = {"TAGS": tags, "KEYS": keys}
            properties = {name: value for name, value in named.items() if value}
            slow.append(Message("t", body, flag=flag, properties=properties))
        second = store.put_batch("t", slow, 1)
        assert contents(store, 0) == contents(store, 1)
        assert first.message_count == second.message_count == len(table)
        assert len(first.msg_id.split(",")) == len(table)
        mixed = [b"plain", {"body": b"flagged", "flag": 7}, {"body": bytearray(b"other")}, b"last"]
        store.put_batch("t", mixed, 2)
        assert [(m.body, m.flag) for m in store.read("t", 2)] == [
            (b"plain", 0),
            (b"flagged", 7),
            (b"other", 0),
            (b"last", 0),
        ]


def test_a_batch_of_columns_is_a_batch_of_dicts(tmp_path: Path) -> None:
    """Goal: the same records. Method: both forms, every kind of text, with and without names."""
    table = [*rows()][:20]
    bodies = [row[0] for row in table]
    tags, keys = [row[1] for row in table], [row[2] for row in table]
    named = [{"a": f"{i}"} if i % 3 else None for i in range(len(table))]
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for properties in (None, named):
            items = [
                {"body": body, "tags": tag, "keys": key, "properties": more}
                for body, tag, key, more in zip(
                    bodies, tags, keys, properties or [None] * len(table), strict=True
                )
            ]
            start = store.max_offset("t", 2)
            ones = store.put_batch("t", items, queue_id=2)
            columns = store.put_batch("t", bodies, 2, tags=tags, keys=keys, properties=properties)
            assert columns.queue_offset == ones.queue_offset + 20 == start + 20
            assert columns.phy_offset == ones.phy_offset + ones.wrote_bytes
            read = [*store.read("t", 2, start=start)]
            for old, new in zip(read[:20], read[20:], strict=True):
                assert (new.body, new.properties, new.size) == (
                    old.body,
                    old.properties,
                    old.size,
                )
            assert [store.get(i).queue_offset for i in columns.msg_id.split(",")] == [
                *range(start + 20, start + 40)
            ]
        assert store.put_batch("t", (bytearray(b"x"),), 1, keys=np.array(["k"])).queue_offset == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"messages": [b"a", "b"], "tags": [None, None]},
        {"messages": [b"a", b"b"], "tags": ["x", 1]},
        {"messages": [b"a", b"b"], "tags": ["x", " "]},
        {"messages": [b"a", b"b"], "keys": ["x", "a\x01"]},
        {"messages": [b"a", b"b"], "keys": ["x"]},
        {"messages": [b"a", b"b"], "keys": ["x", "k" * 40_000]},
        {"messages": [b"a", bytes(5 << 20)], "tags": [None, None]},
        {"messages": [bytes(3 << 20)] * 2, "tags": [None, None]},
        {"messages": [{"body": b"a", "tags": 1}]},
        {"messages": [{"body": b"a", "colour": 1}]},
        {"messages": [{"body": b"a", "flag": 1 << 31}]},
        {"messages": [b"a"], "queue_id": -1},
        {"messages": [b"a"], "queue_id": 1 << 31},
        {"messages": [b"a"], "queue_id": True},
        {"messages": []},
        {"messages": [b"a"], "tags": ["x"], "keys": [["k", "l"]], "queue_id": 3},
        {"messages": [memoryview(b"a")], "keys": [None], "queue_id": 3},
    ],
)
def test_a_batch_has_one_outcome_for_a_new_topic_and_a_known_one(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """Method: the compiled path handles batches for topics that were put to, in lists."""
    outcomes: list[tuple[Any, ...]] = []
    for name in ("new", "known"):
        with pyrocketstore.open(tmp_path / name, **SIZES) as store:
            if name == "known":
                store.put("t", b"", queue_id=3)
            end, start = store.message_store.get_max_phy_offset(), store.max_offset("t", 3)
            try:
                done = store.put_batch("t", **arguments)
                outcomes.append((done.message_count, done.wrote_bytes, done.queue_offset - start))
            except pyrocketstore.StoreError as error:
                outcomes.append((type(error), str(error), 0))
                assert store.message_store.get_max_phy_offset() == end
            calls = sum(store.message_store.stats_service.put_times()) - (name == "known")
            outcomes[-1] = (*outcomes[-1], calls)
    assert outcomes[0] == outcomes[1]


def test_a_batch_of_columns_is_all_or_nothing(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"")
        for bodies, more in (
            ([], {"tags": []}),
            ([b"a"], {"tags": ["x", "y"]}),
            ([b"a", {"body": b"b"}], {"tags": [None, None]}),
            ([b"a", Message("t", b"b")], {"keys": ["k", None]}),
            ([b"a", "text"], {"keys": ["k", None]}),
            ([b"a", b"b"], {"queue_id": [0, 1], "keys": ["k", "k"]}),
            ([b"a", b"b"], {"keys": ["fine", "bad\x01"]}),
        ):
            with pytest.raises((StoreFormatError, TypeError)):
                store.put_batch("t", bodies, **more)
        with pytest.raises(PutError, match="MESSAGE_ILLEGAL"):
            store.put_batch("t", [bytes(40_000)] * 2, tags=["x", "y"])
        assert store.max_offset("t") == 1
        assert store.put_batch("t", [b"a", b"b"], tags=["x", None]).queue_offset == 1


@pytest.mark.parametrize(
    "item", ["text", {"tags": "a"}, {"body": b"", "color": 1}, {"body": b"", "properties": []}, 5]
)
def test_uncommon_items_are_left_to_the_careful_path(item: object) -> None:
    assert Columns.of_items("t", [b"", item], 0) is None


@pytest.mark.parametrize("text", ["", "a\x01", "\x02", "\ud800", 5, b"x"])
@pytest.mark.parametrize("name", ["tags", "keys"])
def test_text_that_would_not_read_back_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, text: Any
) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"")
        with pytest.raises((StoreFormatError, TypeError)):
            store.put_many("t", [b"a", b"b"], **{name: ["fine", text]})
        with pytest.raises((StoreFormatError, TypeError)):
            store.put_batch("t", [{"body": b"a"}, {"body": b"b", name: text}])
        with pytest.raises((StoreFormatError, TypeError)):
            store.put("t", b"", **{name: text})
        assert store.max_offset("t") == 1


def test_a_full_device_takes_what_it_still_has_room_for(tmp_path: Path) -> None:
    """Goal: `count` says exactly what is in the log. Method: allocation fails after the first."""
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        store.put_many("t", [bytes(1000)] * 3)
        store.wait_dispatched()
        before = store.max_offset("t")
        with failing(env, "fallocate", errno.ENOSPC), pytest.raises(PutError) as caught:
            store.put_many("t", [bytes(1000)] * 500)
        assert caught.value.count == store.max_offset("t") - before
        assert "No space left" in str(caught.value)
        store.put_many("t", [b"after"] * 100)
        bodies = [m.body for m in store.read("t")]
        assert len(bodies) == before + caught.value.count + 100
        assert bodies[-1] == b"after"


def test_buffers_are_let_go_after_a_refused_call(tmp_path: Path) -> None:
    """Goal: no body stays pinned. Method: a bytearray may be resized again."""
    bodies: list[Any] = [bytearray(b"x" * 100) for _ in range(50)]
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put_many("t", bodies)
        with pytest.raises((PutError, TypeError)):
            store.put_many("t", [*bodies, "text"])
        for body in bodies:
            body.append(1)
        assert store.max_offset("t") >= 50


def test_many_new_queues_are_written_to_the_topic_table_once(tmp_path: Path) -> None:
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        with watched(env, "rename") as renamed:
            store.put_many("t", [b""] * 300, queue_ids=list(range(300)))
        assert len(renamed) == 0
        with watched(env, "rename") as renamed:
            store.flush()
        assert len(renamed) <= 2
        table = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert table["topicConfigTable"]["t"]["writeQueueNums"] == 300
        assert store.queues("t") == list(range(300))


def test_put_many_refuses_a_bad_row_before_it_writes_any(tmp_path: Path) -> None:
    """Goal: a put_many with a bad row writes no row. Method: a row far behind is not bytes,
    has no queue id, or has a text that is too long."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        bodies: list[Any] = [b"x"] * 9000
        rows: list[Any] = [*bodies[:8500], "text", *bodies[8501:]]
        with pytest.raises(TypeError, match=r"bodies.8500"):
            store.put_many("t", rows)
        with pytest.raises(StoreFormatError, match=r"queue_ids.8500"):
            store.put_many("t", bodies, queue_ids=[0] * 8500 + [-1] + [0] * 499)
        with pytest.raises(TypeError):
            store.put_many("t", ["text"])
        with pytest.raises(PutError, match="message 8500") as caught:
            store.put_many("t", bodies, tags=["a"] * 8500 + ["a" * 40_000] + ["a"] * 499)
        assert (caught.value.status.name, caught.value.count) == ("PROPERTIES_SIZE_EXCEEDED", 0)
        assert store.message_store.get_max_phy_offset() == 0 and store.topics() == []
