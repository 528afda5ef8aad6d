"""Goal: the range of a broker's log is found by its runtime information, and an answer of something
else is an error.
Method: a broker of the test answers with frames of 4.9.3, other frames and damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import ReplicationError
from pyrocketstore.ha.remoting import LogRange, log_range_of
from support.copies import FILE, copied_to, make_log
from support.fake_broker import answer_to, broker, frame
from support.ha_master import LogMaster, ScriptedMaster
from support.sizes import SIZES


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
        lambda request: answer_to(request, {"commitLogMinOffset": "a"}),
        lambda request: answer_to(request, []),
        lambda request: frame({"code": 0, "flag": 1, "opaque": request["opaque"]}, b"{"),
    ],
)
def test_other_answers(answer: Any) -> None:
    with broker(answer) as port, pytest.raises(ReplicationError, match=f"127.0.0.1:{port}"):
        log_range_of("127.0.0.1", port, 5.0)


def test_a_broker_that_cannot_answer_yet() -> None:
    error = pytest.raises(ConnectionError, match="answers 1 'odd'")
    with broker(lambda request: answer_to(request, code=1, remark="odd")) as port, error:
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
