"""The seed of a run's random tests.

Every run draws a new one: a fixed seed would examine one sample for ever. The seed is printed with
the counts of the run and with each failure. ROCKETSTORE_SEED repeats a run.
"""

from __future__ import annotations

import os
import secrets

SEED = os.environ.get("ROCKETSTORE_SEED") or str(secrets.randbelow(1 << 32))
#: Worker processes and children of the tests take part in this run.
os.environ["ROCKETSTORE_SEED"] = SEED
