"""Goal: no call of a compiled module ends the process, whatever it is given and in whatever state
its object is; nor does one raise SystemError, which says that C broke CPython's rules. Method:
api_calls enumerates every function, class, method and property of every compiled module and calls
them in processes of their own: without arguments, with wrong ones, with objects whose special
methods change the arguments beside them, on objects that `__new__` alone has made, after close,
from two threads, after the collector of cycles took their references.

ROCKETSTORE_SOAK_API=N runs N blocks of calls for each module, with a new seed each time;
ROCKETSTORE_SEED=SEED repeats a run.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import api_calls
from pyrocketstore._env import EnvTable

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_API", "0"))
SEED = os.environ.get("ROCKETSTORE_SEED") or (secrets.token_hex(4) if SOAK else "1")
BLOCKS = SOAK or 2
#: Modules at a time, and seconds that one block may take.
PROCESSES, BLOCK_LIMIT_S = os.cpu_count() or 1, 60
#: Two threads in one object may wait for each other, as with any lock; that ends a child, no more.
MAX_FAILURES = 5

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(max(300, SOAK * 60))]


def child_environment() -> dict[str, str]:
    """With the modules of the tests, behind those that this process was given."""
    here = Path(__file__).parent
    folders = [os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run(module: str, seed: str, blocks: int, note: Path) -> tuple[int, list[str]]:
    """(calls, failures) of so many blocks of one module."""
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
        told = note.read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        last = re.search(r"block (\d+)", told)
        counted = re.search(r"^calls (\d+)$", out, re.MULTILINE)
        calls += int(counted[1]) if counted else 0
        if counted:
            return calls, failures + out.splitlines()[:-1]
        if status != api_calls.BLOCKED:
            failures.append(f"{told}: exit {status}, seed {seed}: {err[-1500:]}")
        first = int(last[1]) + 1 if last else blocks
    return calls, failures


def test_no_call_ends_the_process(tmp_path: Path) -> None:
    names = api_calls.module_names()
    assert len(names) > 25, names
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
    block = api_calls.Block("_scan", "1", 0, api_calls.Note(str(note)))
    assert set(block.kinds) == {"FileWindow", "TopicQueueMap"}
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
        "import sys; sys.argv = ['', '_env', '1', '0', '1', sys.argv[1]]\n"
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


def test_a_table_is_one_of_the_arguments() -> None:
    """An address that replaces an entry is believed, so the campaign leaves that out."""
    assert "EnvTable.replace" in api_calls.LEFT_OUT
    assert hasattr(EnvTable, "replace")
