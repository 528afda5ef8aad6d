"""Where the stores of these tests lie."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")


def directory() -> Path:
    """A new directory, in memory if there is some: how fast a disk forces is not tested here."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="faults-", dir=MEMORY if usable else None))
