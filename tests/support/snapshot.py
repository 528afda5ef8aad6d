"""A directory before and after: whether anything in it was changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def snapshot(root: Path) -> list[tuple[str, int, int, str]]:
    """Return every path below `root` with its mode, its time in ns, and a digest of its bytes."""
    found = []
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found.append((str(path.relative_to(root)), status.st_mode, status.st_mtime_ns, content))
    return found
