"""The puts of DefaultMessageStore that give futures, and what all puts are counted by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from pyrocketstore._exact import body_size
from pyrocketstore._put_result import PutMessageResult, make_result
from pyrocketstore.async_put import AsyncPuts
from pyrocketstore.env import Env
from pyrocketstore.message import MessageExtBatch, MessageExtBrokerInner, settle
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.stats import StoreStatsService

__all__ = ["MessageFutures"]


class MessageFutures:
    """A part of DefaultMessageStore, which gives `_checked_put`, `_checked_batch` and `_wait`."""

    env: Env
    async_puts: AsyncPuts
    stats_service: StoreStatsService

    def _checked_put(
        self, message: MessageExtBrokerInner, *, has_room: bool = False
    ) -> PutMessageResult:
        raise NotImplementedError

    def _checked_batch(self, batch: MessageExtBatch) -> PutMessageResult:
        raise NotImplementedError

    def _wait(self, result: PutMessageResult, wait_store_msg_ok: bool) -> PutMessageResult:
        raise NotImplementedError

    def async_put_message(self, message: MessageExtBrokerInner) -> Future[PutMessageResult]:
        """As put_message; the future is done when the flush is.

        Futures of one queue are done in the order of its offsets. When `max_outstanding_puts` or
        `max_outstanding_put_bytes` are outstanding already, nothing is put: OS_PAGECACHE_BUSY.

        Source: RocketMQ 4.9.3 DefaultMessageStore#asyncPutMessage.
        """
        settle(message)
        size = body_size(message.body)
        return self._later(lambda: self._checked_put(message), size, message.wait_store_msg_ok)

    def async_put_messages(self, batch: MessageExtBatch) -> Future[PutMessageResult]:
        """As put_messages, with a future; see async_put_message."""
        settle(batch)
        size = body_size(batch.body)
        return self._later(lambda: self._checked_batch(batch), size, batch.wait_store_msg_ok)

    def append_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """As put_settled, without the wait for the flush, whose time is not counted, and not
        refused under `max_unforced_bytes`: the caller has room (PutRoom)."""
        return self._checked_put(message, has_room=True)

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
                self.stats_service.note_outcome(busy, 0, tried=False)
                return _done(make_result(busy))
            with puts.order:
                result = put()
                if result.status_code:
                    return _done(result)
                future = puts.add(result, room)
        puts.ask()
        return future

    def _tried(self, result: PutMessageResult) -> PutMessageResult:
        if result.status_code:
            self.stats_service.note_outcome(result.status_code, 0)
        return result

    def _noted(self, result: PutMessageResult, began_ms: int) -> PutMessageResult:
        if result.append_status_code == 0:
            took_ms = self.env.monotonic_ms() - began_ms
            self.stats_service.note_put(result.status_code, result.message_count, took_ms)
        return result

    def _note_async_puts(self, results: Iterable[tuple[PutMessageResult, int]]) -> None:
        """Count puts that are done; each with the monotonic ns of its append."""
        now = self.env.monotonic_ns()
        for result, began_ns in results:
            took_ms = (now - began_ns) // 1_000_000
            self.stats_service.note_put(result.status_code, result.message_count, took_ms)


def _done(result: PutMessageResult) -> Future[PutMessageResult]:
    done: Future[PutMessageResult] = Future()
    done.set_result(result)
    return done
