"""The room of puts whose flush is outstanding: how many there may be, and the line for it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._put_reservations import Reservation, Reservations
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import logger

if TYPE_CHECKING:
    import asyncio

__all__ = ["PutRoom", "Room", "call_in"]

LOG = logger(__name__)

#: What a message costs beside its body, about (bytes).
OVERHEAD = 200


class Room:
    """The room of one put: requested, taken, and given back exactly once however the put ends.

    `AsyncPuts.add` and `add_to_loop` take it over (`handed_over`); otherwise `release` gives it
    back, or the end of the object: a signal handler may raise before `release` does anything. Use
    it as a context manager.

    Parameters
    ----------
    loop : the event loop whose coroutine puts; None for a thread

    Threads: one at a time.
    """

    def __init__(
        self, line: PutRoom, size: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.size = size
        self.reservation = Reservation(line.reservations, size + OVERHEAD)
        #: the message is in the log: its flush gives the room back
        self.handed_over = False
        self.loop = loop
        #: of one that waits
        self.future: asyncio.Future[None] | None = None
        self._line = line

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def reserve(self) -> bool:
        """Take the room; False when there is none, or when others come first."""
        return self._line.take_now(self)

    async def wait(self) -> None:
        """As `reserve`, but wait, in the order of the calls. Threads: an event loop's."""
        import asyncio  # not above: its import takes as long as that of the engine

        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        try:
            if not self._line.take_or_queue(self):
                self._line.grant()  # it may only come behind others of its loop
                await self.future
        except BaseException:  # cancelled, closed, thrown into, or a signal handler raised
            self.release()
            raise

    def release(self) -> None:
        """Give back the room or the place in the line; nothing happens without either."""
        if not self.handed_over:
            self._line.give_back(self)


class PutRoom:
    """Counts the puts whose flush is outstanding, and keeps the line of those that wait for room.

    Bounds: under SYNC_FLUSH `max_outstanding_puts` and `max_outstanding_put_bytes`; under
    ASYNC_FLUSH, where a put is done at once, `max_unforced_bytes` of what is put and not on the
    device (0: no bound).

    Parameters
    ----------
    config : MessageStoreConfig
    end, flushed : give the physical offset of the log's end, and up to which it is on the device

    Coroutines of one event loop put in the order of their calls. So one that finds room still
    waits while others of its loop wait in line, or have been granted room and not gone on yet.
    Granted room is a right to put: whatever other threads put meanwhile, nobody asks again.

    Threads: any. A signal handler may call any method inside any other, or raise.
    """

    def __init__(
        self, config: MessageStoreConfig, end: Callable[[], int], flushed: Callable[[], int]
    ) -> None:
        self.sync = config.is_sync_flush
        self.max_unforced_bytes = 0 if self.sync else config.max_unforced_bytes
        #: False where a put is done as soon as it is in the log, whatever is outstanding.
        self.bounded = self.sync or self.max_unforced_bytes > 0
        self.wake_flush: Callable[[], None] = lambda: None
        #: of what is put and not on the device, and of what may put now
        self.reservations = Reservations()
        self._max_count = config.max_outstanding_puts
        self._max_bytes = config.max_outstanding_put_bytes
        self._end, self._flushed = end, flushed
        self._lock = threading.RLock()
        #: A room that is taken and not woken yet is the first.
        self._waiters: collections.deque[Room] = collections.deque()
        #: Rooms of coroutines that were woken and have not put yet, by event loop.
        self._granted: dict[asyncio.AbstractEventLoop, dict[Room, None]] = {}
        self._ended = False

    @property
    def count(self) -> int:
        """How many puts have room: outstanding ones, and those that put now."""
        return self.reservations.count

    @property
    def bytes(self) -> int:
        """The size of their bodies, and OVERHEAD for each."""
        return self.reservations.size

    @property
    def waiting(self) -> int:
        """How many puts wait for room."""
        return len(self._waiters)

    @property
    def unforced(self) -> int:
        """How many bytes are put and not on the device."""
        return self._end() - self._flushed()

    def is_behind(self) -> bool:
        """True when more than `max_unforced_bytes` are put and not on the device."""
        bound = self.max_unforced_bytes
        return bound > 0 and self.unforced >= bound

    def must_give_way(self) -> bool:
        """True while a put waits in line for the flush alone, which a thread's put can make.

        Without this, puts of threads could take all room again before the first in line, which may
        need more of it than they do, is granted any.
        """
        waiters, bound = self._waiters, self.max_unforced_bytes
        return bound > 0 and bool(waiters) and not self.reservations.count and not self._ended

    def room(self, size: int, loop: asyncio.AbstractEventLoop | None = None) -> Room:
        """The room for one put of a body of `size` bytes, which is not taken yet."""
        return Room(self, size, loop)

    def take_now(self, room: Room) -> bool:
        """Take the room; False when there is none, or when others come first."""
        if self._waiters:
            self.grant()
        behind = self._behind()
        with self._lock:
            if self._has_others(room) or not self._has_room(room.size, behind):
                return False
            room.reservation.take()
            return True

    def take_or_queue(self, room: Room) -> bool:
        """Take the room, or put it in the line of those that wait: False."""
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
        """Give the room back, or the place in the line."""
        with self._lock:
            if not room.reservation.taken:
                try:
                    self._waiters.remove(room)
                except ValueError:
                    return
            self._drop(room)
        self.grant()  # also for one that waited: the next one may be smaller
        if self._waiters:
            self.wake_flush()  # what was put may have to be on the device first

    def grant(self) -> None:
        """Wake the coroutines that wait for room and have it now."""
        while (room := self._take_for_first()) is not None:
            awake = call_in(room.loop, _set_done, room.future)
            with self._lock:
                self._leave_line(room)
                if not awake:
                    self._drop(room)

    def _take_for_first(self) -> Room | None:
        """Take the room of the first that waits; it keeps its place until it is woken."""
        behind = self._behind()
        closed = [loop for loop in list(self._granted) if loop.is_closed()]
        with self._lock:
            for loop in closed:
                # Its coroutines cannot go on.
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
        """Bytes that are put and not on the device, where they count. Not with the lock: in what is
        not compiled a signal handler runs, which may wait for a thread that wants the lock."""
        return 0 if self.sync else self.unforced

    def _has_room(self, size: int, behind: int) -> bool:
        size += OVERHEAD
        if self.sync:
            if self.count == 0:  # one always fits
                return True
            return self.count < self._max_count and self.bytes + size <= self._max_bytes
        behind += self.bytes
        return behind == 0 or behind + size <= self.max_unforced_bytes

    def _has_others(self, room: Room) -> bool:
        """Whether others put before this one: in line, or of its loop and granted. With the
        lock."""
        return bool(self._waiters) or (room.loop is not None and room.loop in self._granted)

    def _drop(self, room: Room) -> None:
        """Count a room no more; again: nothing happens. With the lock."""
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
    """Have an event loop make a call; False when it cannot, as a closed one."""
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
