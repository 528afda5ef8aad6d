"""Goal: `get_records` has the records of the pull that `get_message` makes, in one buffer.
Method: both calls with equal arguments over small, filtered, expired and damaged queues; limits of
bytes; odd values; views that are released meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import GetMessageStatus, StoreFormatError, StoreStateError, StoreTypeError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.reading._queue_runs import join_views
from pyrocketstore.reading.rocketmq_reads import PulledRecords, TagsFilter
from pyrocketstore.record._message import decode_record
from support.seed import SEED
from support.sizes import SIZES


@pytest.fixture(params=[False, True], ids=["writable", "read-only"])
def low(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DefaultMessageStore]:
    rng = random.Random(SEED)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(600):
            body = rng.randbytes(rng.choice([0, 10, 500, 3000]))
            store.put("T", body, queue_id=i % 2, tags="ab"[i % 3 == 0])
        store.wait_dispatched()
        if not request.param:
            yield store.message_store
    if request.param:
        with pyrocketstore.open(tmp_path, read_only=True) as store:
            yield store.message_store


def records_of(pulled: PulledRecords) -> list[bytes]:
    pairs = zip(pulled.positions.tolist(), pulled.sizes.tolist(), strict=True)
    return [pulled.buffer[at : at + size] for at, size in pairs]


@pytest.mark.parametrize("tags", [None, "b", "none"])
def test_one_buffer_has_the_records_of_the_pull(tags: str | None, low: DefaultMessageStore) -> None:
    wanted = None if tags is None else TagsFilter(tags)
    for queue_id in (0, 1, 5):
        for offset in (-1, 0, 1, 150, 299, 300, 301):
            for count in (-1, 0, 1, 7, 32, 1000):
                view = low.get_message("g", "T", queue_id, offset, count, wanted)
                pulled = low.get_records("g", "T", queue_id, offset, count, None, wanted)
                assert view is not None
                assert pulled is not None
                names = "status next_begin_offset min_offset max_offset message_count"
                names += " msg_count_4_commercial suggest_pulling_from_slave"
                for name in names.split():
                    assert getattr(pulled, name) == getattr(view, name), name
                assert records_of(pulled) == [bytes(one) for one in view.message_mapped_list]
                assert pulled.buffer == b"".join(records_of(pulled))
                assert len(pulled.buffer) == view.buffer_total_size
                assert pulled.queue_offsets.tolist() == view.message_queue_offsets
                view.release()
    kinds = (pulled.positions.dtype, pulled.sizes.dtype, pulled.queue_offsets.dtype)
    assert kinds == (np.int64, np.int32, np.int64)


def test_a_limit_of_bytes(low: DefaultMessageStore) -> None:
    whole = low.get_records("g", "T", 0, 10, 32)
    assert whole is not None
    assert whole.message_count == 32
    assert isinstance(whole.buffer, bytes)
    ends = (whole.positions + whole.sizes).tolist()
    for limit in (-1, 0, 1, ends[0], ends[4] - 1, ends[4], ends[-1], ends[-1] + 1, (1 << 63) - 1):
        found = low.get_records("g", "T", 0, 10, 32, limit)
        assert found is not None
        count = max(1, sum(end <= limit for end in ends))
        assert found.message_count == count
        assert found.next_begin_offset == 10 + count
        assert found.buffer == whole.buffer[: ends[count - 1]]
        assert found.status is GetMessageStatus.FOUND
        offsets = [decode_record(record).queue_offset for record in records_of(found)]
        assert offsets == found.queue_offsets.tolist() == list(range(10, 10 + count))


def test_pages_of_a_queue_have_each_message_once(low: DefaultMessageStore) -> None:
    offset, seen = 0, []
    while True:
        found = low.get_records("g", "T", 1, offset, 1000, 5000)
        assert found is not None
        if found.status is not GetMessageStatus.FOUND:
            break
        seen += found.queue_offsets.tolist()
        offset = found.next_begin_offset
    assert seen == list(range(300))
    assert found.status is GetMessageStatus.OFFSET_OVERFLOW_ONE


def test_odd_values(low: DefaultMessageStore) -> None:
    bad: list[tuple[Any, type[Exception]]] = [
        ("5", StoreTypeError),
        (5.0, StoreTypeError),
        (True, StoreTypeError),
        (1 << 63, StoreFormatError),
    ]
    for value, error in bad:
        with pytest.raises(error):
            low.get_records("g", "T", 0, 0, 32, value)
    before = low.read_counts.found
    low.get_records("g", "T", 0, 0, 32)
    assert low.read_counts.found == before + 1


def test_a_closed_store_has_none(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("T", b"x")
        engine = store.message_store
    assert engine.get_records("g", "T", 0, 0, 32) is None


def test_views_that_are_released_are_refused(low: DefaultMessageStore) -> None:
    view = low.get_message("g", "T", 0, 0, 3)
    assert view is not None
    views = list(view.message_mapped_list)
    expected = b"".join(bytes(one) for one in views)
    joined, positions, sizes, offsets = join_views(views, [5, 6, 7])
    assert offsets.tolist() == [5, 6, 7]
    assert joined == expected
    with pytest.raises(StoreStateError, match="released"):
        bytes(views[0])
    view = low.get_message("g", "T", 0, 0, 3)
    assert view is not None
    views = list(view.message_mapped_list)
    assert positions.tolist() == [0, *np.cumsum(sizes)[:-1].tolist()]
    views[1].release()
    with pytest.raises(StoreStateError, match="released"):
        join_views(views, [0, 0, 0])
    with pytest.raises(ValueError, match="queue offsets"):
        join_views(views, [])
    for odd in ([b"x"], [5]):
        with pytest.raises(TypeError):
            join_views(odd, [0])  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        join_views(views[:1], [1 << 63])
    views[0].release()  # a refused call keeps no view
    view.release()
    assert [len(column) for column in join_views([], [])] == [0] * 4
