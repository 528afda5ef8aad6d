"""Goal: aputs that wait for room are put in the order of their calls, whatever threads put
meanwhile, and none waits forever. Method: put_lines runs random programs, step by step.

ROCKETSTORE_SOAK_LINES=N runs N programs, with a new seed each time; ROCKETSTORE_SEED=SEED repeats.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from put_lines import Lines
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_LINES", "0"))
PROGRAMS = SOAK or 40

pytestmark = pytest.mark.timeout(max(300, SOAK))


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_waiting_aputs_keep_their_order(tmp_path: Path, sync: bool) -> None:
    waited = 0
    for number in range(PROGRAMS):
        lines = Lines(tmp_path / str(number), f"{SEED}:{number}:{sync}", sync=sync)
        wrong = lines.run()
        waited += lines.waited
        assert not wrong, f"seed {SEED}, program {number}: {wrong}"
    assert waited > 10 * PROGRAMS
