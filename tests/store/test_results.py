"""Goal: every result of a public call crosses to another process, is copied, and prints what it is.
Method: a table of calls, completed by a look at the public classes that it does not reach."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    PutMessageStatus,
    Store,
    StoreError,
    StoreStateError,
)
from pyrocketstore.commit_log._put_result import PutMessageResult, make_result, with_status
from pyrocketstore.results import AppendMessageStatus, GetMessageStatus

CALLS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("t", b"x", tags="a", keys="k"),
    "put_batch": lambda store: store.put_batch("t", [b"1", b"2"]),
    "put_many": lambda store: store.put_many("t", [b"1", b"2"]),
    "put_message": lambda store: store.message_store.put_message(MessageExtBrokerInner("t", b"")),
    "refused put": lambda store: store.message_store.put_message(MessageExtBrokerInner("/", b"")),
    "get": lambda store: store.get(0),
    "get_many": lambda store: store.get_many([0]),
    "read": lambda store: list(store.read("t")),
    "query": lambda store: store.query("t", "k"),
    "query_many": lambda store: store.query_many("t", ["k"]),
    "stats": lambda store: store.stats(),
    "verify": lambda store: store.verify(),
    "trim": lambda store: store.trim(before=0),
    "positions": lambda store: store.consumer_positions(),
    "delayed": lambda store: store.delayed(),
    "topics": lambda store: store.topics(),
}


def facts(value: Any) -> Any:
    """The content of a result, where its class does not compare it."""
    if isinstance(value, (list, tuple)):
        return [facts(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, BaseException):
        return type(value), str(value)
    if isinstance(value, PutMessageResult) or type(value).__name__ == "MessageExt":
        names = [name for name in dir(value) if not name.startswith("_")]
        found = {name: getattr(value, name) for name in names}
        return {name: facts(each) for name, each in found.items() if not callable(each)}
    return repr(value)


def copies(value: Any) -> list[Any]:
    pickled = [pickle.loads(pickle.dumps(value, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return [*pickled, copy.copy(value), copy.deepcopy(value)]


@pytest.mark.parametrize("call", CALLS)
def test_a_result_is_equal_after_a_copy(tmp_path: Path, call: str) -> None:
    with pyrocketstore.open(tmp_path / "s", preset="small") as store:
        store.put("t", b"x" * 100, tags="a", keys="k", properties={"p": "q"})
        try:
            value = CALLS[call](store)
        except AttributeError as missing:
            pytest.fail(str(missing))
        for each in copies(value):
            assert type(each) is type(value)
            assert facts(each) == facts(value)


def test_every_kind_of_put_result_is_equal_after_a_copy() -> None:
    cause = StoreStateError("closed")
    for status in PutMessageStatus:
        for error in (None, cause, ValueError("x")):
            for host in (None, "1.2.3.4:5", "[2001:db8::1]:10911"):
                made = make_result(int(status), 0, 2**40, 7, 100, 9, 2, [5, 2**40], host, error)
                for value in (made, with_status(made, 1, error)):
                    for each in copies(value):
                        assert type(each) is type(value)
                        assert facts(each) == facts(value)


def test_a_status_prints_its_name() -> None:
    for kind in (PutMessageStatus, AppendMessageStatus, GetMessageStatus):
        for status in kind:
            assert str(status) == f"{status}" == status.name
            assert status == int(status)


def test_a_second_open_names_the_owner_and_ends_in_open(tmp_path: Path) -> None:
    code = f"import pyrocketstore; pyrocketstore.open({str(tmp_path / 's')!r})"
    owner = f"(process id {os.getpid()})"
    with pyrocketstore.open(tmp_path / "s", preset="small"):
        with pytest.raises(StoreStateError) as refused:
            pyrocketstore.open(tmp_path / "s")
        assert str(refused.value).endswith(f"is already open by this process {owner}")
        assert traceback.extract_tb(refused.tb)[-1].name == "open"
        assert len(traceback.extract_tb(refused.tb)) == 2
        assert refused.value.__context__ is None
        engine = DefaultMessageStore(
            pyrocketstore.MessageStoreConfig(store_path_root_dir=str(tmp_path / "s"))
        )
        with pytest.raises(StoreError, match="already open by this process"):
            engine.load()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        last = done.stderr.splitlines()[-1]
        assert last.endswith(f"is already open by another process {owner}")


def test_the_repr_of_a_message_is_short_and_printable(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", preset="small") as store:
        store.put("t", b"\x1b[31m" + b"x" * 5000, tags="a\u202e", keys="k" * 5000)
        store.put("t", b"")
        first, second = store.read("t")
    text = repr(first)
    assert text.isprintable()
    assert len(text) < 400
    assert "tags='a\\u202e' keys='kkk" in text
    assert "'... body=b'\\x1b[31mxxx" in text
    assert "tags=None keys=None body=b''" in repr(second)
