"""Requests to a broker in RocketMQ's remoting protocol, one at a time."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyrocketstore.errors import ReplicationError

#: RocketMQ 4.9.3, as `version` of a request.
VERSION = 399
FRAME_MAX = 16 << 20
GET_BROKER_RUNTIME_INFO = 28
SUCCESS = 0
_LENGTHS = struct.Struct(">ii")


class Response(NamedTuple):
    """The answer to a request; `fields` has the texts of the header of this request."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class BrokerConnection:
    """A connection to a broker, for requests.

    Parameters
    ----------
    host, port : of the broker, its `listenPort`
    timeout : s, for the connection and for each wait for bytes

    Raises OSError where nothing listens. Threads: one. `close` it.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self.name = f"{host}:{port}"
        self._socket = socket.create_connection((host, port), timeout)
        self._opaque = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def request(self, code: int, fields: Mapping[str, str] | None = None) -> Response:
        """Send a request without a body; return the response.

        Raises OSError, and ReplicationError for bytes that are no response to it.
        """
        self._opaque += 1
        head = {
            "code": code,
            "extFields": dict(fields or {}),
            "flag": 0,
            "language": "PYTHON",
            "opaque": self._opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": VERSION,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        self._socket.sendall(_LENGTHS.pack(4 + len(text), len(text)) + text)
        while True:
            found = self._response()
            if found is not None:
                return found

    def _response(self) -> Response | None:
        """Read a frame; None if it is not the response to the last request."""
        size, kind = _LENGTHS.unpack(self._read(_LENGTHS.size))
        head_size = kind & 0xFFFFFF
        if kind >> 24 or not 4 + head_size <= size <= FRAME_MAX:
            raise ReplicationError(f"{self.name}: a frame of {size} bytes is not one of a broker")
        head = self._parsed(self._read(head_size))
        body = self._read(size - 4 - head_size)
        if head.get("opaque") != self._opaque or not int(head.get("flag", 0)) & 1:
            return None
        fields = head.get("extFields") or {}
        return Response(int(head["code"]), str(head.get("remark") or ""), fields, body)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            head = json.loads(text)
            if isinstance(head, dict) and isinstance(head.get("code"), int):
                return head
        except ValueError:
            pass
        raise ReplicationError(f"{self.name}: the answer is not one of a broker")

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 16))
            if not part:
                raise ConnectionError(f"{self.name} has closed the connection")
            data += part
        return bytes(data)


class LogRange(NamedTuple):
    """The physical offsets of a broker's log: that of its first byte, and that behind its last."""

    begin: int
    end: int


def log_range_of(host: str, port: int, timeout: float) -> LogRange:
    """Ask a broker for the range of its log (runtime information).

    Raises OSError, also where the broker cannot answer now: 4.9.3 gives an error in the first
    second after its start. ReplicationError: a broker does not answer so.
    """
    try:
        with contextlib.closing(BrokerConnection(host, port, timeout)) as broker:
            response = broker.request(GET_BROKER_RUNTIME_INFO)
    except OSError as error:
        raise ConnectionError(
            f"{host}:{port}: the broker cannot be asked for the range of its log: {error}"
        ) from error
    if response.code != SUCCESS:
        raise ConnectionError(
            f"{host}:{port}: the broker answers {response.code} {response.remark!r} to a request"
            " for its runtime information"
        )
    try:
        table = json.loads(response.body)["table"]
        return LogRange(int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ReplicationError(
            f"{host}:{port}: the runtime information has no range of the log"
        ) from error
