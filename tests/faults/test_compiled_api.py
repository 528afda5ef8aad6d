"""Goal: no call of a compiled module ends the process, whatever its arguments and the state of its
object are. No call raises SystemError, which reports a violation of CPython's rules in C.
Method: api_calls enumerates every function, class, method and property of every compiled module and
calls them in separate processes: without arguments, with wrong ones, with objects whose special
methods change the other arguments, on objects that only `__new__` has made, after close, from two
threads, and after the collector of cycles has cleared their references.

ROCKETSTORE_SOAK_API=N runs N blocks of calls for each module, with a new seed each time;
ROCKETSTORE_SEED=SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import api_calls
import api_world
from pyrocketstore.commit_log._append import StoreTimes
from pyrocketstore.files._mapped_file import FileSequence
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.system._env import EnvTable
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_API", "0"))
BLOCKS = SOAK or 2
#: Number of concurrent modules, and time limit of one block (s).
PROCESSES, BLOCK_LIMIT_S = os.cpu_count() or 1, 60
#: Two threads in one object may deadlock, as with any lock: this ends a child and is not a failure.
MAX_FAILURES = 5

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(max(300, SOAK * 60))]


def child_environment() -> dict[str, str]:
    """Return the environment of a child, with the modules of the tests last in its path."""
    here = Path(__file__).parent
    folders = [os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run(module: str, seed: str, blocks: int, note: Path) -> tuple[int, list[str]]:
    """Return (calls, failures) of a number of blocks of one module."""
    first, calls, failures = 0, 0, list[str]()
    environment = child_environment()
    while first < blocks and len(failures) < MAX_FAILURES:
        note.write_bytes(bytes(api_calls.NOTE_SIZE))
        words = [sys.executable, api_calls.__file__, module, seed, str(first), str(blocks - first)]
        try:
            child = subprocess.run(
                [*words, str(note)],
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=BLOCK_LIMIT_S * (blocks - first),
                check=False,
            )
            status, out, err = child.returncode, child.stdout, child.stderr
        except subprocess.TimeoutExpired:
            status, out, err = -1, "", "it hangs"
        note_text = note.read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        last = re.search(r"block (\d+)", note_text)
        counted = re.search(r"^calls (\d+)$", out, re.MULTILINE)
        calls += int(counted[1]) if counted else 0
        if counted:
            return calls, failures + out.splitlines()[:-1]
        if status != api_calls.BLOCKED:
            failures.append(f"{note_text}: exit {status}, seed {seed}: {err[-1500:]}")
        first = int(last[1]) + 1 if last else blocks
    return calls, failures


@pytest.mark.slow
def test_no_call_ends_the_process(tmp_path: Path) -> None:
    names = api_calls.module_names()
    assert len(names) > 20, names
    with ThreadPoolExecutor(PROCESSES) as pool:
        outcomes = list(
            pool.map(lambda name: run(name, SEED, BLOCKS, tmp_path / f"{name}.note"), names)
        )
    failures = [line for _, lines in outcomes for line in lines if line]
    print(f"seed {SEED}: {sum(calls for calls, _ in outcomes)} calls of {len(names)} modules")
    assert not failures, "\n".join(failures)


def test_each_module_is_called(tmp_path: Path) -> None:
    """The campaign reaches classes, their methods, and functions."""
    note = tmp_path / "note"
    note.write_bytes(bytes(api_calls.NOTE_SIZE))
    block = api_calls.Block("commit_log._scan", "1", 0, api_calls.Note(str(note)))
    assert set(block.kinds) == {"FileWindow", "TopicMinOffsets", "TopicQueueMap"}
    assert set(block.functions) >= {"scan_file", "status_name", "find_valid_record"}
    seen = list[str]()
    block.call = lambda text, action, *a, **k: seen.append(text)  # type: ignore[method-assign]
    block.bare("FileWindow", block.kinds["FileWindow"])
    assert "FileWindow()" in seen


@pytest.mark.parametrize("action", ["crash", "system_error"])
def test_the_campaign_sees(action: str, tmp_path: Path) -> None:
    """A call that ends the process, and one that raises SystemError, are failures."""
    note = tmp_path / "note"
    note.write_bytes(bytes(api_calls.NOTE_SIZE))
    text = (
        "import sys; sys.argv = ['', 'system._env', '1', '0', '1', sys.argv[1]]\n"
        "import api_calls, ctypes\n"
        "def crash(*_): ctypes.string_at(0)\n"
        "def system_error(*_): raise SystemError('of a test')\n"
        f"api_calls.Block.one = lambda block: block.call('of a test', {action})\n"
        "sys.exit(api_calls.main())\n"
    )
    environment = child_environment()
    child = subprocess.run(
        [sys.executable, "-c", text, str(note)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if action == "crash":
        assert child.returncode < 0
        assert b"of a test" in note.read_bytes()
    else:
        assert child.returncode == api_calls.FAILED
        assert "SystemError" in child.stdout


ODD_ITEMS = """
import ctypes, re, sys
import numpy as np
import api_calls
for module in api_calls.module_names():
    stub = api_calls.Stub(module)
    compiled = api_calls.importlib.import_module(f"pyrocketstore.{module}")
    for name in stub.parameters.keys() & vars(compiled).keys():
        words, named = [], {}
        for parameter, annotation, by_name in stub.of(name):
            found = re.search("NDArray.*?((u?int)([0-9]+))", annotation)
            kind = found[1] if found else "uint8"
            code = getattr(ctypes, f"c_{kind}")
            fields = {"_fields_": [("a", code), ("b", code * 0)]}
            odd = [np.zeros(2, [("a", kind), ("b", "O")]), np.zeros(2, [("a", kind), ("b", "f4")]),
                   np.zeros(2, [("a", kind), ("b", kind, (3,))]),
                   (type("Pair", (ctypes.Structure,), fields) * 2)()]
            for value in odd if found or "Buffer" in annotation else ():
                print("at", module, name, parameter, flush=True)
                try:
                    given = {**named, parameter: value} if by_name else named
                    getattr(compiled, name)(*words, *([] if by_name else [value]), **given)
                except Exception as error:
                    sys.stdout.write("refused\\n" if "mismatch" in str(error) else "")
            plain = np.zeros(1, kind) if found else b"" if "Buffer" in annotation else 1
            if by_name:
                named[parameter] = plain
            else:
                words.append(plain)
