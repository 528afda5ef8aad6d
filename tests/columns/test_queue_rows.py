"""Goal: the selected records are those that a unit of the given queues names, each unit once, and
no bytes cause a crash. Method: random records and ranges against a plain loop over
tests/support/oracle.py; damage at every byte of a header; arrays that do not fit."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest

from pyrocketstore.columns._decode import compressed_records
from pyrocketstore.columns._record_walk import QueueRows
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from support import oracle

pytestmark = pytest.mark.bad_input
BASE = 1 << 40
#: The last topic is malformed: Java decodes it to U+FFFD, the name of its queue.
TOPICS = (b"T", b"TT", b"", "ünï".encode(), b"bad\xff")
KINDS = (0, 0x4, 0x8, 0xC, 0x1)
Unit = tuple[int, int]


class Log:
    """Return consecutive records."""

    def __init__(self, records: Sequence[oracle.Record]) -> None:
        self.data = b""
        self.records: list[oracle.Record] = []
        self.positions: list[int] = []
        for one in records:
            self.positions.append(len(self.data))
            placed = dataclasses.replace(one, phy_offset=BASE + len(self.data))
            self.records.append(placed)
            self.data += oracle.encode_record(placed)

    def rows(self, queues: QueueRows, take: slice = slice(None)) -> list[bool]:
        positions = np.array(self.positions[take], np.int64)
        sizes = np.array([one.size for one in self.records[take]], np.int32)
        return list(queues.rows(self.data, positions, sizes, positions + BASE).tolist())


def random_log(rng: random.Random, count: int) -> Log:
    v6 = oracle.host("20010db8" + "0" * 23 + "1", 9)
    return Log(
        [
            oracle.Record(
                topic=rng.choice(TOPICS),
                queue_id=rng.choice((0, 1, -1, 2**31 - 1)),
                queue_offset=rng.choice((rng.randrange(12), -1, 2**63 - 1)),
                sys_flag=rng.choice(KINDS),
                body=rng.randbytes(rng.randrange(30)),
                born_host=rng.choice((v6, oracle.host("10.0.0.1", 1))),
            )
            for _ in range(count)
        ]
    )


def random_units(
    rng: random.Random, log: Log, topic: str, queue_id: int, low: int, high: int
) -> list[Unit]:
    """Return units of a range: most name the record of their number, others none or any."""
    units: list[Unit] = []
    for number in range(low, high):
        fitting = [
            one
            for one in log.records
            if oracle.java_text(one.topic) == topic
            and (one.queue_id, one.queue_offset) == (queue_id, number)
        ]
        one = rng.choice(fitting or log.records) if rng.random() < 0.9 else rng.choice(log.records)
        units.append((one.phy_offset, one.size + (rng.random() < 0.05)))
    return units


@pytest.mark.parametrize("seed", range(30))
def test_random_records(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 150)
    names = [(oracle.java_text(t), i) for t in TOPICS for i in (0, 1, -1, 2**31 - 1)]
    ranges = []
    units: list[Unit] = []
    for topic, queue_id in rng.sample(names, rng.randrange(len(names) + 1)):
        low = rng.randrange(12)
        high = rng.randrange(low, 13)
        ranges.append((topic, queue_id, low, high))
        units += random_units(rng, log, topic, queue_id, low, high)
    answered = np.array([rng.random() < 0.1 for _ in units], np.bool_)
    wanted, left = [], answered.tolist()
    for one in log.records:
        base, found = 0, False
        for topic, queue_id, low, high in ranges:
            mine = (oracle.java_text(one.topic), one.queue_id) == (topic, queue_id)
            if mine and one.sys_flag & 0xC in (0x0, 0x8) and low <= one.queue_offset < high:
                place = base + one.queue_offset - low
                found = not left[place] and units[place] == (one.phy_offset, one.size)
                left[place] = left[place] or found
            base += high - low
        wanted.append(found)
    queues = QueueRows(
        ranges,
        np.array([unit[0] for unit in units], np.int64),
        np.array([unit[1] for unit in units], np.int32),
        answered,
    )
    assert log.rows(queues, slice(70)) + log.rows(queues, slice(70, None)) == wanted
    assert answered.tolist() == left
    assert log.rows(queues) == [False] * 150  # each unit was matched


def test_many_queues() -> None:
    log = Log([oracle.Record(topic=b"T", queue_id=n, queue_offset=0) for n in range(2000)])
    places = np.array(log.positions, np.int64) + BASE
    sizes = np.array([one.size for one in log.records], np.int32)
    queues = QueueRows([("T", n, 0, 1) for n in range(2000)], places, sizes, np.zeros(2000, bool))
    assert log.rows(queues) == [True] * 2000


@pytest.mark.parametrize("at", range(0, 100, 3))
def test_damage(at: int) -> None:
    log = Log([oracle.Record(topic=b"T", queue_offset=n, body=b"b" * 9) for n in range(3)])
    size = log.records[0].size
    places = np.array(log.positions, np.int64)
    sizes = np.full(3, size, np.int32)
    data = bytearray(log.data)
    data[size + at % size] ^= 0xFF
    answered = np.zeros(3, np.bool_)
    queues = QueueRows([("T", 0, 0, 3)], places + BASE, sizes, answered)
    verdict = oracle.check_record(bytes(data[size : 2 * size]), BASE + size, check_crc=False)[0]
    if verdict == "ok":
        found = queues.rows(data, places, sizes, places + BASE)
        assert found[0]
        assert found[2]
        return
    with pytest.raises(StoreCorruptionError, match=f"^here at byte {size}: ") as caught:
        queues.rows(data, places, sizes, places + BASE, path="here")
    assert caught.value.position == size
    assert answered.tolist() == [True, False, False]


def test_positions_outside_of_the_data() -> None:
    log = Log([oracle.Record(topic=b"T")])
    size = log.records[0].size
    queues = QueueRows([], np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_))
    for place, wide in ((-1, size), (1, size), (0, -1), (0, size + 1), (2**62, 5), (0, 90), (9, 0)):
        places, sizes = np.array([place], np.int64), np.array([wide], np.int32)
        with pytest.raises(StoreCorruptionError, match=status_name(3)):
            queues.rows(log.data, places, sizes, np.array([BASE], np.int64))


def test_arrays_that_do_not_fit() -> None:
    one, size, no = np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.bool_)
    with pytest.raises(StoreFormatError, match="2 units"):
        QueueRows([("T", 0, 0, 2)], one, size, no)
    for low, high in ((2, 1), (-1, 0)):
        with pytest.raises(StoreFormatError, match="T/0"):
            QueueRows([("T", 0, low, high)], one, size, no)
    with pytest.raises(StoreFormatError, match="T/2147483648"):
        QueueRows([("T", 1 << 31, 0, 1)], one, size, no)
    with pytest.raises(StoreFormatError, match="two ranges of a queue: T/0"):
        QueueRows([("T", 0, 0, 1), ("U", 0, 0, 0), ("T", 0, 5, 5)], one, size, no)
    queues = QueueRows([("T", 0, 0, 1)], one, size, no)
    with pytest.raises(StoreFormatError, match="one entry"):
        queues.rows(b"", one, size, one[:0])


def test_compressed_records() -> None:
    log = Log([oracle.Record(sys_flag=flag, body=b"b") for flag in (0, 1, 8, 9)])
    places = np.array(log.positions, np.int64)
    sizes = np.array([one.size for one in log.records], np.int32)
    found = compressed_records(log.data, places, sizes)
    assert found is not None
    assert found.dtype == np.bool_
    assert found.tolist() == [False, True, False, True]
    assert compressed_records(log.data, places[::2].copy(), sizes[::2].copy()) is None
    assert compressed_records(log.data, places, np.full(4, 39, np.int32)) is None
    far = np.array([-1, len(log.data), 2**62, -(2**63)], np.int64)
    assert compressed_records(log.data, far, sizes) is None
    with pytest.raises(StoreFormatError, match="one entry"):
        compressed_records(log.data, places, sizes[:1])
