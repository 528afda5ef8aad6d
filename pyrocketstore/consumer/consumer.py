"""Consumer: one member of a group, which reads its share of the queues of topics."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pyrocketstore.arguments.read_arguments import queue_of, start_of, timeout_of
from pyrocketstore.arguments.scalars import INT64_MAX, exact_int
from pyrocketstore.consume_queue.unit_mark import UnitMark, restart_text
from pyrocketstore.consumer.groups import Group, Queue
from pyrocketstore.consumer.retry import retry_topic
from pyrocketstore.consumer.waiters import LoopWaiters
from pyrocketstore.display import shown
from pyrocketstore.errors import (
    DamagedMessageError,
    MessagesRemovedError,
    OffsetOutOfRange,
    StoreFormatError,
    StoreStateError,
    StoreWarning,
    UnknownTopicError,
)
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.system._env import Event

if TYPE_CHECKING:
    from pyrocketstore.record._message import MessageExt

#: Messages of one `poll`, and of one read by the iterator.
POLL_COUNT = 32

Start = Literal["earliest", "latest"] | int


class Source(NamedTuple):
    """The calls of a store that a consumer makes. Each raises StoreStateError once it is closed.

    wait_dispatched : callable(), makes messages readable that are there; see Arrivals.look
    queue_ids : callable(topic), its queue ids, sorted
    bounds : callable(topic, queue_id), the first readable queue offset and the end
    bounds_on_disk : as bounds, after a look for files that the owner of the store has deleted
    lacks_units : callable(), True while queues may end too early; a position behind an end is kept
    mark : callable(topic, queue_id, offset), the message before a queue offset
    was_made_again : callable(topic, queue_id, mark), whether the queue has lost that message, since
        its topic was removed and made again
    messages : callable(topic, queue_id, start, stop), an iterator of messages
    offset_at : callable(topic, queue_id, timestamp_ms), a queue offset
    now_ns : callable(), a monotonic time
    wait : callable(seen, timeout), waits for messages; see Arrivals.wait
    longest_sleep : callable(), of a coroutine; see Arrivals.longest_sleep
    retry : callable(message, delay_level), puts a message into the retry topic
    """

    wait_dispatched: Callable[[], object]
    queue_ids: Callable[[str], list[int]]
    bounds: Callable[[str, int], tuple[int, int]]
    bounds_on_disk: Callable[[str, int], tuple[int, int]]
    lacks_units: Callable[[], bool]
    mark: Callable[[str, int, int], UnitMark | None]
    was_made_again: Callable[[str, int, UnitMark | None], bool]
    messages: Callable[[str, int, int, int], Iterator[MessageExt]]
    offset_at: Callable[[str, int, int], int]
    now_ns: Callable[[], int]
    wait: Callable[[int, float | None], None]
    longest_sleep: Callable[[], float | None]
    retry: Callable[[MessageExt, int], object]


class Positions(NamedTuple):
    """The calls with which a consumer keeps its positions; see ConsumerOffsets.

    query : callable(topic, queue_id), the offset of the next message, -1 without one
    is_known : callable(topic), True if the group has a position in a queue of the topic
    commit : callable({queue: (offset, mark)}), makes positions durable
    begin : as commit, for queues in which the group has no position
    """

    query: Callable[[str, int], int]
    is_known: Callable[[str], bool]
    commit: Callable[[dict[Queue, tuple[int, UnitMark | None]]], None]
    begin: Callable[[dict[Queue, tuple[int, UnitMark | None]]], None]


@dataclasses.dataclass(slots=True)
class _Reader:
    """The reading of one queue: the queue offset at which it continues.

    mark : a message that the queue had when the reader or its last iterator was made
    messages : an iterator from there to `stop`; a read takes it away first, so that one that was
        interrupted begins again at `offset`
    error : to be raised before the queue is read on; its `start` is `offset`
    """

    topic: str
    queue_id: int
    offset: int
    mark: UnitMark | None
    stop: int = 0
    messages: Iterator[MessageExt] | None = None
    error: DamagedMessageError | MessagesRemovedError | None = None


class _State(NamedTuple):
    """The messages that a consumer has read and returned.

    It is replaced as a whole by the last step of a call. A signal handler that raises, and another
    thread, find the old state or the new one.

    readers : {queue: reader} of the queues of this member
    fetched : (message, queue, queue offset) of messages that were read
    handed : the number of them that were handed out
    assigned : (version of the group, {topic: queue ids}) that `readers` was made for
    """

    readers: dict[Queue, _Reader]
    fetched: list[tuple[MessageExt, Queue, int]]
    handed: int
    assigned: tuple[int, dict[str, list[int]]] | None

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of a queue that is handed out."""
        for at in range(self.handed, len(self.fetched)):
            if self.fetched[at][1] == queue:
                return self.fetched[at][2]
        return self.readers[queue].offset


