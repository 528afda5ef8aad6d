"""Goal: every result of a public call crosses to another process, is copied, and prints what it is.
Method: a table of calls, completed by a look at the public classes that it does not reach."""

from __future__ import annotations

import ast
import copy
import enum
import importlib
import os
import pickle
import pkgutil
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
from pyrocketstore.commit_log._puts import PutMessageResult, make_result, with_status
from pyrocketstore.reading.skipped import SkippedRange
from pyrocketstore.results import AppendMessageStatus, GetMessageStatus

CALLS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("t", b"x", tags="a", keys="k"),
    "put_batch": lambda store: store.put_batch("t", [b"1", b"2"]),
    "put_many": lambda store: store.put_many("t", [b"1", b"2"]),
    "put_message": lambda store: store.message_store.put_message(MessageExtBrokerInner("t", b"")),
    "put_encoded": lambda store: store.message_store.put_encoded("t", 0, [b"x", b"y"]),
    "get_records": lambda store: store.message_store.get_records("g", "t", 0, 0, 1),
    "refused put": lambda store: store.message_store.put_message(MessageExtBrokerInner("/", b"")),
    "get": lambda store: store.get(0),
    "get_many": lambda store: store.get_many([0]),
    "read": lambda store: list(store.read("t")),
    "query": lambda store: store.query("t", "k"),
    "query_many": lambda store: store.query_many("t", ["k"]),
    "stats": lambda store: store.stats(),
    "replication": lambda store: pyrocketstore.ReplicaState("h:1"),  # of a store that follows
    "verify": lambda store: store.verify(),
    "trim": lambda store: store.trim(before=0),
    "positions": lambda store: store.consumer_positions(),
    "delayed": lambda store: store.delayed(),
    "topics": lambda store: store.topics(),
    "delayed messages": lambda store: (store.put("t", b"x", delay_level=18), store.delayed())[1],
    "committed": lambda store: (_commit(store), store.consumer_positions())[1],
    "skipped": lambda store: store.read("t").skipped,
    "skipped range": lambda store: SkippedRange("t", 0, 1, 2, "/log", 7, "reason"),
    "derived ends": lambda store: store.message_store.files.derived_ends(),
    "settings": lambda store: store.message_store.config,
    "filter": lambda store: pyrocketstore.Sql92Filter("a > 5"),
    "message": lambda store: pyrocketstore.Message("t", b"x"),
    "inner message": lambda store: MessageExtBrokerInner("t", b"x"),
    "batch": lambda store: pyrocketstore.MessageExtBatch("t", b"x"),
}
OPEN_STORE = "it reads and writes an open store"
MAPPED = "it refers to the mapped files of an open store"
#: Public classes, and classes that their methods return, that are no values: the reason.
NO_VALUES = {
    "Store": OPEN_STORE,
    "DefaultMessageStore": OPEN_STORE,
    "Consumer": OPEN_STORE,
    "Transaction": OPEN_STORE,
    "MessageReader": OPEN_STORE,
    "FollowedMessages": OPEN_STORE,
    "ConsumeQueue": OPEN_STORE,
    "TransientStorePool": MAPPED,
    "SelectMappedBufferResult": MAPPED,
    "GetMessageResult": MAPPED,
    "QueryMessageResult": MAPPED,
    "BrokerStatsManager": "it counts what a store does, with a lock",
    "StatsItem": "it counts what a store does, with a lock",
}


def _commit(store: Store) -> None:
    with store.consumer("g", "t") as consumer:
        consumer.poll(timeout=0)
        consumer.commit()


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


def classes_of_the_package() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(pyrocketstore.__path__, "pyrocketstore."):
        if not module.name.endswith("__main__") and module.name.split(".")[1] not in OPTIONAL:
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, type) and value.__module__.startswith("pyrocketstore."):
                    found.setdefault(name, value)
    return found


#: Packages that need an extra.
OPTIONAL = {"spark", "cli"}


def names_in(node: ast.AST | None) -> set[str]:
    """The names in an annotation, also in one that is a string."""
    found: set[str] = set()
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            found |= names_in(ast.parse(each.value, mode="eval"))
        name = getattr(each, "id", getattr(each, "attr", None))
        found |= {name} - {None}
    return found


def returned_by(kind: type) -> set[str]:
    """The names in the annotations of what public methods return, by the source or its `.pyi`."""
    found: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("pyrocketstore."):
            continue
        path = Path(pyrocketstore.__file__).parent.parent / base.__module__.replace(".", "/")
        stub = path.with_suffix(".pyi")
        tree = ast.parse((stub if stub.exists() else path.with_suffix(".py")).read_text("utf-8"))
        bodies = (n.body for n in tree.body if getattr(n, "name", "") == base.__name__)
        for each in (each for body in bodies for each in body):
            is_public = not getattr(each, "name", "_").startswith("_")
            if is_public or getattr(each, "name", "") in ("__iter__", "__next__"):
                found |= names_in(getattr(each, "returns", None))
    return found


def reached(value: Any) -> set[str]:
    """The names of the classes of a result and of what it holds."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {name for each in value for name in reached(each)}
    return {type(value).__name__}


def test_every_class_that_a_public_call_returns_is_tried(tmp_path: Path) -> None:
    classes = classes_of_the_package()
    public = [getattr(pyrocketstore, name) for name in dir(pyrocketstore)]
    to_do = [kind for kind in public if isinstance(kind, type)]
    found: set[str] = set()
    while to_do:
        kind = to_do.pop()
        if kind.__name__ in found or issubclass(kind, (BaseException, enum.Enum)):
            continue  # the errors have a test of their own
        found.add(kind.__name__)
        if kind.__name__ in NO_VALUES and kind not in public:
            continue  # a part of the engine, whose own methods are not promised
        to_do += [classes[name] for name in returned_by(kind) if name in classes]
    assert len(found) > 20 and {"VerifyReport", "Trimmed", "StoreStats", "MessageExt"} <= found
    tried: set[str] = set()
    for number, call in enumerate(CALLS.values()):
        with pyrocketstore.open(tmp_path / f"s{number}", preset="small") as store:
            store.put("t", b"x", keys="k")
            tried |= reached(call(store))
    assert found - tried - set(NO_VALUES) == set()
    assert set(NO_VALUES) - found == set()
    assert tried & set(NO_VALUES) == set()


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
