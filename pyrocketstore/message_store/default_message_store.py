"""DefaultMessageStore: one store with RocketMQ's methods, made of the parts of the other
folders.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyrocketstore.arguments.scalars import exact_int64, texts_of
from pyrocketstore.commit_log.other_formats import (
    check_checkpoint,
    check_format,
    check_format_to_write,
)
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.dispatch.observers import (
    Arriving,
    Dispatch,
    MessageArrivingListener,
)
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.display import logger
from pyrocketstore.errors import (
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.allocate_mapped_file_service import make_allocate_service
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.lock_file import store_lock
from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.message_store.closing import Closing
from pyrocketstore.message_store.copied_log import CopiedLog
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.loading import LoadingToWrite
from pyrocketstore.message_store.message_puts import MessagePuts
from pyrocketstore.message_store.open_stores import OPEN_STORES, Closer
from pyrocketstore.message_store.program_dispatch import ProgramDispatch
from pyrocketstore.message_store.read_calls import ReadCalls
from pyrocketstore.message_store.read_only_files import ReadOnlyFiles
from pyrocketstore.message_store.registered_filters import RegisteredFilters
from pyrocketstore.message_store.removal_calls import RemovalCalls
from pyrocketstore.message_store.removals import Removals
from pyrocketstore.message_store.reports import StoreReports
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.message_store.stats import StoreStatsService
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.recovery.clean_stop import locked_ms
from pyrocketstore.recovery.repair import repair
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import Life, LifeState
from pyrocketstore.system.signal_shield import (
    imported,
    one_at_a_time,
    shielded,
)
from pyrocketstore.system.stalls import StallLog

if TYPE_CHECKING:
    from pyrocketstore.message_store.broker_stats import BrokerStatsManager

LOG = logger(__name__)


class DefaultMessageStore(ReadCalls, RemovalCalls):
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
        Others may be missing in it. A writable store refuses it: StoreFormatError

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
        self._engine: DefaultMessageStore = object.__new__(type(self))
        self._engine.__dict__ = self.__dict__
        only = None if only_topics is None else TopicBuckets(texts_of("only_topics", only_topics))
        if only is not None and not read_only:
            raise StoreFormatError("only_topics: a store that is open for writing needs all topics")
        self._engine._make_parts(config.absolute(), env, read_only, on_new_queue, cleans, only)
        self.program_dispatch = ProgramDispatch(self.config, message_arriving_listener)
        # Called while the engine is open: OPEN_STORES has it then.
        known = weakref.ref(self, Closer(self.closing))
        self.closing.is_dropped = lambda: known() is None

    def _make_parts(
        self,
        config: MessageStoreConfig,
        env: Env | None,
        read_only: bool,
        on_new_queue: Callable[[str, int], None] | None,
        cleans: bool,
        only: TopicBuckets | None,
    ) -> None:
        self.cleans = cleans
        self.env = Env() if env is None else env
        self.read_only = read_only
        self.root = config.store_path_root_dir
        self.life, self.pid = LifeState(), os.getpid()
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
        self._make_hooks()
        self.life_lock = threading.RLock()
        #: of a read-only store
        self.reader = ReadOnlyFiles(
            self.env, self.root, self.moved, self.topics, self.delay_offsets
        )
        self.removals = Removals(
            self.files, self.life, self.life_lock, self.topics, lambda: self.services
        )
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
        self._make_closing()
        self.filters = RegisteredFilters(self.closing)
        self.puts = self._new_puts()
        self.reports = StoreReports(
            self.files,
            self.async_puts,
            self.stall_log,
            self.stats_service,
            earliest=lambda: self.get_earliest_message_time() if self.life.is_loaded else -1,
            failure=lambda: self.why_not_writeable,
        )

    def _make_closing(self) -> None:
        config, abort_file = self.config, AbortFile(self.env, os.path.join(self.root, "abort"))
        self.store_failure = StoreFailure(
            self.running_flags, self.async_puts, abort_file, lambda: not self.life.has_ended
        )
        self._lock_file = store_lock(self.env, config, self.store_failure.fail)
        self.file_systems = FileSystems(
            self.env, self._lock_file.descriptors, config.syncfs_least_files
        )
        self.closing = Closing(
            self.files,
            self.life,
            self.life_lock,
            self._lock_file,
            abort_file,
            self.store_failure,
            self.file_systems,
            self.allocate_service,
            self.topics,
            self.delay_offsets,
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
        #: called when puts are accepted again: a full disk has room
        self.on_alive: Callable[[], None] = lambda: None
        self.running_flags.on_not_writeable = lambda: self.closing.on_dead(None)
        self.running_flags.on_writeable = lambda: self.on_alive()
        self.running_flags.on_write_error = self._repair_later
        #: the settings of a reload: sizes that were not given may show only by then
        self.settings_of_reload: Callable[[], MessageStoreConfig] = lambda: self.config
        #: called with files that were loaded again; the result is called once they are used
        self.on_reload: Callable[[LoadedFiles], Callable[[], None]] = lambda fresh: lambda: None

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
        if self.read_only:
            check_format(self.env, self.config)
        else:
            check_format_to_write(self.env, self.config)
            self._create_directories()
            self.files.locked_before_ms = locked_ms(self.env, self.root)
            self._lock_file.take()
            self._lock_file.release_on_demand(self.closing.is_dropped, self.closing.end_dropped)
        try:
            if self.read_only:
                self.reader.load(self.files)
            else:
                check_checkpoint(self.env, self.config)
                self._load_to_write()
        except BaseException:
            self.closing.give_up()
            raise
        self.life.move(Life.LOADED)
        OPEN_STORES.add(self.closing)

    def _create_directories(self) -> None:
        queues = os.path.join(self.root, "consumequeue")
        paths = (self.root, *self.config.commit_log_paths, queues)
        for path in paths:
            self.env.make_directories(path, durable=False)
        for path in {os.path.dirname(path): path for path in paths}.values():
            self.env.fsync_parent_directory(path)

    def _load_to_write(self) -> None:
        files = self.files
        LoadingToWrite(
            files,
            self.moved,
            self.topics,
            self.delay_offsets,
            file_systems=self.file_systems,
            bit_map=self.filters.bit_map,
            complete_removals=lambda: self.removals.complete(contextlib.nullcontext()),
            replay_observed=lambda plan: self.program_dispatch.replay(
                files.commit_log, plan, self.filters.bit_map()
            ),
        ).load()

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
            self.check_root()
            before = self.commit_log.get_max_offset()
            if not self.reader.follow():
                self._reload()
            return self.commit_log.get_max_offset() - before

    def check_root(self) -> None:
        """Raise StoreStateError if another directory has the path of this read-only store.

        A store that is open for writing refuses the single calls instead: see `Env.pin`.
        """
        if self.read_only:
            self.reader.check_root()

    def _reload(self) -> None:
        """Load the store again beside the readers, and replace its parts at once.

        Calls that have begun, and iterators, keep the old parts, which end with their last
        reference.
        """
        self.reader.load_again(self.settings_of_reload, self._replace)

    def _replace(self, fresh: LoadedFiles) -> None:
        install = self.on_reload(fresh)
        old = self.files, self.puts
        self.files = self.reports.files = self.closing.files = fresh
        self.puts = self._new_puts()
        install()
        del old  # only now: its last reference may run code

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
        self.dispatcher.call_after(self.program_dispatch.observers(self.filters.bit_map()))
        self.program_dispatch.follow(self.reput_service)
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
        self.reports.services = self.puts.services = self.closing.services = self.services
        self.copied_log = CopiedLog(
            self.commit_log,
            self.puts,
            self.services,
            self.life,
            self.running_flags,
            lambda: self.why_not_writeable,
        )
        self._count_for_broker()
        if self.config.broker_role is not BrokerRole.SLAVE:
            self.services.add_schedule(
                self.delay_offsets, self.puts.put_due, lambda: not self.life.takes_puts
            )
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

    def _count_for_broker(self) -> None:
        stats = self._broker_stats
        if stats is not None:
            stats.follow(self.commit_log.core.queue_put_totals)
            self.services.on_look = lambda: stats.tick(self.env.monotonic_ms())
            if self.config.enable_schedule_message_stats:
                self.puts.on_delivery = stats.note_delivery

    def get_confirm_offset(self) -> int:
        """Return the value of `set_confirm_offset`, -1 before the first call.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getConfirmOffset.
        """
        phy_offset = self.program_dispatch.confirm_offset
        return -1 if phy_offset is None else phy_offset

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
        self.program_dispatch.confirm(exact_int64("phy_offset", phy_offset))

    def get_dispatcher_list(self) -> list[Dispatch]:
        """Return the list to which a program appends its own dispatchers before `start`.

        Each is called with the DispatchRequest of every message, after queue and index have it,
        and before the arriving listener, under the same rules. Dispatchers that are in the list
        before `load` also get the messages that recovery reads after an unclean exit: those that
        were not dispatched before, and some again.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getDispatcherList, CommitLogDispatcher.
        Differs: the list lacks the store's own dispatchers, which are compiled.
        """
        return self.program_dispatch.dispatchers

    def get_broker_stats_manager(self) -> BrokerStatsManager | None:
        """Return the argument of the constructor.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getBrokerStatsManager.
        """
        return self._broker_stats

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
        if self.pid == os.getpid():
            self.program_dispatch.refuse_call()
            self.closing.shutdown()

    def destroy(self) -> None:
        """Delete the store's data: log, queues, index, abort, checkpoint. After shutdown().

        Raises StoreStateError: the store is open, here or elsewhere, or read-only. StoreIOError.
        Source: RocketMQ 4.9.3 DefaultMessageStore#destroy.
        Differs: 4.9.3 also deletes an open store.
        """
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        self.program_dispatch.refuse_call()
        shielded(self.closing.destroy)