class Consumer:
    """A member of a group that reads messages in the order of each queue.

    `Store.consumer` makes it. Members of one group in this process share the queues of their
    topics; each queue has one reader. Positions that are not committed are lost with the consumer:
    the next one reads these messages again.

    Iteration waits for messages and never ends; a loop ends by `break`. `async for` does so in an
    asyncio program.

    A consumer that is dropped without `close` leaves its group too.

    Threads: any; several threads in one consumer get different messages. A signal handler that
    raises ends a call and loses no message: those that were not returned are returned next.

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
        waiters: LoopWaiters,
        topics: Sequence[str],
        start: Start,
        on_loss: str,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        self.group = members.name
        self.topics = list(topics)
        self.closed = False
        self._source = source
        self._positions = positions
        self._members = members
        self._moved = moved
        self._waiters = waiters
        self._start = start
        self._on_loss = on_loss
        self._on_close = on_close
        self._all_topics = [*topics, retry_topic(members.name)]
        self._turn = 0
        self._state = _State({}, [], 0, None)
        #: positions in queues that were removed while this member read them
        self._removed: dict[Queue, int] = {}
        ends = self._ends()
        self._number = members.join(self, frozenset(self._all_topics), ends)
        if ends is not None:
            try:
                self._commit_begin(ends)
            except BaseException:
                self.close()
                raise

    def _commit_begin(self, ends: dict[Queue, tuple[int, UnitMark | None]]) -> None:
        """Make the positions durable at which the group begins, also those of another member that
        does so now."""
        # A member that begins elsewhere may have read messages that it has not committed yet.
        if self._members.begins_at_end():
            first = self._members.first_offsets.copy()  # another member may have begun earlier
            self._positions.begin({queue: first.get(queue, end) for queue, end in ends.items()})

    # ---- assignment ---------------------------------------------------------------------------

    def _ends(self) -> dict[Queue, tuple[int, UnitMark | None]] | None:
        """With "latest", return the ends of the queues at this time, and their last messages; None
        with another `start`.

        A topic in which the group has a position has none: its other queues were made later.
        """
        self._source.wait_dispatched()
        if self._start != "latest":
            return None
        topics = [topic for topic in self.topics if not self._positions.is_known(topic)]
        queues = [(topic, i) for topic in topics for i in self._source.queue_ids(topic)]
        ends = {queue: self._source.bounds(*queue)[1] for queue in queues}
        return {queue: (end, self._source.mark(*queue, end)) for queue, end in ends.items()}

    def _assign(self) -> _State:
        """Take the share of the queues that this member has now; return the state."""
        while True:
            state = self._state
            version = self._members.version
            queues = {topic: self._source.queue_ids(topic) for topic in self._all_topics}
            if state.assigned == (version, queues):
                return state
            # A call that is interrupted from here on is repeated as a whole.
            if not self._replace(state, state._replace(assigned=None)):
                continue
            state = self._state
            mine = self._members.assign(self._number, queues)
            texts: list[str] = []
            readers = {
                queue: state.readers.get(queue) or self._new_reader(*queue, texts) for queue in mine
            }
            fetched = [one for one in state.fetched[state.handed :] if one[1] in readers]
            removed = self._removed | {queue: state.position(queue) for queue in state.readers}
            if self._replace(state, _State(readers, fetched, 0, (version, queues))):
                self._removed = {
                    queue: at for queue, at in removed.items() if queue[1] not in queues[queue[0]]
                }
                _warn(texts)

    def _replace(self, state: _State, new: _State) -> bool:
        """Replace the state unless another thread, or a signal handler, has done so meanwhile."""
        if self._state is state:  # no thread and no handler runs before the next step
            self._state = new
            return True
        return False

    def _new_reader(self, topic: str, queue_id: int, texts: list[str]) -> _Reader:
        """Return the reader of a queue that this member begins to read; `texts` gets warnings."""
        offset = self._first_offset(topic, queue_id, texts)
        position = self._removed.get((topic, queue_id), 0)
        if position:
            texts.append(self._restart_text(topic, queue_id, position, offset))
        return _Reader(topic, queue_id, offset, self._source.mark(topic, queue_id, offset))

    def _first_offset(self, topic: str, queue_id: int, texts: list[str]) -> int:
        committed = self._positions.query(topic, queue_id)
        low, high = self._source.bounds(topic, queue_id)
        if committed > high and not self._source.lacks_units():
            texts.append(self._restart_text(topic, queue_id, committed, low))
            return low
        if committed >= 0:
            return committed
        known, mark = self._members.first_offsets.get((topic, queue_id), (None, None))
        if known is not None and not self._source.was_made_again(topic, queue_id, mark):
            return known
        if isinstance(self._start, int) and topic in self.topics:
            return self._source.offset_at(topic, queue_id, self._start)
        return low

    def _restart_text(self, topic: str, queue_id: int, position: int, low: int) -> str:
        place = f"position {position} of group {self.group}"
        return restart_text(topic, queue_id, place, "the group", low)

    def assignment(self) -> list[Queue]:
        """Return the queues (topic, queue id) that this member reads now, sorted."""
        self._check_open()
        self._source.wait_dispatched()
        return sorted(self._assign().readers)

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
        StoreTypeError, StoreFormatError: an argument is not valid
        MessagesRemovedError: with on_loss="raise", messages were removed before they were read; the
        next call continues with the first one left
        DamagedMessageError: a message cannot be read; the next call continues behind it
        """
        count = exact_int("max_count", max_count, 1, INT64_MAX)
        deadline = self._deadline(timeout)
        while True:
            state = self._ready(count, deadline)
            stop = min(state.handed + count, len(state.fetched))
            found = [message for message, _, _ in state.fetched[state.handed : stop]]
            new = state._replace(handed=stop)
            # Nothing runs between these steps: the messages are handed out, or they are not.
            if self._state is state:
                self._state = new
                return found

    def _deadline(self, timeout: float | None) -> int | None:
        seconds = timeout_of(timeout)
        return None if seconds is None else self._source.now_ns() + int(seconds * 1e9)

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over messages, one by one; wait where there is none."""
        while True:
            state = self._ready(POLL_COUNT, None)
            new = _State(state.readers, state.fetched, state.handed + 1, state.assigned)
            message = state.fetched[state.handed][0]
            if self._state is state:
                self._state = new
                yield message

    async def apoll(
        self, max_count: int = POLL_COUNT, timeout: float | None = None
    ) -> list[MessageExt]:
        """Return the next messages as `poll` does; wait for the first one without blocking a loop.

        A cancelled call loses no message: it ends while it waits, before it takes any.
        """
        deadline = self._deadline(timeout)
        while True:
            seen = self._moved.sequence()
            found = self.poll(max_count, 0)
            if found:
                return found
            left = None if deadline is None else (deadline - self._source.now_ns()) / 1e9
            if left is not None and left <= 0:
                return []
            await self._sleep(seen, left)

    async def _sleep(self, seen: int, timeout: float | None = None) -> None:
        """Wait for a signal, or until it is time to look again."""
        longest = self._source.longest_sleep()
        if longest is not None and (timeout is None or longest < timeout):
            timeout = longest
        await self._waiters.wait(seen, timeout)

    def __aiter__(self) -> Self:
        """Iterate over messages with `async for`, one by one; wait where there is none."""
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message. Other tasks run at each read, of up to 32 messages."""
        import asyncio  # not above: its import takes as long as that of the engine

        state = self._state
        if state.fetched and state.handed == len(state.fetched):
            await asyncio.sleep(0)
        while True:
            seen = self._moved.sequence()
            state = self._ready(POLL_COUNT, 0)
            if state.handed == len(state.fetched):
                await self._sleep(seen)
                continue
            new = state._replace(handed=state.handed + 1)
            message = state.fetched[state.handed][0]
            if self._state is state:
                self._state = new
                return message

    def _ready(self, count: int, deadline_ns: int | None) -> _State:
        """Return a state with messages to hand out; after the time limit, one that may have none.

        Up to `count` messages are read if there is none.
        """
        while True:
            self._check_open()
            state = self._state
            version = -1 if state.assigned is None else state.assigned[0]
            if state.handed < len(state.fetched) and version == self._members.version:
                return state
            self._source.wait_dispatched()
            seen = self._moved.sequence()
            state = self._assign()
            if state.handed == len(state.fetched):
                new = self._fetch(state, count)
                if new is None:
                    continue
                state = new
            if state.handed < len(state.fetched):
                return state
            left = None if deadline_ns is None else (deadline_ns - self._source.now_ns()) / 1e9
            if left is not None and left <= 0:
                return state
            if self._state is state:
                self._source.wait(seen, left)

    def _fetch(self, state: _State, count: int) -> _State | None:
        """Read messages that are there, from one queue after the other; each call begins with
        another queue. Return the new state; None: another thread has replaced the state."""
        queues = list(state.readers)
        self._turn += 1
        readers = dict(state.readers)
        texts: list[str] = []
        fetched: list[tuple[MessageExt, Queue, int]] = []
        for number in range(len(queues)):
            queue = queues[(self._turn + number) % len(queues)]
            reader = self._read(readers[queue], count - len(fetched), fetched, texts)
            readers[queue] = reader
            error = reader.error
            if error is not None and not fetched:
                readers[queue] = dataclasses.replace(reader, offset=error.stop, error=None)
                new = state._replace(readers=readers, fetched=fetched, handed=0)
                if self._state is not state:
                    return None
                self._state = new
                with contextlib.suppress(StoreWarning):  # the error is raised in any case
                    _warn(texts)
                raise error
            if len(fetched) == count:
                break
        new = state._replace(readers=readers, fetched=fetched, handed=0)
        if not self._replace(state, new):
            return None
        _warn(texts)
        return new

    def _read(
        self,
        old: _Reader,
        count: int,
        fetched: list[tuple[MessageExt, Queue, int]],
        texts: list[str],
    ) -> _Reader:
        """Append messages of one queue to `fetched`, and warnings to `texts`; return where the
        reading continues."""
        if old.error is not None:
            return old
        iterator, old.messages = old.messages, None  # one step: no two calls get it
        reader = dataclasses.replace(old, messages=iterator)
        queue = reader.topic, reader.queue_id
        while count > 0:
            if reader.messages is None:
                self._begin_read(reader, texts)
            if reader.messages is None:
                break
            first = reader.offset
            messages: list[MessageExt] = []
            try:
                messages.extend(itertools.islice(reader.messages, count))
            except DamagedMessageError as error:
                reader.error = error
            at_end = len(messages) < count and reader.error is None
            places = [(one, queue, _offset_in(queue, one)) for one in messages]
            reader.offset = places[-1][2] + 1 if places else first
            if reader.error is not None:
                reader.offset = max(reader.offset, reader.error.start)
            elif at_end:
                reader.messages = None
                if not self._source.was_made_again(*queue, reader.mark):
                    stop = min(reader.stop, self._source.bounds(*queue)[1])
                    reader.offset = max(reader.offset, stop)
            places = self._without_removed(reader, first, places)
            fetched += places
            count -= len(places)
            if reader.error is not None:
                break
        return reader

    def _without_removed(
        self, reader: _Reader, first: int, places: list[tuple[MessageExt, Queue, int]]
    ) -> list[tuple[MessageExt, Queue, int]]:
        """Return the messages up to those that were removed before they could be read.

        The iterator passes over them in silence.
        """
        if self._on_loss != "raise" or reader.offset - first == len(places):
            return places
        # The iterator may know of removed files that the store does not know yet.
        low = self._source.bounds_on_disk(reader.topic, reader.queue_id)[0]
        for number, (_, _, at) in enumerate([*places, (None, None, reader.offset)]):
            if first < min(at, low):
                reader.offset, reader.messages = first, None
                reader.error = MessagesRemovedError(
                    reader.topic, reader.queue_id, first, min(at, low)
                )
                return places[:number]
            first = at + 1
        return places

    def _begin_read(self, reader: _Reader, texts: list[str]) -> None:
        """Begin to read a queue up to its end, if it has a further message."""
        topic, queue_id = reader.topic, reader.queue_id
        while True:
            low, high = self._source.bounds(topic, queue_id)
            if high == 0 and queue_id not in self._source.queue_ids(topic):
                return
            is_other = self._source.was_made_again(topic, queue_id, reader.mark)
            if reader.offset > high and self._source.lacks_units():
                return
            # The end of a removed queue whose files are gone counts as its first message. The mark
            # shows later that another queue has the next messages.
            if reader.offset > high or is_other:
                texts.append(self._restart_text(topic, queue_id, reader.offset, low))
                reader.offset, reader.mark = low, self._source.mark(topic, queue_id, low)
            if reader.offset < low:
                reader.mark = self._source.mark(topic, queue_id, low)
                if self._on_loss == "raise":
                    reader.error = MessagesRemovedError(topic, queue_id, reader.offset, low)
                    return
                reader.offset = low
            if reader.offset == high:
                return
            mark = self._source.mark(topic, queue_id, high)
            try:
                messages = self._source.messages(topic, queue_id, reader.offset, high)
            except (OffsetOutOfRange, UnknownTopicError):
                continue  # messages, or the topic, were removed since
            marks = reader.mark, mark
            if any(self._source.was_made_again(topic, queue_id, one) for one in marks):
                continue
            reader.messages, reader.stop, reader.mark = messages, high, mark or reader.mark
            return

    # ---- positions ----------------------------------------------------------------------------

    def position(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue that this member reads."""
        queue = queue_of(topic, queue_id)
        return self._position(self._owned(*queue), queue)

    def positions(self) -> dict[Queue, int]:
        """Return {(topic, queue id): offset of the next message} of the queues of this member."""
        self._check_open()
        self._source.wait_dispatched()
        state = self._assign()
        return {queue: self._position(state, queue) for queue in state.readers}

    def _position(self, state: _State, queue: Queue) -> int:
        if self._source.was_made_again(*queue, state.readers[queue].mark):
            return self._source.bounds(*queue)[0]
        return state.position(queue)

    def lag(self) -> int:
        """Return how many messages of the queues of this member were not returned yet; removed ones
        do not count."""
        bounds = {
            queue: (at, *self._source.bounds(*queue)) for queue, at in self.positions().items()
        }
        return sum(max(0, high - max(at, low)) for at, low, high in bounds.values())

    def seek(self, topic: str, queue_id: int, offset: int | Literal["earliest", "latest"]) -> None:
        """Continue at another offset of a queue that this member reads.

        Raises StoreFormatError: the offset is not within the queue.
        """
        topic, queue_id = queue = queue_of(topic, queue_id)
        place = start_of("offset", offset, "a queue offset")
        while True:
            state = self._owned(topic, queue_id)
            low, high = self._source.bounds(topic, queue_id)
            wanted = place if isinstance(place, int) else low if place == "earliest" else high
            if not low <= wanted <= high:
                raise StoreFormatError(
                    f"offset {wanted} of {topic}/{queue_id}: must be {low} to {high}"
                )
            mark = self._source.mark(topic, queue_id, wanted)
            readers = {**state.readers, queue: _Reader(topic, queue_id, wanted, mark)}
            fetched = [one for one in state.fetched[state.handed :] if one[1] != queue]
            if self._replace(state, _State(readers, fetched, 0, state.assigned)):
                return

    def _owned(self, topic: str, queue_id: int) -> _State:
        """Return the state. Raises StoreStateError if this member does not read the queue."""
        self._check_open()
        self._source.wait_dispatched()
        state = self._assign()
        if (topic, queue_id) not in state.readers:
            raise StoreStateError(
                f"{shown(topic)}/{queue_id}: not one of the queues of this consumer; "
                "`assignment()` lists them"
            )
        return state

    def commit(self) -> None:
        """Make the positions of this member durable.

        Every message that `poll` or the iteration has returned counts as handled.

        Durability: the positions and the messages before them are on the device on return.
        Raises StoreStateError on a read-only store; StoreIOError.
        Source: RocketMQ 4.9.3 ConsumerOffsetManager#commitOffset, #persist.
        """
        self._check_open()
        state = self._state
        readers = state.readers.items()
        places = {queue: (state.position(queue), reader.mark) for queue, reader in readers}
        self._positions.commit(places)

    def retry(self, message: MessageExt, delay_level: int = 0) -> None:
        """Have the group read a message again later, as 4.9.3 does.

        The message is put into the topic %RETRY%group with a delay that grows with each attempt,
        and after the `retryMaxTimes` of the group into %DLQ%group. This consumer reads the retry
        topic too; its messages have the property RETRY_TOPIC, the topic they were put to first.

        Parameters
        ----------
        message : one that this consumer has returned
        delay_level : int, 0: 3 plus the number of attempts before; negative: a dead letter at once

        Raises PutError, StoreStateError, StoreTypeError, StoreFormatError.
        Source: RocketMQ 4.9.3 SendMessageProcessor#asyncConsumerSendMsgBack.
        """
        self._check_open()
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
        self._moved.signal()  # for a `poll` of this consumer
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._state.readers)} queues"
        return f"<pyrocketstore.Consumer {self.group!r} of {', '.join(self.topics)}: {state}>"


def _warn(texts: list[str]) -> None:
    for text in texts:
        warnings.warn(text, StoreWarning, stacklevel=5)


def _offset_in(queue: Queue, message: MessageExt) -> int:
    """Return the offset of a message in the queue that it was read from."""
    topic, queue_id = queue
    if message.topic == topic and message.queue_id == queue_id:
        return message.queue_offset
    properties = message.properties
    names = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "")
    offsets = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "")
    for light_queues in (True, False):
        for further in (
            further_queues(names, offsets, message.queue_id, light_queues=light_queues) or ()
        ):
            if further[:2] == queue and further.queue_offset is not None:
                return further.queue_offset
    return message.queue_offset
