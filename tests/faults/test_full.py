"""Goal: a full device, or a limit on the length of files, causes errors that name the file and the
reason. It causes no signal and no loss, and with free room all calls succeed again.
Method: a tmpfs that is filled up before each step, and RLIMIT_FSIZE, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore

HERE = Path(__file__).parent
TIMEOUT_S = 120
PRELUDE = """
import errno, logging, os, resource, sys, time
import pyrocketstore
from support.gates import unclean
from pyrocketstore.consume_queue import retries
from pyrocketstore.index import index_service
from journal import SETTINGS
retries.RETRY_INTERVAL_S = 0.001
index_service.RETRY_INTERVAL_MS = 1
path = sys.argv[1]
texts = []
class Messages(logging.Handler):
    def emit(self, record):
        texts.append(record.getMessage())
logging.getLogger("pyrocketstore").addHandler(Messages())

def open_store(**more):
    return pyrocketstore.open(path, **{**SETTINGS, **more})

def fill():
    # To the last byte: whoever needs a block now gets none. Again and again, since an allocation
    # ahead that fails gives back what it had got.
    idle = 0
    with open(path + "/../filler", "wb", buffering=0) as filler:
        while idle < 5:
            idle += 1
            for size in (1 << 16, 4096, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                        idle = 0
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            time.sleep(0.005)

def make_room():
    os.unlink(path + "/../filler")

def tell(error):
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    return " | ".join(said + texts)

acknowledged = []
def put_until_refused(store, topic, keys, size=300, most=2000):
    for i in range(most):
        key = f"{topic}{len(acknowledged)}"
        try:
            store.put(topic, bytes(size), keys=key if keys else None)
        except pyrocketstore.PutError as error:
            assert not error.stored
            return tell(error)
        acknowledged.append((topic, key if keys else None))
        try:
            store.wait_dispatched()
        except pyrocketstore.StoreIOError as error:
            said = tell(error)
            try:
                store.put(topic, b"x")
                raise AssertionError("put after units were lost")
            except pyrocketstore.PutError as error:
                return said + tell(error)
    raise AssertionError("the device does not fill up")

def all_there():
    with open_store() as store:
        assert store.verify().ok, store.verify().problems
        for topic in {topic for topic, _ in acknowledged}:
            count = sum(t == topic for t, _ in acknowledged)
            assert len(list(store.read(topic))) == count, topic
        for topic, key in acknowledged:
            if key is not None:
                assert len(store.query(topic, key)) == 1, key
        store.put("after", b"x", keys="after")
        assert len(store.query("after", "after")) == 1
    assert not os.path.exists(path + "/abort")
    print("ok")
"""


def run(script: str, path: Path) -> None:
    """Run a script to its end; a signal gives a negative exit code."""
    paths = [str(Path(pyrocketstore.__file__).parent.parent), str(HERE), str(HERE.parent)]
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stderr}"
    assert ended.stdout == "ok\n"


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 2 MiB, and yield a directory below it."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"SKIPPED ALOUD: no tmpfs can be mounted here: {mounted.stderr.decode()}")
    yield tmp_path / "store"
    subprocess.run(["umount", str(tmp_path)], check=True)


#: The files that must grow when the device is full.
FULL = {
    "log": """
SETTINGS["mapped_file_size_consume_queue"] = 20000
with open_store() as store:
    store.put("t", b"first", keys="first")
    acknowledged.append(("t", "first"))
    store.flush()
    fill()
    said = put_until_refused(store, "t", False)
    assert "commitlog" in said, said
""",
    "topics.json": """
with open_store() as store:
    store.put("t", b"first")
    acknowledged.append(("t", None))
    store.wait_dispatched()
    fill()
    try:
        store.flush()
        raise AssertionError("flushed")
    except pyrocketstore.StoreIOError as error:
        assert "topics.json" in tell(error), tell(error)
    said = put_until_refused(store, "new", False)
    assert "topics.json" in said, said
    assert store.topics() == ["t"]
    make_room()
    store.flush()
    fill()
""",
    "queue": """
with unclean(open_store(topics_json=False, mapped_file_size_commit_log=1 << 20)) as store:
    for i in range(20):
        store.put("t", b"x" * 500)
        acknowledged.append(("t", None))
    store.wait_dispatched()
    fill()
    said = put_until_refused(store, "other", False)
    assert "consumequeue/other" in said, said
SETTINGS["mapped_file_size_commit_log"] = 1 << 20
""",
    "index": """
SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20000}
with unclean(open_store(**SIZES)) as store:
    store.put("t", b"first")
    acknowledged.append(("t", None))
    store.wait_dispatched()
    fill()
    said = put_until_refused(store, "t", True)
    assert "/index/" in said, said
SETTINGS["mapped_file_size_commit_log"] = 1 << 20
SETTINGS["mapped_file_size_consume_queue"] = 20000
""",
    # Its page exists since the opening: a full device does not prevent the close.
    "checkpoint": """
said = "No space left"
store = open_store()
store.put("t", b"first", keys="first")
acknowledged.append(("t", "first"))
store.flush()
fill()
store.flush()
store.close()
assert not os.path.exists(path + "/abort")
""",
    "opening": """
with open_store() as store:
    store.put("t", b"first", keys="first")
    acknowledged.append(("t", "first"))
os.unlink(path + "/checkpoint")
fill()
try:
    open_store()
    raise AssertionError("opened")
except pyrocketstore.StoreIOError as error:
    said = tell(error)
    assert "/store/" in said, said
""",
}


@pytest.mark.parametrize("full", FULL)
def test_a_full_device_is_an_error(small_device: Path, full: str) -> None:
    end = "assert 'No space left' in said, said\nmake_room()\nall_there()\n"
    run(FULL[full] + end, small_device)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_files_that_may_grow_no_longer(tmp_path: Path, flush: str) -> None:
    """With RLIMIT_FSIZE calls fail with EFBIG, since Python ignores SIGXFSZ."""
    run(
        f"""
more = dict(mapped_file_size_commit_log=1 << 18, flush_disk_type={flush!r})
SETTINGS.update(more)
with open_store() as store:
    store.put("t", b"first", keys="first")
    acknowledged.append(("t", "first"))
    store.wait_dispatched()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, limit[1]))
    said = put_until_refused(store, "t", False)
    assert "File too large" in said and "commitlog" in said, said
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
all_there()
""",
        tmp_path / "store",
    )
