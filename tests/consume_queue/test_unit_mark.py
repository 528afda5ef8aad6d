"""Goal: a queue that was removed and made again is recognised, and a queue that grew is not.
Method: marks of one queue in memory, compared with queues of other units and other contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.unit_mark import (
    UnitMark,
    mark_before,
    restart_text,
    was_made_again,
)
from support.queues import SIZE, fill, open_queue

#: An end of the log behind all units.
LOG_END = 10_000


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    found = open_queue(tmp_path / "first")
    fill(found, 15)
    return found


def other_queue(tmp_path: Path, begins: list[int]) -> ConsumeQueue:
    """A queue whose units name messages at these bytes of the log."""
    found = open_queue(tmp_path / "other")
    for queue_offset, begin in enumerate(begins):
        assert found.put_message_position_info(begin, SIZE, 1, queue_offset)
    return found


def test_a_mark_is_the_message_before(queue: ConsumeQueue) -> None:
    assert mark_before(queue, 1, LOG_END) == UnitMark(queue.content, 0, 0)
    assert mark_before(queue, 15, LOG_END) == UnitMark(queue.content, 14, 14 * SIZE)
    for queue_offset in (0, -1):
        assert mark_before(queue, queue_offset, LOG_END) is None


def test_a_unit_that_is_missing_or_later_is_earlier_than_any(queue: ConsumeQueue) -> None:
    for queue_offset, log_end in ((16, LOG_END), (100, LOG_END), (15, 14 * SIZE)):
        mark = mark_before(queue, queue_offset, log_end)
        assert mark == UnitMark(queue.content, queue_offset - 1, -1)
    mark = mark_before(queue, 15, 14 * SIZE + 1)
    assert mark is not None and mark.phy_offset == 14 * SIZE


def test_the_fill_before_the_first_message_is_no_mark(tmp_path: Path) -> None:
    """A queue whose first messages have expired begins with units that name none."""
    found = open_queue(tmp_path)
    assert found.put_message_position_info(0, SIZE, 1, 13)
    assert mark_before(found, 13, LOG_END) is None
    assert mark_before(found, 14, LOG_END) == UnitMark(found.content, 13, 0)


def test_the_queue_itself_was_not_made_again(queue: ConsumeQueue) -> None:
    mark = mark_before(queue, 15, LOG_END)
    fill(queue, 5, 15)
    for if_missing in (True, False):
        assert not was_made_again(queue, mark, if_missing=if_missing)
        assert not was_made_again(queue, None, if_missing=if_missing)
        gone = UnitMark(queue.content, 100, 5)
        assert not was_made_again(queue, gone, if_missing=if_missing), "the same content"


def test_a_queue_that_a_refresh_has_read_on_was_not(queue: ConsumeQueue, tmp_path: Path) -> None:
    grown = other_queue(tmp_path, [n * SIZE for n in range(20)])
    assert grown.content is not queue.content
    assert not was_made_again(grown, mark_before(queue, 15, LOG_END))


@pytest.mark.parametrize("count", [1, 14])
def test_a_shorter_queue_was(queue: ConsumeQueue, tmp_path: Path, count: int) -> None:
    shorter = other_queue(tmp_path, [n * SIZE for n in range(count)])
    assert was_made_again(shorter, mark_before(queue, 15, LOG_END))
    assert not was_made_again(shorter, mark_before(queue, count, LOG_END))


def test_a_queue_with_a_later_message_there_was(queue: ConsumeQueue, tmp_path: Path) -> None:
    later = other_queue(tmp_path, [5000 + n * SIZE for n in range(15)])
    assert was_made_again(later, mark_before(queue, 15, LOG_END))
    unknown = mark_before(queue, 15, 1)
    assert unknown is not None and was_made_again(later, unknown), "any is later than -1"


def test_a_queue_whose_first_messages_expired(queue: ConsumeQueue, tmp_path: Path) -> None:
    """Its unit of the mark is gone, with the file that had it."""
    cut = other_queue(tmp_path, [n * SIZE for n in range(25)])
    mark = mark_before(queue, 5, LOG_END)
    cut.mapped_file_queue.delete_files_before(201)
    assert cut.reader.unit(4) is None
    assert not was_made_again(cut, mark)
    assert was_made_again(cut, mark, if_missing=True)


def test_the_text_names_queue_and_offsets_and_has_no_controls() -> None:
    text = restart_text("to\x1bpic", 3, "queue offset 7", "`follow`", 2)
    assert "\x1b" not in text
    for part in ("pic/3", "queue offset 7", "`follow` continues at 2"):
        assert part in text
