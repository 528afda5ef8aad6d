"""The limit on puts whose flush is outstanding, and the queue of puts that wait for room."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._append import Reservation, Reservations
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import logger

if TYPE_CHECKING:
    import asyncio

__all__ = ["PutRoom", "Room", "call_in"]

LOG = logger(__name__)

#: Approximate memory that a message needs besides its body (bytes).
OVERHEAD = 200


class Room:
    """The room of one put: reserved, and returned exactly once, however the put ends.

    `AsyncPuts.add` and `add_to_loop` take the room over (`handed_over`). Otherwise `release`
    returns it, or the destructor, because a signal handler may raise before `release` has any
    effect. Use the object as a context manager.

    Parameters
    ----------
    line : PutRoom
    size : int, bytes of the body
    loop : the event loop of the coroutine that puts; None for a thread

    Threads: one at a time.
    """

    def __init__(
        self, line: PutRoom, size: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.size = size
        self.reservation = Reservation(line.reservations, size + OVERHEAD)
        #: the message is in the log: its flush returns the room
        self.handed_over = False
        self.loop = loop
        #: resolved when a coroutine that waits has room
        self.future: asyncio.Future[None] | None = None
        self._line = line

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def reserve(self) -> bool:
        """Reserve the room; False if there is none, or if other puts wait before this one."""
        return self._line.take_now(self)

    async def wait(self) -> None:
        """Reserve the room, and wait for it in the order of the calls. Threads: an event loop's."""
        import asyncio  # not above: its import takes as long as that of the engine

        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        try:
            if not self._line.take_or_queue(self):
                self._line.grant()  # it may wait only for others of its loop
                await self.future
        except BaseException:  # cancelled, closed, thrown into, or a signal handler raised
            self.release()
            raise

    def release(self) -> None:
        """Return the room, or leave the queue of waiting puts; a repeated call has no effect."""
        if not self.handed_over:
            self._line.give_back(self)


