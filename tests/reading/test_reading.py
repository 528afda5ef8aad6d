"""Goal: an iterator returns the messages that the plain-Python oracle decodes, from a mapped store
and a read-only one, also if the store is damaged, closed or loses files meanwhile.
Method: stores with every kind of record, each compared with the oracle's record; then bytes are
changed on disk, files deleted, iterators shared between threads."""

from __future__ import annotations

import gc
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.errors import StoreCorruptionError, StoreStateError
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.record._message import MessageExt, decode_record
from support import oracle

SETTINGS: dict[str, Any] = {
    "disk_max_used_space_ratio": 99,
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 600,
}
#: Tags that fall into one place of the table of known texts, and such as are not ASCII.
TAGS = ["TagA", "T", "ab", "ba", "ä", "Ä", "日本", "TagA" * 20, "x", "y", None, "a\u007f"]


def fill(path: Path, count: int = 400) -> None:
    with pyrocketstore.open(path, **SETTINGS) as store:
        for i in range(count):
            tags = TAGS[i % len(TAGS)]
            properties = {} if i % 3 else {"name": f"värde{i}", f"p{i % 7}": "TagA", "TAG": "KEYS"}
            store.put(
                "T",
                bytes([i % 251]) * (i * 37 % 2000),
                queue_id=i % 3,
                tags=tags,
                keys=None if i % 5 == 0 else f"k{i} gem{i % 4}",
                properties=properties,
                born_host="[2001:db8::1]:77" if i % 11 == 0 else None,
            )


@pytest.fixture(params=[False, True], ids=["mapped", "read-only"])
def read_only(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reading") / "store"
    fill(path)
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "store"))


def records(path: Path) -> dict[int, bytes]:
    """Every record of the log by its place, as the oracle walks it."""
    found = {}
    for file in sorted((path / "commitlog").iterdir()):
        data, at = file.read_bytes(), 0
        while at + 8 <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            magic = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
            if magic != oracle.MESSAGE_MAGIC:
                break
            found[int(file.name) + at] = data[at : at + size]
            at += size
    return found


def open_store(path: Path, read_only: bool) -> pyrocketstore.Store:
    return pyrocketstore.open(path, read_only=read_only, **SETTINGS)


def check_like_oracle(message: MessageExt, raw: bytes) -> None:
    expected = oracle.decode_record(raw)
    assert message.record == raw
    assert message.topic == expected.topic.decode()
    assert message.stored_body == message.body == expected.body
    properties = dict(
        pair.split("\x01") for pair in expected.properties.decode().split("\x02") if pair
    )
    assert message.properties == properties
    assert message.tags == properties.get("TAGS")
    assert message.keys == properties.get("KEYS")
    assert message.properties_string == expected.properties.decode()
    assert (message.queue_id, message.queue_offset) == (expected.queue_id, expected.queue_offset)
    assert message.size == len(raw)


def test_what_is_read_is_what_the_oracle_decodes(path: Path, read_only: bool):
    expected = records(path)
    assert len(expected) == 400
    seen = []
    with open_store(path, read_only) as store:
        for queue_id in range(3):
            for n, message in enumerate(store.read("T", queue_id)):
                assert message.queue_offset == n
                seen.append(message)
    # They outlive the store.
    gc.collect()
    assert sorted(m.phy_offset for m in seen) == sorted(expected)
    for message in seen:
        check_like_oracle(message, expected[message.phy_offset])
        # Also if the properties are read first, and after pickling.
        again = pickle.loads(pickle.dumps(message))
        assert again == message
        assert hash(again) == hash(message)
        assert again.properties == message.properties
        assert again.keys == message.keys
    assert seen[0] != seen[1]


def test_tags_are_compared_exactly(path: Path, read_only: bool):
    expected = records(path)
    tags = [oracle_tags(raw) for raw in expected.values()]
    with open_store(path, read_only) as store:
        for tag in TAGS:
            if tag is None:
                continue
            found = [m for q in range(3) for m in store.read("T", q, tags=tag)]
            assert len(found) == tags.count(tag)
            assert {m.tags for m in found} == {tag}
        both = [m.tags for q in range(3) for m in store.read("T", q, tags="TagA || ä")]
        assert both.count("TagA") == tags.count("TagA")
        assert both.count("ä") == tags.count("ä")
        assert len(both) == both.count("TagA") + both.count("ä")


def oracle_tags(raw: bytes) -> str | None:
    text = oracle.decode_record(raw).properties.decode()
    return dict(pair.split("\x01") for pair in text.split("\x02") if pair).get("TAGS")


@pytest.mark.parametrize("where", ["magic", "size", "offset", "body_length", "topic_length"])
def test_messages_before_damage_are_returned_first(path: Path, read_only: bool, where: str):
    with open_store(path, True) as store:
        places = [(m.phy_offset, m.stored_body) for m in store.read("T", 1)]
    damaged_at, body = places[60]
    at = {"magic": 4, "size": 0, "offset": 28, "body_length": 84, "topic_length": 88 + len(body)}
    size = SETTINGS["mapped_file_size_commit_log"]
    # The store opens first: recovery would end the log at the damage.
    with open_store(path, read_only) as store:
        with open(path / "commitlog" / f"{damaged_at // size * size:020d}", "r+b") as file:
            file.seek(damaged_at % size + at[where])
            file.write(b"\x7f\x7f\x7f\x7f" if where != "topic_length" else b"\x7f")
        iterator = store.read("T", 1)
        given = []
        with pytest.raises(StoreCorruptionError) as raised:
            for message in iterator:
                given.append(message.phy_offset)
        assert given == [phy_offset for phy_offset, _ in places[:60]]
        assert raised.value.position == damaged_at % size
        # It continues with the message after it.
        assert [m.phy_offset for m in iterator] == [phy_offset for phy_offset, _ in places[61:]]


