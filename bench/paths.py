"""Where the checkout is, and how its modules are run in child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
#: PYTHONPATH of child processes: a build of pyrocketstore on that of this process comes first.
PYTHON_PATH = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))


def module_command(module: str) -> list[str]:
    """Return the command that runs a module; -P, so that the working directory comes last."""
    return [sys.executable, "-P", "-m", module]
