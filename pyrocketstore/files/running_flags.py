"""The running flags of a store: reasons why it accepts no puts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyrocketstore.errors import StoreError, without_frames

__all__ = ["RunningFlags"]


class RunningFlags:
    """Bits: 1 not readable, 2 not writeable, 4 queue write error, 8 index write error, 16 the log's
    disk is full, 32 the queues' disk is full, 64 a repair is running. They are never stored.

    The bits of full disks are cleared when there is room again; those of write errors when a repair
    has written the missing units and keys.

    Threads: any. Source: RocketMQ 4.9.3 RunningFlags.
    Differs: each disk has its own bit; with one bit, room on one disk hides that the other is full.
    """

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    WRITE_INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    LOGIC_DISK_FULL = 32
    REPAIRING = 64

    def __init__(self) -> None:
        self._bits = 0
        self._lock = threading.Lock()
        #: the first error that kept a queue or an index file from being written
        self.write_error: StoreError | None = None
        self._disk_causes: dict[int, StoreError | None] = {}
        #: called, one call at a time, when puts become forbidden and when they become allowed
        self.on_not_writeable: Callable[[], None] = lambda: None
        self.on_writeable: Callable[[], None] = lambda: None
        #: called after a write error
        self.on_write_error: Callable[[], None] = lambda: None

    @property
    def cause(self) -> StoreError | None:
        """The first error that kept a queue or an index file from being written, else the full
        disk.
        """
        full = (self._disk_causes.get(bit) for bit in (self.DISK_FULL, self.LOGIC_DISK_FULL))
        return self.write_error or next((cause for cause in full if cause is not None), None)

    @property
    def flag_bits(self) -> int:
        """The current bits."""
        return self._bits

    def set_bits(self, mask_flags: int, on: bool = True) -> bool:
        """Set or clear bits; return True when that changed any."""
        with self._lock:
            before, could = self._bits, self.is_writeable()
            self._bits = before | mask_flags if on else before & ~mask_flags
            can = self.is_writeable()
            if could != can:  # called under the lock, so that the last call is the right one
                (self.on_writeable if can else self.on_not_writeable)()
            return self._bits != before

    def is_readable(self) -> bool:
        """Return True while messages may be read."""
        return not self._bits & self.NOT_READABLE

    def is_writeable(self) -> bool:
        """Return True while messages may be put."""
        return not self._bits & (
            self.NOT_WRITEABLE
            | self.WRITE_LOGICS_QUEUE_ERROR
            | self.DISK_FULL
            | self.LOGIC_DISK_FULL
            | self.WRITE_INDEX_FILE_ERROR
            | self.REPAIRING
        )

    def is_cq_writeable(self) -> bool:
        """Return True while queues may be written, also with a full disk."""
        return not self._bits & (
            self.NOT_WRITEABLE | self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR
        )

    def get_and_make_readable(self) -> bool:
        """Allow reading; return whether it was allowed."""
        before = self.is_readable()
        self.set_bits(self.NOT_READABLE, False)
        return before

    def get_and_make_not_readable(self) -> bool:
        """Forbid reading; return whether it was allowed."""
        before = self.is_readable()
        self.set_bits(self.NOT_READABLE)
        return before

    def get_and_make_writeable(self) -> bool:
        """Allow writing; return whether it was allowed."""
        before = self.is_writeable()
        self.set_bits(self.NOT_WRITEABLE, False)
        return before

    def get_and_make_not_writeable(self) -> bool:
        """Forbid writing; return whether it was allowed."""
        before = self.is_writeable()
        self.set_bits(self.NOT_WRITEABLE)
        return before

    def make_logics_queue_error(self, cause: StoreError | None = None) -> None:
        """Set the bit for a consume queue that could not be written, and the cause."""
        self._make_error(self.WRITE_LOGICS_QUEUE_ERROR, cause)

    def is_logics_queue_error(self) -> bool:
        """Return True after a consume queue could not be written."""
        return bool(self._bits & self.WRITE_LOGICS_QUEUE_ERROR)

    def make_index_file_error(self, cause: StoreError | None = None) -> None:
        """Set the bit for an index file that could not be written, and the cause."""
        self._make_error(self.WRITE_INDEX_FILE_ERROR, cause)

    def is_index_file_error(self) -> bool:
        """Return True after an index file could not be written."""
        return bool(self._bits & self.WRITE_INDEX_FILE_ERROR)

    def _make_error(self, bit: int, cause: StoreError | None) -> None:
        if self.write_error is None and cause is not None:
            self.write_error = without_frames(cause)
        self.set_bits(bit)
        self.on_write_error()

    def is_complete(self) -> bool:
        """Return True unless units or keys are missing: queues and index could be written, or were
        repaired since."""
        errors = self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR
        return not self._bits & (errors | self.REPAIRING)

    def is_write_error(self) -> bool:
        """Return True after a queue or an index file could not be written."""
        return bool(self._bits & (self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR))

    def begin_repair(self) -> None:
        """Allow writes to queues and index, while puts stay forbidden.

        Differs: 4.9.3 cannot clear these bits.
        """
        with self._lock:
            self._bits |= self.REPAIRING
            self._bits &= ~(self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR)

    def is_repairing(self) -> bool:
        """Return True between `begin_repair` and `end_repair`."""
        return bool(self._bits & self.REPAIRING)

    def end_repair(self, whole: bool, index_error: bool, queue_error: bool) -> None:
        """Allow puts if the repair is complete (`whole`); else set the given bits again."""
        if whole:
            self.write_error = None
        else:
            index_bit = self.WRITE_INDEX_FILE_ERROR if index_error else 0
            self.set_bits(index_bit | (self.WRITE_LOGICS_QUEUE_ERROR if queue_error else 0))
        self.set_bits(self.REPAIRING, False)

    def get_and_make_disk_full(self, cause: StoreError | None = None) -> bool:
        """Set the bit for a full disk of the log; return True when it was not set."""
        return self._set_disk(self.DISK_FULL, True, cause)

    def get_and_make_disk_ok(self) -> bool:
        """Clear the bit for a full disk of the log; return True when it was not set."""
        return not self._set_disk(self.DISK_FULL, False, None)

    def get_and_make_logic_disk_full(self, cause: StoreError | None = None) -> bool:
        """Set the bit for a full disk of the queues; return True when it was not set."""
        return self._set_disk(self.LOGIC_DISK_FULL, True, cause)

    def get_and_make_logic_disk_ok(self) -> bool:
        """Clear the bit for a full disk of the queues; return True when it was not set."""
        return not self._set_disk(self.LOGIC_DISK_FULL, False, None)

    def _set_disk(self, bit: int, on: bool, cause: StoreError | None) -> bool:
        self._disk_causes[bit] = cause
        return self.set_bits(bit, on)
