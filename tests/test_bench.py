"""Goal: the benchmarks do not rot.
Method: run them at smoke sizes; run.py fails where our answers and the real store's differ. Nothing
here looks at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore
from java_store import require_java

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "BENCH_FULL"},
    "PYTHONPATH": str(Path(pyrocketstore.__file__).parent.parent),
}
TIMEOUT_S = 120


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_micro_benchmarks_run():
    out = run("-m", "pytest", "bench", "-p", "no:cacheprovider", "--benchmark-disable")
    assert re.search(r"\d+ passed", out), out


@pytest.mark.java
def test_side_by_side_runs_and_the_answers_agree(tmp_path):
    require_java()
    names = "cq,index_select,query"
    out = run("bench/run.py", "--smoke", "--only", names, "--directory", str(tmp_path))
    assert "SMOKE SIZES" in out
    assert out.count("| 4.9.3 |") == len(names.split(","))
    assert not list(tmp_path.iterdir())


def test_unknown_work_is_refused():
    with pytest.raises(AssertionError, match="no such work: nothing"):
        run("bench/run.py", "--only", "nothing")
