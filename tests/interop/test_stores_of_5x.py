"""Goal: stores that RocketMQ 5.x wrote are read completely, and never written.
Method: the store of 5.3 puts messages, also to a topic whose name only its own records can hold,
with and without its CRC property; each message is compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreFormatError
from support.java_store import EXIT_HALTED, require_java_5x

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 300
LONG_TOPIC = "topic-" + "x" * 150
SIZES = {"maxHashSlotNum": 500, "maxIndexNum": 2000, "mappedFileSizeCommitLog": 1 << 16}
SETTINGS = {"max_hash_slot_num": 500, "max_index_num": 2000}


def written(path: Path, topics: str, ending: str, **config: object) -> list[list[str]]:
    """Return (number, topic, queue id, queue offset, physical offset) of each message."""
    words = [f"{name}={value}" for name, value in {**SIZES, **config}.items()]
    words += [f"count={COUNT}", f"topics={topics}", f"ending={ending}"]
    expect = EXIT_HALTED if ending == "halt" else 0
    lines = require_java_5x().run("put", str(path), *words, expect=expect).splitlines()
    return [line.split() for line in lines if line[:1].isdigit()]


def digest(path: Path) -> dict[str, str]:
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("ending", ["clean", "halt"])
@pytest.mark.parametrize("crc", ["false", "true"])
@pytest.mark.parametrize("topics", ["a,b", f"a,{LONG_TOPIC}"])
def test_every_message_is_read(tmp_path: Path, ending: str, crc: str, topics: str) -> None:
    path = tmp_path / "store"
    rows = written(path, topics, ending, enabledAppendPropCRC=crc)
    assert len(rows) == COUNT
    before = digest(path)
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        assert set(store.topics()) == set(topics.split(","))
        for number, topic, queue_id, queue_offset, phy_offset in rows:
            n = int(number)
            found = store.get(int(phy_offset))
            assert found is not None
            assert (found.topic, found.queue_id) == (topic, int(queue_id))
            assert found.queue_offset == int(queue_offset)
            assert found.body == b"body %d " % n * (n % 40)
            assert (found.tags, found.keys) == ("AB"[n % 2], f"k{n}")
            assert found.properties["n"] == number
            assert found.is_crc_valid
            assert [m.phy_offset for m in store.query(topic, f"k{n}")] == [found.phy_offset]
        for topic in topics.split(","):
            for queue in range(3):
                wanted = [int(r[0]) for r in rows if (r[1], int(r[2])) == (topic, queue)]
                assert [int(m.properties["n"]) for m in store.read(topic, queue)] == wanted
        assert store.verify().ok
    assert digest(path) == before
    with pytest.raises((StoreFormatError, StoreCorruptionError), match=r"read.only"):
        pyrocketstore.open(path, **SETTINGS)
    assert digest(path) == before


def test_a_batch_consume_queue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    written(path, "a,batched", "clean", batch="batched")
    with pytest.raises(StoreFormatError, match="batched has a batch consume queue"):
        pyrocketstore.open(path, read_only=True, **SETTINGS)
