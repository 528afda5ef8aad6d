"""Says which build the tests ran on, and the seed of their random parts."""

from __future__ import annotations

import importlib
import shutil
import sys
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import pyrocketstore
from pyrocketstore.system.env import Env
from support.gates import Gate
from support.grids import axes, covering
from support.seed import SEED

# Another process of the machine may hold an example up.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


def _kernel() -> str:
    try:
        message = importlib.import_module("pyrocketstore.record._message")
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
    """The reasons of skips, and one line above the counts; pytest's own header is not shown under
    -q."""
    for reason, count in _aloud(terminalreporter.stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{reason} ({count} tests)", red=True)
    text = f"pyrocketstore: {_flavour()} build, CRC kernel {_kernel()}, GIL {_gil()}"
    terminalreporter.write_line(f"{text}, ROCKETSTORE_SEED={SEED}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name the seed before anything can crash or hang."""
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.write_line(f"ROCKETSTORE_SEED={SEED}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the seed in each failure."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"ROCKETSTORE_SEED={SEED}"))
    return report


def _aloud(skipped: Iterable[pytest.TestReport]) -> Counter[str]:
    """Why tests were skipped that a whole run has, and how many."""
    texts = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    reasons = (reason.removeprefix("Skipped: ") for reason in texts)
    return Counter(reason for reason in reasons if reason.startswith("SKIPPED ALOUD"))


#: Tests that took long when tools/slow_tests.py looked.
SLOW = frozenset((Path(__file__).parent / "slow_tests.txt").read_text().splitlines())
#: Folders whose tests take longest, in the order in which they begin.
LONG_FOLDERS = ("spark", "interop", "faults", "meta")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of Spark and of faults, and begin with what takes longest, so that the worker
    processes end together."""

    def turn(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONG_FOLDERS.index(folder) if folder in LONG_FOLDERS else len(LONG_FOLDERS)

    for item in items:
        if item.path.parent.name in ("spark", "faults"):
            item.add_marker(item.path.parent.name)
        if item.nodeid in SLOW:
            item.add_marker("slow")
    _leave_out_cases(items)
    items.sort(key=turn)


def _leave_out_cases(items: Iterable[pytest.Item]) -> None:
    """Of each test with several parameters, mark as slow what `covering` leaves out."""
    grids = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for grid in grids.values():
        chosen = covering([axes(case) for case in grid])
        for number, case in enumerate(grid):
            if number not in chosen:
                case.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker process, and all tests of Spark to one: they share a session."""
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if "/spark/" in nodeid else super()._split_scope(nodeid)

    return OneSpark(config, log) if config.getoption("dist") == "loadfile" else None


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
