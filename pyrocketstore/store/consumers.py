"""The consumers of a `Store`: what each of them calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyrocketstore.arguments.read_arguments import group_of, loss_word_of, start_time_of
from pyrocketstore.arguments.scalars import Time, entries_of, exact_int32
from pyrocketstore.consume_queue.unit_mark import UnitMark, mark_before, was_made_again
from pyrocketstore.consumer.consumer import Consumer, Positions, Source, Start
from pyrocketstore.consumer.groups import ConsumerGroups, Group, Queue
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.retry import retry_message, retry_topic
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.consumer.waiters import LoopWaiters
from pyrocketstore.errors import StoreFormatError, StoreStateError, StoreTypeError
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import TRANS_HALF_TOPIC, MessageExtBrokerInner, check_topic
from pyrocketstore.system.signal_shield import shielded
from pyrocketstore.transaction.positions import TRANSACTION_GROUP

if TYPE_CHECKING:
    from pyrocketstore.commit_log._puts import PutMessageResult
    from pyrocketstore.consumer.arrivals import Arrivals
    from pyrocketstore.consumer.consumer_filters import ConsumerFilters
    from pyrocketstore.filter.sql92 import Sql92Filter
    from pyrocketstore.message_store.default_message_store import DefaultMessageStore

#: {queue: (the offset of the next message, the message before it)}
_Offsets: TypeAlias = "dict[Queue, tuple[int, UnitMark | None]]"


class ConsumerPosition(NamedTuple):
    """The committed position of a group in one queue.

    position : int, offset of the next message; max_offset : int, the end of the queue; lag : int,
    messages in between
    """

    group: str
    topic: str
    queue_id: int
    position: int
    max_offset: int
    lag: int


class StoreConsumers:
    """Make the consumers of a store, and keep their positions.

    Parameters
    ----------
    engine : DefaultMessageStore
    check : callable(), raises StoreStateError where the store is closed
    put : callable(message), returns the result or raises PutError
    arrivals : callable(), returns a way to wait for messages

    The files of ROOT/config are read by the first consumer.

    Threads: any.
    """

    def __init__(
        self,
        engine: DefaultMessageStore,
        check: Callable[[], None],
        put: Callable[[MessageExtBrokerInner], PutMessageResult],
        arrivals: Callable[[], Arrivals],
    ) -> None:
        env, root, config = engine.env, engine.root, engine.config
        self.offsets = ConsumerOffsets(env, root, lmq=config.enable_lmq)
        self.subscriptions = SubscriptionGroups(env, root, lmq=config.enable_lmq)
        self._engine = engine
        self._check = check
        self._put = put
        self._arrivals = arrivals
        self._groups = ConsumerGroups(engine.moved.signal)
        self._waiters = LoopWaiters(engine.moved)
        self._loaded = False

    def load(self) -> None:
        """Read positions and groups, once. Raises StoreCorruptionError, StoreIOError."""
        shielded(self._load)

    def _load(self) -> None:
        with self._engine.life_lock:
            self._check()
            if self._loaded:
                return
            self._engine.check_root()
            self.offsets.load()
            self.subscriptions.load()
            plan = self._engine.plan
            if plan is not None and not plan.clean:
                self.offsets.note_unclean_stop()
                self.subscriptions.note_unclean_stop()
            self._engine.closing.at_clean_stop.append(self.offsets.persist)
            self._engine.removals.forget_positions = self.offsets.forget_topic
            ends = (self.offsets.close, self.subscriptions.close, self._waiters.close)
            self._engine.closing.at_end.extend(ends)
            self._loaded = True

    def _load_again(self) -> None:
        """Read the positions that another process may have written meanwhile."""

    def positions(self) -> list[ConsumerPosition]:
        """Return the committed positions of all groups, sorted."""
        self.load()
        self._load_again()
        found = []
        for (group, topic, queue_id), position in self.offsets.positions().items():
            end = self._bounds(topic, queue_id)[1]
            lag = max(0, end - max(position, 0))
            found.append(ConsumerPosition(group, topic, queue_id, position, end, lag))
        return sorted(found)

    def half_offset(self) -> int:
        """Return the queue offset of the first half message that may be undecided; 0 without a
        position. Raises StoreError."""
        self.load()
        self._load_again()
        return max(0, self.offsets.query_offset(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0))

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        start: Start | Time,
        on_loss: str,
        messages: Callable[[str, int, int, int, bool], Iterator[MessageExt]],
        where: Sql92Filter | None = None,
    ) -> Consumer:
        """Return a new member of a group; see `Store.consumer`.

        `messages` is called with (topic, queue_id, start, stop, all_tags), and selects messages by
        `where`, which is registered here.
        """
        group = group_of(group)
        names = _topics_of(topics)
        begin = start_time_of("start", start)
        on_loss = loss_word_of(on_loss)
        self.load()
        engine = self._engine
        filters = shielded(lambda: self._add_group(group, names, where))
        arrivals = self._arrivals()
        source = Source(
            arrivals.look,
            self._queue_ids,
            self._bounds,
            self._bounds_on_disk,
            engine.lacks_units,
            self._mark,
            self._was_made_again,
            lambda topic, queue_id, first, stop: messages(
                topic, queue_id, first, stop, topic == retry_topic(group)
            ),
            self._offset_at,
            engine.env.monotonic_ns,
            arrivals.wait,
            arrivals.longest_sleep,
            lambda message, level: self._retry(group, message, level),
        )
        positions = Positions(
            lambda topic, queue_id: self.offsets.query_offset(group, topic, queue_id),
            lambda topic: self.offsets.is_known(group, topic),
            lambda offsets: self._commit(group, offsets),
            lambda offsets: self._commit(group, offsets, begins=True),
        )
        members = self._groups.group(group)
        on_close = None if filters is None else functools.partial(_end_filters, filters, members)
        return Consumer(
            source, positions, members, engine.moved, self._waiters, names, begin, on_loss, on_close
        )

    def _add_group(
        self, group: str, topics: Sequence[str], where: Sql92Filter | None
    ) -> ConsumerFilters | None:
        """Have the group and its filter in their files; return the filters if it has one."""
        if group == TRANSACTION_GROUP:
            reason = "its positions say which transactions are decided; use another name"
            raise StoreFormatError(f"group {group}: {reason}")
        self._check()
        self.subscriptions.ensure(group)
        self.subscriptions.persist()
        if where is None:
            return None
        with self._engine.life_lock:
            self._check()
            filters = self._engine.filters.get()
        for topic in topics:
            filters.register(group, topic, where)
        filters.persist()
        return filters

    # ---- called by consumers --------------------------------------------------------------------

    def _queue_ids(self, topic: str) -> list[int]:
        self._check()
        return list(self._engine.queue_table.of_topic(topic))

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        self._check()
        reads = self._engine.reads
        queue = reads.queues.find(topic, queue_id)
        low = queue.first_readable_offset(max(0, reads.commit_log.get_min_offset()))
        return low, queue.get_max_offset_in_queue()

    def _bounds_on_disk(self, topic: str, queue_id: int) -> tuple[int, int]:
        self._check()
        self._engine.reads.commit_log.mapped_file_queue.forget_deleted()
        return self._bounds(topic, queue_id)

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        self._check()
        reads = self._engine.reads
        queue = reads.queues.find(topic, queue_id)
        return queue.lower_bound_by_time(timestamp_ms, reads.commit_log.pickup_store_timestamp)

    def _mark(self, topic: str, queue_id: int, queue_offset: int) -> UnitMark | None:
        self._check()
        reads = self._engine.reads
        queue, log_end = reads.queues.find(topic, queue_id), reads.commit_log.get_max_offset()
        return mark_before(queue, queue_offset, log_end)

    def _was_made_again(self, topic: str, queue_id: int, mark: UnitMark | None) -> bool:
        self._check()
        return was_made_again(self._engine.reads.queues.find(topic, queue_id), mark)

    def _commit(self, group: str, offsets: _Offsets, *, begins: bool = False) -> None:
        """Make positions durable, after the messages before them; not those in a queue that has
        lost its marked message, and with `begins` only in queues without a position."""

        def commit() -> None:
            self._check()
            for _, queue_id in offsets:
                self.offsets.check_queue(group, queue_id)
            # First: another group's commit may write every position that is noted.
            self._engine.flush()
            for (topic, queue_id), (offset, mark) in offsets.items():
                # A drop that removes the queue after this check forgets the position then.
                if not self._was_made_again(topic, queue_id, mark):
                    self.offsets.commit_offset(group, topic, queue_id, offset, begins=begins)
            self.offsets.persist()

        shielded(commit)

    def _retry(self, group: str, message: MessageExt, delay_level: int) -> None:
        if not isinstance(message, MessageExt):
            raise StoreTypeError(f"message must be a MessageExt, not {type(message).__name__}")
        delay_level = exact_int32("delay_level", delay_level)
        self._check()
        times = self.subscriptions.retry_max_times(group)
        self._put(retry_message(message, group, times, delay_level))


class ReadingConsumers(StoreConsumers):
    """The consumers of a store that is open read-only, which change no file."""

    def _load_again(self) -> None:
        self._engine.check_root()
        shielded(self.offsets.load)

    def _add_group(self, group: str, topics: Sequence[str], where: Sql92Filter | None) -> None:
        """Write nothing."""

    def _commit(self, group: str, offsets: _Offsets, *, begins: bool = False) -> None:
        if not begins:
            raise StoreStateError("the store is open read-only: positions cannot be committed")

    def _retry(self, group: str, message: MessageExt, delay_level: int) -> None:
        raise StoreStateError("the store is open read-only: no message can be put")


def _topics_of(topics: Any) -> list[str]:
    """Return the topics of a consumer, each once. Raises StoreTypeError, StoreFormatError."""
    if issubclass(type(topics), str):
        return [check_topic(topics, "topics")]
    entries = enumerate(entries_of("topics", topics, "a str or a sequence of str"))
    names = list(dict.fromkeys(check_topic(one, f"topics[{number}]") for number, one in entries))
    if not names:
        raise StoreFormatError("topics: a consumer needs at least one topic")
    return names


def _end_filters(filters: ConsumerFilters, members: Group) -> None:
    """Take note that the filters of a group without members are dead."""
    if not members.size:
        shielded(lambda: filters.note_end(members.name))
