"""Calls every function, class, method and property of a compiled module, in any order and with any
arguments, in a separate process.

`python api_calls.py MODULE SEED FIRST COUNT NOTE` runs blocks of calls. The file NOTE names the
current call and survives the death of the process. A call may raise any exception except
SystemError.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import ctypes
import faulthandler
import gc
import importlib
import logging
import mmap
import os
import pickle
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import api_world
import pyrocketstore

PACKAGE = Path(pyrocketstore.__file__ or "").parent
NOTE_SIZE = 4096
CALLS = 150
#: A second call from the same thread blocks, as with any lock.
#: GroupCommit.wait waits for as long as its timeout, which may be any number here.
BLOCKING = {
    "CommitLogCore.take",
    "GroupCommit.__enter__",
    "GroupCommit.serve",
    "GroupCommit.wait",
    "Event.wait",
}
#: An address cannot be checked, and a descriptor may belong to another file.
LEFT_OUT = {"EnvTable.replace", "EnvTable.close", "EnvTable.reset"} | BLOCKING
#: Attributes that CPython gives to every class.
OF_OBJECT = set(dir(object)) - {"__init__", "__reduce__", "__reduce_ex__", "__eq__", "__repr__"}
TP_CLEAR = 192  # byte of a type object, 64 bit
FAILED, BLOCKED = 3, 4


def module_names() -> list[str]:
    """Return the names of the compiled modules. Cython's own module has no stub."""
    paths = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("_*.so"))
    names = {f"{path.parent.name}.{path.name.split('.')[0]}" for path in paths}
    return sorted(names - {"system._cython"})


