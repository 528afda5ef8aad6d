"""Goal: `dir` of a Store shows only the public methods, and type checkers know the types.
Method: list the names of a store; run mypy on calls that are right and on calls that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageStoreConfig
from pyrocketstore.store.settings import StoreSettings

ROOT = Path(__file__).parent.parent.parent

NAMES = """
    aflush aput aput_many close closed consumer consumer_positions delayed drop_topic flush follow
    get get_many max_offset message_store min_offset offset_at path prepare put put_batch put_many
    query query_many queues read read_batch read_only refresh replication stats store_host topics
    transaction transactions trim verify wait_dispatched
""".split()

RIGHT = """
import pyrocketstore
from pyrocketstore import *

async def puts(store: Store) -> None:
    await store.aput("t", bytearray(b"x"), keys=["k"], properties={"a": "b"})
    await store.aput_many("t", [b"x"], tags=["a", None])

with pyrocketstore.open("s", flush_disk_type="SYNC_FLUSH", max_message_size=4096) as store:
    result: PutMessageResult = store.put("t", memoryview(b"x"), queue_id=1, tags="a")
    store.put_batch("t", [b"x", {"body": b"y"}, Message("t", b"z")])
    found: list[MessageExt] = store.query("t", "k", max_num=3)
    reader: MessageReader = store.read("t", on_corrupt="skip")
    store.read_batch("t", start=0)
"""
#: A wrong call, and the code of mypy's error.
WRONG = {
    'store.put("t", "text")': "arg-type",
    'store.put("t", b"x", key="k")': "call-arg",
    'store.put_many("t", ["text"])': "list-item",
    'store.aput("t", b"x", tag="a")': "call-arg",
    'store.aput("t", 7)': "arg-type",
    'store.read("t", 0, begin=1)': "call-arg",
    'store.bind_put_path(1, "h")': "attr-defined",
    'pyrocketstore.open("s", flush_disk_typ="SYNC_FLUSH")': "call-arg",
    'pyrocketstore.open("s", flush_disk_type="SYNC")': "arg-type",
    'pyrocketstore.open("s", max_message_size="4096")': "arg-type",
    "pyrocketstore.Stor": "attr-defined",
}


def test_a_store_shows_what_may_be_called(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path) as store:
        assert [name for name in dir(store) if not name.startswith("_")] == NAMES
        assert [name for name in NAMES if not getattr(type(store), name, store).__doc__] == []


def test_the_settings_of_open_are_those_of_the_configuration() -> None:
    fields = set(MessageStoreConfig.__dataclass_fields__) - {"given", "source_path"}
    assert set(StoreSettings.__annotations__) == fields


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="of one interpreter")
def test_mypy_knows_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    head = "import pyrocketstore\ndef f(store: pyrocketstore.Store) -> None:\n"
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(head + "".join(f"    {call}\n" for call in WRONG))
    words = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file"]
    words += [f"{ROOT}/pyproject.toml", "--disable-error-code=unused-coroutine"]
    words += [f"--cache-dir={ROOT}/.mypy_cache", "right.py", "wrong.py"]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    run = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=280)
    found = {}
    for line in run.stdout.splitlines():
        place, _, text = line.partition(": error: ")
        if ": note: " in line:
            continue
        name, number = place.split(":")[:2]
        assert name == "wrong.py", run.stdout
        found[list(WRONG)[int(number) - 3]] = text.rpartition("[")[2].rstrip("]")
    assert found == WRONG
