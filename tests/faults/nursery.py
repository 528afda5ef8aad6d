"""The tests' side of the process that forks children to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyrocketstore

HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return a child's environment: the build under test, and the modules of the tests."""
    paths = [str(Path(pyrocketstore.__file__).parent.parent), str(HERE), str(HERE.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


class Nursery:
    """The process that forks children."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "kill_child.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(),
            )

    def run_and_kill(self, seconds: float, **job: Any) -> int:
        """Run a job in a child, kill it after some time, and return its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        ended = threading.Event()

        def kill() -> None:
            if not ended.wait(seconds):
                os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        status = int(self.process.stdout.readline())
        ended.set()
        killer.join()
        return status

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
