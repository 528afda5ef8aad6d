"""Puts of whole messages: whether one is possible, the append, and the wait for the flush."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from pyrocketstore.arguments._numbers_and_bodies import body_size
from pyrocketstore.commit_log._puts import PutMessageResult, make_result, with_status
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue.table import ConsumeQueueTable, is_safe_name, no_queue
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.message_store.encoded_puts import EncodedPuts
from pyrocketstore.message_store.stats import StoreStatsService
from pyrocketstore.record.message import (
    LMQ_PREFIX,
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_SIZE,
    PROPERTIES_TOO_LONG,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
    batch_too_large,
    java_split,
    topic_too_long,
    utf8_length,
    utf16_length,
)
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import LifeState, set_by_start
from pyrocketstore.system.signal_shield import shielded

if TYPE_CHECKING:
    from pyrocketstore.message_store.start_stop_services import StoreServices

__all__ = ["MessagePuts"]

Putable = TypeVar("Putable", MessageExtBrokerInner, MessageExtBatch)


class MessagePuts:
    """The puts of one store, of messages whose fields have their exact types.

    Parameters
    ----------
    config : MessageStoreConfig
    env : Env
    life : LifeState, says whether the store takes puts
    flags : RunningFlags, say whether its files can be written
    log : CommitLog
    queues : ConsumeQueueTable, for the number of light queues
    async_puts : AsyncPuts
    stats : StoreStatsService, counts the puts
    why_no_puts : callable() -> the error for which puts are refused, or None

    Threads: any.
    """

    #: those of the started store: flushes, and the delivery of delayed messages
    services: StoreServices = set_by_start()

    def __init__(
        self,
        config: MessageStoreConfig,
        env: Env,
        life: LifeState,
        flags: RunningFlags,
        log: CommitLog,
        queues: ConsumeQueueTable,
        async_puts: AsyncPuts,
        stats: StoreStatsService,
        *,
        why_no_puts: Callable[[], BaseException | None],
    ) -> None:
        self.config, self.env, self.root = config, env, config.store_path_root_dir
        self.life, self.flags, self.log, self.queues = life, flags, log, queues
        self.async_puts, self.stats, self.why_no_puts = async_puts, stats, why_no_puts
        #: called with a delayed message that was delivered
        self.on_delivery: Callable[[MessageExtBrokerInner, PutMessageResult], None] = _ignore
        self._has_light_queues = False  # a directory on disk says so

    def status(self, *, has_room: bool = False) -> PutMessageStatus:
        """As `DefaultMessageStore.check_store_status`."""
        if not self.life.takes_puts or self.config.broker_role is BrokerRole.SLAVE:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if not self.flags.is_writeable() or self.log.core.is_copying:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self.is_busy() or (not has_room and self.async_puts.is_behind()):
            return PutMessageStatus.OS_PAGECACHE_BUSY
        return PutMessageStatus.PUT_OK

    def is_busy(self) -> bool:
        """Return whether the put lock has been held for too long."""
        return bool(self.log.core.is_busy())

    def make_room(self) -> None:
        """Flush the log if too much of it is not durable. Raises StoreError."""
        if self.async_puts.is_behind():
            self.services.log_flush.flush_to_end()

    # ---- puts that wait --------------------------------------------------------------------------

    def put(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append a message, and wait for the flush as the settings say."""
        began = self.env.monotonic_ms()
        result = self._append(message)
        return self._noted(self._wait(result, message.wait_store_msg_ok), began)

    def put_due(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a delayed message that is due; make room for it, as the puts of a program do."""
        self.make_room()
        result = self.put(message)
        if not result.status_code:
            self.on_delivery(message, result)
        return result

    def put_batch(self, batch: MessageExtBatch) -> PutMessageResult:
        """As `put`, for a batch."""
        began = self.env.monotonic_ms()
        result = self._append_batch(batch)
        return self._noted(self._wait(result, batch.wait_store_msg_ok), began)

    def wait_flushed(self, result: PutMessageResult) -> PutMessageResult:
        """Wait for the flush of an append by a compiled put."""
        began = self.env.monotonic_ms()
        return self._noted(self._wait(result, True), began)

    # ---- puts that do not ------------------------------------------------------------------------

    def append(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """As `put`, without the wait for the flush, and not refused because of
        `max_unforced_bytes`: the caller has room (PutRoom). The time is not counted."""
        return self._append(message, has_room=True)

    def put_later(self, message: MessageExtBrokerInner) -> Future[PutMessageResult]:
        """As `put`; return a future that is done when the flush is."""
        size = body_size(message.body)
        return self._later(lambda: self._append(message), size, message.wait_store_msg_ok)

    def put_batch_later(self, batch: MessageExtBatch) -> Future[PutMessageResult]:
        """As `put_batch`; return a future that is done when the flush is."""
        size = body_size(batch.body)
        return self._later(lambda: self._append_batch(batch), size, batch.wait_store_msg_ok)

    @functools.cached_property
    def encoded(self) -> EncodedPuts:
        """The puts of encoded messages, made by the first one.

        Raises StoreStateError before the store has started.
        """
        services = self.services
        return EncodedPuts(
            self.config,
            self.env,
            self.log,
            self.stats,
            refusal=self._refusal_with_room,
            append_message=self.append,
            flush=lambda end: services.flush_service.handle_disk_flush(end, True),
        )

    def start_schedule(self) -> None:
        """Start the thread that delivers delayed messages, unless it runs."""
        schedule = self.services.schedule_service
        if schedule is not None and not schedule.is_alive:
            shielded(self.services.start_schedule)

    # ---- whether a put is tried ------------------------------------------------------------------

    def _refusal_with_room(self) -> tuple[PutMessageStatus, BaseException | None]:
        """Flush if too much is not durable; return the status of a put now, and its reason."""
        self.make_room()
        status = self.status()
        return status, None if status is PutMessageStatus.PUT_OK else self.why_no_puts()

    def _append(
        self, message: MessageExtBrokerInner, *, has_room: bool = False
    ) -> PutMessageResult:
        # Before the put: a signal handler may raise between the append and any later step.
        if PROPERTY_DELAY_TIME_LEVEL in message.properties and self.life.takes_puts:
            self.start_schedule()
        too_long = None
        if utf16_length(message.properties_string or "") > MAX_PROPERTIES_SIZE:
            too_long = MessageRefused("MESSAGE_ILLEGAL", PROPERTIES_TOO_LONG)
        refused = self._refused(message.topic, too_long, has_room)
        names = (message.properties.get(PROPERTY_INNER_MULTI_DISPATCH) or "").strip()
        if refused is None and names and self.config.enable_lmq:
            if not self._has_light_queues:
                self._note_light_queues(names)
            is_full = self.queues.lmq_count > self.config.max_lmq_consume_queue_num
            if is_full and self.config.enable_multi_dispatch:
                refused = make_result(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
        return self._outcome(refused, self.log.put_message, message)

    def _append_batch(self, batch: MessageExtBatch) -> PutMessageResult:
        limit, size = self.config.max_message_size, body_size(batch.body)
        too_long = batch_too_large(size, limit) if size > limit else None
        refused = self._refused(batch.topic, too_long)
        return self._outcome(refused, self.log.put_messages, batch)

    def _note_light_queues(self, names: str) -> None:
        """Make the directory of the first light queue before the message is put.

        An opening without settings knows by it that the store has light queues; otherwise a kill
        before the dispatch would lose their units.
        """
        light = [name for name in java_split(names) if name.startswith(LMQ_PREFIX)]
        if not light or not is_safe_name(light[0]):
            return
        if self.queues.lmq_count == 0:
            path = os.path.join(self.queues.path, light[0], "0")
            shielded(lambda: self.env.make_directories(path))
        self._has_light_queues = True

    def _refused(
        self, topic: str, too_long: MessageRefused | None, has_room: bool = False
    ) -> PutMessageResult | None:
        """Return the result of a put that is not tried; None for one that is."""
        status = self.status(has_room=has_room)
        if status is not PutMessageStatus.PUT_OK:
            return make_result(status, error=self.why_no_puts())
        error: StoreFormatError | MessageRefused | None = too_long
        if utf16_length(topic) > MAX_TOPIC_SIZE:
            error = topic_too_long(utf8_length(topic))
        elif too_long is None and not is_safe_name(topic):
            error = no_queue(topic)
        return None if error is None else make_result(PutMessageStatus.MESSAGE_ILLEGAL, error=error)

    # ---- outcomes --------------------------------------------------------------------------------

    def _outcome(
        self,
        refused: PutMessageResult | None,
        put: Callable[[Putable], PutMessageResult],
        message: Putable,
    ) -> PutMessageResult:
        """Put the message unless it is refused; count a status other than PUT_OK."""
        result = put(message) if refused is None else refused
        if result.status_code:
            self.stats.note_outcome(result.status_code, 0, tried=refused is None)
        return result

    def _wait(self, result: PutMessageResult, wait_store_msg_ok: bool) -> PutMessageResult:
        if result.status_code != 0:
            return result
        end = result.phy_offset + result.wrote_bytes
        status = self.services.flush_service.handle_disk_flush(end, wait_store_msg_ok)
        return result if status is PutMessageStatus.PUT_OK else with_status(result, status)

    def _later(
        self, put: Callable[[], PutMessageResult], size: int, wait_store_msg_ok: bool
    ) -> Future[PutMessageResult]:
        puts = self.async_puts
        if not puts.sync or not wait_store_msg_ok:
            began = self.env.monotonic_ms()
            return _done(self._noted(self._wait(put(), wait_store_msg_ok), began))
        with puts.room(size) as room:
            if not room.reserve():
                busy = PutMessageStatus.OS_PAGECACHE_BUSY
                self.stats.note_outcome(busy, 0, tried=False)
                return _done(make_result(busy))
            with puts.order:
                result = put()
                if result.status_code:
                    return _done(result)
                future = puts.add(result, room)
        puts.ask()
        return future

    def _noted(self, result: PutMessageResult, began_ms: int) -> PutMessageResult:
        if result.append_status_code == 0:
            took_ms = self.env.monotonic_ms() - began_ms
            self.stats.note_put(result.status_code, result.message_count, took_ms)
        return result


def _ignore(message: MessageExtBrokerInner, result: PutMessageResult) -> None:
    """Count no delivery."""


def _done(result: PutMessageResult) -> Future[PutMessageResult]:
    future: Future[PutMessageResult] = Future()
    future.set_result(result)
    return future