class Stub:
    """Parameters of functions and methods: {"Class.method": [(name, annotation, by name)]}."""

    def __init__(self, module: str) -> None:
        self.parameters: dict[str, list[tuple[str, str, bool]]] = {}
        path = PACKAGE / f"{module.replace('.', '/')}.pyi"
        self._walk(ast.parse(path.read_text()).body, "")

    def _walk(self, body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._walk(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                self.parameters[prefix + node.name] = self._of(node.args, prefix)

    def _of(self, arguments: ast.arguments, prefix: str) -> list[tuple[str, str, bool]]:
        plain = [*arguments.posonlyargs, *arguments.args]
        if prefix and plain and plain[0].arg in {"self", "cls"}:
            plain = plain[1:]
        known = [(a, False) for a in plain] + [(a, True) for a in arguments.kwonlyargs]
        return [
            (a.arg, ast.unparse(a.annotation) if a.annotation else "object", named)
            for a, named in known
        ]

    def of(self, name: str) -> list[tuple[str, str, bool]] | None:
        """Return the parameters of a callable; None if the stub lacks it."""
        if name.endswith(".__call__"):
            owner = name.split(".")[0]
            for made in ("__new__", "__init__"):
                if f"{owner}.{made}" in self.parameters:
                    return self.parameters[f"{owner}.{made}"]
        return self.parameters.get(name)


class Note:
    """A file that contains the current call."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), NOTE_SIZE)

    def set(self, text: str) -> None:
        raw = text.encode("utf-8", "backslashreplace")[: NOTE_SIZE - 1]
        self.map[: len(raw) + 1] = raw + b"\0"


class Block:
    """Calls of one module, determined by a seed and a number."""

    def __init__(self, module: str, seed: str, number: int, note: Note) -> None:
        self.module, self.number, self.note = module, number, note
        self.rng = random.Random(f"{module}:{seed}:{number}")
        self.stub = Stub(module)
        self.compiled = importlib.import_module(f"pyrocketstore.{module}")
        self.folder = Path(tempfile.mkdtemp())
        self.world = api_world.World(self.folder, self.rng)
        self.values = api_world.Values(self.world)
        self.kinds: dict[str, type] = {}
        self.functions: dict[str, Any] = {}
        for name, value in vars(self.compiled).items():
            if getattr(value, "__module__", "") != self.compiled.__name__:
                continue
            if isinstance(value, type):
                self.kinds[name] = value
            elif callable(value):
                self.functions[name] = value
        self.count = 0
        self.failures: list[str] = []

    def run(self) -> None:
        os.chdir(self.folder)
        for name, kind in self.kinds.items():
            self.bare(name, kind)
        for _ in range(CALLS):
            self.one()
        self.threads()
        self.world.made.clear()
        gc.collect()
        os.chdir("/")
        shutil.rmtree(self.folder)

    # ---- what is done to a class or an object --------------------------------------------------

    def bare(self, name: str, kind: type) -> None:
        """Call the class and `__new__` without arguments, and use the object."""
        self.call(f"{name}()", kind)
        made = self.call(f"{name}.__new__()", kind.__new__, kind)
        if made is None:
            return
        if self.rng.random() < 0.5:
            self.world.made.setdefault(name, []).append(made)
        names = [n for n in dir(kind) if n not in OF_OBJECT and f"{name}.{n}" not in LEFT_OUT]
        self.rng.shuffle(names)
        for attribute in names:
            value = self.call(f"bare {name}.{attribute}", getattr, made, attribute)
            if callable(value):
                wanted = self.stub.of(f"{name}.{attribute}") or []
                plain = [a for a in wanted if not a[2]]
                count = len(plain) or self.rng.randrange(3)
                self.call(f"bare {name}.{attribute}({count} None)", value, *[None] * count)
                self.call(f"bare {name}.{attribute}()", value)
        self.whole(name, made)

    def whole(self, name: str, made: Any) -> None:
        """Apply the operations of the language that every object has."""
        for text, action in (
            ("copy", copy.copy),
            ("deepcopy", copy.deepcopy),
            ("pickle", pickle.dumps),
            ("repr", repr),
            ("len", len),
            ("iter", iter),
            ("next", next),
            ("item", lambda o: o[self.values.integer()]),
            ("memoryview", memoryview),
            ("hash", hash),
            ("eq", lambda o: o == self.values.any()),
            ("referents", gc.get_referents),
            ("init", lambda o: o.__init__()),
            ("with", lambda o: o.__enter__() and o.__exit__(None, None, None)),
        ):
            if text == "with" and f"{name}.__enter__" in LEFT_OUT:
                continue
            self.call(f"{text} {name}", action, made)

    def clear(self, name: str, made: Any) -> None:
        """Clear an object's references as the collector of cycles does."""
        address = ctypes.c_void_p.from_address(id(type(made)) + TP_CLEAR).value
        if address and type(made).__flags__ & (1 << 14):
            action = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(address)
            self.call(f"clear {name}", action, made)

    def one(self) -> None:
        rng = self.rng
        if self.functions and (not self.kinds or rng.random() < 0.4):
            name = rng.choice(list(self.functions))
            self.with_arguments(name, self.functions[name])
            return
        if not self.kinds:
            return
        name = rng.choice(list(self.kinds))
        if rng.random() < 0.15:
            self.with_arguments(f"{name}.__call__", self.kinds[name])
            return
        made = self.world.object_of(name)
        if made is None:
            return
        if rng.random() < 0.03:
            self.whole(name, made)
        elif rng.random() < 0.03:
            self.clear(name, made)
        elif rng.random() < 0.03:
            api_world.spoil(made, rng)
        else:
            self.attribute(name, made)

    def attribute(self, name: str, made: Any) -> None:
        attribute = self.rng.choice([n for n in dir(made) if n not in OF_OBJECT])
        if f"{name}.{attribute}" in LEFT_OUT:
            return
        if self.rng.random() < 0.1:
            value = self.values.any()
            self.call(f"{name}.{attribute} = {kind_of(value)}", setattr, made, attribute, value)
        if self.rng.random() < 0.02:
            self.call(f"del {name}.{attribute}", delattr, made, attribute)
        value = self.call(f"{name}.{attribute}", getattr, made, attribute)
        if callable(value):
            self.with_arguments(f"{name}.{attribute}", value, made)

    def with_arguments(self, name: str, action: Callable[..., Any], *beside: Any) -> None:
        wanted = self.stub.of(name)
        if wanted is None:
            wanted = [("_", "object", False)] * self.rng.randrange(4)
        plain, named = [], {}
        for parameter, annotation, by_name in wanted:
            if by_name:
                if self.rng.random() < 0.6 or name.endswith("__call__"):
                    named[parameter] = self.values.of(annotation)
            else:
                plain.append(self.values.of(annotation))
        if self.rng.random() < 0.05:
            plain = plain[:-1]
        self.aim([*plain, *named.values(), *beside])
        shown = ", ".join([*map(kind_of, plain), *(f"{n}={kind_of(v)}" for n, v in named.items())])
        made = self.call(f"{name}({shown})", action, *plain, **named)
        if name.endswith(".__call__") and made is not None:
            self.world.made.setdefault(name.split(".")[0], []).append(made)
        elif "._" in type(made).__module__:
            self.look_at(made)

    def look_at(self, result: Any) -> None:
        """Read every attribute of the result of a call."""
        name = type(result).__name__
        self.call(f"repr of the result, a {name}", repr, result)
        for attribute in dir(result):
            if attribute not in OF_OBJECT:
                self.call(f"the result, a {name}: {attribute}", getattr, result, attribute)

    def aim(self, arguments: list[Any]) -> None:
        """Let special methods of arguments, also within lists, change the other arguments."""
        flat = list(arguments)
        for value in arguments:
            if type(value) in (list, tuple):
                flat += value
        for value in flat:
            if isinstance(value, api_world.Evil):
                value.targets = [v for v in flat if not isinstance(v, api_world.Evil)]

    def threads(self) -> None:
        """Use one object in two threads at once."""
        if not self.kinds:
            return
        name = self.rng.choice(list(self.kinds))
        made = self.world.object_of(name)
        if made is None:
            return
        began = [
            threading.Thread(
                target=lambda: [self.attribute(name, made) for _ in range(15)], daemon=True
            )
            for _ in range(2)
        ]
        for thread in began:
            thread.start()
        end = time.monotonic() + 5
        for thread in began:
            thread.join(max(0.1, end - time.monotonic()))
        if any(thread.is_alive() for thread in began):
            os._exit(BLOCKED)

    def call(self, text: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.note.set(f"{self.module} block {self.number}: {text}")
        self.count += 1
        try:
            return action(*arguments, **named)
        except SystemError as error:
            self.failures.append(f"{self.module} block {self.number}: {text}: {error!r}")
        except MemoryError:
            gc.collect()
        except Exception:  # noqa: BLE001
            pass
        return None


def kind_of(value: Any) -> str:
    """Return a short text for a value."""
    if type(value) is int and value.bit_length() > 1000:  # CPython refuses to print very long ones
        return f"int of {value.bit_length()} bits"
    if type(value) in (int, bool, str, bytes, float, type(None)):
        return f"{value!r}"[:40]
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(kind_of, value))}]"[:200]
    if isinstance(value, np.ndarray):
        return f"array({value.dtype}, {value.shape}, {value.flags.c_contiguous})"
    return type(value).__name__


def main() -> int:
    module, seed, first, count, note_path = sys.argv[1:6]
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    sys.setswitchinterval(1e-5)
    failures: list[str] = []

    def unraisable(report: Any) -> None:
        if isinstance(report.exc_value, SystemError):
            failures.append(f"{module}: unraisable {report.exc_value!r} in {report.object!r}")

    sys.unraisablehook = unraisable
    note = Note(note_path)
    calls = 0
    for number in range(int(first), int(first) + int(count)):
        note.set(f"{module} block {number}: begin")
        block = Block(module, seed, number, note)
        with contextlib.suppress(FileNotFoundError):
            block.run()
        calls += block.count
        failures += block.failures
    print(*failures, sep="\n")
    print(f"calls {calls}")
    return FAILED if failures else 0


if __name__ == "__main__":
    sys.exit(main())
