"""Buffers that the log is written to before it is committed to its files."""

from __future__ import annotations

import threading

from pyrocketstore._writes import WriterBuffer
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError

__all__ = ["TransientStorePool"]

LOG = logger(__name__)

#: Fewer than this part of all buffers is told.
FEW = 0.4


class TransientStorePool:
    """Some buffers of one size, lent to files and taken back; the last one back is the next lent.

    Parameters
    ----------
    env : Env
    pool_size : int, how many buffers
    file_size : int, bytes of each
    lock_memory : bool, keep them from being swapped out, where that is allowed

    Raises StoreIOError when the address space for them cannot be had. Threads: any.
    Durability: what lies in a buffer is lost with the process until it is committed.
    Source: RocketMQ 4.9.3 TransientStorePool.
    Differs: a page of memory is taken, and locked, when it is used for the first time.
    """

    def __init__(
        self, env: Env, pool_size: int, file_size: int, *, lock_memory: bool = True
    ) -> None:
        self.pool_size = pool_size
        self.file_size = file_size
        self._lock = threading.RLock()  # a buffer may come back wherever its file is freed
        self._closed = False
        self._available = [WriterBuffer(env, file_size) for _ in range(pool_size)]
        for buffer in self._available:
            buffer.on_free = self.return_buffer
        if lock_memory:
            self._lock_memory()

    def _lock_memory(self) -> None:
        try:
            for buffer in self._available:
                buffer.lock()
        except StoreIOError as error:
            LOG.warning(
                "the store pool's buffers may be swapped out: %s (see RLIMIT_MEMLOCK)", error
            )

    def borrow_buffer(self) -> WriterBuffer | None:
        """A buffer, or None when all are lent."""
        with self._lock:
            buffer = self._available.pop() if self._available else None
            left = len(self._available)
        if left < self.pool_size * FEW:
            LOG.warning("%d of %d buffers of the store pool are left", left, self.pool_size)
        return buffer

    def return_buffer(self, buffer: WriterBuffer) -> None:
        """Take a buffer back; what is in it stays there."""
        with self._lock:
            if not self._closed:
                self._available.append(buffer)

    def available_buffer_nums(self) -> int:
        """How many buffers are left."""
        return len(self._available)

    def remain_buffer_numbs(self) -> int:
        """The same, under the name that the store gives it."""
        return self.available_buffer_nums()

    def destroy(self) -> None:
        """Give the memory back; that of buffers which are lent goes with their files."""
        with self._lock:
            self._closed = True
            self._available.clear()
