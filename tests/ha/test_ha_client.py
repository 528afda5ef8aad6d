"""Goal: a store that follows a master has its log byte for byte, reports only what it may, and ends
with an error, cutting nothing, where the logs differ or the other side keeps no protocol.
Method: masters of the tests send a log as 4.9.3 does, damaged, cut at every byte, or something
else."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    PutError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.ha.comparison import COMPARED_BYTES
from pyrocketstore.ha.ha_client import HAClient
from pyrocketstore.message_store.copied_log import CopiedLog
from support.copies import (
    FILE,
    LONGEST_S,
    arrived_to,
    client_of,
    copied_to,
    follow,
    log_of,
    make_log,
    wait_until,
)
from support.fake_broker import answer_to, broker
from support.ha_master import Link, LogMaster, ScriptedMaster
from support.sizes import SIZES, TINY_SIZES


def copied(root: Path, master: ScriptedMaster, end: int, **more: Any) -> None:
    """Follow until the copy ends at `end`, then close it."""
    with follow(root, master, **more) as store:
        copied_to(store, end)


def failed(root: Path, master: ScriptedMaster, **more: Any) -> str:
    """Follow until the copy ends by an error; return its text."""
    with follow(root, master, **more) as store:
        wait_until(lambda: client_of(store).failure_of_copy is not None)
        client: HAClient = client_of(store)
        assert client.state.state == "failed"
        return str(client_of(store).failure_of_copy)


def answers(root: Path) -> list[Any]:
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        found = [store.query("t", f"k{number}") for number in range(0, 900, 50)]
        assert store.verify().ok
        return [[(m.phy_offset, m.queue_offset, m.body) for m in messages] for messages in found]


def test_a_copy_grows_with_its_master(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    ends = [len(log) * part // 20 for part in range(1, 21)]
    shown = [0]
    serve = LogMaster(lambda: log[: shown[0]], FILE)
    with ScriptedMaster(serve).listening() as master:
        for first, second in zip(ends[::2], ends[1::2], strict=True):
            shown[0] = first
            with follow(tmp_path / "s", master) as store:
                for end in (first, second):
                    shown[0] = end
                    arrived_to(store, end)
    assert log_of(tmp_path / "s", len(log)) == log
    assert answers(tmp_path / "s") == answers(tmp_path / "m")
    assert 0 not in serve.reports  # 4.9.3 would send its last file


@pytest.mark.parametrize("acknowledges", [False, True])
def test_reports(acknowledges: bool, tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    serve = LogMaster(lambda: log, FILE)
    serve.heartbeats = False
    with ScriptedMaster(serve).listening() as master:
        if not acknowledges:
            copied(tmp_path / "s", master, len(log), ha_send_heartbeat_interval=10)
            copied(tmp_path / "s", master, len(log), ha_send_heartbeat_interval=10)
            assert set(serve.reports) == {1, serve.reports[-1]}
            assert serve.reports[-1] <= len(log) - COMPARED_BYTES
            return
        copied(tmp_path / "s", master, len(log))
        serve.reports.clear()
        slave = {"broker_role": "SLAVE", "ha_master_address": master.address}
        with pyrocketstore.open(tmp_path / "s", **slave, **SIZES) as store:
            wait_until(lambda: len(log) in serve.reports)
            assert client_of(store).state.reported == len(log)
    assert serve.reports[1:] == [len(log)]
    assert serve.reports[0] <= len(log) - COMPARED_BYTES


def test_a_copy_begins_with_the_last_file(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    last = len(log) // FILE * FILE
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        copied(tmp_path / "s", master, len(log), follow_from="last")
    assert log_of(tmp_path / "s", len(log) - last) == log[last:]


@pytest.mark.parametrize("before_end", [1, COMPARED_BYTES // 2, None])
def test_a_master_that_differs(before_end: int | None, tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    serve = LogMaster(lambda: log, FILE)
    with ScriptedMaster(serve).listening() as master:
        for _ in range(2):
            copied(tmp_path / "s", master, len(log))
    place = serve.reports[-1] if before_end is None else len(log) - before_end
    other = bytearray(log + log)
    other[place] ^= 1
    with ScriptedMaster(LogMaster(lambda: bytes(other), FILE)).listening() as master:
        text = failed(tmp_path / "s", master)
    assert f"the byte at physical offset {place} differs" in text
    assert f"ends at {len(log)}" in text
    assert log_of(tmp_path / "s", len(log)) == log


@pytest.mark.parametrize("end", [FILE, 2 * FILE])
def test_bytes_behind_a_blank_may_differ(end: int, tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 130, 1500)
    filler = len(log[:end].rstrip(b"\0"))
    assert filler < end - 8 < len(log)
    other = log[:filler] + b"\xda" * (end - filler) + log[end:]
    for shown in (end, len(log)):
        with ScriptedMaster(LogMaster(lambda shown=shown: log[:shown], FILE)).listening() as master:
            copied(tmp_path / "s", master, shown)
        with ScriptedMaster(
            LogMaster(lambda shown=shown: other[:shown], FILE)
        ).listening() as master:
            copied(tmp_path / "s", master, shown)
    assert log_of(tmp_path / "s", len(log)) == log


@pytest.mark.parametrize("missing", [1, COMPARED_BYTES - 1, COMPARED_BYTES, COMPARED_BYTES + 900])
def test_a_master_that_is_shorter(missing: int, tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        copied(tmp_path / "s", master, len(log))
    with ScriptedMaster(LogMaster(lambda: log[:-missing], FILE)).listening() as master:
        text = failed(tmp_path / "s", master)
    assert f"and this log ends at {len(log)}: the master's log is shorter" in text
    if missing < COMPARED_BYTES:
        assert f"no byte at physical offset {len(log) - missing}," in text
    assert log_of(tmp_path / "s", len(log)) == log


def test_another_size_of_files(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 900)
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        text = failed(tmp_path / "s", master, mapped_file_size_commit_log=2 * FILE)
        assert f"files have {2 * FILE} bytes" in text
        text = failed(
            tmp_path / "t", master, follow_from=FILE, mapped_file_size_commit_log=2 * FILE
        )
        assert f"physical offset {FILE} is not the first byte" in text


def test_a_master_that_closes_since_it_is_much_shorter(tmp_path: Path) -> None:
    """4.9.3 sends nothing at a physical offset behind its end, and closes after some seconds."""
    log = make_log(tmp_path / "m", 900)
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        copied(tmp_path / "s", master, len(log))
    table = {"commitLogMinOffset": "0", "commitLogMaxOffset": "1000"}
    with (
        ScriptedMaster(lambda link: link.report() and None).listening() as master,
        broker(lambda request: answer_to(request, table), port=master.port - 1),
    ):
        text = failed(tmp_path / "s", master)
    assert "has the bytes from 0 to 1000" in text and f"ends at {len(log)}" in text
    assert log_of(tmp_path / "s", len(log)) == log


@pytest.mark.parametrize("begin", [FILE + 1, 2 * FILE, "last"])
def test_a_begin_that_the_master_does_not_have(begin: int | str, tmp_path: Path) -> None:
    table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(FILE + 2)}

    def serve(link: Link) -> None:
        link.report()
        link.frame(FILE + 1, b"x")  # the begin of a file of another size
        link.has_ended()

    with (
        ScriptedMaster(serve).listening() as master,
        broker(lambda request: answer_to(request, table), port=master.port - 1),
    ):
        text = failed(tmp_path / "s", master, follow_from=begin)
    assert f"physical offset {FILE + 1 if begin == 'last' else begin}" in text


def test_a_thread_that_dies_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HAClient, "_follow", fail)
    with ScriptedMaster(lambda link: None).listening() as master:
        store = follow(tmp_path / "s", master)
        wait_until(lambda: client_of(store).state.state == "failed")
        assert "ZeroDivisionError" in str(client_of(store).state.error)
        with pytest.raises(StoreStateError, match="HAClient has died"):
            store.close()


def test_a_disk_that_is_full_ends_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "m", 30)
    append, refusals = CopiedLog.append, iter(range(3))

    def refused(self: CopiedLog, phy_offset: int, data: memoryview) -> int:
        if next(refusals, None) is not None:
            raise StoreStateError("full") from StoreIOError(errno.ENOSPC, "fallocate", "index")
        return append(self, phy_offset, data)

    monkeypatch.setattr(CopiedLog, "append", refused)
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        copied(tmp_path / "s", master, len(log))


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">qi", 1, -1),
        struct.pack(">qi", 1, (1 << 31) - 1),
        struct.pack(">qi", -1, 10),
        struct.pack(">qi", 2, 10),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 100,
    ],
)
def test_what_is_no_master(answer: bytes, tmp_path: Path) -> None:
    def serve(link: Link) -> None:
        link.report()
        link.send(answer)
        link.has_ended()

    with ScriptedMaster(serve).listening() as master:
        text = failed(tmp_path / "s", master)
    assert master.address in text and ("HA port" in text or "instead of 1" in text)


def test_a_connection_that_is_cut_at_every_byte(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 12, 40, **TINY_SIZES)
    file = TINY_SIZES["mapped_file_size_commit_log"]
    stream_end = len(log) + 12 * (len(log) // 500 + 3)
    lefts = iter(range(stream_end))

    def serve(link: Link) -> None:
        left = next(lefts, 1 << 30)
        at = link.report()
        while True:
            stop = min(at + 500, len(log), (at // file + 1) * file)
            data = struct.pack(">qi", at, stop - at) + log[at:stop]
            link.send(data[:left])
            left -= len(data)
            at = stop
            if left <= 0:
                return

    with (
        ScriptedMaster(serve).listening() as master,
        pyrocketstore.open(
            tmp_path / "s", follow=master.address, follow_from=0, **TINY_SIZES
        ) as store,
    ):
        client = client_of(store)
        while master.connections < stream_end and client.failure_of_copy is None:
            client.wakeup()
            time.sleep(0.001)
        wait_until(lambda: store.message_store.get_max_phy_offset() == len(log))
        assert client.failure_of_copy is None
    assert log_of(tmp_path / "s", len(log)) == log


def test_a_master_that_is_not_there_or_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    with pyrocketstore.open(tmp_path / "s", follow=f"127.0.0.1:{port}", follow_from=0) as store:
        wait_until(lambda: "refused" in (client_of(store).state.error or ""))
        assert client_of(store).state.state == "connecting"
    silent = threading.Event()
    with ScriptedMaster(lambda link: silent.wait(LONGEST_S) and None).listening() as master:
        with follow(tmp_path / "t", master):
            wait_until(lambda: master.connections > 0)
        with follow(tmp_path / "t", master, ha_housekeeping_interval=50) as store:
            wait_until(lambda: "has sent nothing" in (client_of(store).state.error or ""))
        silent.set()
    assert time.monotonic() - began < LONGEST_S  # a close does not wait for the master


def test_puts_are_refused(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 10)
    with (
        ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master,
        follow(tmp_path / "s", master) as store,
    ):
        refusal = "SERVICE_NOT_AVAILABLE.*put into the master"
        with pytest.raises(PutError, match=refusal):
            store.put("t", b"")
        copied_to(store, len(log))
        with pytest.raises(PutError, match=refusal):
            store.put_many("t", [b""])
    assert log_of(tmp_path / "s", len(log)) == log


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"follow": "127.0.0.1"}, "follow '127.0.0.1': must be"),
        ({"follow": "127.0.0.1:0"}, "must be"),
        ({"follow": "127.0.0.1:70000"}, "must be"),
        ({"follow": ":10912"}, "must be"),
        ({"follow": "a..b:10912"}, "must be"),
        ({"follow": "h:10912", "ha_housekeeping_interval": 0}, "must be positive"),
        ({"follow": "h:10912", "follow_from": "middle"}, "first, last or"),
        ({"follow": "h:10912", "follow_from": -1}, "must not be negative"),
        ({"follow_from": "first"}, "only with follow"),
        ({"follow": "h:10912", "read_only": True}, "copies nothing"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match=text):
        pyrocketstore.open(tmp_path, **arguments)


@pytest.mark.parametrize("arguments", [{"follow": 10912}, {"follow": "h:1", "follow_from": 1.5}])
def test_arguments_of_other_types(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StoreTypeError):
        pyrocketstore.open(tmp_path, **arguments)
