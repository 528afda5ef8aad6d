"""Parts of the face: its asyncio side, what it tells of itself, and the room that puts wait for."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore._commit_log import CommitLogCore
from pyrocketstore._exact import body_bytes
from pyrocketstore._face import Face
from pyrocketstore._put_path import PutPath
from pyrocketstore._put_result import PutMessageResult
from pyrocketstore.errors import StoreError, StoreStateError
from pyrocketstore.message import MessageExtBrokerInner, check_properties, join_keys
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.stats import StoreStats

if TYPE_CHECKING:
    from pyrocketstore.message_store import DefaultMessageStore

__all__ = ["Appender", "AsyncStore"]


class Appender(PutPath):
    """`put` without the wait for the flush, through the same log.

    It does not keep its store alive, which holds it.
    """

    def __init__(self, core: CommitLogCore, store_host: str, store: AsyncStore) -> None:
        self._store = weakref.ref(store)
        self.bind_put_path(core, store_host)

    def _owner(self) -> AsyncStore:
        store = self._store()
        if store is None:
            raise StoreStateError("the store is not open")
        return store

    def _put_slow(self, *arguments: Any) -> PutMessageResult:
        return self._owner()._append_slow(*arguments)

    def _roll(self, size: int) -> int:
        return self._owner()._roll(size)


class AsyncStore(Face):
    """`aput`, `aput_many`, `aflush` and `stats`, for Store."""

    message_store: DefaultMessageStore
    _appender: Appender

    if TYPE_CHECKING:
        put_many: Callable[..., tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
        flush: Callable[[], None]
        _check_open: Callable[[], None]
        _roll: Callable[[int], int]
        _checked: Callable[[PutMessageResult, int], PutMessageResult]
        _message_of: Callable[..., MessageExtBrokerInner]

    def stats(self) -> StoreStats:
        """What was put and read, how fast and how long it took, what is outstanding, and more."""
        self._check_open()
        return self.message_store.stats()

    def _append_slow(self, *arguments: Any) -> PutMessageResult:
        """What is not an ordinary put, without the wait for the flush."""
        message = self._message_of(*arguments)
        return self._checked(self.message_store.append_message(message), 1)

    def _make_room(self) -> bool:
        """Wait, by flushing the log, while more than `max_unforced_bytes` are not flushed.

        False: it cannot be flushed, and the put says why.
        """
        puts = self.message_store.async_puts
        while puts.is_behind() or puts.must_give_way():
            try:
                self.message_store.flush()
            except StoreError:
                return False
            puts.grant()  # who waits in line comes first
        return True

    def _may_wait(self, status: object) -> bool:
        """Whether a put was refused since another one took the room that this one had made."""
        return (
            status is PutMessageStatus.OS_PAGECACHE_BUSY
            and self.message_store.async_puts.max_unforced_bytes > 0
            and not self.message_store.is_os_page_cache_busy()
        )

    def _timed_out(self, result: PutMessageResult) -> PutMessageResult:
        """A compiled put is in the log and did not reach the device in time."""
        self.message_store.stats_service.note_outcome(result.status_code, result.message_count)
        return self._checked(result, 1)

    def _note_many(self, status: int, count: int, began_ms: int) -> None:
        """A put_many has ended."""
        store = self.message_store
        store.stats_service.note_put(status, count, store.env.monotonic_ms() - began_ms)

    async def aput(self, topic: str, body: Any, **options: Any) -> PutMessageResult:
        """`put` for asyncio, with its arguments and errors.

        The message is in the log, and has its offset, when the call first suspends; so calls that
        one task makes, or that `asyncio.gather` starts, keep their order, and those of one queue
        are done in the order of their offsets. Under SYNC_FLUSH the task then waits for the device,
        and one force serves all that wait. When as much is outstanding as the settings allow
        (`max_outstanding_puts`, `max_outstanding_put_bytes`; under ASYNC_FLUSH
        `max_unforced_bytes`), the call waits in line before it puts. A task that is cancelled while
        it waits in line has put nothing; afterwards the message stays.

        Threads: any event loop of any thread. Durability: as `put`.
        """
        puts = self.message_store.async_puts
        if not puts.bounded:
            return self.put(topic, body, **options)
        if type(body) is not bytes:
            body = body_bytes(body)  # now: the caller may change theirs while this waits
        loop = asyncio.get_running_loop()
        with puts.room(len(body), loop) as room:
            if not room.reserve():
                options = self._settled(options)
                await room.wait()
            if not puts.sync:
                return self._appender.put(topic, body, **options)
            with puts.order:
                result = self._appender.put(topic, body, **options)
                future = puts.add_to_loop(result, room, loop)
        puts.ask()
        return self._checked(await future, 1)

    def _settled(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a put that waits, without anything that the caller could change."""
        settled = dict(options)
        if settled.get("keys") is not None:
            settled["keys"] = join_keys(settled["keys"])
        if settled.get("properties") is not None:
            settled["properties"] = check_properties(settled["properties"])
        return settled

    async def aput_many(
        self, topic: str, bodies: Any, **options: Any
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """`put_many` for asyncio, in a thread of the loop's executor.

        Its order beside other calls is not known before it is done. A task that is cancelled
        meanwhile leaves the messages stored.
        """
        return await asyncio.to_thread(self.put_many, topic, bodies, **options)

    async def aflush(self) -> None:
        """`flush` for asyncio, in a thread of the loop's executor."""
        await asyncio.to_thread(self.flush)
