"""The log to which a slave copies that of its master."""

from __future__ import annotations

from typing import Protocol


class ReplicaLog(Protocol):
    """The calls of a store that an HAClient makes, all from its own thread."""

    def begin(self) -> int:
        """Return the physical offset of the first byte, -1 if the log has no file."""

    def end(self) -> int:
        """Return the physical offset after the last record."""

    def read(self, phy_offset: int, size: int) -> bytes:
        """Return the bytes from `phy_offset` on: `size` bytes, less at the end of the log."""

    def file_end(self, phy_offset: int) -> int:
        """Return the physical offset of the first byte behind the file that has `phy_offset`."""

    def append(self, phy_offset: int, data: memoryview) -> int:
        """Append bytes of the master, which may begin and end within a record; return the physical
        offset of the next byte.

        Raises StoreCorruptionError, StoreFormatError, StoreStateError, StoreIOError.
        """

    def settle(self) -> int:
        """Flush, if the settings say so, what was appended; return `end()`, which may be reported.

        Raises StoreError.
        """

    def drop_partial(self) -> None:
        """Forget the bytes of a record that is not whole: they come again."""