"""


def test_items_with_fields_are_refused() -> None:
    """An array whose items have fields is not an array of numbers; Cython's parser would crash."""
    child = subprocess.run(
        [sys.executable, "-c", ODD_ITEMS],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert child.returncode == 0, f"{child.stdout[-200:]} {child.stderr[-2000:]}"
    assert child.stdout.count("refused") > 50


def test_a_table_is_one_of_the_arguments() -> None:
    """The campaign omits `replace`, which cannot check the address that it gets."""
    assert "EnvTable.replace" in api_calls.LEFT_OUT
    assert hasattr(EnvTable, "replace")


def test_files_of_another_type_are_refused(tmp_path: Path) -> None:
    """Compiled code counts the items of a sequence without looking at its type."""
    world = api_world.World(tmp_path, random.Random(1))
    core, none = world.object_of_log(), SimpleNamespace(mapped_files=None, mapped_file_size=4096)
    with pytest.raises(TypeError):
        StoreTimes(core, none)(0, 1)
    for log_files, index_files in (
        (FileSequence(), None),
        ((), ()),
        (None, ()),
        (FileSequence(), []),
    ):
        log = SimpleNamespace(mapped_files=log_files, mapped_file_size=4096)
        index = SimpleNamespace(_files=index_files, geometry_error=None)
        with pytest.raises(TypeError):
            KeySearch(core, log, index, None, bool).query("T", "key", 0, 1, 32, True)
