"""The directory of the stores of these tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")


def directory() -> Path:
    """Make a new directory, in memory if possible: the speed of a disk is not tested here."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="faults-", dir=MEMORY if usable else None))
