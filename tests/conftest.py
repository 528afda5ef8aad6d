"""Says which build the tests ran on."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path

import pytest

import pyrocketstore


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
    """One line above the counts; pytest's own header is not shown under -q."""
    text = f"pyrocketstore: {_flavour()} build, CRC kernel {_kernel()}, GIL {_gil()}"
    terminalreporter.write_line(text)
