"""Goal: whatever the Spark package offers works over Spark Connect as with a session of this
process: reads, streams, writes, functions, exports and jobs.
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
#: Those of one session.
NAMES = {
    "batches": ["read", "refusals", "sql", "export", "command"],
    "writes": ["write", "stream_read", "stream_write"],
    "jobs": ["functions", "reports", "verify", "rebuild"],
}


@pytest.mark.slow
@pytest.mark.timeout(600)  # a server beside other tests
@pytest.mark.parametrize("part", NAMES)
def test_entries_over_spark_connect(tmp_path: Path, part: str) -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    # With SPARK_TESTING, the server has a free port, and other servers may run.
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), "SPARK_TESTING": "1"}
    ran = subprocess.run(
        [sys.executable, str(ENTRIES), str(tmp_path), *NAMES[part]],
        env=os.environ | python | settings,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-2000:]}"
    assert ran.stdout.splitlines() == [f"{name}: works" for name in NAMES[part]]


def test_no_entry_is_left_out() -> None:
    from connect_entries import Entries

    calls = {name for name in vars(Entries) if not name.startswith("_")}
    assert sorted(calls) == sorted(name for names in NAMES.values() for name in names)
