"""The public API: `pyrocketstore.open(path)` returns a `Store`."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments._numbers_and_bodies import body_bytes
from pyrocketstore.arguments.columns import column_of
from pyrocketstore.arguments.read_arguments import (
    loss_word_of,
    queue_id_of,
    start_of,
    timeout_of,
)
from pyrocketstore.arguments.scalars import (
    INT64_MAX,
    Time,
    check_kind,
    check_times,
    exact_flag,
    exact_text,
    time_of,
    whole_number,
)
from pyrocketstore.cleaning.topic_removal import check_removable
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.config.message_store_config import (
    BrokerRole,
    MessageStoreConfig,
    absolute_path,
)
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.display import logger, printable, shown
from pyrocketstore.errors import (
    StoreError,
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
    StoreWarning,
    without_frames,
)
from pyrocketstore.flush.flush_services import GroupCommitService
from pyrocketstore.message_store.current_sizes import load_with_sizes
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.message_store.topic_names import check_known
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.reading._messages import MergedMessages, messages_between
from pyrocketstore.reading.skipped import MessageReader, QueueDamage, SkippedMessages
from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._text import UniqueIds
from pyrocketstore.record.message import Message, check_properties, check_topic, join_keys
from pyrocketstore.record.tags import TagsExpression, tags_filter
from pyrocketstore.store._store_calls import PutPath, StoreCalls
from pyrocketstore.store.key_gaps import find_key_gaps
from pyrocketstore.store.new_queues import NewQueues
from pyrocketstore.store.opening import (
    Opening,
    base_settings,
    check_of,
    forget_notices,
    notices_of,
    store_host_of,
    with_sizes,
)
from pyrocketstore.store.presets import check_preset
from pyrocketstore.store.puts import BatchPuts, SlowAppends, SlowPuts
from pyrocketstore.store.replication import make_client, with_master
from pyrocketstore.store.rows import KeyHits
from pyrocketstore.store.unreadable_hits import UnreadableHits
from pyrocketstore.system._open_state import StoreState
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import imported, shielded

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.cleaning.retention import Trimmed
    from pyrocketstore.consumer.arrivals import Arrivals
    from pyrocketstore.consumer.consumer import Consumer
    from pyrocketstore.filter.sql92 import Sql92Filter
    from pyrocketstore.ha.ha_client import ReplicaState
    from pyrocketstore.message_store.store_stats import StoreStats
    from pyrocketstore.reading.by_queue import QueueRange
    from pyrocketstore.schedule.pending import DelayedMessages
    from pyrocketstore.store.consumers import ConsumerPosition, StoreConsumers
    from pyrocketstore.store.following import FollowedMessages
    from pyrocketstore.store.settings import AnyPath, StoreSettings
    from pyrocketstore.store.transactions import StoreTransactions, Transaction
    from pyrocketstore.verify.report import VerifyReport

LOG = logger(__name__)

Body = bytes | bytearray | memoryview
Removed = TypeVar("Removed")
Offsets = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
#: Few programs filter.
MATCHING = "pyrocketstore.reading.matching"
#: Of a `read` or `read_batch`: wanted tags, on_corrupt, check_crc, and what gets the skipped ones.
ReadOptions = tuple[TagsExpression | None, str, bool, SkippedMessages]


def open(
    path: AnyPath,
    *,
    config: MessageStoreConfig | AnyPath | None = None,
    read_only: bool = False,
    unique_key: bool = False,
    topics_json: bool = True,
    store_host: str | None = None,
    strict: bool = False,
    preset: Literal["small"] | None = None,
    env: Env | None = None,
    transaction_check: Callable[[Transaction], object] | None = None,
    follow: str | None = None,
    follow_from: Literal["first", "last"] | int | None = None,
    **settings: Unpack[StoreSettings],
) -> Store:
    """Open a store directory: load and recover its files, and start its services.

    Parameters
    ----------
    path : the root directory; created if it is missing, unless `read_only`. Relative paths, here
        and in the settings, count from the working directory at this call
    config : a MessageStoreConfig, or the path of a broker.conf
    read_only : create, write and lock nothing; another process may own and write the store
    unique_key : add the property UNIQ_KEY to each message, as Java's clients do
    topics_json : maintain ROOT/config/topics.json; a broker serves only topics in this file
    store_host : "ip:port", the store host in each record; default `brokerIP1:listenPort` of the
        broker.conf, or 127.0.0.1:10911
    strict : raise an error for a line of a broker.conf that would otherwise cause a warning
    preset : "small": sizes of new files for a store of at most some 100 MB; a store with one
        message takes less than 1 MiB. Settings and existing files take precedence
    env : an Env in place of the operating system's, for tests
    transaction_check : callable(Transaction), asked by a thread of the store about each transaction
        that is undecided `transaction_time_out` ms after its birth, every
        `transaction_check_interval` ms. It returns "commit", "rollback" or None, for unknown. After
        `transaction_check_max` answers of None the transaction is discarded: its message goes to
        the topic TRANS_CHECK_MAX_TIME_TOPIC
    follow : "host:port" of a broker's HA service (its listenPort + 1): copy its log as it grows, so
        that every message can be read, queried and consumed here. Puts are refused. What is
        copied is not acknowledged. See docs/replication.md
    follow_from : where the copy begins in a directory without a log: "first", the broker's first
        file (asked of the port before that of `follow`), "last", its last file, or a physical
        offset, the first byte of a file
    settings : fields of MessageStoreConfig, for example `flush_disk_type`. File sizes that are not
        given are detected from the files. The store deletes no expired file unless
        `file_reserved_time`, `disk_max_used_space_ratio` or a broker.conf is given

    Raises
    ------
    StoreStateError: the store is already open
    StoreCorruptionError, StoreIOError: the files are damaged, or a system call failed
    StoreTypeError, StoreFormatError: an argument or a setting is not valid

    Source: RocketMQ 4.9.3 DefaultMessageStore#load, #start.
    """
    check_kind("env", env, Env, optional=True)
    root = absolute_path(path, "path")
    read_only, strict = exact_flag("read_only", read_only), exact_flag("strict", strict)
    unique_key = exact_flag("unique_key", unique_key)
    topics_json = exact_flag("topics_json", topics_json)
    sizes = check_preset(preset)
    check = check_of(transaction_check, read_only=read_only)
    used = Env() if env is None else env
    notices: list[str] = []

    def open_store() -> Store:
        noticed: list[str] = []
        given = base_settings(root, config, strict, settings, noticed)
        base, master = with_master(given, follow, follow_from, read_only=read_only)

        def opened(final: MessageStoreConfig) -> Store:
            notices[:] = noticed
            keeps_topics = topics_json and not read_only
            more = read_only, store_host, unique_key, keeps_topics, notices, check, master
            return (ReadOnlyStore if read_only else Store)(Opening(used, base, final, *more))

        if not read_only:
            return opened(with_sizes(used, base, False, sizes))
        used.require_directory(root)
        return load_with_sizes(
            used,
            lambda: with_sizes(used, base, True),
            opened,
            lambda one: one.message_store.plan,
            Store.close,
        )

    try:
        store, refused = shielded(open_store, Store.close), None
    except StoreStateError as error:
        refused = without_frames(error)
    if refused is not None:  # here, so that the caller's frame is the last but one
        raise refused
    try:  # here, where the caller is known
        for notice in notices:
            try:
                warnings.warn(notice, StoreWarning, stacklevel=2)
            except StoreWarning:  # warnings are errors: this one is given, the next opening follows
                forget_notices(store.message_store.files, [notice])
                raise
        forget_notices(store.message_store.files, notices)
    except BaseException:
        store.close()
        raise
    return store


class Store(StoreCalls):
    """A store directory that `pyrocketstore.open` has opened: put, read, query.

    A store that becomes unreferenced is closed, with a ResourceWarning. Iterators of `read`,
    coroutines of `aput`, and `message_store` count as references.

    Threads: every method from any thread. In a forked child, `close` does nothing, and every other
    call raises StoreStateError.

    Attributes
    ----------
    path : str, the root directory
    read_only : bool
    store_host : str, "ip:port" in each record
    message_store : DefaultMessageStore, the engine, with RocketMQ's own methods
    """

    _mode, _consumers_class = "", "StoreConsumers"

    def __init__(self, opening: Opening) -> None:
        if not isinstance(opening, Opening):
            raise StoreTypeError("a Store is opened by pyrocketstore.open(path)")
        config = opening.config
        self.read_only = opening.read_only
        self.path = config.store_path_root_dir
        given = opening.store_host
        self.store_host = (
            store_host_of(config, read_only=self.read_only) if given is None else given
        )
        self._state = StoreState(self.path, self.read_only)
        topics = None
        if opening.topics_json:
            topics = TopicConfigFile(opening.env, os.path.join(self.path, "config", "topics.json"))
        self._new_queues = NewQueues(config, topics)
        self.message_store = DefaultMessageStore(
            config,
            env=opening.env,
            read_only=self.read_only,
            on_new_queue=self._new_queues.add,
            cleans=config.enables_cleaning,
            topics=topics,
        )
        self._engine: Engine = self.message_store.engine
        self._transaction_check = opening.transaction_check
        self._make_put_paths(opening.unique_key)
        self.message_store.load()
        self.message_store.closing.at_end.append(self.message_store.moved.signal)
        self._state.open()
        self.message_store.closing.on_dead = self._state.stop_puts
        try:
            self._key_search = self._make_key_search(self._engine.files)
            self._log = self.message_store.commit_log
            self._notices: set[str] = set()
            opening.notices.extend(self._new_notices())
            self._start(opening)
        except BaseException:
            self.close()
            raise

    def _new_notices(self) -> list[str]:
        """The damage that loading the files has found and no earlier call has returned."""
        engine = self.message_store
        found = [] if engine.plan is None else list(notices_of(engine.files, engine.plan))
        found += engine.index_service.notices()
        new = [notice for notice in found if notice not in self._notices]
        self._notices.update(new)
        return new

    def _make_put_paths(self, unique_key: bool) -> None:
        """The ways of puts into the log: with and without the wait until they are durable."""
        engine, state, host = self._engine, self._state, self.store_host
        core = engine.files.commit_log.core
        ids = UniqueIds(engine.env, host) if unique_key else None
        self._slow_puts = SlowPuts(engine, state, host, ids)
        self._put_path = PutPath(core, host, state, self._slow_puts, ids)
        slow_appends = SlowAppends(engine, state, host, ids)
        self._append_path = PutPath(core, host, state, slow_appends, ids)
        self._batch_puts = BatchPuts(self._put_path, self._slow_puts)
        self._consumers: StoreConsumers | None = None
        self._transactions: StoreTransactions | None = None

    def _make_key_search(self, files: LoadedFiles) -> KeySearch:
        """The search in files, which `refresh` may have loaded."""
        search = KeySearch(
            files.commit_log.core,
            files.commit_log.mapped_file_queue,
            files.index_service,
            None if self.read_only else files.dispatcher,
            self._engine.wait_dispatched,
        )
        search.gaps = find_key_gaps(files)
        search.unreadable = UnreadableHits(files.commit_log)
        search.min_offsets = files.commit_log.min_offsets
        return search

    def _start(self, opening: Opening) -> None:
        engine = self._engine
        self.message_store.start()
        service = engine.services.flush_service
        if isinstance(service, GroupCommitService):
            self._put_path.wait_in(service.group)
        slave = opening.config.broker_role is BrokerRole.SLAVE
        bounded = engine.async_puts.max_unforced_bytes > 0
        if not (slave or bounded):
            self._state.allow_fast_puts()
        engine.on_alive = self._state.resume_puts
        if not engine.files.running_flags.is_writeable():
            self._state.stop_puts()
        cleaning = engine.services.clean_resource
        if cleaning is not None and cleaning.notice is not None:
            opening.notices.append(cleaning.notice)
        if self._transaction_check is not None:
            self._all_transactions()
        if opening.master is not None:
            config = opening.config
            client = make_client(engine.env, engine.copied_log, opening.master, config)
            engine.services.start_copy(client)

    # ---- life cycle ---------------------------------------------------------------------------

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StoreError as unclean:
            if error is None:
                raise
            # The caller expects the error of the body.
            LOG.error("the store was not closed cleanly: %s", unclean)
            error.add_note(f"and the store was not closed cleanly: {unclean}")

    def __repr__(self) -> str:
        state = self._state.name
        if state == "closed" and not self.closed:
            state = "closing"
        return f"<pyrocketstore.Store {self.path!r}, {state}{self._mode}>"

    def close(self) -> None:
        """Dispatch and flush everything, mark the stop as clean, and release the directory.

        A second call does nothing. If Ctrl-C interrupted the first call, the second one waits until
        the first one's work has ended; until then the directory stays locked. A signal handler may
        call `close` wherever it interrupts the store, and may then end the process.

        Durability: all puts are on the device.

        Raises
        ------
        StoreError: not everything is on the device, even if that was reported before. Everything is
        released, the file `abort` remains, and the next opening recovers. If the body of a `with`
        raised an exception, that exception gets a note instead.
        """
        self._state.stop_puts()
        if self.message_store.closing.pid != os.getpid():
            return
        if self._state.is_open:
            self._state.close()
            _release_column_memory()
        if not self.message_store.life.has_ended:
            self.message_store.shutdown()

    @property
    def closed(self) -> bool:
        """True once the store was closed to the end: by `close`, or at the exit of the interpreter;
        also in the child of a fork.

        False while a close works, and after one that was interrupted. The store then refuses every
        call but `close`, which waits for the rest.
        """
        engine = self.message_store
        return not self._state.is_open and (
            engine.life.has_ended or engine.closing.pid != os.getpid()
        )

    @property
    def replication(self) -> ReplicaState | None:
        """The state of the copy of a master's log, as a value that does not change; None without
        `follow`, and without the settings of a slave.

        Threads: any, also after `close`.
        """
        if self.read_only:
            return None
        client = self.message_store.services.ha_client
        return None if client is None else client.state

    def _while_open(self) -> StoreState:
        """A context that raises StoreStateError where the store is closed before or meanwhile."""
        return self._state

    # ---- puts ---------------------------------------------------------------------------------

    def put_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        queue_ids: int | Iterable[int | None] | None = None,
        tags: Iterable[str | None] | None = None,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        properties: Iterable[Mapping[str, str] | None] | None = None,
        born_host: str | None = None,
        delay_levels: int | Iterable[int | None] = 0,
    ) -> Offsets:
        """Append many messages in the given order; each is an ordinary single record.

        Parameters
        ----------
        bodies : sequence of bytes-like objects: a list, an Arrow array, or a NumPy array of dtype O
            or V (S is refused, because it drops zeros at the end)
        queue_ids, tags, keys, properties : None, or one entry per message. An entry is None or as
            in `put`. `queue_ids` may be one int for all messages
        delay_levels : one int for all messages, or one entry per message, as `delay_level` of
            `put`; the offset of a delayed message is that in the queue of its level

        `properties` may be an Arrow map array, but no list of its scalars.

        Returns
        -------
        (queue_offsets, phy_offsets) : int64[n], int64[n] (bytes)

        Raises
        ------
        StoreTypeError, StoreFormatError, PutError with a `count` of 0: a message cannot be stored;
        nothing is in the log
        PutError: `count` is the number of messages that are in the log; the call is not atomic
        StoreStateError: closed or read-only; nothing is in the log

        Durability: as `put`, for all messages together.
        """
        return self._batch_puts.put_many(
            topic, bodies, queue_ids, tags, keys, properties, born_host, delay_levels
        )

    def put_batch(
        self,
        topic: str,
        messages: Iterable[Body | Message | Mapping[str, Any]],
        queue_id: int = 0,
        *,
        tags: Iterable[str | None] | None = None,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        properties: Iterable[Mapping[str, str] | None] | None = None,
    ) -> PutMessageResult:
        """Append a batch as 4.9.3 does: to one queue, all or nothing, of at most maxMessageSize.

        Parameters
        ----------
        messages : sequence of bytes-like bodies, of `Message`, or of mappings with `body`, `tags`,
            `keys`, `properties`, `flag`
        tags, keys, properties : columns as in `put_many`, the fastest form. With any of them, all
            messages must be bytes-like bodies

        A batch cannot be delayed, as in 4.9.3: `put_many` can.

        Raises PutError, StoreFormatError, StoreStateError.
        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessages.
        """
        return self._batch_puts.put_batch(topic, messages, queue_id, tags, keys, properties)

    # ---- asyncio ------------------------------------------------------------------------------

    async def aput(
        self,
        topic: str,
        body: Body,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        light_queues: Sequence[str] | None = None,
    ) -> PutMessageResult:
        """Append one message as `put` does, for asyncio.

        The message is in the log, and has its offset, when the call first suspends. Calls of one
        task, or calls that `asyncio.gather` starts, therefore keep their order. Calls for one queue
        complete in the order of their offsets. Under SYNC_FLUSH the task then waits for the device;
        one fsync serves all waiting calls. While the last 32 flushes took at most 0.3 ms each, the
        event loop flushes in its own thread; otherwise, and always with `sync_flush_by_service`,
        the thread of the flush service does. A task whose last 16 puts overlapped no other put
        flushes in the call itself, and suspends every 0.3 ms, so that other tasks run.

        The settings `max_outstanding_puts` and `max_outstanding_put_bytes`, and under ASYNC_FLUSH
        `max_unforced_bytes`, limit the outstanding puts. At a limit, the call waits its turn before
        it puts. If the task is cancelled before its turn, nothing is put; if later, the message
        stays.

        Threads: any event loop of any thread. Durability: as `put`.
        """
        rest = (delay_level, flag, born_timestamp, born_host)
        if light_queues is not None:
            properties = self._slow_puts.light_properties(light_queues, properties, delay_level)
        puts = self.message_store.async_puts
        if not puts.bounded:
            return self._put_path.put(topic, body, queue_id, tags, keys, properties, *rest)
        if type(body) is not bytes:
            body = body_bytes(body)  # now: the caller may change theirs while this waits
        import asyncio  # not above: its import takes as long as that of the engine

        loop = asyncio.get_running_loop()
        if puts.sync and puts.is_lone(asyncio.current_task(loop)):
            return self._put_path.put(topic, body, queue_id, tags, keys, properties, *rest)
        with puts.room(len(body), loop) as room:
            if not room.reserve():
                keys = join_keys(keys)  # now, as the body
                properties = None if properties is None else check_properties(properties)
                await room.wait()
            path = self._append_path
            if not puts.sync:
                return path.put(topic, body, queue_id, tags, keys, properties, *rest)
            with puts.order:
                result = path.put(topic, body, queue_id, tags, keys, properties, *rest)
                future = puts.add_to_loop(result, room, loop)
        puts.ask_from_loop(loop)
        return self._slow_puts.checked(await future, 1)

    async def aput_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        queue_ids: int | Iterable[int | None] | None = None,
        tags: Iterable[str | None] | None = None,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        properties: Iterable[Mapping[str, str] | None] | None = None,
        born_host: str | None = None,
        delay_levels: int | Iterable[int | None] = 0,
    ) -> Offsets:
        """Append many messages as `put_many` does, in a thread of the loop's executor.

        The order of these messages relative to concurrent calls is not defined. If the task is
        cancelled meanwhile, the messages are stored nevertheless.
        """
        import asyncio

        put_many = self._batch_puts.put_many
        columns = (queue_ids, tags, keys, properties, born_host, delay_levels)
        return await asyncio.to_thread(put_many, topic, bodies, *columns)

    async def aflush(self) -> None:
        """Flush as `flush` does, in a thread of the loop's executor."""
        import asyncio

        await asyncio.to_thread(self.flush)

    # ---- waiting ------------------------------------------------------------------------------

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until all messages of earlier puts can be read by queue and queried by key.

        Returns False if `timeout` (seconds, None for no limit) expired first.

        Raises StoreTypeError, StoreFormatError: `timeout`. StoreIOError, StoreCorruptionError:
        units or keys could not be written; the store repairs queues and index as soon as it can.
        """
        self._state.check()
        if not self.message_store.wait_dispatched(timeout):
            return False
        self.message_store.check_complete()
        return True

    def flush(self) -> None:
        """Flush all messages of earlier puts to disk, with their queue units and index entries.

        Raises StoreIOError, StoreCorruptionError: a flush failed, or units or keys could not be
        written; the log is flushed then, and the store repairs its queues and index as soon as it
        can.
        """
        self._state.check_writable()
        self.message_store.flush_all()

    def stats(self) -> StoreStats:
        """Return counts, rates and times of puts and reads, outstanding work, and failures."""
        self._state.check()
        return self.message_store.stats()

    def refresh(self) -> int:
        """Make everything readable that another process has written to this read-only store.

        The time depends on what is new.

        Returns
        -------
        int, the bytes by which the end of the log has moved: 0 if no message is new; negative if
        the log was cut, as recovery after a power cut does

        Raises
        ------
        StoreStateError: the store is closed, or is open for writing
        StoreIOError, StoreCorruptionError: the store answers as before; the next call tries again

        Iterators of `read` continue to their own end.

        Threads: any. A concurrent reader finds the state before or after the call.
        """
        self._state.check()
        moved = self.message_store.refresh()
        for notice in self._new_notices():
            warnings.warn(notice, StoreWarning, stacklevel=2)
        return moved

    # ---- queues -------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of the topics that have a queue, sorted."""
        self._state.check()
        self._engine.wait_dispatched()
        return self._engine.files.queue_table.topics()

    def queues(self, topic: str) -> list[int]:
        """Return the queue ids of a topic, sorted."""
        topic = exact_text("topic", topic)
        self._state.check()
        self._engine.wait_dispatched()
        return list(self._engine.files.queue_table.of_topic(topic))

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        exact_text("topic", topic)
        queue_id = queue_id_of(queue_id)
        self._state.check()
        self._engine.wait_dispatched()
        return self._engine.files.reads.queues.find(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the first queue offset whose message the log still has.

        For an empty queue this is its end, for a queue that does not exist 0.

        Raises StoreTypeError, StoreFormatError: an argument.
        """
        with self._state:
            queue = self._queue(topic, queue_id)
            log = self._engine.files.reads.commit_log
            log.mapped_file_queue.forget_deleted()
            return queue.first_readable_offset(max(0, log.get_min_offset()))

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the queue's end, the offset of its next message; 0 for an unknown queue.

        Raises StoreTypeError, StoreFormatError: an argument.
        """
        with self._state:
            return self._queue(topic, queue_id).get_max_offset_in_queue()

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: Time) -> int:
        """Return the first offset stored at a time or later, or the end.

        `timestamp_ms` is an int in Unix ms, a datetime with a zone, or ISO 8601 text.

        This holds if the store times of the queue rise. After the clock was set back, the binary
        search can return a later message or the end. The search of 4.9.3 has this limit too.

        Raises StoreTypeError, StoreFormatError: an argument.
        """
        timestamp_ms = time_of("timestamp_ms", timestamp_ms)
        with self._state:
            return self._queue(topic, queue_id).lower_bound_by_time(
                timestamp_ms,
                self._engine.files.reads.commit_log.pickup_store_timestamp,
            )

    # ---- reads --------------------------------------------------------------------------------

    def _read_otherwise(
        self,
        topic: str,
        queue_id: int | None,
        start: int | None,
        stop: int | None,
        where: str | Sql92Filter | None,
        options: ReadOptions,
    ) -> MessageReader:
        """Do a `read` that is not of one queue without a filter."""
        if queue_id is not None:
            return _matching(where, lambda: self._messages(topic, queue_id, start, stop, options))
        if start is not None or stop is not None:
            raise StoreFormatError("start and stop belong to one queue: pass a queue_id with them")
        _, on_corrupt, _, skipped = options
        QueueDamage("", 0, on_corrupt, skipped)  # refuses a wrong word also without a queue
        topic = exact_text("topic", topic)
        ids = self.queues(topic)
        if not ids:
            self._check_topic(topic)
        parts = [self._messages(topic, i, None, None, options) for i in ids]
        merged = MergedMessages(parts, skipped)
        return merged if where is None else _matching(where, lambda: merged)

    def _warn_of_missing_units(self, queue: ConsumeQueue) -> None:
        """Warn of messages behind the end of a queue whose units could not be written."""
        cause = self.message_store.running_flags.write_error
        end = queue.get_max_offset_in_queue()
        text = f"{queue.topic}/{queue.queue_id}: messages from queue offset {end} on are left out"
        reason = f"their units could not be written yet: {cause}"
        warnings.warn(printable(f"{text}: {reason}"), StoreWarning, stacklevel=5)

    def _check_topic(self, topic: str) -> None:
        """Raise UnknownTopicError for a topic to which nobody has put."""
        engine = self.message_store
        check_known(
            engine.reads,
            engine.topics,
            engine.check_root,
            topic,
            self._delay_offsets,
            self._half_offset,
        )

    def _delay_offsets(self) -> dict[int, int]:
        """Return the queue offsets of the next messages to deliver, by level."""
        return self.message_store.delay_offsets.offsets()

    def _half_offset(self) -> int:
        """Return the queue offset of the first half message that counts; 0 if that is unknown."""
        try:
            return self._all_consumers().half_offset()
        except StoreError:
            return 0  # a damaged file of positions

    def read_batch(
        self,
        topic: str,
        queue_id: int = 0,
        *,
        start: int,
        max_count: int = 65536,
        max_bytes: int = 64 << 20,
        columns: Sequence[str] | None = None,
        tags: str | None = "*",
        where: str | Sql92Filter | None = None,
        on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> pyarrow.RecordBatch:
        """Return a range of a queue as one Arrow record batch.

        Parameters
        ----------
        start : first queue offset
        max_count : int, 1 or more, maximum number of queue units to read
        max_bytes : maximum size of the stored records, and of the decompressed bodies; one record
            always fits
        columns : names of message attributes, None for all; an empty list: rows without columns
        tags, where, check_crc : as in `read`
        on_corrupt : as in `read`. "raise": this call raises, with the messages that cannot be read
            as `start` and `stop` of the error. "skip": a message whose body cannot be decompressed
            is omitted too. With `where`, this also counts for messages that the filter rejects

        Returns
        -------
        pyarrow.RecordBatch. Its schema metadata has `next_offset`, the `start` of the next call:
        it is greater than `start` unless `start` is the end of the queue, also if a filter leaves
        no rows;
        with on_corrupt="skip" also `skipped_count`, and `skipped`, a JSON array with the fields of
        each SkippedRange

        Raises
        ------
        MissingExtraError without pyarrow; UnknownTopicError, OffsetOutOfRange, DamagedMessageError
        (a StoreCorruptionError), StoreIOError, StoreTypeError, StoreFormatError
        """
        count = whole_number("max_count", max_count)
        byte_count = min(whole_number("max_bytes", max_bytes), INT64_MAX)
        checked = exact_flag("check_crc", check_crc)
        options = (tags_filter(tags), on_corrupt, checked, SkippedMessages(None))
        batches = imported("pyrocketstore.reading.batches")  # few programs need columns
        with self._state:
            part, first, end = self._part(topic, queue_id, start, None, options)
            if count < 1:  # a loop over `next_offset` would never end
                raise StoreFormatError(f"max_count {shown(count)}: must be 1 or more")
            stop = min(end, first + count)
            limit = max(byte_count, 0)
            if where is None:
                return batches.read_record_batch(part, first, stop, limit, columns)
            matching = imported(MATCHING)
            passing, wanted = matching.where_of(where), matching.columns_with_properties(columns)
            batch = batches.read_record_batch(part, first, stop, limit, wanted)
            return matching.matching_rows(batch, passing, columns)

    # ---- consumers ----------------------------------------------------------------------------

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        start: Literal["earliest", "latest"] | Time = "earliest",
        tags: str | None = "*",
        where: str | Sql92Filter | None = None,
        on_loss: str = "raise",
        on_corrupt: str = "raise",
    ) -> Consumer:
        """Return a new member of a group, which reads its share of the queues of topics.

        The positions of the group are those of ROOT/config/consumerOffset.json, which a broker
        shares. On a read-only store they are kept in memory, and begin at those of the file.

        Parameters
        ----------
        group : str, 1 to 255 of the characters ``%|a-zA-Z0-9_-``; at most 120 to `retry` messages
        topics : one or several topics, which may have no queue yet
        start : where a group begins in a queue without a position: "earliest" is the first message
            left, "latest" the end at this call, a time the first message stored then or later. A
            time is an int in Unix ms, a datetime with a zone, or ISO 8601 text. Queues that are
            made later are read from their first message on
        tags, where : as in `read`; from the retry topic, all messages are read
        on_loss : the treatment of messages that were removed before they were read. "raise": `poll`
            raises MessagesRemovedError and continues behind them; "skip": it continues
        on_corrupt : as in `read`

        Raises
        ------
        StoreStateError, StoreTypeError, StoreFormatError; StoreCorruptionError: a file of
        ROOT/config is damaged

        Durability: a new group is in ROOT/config/subscriptionGroup.json on return, and the filter
        `where` in ROOT/config/consumerFilter.json, where 4.9.3 has it. With "latest", a group that
        has no position in a topic has those of the ends of its queues.
        """
        wanted = tags_filter(tags)
        passing = None if where is None else imported(MATCHING).where_of(where)
        skipped = SkippedMessages()
        counts = self.message_store.read_counts

        def messages(
            topic: str, queue_id: int, first: int, stop: int, all_tags: bool
        ) -> Iterator[MessageExt]:
            options = (None if all_tags else wanted, on_corrupt, False, skipped)
            with self._state:
                part, first, end = self._part(topic, queue_id, first, stop, options)
                part.damage.is_replaced = self._when_replaced(part, end)
            found = messages_between(part, first, end, self._state, self, counts)
            if passing is None or all_tags:
                return found
            return _matching(passing, lambda: found)

        QueueDamage("", 0, on_corrupt, skipped)  # refuses a wrong word
        made = self._all_consumers()
        return made.consumer(group, topics, start, on_loss, messages, passing)

    def follow(
        self,
        topic: str,
        queue_id: int | None = None,
        *,
        start: Literal["earliest", "latest"] | int = "earliest",
        tags: str | None = "*",
        where: str | Sql92Filter | None = None,
        timeout: float | None = None,
        on_loss: str = "raise",
        on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> FollowedMessages:
        """Return an iterator over the messages of a topic that waits for more.

        A read-only store is refreshed when its owner, another process, has written to it. The
        iterator looks at the log for that, at intervals of 1 ms to 100 ms.

        Parameters
        ----------
        topic : may have no queue yet
        queue_id : None: all queues of the topic, those made later included. Messages that arrive
            together are merged by store time
        start : "earliest" is the first message left, "latest" the end at this call; an int is a
            queue offset and requires `queue_id`. Queues that are made later are read from their
            first message on
        tags, where, on_corrupt, check_crc : as in `read`
        timeout : seconds without such a message after which the iteration ends; None: never
        on_loss : the treatment of messages that were removed before they were read. "raise": the
            iterator raises MessagesRemovedError, and its next call continues behind them; "skip":
            it continues

        Returns
        -------
        FollowedMessages, an iterator of MessageExt. Its `close` ends the iteration, from any
        thread; `skipped` has the messages that could not be read

        Raises
        ------
        This call: OffsetOutOfRange, StoreTypeError, StoreFormatError, StoreStateError; what
        `refresh` raises
        The iterator: StoreStateError: the store was closed. MessagesRemovedError,
        DamagedMessageError, StoreIOError, StoreCorruptionError: its next call continues

        If a queue was deleted and made again, the iterator continues with its first message, and a
        StoreWarning reports that.
        """
        if queue_id is not None:
            queue_id = queue_id_of(queue_id)
        start = start_of("start", start, "a queue offset")
        if isinstance(start, int) and queue_id is None:
            raise StoreFormatError("start belongs to one queue: pass a queue_id with it")
        QueueDamage("", 0, on_corrupt, SkippedMessages())  # refuses a wrong word
        on_loss = loss_word_of(on_loss)
        wanted, checked = tags_filter(tags), exact_flag("check_crc", check_crc)
        passing = None if where is None else imported(MATCHING).where_of(where)
        topic = exact_text("topic", topic)
        if not self._engine.files.queue_table.of_topic(topic):
            check_topic(topic)  # no put can make it: there would be nothing to wait for
        module = imported("pyrocketstore.store.following")  # few programs follow
        options = module.FollowOptions(
            topic, queue_id, start, wanted, timeout_of(timeout), on_loss,
            on_corrupt, checked, passing,
        )  # fmt: skip
        self._state.check()
        engine = self.message_store
        calls = module.ReadCalls(
            self._while_open,
            engine.read_counts,
            engine.moved,
            lambda: engine.reads,
            self._when_replaced,
        )
        found: FollowedMessages = module.FollowedMessages(self._arrivals(), calls, options)
        return found

    def _arrivals(self) -> Arrivals:
        module, moved = imported("pyrocketstore.consumer.arrivals"), self.message_store.moved
        wait_dispatched = self.message_store.wait_dispatched
        found: Arrivals = module.OwnArrivals(wait_dispatched, moved.sequence, moved.wait)
        return found

    def _when_replaced(self, part: QueueRange, stop: int) -> Callable[[], bool] | None:
        """Return a function that is True once another process has replaced a queue that is read up
        to `stop`; None if no other one can."""
        return None

    def _all_consumers(self) -> StoreConsumers:
        self._state.check()
        if self._consumers is None:
            shielded(self._make_consumers)
        assert self._consumers is not None
        return self._consumers

    def _make_consumers(self) -> None:
        module = imported("pyrocketstore.store.consumers")  # few programs consume
        with self.message_store.life_lock:  # two threads must not get two tables of positions
            if self._consumers is None:
                self._consumers = getattr(module, self._consumers_class)(
                    self.message_store,
                    self._state.check,
                    self._slow_puts.put_message,
                    self._arrivals,
                )

    # ---- transactions -------------------------------------------------------------------------

    def prepare(
        self,
        topic: str,
        body: Body,
        *,
        group: str,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
    ) -> Transaction:
        """Store a message that appears in its topic once the transaction is committed.

            with store.prepare("orders", b"paid", group="shop") as transaction:
                database.execute(...)  # commits at the end of the block, else rolls back

        A transaction that is never decided, because the process ended, is found again by
        `transaction` and `transactions`, and the `transaction_check` of `open` is asked about it. A
        4.9.3 broker that opens the directory asks the producers of `group`.

        Parameters
        ----------
        group : str, the producer group
        others : as in `put`

        Raises as `put`; PutError also where the committed message would not fit.

        Durability: as `put`. Source: RocketMQ 4.9.3 TransactionalMessageServiceImpl#prepareMessage.
        """
        rest = (properties, 0, flag, born_timestamp, born_host)
        message = self._slow_puts.message_of(topic, body, queue_id, tags, keys, *rest)
        return self._all_transactions().prepare(message, group, self)

    def transaction(self, transaction_id: str) -> Transaction | None:
        """Return the undecided transaction with this id; None if it is decided, or unknown.

        Two transactions in which a Java producer has sent one `Message` have one id: the first of
        `transactions` is returned.
        """
        return self._all_transactions().transaction(transaction_id, self)

    def transactions(self) -> list[Transaction]:
        """Return the undecided transactions, in the order of their last half messages.

        A read-only store reads them again with each call, as of its last `refresh`.
        """
        return self._all_transactions().transactions(self)

    def _all_transactions(self) -> StoreTransactions:
        self._state.check()
        if self._transactions is None:
            shielded(self._make_transactions)
        assert self._transactions is not None
        return self._transactions

    def _make_transactions(self) -> None:
        module = imported("pyrocketstore.store.transactions")  # few programs use them
        with self.message_store.life_lock:
            self._state.check()
            if self._transactions is None:
                consumers = self._all_consumers()
                consumers.load()
                made: StoreTransactions = module.StoreTransactions(
                    self._engine,
                    self._slow_puts,
                    consumers.offsets,
                    self._transaction_check,
                )
                if not self.read_only:
                    made.start()
                self._transactions = made

    def consumer_positions(self) -> list[ConsumerPosition]:
        """Return the committed positions of all groups, sorted.

        A read-only store reads the file again with each call.
        """
        return self._all_consumers().positions()

    def delayed(self) -> list[DelayedMessages]:
        """Return the delayed messages that are not delivered yet, by level and real topic.

        The time is proportional to their number. A read-only store reads config/delayOffset.json
        again with each call.
        """
        pending = imported("pyrocketstore.schedule.pending")
        with self._state:
            self._engine.wait_dispatched()
            offsets, reads = self._delay_offsets(), self.message_store.reads
            clock = None if self.read_only else self.message_store.env
            found: list[DelayedMessages] = pending.delayed_messages(
                reads.commit_log, reads.queues, offsets, clock
            )
            return found

    # ---- retention ----------------------------------------------------------------------------

    def trim(self, topic: str | None = None, *, before: Time) -> Trimmed:
        """Delete old messages now: the files of the log whose newest message is older than a time.

        Only whole files are deleted, the oldest first, and never the last one; so are the files of
        queues and index that name only deleted messages. The call reads each file that it deletes,
        for its newest store time. Behind damage in a file, its last change counts.

        Parameters
        ----------
        topic : remove only the old messages of this topic. The log keeps their records until its
            files are deleted; the files of the topic's queues that name no other messages are
            deleted at once. None: all topics
        before : the time: an int in Unix ms, a datetime with a zone, or ISO 8601 text

        Returns
        -------
        Trimmed(files, size) : the deleted files of the log, and their length in bytes; with `topic`
        those of its queues

        Raises
        ------
        StoreStateError: the store is read-only or closed
        StoreIOError: a file could not be read or deleted; the next call tries again
        UnknownTopicError: the store does not know the topic
        StoreTypeError, StoreFormatError: an argument is not valid, or the topic is one of the
        broker itself

        Durability: the messages are removed durably on return.
        """
        before_ms = time_of("before", before)
        if topic is None:
            self._state.check()
            return self.message_store.trim(before_ms)
        name = self._removable(topic)
        return self._remove(lambda: self.message_store.trim_topic(name, before_ms))

    def drop_topic(self, topic: str) -> None:
        """Remove a topic: its messages, its queues, its entry in config/topics.json, and the
        positions of all groups in it.

        Reads and queries no longer find its messages. The log keeps their records until its files
        are deleted: `get` and a 4.9.3 broker still find them. A later put begins the topic again,
        at queue offset 0. Delayed messages of the topic that are not due are delivered later.

        Puts of other threads wait while the queues are removed; a message of the topic whose put
        began before may be removed too.

        Raises
        ------
        UnknownTopicError: the store does not know the topic
        StoreStateError: the store is read-only or closed
        StoreIOError: a file could not be written or deleted; the call may be repeated
        StoreTypeError, StoreFormatError: the topic is not valid, or one of the broker itself

        Durability: durable on return. After a kill, the next opening completes a removal that has
        begun.
        """
        name = self._removable(topic, self._engine.files.topic_minimums.dropping())
        self._remove(lambda: self.message_store.drop_topic(name))

    def _removable(self, topic: str, unfinished: Sequence[str] = ()) -> str:
        """Return the name of a topic of which messages may be removed: one that the store knows, or
        one whose removal has failed."""
        name = check_removable(topic)
        self._state.check()
        self.message_store.check_started()
        self._engine.wait_dispatched()
        if name not in unfinished:
            self._check_topic(name)
        return name

    def _remove(self, remove: Callable[[], Removed]) -> Removed:
        try:
            return remove()
        finally:
            self._key_search.min_offsets = self.message_store.commit_log.min_offsets

    # ---- keys ---------------------------------------------------------------------------------

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        begin: Time = 0,
        end: Time | None = None,
        max_num: int = 32,
    ) -> KeyHits:
        """Find messages as `query` does, for many keys; return columns instead of messages.

        Keys are compared, as with `exact`. One StoreWarning reports the messages that cannot be
        read, for all keys together.
        """
        since = time_of("begin", begin)
        until = INT64_MAX if end is None else time_of("end", end)
        check_times(since, until)
        topic, count = exact_text("topic", topic), whole_number("max_num", max_num)
        texts = [exact_text("a key", key) for key in column_of("keys", keys, None)]
        with self._state:
            return KeyHits(*self._key_search.query_many(topic, texts, since, until, count))

    def get(self, phy_offset_or_msg_id: int | str) -> MessageExt | None:
        """Return the message at a physical offset or with an offset message id, or None.

        A body with a wrong CRC is returned too, as in RocketMQ; its `is_crc_valid` is False.
        """
        wanted = phy_offset_or_msg_id
        if type(wanted) is int:  # as nearly always
            phy_offset = wanted
        elif issubclass(type(wanted), str):
            phy_offset = _message.decode_message_id(exact_text("a message id", wanted))[1]
        else:
            phy_offset = whole_number("a physical offset", wanted)
        with self._state:
            if not 0 <= phy_offset <= INT64_MAX:
                return None
            self._log.commit_appended()
            return self._key_search.message_at(phy_offset)

    def get_many(self, phy_offsets: npt.ArrayLike) -> list[MessageExt | None]:
        """Return the messages at physical offsets (int64[n], bytes), such as those of `query_many`.

        An entry is None if no message begins there. Bytes within a body may look like a message.
        """
        if isinstance(phy_offsets, (str, bytes, bytearray)):
            kind = type(phy_offsets).__name__
            raise StoreTypeError(f"phy_offsets must be a sequence of int64, not {kind}")
        given = _array_of(phy_offsets)
        if given.ndim != 1:
            raise StoreTypeError(f"phy_offsets must have one dimension, not {given.ndim}")
        if given.size and given.dtype.kind not in "iu":
            raise StoreTypeError(f"phy_offsets are of type {given.dtype}, not int64")
        with self._state:
            self._log.commit_appended()
            return self._key_search.messages_at(np.ascontiguousarray(given, np.int64))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check log, queues and index against each other; change nothing, and return a report.

        The report is on the store as its recovery left it, in memory if it is read-only. After a
        kill, units and index entries that only the files lack are no problem: `rebuilt_units` and
        `rebuilt_index_entries` count them.

        Parameters
        ----------
        progress : callable(bytes done, bytes in total), or None

        Raises StoreStateError: the store is closed, or is read-only and its directory was moved or
        replaced.
        """
        given: Any = progress
        if given is not None and not callable(given):
            kind = type(given).__name__
            raise StoreTypeError(f"progress must be a callable or None, not {kind}")
        verify_store = imported("pyrocketstore.verify.run").verify_store
        with self._state:
            engine = self.message_store
            engine.wait_dispatched()
            report: VerifyReport = verify_store(engine.files, engine.check_root, progress)
            return report


class ReadOnlyStore(Store):
    """A store that is open read-only; another process may own it, and change its files."""

    _mode, _consumers_class = ", read-only", "ReadingConsumers"

    def _start(self, opening: Opening) -> None:
        """Follow the engine when `refresh` loads its parts again. It holds no reference to this."""
        engine, known = self._engine, weakref.ref(self)
        env, base = engine.env, opening.base

        def reloaded(fresh: LoadedFiles) -> Callable[[], None]:
            store = known()
            search = None if store is None else store._make_key_search(fresh)

            def install() -> None:
                store = known()
                if store is not None and search is not None:
                    store._key_search, store._log = search, fresh.commit_log

            return install

        engine.settings_of_reload = lambda: with_sizes(env, base, True)
        engine.on_reload = reloaded

    def _arrivals(self) -> Arrivals:
        module, engine = imported("pyrocketstore.store.following"), self.message_store
        make = module.owner_arrivals
        found: Arrivals = make(engine.moved, lambda: engine.commit_log, self.refresh)
        return found

    def _when_replaced(self, part: QueueRange, stop: int) -> Callable[[], bool]:
        kind = imported("pyrocketstore.store.replaced_queue").ReplacedQueue
        engine = self.message_store
        found: Callable[[], bool] = kind(engine.refresh, lambda: engine.reads, part, stop)
        return found

    def _delay_offsets(self) -> dict[int, int]:
        self.message_store.check_root()
        self.message_store.delay_offsets.load()
        return super()._delay_offsets()


def _matching(where: object, messages: Callable[[], MessageReader]) -> MessageReader:
    """Return the messages that pass a filter, which is checked first."""
    module = imported(MATCHING)
    passing = module.where_of(where)
    found: MessageReader = module.MatchingMessages(messages(), passing)
    return found


def _release_column_memory() -> None:
    """Free the memory that the columns of a batch were built in, if there was any batch."""
    pool = sys.modules.get("pyrocketstore.columns._builder")
    if pool is not None:
        pool.release_memory()


def _array_of(values: Any) -> npt.NDArray[Any]:
    """The argument `phy_offsets` as a NumPy array. Raises StoreTypeError, StoreFormatError."""
    if hasattr(values, "to_pylist"):
        values = column_of("phy_offsets", values, None)
    # A tuple: an entry's special method may change a list.
    values = tuple(values) if issubclass(type(values), list) else values
    try:
        return np.asarray(values)
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        raise StoreTypeError(f"phy_offsets cannot be read as int64: {error}") from error
