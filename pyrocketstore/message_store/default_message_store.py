"""DefaultMessageStore: one store with RocketMQ's methods, made of the parts of the other
folders.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pyrocketstore.arguments.read_arguments import (
    check_filter,
    queue_of,
    range_of,
    timeout_of,
    unit_of,
)
from pyrocketstore.arguments.scalars import (
    exact_int64,
    exact_text,
    whole_number,
)
from pyrocketstore.cleaning import queue_removal
from pyrocketstore.cleaning.retention import Trimmed
from pyrocketstore.cleaning.topic_removal import TopicRemoval, check_removable
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.observers import (
    Arriving,
    BitMap,
    Dispatch,
    MessageArrivingListener,
    Observers,
    arriving_of,
)
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.display import logger, printable, shown
from pyrocketstore.errors import (
    PutError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
    without_frames,
)
from pyrocketstore.files._mapped_file import SelectMappedBufferResult
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.allocate_mapped_file_service import make_allocate_service
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.lock_file import store_lock
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.files.transient_store_pool import TransientStorePool
from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import (
    SYNC_POINT,
)
from pyrocketstore.message_store.encoded_puts import PutResults
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.loading import Loading, LoadingToWrite
from pyrocketstore.message_store.message_puts import MessagePuts
from pyrocketstore.message_store.reports import StoreReports
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.message_store.stats import StoreStatsService
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.reading.rocketmq_reads import (
    GetMessageResult,
    MessageFilter,
    PulledRecords,
    QueryMessageResult,
    StoreReads,
)
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.record.message import (
    LMQ_PREFIX,
    PROPERTY_DELAY_TIME_LEVEL,
    SCHEDULE_TOPIC,
    MessageExtBatch,
    MessageExtBrokerInner,
    parse_java_int,
    settle,
)
from pyrocketstore.recovery.apply import flush_recovered
from pyrocketstore.recovery.clean_stop import locked_ms
from pyrocketstore.recovery.current_sizes import load_with_sizes
from pyrocketstore.recovery.other_formats import (
    check_checkpoint,
    check_format,
)
from pyrocketstore.recovery.owner_trace import owner_of
from pyrocketstore.recovery.plan import RecoveryPlan
from pyrocketstore.recovery.refresh import Follower
from pyrocketstore.recovery.repair import repair
from pyrocketstore.recovery.replay import replay_observed
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.schedule.service import ScheduleMessageService
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import Life, LifeState, set_by_load, set_by_start
from pyrocketstore.system.live_stores import Attempts, was_removed
from pyrocketstore.system.signal_shield import (
    Shield,
    check_abandoned,
    imported,
    one_at_a_time,
    shielded,
)
from pyrocketstore.system.stalls import StallLog

if TYPE_CHECKING:
    from pyrocketstore.consumer.consumer_filters import ConsumerFilters
    from pyrocketstore.message_store.broker_stats import BrokerStatsManager
    from pyrocketstore.message_store.store_stats import StoreStats

LOG = logger(__name__)

Putable = TypeVar("Putable", MessageExtBrokerInner, MessageExtBatch)
Removed = TypeVar("Removed")

#: 4.9.3's number of free buffers without a pool.
INTEGER_MAX = (1 << 31) - 1

#: The engines of all open stores of this process: a fork disables the child's copies, and the exit
#: closes them. They do not keep the object of a caller alive.
OPEN_STORES: set[DefaultMessageStore] = set()
#: Interval of checks whether the wait for another thread's close was abandoned (s).
LOOK_S = 0.1


class DefaultMessageStore:
    """A RocketMQ store in one directory.

    Parameters
    ----------
    config : MessageStoreConfig
    env : Env or None, the interface to the operating system
    read_only : bool, nothing is created, written, locked or mapped writable: recovery happens in
        memory
    on_new_queue : callable(topic, queue_id), called before the first put to a queue
    cleans : bool, expired files are deleted and a full disk ends the puts, as the settings say;
        `retention_age`, `retention_bytes` and `retention_free_bytes` have their effect without it
    topics : TopicConfigFile or None, which `load` reads and the flushes of the queues write
    message_arriving_listener : callable, or object with such a method `arriving`, or None: called
        with (topic, queue id, queue offset + 1, tags code, store time, None, properties) for each
        message once it can be read from its queue, and for each further queue that it names
    broker_stats_manager : BrokerStatsManager or None, counts puts, gets and deliveries
    only_topics : collection of str, or None: the topics that are to be read from a read-only store.
        Others may be missing in it, and `refresh` raises StoreStateError

    The thread of ReputMessageService calls the listener, for each message that was put since
    `start`, in the order of the log; not on a SLAVE. Its exceptions are logged. While it runs,
    nothing is dispatched. It may put and read, but cannot wait for dispatch, close the store or
    remove queues: StoreStateError.

    Call `load()`, then `start()`, and `shutdown()` at the end. Outcomes that 4.9.3 reports are
    statuses.

    Services and callbacks refer to the engine of the store: a second object with the same
    `__dict__`. The object of a caller therefore ends with its last reference, whatever runs; a new
    thread then closes the engine of a store that was not shut down, with a ResourceWarning.

    Threads: any, except for load, start and shutdown.
    Source: RocketMQ 4.9.3 DefaultMessageStore.
    """

    #: of a read-only store
    follower: Follower = set_by_load()
    services: StoreServices = set_by_start()
    reput_service: ReputMessageService = set_by_start()

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        env: Env | None = None,
        read_only: bool = False,
        on_new_queue: Callable[[str, int], None] | None = None,
        cleans: bool = True,
        topics: TopicConfigFile | None = None,
        message_arriving_listener: Arriving | MessageArrivingListener | None = None,
        broker_stats_manager: BrokerStatsManager | None = None,
        only_topics: Collection[str] | None = None,
    ) -> None:
        if broker_stats_manager is not None:
            kind = imported("pyrocketstore.message_store.broker_stats").BrokerStatsManager
            if not isinstance(broker_stats_manager, kind):
                given = type(broker_stats_manager).__name__
                reason = f"must be a BrokerStatsManager or None, not {given}"
                raise StoreTypeError(f"broker_stats_manager {reason}")
        self.topics = topics
        self._broker_stats = broker_stats_manager
        self._arriving = arriving_of(message_arriving_listener)
        self._dispatchers: list[Dispatch] = []
        self._confirm_offset: int | None = None
        self._engine: DefaultMessageStore = object.__new__(type(self))
        self._engine.__dict__ = self.__dict__
        only = None if only_topics is None or not read_only else TopicBuckets(only_topics)
        self._engine._make_parts(config.absolute(), env, read_only, on_new_queue, cleans, only)
        # Called while the engine is open: OPEN_STORES has it then.
        self._on_drop = weakref.ref(self, _Closer(self._engine))

    def _make_parts(
        self,
        config: MessageStoreConfig,
        env: Env | None,
        read_only: bool,
        on_new_queue: Callable[[str, int], None] | None,
        cleans: bool,
        only: TopicBuckets | None = None,
    ) -> None:
        self.cleans = cleans
        self.env = Env() if env is None else env
        self.read_only = read_only
        self.root = config.store_path_root_dir
        self.life, self.pid = LifeState(), os.getpid()
        self._root_identity: tuple[int, int] | None = None  # of a read-only store
        self.appended, self.moved = Event(), Event()
        self.allocate_service = None if read_only else make_allocate_service(self.env, config)
        #: the files; `refresh` may replace the object
        self.files = LoadedFiles(
            self.env,
            config,
            read_only=read_only,
            appended=self.appended,
            allocate_service=self.allocate_service,
            on_new_queue=on_new_queue,
            only=only,
        )
        self.delay_offsets = DelayOffsets(self.env, self.root)
        self._abort_file = AbortFile(self.env, os.path.join(self.root, "abort"))
        self._make_hooks()
        self.life_lock = threading.RLock()
        #: the thread that calls dispatchers during recovery
        self._replayed_by: int | None = None
        self.stats_service = StoreStatsService(
            self.commit_log.core, self.env.now_ms, self.env.monotonic_ns
        )
        self.read_counts = self.stats_service.reads
        self.stall_log = StallLog(self.env.monotonic_ns, config.stall_warning_mills)
        self.async_puts = AsyncPuts(
            config,
            lambda: self.commit_log.get_appended_offset(),
            lambda: self.reports.flushed_where(),
            self.env.monotonic_ns,
            self.stats_service.note_puts,
        )
        self.store_failure = StoreFailure(
            self.running_flags, self.async_puts, self._abort_file, lambda: not self.life.has_ended
        )
        self._lock_file = store_lock(self.env, config, self.store_failure.fail)
        self.file_systems = FileSystems(
            self.env, self._lock_file.descriptors, config.syncfs_least_files
        )
        self.puts = self._new_puts()
        self.reports = StoreReports(
            self.files,
            self.async_puts,
            self.stall_log,
            self.stats_service,
            earliest=lambda: self.get_earliest_message_time() if self.life.is_loaded else -1,
            failure=lambda: self.why_not_writeable,
        )

    def _new_puts(self) -> MessagePuts:
        return MessagePuts(
            self.config,
            self.env,
            self.life,
            self.running_flags,
            self.commit_log,
            self.queue_table,
            self.async_puts,
            self.stats_service,
            why_no_puts=lambda: self.why_no_puts,
        )

    def _make_hooks(self) -> None:
        #: called by `shutdown` once everything is durable, and at its end in any case
        self.at_clean_stop: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self._filters: ConsumerFilters | None = None
        #: called with a topic that is dropped: a consumer's positions are in memory
        self.forget_positions: Callable[[str], None] = self._forget_positions
        #: called when puts end: after a failure, in a forked child, and by `shutdown`
        self.on_dead: Callable[[str | None], None] = lambda state: None
        #: called when puts are accepted again: a full disk has room
        self.on_alive: Callable[[], None] = lambda: None
        self.running_flags.on_not_writeable = lambda: self.on_dead(None)
        self.running_flags.on_writeable = lambda: self.on_alive()
        self.running_flags.on_write_error = self._repair_later
        #: the settings of a reload: sizes that were not given may show only by then
        self.settings_of_reload: Callable[[], MessageStoreConfig] = lambda: self.config
        #: called with files that were loaded again; the result is called once they are used
        self.on_reload: OnReload = _ignore

    # ---- the files ------------------------------------------------------------------------------

    @property
    def config(self) -> MessageStoreConfig:
        """The settings; a reload takes the sizes of files from the files."""
        return self.files.config

    @property
    def plan(self) -> RecoveryPlan | None:
        """The plan of the last recovery, None before it."""
        return self.files.plan

    @property
    def commit_log(self) -> CommitLog:
        """The log."""
        return self.files.commit_log

    @property
    def queue_table(self) -> ConsumeQueueTable:
        """The queues."""
        return self.files.queue_table

    @property
    def index_service(self) -> IndexService:
        """The index."""
        return self.files.index_service

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        return self.files.index_enabled

    @property
    def checkpoint(self) -> StoreCheckpoint:
        """The store times up to which log, queues and index are durable."""
        return self.files.checkpoint

    @property
    def dispatcher(self) -> Dispatcher:
        """The part that puts units and keys."""
        return self.files.dispatcher

    @property
    def reads(self) -> StoreReads:
        """The part that reads log, queues and index."""
        return self.files.reads

    @property
    def running_flags(self) -> RunningFlags:
        """The reasons why the files cannot be written."""
        return self.files.running_flags

    def consume_queues(self) -> list[ConsumeQueue]:
        """Return every queue that is known."""
        return self.files.consume_queues()

    @property
    def transient_store_pool(self) -> TransientStorePool | None:
        """The pool, None unless the settings require one."""
        return None if self.allocate_service is None else self.allocate_service.pool

    # ---- life cycle ---------------------------------------------------------------------------

    def load(self) -> bool:
        """Open the files, recover, and allow reads.

        Returns True. Raises StoreStateError ("already open"), StoreCorruptionError or StoreIOError.
        Durability: writable: cuts and rebuilt units are in the page cache; `abort` exists.
        Source: RocketMQ 4.9.3 DefaultMessageStore#load.
        Differs: takes the lock first, and creates `abort` before anything is changed.
        """
        shielded(self._engine._load_or_give_up, lambda _: self.shutdown())
        return True

    @one_at_a_time
    def _load_or_give_up(self) -> None:
        if self.life.has_ended:
            self.life.move(Life.NEW)
        if self.life.now is not Life.NEW:
            raise StoreStateError(f"{self.root}: already open: the store is {self.life.now.value}")
        check_format(self.env, self.config, read_only=self.read_only)
        if self.read_only:
            self.env.require_directory(self.root)
        else:
            self._create_directories()
            self.files.locked_before_ms = locked_ms(self.env, self.root)
            self._lock_file.take()
            self._lock_file.release_on_demand(self.is_dropped, self.end_dropped)
        try:
            if self.read_only:
                self._root_identity = self._identity_of_root()
                self._load_unchanged()
            else:
                check_checkpoint(self.env, self.config)
                self._load_to_write()
        except BaseException:
            self._give_up()
            raise
        OPEN_STORES.add(self)

    def _load_unchanged(self) -> None:
        """Load a read-only store; load again if its owner, another process, has deleted files or
        opened the store meanwhile: files of log and queues must be of the same time.

        Raises the cause if units or keys in memory could not be built: no repair follows.
        """
        flags = self.running_flags
        attempts = Attempts(self.env)
        while True:
            try:
                self.files.locked_before_ms = locked_ms(self.env, self.root)
                owner = owner_of(self.env, self.root)
                flags.write_error = None  # of the attempt before this one
                flags.begin_repair()  # an error is not tried again: the next opening does that
                self._load(Loading(self.files, self.moved, self.topics, self.delay_offsets))
                if flags.write_error is not None:
                    raise without_frames(flags.write_error)
                flags.end_repair(True, False, False)
                if self.plan is not None and self.files.only is None:
                    self.follower = Follower(self.files, self.plan, owner, self.files.expired_in)
            except StoreIOError as error:
                if not was_removed(error) or not attempts.another():
                    raise
            else:
                first = self.commit_log.mapped_file_queue.get_first_mapped_file()
                expired = first is not None and not self.env.exists(first.path)
                changed = owner_of(self.env, self.root) != owner
                if not (expired or changed) or not attempts.another():
                    return
            check_abandoned()
            self._close_files()
            self.queue_table.forget()

    def _give_up(self) -> None:
        """Release everything after a failed load(): the next one finds the same files."""
        try:
            self.commit_log.close()
            self._close_files()
        finally:
            self._lock_file.release()

    def _create_directories(self) -> None:
        queues = os.path.join(self.root, "consumequeue")
        for path in (self.root, *self.config.commit_log_paths, queues):
            self.env.make_directories(path)
            self.env.fsync_parent_directory(path)

    def _load(self, loading: Loading) -> None:
        loading.load()
        self.life.move(Life.LOADED)

    def _load_to_write(self) -> None:
        self._load(
            LoadingToWrite(
                self.files,
                self.moved,
                self.topics,
                self.delay_offsets,
                file_systems=self.file_systems,
                bit_map=self._find_bit_map,
                complete_removals=lambda: self._new_removal(contextlib.nullcontext()).complete(),
                replay_observed=self._replay_to_dispatchers,
            )
        )

    def _find_bit_map(self) -> BitMap | None:
        if self.config.enable_calc_filter_bit_map:
            return self.registered_filters().bit_map
        return None

    def lacks_units(self) -> bool:
        """Return whether units could not be written, so that queues may end before the log does."""
        return self.running_flags.is_logics_queue_error()

    # ---- refresh ------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Make everything that the owner of the store has written since the last look readable.

        Reads only what was appended, or loads the store again (`recovery.refresh` says when).

        Returns the bytes by which the end of the log has moved; negative if the log was cut.

        Raises StoreStateError: the store is not open, or is open for writing. StoreIOError,
        StoreCorruptionError: the store answers as before, and the next call tries again.

        Threads: any, beside readers. Each of them finds the state before or after the call.
        """
        if self.pid != os.getpid():
            raise StoreStateError(f"{self.root}: the store is dead: the process was forked")
        if not self.read_only:
            raise StoreStateError(f"{self.root}: the store is open for writing: it has all data")
        return shielded(self._engine._refresh)

    def _refresh(self) -> int:
        with self.life_lock:
            if not self.life.is_loaded:
                raise StoreStateError(f"{self.root}: the store is closed")
            if self.files.only is not None:
                raise StoreStateError(f"{self.root}: the store was opened for some topics alone")
            self.check_root()
            before = self.commit_log.get_max_offset()
            if not self.follower.follow():
                self._reload()
            return self.commit_log.get_max_offset() - before

    def check_root(self) -> None:
        """Raise StoreStateError if another directory has the path of this read-only store.

        A store that is open for writing refuses the single calls instead: see `Env.pin`.
        """
        if self.read_only and self._identity_of_root() != self._root_identity:
            raise StoreStateError(
                f"{self.root} was moved or replaced while the store was open; close the store and"
                " open it again"
            )

    def _identity_of_root(self) -> tuple[int, int] | None:
        return self.env.identity_at(f"{self.root}/.")

    def _reload(self) -> None:
        """Load the store again beside the readers, and replace its parts at once.

        Calls that have begun, and iterators, keep the old parts, which end with their last
        reference.
        """
        fresh = load_with_sizes(
            self.env,
            self.settings_of_reload,
            self._loaded_again,
            lambda one: one.plan,
            type(self)._give_up,
        )
        try:
            install = self.on_reload(fresh.files)
        except BaseException:
            fresh._give_up()
            raise
        old = self.files, self.follower, self.puts
        self.files, self.follower = fresh.files, fresh.follower
        self.puts, self.reports.files = self._new_puts(), fresh.files
        install()
        del old  # only now: its last reference may run code

    def _loaded_again(self, config: MessageStoreConfig) -> Self:
        fresh = object.__new__(type(self))
        fresh.topics, fresh._dispatchers, fresh._confirm_offset = None, [], None
        fresh._broker_stats = None
        fresh._make_parts(config, self.env, True, None, self.cleans)
        try:
            self.env.require_directory(self.root)
            fresh._load_unchanged()
        except BaseException:
            fresh._give_up()
            raise
        return fresh

    def recover_topic_queue_table(self) -> None:
        """As `StoreFiles.recover_topic_queue_table`."""
        self.files.recover_topic_queue_table()

    def persist_topics(self, at_once: bool) -> None:
        """Write topics.json, if the store keeps one and it has changed: see TopicConfigFile."""
        if self.topics is not None:
            self.topics.persist(at_once=at_once)

    def start(self) -> None:
        """Start the services, and accept puts.

        Raises StoreStateError on a read-only store.
        Source: RocketMQ 4.9.3 DefaultMessageStore#start.
        """
        shielded(self._engine._start)

    @one_at_a_time
    def _start(self) -> None:
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        if self.life.now is not Life.LOADED or self.allocate_service is None:
            raise StoreStateError("start() must be called once, after load()")
        self.reput_service = ReputMessageService(self.commit_log, self.dispatcher, self.appended)
        self.commit_log.wait_dispatched = self._wait_for_copied
        self.commit_log.set_next_offsets = self.recover_topic_queue_table
        self.dispatcher.call_after(self._observers())
        self._bound_dispatch()
        self.services = StoreServices(
            self.files,
            self.reput_service,
            self.async_puts,
            self.allocate_service,
            self.file_systems,
            self.stall_log,
            self.stats_service,
            persist_topics=self.persist_topics,
            fail=self.store_failure.fail,
            repair=self._repair,
            check_lock=self._lock_file.check,
        )
        self.reports.services = self.puts.services = self.services
        if self._broker_stats is not None:
            self._broker_stats.follow(self.commit_log.core.queue_put_totals)
            self.services.on_look = self._tick_broker_stats
        if self.config.broker_role is not BrokerRole.SLAVE:
            service = self.services.schedule_service = self._make_schedule_service()
            service.correct_offsets()
            self.dispatcher.delayed = service.event
        if self.cleans:
            self.services.add_cleaning(self.files.newest_store_timestamp())
        if self.config.enables_retention:
            self.services.add_retention()
        self.life.move(Life.STARTING)
        self.services.start()
        self.life.move(Life.STARTED)
        schedule = self.services.schedule_service
        if schedule is not None and schedule.has_messages():  # now: deliveries are puts
            self.services.start_schedule()
        if self.running_flags.is_write_error():
            self._repair_later()

    def _observers(self) -> Observers | None:
        """Return what the dispatcher calls for each record; None: nothing."""
        is_slave = self.config.broker_role is BrokerRole.SLAVE
        arriving = None if is_slave else self._arriving
        if arriving is None and not self._dispatchers:
            return None
        return Observers(
            self._dispatchers,
            arriving,
            light_queues=self.config.enable_lmq,
            bit_map=self._find_bit_map(),
        )

    def get_confirm_offset(self) -> int:
        """Return the value of `set_confirm_offset`, -1 before the first call.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getConfirmOffset.
        """
        return -1 if self._confirm_offset is None else self._confirm_offset

    def set_confirm_offset(self, phy_offset: int) -> None:
        """With `duplication_enable`, let only records before `phy_offset` be dispatched.

        Later records are in the log, but in no queue and not in the index, until the offset is set
        behind them or the store is shut down; `wait_dispatched` does not wait for them. Without
        `duplication_enable` the value has no effect, as in 4.9.3.

        Threads: any, on the object that `start` is called on.
        Source: RocketMQ 4.9.3 DefaultMessageStore#setConfirmOffset.
        Differs: has no effect before the first call, where 4.9.3 dispatches nothing and `start`
        does not return; dispatch stops exactly there, not at the end of the file; `shutdown`
        dispatches the rest, and recovery everything.
        """
        self._engine._confirm_offset = exact_int64("phy_offset", phy_offset)
        self._engine._bound_dispatch()

    def _bound_dispatch(self) -> None:
        service, phy_offset = self.__dict__.get("reput_service"), self._confirm_offset
        if self.config.duplication_enable and service is not None and phy_offset is not None:
            service.confirm(phy_offset)

    def _replay_to_dispatchers(self, plan: RecoveryPlan) -> None:
        if not self._dispatchers:
            return
        bit_map = self._find_bit_map()
        observers = Observers(self._dispatchers, None, light_queues=False, bit_map=bit_map)
        self._replayed_by = threading.get_ident()
        try:
            replay_observed(self.files, plan.scan_from, plan.log_end, observers)
        finally:
            self._replayed_by = None

    def _refuse_in_observer(self) -> None:
        """Raise StoreStateError in the thread that dispatches: the call would wait for itself."""
        service = self.__dict__.get("reput_service")
        replays = self._replayed_by == threading.get_ident()
        if replays or (service is not None and service.is_current):
            raise StoreStateError(
                f"{self.root}: a dispatcher or arriving listener cannot close the store or remove"
                " queues: let another thread do it"
            )

    def registered_filters(self) -> ConsumerFilters:
        """Return the filters of ROOT/config/consumerFilter.json; the first call reads the file.

        For calls with `life_lock` held, on a store that is open for writing.

        Raises StoreCorruptionError, StoreIOError.
        """
        if self._filters is None:
            config = self.config
            module = imported("pyrocketstore.consumer.consumer_filters")
            found: ConsumerFilters = module.ConsumerFilters(
                self.env,
                self.root,
                config.max_error_rate_of_bloom_filter,
                config.expect_consumer_num_use_filter,
                config.filter_data_clean_time_span,
                lambda: self.files.newest_store_timestamp(),
            )
            found.load()
            if self.plan is None or not self.plan.clean:
                found.note_unclean_stop()
            self.at_clean_stop.append(found.end_all)
            self.at_end.append(found.close)
            self._filters = found
        return self._filters

    def get_dispatcher_list(self) -> list[Dispatch]:
        """Return the list to which a program appends its own dispatchers before `start`.

        Each is called with the DispatchRequest of every message, after queue and index have it,
        and before the arriving listener, under the same rules. Dispatchers that are in the list
        before `load` also get the messages that recovery reads after an unclean exit: those that
        were not dispatched before, and some again.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getDispatcherList, CommitLogDispatcher.
        Differs: the list lacks the store's own dispatchers, which are compiled.
        """
        return self._dispatchers

    def _make_schedule_service(self) -> ScheduleMessageService:
        return ScheduleMessageService(
            self.commit_log,
            self.queue_table,
            self.delay_offsets,
            put=self._put_due,
            flush=lambda: self.services.log_flush.flush_to_end(),
            ends=lambda: not self.life.takes_puts,
            lacks_units=self.lacks_units,
            interval_ms=self.config.flush_delay_offset_interval,
        )

    def _put_due(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a delayed message that is due; make room for it, as the puts of a program do."""
        if self.async_puts.is_behind():
            self.services.log_flush.flush_to_end()
        result, stats = self.puts.put(message), self._broker_stats
        if (
            stats is not None
            and not result.status_code
            and self.config.enable_schedule_message_stats
        ):
            text = string_to_properties(message.properties_string or "")
            level = parse_java_int(text.get(PROPERTY_DELAY_TIME_LEVEL, "")) or 0
            stats.note_delivery(level, result.message_count, result.wrote_bytes)
        return result

    def get_broker_stats_manager(self) -> BrokerStatsManager | None:
        """Return the argument of the constructor.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getBrokerStatsManager.
        """
        return self._broker_stats

    def _tick_broker_stats(self) -> None:
        if self._broker_stats is not None:
            self._broker_stats.tick(self.env.monotonic_ms())

    def _repair(self) -> bool:
        is_whole = repair(self.files, self.reput_service.paused())
        schedule = self.services.schedule_service
        if is_whole and schedule is not None:
            schedule.wakeup()  # queues have units again that the dispatcher could not write
        return is_whole

    def _repair_later(self) -> None:
        if self.life.takes_puts:
            self.services.start_repair()

    @property
    def engine(self) -> DefaultMessageStore:
        """The object for services and callbacks: a reference to it keeps no store open."""
        return self._engine

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended the puts of the store for good, None without one."""
        return self.store_failure.error

    @property
    def why_not_writeable(self) -> BaseException | None:
        """The first error that ended a service, a queue or the index; None without one."""
        return self.failure or self.running_flags.cause

    @property
    def why_no_puts(self) -> BaseException | None:
        """The reason why puts are refused, if an error or `append_data` is one; else None."""
        return self.why_not_writeable or self.commit_log.why_no_puts()

    def shutdown(self) -> None:
        """Stop the services, flush everything, and delete `abort`.

        `abort` is deleted only when everything is dispatched and durable. An error that prevented
        that, in this call or since `start`, is raised once everything is released.
        Source: RocketMQ 4.9.3 DefaultMessageStore#shutdown.
        Differs: the open index file is flushed; no fixed sleeps; errors are raised. A signal
        handler may call it wherever it interrupts the store. After a Ctrl-C during the wait the
        shutdown continues, and the directory stays locked until its end; another call waits for
        that.
        """
        if self.pid != os.getpid():
            return
        self._refuse_in_observer()
        self.life.end_puts()
        shielded(self._engine._shutdown)

    @one_at_a_time
    def _shutdown(self) -> None:
        if self.life.has_ended:  # another thread has done it
            return
        self.on_dead("closed")
        self.commit_log.close()
        is_flushed = None  # no service has run
        if self.life.is_started:
            is_flushed = self.services.stop()
            self.life.move(Life.STOPPED)
        if self.allocate_service is not None:
            self.allocate_service.shutdown()
        if self.life.is_loaded:
            self.index_service.wait_flushed()
        writes = self.life.is_loaded and not self.read_only
        try:  # no thread is left
            clean = writes and self._finish(is_flushed)
            write_stop = self._note_clean_stop() if clean else None
            self.life.move(Life.CLOSING)
            self._close_files()
            if write_stop is not None:
                write_stop()
                self._abort_file.delete()
        finally:
            OPEN_STORES.discard(self)
            try:
                self._lock_file.release()
            finally:
                self._end()
        if writes and not clean:
            text = f"{self.root}: not everything could be dispatched and flushed"
            error = self.failure or self.running_flags.write_error
            raise StoreStateError(text) if error is None else without_frames(error)

    def end_dropped(self) -> None:
        """Close the engine of a dropped store, or wait until another thread has closed it.

        Call it by `shielded`.
        """
        while not self.life_lock.acquire(timeout=LOOK_S):
            check_abandoned()
        try:
            self.life.end_puts()
            self._shutdown()
        except StoreError as error:
            LOG.error(
                "%s: the store was not closed, and closing it has failed: %s", self.root, error
            )
        finally:
            self.life_lock.release()

    def is_dropped(self) -> bool:
        """Return True once the last reference of a caller is gone."""
        return self._on_drop() is None

    def note_drop(self, known: set[DefaultMessageStore] = OPEN_STORES) -> None:
        """Have a dropped store closed by a new thread, and warn.

        Threads: any, at any point, with any lock held: takes no lock, and waits for nothing. At the
        end of the interpreter, too, when the names of this module may be gone: no store is open.
        """
        if self not in known or self.pid != os.getpid():
            return
        # If no thread can be started, or a signal handler raises first, the next opening closes the
        # store, or the exit of the process.
        with contextlib.suppress(RuntimeError, MemoryError):
            Shield(self.end_dropped).start()
        # Last, since a warning may be an error.
        text = printable(f"{self.root}: the store was not closed before its last reference went")
        warnings.warn(text, ResourceWarning, stacklevel=3)

    def _end(self) -> None:
        if self.life.now is not Life.CLOSING:  # flushing has raised
            self.life.move(Life.CLOSING)
        self.life.move(Life.ENDED)

    def _finish(self, is_flushed: bool | None) -> bool:
        """Flush files without a service; return True when everything is dispatched and durable.

        `is_flushed` : whether the services have dispatched and flushed everything; None: none ran
        """
        clean = is_flushed is not False
        try:
            if is_flushed is None:
                flush_recovered(self.files, self.file_systems)
                self.persist_topics(True)
            self._lock_file.check()
            if self.files.index_flush is None or not clean:
                self.index_service.flush()
            else:
                self.files.index_flush.finish(self.files.index_flush.begin())
            self.checkpoint.flush()
            if clean:  # everything is flushed, the last deliveries included
                self.delay_offsets.persist(self.delay_offsets.offsets())
                for persist in self.at_clean_stop:
                    persist()
        except StoreError as error:
            self.store_failure.fail(error)
        return clean and self.failure is None and not self.running_flags.is_write_error()

    def _close_files(self) -> None:
        """Close files and mappings, once no thread writes. The caller releases the lock last."""
        with contextlib.ExitStack() as rest:  # close each one, whatever another one raises
            if self.life.now is Life.LOADED:  # it is loaded again, or was not loaded as a whole
                self.life.move(Life.NEW)
            if self.transient_store_pool is not None:
                rest.callback(self.transient_store_pool.destroy)
            if self.topics is not None:
                rest.callback(self.topics.close)
            for close in self.at_end:
                rest.callback(close)
            rest.callback(self.commit_log.mapped_file_queue.shutdown, 0)
            rest.callback(self.queue_table.close)
            # A failed load may not have made these.
            if "index_service" in self.files.__dict__:
                rest.callback(self.index_service.shutdown)
            if "dispatcher" in self.files.__dict__:
                rest.callback(self.dispatcher.set_index_file, None)

    def after_fork(self) -> None:
        """In a forked child: disable this copy, which must touch nothing."""
        self.on_dead(Life.FORKED.value)
        self.life.move(Life.FORKED)

    def destroy(self) -> None:
        """Delete the store's data: log, queues, index, abort, checkpoint. After shutdown().

        Raises StoreStateError: the store is open, here or elsewhere, or read-only. StoreIOError.
        Source: RocketMQ 4.9.3 DefaultMessageStore#destroy.
        Differs: 4.9.3 also deletes an open store.
        """
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        self._refuse_in_observer()
        shielded(self._destroy)

    @one_at_a_time
    def _destroy(self) -> None:
        if self.life.is_loaded:
            raise StoreStateError(f"{self.root}: the store is open: shut it down first")
        self._lock_file.take()
        try:
            self._delete_files()
        finally:
            self._lock_file.release()

    def _delete_files(self) -> None:
        self.queue_table.destroy()
        self.commit_log.destroy()
        index_path = os.path.join(self.root, "index")
        for name in self.env.listdir(index_path):
            if name.isdigit():
                self.env.remove(os.path.join(index_path, name))
        self._abort_file.delete()
        for name in ("checkpoint", SYNC_POINT):
            self.env.remove(os.path.join(self.root, name))
        self.files.topic_minimums.destroy()

    # ---- dispatch -----------------------------------------------------------------------------

    def dispatch_behind_bytes(self) -> int:
        """Return the bytes of the log that are not dispatched yet."""
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Dispatch nothing inside of a `with` block."""
        return self.reput_service.paused()

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises
        StoreTypeError, StoreFormatError: not a valid number.
        """
        seconds = None if timeout is None else timeout_of(timeout)
        if self.read_only or self.dispatcher.position >= self.commit_log.core.appended_end:
            return True
        return self.reput_service.wait_appended(seconds)

    # ---- puts ---------------------------------------------------------------------------------

    def check_store_status(self, *, has_room: bool = False) -> PutMessageStatus:
        """Return PUT_OK when a put may be tried; `has_room`: ignore how much is not flushed.

        Source: RocketMQ 4.9.3 DefaultMessageStore#checkStoreStatus.
        Differs: OS_PAGECACHE_BUSY also when more than `max_unforced_bytes` are not flushed;
        SERVICE_NOT_AVAILABLE also after `append_data`, until `continue_puts`.
        """
        return self.puts.status(has_room=has_room)

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append one message, and wait for the flush as the settings say.

        Raises StoreTypeError, StoreFormatError: a field of the message is of the wrong type, a
        number is out of its range, or the topic has no form in UTF-8. Nothing is written then.

        Threads: any. Durability: under SYNC_FLUSH durable when the status is PUT_OK.
        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessage.
        """
        settle(message)
        return self.puts.put(message)

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Append a batch to one queue, all or nothing. Raises as `put_message`.

        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessages.
        """
        settle(batch)
        return self.puts.put_batch(batch)

    def append_data(self, phy_offset: int, data: bytes | bytearray | memoryview) -> int:
        """Append bytes of the log of another store, such as a slave receives from its master.

        The data may be any part of that log: they may begin and end within a record and contain the
        ends of files. Records are stored as they are, and dispatched once they are whole. Bytes of
        a partial record are kept in memory until the rest of it arrives. From the first call on,
        every put gets SERVICE_NOT_AVAILABLE, and no copied delayed message is delivered, until
        `continue_puts`.

        Parameters
        ----------
        phy_offset : int, where the first byte belongs: `get_data_end()`, or in a log without files
            the first byte of any file, with which the log then begins, even if `data` are refused
        data : bytes-like, one dimension; they must not change during the call

        Returns
        -------
        int, the new `get_data_end()`

        Raises
        ------
        StoreFormatError: `phy_offset` is another one
        StoreCorruptionError: the data are not valid records of that position in a log with files of
            this size. Whole records before them are stored; a partial record is dropped
        StoreStateError: not started, read-only, or puts have ended
        StoreTypeError, StoreIOError
        PutError: the flush has failed

        After each of these errors `get_data_end()` is the physical offset at which the next data
        begin. If a signal handler raises in the main thread, the call continues in another one, and
        still reads `data`: the next call waits for its end, for at most 5 s.

        Threads: any, one at a time; without the GIL while it copies. Durability: under SYNC_FLUSH
        whole records are durable on return; a partial record never survives the process.
        Source: RocketMQ 4.9.3 DefaultMessageStore#appendToCommitLog.
        Differs: raises where 4.9.3 returns False; 4.9.3 ignores `phy_offset`, and stores any data.
        """
        phy_offset = exact_int64("phy_offset", phy_offset)
        self.check_started()
        if not self.life.takes_puts or not self.running_flags.is_writeable():
            cause = self.why_not_writeable
            raise StoreStateError(f"{self.root}: no data can be appended: {cause}") from cause
        self.puts.make_room()
        end = self.commit_log.append_data(phy_offset, data)
        stored = self.commit_log.get_appended_offset()
        status = self.services.flush_service.handle_disk_flush(stored, True)
        if status is not PutMessageStatus.PUT_OK:
            raise PutError(status, True, 0, f"the log is not durable up to {stored}")
        return end

    def get_data_end(self) -> int:
        """Return the physical offset at which the next data of `append_data` must begin.

        It is `get_max_phy_offset()`, and the bytes that were received of a partial record.
        """
        return self.commit_log.get_data_end()

    def drop_partial_record(self) -> int:
        """Forget the bytes of a record of which `append_data` has received only a part.

        Call it when no further data of the same log will come, or when they will come again from
        `get_max_phy_offset()` on. Returns how many bytes that were.
        """
        return self.commit_log.drop_partial_record()

    def continue_puts(self) -> None:
        """Let puts follow the data of `append_data`, with the queue offsets that follow those of
        its records. Waits until they are dispatched; no-op if there were none since the last call.

        Raises StoreStateError: the data end within a record, they are behind the confirm offset, or
        a dispatcher or listener makes the call. Threads: any, without a lock that a listener needs.
        """
        self.check_started()
        self.commit_log.continue_puts()
        if self.queue_table.of_topic(SCHEDULE_TOPIC):
            self.puts.start_schedule()

    def _wait_for_copied(self) -> None:
        """Wait until the records of `append_data` are dispatched, before puts follow them."""
        self.wait_dispatched()
        if self.reput_service.is_unconfirmed():
            raise StoreStateError(
                f"{self.root}: records of append_data are behind the confirm offset, so that the"
                " next queue offsets are unknown: call set_confirm_offset first"
            )

    def put_encoded(
        self,
        topics: Any,
        queue_ids: Any,
        bodies: Any,
        properties: Any = None,
        *,
        flags: Any = 0,
        sys_flags: Any = 0,
        born_timestamps: Any = None,
        born_hosts: Any = None,
    ) -> PutResults:
        """Append many messages of any topics whose properties are encoded already, as a broker
        receives them.

        A column is a list, a NumPy array or an Arrow array with one entry for each message.

        Parameters
        ----------
        topics : str, or a column of str
        queue_ids : int32 from 0 on, or a column of them; None: 0
        bodies : column of bytes-like
        properties : column of str, of bytes-like with UTF-8, or of None; None: no message has any.
            Each is the text that a record stores, `name U+0001 value U+0002 ...`, which
            `properties_to_string` makes
        flags, sys_flags : int32, or a column of them
        born_timestamps : int64, Unix ms, or a column of them; None: the time of the append
        born_hosts : host as of MessageExtBrokerInner, or a column of them; None: the store host

        Each message has the status that `put_message` gives it, and a refused one does not affect
        the others. Runs of messages are appended under one hold of the put lock. Messages that
        need more are put one by one, in their places: delayed, prepared, rolled-back and too large
        ones, those that name further queues, and topics that are not ASCII or may be refused. WAIT
        is ignored: the call waits for one flush of all.

        Returns
        -------
        PutResults

        Raises StoreTypeError, StoreFormatError: a value has the wrong type, a number is out of its
        range, properties have no form in UTF-8, or columns differ in length. Nothing is written
        then. A topic that has no form in UTF-8 is refused alone: MESSAGE_ILLEGAL.
        StoreStateError: the store was not started yet.

        Threads: any; without the GIL while it encodes and copies. Durability: as of `put_message`.
        """
        return self.puts.encoded.put(
            topics, queue_ids, bodies, properties, flags, sys_flags, born_timestamps, born_hosts
        )

    def async_put_message(self, message: MessageExtBrokerInner) -> Future[PutMessageResult]:
        """As put_message; return a future that is done when the flush is.

        Futures of one queue are done in the order of its offsets. While `max_outstanding_puts` or
        `max_outstanding_put_bytes` are outstanding, nothing is put: OS_PAGECACHE_BUSY.

        Source: RocketMQ 4.9.3 DefaultMessageStore#asyncPutMessage.
        """
        settle(message)
        return self.puts.put_later(message)

    def async_put_messages(self, batch: MessageExtBatch) -> Future[PutMessageResult]:
        """As put_messages; return a future: see async_put_message."""
        settle(batch)
        return self.puts.put_batch_later(batch)

    def flush(self) -> int:
        """Flush the log up to the last put; return the physical offset before which it is durable.

        Raises StoreStateError: read-only, or not started.
        Source: RocketMQ 4.9.3 DefaultMessageStore#flush. Differs: over as many files as needed.
        """
        self._check_flushable()
        return shielded(self.services.log_flush.flush_to_end)

    def _check_flushable(self) -> None:
        if self.read_only:
            raise StoreStateError(f"{self.root}: the store is open read-only: nothing to flush")

    def flush_up_to(self, phy_offset: int) -> None:
        """Make all records before a byte of the log durable, with their units and the names of
        their topics."""
        self.services.flush_up_to(phy_offset)

    def flush_all(self) -> None:
        """Flush the log, the queues, the index and the checkpoint up to the last put.

        Durability: all messages put before are durable, in the log, their queues and the index.
        Raises StoreIOError, StoreCorruptionError; see `check_complete`.
        """
        self._check_flushable()
        self.wait_dispatched()
        shielded(self._flush_all)
        self.check_complete()

    def check_complete(self) -> None:
        """Raise the cause if a queue or the index lacks messages whose units or keys could not be
        written, until RepairService has written them."""
        error = self.running_flags.write_error
        if error is not None:
            raise without_frames(error)

    def _flush_all(self) -> None:
        index_flush = self.files.index_flush
        index_state = None if index_flush is None else index_flush.begin()
        self.flush()
        self.services.flush_queue_service.do_flush(True, index_state)
        self.index_service.flush()
        self.services.log_flush.check_fsyncs()

    def is_os_page_cache_busy(self) -> bool:
        """Return True when the put lock has been held for too long.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isOSPageCacheBusy.
        """
        return self.puts.is_busy()

    def remain_transient_store_buffer_numbs(self) -> int:
        """Return the free buffers of the transient store pool; 2^31 - 1 without a pool.

        Source: RocketMQ 4.9.3 DefaultMessageStore#remainTransientStoreBufferNumbs.
        """
        pool = self.transient_store_pool
        return INTEGER_MAX if pool is None else pool.available_buffer_nums()

    def is_transient_store_pool_deficient(self) -> bool:
        """Return True when every buffer of the pool is lent: the broker then refuses messages.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isTransientStorePoolDeficient.
        """
        service = self.allocate_service
        return service is not None and service.is_transient_store_pool_deficient()

    def lock_time_mills(self) -> int:
        """Return how long the put lock has been held, ms; 0 when it is free."""
        return int(self.commit_log.core.lock_time_ms())

    # ---- reads: the methods of the MessageStore interface --------------------------------------

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult | None:
        """Return messages from a queue; None when the store is shut down or not readable.

        Where the message at byte 0 of the log has expired, bytes of the first log file that exists
        are returned in its place, as in 4.9.3: they are no record.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        return self._pull(group, topic, queue_id, offset, max_msg_nums, message_filter, None)

    def get_records(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        max_bytes: int | None = None,
        message_filter: MessageFilter | None = None,
    ) -> PulledRecords | None:
        """Return the records of a pull as one buffer, the body of a broker's answer.

        The arguments, statuses and limits are those of `get_message`. The records are copied once,
        without the GIL; nothing needs to be released.

        Parameters
        ----------
        max_bytes : int or None, bytes: a further limit of the records; the first one always fits

        Returns PulledRecords; None when the store is shut down or not readable.

        Raises StoreTypeError, StoreFormatError, StoreIOError. Threads: any.
        Source: RocketMQ 4.9.3 PullMessageProcessor#readGetMessageResult.
        """
        limit = None if max_bytes is None else exact_int64("max_bytes", max_bytes)
        result = self._pull(group, topic, queue_id, offset, max_msg_nums, message_filter, limit)
        return None if result is None else PulledRecords.of(result)

    def _pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_bytes: int | None,
    ) -> GetMessageResult | None:
        topic, queue_id = queue_of(topic, queue_id)
        offset, max_msg_nums = exact_int64("offset", offset), whole_number("count", max_msg_nums)
        check_filter(message_filter)
        if not self._is_readable():
            return None
        began = self.env.monotonic_ms()
        result = self.reads.get_message(
            topic, queue_id, offset, max_msg_nums, message_filter, max_bytes
        )
        if not self.life.is_loaded:  # closed meanwhile: messages may be passed over
            result.release()
            return None
        self.read_counts.note(result.message_count, self.env.monotonic_ms() - began)
        if self._broker_stats is not None and result.message_count:
            count, size = result.message_count, result.buffer_total_size
            self._broker_stats.note_get(group, topic, queue_id, count, size)
        return result

    def _is_readable(self) -> bool:
        return self.life.is_loaded and self.running_flags.is_readable()

    def query_message(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Return messages by index key, at most `max_msgs_num_batch`, ascending by physical offset.

        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        topic, key = exact_text("topic", topic), exact_text("key", key)
        count = whole_number("max_num", max_num)
        since, until = exact_int64("begin", begin), exact_int64("end", end)
        return self.reads.query_message(topic, key, count, since, until)

    def look_message_by_offset(self, phy_offset: int, size: int = 0) -> MessageExt | None:
        """Return the message at a physical offset, or None."""
        return self.commit_log.look_message(*range_of(phy_offset, size))

    def select_one_message_by_offset(
        self, phy_offset: int, size: int = 0
    ) -> SelectMappedBufferResult | None:
        """Return the record at a physical offset as bytes, or None."""
        phy_offset, size = range_of(phy_offset, size)
        size = size or self.commit_log.record_size(phy_offset)
        return self.commit_log.get_message(phy_offset, size)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue; 0 for an unknown queue."""
        return self.queue_table.find(*queue_of(topic, queue_id)).get_max_offset_in_queue()

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue as 4.9.3 does (stale for an expired queue)."""
        return self.queue_table.find(*queue_of(topic, queue_id)).get_min_offset_in_queue()

    def get_commit_log_offset_in_queue(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Return the physical offset of a queue offset, 0 without one."""
        unit = self.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return 0 if unit is None else unit[0]

    def get_offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the queue offset near a store time (ms), as 4.9.3 finds it.

        The binary search requires store times that rise with the queue offset. After the clock was
        set back, it can return a message of another time.
        """
        time_ms = exact_int64("timestamp", timestamp)
        return self.reads.get_offset_in_queue_by_time(*queue_of(topic, queue_id), time_ms)

    def get_message_store_time_stamp(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Return the store time (ms) of a queue offset, -1 without one."""
        return self.reads.get_message_store_timestamp(*unit_of(topic, queue_id, cq_offset))

    def get_earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Return the store time (ms) of the first message of a queue, or of the store; -1 without.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getEarliestMessageTime.
        Differs: of the whole store: right for a log of less than 8 MiB too.
        """
        if topic is not None:
            topic, queue_id = queue_of(topic, queue_id)
        return self.reads.get_earliest_message_time(topic, queue_id)

    def get_message_total_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the number of messages in a queue, -1 for an unknown queue."""
        queue = self.queue_table.get(*queue_of(topic, queue_id))
        return -1 if queue is None else queue.get_message_total_in_queue()

    def check_in_disk_by_consume_offset(self, topic: str, queue_id: int, cq_offset: int) -> bool:
        """Return True when that message is probably not in memory any more."""
        unit = self.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return unit is not None and self.reads.is_in_disk(unit[0])

    def get_max_phy_offset(self) -> int:
        """Return the physical offset after the last record."""
        return self.commit_log.get_max_offset()

    def get_min_phy_offset(self) -> int:
        """Return the first physical offset, -1 for an empty log."""
        return self.commit_log.get_min_offset()

    def get_commit_log_data(self, phy_offset: int) -> SelectMappedBufferResult | None:
        """Return the bytes from `phy_offset` to the end of its file, for replication."""
        phy_offset = exact_int64("phy_offset", phy_offset)
        return self.commit_log.get_data(phy_offset) if self.life.is_loaded else None

    def get_message_ids(
        self, topic: str, queue_id: int, min_offset: int, max_offset: int, store_host: str
    ) -> dict[str, int]:
        """Return {offset message id: queue offset} over [min_offset, max_offset)."""
        topic, queue_id = queue_of(topic, queue_id)
        low, high = exact_int64("min_offset", min_offset), exact_int64("max_offset", max_offset)
        return self.reads.get_message_ids(topic, queue_id, low, high, store_host)

    def get_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None; an unknown queue is not made."""
        return self.queue_table.get(*queue_of(topic, queue_id))

    def find_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; an unknown queue is returned as an empty one."""
        return self.queue_table.find(*queue_of(topic, queue_id))

    def get_consume_queue_table(self) -> dict[str, dict[int, ConsumeQueue]]:
        """Return {topic: {queue id: queue}}."""
        return self.queue_table.by_topic()

    def now(self) -> int:
        """Return the time of the store's clock, Unix ms."""
        return self.env.now_ms()

    def stats(self) -> StoreStats:
        """Return the figures of this moment."""
        return self.reports.stats()

    def get_runtime_info(self) -> dict[str, str]:
        """Return 4.9.3's map of figures, with its keys and texts.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getRuntimeInfo.
        Differs: also in the first second, when 4.9.3 throws.
        """
        return self.reports.runtime_info()

    def get_single_put_message_topic_times_total(self, topic: str) -> int:
        """Return how many messages were put to a topic since the store was opened.

        Delayed messages count for SCHEDULE_TOPIC_XXXX, and their deliveries for the real topic.

        Source: RocketMQ 4.9.3 StoreStatsService#getSinglePutMessageTopicTimesTotal.
        """
        return self.commit_log.core.put_totals(exact_text("topic", topic))[0]

    def get_single_put_message_topic_size_total(self, topic: str) -> int:
        """Return the bytes of these messages in the log.

        Source: RocketMQ 4.9.3 StoreStatsService#getSinglePutMessageTopicSizeTotal.
        """
        return self.commit_log.core.put_totals(exact_text("topic", topic))[1]

    def get_running_data_info(self) -> str:
        """Return 4.9.3's figures of puts and gets as lines of text."""
        return self.stats_service.running_data_info()

    def clean_unused_topic(self, topics: Iterable[str]) -> int:
        """Destroy the queues of every topic that is not in `topics`. Returns 0, as in Java.

        Raises StoreTypeError: `topics` are not several str. StoreIOError.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedTopic.
        """
        if isinstance(topics, str | bytes) or not isinstance(topics, Iterable):
            kind = type(topics).__name__
            raise StoreTypeError(f"topics must be an iterable of str, not {kind}")
        kept = [exact_text("a topic", topic) for topic in topics]
        remove = queue_removal.clean_unused_topic
        shielded(lambda: self._remove_queues(lambda: remove(self.files, self._dispatch(), kept)))
        return 0

    def clean_unused_lmq_topic(self, topic: str) -> None:
        """Remove a light queue as `drop_topic` does, if there is one; its next offset is 0.

        Parameters
        ----------
        topic : str, its whole name, which begins with ``%LMQ%``

        Raises StoreFormatError for another topic; as `drop_topic`.
        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedLmqTopic.
        Differs: 4.9.3 builds the removed queue again if it is killed, and of a topic that is not
        light it destroys queue 0 and forgets the others.
        """
        name = exact_text("topic", topic)
        if not name.startswith(LMQ_PREFIX):
            reason = f"the name of a light queue begins with {LMQ_PREFIX}"
            raise StoreFormatError(f"topic {shown(name)}: {reason}")
        self.wait_dispatched()
        if self.queue_table.of_topic(name):
            self.drop_topic(name)

    def clean_expired_consumer_queue(self) -> None:
        """Destroy queues that end before the first record of the log.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanExpiredConsumerQueue.
        """
        remove = queue_removal.clean_expired_consumer_queue
        shielded(lambda: self._remove_queues(lambda: remove(self.files, self._dispatch())))

    def _remove_queues(self, remove: Callable[[], None]) -> None:
        """Remove queues while the directory is locked: `shutdown` waits for the end of the call,
        also after a Ctrl-C."""
        self._refuse_in_observer()
        with self.life_lock:
            if not self.life.is_loaded:
                raise StoreStateError(f"{self.root}: the store is closed")
            remove()

    def drop_topic(self, topic: str) -> None:
        """Remove a topic: its messages, its queues, its entry in topics.json, and the positions of
        all groups in it.

        The log keeps the records until its files are deleted: `look_message_by_offset` still finds
        them, and so does 4.9.3.

        Durability: durable on return. After a kill, the next opening completes a removal that has
        begun.

        Raises StoreTypeError, StoreFormatError: the topic is not valid, or one of the broker
        itself. StoreStateError: the store is not started. StoreError: a file cannot be written or
        deleted; the call may be repeated.
        """
        name = check_removable(topic)
        self._refuse_in_observer()
        shielded(lambda: self._while_started(lambda: self._started_removal().drop(name)))

    def trim_topic(self, topic: str, before_ms: int) -> Trimmed:
        """Remove the messages of a topic that were stored before `before_ms` (Unix ms), and the
        files of its queues that name no other ones.

        Returns the deleted files of queues. Durability and errors: as of `drop_topic`.
        """
        name, time_ms = check_removable(topic), exact_int64("before_ms", before_ms)
        self._refuse_in_observer()
        return shielded(
            lambda: self._while_started(lambda: self._started_removal().trim(name, time_ms))
        )

    def _started_removal(self) -> TopicRemoval:
        return self._new_removal(self.services.delete_lock)

    def _dispatch(self) -> ReputMessageService | None:
        return self.reput_service if self.life.is_started else None

    def _new_removal(self, delete_lock: AbstractContextManager[object]) -> TopicRemoval:
        return TopicRemoval(
            self.files,
            self._dispatch(),
            self.flush,
            self.flush_up_to,
            self._forget_topic,
            lambda topic: self.forget_positions(topic),  # a consumer may set it meanwhile
            self._read_positions,
            self.files.last_record,
            delete_lock,
        )

    def _note_clean_stop(self) -> Callable[[], None]:
        unscanned_to = -1 if self.plan is None else self.plan.unscanned_to
        files = self.files
        return files.clean_stop.note(files.derived_ends, files.last_record(), unscanned_to)

    def _forget_topic(self, topic: str) -> None:
        if self.topics is not None:
            self.topics.remove(topic)
            self.topics.persist()

    def _forget_positions(self, topic: str) -> None:
        """Remove the positions of groups in a topic while no consumer has read them."""
        offsets = self._read_positions()
        offsets.forget_topic(topic)

    def _read_positions(self) -> ConsumerOffsets:
        """Return the positions of groups. Raises StoreCorruptionError, StoreIOError."""
        offsets = ConsumerOffsets(self.env, self.root, lmq=self.config.enable_lmq)
        offsets.load()
        return offsets

    def trim(self, before_ms: int) -> Trimmed:
        """Delete the oldest files of the log whose newest message was stored before `before_ms`
        (Unix ms), and what queues and index have of them.

        The last file, and files that are not dispatched yet, are kept. Durability: the deletions
        of files of the log are durable on return.

        Raises StoreStateError when the store is not started, StoreError for a file that cannot be
        read or deleted.
        """
        return shielded(lambda: self._while_started(lambda: self._trim(before_ms)))

    def _trim(self, before_ms: int) -> Trimmed:
        self.wait_dispatched()
        return self.services.trim(before_ms)

    def _while_started(self, remove: Callable[[], Removed]) -> Removed:
        """Call `remove`; `shutdown` waits for its end."""
        with self.life_lock:
            self.check_started()
            return remove()

    def check_started(self) -> None:
        """Raise StoreStateError unless the store is open for writing and its services run."""
        if not self.life.is_started:
            state = "read-only" if self.read_only else "closed or not started"
            raise StoreStateError(f"{self.root}: the store is {state}")

    def execute_delete_files_manually(self) -> None:
        """Have the next 20 rounds of cleaning delete expired files at any hour.

        Raises StoreStateError when the store is not started, or does not clean.
        Source: RocketMQ 4.9.3 DefaultMessageStore#executeDeleteFilesManually.
        """
        if not self.life.is_started or self.services.clean_commit_log is None:
            raise StoreStateError("the store is not started, or was opened with cleans=False")
        self.services.clean_commit_log.execute_delete_files_manually()


OnReload = Callable[[LoadedFiles], Callable[[], None]]


def _ignore(fresh: LoadedFiles) -> Callable[[], None]:
    return lambda: None


class _Closer:
    """Called when the object of a caller is gone."""

    def __init__(self, engine: DefaultMessageStore) -> None:
        self._engine = engine

    def __call__(self, gone: weakref.ref[DefaultMessageStore]) -> None:
        self._engine.note_drop()


def close_at_exit() -> None:
    """Shut down every store of this process that is open, with a ResourceWarning for each."""
    texts = []
    for store in list(OPEN_STORES):
        if store.pid == os.getpid():
            if store.is_dropped():  # the warning was given
                shielded(store.end_dropped)
                continue
            text = f"{store.root}: the store was not closed"
            try:
                store.shutdown()
            except StoreError as error:
                text += f", and closing it has failed: {error}"
            texts.append(text)
    # Last, since a warning may be an error.
    for text in texts:
        warnings.warn(printable(text), ResourceWarning, stacklevel=1)


def _kill_copies_after_fork() -> None:
    for store in list(OPEN_STORES):
        store.after_fork()


os.register_at_fork(after_in_child=_kill_copies_after_fork)
