"""Goal: whatever a power cut leaves of a store, at whatever moment, every message that was promised
is there afterwards, whole, once, in order, in its queue and under its key; nothing is there that
was never put; the store goes on; and a second cut, while it recovers, changes nothing of that.
Method: random programs on a simulated device (device.py); of many moments of each, random images
of what may survive (survivors.py), each opened and held against a journal (judge.py).

ROCKETSTORE_SOAK_IMAGES=N examines N images, ROCKETSTORE_SEED picks other programs, and
ROCKETSTORE_FAULT=NAME examines the one image that a failure names (threads may make it another:
the failing one is kept as a directory, which the failure names too).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from campaign import NAME_OF_KILL, ONLY, SEED, Campaign, places
from survivors import NAME_CLASSES, PAGE_CLASSES

IMAGES = int(os.environ.get("ROCKETSTORE_SOAK_IMAGES", "1200"))
#: So many images meet every class of them.
ENOUGH = 500


@pytest.mark.slow
@pytest.mark.timeout(120 + IMAGES)
def test_every_promise_survives_a_power_cut(tmp_path: Path) -> None:
    with places(tmp_path) as path:
        campaign = Campaign(path)
        if ONLY:
            campaign.program(ONLY.split(".")[0])
            assert campaign.images
            return
        number = 0
        while campaign.images < IMAGES:
            campaign.program(f"{SEED}-{number}")
            number += 1
    print(f"seed {SEED}\n{campaign}")
    if IMAGES < ENOUGH:
        return
    met = [f"pages {name}" for name in PAGE_CLASSES] + [f"names {name}" for name in NAME_CLASSES]
    for what in (*met, "second crash", NAME_OF_KILL, "SYNC_FLUSH", "ASYNC_FLUSH"):
        assert campaign.counts[what], what
