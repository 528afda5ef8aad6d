"""HAClient: copy the log of a master into the log of this store, as it grows."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable

from pyrocketstore.display import logger
from pyrocketstore.errors import (
    ReplicationError,
    StoreError,
    is_passing,
)
from pyrocketstore.ha.comparison import LogTail
from pyrocketstore.ha.remoting import LogRange
from pyrocketstore.ha.replica_log import ReplicaLog
from pyrocketstore.ha.wire import ASK_FOR_LAST_FILE, FRAME_MAX, HEAD, REPORT
from pyrocketstore.system.env import Env
from pyrocketstore.system.service_thread import ServiceThread

LOG = logger(__name__)

CONNECT_SECONDS = 5.0
#: The pause before another attempt (ms): the first, doubled by each failure, up to the last.
PAUSE_MS, LONGEST_PAUSE_MS = 100, 5_000
BUFFER_BYTES = 4 << 20
#: A master that has nothing for so many heartbeats in a row has no byte there.
EMPTY_HEARTBEATS = 2


@dataclasses.dataclass(frozen=True)
class ReplicaState:
    """The state of a copy.

    Attributes
    ----------
    master : str, "host:port"
    state : "connecting", "comparing", "following", "failed" (it has ended by `error`) or "stopped"
    end : int, physical offset of the next byte of the master that is expected; -1: not known yet
    reported : int, the greatest physical offset that was reported to the master; -1: none
    error : str or None, the error that has ended the copy or the last connection
    """

    master: str
    state: str = "connecting"
    end: int = -1
    reported: int = -1
    error: str | None = None


class HAClient(ServiceThread):
    """The thread of a slave: connects to the master, compares, appends, reports.

    Parameters
    ----------
    env : Env, for the clock
    log : ReplicaLog
    host, port : of the master, its `haListenPort`
    begin : callable() -> int, called for a log without files: the physical offset of the master's
        first byte that is wanted, or -1 for the begin of its last file. OSError: it is called again
    log_range : callable() -> LogRange, what the master's log has now. OSError: this is unknown
    acknowledges : bool, reports tell the master up to where everything is stored here; False: they
        repeat where the connection began
    heartbeat_ms, housekeeping_ms : int, a report is repeated after the first; a connection without
        a byte of the master ends after the second

    The copy ends, with `failure_of_copy`, where the master's log is not the one that was copied:
    another byte, a shorter log, files of another size. Nothing is cut. After other errors the
    client connects again.

    Threads: `state` from any thread.
    Source: RocketMQ 4.9.3 HAService.HAClient.
    Differs: the last records are compared before anything is reported, the first report is sent at
    once, and frames must follow each other.
    """

    def __init__(
        self,
        env: Env,
        log: ReplicaLog,
        host: str,
        port: int,
        *,
        begin: Callable[[], int],
        log_range: Callable[[], LogRange],
        acknowledges: bool,
        heartbeat_ms: int,
        housekeeping_ms: int,
    ) -> None:
        super().__init__("HAClient")
        self._env, self._log, self._host, self._port = env, log, host, port
        self._begin, self._range = begin, log_range
        #: for the connection, of which there is one at a time
        self.acknowledges = acknowledges
        self.heartbeat_s, self.housekeeping_s = heartbeat_ms / 1000, housekeeping_ms / 1000
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.state = ReplicaState(f"{host}:{port}")
        self.failure_of_copy: StoreError | None = None
        self._socket: socket.socket | None = None

    # ---- life cycle -----------------------------------------------------------------------------

    def request_stop(self) -> None:
        """End the thread, also while it waits for the master."""
        super().request_stop()
        opened = self._socket
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Copy until the service is stopped, or the logs differ."""
        pause = PAUSE_MS
        while not self.stopped:
            before = self.state.end
            error = self._try_to_follow()
            if error is not None:
                self._fail(error)
                return
            pause = PAUSE_MS if self.state.end > before else min(2 * pause, LONGEST_PAUSE_MS)
            self.wait_for_running(pause)
        self.note(state="stopped")

    def _try_to_follow(self) -> StoreError | None:
        """Copy over one connection; return the error if another would meet it, too."""
        try:
            self._follow()
        except StoreError as error:
            if not (is_passing(error) or is_passing(error.__cause__ or error)):
                return None if self.stopped else error
            self._note_retry(error)
        except OSError as error:
            self._note_retry(error)
        return None

    def _note_retry(self, error: Exception) -> None:
        text = str(error)
        if text != self.state.error and not self.stopped:
            LOG.warning("%s: %s; the copy tries again", self.state.master, text)
        self.note(state="connecting", error=text)

    def on_failure(self, error: BaseException) -> None:
        """Note that the thread has died of an unexpected exception."""
        self.note(state="failed", error=repr(error))

    def _fail(self, error: StoreError) -> None:
        self.failure_of_copy = error
        self.note(state="failed", error=str(error))
        LOG.error("%s: the copy has ended: %s", self.state.master, error)

    def now(self) -> float:
        """Return the monotonic time (s)."""
        return self._env.monotonic_ns() / 1e9

    def note(self, **changes: object) -> None:
        """Change fields of `state`."""
        self.state = dataclasses.replace(self.state, **changes)  # type: ignore[arg-type]

    # ---- one connection -------------------------------------------------------------------------

    def _follow(self) -> None:
        self._log.drop_partial()
        tail, ask = self._place()
        with socket.create_connection((self._host, self._port), CONNECT_SECONDS) as opened:
            self._socket = opened
            try:
                if self.stopped:  # before the socket was there to be closed
                    return
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(self, opened, self._log, tail, ask)
                try:
                    connection.run()
                except ConnectionError:
                    if tail is not None and connection.has_nothing and not self.stopped:
                        self._check_range(tail)
                    raise
            finally:
                self._socket = None

    def _check_range(self, tail: LogTail) -> None:
        """Raise ReplicationError if the master's log does not have the bytes to compare: 4.9.3 then
        closes the connection, or sends nothing."""
        with contextlib.suppress(OSError):
            found = self._range()
            if found.end < tail.end or found.begin > tail.begin:
                raise ReplicationError(
                    f"{self.state.master}: the log of the master has the bytes from {found.begin}"
                    f" to {found.end}, and this log ends at {tail.end}. Nothing was cut"
                )

    def _place(self) -> tuple[LogTail | None, int]:
        """The bytes to compare, None for an empty log; and where the master is to begin."""
        if self._log.begin() >= 0:
            tail = LogTail(self._log)
            return tail, tail.begin
        return None, self._begin()


