"""`Store.follow`: an iterator over the messages of a topic that waits for more.

It reads in rounds. A round has the messages of all queues from the end of the previous round up to
the end of each queue, merged by store time; the iterator waits where a round has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Self

from pyrocketstore.consume_queue.unit_mark import (
    UnitMark,
    mark_before,
    restart_text,
    was_made_again,
)
from pyrocketstore.consumer.arrivals import OwnerArrivals
from pyrocketstore.errors import (
    MessagesRemovedError,
    OffsetOutOfRange,
    StoreCorruptionError,
    StoreIOError,
    StoreWarning,
)
from pyrocketstore.reading._messages import MergedMessages
from pyrocketstore.reading._queue_runs import FIRST_READ_COUNT, READ_COUNT, RecordRun, runs_of
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import QueueDamage, SkippedMessages
from pyrocketstore.record._record import BLANK_MAGIC_CODE

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.consumer.arrivals import Arrivals
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.filter.sql92 import Sql92Filter
    from pyrocketstore.reading._messages import MessageIterator
    from pyrocketstore.reading._queue_runs import ReadCounts
    from pyrocketstore.reading.rocketmq_reads import StoreReads
    from pyrocketstore.record._message import MessageExt
    from pyrocketstore.record.tags import TagsExpression
    from pyrocketstore.system._env import Event

__all__ = ["FollowedMessages", "owner_arrivals"]

#: Bytes of a record or a BLANK that come first: its size and its magic code.
HEADER_SIZE = 8
_BLANK = (BLANK_MAGIC_CODE & 0xFFFFFFFF).to_bytes(4, "big")
_ANY_SIZE = 1 << 62
#: Stands for bytes that cannot be read: the next refresh finds out why.
_UNREADABLE = b"?"


def owner_arrivals(
    moved: Event, log: Callable[[], CommitLog], refresh: Callable[[], object]
) -> Arrivals:
    """Return a way to wait for messages that another process writes.

    Parameters
    ----------
    moved : Event, signalled when messages can be read
    log : callable(), the log as of the last `refresh`
    refresh : callable(), makes messages readable
    """
    return OwnerArrivals(
        refresh,
        lambda: log().get_max_offset(),
        lambda: next_record(log()),
        moved.sequence,
        moved.wait,
        log().env.monotonic_ns,
    )


def next_record(log: CommitLog) -> bytes:
    """Return the first bytes behind the readable end of the log; b"" if there is no record."""
    files, end = log.mapped_file_queue, log.get_max_offset()
    try:
        file = files.find_mapped_file_by_offset(end, False)
        if file is not None:
            position = end - file.file_from_offset
            found = file.read(position, min(HEADER_SIZE, file.file_size - position))
            if found[4:] != _BLANK:
                return found if any(found) else b""
            end = file.file_from_offset + file.file_size
        for path in log.config.all_commit_log_paths:
            found = log.env.read_part(f"{path}/{end:020d}", 0, HEADER_SIZE)
            if any(found):
                return found
    except (StoreIOError, StoreCorruptionError):
        return _UNREADABLE
    return b""


class _Damage(QueueDamage):
    """The treatment of messages that cannot be read, or were removed before they were read."""

    _on_loss: str

    def __new__(
        cls, topic: str, queue_id: int, on_corrupt: str, on_loss: str, skipped: SkippedMessages
    ) -> Self:
        """Also takes `on_loss`, as of Store.follow."""
        damage = super().__new__(cls, topic, queue_id, on_corrupt, skipped)
        damage._on_loss = on_loss
        return damage

    def removed(self, start: int, stop: int) -> Exception | None:
        """Return the error to raise for removed messages, if any."""
        if self._on_loss == "skip":
            return None
        return MessagesRemovedError(self.topic, self.queue_id, start, stop)


class _Range(QueueRange):
    """A part of a queue; messages that were removed are reported. `damage` is a _Damage."""

    __slots__ = ()

    def is_removed(self, phy_offset: int) -> bool:
        """Return whether a message was removed since its queue was looked at."""
        return self.floor <= phy_offset < self.log.get_min_offset()

    def removed(self, start: int, stop: int) -> Exception | None:
        """Return the error to raise for removed messages, if any."""
        assert isinstance(self.damage, _Damage)
        return self.damage.removed(start, stop)


class _Chunks:
    """The records of a range of a queue, file by file, for MessageIterator.

    It continues after an error. Removed messages are looked for before and after units are read, so
    that none is left out without an error.
    """

    def __init__(
        self,
        part: _Range,
        start: int,
        stop: int,
        while_open: Callable[[], AbstractContextManager[object]],
        counts: ReadCounts,
    ) -> None:
        self._part = part
        self._start, self._stop = start, stop
        self._count = FIRST_READ_COUNT
        self._while_open = while_open
        self._counts = counts
        self._ready: list[RecordRun] = []
        self._at = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordRun:
        while True:
            if self._at < len(self._ready):
                # No call from here to the return: a signal handler that raises loses nothing.
                run = self._ready[self._at]
                self._at += 1
                if run.mapped_file is not None:
                    return run
                phy_offsets, _, queue_offsets = run.refs()
                with self._while_open():
                    if self._part.is_removed(phy_offsets[0]):
                        error = self.removed(int(queue_offsets[0]), int(queue_offsets[-1]) + 1)
                    else:
                        error = self._part.missing(run)
                if error is not None:
                    raise error
            elif self._start < self._stop:
                self._read_on()
            else:
                raise StopIteration

    def file_gone(self, file: MappedFile, start: int, stop: int) -> Exception | None:
        """Note the messages [start, stop) of a file that was taken away; return the error to raise,
        if any."""
        with self._while_open():
            error = self._part.file_gone(file, start, stop)
            if error is None and self._part.is_removed(file.file_from_offset):
                error = self.removed(start, stop)
        return error

    def removed(self, start: int, stop: int) -> Exception | None:
        """Continue behind all messages that were removed, [start, stop) at least; return the error
        to raise, if any."""
        behind = max(stop, min(self._low(), self._stop))
        self._ready, self._at, self._start = [], 0, behind
        return self._part.removed(start, behind)

    def _low(self) -> int:
        part = self._part
        return part.queue.first_readable_offset(max(0, part.log.get_min_offset()))

    def _read_on(self) -> None:
        with self._while_open():
            self._check_removed()
            start = self._start
            count = min(self._count, self._stop - start)
            try:
                runs, taken = runs_of(self._part, start, count, _ANY_SIZE)
            except StoreIOError:
                if not self._part.damage.queue_was_replaced():
                    raise
                self._start = self._stop
                return
            self._check_removed()
        if self._start != start:  # the units may lack removed ones
            return
        if taken == 0:  # the queue has become shorter
            self._start = self._stop
            return
        self._counts.note(sum(run.count for run in runs))
        self._count = min(2 * self._count, READ_COUNT)
        end = start + taken
        self._ready, self._at, self._start = runs, 0, end

    def _check_removed(self) -> None:
        low = self._low()
        if self._start < low:
            error = self.removed(self._start, min(low, self._stop))
            if error is not None:
                raise error


class _Round(NamedTuple):
    """Messages that are read together, and what is known of the queues behind them.

    messages : of all queues, by store time; empty in a round without any
    next : {queue id: offset of the first message that is in no round}
    last : {queue id: the last message before that}
    contents : {queue id: `content` of the queue that was looked at}
    """

    messages: MergedMessages
    next: dict[int, int]
    last: dict[int, UnitMark]
    contents: dict[int, object]


class FollowOptions(NamedTuple):
    """The checked arguments of `Store.follow`."""

    topic: str
    queue_id: int | None
    start: str | int
    wanted: TagsExpression | None
    timeout: float | None
    on_loss: str
    on_corrupt: str
    check_crc: bool
    where: Sql92Filter | None


class ReadCalls(NamedTuple):
    """The calls of a store that `FollowedMessages` makes.

    while_open : returns a context that raises where the store is closed before or meanwhile
    counts : of the store's reads
    moved : Event, signalled when messages can be read
    reads : callable() -> StoreReads of this moment
    replaced : callable(part, stop) -> whether the owner of a read-only store has replaced the queue
        of a range, or None if nobody else can
    """

    while_open: Callable[[], AbstractContextManager[object]]
    counts: ReadCounts
    moved: Event
    reads: Callable[[], StoreReads]
    replaced: Callable[[QueueRange, int], Callable[[], bool] | None]


class FollowedMessages:
    """An iterator over the messages of a topic that waits for more.

    `Store.follow` makes it.

    Threads: one at a time; `close` from any. A signal handler that raises ends a wait, and loses no
    message.

    Attributes
    ----------
    skipped : SkippedMessages, the messages that could not be read so far
    on_wait : callable() or None, called before each wait
    """

    def __init__(self, arrivals: Arrivals, calls: ReadCalls, options: FollowOptions) -> None:
        self.skipped = SkippedMessages()
        self.on_wait: Callable[[], object] | None = None
        self._arrivals = arrivals
        self._calls = calls
        self._options = options
        self._closed = False
        #: a message that was taken from the round, until the filter has answered
        self._candidate: MessageExt | None = None
        with calls.while_open():
            arrivals.look()
            self._round = self._first_round(calls.reads())

    def _first_round(self, reads: StoreReads) -> _Round:
        """Return a round without messages: it has the offsets at which queues begin."""
        topic, start = self._options.topic, self._options.start
        begun = _Round(MergedMessages([], self.skipped), {}, {}, {})
        queues = self._queues(reads)
        if isinstance(start, int):
            queue_id = self._options.queue_id
            assert queue_id is not None
            queues = [(queue_id, reads.queues.find(topic, queue_id))]
        for queue_id, queue in queues:
            low, high = _bounds(reads, queue)
            first = low if start == "earliest" else high
            if isinstance(start, int):
                first = start
                if not 0 <= start <= high:
                    raise OffsetOutOfRange(low, high, start, topic, queue_id)
            _note_next(begun, queue, first, reads.commit_log.get_max_offset())
        return begun

    def _queues(self, reads: StoreReads) -> list[tuple[int, ConsumeQueue]]:
        queues = reads.queues.of_topic(self._options.topic)
        wanted = self._options.queue_id
        return [pair for pair in queues.items() if wanted is None or pair[0] == wanted]

    # ---- iteration ------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageExt:
        """Return the next message, or wait for it.

        Raises
        ------
        StopIteration: no message came within the timeout, or `close` was called
        StoreStateError: the store is closed
        MessagesRemovedError, DamagedMessageError, StoreIOError, StoreCorruptionError: the next call
        continues
        """
        # Without a call between: a signal handler that raises loses nothing.
        if self._options.where is None:
            for message in self._round.messages:
                return message
        elif (found := self._next_match(self._options.where)) is not None:
            self._candidate = None
            return found
        return self._wait_for_message()

    def _next_match(self, where: Sql92Filter) -> MessageExt | None:
        """Return the next message of the round that passes the filter, None without one.

        It stays the candidate until the caller returns it, as does a message whose filter was
        interrupted.
        """
        while True:
            if self._candidate is None:
                for message in self._round.messages:
                    self._candidate = message
                    break
                else:
                    return None
            if where.matches(self._candidate.properties):
                return self._candidate
            self._candidate = None

    def _wait_for_message(self) -> MessageExt:
        timeout, now_ns = self._options.timeout, self._calls.reads().env.monotonic_ns
        deadline = None if timeout is None else now_ns() + int(timeout * 1e9)
        while not self._closed:
            with self._calls.while_open():
                seen = self._arrivals.look()
                has_new = self._begin_round(self._calls.reads())
            if self._options.where is None:
                for message in self._round.messages:
                    return message
            elif (found := self._next_match(self._options.where)) is not None:
                self._candidate = None
                return found
            if has_new:
                continue
            left = None if deadline is None else (deadline - now_ns()) / 1e9
            if left is not None and left <= 0:
                break
            if self.on_wait is not None:
                self.on_wait()
            if not self._closed:
                self._arrivals.wait(seen, left)
        self._closed = True
        raise StopIteration

    def close(self) -> None:
        """End the iteration, also if it waits in another thread."""
        self._closed = True
        self._calls.moved.signal()

    # ---- rounds ---------------------------------------------------------------------------------

    def _begin_round(self, reads: StoreReads) -> bool:
        """Begin a round with the messages that have arrived; return False without any.

        After an error the previous round is still the last one.
        """
        before = self._round
        parts: list[MessageIterator] = []
        begun = _Round(
            before.messages, before.next.copy(), before.last.copy(), before.contents.copy()
        )
        restarts: list[str] = []
        has_changed = False
        for queue_id, queue in self._queues(reads):
            is_known = before.contents.get(queue_id) is queue.content
            if is_known and before.next[queue_id] == queue.get_max_offset_in_queue():
                continue
            low, high = _bounds(reads, queue)
            first = before.next.get(queue_id, low)
            is_restarted = first > high or was_made_again(queue, before.last.get(queue_id))
            if is_restarted:
                where = queue.topic, queue_id, f"offset {first}"
                restarts.append(restart_text(*where, "reading", low))
                first = low
            if first < high:
                parts.append(self._messages(reads.commit_log, queue, first, high))
            _note_next(begun, queue, high, reads.commit_log.get_max_offset())
            has_changed = True
        if not has_changed:
            return False
        self._round = begun._replace(messages=MergedMessages(parts, self.skipped))
        for text in restarts:
            warnings.warn(text, StoreWarning, stacklevel=4)
        return bool(parts)

    def _messages(
        self, log: CommitLog, queue: ConsumeQueue, first: int, stop: int
    ) -> MessageIterator:
        options = self._options
        damage = _Damage(
            queue.topic, queue.queue_id, options.on_corrupt, options.on_loss, self.skipped
        )
        floor = max(0, log.get_min_offset())
        part = _Range(log, queue, floor, options.wanted, damage, options.check_crc)
        damage.is_replaced = self._calls.replaced(part, stop)
        chunks = _Chunks(part, first, stop, self._calls.while_open, self._calls.counts)

        def file_gone(file: MappedFile, start: int, end: int) -> Exception | None:
            with self._calls.while_open():
                return chunks.file_gone(file, start, end)

        return part.messages(chunks, file_gone, damage)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._round.next)} queues"
        return f"<pyrocketstore messages of {self._options.topic!r}, followed: {state}>"


def _bounds(reads: StoreReads, queue: ConsumeQueue) -> tuple[int, int]:
    """Return the first readable offset of a queue and its end."""
    low = queue.first_readable_offset(max(0, reads.commit_log.get_min_offset()))
    return low, queue.get_max_offset_in_queue()  # last: messages may be put meanwhile


def _note_next(begun: _Round, queue: ConsumeQueue, offset: int, log_end: int) -> None:
    """Note the next offset of a queue, and the unit before it."""
    begun.next[queue.queue_id] = offset
    begun.contents[queue.queue_id] = queue.content
    begun.last.pop(queue.queue_id, None)
    mark = mark_before(queue, offset, log_end)
    if mark is not None:
        begun.last[queue.queue_id] = mark
