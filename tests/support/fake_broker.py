"""A broker that answers each request with what a test wants."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TABLE = {"commitLogMinOffset": "65536", "commitLogMaxOffset": "70000", "brokerVersion": "399"}


def frame(head: object, body: bytes = b"", kind: int = 0) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), kind << 24 | len(text)) + text + body


def answer_to(request: dict[str, Any], table: Any = TABLE, **more: Any) -> bytes:
    head = {"code": 0, "flag": 1, "language": "JAVA", "opaque": request["opaque"], **more}
    return frame(head, json.dumps({"table": table}).encode())


@contextmanager
def broker(*answers: Any, port: int = 0) -> Iterator[int]:
    """A broker that gives each connection all answers; a callable gets the request."""

    def serve() -> None:
        while True:
            try:
                opened, _ = listener.accept()
            except OSError:
                return
            with opened:
                size, kind = struct.unpack(">ii", opened.recv(8, socket.MSG_WAITALL))
                text = opened.recv(size - 4, socket.MSG_WAITALL)
                assert kind == len(text)
                request = json.loads(text)
                for answer in answers:
                    opened.sendall(answer(request) if callable(answer) else answer)

    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