class _Connection:
    """The frames of one connection, from the first report to its end."""

    def __init__(
        self,
        client: HAClient,
        opened: socket.socket,
        log: ReplicaLog,
        tail: LogTail | None,
        ask: int,
    ) -> None:
        self._client, self._socket, self._log, self._ask = client, opened, log, ask
        self._tail = None if tail is None or tail.begin == tail.end else tail
        #: physical offset of the next byte of the stream; -1: that of the first frame
        self._next = ask
        #: no byte of the log has come
        self.has_nothing = True
        #: bytes of the frame that have not arrived
        self._rest = 0
        self._empty = 0

    def run(self) -> None:
        """Report the begin, then take frames until the connection ends."""
        client = self._client
        if self._tail is not None:
            client.note(state="comparing", error=None)
        first = ASK_FOR_LAST_FILE if self._ask < 0 else max(self._ask, 1)
        if self._ask == 0:  # the first byte of a record is always 0: the size's highest byte
            self._take(0, memoryview(b"\0"))
        self._report(first)
        left_over = 0
        while not client.stopped:
            size = self._receive(left_over)
            if size == 0:
                raise ConnectionError("the master has closed the connection")
            left_over = self._take_frames(left_over + size)
            self._settle()

    # ---- reports --------------------------------------------------------------------------------

    def _report(self, phy_offset: int) -> None:
        self._socket.settimeout(self._client.housekeeping_s)
        self._socket.sendall(REPORT.pack(phy_offset))
        self._reported, self._reported_at = phy_offset, self._client.now()
        self._client.note(reported=max(phy_offset, self._client.state.reported))

    def _settle(self) -> None:
        """Make durable what has arrived, and report it."""
        if self._tail is not None or self._next < 0:
            return
        end = self._log.settle()
        self._client.note(state="following", end=self._next, error=None)
        if self._client.acknowledges and end > self._reported:
            self._report(end)

    # ---- the stream -----------------------------------------------------------------------------

    def _receive(self, at: int) -> int:
        """Wait for bytes of the master, behind the first `at` of the buffer; repeat the report
        meanwhile."""
        began = self._client.now()
        while True:
            now = self._client.now()
            due = self._reported_at + self._client.heartbeat_s
            if now >= due:
                self._report(self._reported)
                due = now + self._client.heartbeat_s
            if now - began > self._client.housekeeping_s:
                raise TimeoutError(f"the master has sent nothing for {now - began:.0f} s")
            self._socket.settimeout(max(due - now, 0.01))
            with contextlib.suppress(TimeoutError):
                return self._socket.recv_into(self._client.buffer[at:])
            if self._client.stopped:
                return 0

    def _take_frames(self, size: int) -> int:
        """Take the frames of `size` bytes of the buffer, the last one in part; move the begin of a
        head to the front. Returns its size."""
        data, at = self._client.buffer, 0
        while True:
            if self._rest:
                part = min(self._rest, size - at)
                self._take(self._next, data[at : at + part])
                self._rest -= part
                at += part
            if size - at < HEAD.size:
                break
            self._begin_frame(*HEAD.unpack_from(data, at))
            at += HEAD.size
        data[: size - at] = data[at:size]
        return size - at

    def _begin_frame(self, phy_offset: int, size: int) -> None:
        if not 0 <= size <= FRAME_MAX or phy_offset < 0:
            raise ReplicationError(
                f"{self._name}: a frame of {size} bytes for physical offset {phy_offset}: this is"
                " not the HA port of a broker"
            )
        if self._next < 0:
            if phy_offset and self._log.file_end(phy_offset - 1) != phy_offset:
                raise ReplicationError(
                    f"{self._name}: the last file begins at physical offset {phy_offset}, where no"
                    " file of this size begins: copy into a new directory, with the master's sizes"
                )
            self._next = phy_offset
        if phy_offset != self._next:
            raise ReplicationError(
                f"{self._name}: a frame for physical offset {phy_offset} instead of {self._next}"
            )
        self._rest = size
        self.has_nothing = self.has_nothing and not size
        self._empty = 0 if size else self._empty + 1
        if self._empty >= EMPTY_HEARTBEATS and self._tail is not None:
            raise ReplicationError(
                f"{self._name}: the master has no byte at physical offset {self._next}, and this"
                f" log ends at {self._tail.end}: the master's log is shorter, or begins later."
                " Nothing was cut"
            )

    @property
    def _name(self) -> str:
        return self._client.state.master

    def _take(self, phy_offset: int, data: memoryview) -> None:
        """Compare bytes of the master with those that are here, and append the others."""
        self._next = phy_offset + len(data)
        if self._tail is not None:
            data = self._compare(self._tail, phy_offset, data)
            phy_offset = self._next - len(data)
        if len(data):
            self._log.append(phy_offset, data)

    def _compare(self, tail: LogTail, phy_offset: int, data: memoryview) -> memoryview:
        """Compare data of the master; return those behind the end of this log."""
        differs = tail.first_difference(phy_offset, data)
        if differs is not None:
            raise ReplicationError(
                f"{self._name}: the byte at physical offset {differs} differs from the master's."
                f" This log ends at {tail.end}. Nothing was cut"
            )
        if tail.compared < tail.end:
            return data[len(data) :]
        self._tail = None
        return data[tail.end - phy_offset :]
