"""Compiled code holds its own references: to a queue that it writes to, and to the rows of a call
whose special methods change the caller's lists."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._puts import Columns
from pyrocketstore.commit_log._scan import FileWindow
from pyrocketstore.consume_queue._units import ConsumeQueueCore
from pyrocketstore.errors import StoreStateError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.record import _message
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from support.sizes import SIZES

pytestmark = pytest.mark.bad_input

CHILD = """
import numpy, pyrocketstore, sys
from pyrocketstore.commit_log._puts import Columns
class Number:
    def __index__(self):
        ids.clear(); bodies.clear()
        self.junk = [bytes([165]) * 4004 for _ in range(2000)]
        return 0
    __int__ = __index__
bodies = [(b"%04d" % i) * 1000 for i in range(40)]
ids = [0] * 10 + [Number()] + [0] * 29
with pyrocketstore.open(sys.argv[1]) as store:
    store.put("T", b"first")
    columns = Columns("T", bodies, ids, None, None, None)
    store._put_path.append_columns(columns, numpy.zeros(40, "i8"), numpy.zeros(40, "i8"))
    found = [bytes(m.body) for m in store.read("T")][1:]
    print(len(found), "wrong", [i for i, b in enumerate(found) if b != (b"%04d" % i) * 1000])
"""


def test_a_topic_of_malformed_bytes_is_forgotten_with_its_queue(tmp_path: Path) -> None:
    """Its records come with bytes that are not the UTF-8 of the name that the queue goes by."""
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        engine = store.message_store
        core = engine.commit_log.core

        def append(queue_offset: int) -> None:
            record = bytearray(_message.encode_message(MessageExtBrokerInner("Tab", b"x", 0)))
            at = record.index(b"\x03Tab")
            record[at + 1 : at + 4] = b"T\xffb"
            struct.pack_into(">qq", record, 20, queue_offset, core.end)
            struct.pack_into(">q", record, 56, int(time.time() * 1000))
            engine.append_data(core.end, record)
            engine.wait_dispatched()

        store.put("K", b"1")
        append(0)
        append(1)
        key = ("T\ufffdb", 0)
        assert engine.queue_table.get(*key) is not None
        engine.clean_unused_topic(["K"])
        gc.collect()
        assert engine.queue_table.get(*key) is None
        # An object that is now where the queue's writing end was must not be written to.
        others = [ConsumeQueueCore() for _ in range(100_000)]
        for other in others:
            other.reset(7, 0)
        append(7)
        touched = [one for one in others if (one.unit_count, one.max_physic_offset) != (7, 0)]
        assert not touched
        assert engine.queue_table.get(*key) is not None


def test_rows_outlive_the_lists_that_they_came_in(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path / "store")]
    child = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "40 wrong []", child.stdout


@pytest.mark.parametrize("kind", [CommitLogCore, FileWindow])
def test_a_bare_construction_is_refused(kind: type) -> None:
    """Its end closes no descriptor either: a field that nobody set is 0, which is a descriptor."""
    with pytest.raises(TypeError):
        kind()
    with open("/dev/null", "rb"):
        gc.collect()


def test_a_hold_of_compiled_code_cannot_be_given_back_by_a_caller(tmp_path: Path) -> None:
    env = Env()
    log = CommitLogCore(env, 1 << 16, Event())
    file = MappedFile(env, tmp_path / "0", 1 << 16, create=True, file_from_offset=0)
    log.attach(file)
    with pytest.raises(StoreStateError, match="more often"):
        file.release()
    file.shutdown()
    assert file.is_mapped
    with pytest.raises(StoreStateError, match="not taken"):
        log.release()
    log.attach(None)
    assert not file.is_mapped


def test_columns_are_copies() -> None:
    bodies, ids = [b"1", b"2"], [0, 1]
    columns = Columns("T", bodies, ids, None, None, None)  # type: ignore[arg-type]
    bodies.clear()
    ids.clear()
    assert len(columns) == 2


def test_a_body_that_changes_during_its_put_does_not_end_the_log(tmp_path: Path) -> None:
    """Goal: a record's sum is that of the bytes that are stored. Method: another thread changes
    the body all the time, without the GIL."""
    body = np.zeros(2_000_000, np.uint8)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            np.add(body, 1, out=body)

    thread = threading.Thread(target=change)
    with pyrocketstore.open(tmp_path, mapped_file_size_commit_log=1 << 26) as store:
        thread.start()
        try:
            for _ in range(25):
                store.put("t", body)
        finally:
            stop.set()
            thread.join()
        for message in store.read("t"):
            assert zlib.crc32(message.stored_body) & 0x7FFFFFFF == message.body_crc
    (tmp_path / "abort").touch()
    with pyrocketstore.open(tmp_path) as store:
        assert store.max_offset("t") == 25