def test_a_file_cut_under_a_read_only_store_is_an_error(path: Path):
    with open_store(path, True) as store:
        places = [m.phy_offset for m in store.read("T", 0)]
        size = SETTINGS["mapped_file_size_commit_log"]
        cut = next(p for p in places if p >= size)
        with open(path / "commitlog" / f"{size:020d}", "r+b") as file:
            file.truncate(cut % size + 20)
        given = []
        with pytest.raises(StoreCorruptionError, match="the file ends after 20 of"):
            for message in store.read("T", 0):
                given.append(message.phy_offset)
        assert given == [p for p in places if p < cut]


def test_an_iterator_ends_with_its_store(path: Path, read_only: bool):
    store = open_store(path, read_only)
    iterator = store.read("T", 0)
    first = next(iterator)
    store.close()
    with pytest.raises(StoreStateError, match="closed"):
        for _ in iterator:
            pass
    assert first.body == b""
    assert first.properties["TAG"] == "KEYS"


def test_a_file_that_was_taken_away_is_passed_over(path: Path, read_only: bool):
    expected = records(path)
    size = SETTINGS["mapped_file_size_commit_log"]
    with open_store(path, read_only) as store:
        iterator = store.read("T", 0)
        assert next(iterator).queue_offset == 0
        files = store.message_store.commit_log.mapped_file_queue
        files.mapped_files[0].destroy()
        left = [m.phy_offset for m in iterator]
    behind = [p for p, raw in expected.items() if oracle.decode_record(raw).queue_id == 0]
    assert left == [p for p in behind if p >= size]


def units(*places: tuple[int, int]) -> tuple[Any, Any]:
    return (
        np.array([p for p, _ in places], np.int64),
        np.array([s for _, s in places], np.int32),
    )


@pytest.mark.parametrize("size", [0, 4, 7, -1, -(2**31), 2**31 - 1, 70_000])
def test_units_that_lie(path: Path, read_only: bool, size: int):
    """A damaged unit may name any bytes: it is an error, and nothing is read outside the file."""
    with open_store(path, read_only) as store:
        file = store.message_store.commit_log.mapped_file_queue.mapped_files[0]
        good = next(store.read("T", 0))
        for phy_offset in (0, 65530, -1, -(2**63), 2**62, good.phy_offset):
            rows = units((good.phy_offset, good.size), (phy_offset, size))
            iterator = MessageIterator([(file, *rows)], None, lambda: None)
            assert next(iterator) == good
            with pytest.raises(StoreCorruptionError):
                next(iterator)
        unequal = (file, *units((good.phy_offset, good.size))[:1], np.empty(0, np.int32))
        assert list(MessageIterator([unequal], None, lambda: None)) == []


@pytest.mark.parametrize("taken", [0, 1, 255, 256, 257])
@pytest.mark.parametrize("queue_id", [0, None])
def test_a_suspended_iterator_says_that_the_store_is_closed(
    tmp_path: Path, read_only: bool, queue_id: int | None, taken: int
) -> None:
    """Wherever it was: before its first message, within a piece, and at the end of one."""
    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        queue_ids = [i % 2 for i in range(600)]
        store.put_many("t", [b"x" * 30] * 600, queue_ids=queue_ids, tags=["a"] * 600)
    store = pyrocketstore.open(tmp_path, read_only=read_only, **SETTINGS)
    iterator = store.read("t", queue_id, tags="a")
    assert len([next(iterator) for _ in range(taken)]) == taken
    store.close()
    with pytest.raises(StoreStateError, match="closed"):
        next(iterator)


def test_an_iterator_is_not_shared_while_it_works(path: Path):
    with open_store(path, True) as store:
        inside = threading.Event()
        go_on = threading.Event()

        def slow() -> Iterator[Any]:
            inside.set()
            go_on.wait(10)
            yield from ()

        iterator = MessageIterator(slow(), None, store._state.check)
        thread = threading.Thread(target=lambda: list(iterator))
        thread.start()
        inside.wait(10)
        with pytest.raises(StoreStateError, match="another thread"):
            next(iterator)
        go_on.set()
        thread.join()


def test_texts_that_share_a_place_are_kept_apart():
    """The table of known texts answers by content: many texts, few places, over and over."""
    texts = [f"{a}{b}{c}" for a in "abcdefgh" for b in "xy1" for c in "äz9"] + ["é" * 40, "q" * 65]
    for _ in range(2):
        for text in texts:
            raw = oracle.encode_record(
                oracle.Record(topic=b"T", properties=f"TAGS\x01{text}\x02{text}\x01v".encode())
            )
            message = decode_record(raw)
            assert message.tags == text
            assert message.properties == {"TAGS": text, text: "v"}
