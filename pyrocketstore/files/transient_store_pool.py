"""TransientStorePool: buffers that log records are written to before they are committed to
files.
"""

from __future__ import annotations

import threading

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files._writes import WriterBuffer
from pyrocketstore.system.env import Env

__all__ = ["TransientStorePool"]

LOG = logger(__name__)

#: A warning is logged when less than this part of the buffers is left.
FEW = 0.4


class TransientStorePool:
    """Buffers of one size, lent to files and returned; the last one returned is lent next.

    Parameters
    ----------
    env : Env
    pool_size : int, how many buffers
    file_size : int, bytes of each
    lock_memory : bool, lock them in memory, where that is allowed

    Raises StoreIOError when they cannot be mapped. Threads: any.
    Durability: the content of a buffer is lost with the process until it is committed.
    Source: RocketMQ 4.9.3 TransientStorePool.
    Differs: a page of memory is allocated, and locked, on first use.
    """

    def __init__(
        self, env: Env, pool_size: int, file_size: int, *, lock_memory: bool = True
    ) -> None:
        self.pool_size = pool_size
        self.file_size = file_size
        self._lock = threading.RLock()  # a buffer may be returned wherever its file is freed
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
                "buffers of the store pool may be swapped out: %s (see RLIMIT_MEMLOCK)", error
            )

    def borrow_buffer(self) -> WriterBuffer | None:
        """Return a buffer, or None when all are lent."""
        with self._lock:
            buffer = self._available.pop() if self._available else None
            left = len(self._available)
        if left < self.pool_size * FEW:
            LOG.warning("%d of %d buffers of the store pool are left", left, self.pool_size)
        return buffer

    def return_buffer(self, buffer: WriterBuffer) -> None:
        """Take a buffer back; its content is kept."""
        with self._lock:
            if not self._closed:
                self._available.append(buffer)

    def available_buffer_nums(self) -> int:
        """Return how many buffers are left."""
        return len(self._available)

    def destroy(self) -> None:
        """Free the memory; that of lent buffers is freed with their files."""
        with self._lock:
            self._closed = True
            self._available.clear()
