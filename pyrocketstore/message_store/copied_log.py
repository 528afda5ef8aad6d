"""The log of a store that copies the log of a master."""

from __future__ import annotations

from collections.abc import Callable

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.errors import PutError, StoreStateError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.message_store.message_puts import MessagePuts
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.life_state import LifeState


class CopiedLog:
    """A ReplicaLog: appends bytes of another log, and flushes as the settings say.

    Threads: any, one at a time.
    """

    def __init__(
        self,
        log: CommitLog,
        puts: MessagePuts,
        services: StoreServices,
        life: LifeState,
        flags: RunningFlags,
        why_not_writeable: Callable[[], BaseException | None],
    ) -> None:
        self._log, self._puts, self._services = log, puts, services
        self._life, self._flags, self._why = life, flags, why_not_writeable

    def begin(self) -> int:
        """Return the physical offset of the first byte, -1 if the log has no file."""
        return self._log.get_min_offset()

    def end(self) -> int:
        """Return the physical offset after the last record."""
        return self._log.get_appended_offset()

    def file_end(self, phy_offset: int) -> int:
        """Return the physical offset of the first byte behind the file that has `phy_offset`."""
        return self._log.roll_next_file(phy_offset)

    def read(self, phy_offset: int, size: int) -> bytes:
        """Return `size` bytes from `phy_offset` on, less at the end of the log."""
        self._log.commit_appended()
        found = bytearray()
        while len(found) < size:
            view = self._log.get_data(phy_offset + len(found))
            if view is None:
                break
            with view:
                found += view.byte_buffer[: size - len(found)]
        return bytes(found)

    def append(self, phy_offset: int, data: bytes | bytearray | memoryview) -> int:
        """Append bytes, which may begin and end within a record; `settle` makes them durable.

        Returns the physical offset of the next byte. Raises as `DefaultMessageStore.append_data`,
        PutError excepted.
        """
        if not self._life.takes_puts or not self._flags.is_writeable():
            cause = self._why()
            raise StoreStateError(f"{self._puts.root}: no data can be appended: {cause}") from cause
        self._puts.make_room()
        return self._log.append_data(phy_offset, data)

    def settle(self) -> int:
        """Flush under SYNC_FLUSH; return the physical offset after the last record. Raises
        PutError: the flush has failed."""
        stored = self._log.get_appended_offset()
        status = self._services.flush_service.handle_disk_flush(stored, True)
        if status is not PutMessageStatus.PUT_OK:
            raise PutError(status, True, 0, f"the log is not durable up to {stored}")
        return stored

    def drop_partial(self) -> None:
        """Forget the bytes of a record that is not whole."""
        self._log.drop_partial_record()