class PutRoom:
    """Limits the puts whose flush is outstanding, and keeps the puts that wait for room in order.

    Bounds: under SYNC_FLUSH `max_outstanding_puts` and `max_outstanding_put_bytes`. Under
    ASYNC_FLUSH, where a put completes at once, `max_unforced_bytes` bounds the bytes that are in
    the log and not on the device (0: no bound).

    Parameters
    ----------
    config : MessageStoreConfig
    end : callable() -> int, the physical offset of the log's end
    flushed : callable() -> int, the physical offset before which the log is on the device

    Coroutines of one event loop put in the order of their calls. A coroutine therefore waits, even
    if there is room, while others of its loop wait or were granted room and have not resumed.
    Granted room is final: the coroutine puts without another check, whatever other threads have
    put meanwhile.

    Threads: any. A signal handler may call any method inside any other, or raise.
    """

    def __init__(
        self, config: MessageStoreConfig, end: Callable[[], int], flushed: Callable[[], int]
    ) -> None:
        self.sync = config.is_sync_flush
        self.max_unforced_bytes = 0 if self.sync else config.max_unforced_bytes
        #: False if a put completes once it is in the log, without any limit.
        self.bounded = self.sync or self.max_unforced_bytes > 0
        self.wake_flush: Callable[[], None] = lambda: None
        #: of puts that are not on the device yet, and of puts that were granted room
        self.reservations = Reservations()
        self._max_count = config.max_outstanding_puts
        self._max_bytes = config.max_outstanding_put_bytes
        self._end, self._flushed = end, flushed
        self._lock = threading.RLock()
        #: The first one may be reserved already: then it is woken next.
        self._waiters: collections.deque[Room] = collections.deque()
        #: Rooms of coroutines that were woken and have not put yet, by event loop.
        self._granted: dict[asyncio.AbstractEventLoop, dict[Room, None]] = {}
        self._ended = False

    @property
    def count(self) -> int:
        """The number of puts with room: outstanding ones, and those that are being appended."""
        return self.reservations.count

    @property
    def bytes(self) -> int:
        """The size of the bodies of these puts, and OVERHEAD for each of them."""
        return self.reservations.size

    @property
    def waiting(self) -> int:
        """The number of puts that wait for room."""
        return len(self._waiters)

    @property
    def unforced(self) -> int:
        """The number of bytes that are in the log and not on the device."""
        return self._end() - self._flushed()

    def is_behind(self) -> bool:
        """Return True if at least `max_unforced_bytes` are in the log and not on the device."""
        bound = self.max_unforced_bytes
        return bound > 0 and self.unforced >= bound

    def must_give_way(self) -> bool:
        """Return True while a waiting put needs only a flush, which the put of a thread can make.

        Otherwise puts of threads could keep taking all room, and the first waiting put, which may
        need more of it, would never be granted any.
        """
        waiters, bound = self._waiters, self.max_unforced_bytes
        return bound > 0 and bool(waiters) and not self.reservations.count and not self._ended

    def room(self, size: int, loop: asyncio.AbstractEventLoop | None = None) -> Room:
        """Return the room for one put of a body of `size` bytes; it is not reserved yet."""
        return Room(self, size, loop)

    def take_now(self, room: Room) -> bool:
        """Reserve the room; False if there is none, or if other puts wait before this one."""
        if self._waiters:
            self.grant()
        behind = self._behind()
        with self._lock:
            if self._has_others(room) or not self._has_room(room.size, behind):
                return False
            room.reservation.take()
            return True

    def take_or_queue(self, room: Room) -> bool:
        """Reserve the room, or append it to the waiting puts and return False."""
        behind = self._behind()
        with self._lock:
            first = not self._has_others(room)
            if self._ended or (first and self._has_room(room.size, behind)):
                room.reservation.take()
                return True
            self._waiters.append(room)
        self.wake_flush()
        return False

    def give_back(self, room: Room) -> None:
        """Return the room, or leave the queue of waiting puts."""
        with self._lock:
            if not room.reservation.taken:
                try:
                    self._waiters.remove(room)
                except ValueError:
                    return
            self._drop(room)
        self.grant()  # also after a waiting put has left: the next one may need less
        if self._waiters:
            self.wake_flush()  # room may appear only after a flush

    def grant(self) -> None:
        """Wake the waiting coroutines for which there is room."""
        while (room := self._take_for_first()) is not None:
            awake = call_in(room.loop, _set_done, room.future)
            with self._lock:
                self._leave_line(room)
                if not awake:
                    self._drop(room)

    def _take_for_first(self) -> Room | None:
        """Reserve the room of the first waiting put, which remains first until it is woken."""
        behind = self._behind()
        closed = [loop for loop in list(self._granted) if loop.is_closed()]
        with self._lock:
            for loop in closed:
                # Coroutines of a closed loop never resume.
                for lost in list(self._granted.pop(loop, ())):
                    self._drop(lost)
            room = self._waiters[0] if self._waiters else None
            if room is None or room.loop is None:
                return None
            if not (room.reservation.taken or self._ended or self._has_room(room.size, behind)):
                return None
            room.reservation.take()
            self._granted.setdefault(room.loop, {})[room] = None
            return room

    def _behind(self) -> int:
        """Return the bytes that are in the log and not on the device, 0 if they are not limited.

        Call without the lock: these callables are not compiled, so a signal handler may run in
        them, and may wait for a thread that needs the lock.
        """
        return 0 if self.sync else self.unforced

    def _has_room(self, size: int, behind: int) -> bool:
        size += OVERHEAD
        if self.sync:
            if self.count == 0:  # a single put always fits
                return True
            return self.count < self._max_count and self.bytes + size <= self._max_bytes
        behind += self.bytes
        return behind == 0 or behind + size <= self.max_unforced_bytes

    def _has_others(self, room: Room) -> bool:
        """Return True if others put before this one: waiting puts, or granted ones of its loop.

        Call with the lock.
        """
        return bool(self._waiters) or (room.loop is not None and room.loop in self._granted)

    def _drop(self, room: Room) -> None:
        """Stop counting a room; a repeated call has no effect. Call with the lock."""
        room.reservation.drop()
        self._leave_line(room)
        self._forget_granted(room)

    def _hand_over(self, room: Room) -> None:
        self._leave_line(room)
        self._forget_granted(room)
        room.handed_over = True

    def _leave_line(self, room: Room) -> None:
        if self._waiters and self._waiters[0] is room:
            self._waiters.popleft()

    def _forget_granted(self, room: Room) -> None:
        if room.loop is not None and room.loop in self._granted:
            rooms = self._granted[room.loop]
            rooms.pop(room, None)
            if not rooms:
                self._granted.pop(room.loop, None)


def call_in(
    loop: asyncio.AbstractEventLoop | None, call: Callable[..., None], argument: object
) -> bool:
    """Schedule a call in an event loop; return False if the loop is closed or refuses it."""
    if loop is None:
        return False
    try:
        loop.call_soon_threadsafe(call, argument)
    except Exception as error:
        if not (isinstance(error, RuntimeError) and loop.is_closed()):
            LOG.exception("the event loop %r takes no call", loop)
        return False
    return True


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
