"""Goal: whatever a power cut leaves of a store, at whatever moment, every promised message exists
afterwards: whole, once, in order, in its queue and under its key. The store contains no message
that was never put, and it works. A second cut during its recovery changes none of this.
Method: random programs on a simulated device (device.py). Of many moments of each, random images of
the surviving bytes (survivors.py) are opened and compared with a journal (judge.py).

ROCKETSTORE_SOAK_IMAGES=N examines N images, ROCKETSTORE_SEED selects other programs, and
ROCKETSTORE_FAULT=NAME examines the one image that a failure names. Threads may change that image,
so the failing one is kept as a directory, which the failure names too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from campaign import NAME_OF_KILL, ONLY, Campaign, memory_directory
from support.seed import SEED
from survivors import NAME_CLASSES, PAGE_CLASSES

IMAGES = int(os.environ.get("ROCKETSTORE_SOAK_IMAGES", "1200"))
#: This number of images covers every class.
ENOUGH = 500


@pytest.mark.slow
@pytest.mark.timeout(120 + IMAGES)
def test_every_promise_survives_a_power_cut(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as path:
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
