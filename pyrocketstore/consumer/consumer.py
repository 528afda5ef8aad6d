"""Consumer: one member of a group, which reads its share of the queues of topics."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pyrocketstore.arguments.scalars import exact_int64, whole_number
from pyrocketstore.consumer.groups import Group, Queue
from pyrocketstore.consumer.retry import retry_topic
from pyrocketstore.display import shown
from pyrocketstore.errors import (
    DamagedMessageError,
    MessagesRemovedError,
    StoreFormatError,
    StoreStateError,
    StoreWarning,
)
from pyrocketstore.system._env import Event

if TYPE_CHECKING:
    from pyrocketstore.record._message import MessageExt

#: Messages of one `poll`, and of one read by the iterator.
POLL_COUNT = 32

Start = Literal["earliest", "latest"] | int


class Source(NamedTuple):
    """The calls of a store that a consumer makes. Each raises StoreStateError once it is closed.

    wait_dispatched : callable(), waits until every put that returned before is in its queues
    queue_ids : callable(topic), its queue ids, sorted
    bounds : callable(topic, queue_id), the first readable queue offset and the end
    messages : callable(topic, queue_id, start, stop), an iterator of messages
    offset_at : callable(topic, queue_id, timestamp_ms), a queue offset
    now_ns : callable(), a monotonic time
    retry : callable(message, delay_level), puts a message into the retry topic; None: read-only
    """

    wait_dispatched: Callable[[], object]
    queue_ids: Callable[[str], list[int]]
    bounds: Callable[[str, int], tuple[int, int]]
    messages: Callable[[str, int, int, int], Iterator[MessageExt]]
    offset_at: Callable[[str, int, int], int]
    now_ns: Callable[[], int]
    retry: Callable[[MessageExt, int], object] | None


class Positions(NamedTuple):
    """The calls with which a consumer keeps its positions; see ConsumerOffsets.

    query : callable(topic, queue_id), the offset of the next message, -1 without one
    commit : callable({queue: offset}), makes positions durable; None: read-only
    """

    query: Callable[[str, int], int]
    commit: Callable[[dict[Queue, int]], None] | None


@dataclasses.dataclass(slots=True)
class _Reader:
    """The reading of one queue: the offset of the next message, and the messages up to `stop`."""

    topic: str
    queue_id: int
    offset: int
    stop: int = 0
    messages: Iterator[MessageExt] | None = None
    error: Exception | None = None


class Consumer:
    """A member of a group that reads messages in the order of each queue.

    `Store.consumer` makes it. Members of one group in this process share the queues of their
    topics; each queue has one reader. Positions that are not committed are lost with the consumer:
    the next one reads these messages again.

    Iteration waits for messages and never ends; a loop ends by `break`. `async for` does so in an
    asyncio program.

    Threads: one at a time; `close` from any. A signal handler that raises ends a wait, and loses no
    message.

    Attributes
    ----------
    group : str
    topics : list of str, without the retry topic
    closed : bool
    """

    def __init__(
        self,
        source: Source,
        positions: Positions,
        members: Group,
        moved: Event,
        topics: Sequence[str],
        start: Start,
        on_loss: str,
    ) -> None:
        self.group = members.name
        self.topics = list(topics)
        self.closed = False
        self._source = source
        self._positions = positions
        self._members = members
        self._moved = moved
        self._start = start
        self._on_loss = on_loss
        self._all_topics = [*topics, retry_topic(members.name)]
        self._readers: dict[Queue, _Reader] = {}
        self._turn = 0
        self._assigned: tuple[int, dict[str, list[int]]] | None = None
        self._begin_latest()
        self._number = members.join(self, frozenset(self._all_topics))

    # ---- assignment ---------------------------------------------------------------------------

    def _begin_latest(self) -> None:
        """With "latest", note the ends of the queues at this time for queues without a position."""
        self._source.wait_dispatched()
        if self._start == "latest":
            for topic in self.topics:
                for queue_id in self._source.queue_ids(topic):
                    end = self._source.bounds(topic, queue_id)[1]
                    self._members.first_offsets.setdefault((topic, queue_id), end)

    def _assign(self) -> None:
        """Take the share of the queues that this member has now."""
        queues = {topic: self._source.queue_ids(topic) for topic in self._all_topics}
        if self._assigned == (self._members.version, queues):
            return
        version = self._members.version
        mine = self._members.assign(self._number, queues)
        for queue in self._readers.keys() - set(mine):
            del self._readers[queue]
        for queue in mine:
            if queue not in self._readers:
                self._readers[queue] = _Reader(*queue, self._first_offset(*queue))
        self._assigned = version, queues

    def _first_offset(self, topic: str, queue_id: int) -> int:
        """Return the position of a queue that this member begins to read."""
        committed = self._positions.query(topic, queue_id)
        low, high = self._source.bounds(topic, queue_id)
        if committed > high:
            text = (
                f"{topic}/{queue_id}: the position {committed} of group {self.group} is behind the "
                f"end of the queue, {high}: the topic was removed and made again, or the log was "
                f"cut; the group continues at {low}"
            )
            warnings.warn(text, StoreWarning, stacklevel=5)
            return low
        if committed >= 0:
            return committed
        known = self._members.first_offsets.get((topic, queue_id))
        if known is not None:
            return known
        if isinstance(self._start, int) and topic in self.topics:
            return self._source.offset_at(topic, queue_id, self._start)
        return low

    def assignment(self) -> list[Queue]:
        """Return the queues (topic, queue id) that this member reads now, sorted."""
        self._check_open()
        self._assign()
        return sorted(self._readers)

    # ---- reading ------------------------------------------------------------------------------

    def poll(self, max_count: int = POLL_COUNT, timeout: float | None = None) -> list[MessageExt]:
        """Return the next messages; wait for the first one.

        Parameters
        ----------
        max_count : int, 1 or more
        timeout : seconds to wait for a message; 0: do not wait; None: without a limit

        Returns
        -------
        list of MessageExt, in the order of each queue; [] after the timeout

        Raises
        ------
        StoreStateError: the consumer or the store is closed
        MessagesRemovedError: with on_loss="raise", messages were removed before they were read; the
        next call continues with the first one left
        DamagedMessageError: a message cannot be read; the next call continues behind it
        """
        count = max(1, whole_number("max_count", max_count))
        deadline = None if timeout is None else self._source.now_ns() + int(timeout * 1e9)
        while True:
            self._check_open()
            self._source.wait_dispatched()
            seen = self._moved.sequence()
            self._assign()
            found = self._take(count)
            if found:
                return found
            left = None if deadline is None else (deadline - self._source.now_ns()) / 1e9
            if left is not None and left <= 0:
                return []
            self._moved.wait(seen, left)

    def _take(self, count: int) -> list[MessageExt]:
        """Return messages that are there, from one queue after the other; each call begins with
        another queue."""
        readers = list(self._readers.values())
        self._turn += 1
        found: list[MessageExt] = []
        for number in range(len(readers)):
            reader = readers[(self._turn + number) % len(readers)]
            try:
                self._read(reader, count - len(found), found)
            except (DamagedMessageError, MessagesRemovedError) as error:
                if not found:
                    raise
                reader.error = error  # the next call raises it
            if len(found) == count:
                break
        return found

    def _read(self, reader: _Reader, count: int, found: list[MessageExt]) -> None:
        """Append messages of one queue to `found`."""
        error, reader.error = reader.error, None
        if error is not None:
            raise error
        wanted = len(found) + count
        while len(found) < wanted:
            messages = reader.messages or self._begin_read(reader)
            if messages is None:
                return
            try:
                for message in itertools.islice(messages, wanted - len(found)):
                    found.append(message)
                    reader.offset = message.queue_offset + 1
            except DamagedMessageError as damaged:
                reader.offset = damaged.stop
                raise
            if len(found) < wanted:  # all up to `stop`, which may not be the end any more
                reader.offset, reader.messages = max(reader.offset, reader.stop), None

    def _begin_read(self, reader: _Reader) -> Iterator[MessageExt] | None:
        """Begin to read a queue up to its end; None: it has no further message."""
        low, high = self._source.bounds(reader.topic, reader.queue_id)
        self._check_removed(reader, low)
        if reader.offset >= high:
            return None
        reader.stop = high
        reader.messages = self._source.messages(reader.topic, reader.queue_id, reader.offset, high)
        return reader.messages

    def _check_removed(self, reader: _Reader, low: int) -> None:
        """Continue with the first message left if messages before it were removed."""
        if reader.offset < low:
            first, reader.offset = reader.offset, low
            if self._on_loss == "raise":
                raise MessagesRemovedError(reader.topic, reader.queue_id, first, low)

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over messages, one by one; wait where there is none."""
        while True:
            yield from self.poll(1)

    # ---- positions ----------------------------------------------------------------------------

    def position(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue that this member reads."""
        return self._reader_of(topic, queue_id).offset

    def positions(self) -> dict[Queue, int]:
        """Return {(topic, queue id): offset of the next message} of the queues of this member."""
        self._check_open()
        self._assign()
        return {queue: reader.offset for queue, reader in self._readers.items()}

    def lag(self) -> int:
        """Return how many messages of the queues of this member were not read yet."""
        self._source.wait_dispatched()
        ends = {q: self._source.bounds(*q)[1] for q in self.positions()}
        return sum(max(0, end - self._readers[queue].offset) for queue, end in ends.items())

    def seek(self, topic: str, queue_id: int, offset: int | Literal["earliest", "latest"]) -> None:
        """Continue at another offset of a queue that this member reads.

        Raises StoreFormatError: the offset is not within the queue.
        """
        reader = self._reader_of(topic, queue_id)
        low, high = self._source.bounds(topic, queue_id)
        if offset == "earliest" or offset == "latest":
            wanted = low if offset == "earliest" else high
        else:
            wanted = exact_int64("offset", offset)
            if not low <= wanted <= high:
                raise StoreFormatError(
                    f"offset {wanted} of {topic}/{queue_id}: must be {low} to {high}"
                )
        reader.offset, reader.messages, reader.error = wanted, None, None

    def _reader_of(self, topic: str, queue_id: int) -> _Reader:
        self._check_open()
        self._assign()
        reader = self._readers.get((topic, queue_id))
        if reader is None:
            raise StoreStateError(
                f"{shown(topic)}/{queue_id}: not one of the queues of this consumer; "
                "`assignment()` lists them"
            )
        return reader

    def commit(self) -> None:
        """Make the positions of this member durable.

        Every message that `poll` or the iteration has returned counts as handled.

        Durability: the positions and the messages before them are on the device on return.
        Raises StoreStateError on a read-only store; StoreIOError.
        Source: RocketMQ 4.9.3 ConsumerOffsetManager#commitOffset, #persist.
        """
        self._check_open()
        if self._positions.commit is None:
            raise StoreStateError("the store is open read-only: positions cannot be committed")
        self._positions.commit({queue: one.offset for queue, one in self._readers.items()})

    def retry(self, message: MessageExt, delay_level: int = 0) -> None:
        """Have the group read a message again later, as 4.9.3 does.

        The message is put into the topic %RETRY%group with a delay that grows with each attempt,
        and after the `retryMaxTimes` of the group into %DLQ%group. This consumer reads the retry
        topic too; its messages have the property RETRY_TOPIC, the topic they were put to first.

        Parameters
        ----------
        message : one that this consumer has returned
        delay_level : int, 0: 3 plus the number of attempts before; negative: a dead letter at once

        Raises PutError, StoreStateError.
        Source: RocketMQ 4.9.3 SendMessageProcessor#asyncConsumerSendMsgBack.
        """
        self._check_open()
        if self._source.retry is None:
            raise StoreStateError("the store is open read-only: no message can be put")
        self._source.retry(message, delay_level)

    # ---- life cycle ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise StoreStateError("the consumer is closed")

    def close(self) -> None:
        """Leave the group: other members read the queues of this one. Commits nothing.

        A `poll` that waits in another thread raises StoreStateError.
        """
        self.closed = True
        self._members.leave(self._number)
        self._moved.signal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._readers)} queues"
        return f"<pyrocketstore.Consumer {self.group!r} of {', '.join(self.topics)}: {state}>"
