"""Goal: the range of a broker's log is found by its runtime information, and an answer of something
else is an error.
Method: a broker of the test answers with frames of 4.9.3, other frames and damaged ones."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import ReplicationError
from pyrocketstore.ha.remoting import LogRange, log_range_of
from support.copies import FILE, copied_to, make_log
from support.ha_master import LogMaster, ScriptedMaster
from support.sizes import SIZES

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


def test_the_range_of_a_log() -> None:
    other = frame({"code": 40, "flag": 2, "opaque": 9})  # a broker may send requests, too
    with broker(other, answer_to) as port:
        assert log_range_of("127.0.0.1", port, 5.0) == LogRange(65536, 70000)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">ii", -1, 2),
        struct.pack(">ii", 1 << 30, 2),
        struct.pack(">ii", 10, 20),
        frame(b"[]"),
        frame(b"{"),
        frame({"code": "0"}),
        frame({"code": 0}, kind=1),
        lambda request: answer_to(request, code=1, remark="odd"),
        lambda request: answer_to(request, {"commitLogMinOffset": "a"}),
        lambda request: answer_to(request, []),
        lambda request: frame({"code": 0, "flag": 1, "opaque": request["opaque"]}, b"{"),
    ],
)
def test_other_answers(answer: Any) -> None:
    with broker(answer) as port, pytest.raises(ReplicationError, match=f"127.0.0.1:{port}"):
        log_range_of("127.0.0.1", port, 5.0)


def test_an_answer_that_ends_early() -> None:
    with broker(answer_to({"opaque": 1})[:-1]) as port, pytest.raises(ConnectionError):
        log_range_of("127.0.0.1", port, 5.0)


def test_a_copy_begins_with_the_first_file_of_the_broker(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    with (
        ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master,
        broker(answer_to, port=master.port - 1),
        pyrocketstore.open(tmp_path / "s", follow=master.address, **SIZES) as store,
    ):
        copied_to(store, len(log))
        assert store.message_store.get_min_phy_offset() == 65536
