"""Goal: reads, SQL and an export work over Spark Connect as with a session of this process.
Method: a process of its own starts the server that pip installs, and calls each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("pyspark", "grpc", "grpc_status", "zstandard", "google.rpc"):
    pytest.importorskip(name, reason=f"{name} is not installed")

ENTRIES = Path(__file__).parent / "connect_entries.py"
NAMES = ["read", "sql", "export"]


@pytest.mark.slow
def test_entries_over_spark_connect(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    ran = subprocess.run(
        [sys.executable, str(ENTRIES), str(tmp_path)],
        env=os.environ | python,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-2000:]}"
    assert ran.stdout.splitlines() == [f"{name}: works" for name in NAMES]
