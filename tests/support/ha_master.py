"""A master for tests: sends what a test wants, and notes what a slave reports."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

LONGEST_S = 20.0


class Link:
    """A connection of a slave."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        opened.settimeout(LONGEST_S)
        self._rest = b""

    def report(self) -> int:
        """Wait for the next report. Raises ConnectionError at the end, TimeoutError."""
        while len(self._rest) < 8:
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the slave has closed the connection")
            self._rest += part
        (value,) = struct.unpack(">q", self._rest[:8])
        self._rest = self._rest[8:]
        return int(value)

    def frame(self, phy_offset: int, data: bytes = b"", size: int | None = None) -> None:
        """Send a frame; `size` in place of the true one."""
        size = len(data) if size is None else size
        self.send(struct.pack(">qi", phy_offset, size) + data)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def has_ended(self) -> bool:
        """Wait until the slave closes the connection."""
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(1 << 16):
                pass
        return True


class ScriptedMaster:
    """Listens on a free port, and calls a function of the test for each connection, in a thread.

    The end of the block raises an exception of the function, unless it is an OSError.
    """

    def __init__(self, serve: Callable[[Link], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.connections = 0
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def _listen(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._one, args=(opened,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _one(self, opened: socket.socket) -> None:
        with opened:
            try:
                self._serve(Link(opened))
            except OSError:
                pass
            except BaseException as error:  # noqa: BLE001  raised in the thread of the test
                self._errors.append(error)

    @contextlib.contextmanager
    def listening(self) -> Iterator[ScriptedMaster]:
        """Listen until the end of the block."""
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            listener.join()
        for thread in self._threads:
            thread.join(LONGEST_S)
        if self._errors:
            raise self._errors[0]


class LogMaster:
    """Serves the bytes of a log as 4.9.3 does: frames of at most `frame` bytes that cross no file,
    heartbeats where nothing is left."""

    def __init__(
        self, log: Callable[[], bytes], file_size: int, *, frame: int = 1 << 15, pause: float = 0.01
    ) -> None:
        self.log, self.file_size, self.frame, self.pause = log, file_size, frame, pause
        self.reports: list[int] = []
        self.heartbeats = True

    def __call__(self, link: Link) -> None:
        """Serve a connection."""
        at = link.report()
        self.reports.append(at)
        if at == 0:
            at = len(self.log()) // self.file_size * self.file_size
        link._socket.settimeout(self.pause)
        while True:
            log = self.log()
            stop = min(at + self.frame, (at // self.file_size + 1) * self.file_size, len(log))
            if at < stop:
                link.frame(at, log[at:stop])
                at = stop
            elif self.heartbeats:
                link.frame(at)
            with contextlib.suppress(TimeoutError):
                self.reports.append(link.report())
