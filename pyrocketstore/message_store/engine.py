"""Engine: the parts of one store, wired together, and their life. No caller refers to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.commit_log.other_formats import check_format, check_format_to_write
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.dispatch.observers import (
    Arriving,
    MessageArrivingListener,
)
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.errors import (
    StoreStateError,
    without_frames,
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
from pyrocketstore.message_store.open_stores import OPEN_STORES
from pyrocketstore.message_store.program_dispatch import ProgramDispatch
from pyrocketstore.message_store.read_only_files import ReadOnlyFiles
from pyrocketstore.message_store.registered_filters import RegisteredFilters
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
from pyrocketstore.system.life_state import Life, LifeState, set_by_start
from pyrocketstore.system.signal_shield import (
    one_at_a_time,
    shielded,
)
from pyrocketstore.system.stalls import StallLog

if TYPE_CHECKING:
    from pyrocketstore.message_store.broker_stats import BrokerStatsManager

#: Interval of checks whether a shutdown holds the lock of a flush (s).
LOOK_S = 0.1


class Engine:
    """The parts of one store, and the steps of their life.

    Services and callbacks refer to it, and a DefaultMessageStore, which a caller has, too. A
    reference to it keeps no store open.

    Parameters
    ----------
    listener : as `message_arriving_listener` of DefaultMessageStore
    only : TopicBuckets or None: the topics that are read
    others : as of DefaultMessageStore

    Threads: any, except for load and start.
    """

    services: StoreServices = set_by_start()
    reput_service: ReputMessageService = set_by_start()
    copied_log: CopiedLog = set_by_start()

    def __init__(
        self,
        config: MessageStoreConfig,
        env: Env,
        *,
        read_only: bool,
        on_new_queue: Callable[[str, int], None] | None,
        cleans: bool,
        topics: TopicConfigFile | None,
        listener: Arriving | MessageArrivingListener | None,
        broker_stats: BrokerStatsManager | None,
        only: TopicBuckets | None,
    ) -> None:
        self.env, self.topics, self.broker_stats = env, topics, broker_stats
        self.cleans = cleans
        self.program_dispatch = ProgramDispatch(config, listener)
        self.read_only = read_only
        self.root = config.store_path_root_dir
        self.life, self.life_lock = LifeState(), threading.RLock()
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
        #: of a read-only store
        self.reader = ReadOnlyFiles(
            self.env, self.root, self.moved, self.topics, self.delay_offsets
        )
        self.removals = Removals(
            self.files, self.life, self.life_lock, self.topics, lambda: self.services
        )
        self.stats_service = StoreStatsService(
            self.files.commit_log.core, self.env.now_ms, self.env.monotonic_ns
        )
        self.read_counts = self.stats_service.reads
        self.stall_log = StallLog(self.env.monotonic_ns, config.stall_warning_mills)
        self.async_puts = AsyncPuts(
            config,
            lambda: self.files.commit_log.get_appended_offset(),
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
            earliest=lambda: (
                self.files.reads.get_earliest_message_time(None, 0) if self.life.is_loaded else -1
            ),
            failure=lambda: self.why_not_writeable,
        )

    def _make_closing(self) -> None:
        config = self.files.config
        abort_file = AbortFile(self.env, os.path.join(self.root, "abort"))
        self.store_failure = StoreFailure(
            self.files.running_flags, self.async_puts, abort_file, lambda: not self.life.has_ended
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
            self.files.config,
            self.env,
            self.life,
            self.files.running_flags,
            self.files.commit_log,
            self.files.queue_table,
            self.async_puts,
            self.stats_service,
            why_no_puts=lambda: self.why_no_puts,
        )

    def _make_hooks(self) -> None:
        #: called when puts are accepted again: a full disk has room
        self.on_alive: Callable[[], None] = lambda: None
        self.files.running_flags.on_not_writeable = lambda: self.closing.on_dead(None)
        self.files.running_flags.on_writeable = lambda: self.on_alive()
        self.files.running_flags.on_write_error = self._repair_later
        #: the settings of a reload: sizes that were not given may show only by then
        self.settings_of_reload: Callable[[], MessageStoreConfig] = lambda: self.files.config
        #: called with files that were loaded again; the result is called once they are used
        self.on_reload: Callable[[LoadedFiles], Callable[[], None]] = lambda fresh: lambda: None

    # ---- life cycle -----------------------------------------------------------------------------

    @one_at_a_time
    def load(self) -> None:
        """As `DefaultMessageStore.load`. Call it by `shielded`."""
        if self.life.has_ended:
            self.life.move(Life.NEW)
        if self.life.now is not Life.NEW:
            raise StoreStateError(f"{self.root}: already open: the store is {self.life.now.value}")
        if self.read_only:
            check_format(self.env, self.files.config)
        else:
            check_format_to_write(self.env, self.files.config)
            self._create_directories()
            self.files.locked_before_ms = locked_ms(self.env, self.root)
            self._lock_file.take()
            self._lock_file.release_on_demand(self.closing.is_dropped, self.closing.end_dropped)
        try:
            if self.read_only:
                self.reader.load(self.files)
            else:
                self._load_to_write()
        except BaseException:
            self.closing.give_up()
            raise
        self.life.move(Life.LOADED)
        OPEN_STORES.add(self.closing)

    def _create_directories(self) -> None:
        queues = os.path.join(self.root, "consumequeue")
        paths = (self.root, *self.files.config.commit_log_paths, queues)
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
            complete_removals=self.removals.complete,
            replay_observed=lambda plan: self.program_dispatch.replay(
                files.commit_log, plan, self.filters.bit_map()
            ),
        ).load()

    @one_at_a_time
    def start(self) -> None:
        """As `DefaultMessageStore.start`. Call it by `shielded`."""
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        if self.life.now is not Life.LOADED or self.allocate_service is None:
            raise StoreStateError("start() must be called once, after load()")
        self.reput_service = ReputMessageService(
            self.files.commit_log, self.files.dispatcher, self.appended
        )
        self.files.commit_log.wait_dispatched = self._wait_for_copied
        self.files.commit_log.set_next_offsets = self.files.recover_topic_queue_table
        self.files.dispatcher.call_after(self.program_dispatch.observers(self.filters.bit_map()))
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
            self.files.commit_log,
            self.puts,
            self.services,
            self.life,
            self.files.running_flags,
            lambda: self.why_not_writeable,
        )
        self._count_for_broker()
        if self.files.config.broker_role is not BrokerRole.SLAVE:
            self.services.add_schedule(
                self.delay_offsets, self.puts.put_due, lambda: not self.life.takes_puts
            )
        if self.cleans:
            self.services.add_cleaning(self.files.newest_store_timestamp())
        if self.files.config.enables_retention:
            self.services.add_retention()
        self.life.move(Life.STARTING)
        self.services.start()
        self.life.move(Life.STARTED)
        schedule = self.services.schedule_service
        if schedule is not None and schedule.has_messages():  # now: deliveries are puts
            self.services.start_schedule()
        if self.files.running_flags.is_write_error():
            self._repair_later()

    def _count_for_broker(self) -> None:
        stats = self.broker_stats
        if stats is not None:
            stats.follow(self.files.commit_log.core.queue_put_totals)
            self.services.on_look = lambda: stats.tick(self.env.monotonic_ms())
            if self.files.config.enable_schedule_message_stats:
                self.puts.on_delivery = stats.note_delivery

    def _repair(self) -> bool:
        is_whole = repair(self.files, self.reput_service.paused())
        schedule = self.services.schedule_service
        if is_whole and schedule is not None:
            schedule.wakeup()  # queues have units again that the dispatcher could not write
        return is_whole

    def _repair_later(self) -> None:
        if self.life.takes_puts:
            self.services.start_repair()

    def lacks_units(self) -> bool:
        """Return whether units could not be written, so that queues may end before the log does."""
        return self.files.running_flags.is_logics_queue_error()

    # ---- refresh --------------------------------------------------------------------------------

    def refresh(self) -> int:
        """As `DefaultMessageStore.refresh`. Call it by `shielded`."""
        with self.life_lock:
            if not self.life.is_loaded:
                raise StoreStateError(f"{self.root}: the store is closed")
            self.check_root()
            before = self.files.commit_log.get_max_offset()
            if not self.reader.follow():
                self._reload()
            return self.files.commit_log.get_max_offset() - before

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

    def persist_topics(self, at_once: bool) -> None:
        """Write topics.json, if the store keeps one and it has changed: see TopicConfigFile."""
        if self.topics is not None:
            self.topics.persist(at_once=at_once)

    # ---- flushes and dispatch -------------------------------------------------------------------

    def flush(self) -> int:
        """As `DefaultMessageStore.flush`."""
        self._check_flushable()
        return shielded(self.services.log_flush.flush_to_end)

    def _refuse_copy(self) -> None:
        """Raise StoreStateError in a forked child, which has no thread of the store."""
        if self.life.now is Life.FORKED:
            raise StoreStateError(f"{self.root}: the store is {self.life.now.value}")

    def _check_flushable(self) -> None:
        self._refuse_copy()
        if self.read_only:
            raise StoreStateError(f"{self.root}: the store is open read-only: nothing to flush")

    def flush_all(self) -> None:
        """As `DefaultMessageStore.flush_all`."""
        self._check_flushable()
        self.wait_dispatched()
        shielded(self._flush_all)
        self.check_complete()

    def check_complete(self) -> None:
        """As `DefaultMessageStore.check_complete`."""
        error = self.files.running_flags.write_error
        if error is not None:
            raise without_frames(error)

    def _flush_all(self) -> None:
        services = self.services
        while not self.life_lock.acquire(timeout=LOOK_S):
            if not self.life.takes_puts:  # the shutdown flushes, and may wait for this thread
                raise StoreStateError(f"{self.root}: the store is closed")
        try:
            self.removals.check_started()  # else another process may own the files
            index_flush = self.files.index_flush
            index_state = None if index_flush is None else index_flush.begin()
            services.log_flush.flush_to_end()
            services.flush_queue_service.do_flush(True, index_state)
            self.files.index_service.flush()
            services.log_flush.check_fsyncs()
        finally:
            self.life_lock.release()

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended the puts of the store for good, None without one."""
        return self.store_failure.error

    @property
    def why_not_writeable(self) -> BaseException | None:
        """The first error that ended a service, a queue or the index; None without one."""
        return self.failure or self.files.running_flags.cause

    @property
    def why_no_puts(self) -> BaseException | None:
        """The reason why puts are refused, if an error, `append_data` or the role of a slave is
        one; else None."""
        is_slave = self.files.config.broker_role is BrokerRole.SLAVE
        if self.why_not_writeable is None and is_slave:
            return StoreStateError(f"{self.root}: the copy of a master: put into the master")
        return self.why_not_writeable or self.files.commit_log.why_no_puts()

    def _wait_for_copied(self) -> None:
        """Wait until the records of `append_data` are dispatched, before puts follow them."""
        self.wait_dispatched()
        if self.reput_service.is_unconfirmed():
            raise StoreStateError(
                f"{self.root}: records of append_data are behind the confirm offset, so that the"
                " next queue offsets are unknown: call set_confirm_offset first"
            )

    def wait_dispatched(self, seconds: float | None = None) -> bool:
        """As `DefaultMessageStore.wait_dispatched`."""
        files = self.files
        if self.read_only or files.dispatcher.position >= files.commit_log.core.appended_end:
            return True
        self._refuse_copy()
        return self.reput_service.wait_appended(seconds)
