"""DefaultMessageStore: one store with RocketMQ's methods, made of the parts of the other
folders.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyrocketstore.arguments.scalars import exact_int64, texts_of
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.dispatch.observers import (
    Arriving,
    Dispatch,
    MessageArrivingListener,
)
from pyrocketstore.display import logger
from pyrocketstore.errors import (
    StoreFormatError,
    StoreStateError,
)
from pyrocketstore.message_store.closing import Closing
from pyrocketstore.message_store.constructor_arguments import check_arguments
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.message_store.open_stores import Closer
from pyrocketstore.message_store.read_calls import ReadCalls, part
from pyrocketstore.message_store.read_only_files import ReadOnlyFiles
from pyrocketstore.message_store.registered_filters import RegisteredFilters
from pyrocketstore.message_store.removal_calls import RemovalCalls
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import (
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

    Services and callbacks refer to the engine of the store alone. The object of a caller therefore
    ends with its last reference, whatever runs; a new thread then closes the engine of a store that
    was not shut down, with a ResourceWarning.

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
        check_arguments(config, env, read_only, on_new_queue, cleans, topics, broker_stats_manager)
        only = None if only_topics is None else TopicBuckets(texts_of("only_topics", only_topics))
        if only is not None and not read_only:
            raise StoreFormatError("only_topics: a store that is open for writing needs all topics")
        self.engine = Engine(
            config.absolute(),
            Env() if env is None else env,
            read_only=read_only,
            on_new_queue=on_new_queue,
            cleans=cleans,
            topics=topics,
            listener=message_arriving_listener,
            broker_stats=broker_stats_manager,
            only=only,
        )
        closing = self.engine.closing
        # Called while the engine is open: OPEN_STORES has its end then.
        known = weakref.ref(self, Closer(closing))
        closing.is_dropped = lambda: known() is None

    appended: Event = part("appended")
    moved: Event = part("moved")
    cleans: bool = part("cleans")
    topics: TopicConfigFile | None = part("topics")
    delay_offsets: DelayOffsets = part("delay_offsets")
    reader: ReadOnlyFiles = part("reader")
    stall_log: StallLog = part("stall_log")
    closing: Closing = part("closing")
    filters: RegisteredFilters = part("filters")

    # ---- life cycle ---------------------------------------------------------------------------

    def load(self) -> bool:
        """Open the files, recover, and allow reads.

        Returns True. Raises StoreStateError ("already open"), StoreCorruptionError or StoreIOError.
        Durability: writable: cuts and rebuilt units are in the page cache; `abort` exists.
        Source: RocketMQ 4.9.3 DefaultMessageStore#load.
        Differs: takes the lock first, and creates `abort` before anything is changed.
        """
        shielded(self.engine.load, lambda _: self.shutdown())
        return True

    # ---- refresh ------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Make everything that the owner of the store has written since the last look readable.

        Reads only what was appended, or loads the store again (`recovery.refresh` says when).

        Returns the bytes by which the end of the log has moved; negative if the log was cut.

        Raises StoreStateError: the store is not open, or is open for writing. StoreIOError,
        StoreCorruptionError: the store answers as before, and the next call tries again.

        Threads: any, beside readers. Each of them finds the state before or after the call.
        """
        engine = self.engine
        if engine.closing.pid != os.getpid():
            raise StoreStateError(f"{engine.root}: the store is dead: the process was forked")
        if not engine.read_only:
            raise StoreStateError(f"{engine.root}: the store is open for writing: it has all data")
        return shielded(engine.refresh)

    def check_root(self) -> None:
        """Raise StoreStateError if another directory has the path of this read-only store."""
        self.engine.check_root()

    def start(self) -> None:
        """Start the services, and accept puts.

        Raises StoreStateError on a read-only store.
        Source: RocketMQ 4.9.3 DefaultMessageStore#start.
        """
        shielded(self.engine.start)

    def lacks_units(self) -> bool:
        """Return whether units could not be written, so that queues may end before the log does."""
        return self.engine.lacks_units()

    def recover_topic_queue_table(self) -> None:
        """As `StoreFiles.recover_topic_queue_table`."""
        self.engine.files.recover_topic_queue_table()

    def persist_topics(self, at_once: bool) -> None:
        """Write topics.json, if the store keeps one and it has changed: see TopicConfigFile."""
        self.engine.persist_topics(at_once)

    def get_confirm_offset(self) -> int:
        """Return the value of `set_confirm_offset`, -1 before the first call.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getConfirmOffset.
        """
        phy_offset = self.engine.program_dispatch.confirm_offset
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
        self.engine.program_dispatch.confirm(exact_int64("phy_offset", phy_offset))

    def get_dispatcher_list(self) -> list[Dispatch]:
        """Return the list to which a program appends its own dispatchers before `start`.

        Each is called with the DispatchRequest of every message, after queue and index have it,
        and before the arriving listener, under the same rules. Dispatchers that are in the list
        before `load` also get the messages that recovery reads after an unclean exit: those that
        were not dispatched before, and some again.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getDispatcherList, CommitLogDispatcher.
        Differs: the list lacks the store's own dispatchers, which are compiled.
        """
        return self.engine.program_dispatch.dispatchers

    def get_broker_stats_manager(self) -> BrokerStatsManager | None:
        """Return the argument of the constructor.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getBrokerStatsManager.
        """
        return self.engine.broker_stats

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
        if self.engine.closing.pid == os.getpid():
            self.engine.program_dispatch.refuse_call()
            self.engine.closing.shutdown()

    def destroy(self) -> None:
        """Delete the store's data: log, queues, index, abort, checkpoint. After shutdown().

        Raises StoreStateError: the store is open, here or elsewhere, or read-only. StoreIOError.
        Source: RocketMQ 4.9.3 DefaultMessageStore#destroy.
        Differs: 4.9.3 also deletes an open store.
        """
        if self.engine.read_only:
            raise StoreStateError("the store is open read-only")
        self.engine.program_dispatch.refuse_call()
        shielded(self.engine.closing.destroy)
