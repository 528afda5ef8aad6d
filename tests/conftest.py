"""Says which build the tests ran on."""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import pyrocketstore
from gates import Gate
from pyrocketstore.env import Env


def _kernel() -> str:
    try:
        message = importlib.import_module("pyrocketstore._message")
    except ImportError as error:
        return f"not built ({error})"
    return str(message.crc32_kernel())


def _flavour() -> str:
    origin = Path(pyrocketstore.__file__ or "")
    known = {"debug", "asan", "tsan"} & set(origin.parts)
    return next(iter(known), "release")


def _gil() -> str:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "on"
    return "on" if sys._is_gil_enabled() else "off"  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped aloud, and one line above the counts; pytest's own header is not shown under
    -q."""
    for reason, count in _aloud(terminalreporter.stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{reason} ({count} tests)", red=True)
    text = f"pyrocketstore: {_flavour()} build, CRC kernel {_kernel()}, GIL {_gil()}"
    terminalreporter.write_line(text)


def _aloud(skipped: Iterable[pytest.TestReport]) -> Counter[str]:
    """Why tests were skipped that a whole run has, and how many."""
    told = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    reasons = (reason.removeprefix("Skipped: ") for reason in told)
    return Counter(reason for reason in reasons if reason.startswith("SKIPPED ALOUD"))


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open; whoever it holds back at the end is let go."""
    gate = Gate()
    yield gate
    gate.open()


#: A full disk of the machine that runs the tests must not make their stores refuse puts.
_DISK = shutil.disk_usage(tempfile.gettempdir())
_IS_FULL = _DISK.used > 0.7 * _DISK.total


@pytest.fixture(autouse=_IS_FULL)
def room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of each disk is free."""
    monkeypatch.setattr(Env, "disk_usage", lambda self, path: (100, 50, 50))
