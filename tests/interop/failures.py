"""Failures of a long run. Each one is printed at once with the command that repeats it, its files
are kept, and the run continues until there are several."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

FAILURES_MAX = 5
COMMAND = ".venv/bin/python -m pytest -s tests/interop/"


@contextlib.contextmanager
def kept(directory: Path, *others: Path) -> Iterator[None]:
    """Make a directory and remove it afterwards; keep it after an error, with copies of `others`.

    The error names the directory where it is kept, which no later run removes.
    """
    directory.mkdir()
    try:
        yield
    except BaseException as error:
        target = Path(tempfile.mkdtemp(prefix="rocketstore-failed-"))
        for path in others:
            shutil.copy(path, directory)
        shutil.move(directory, target / "case")
        error.add_note(f"the stores are kept in {target / 'case'}")
        raise
    shutil.rmtree(directory)


class Failures:
    """Collects the failures of many cases."""

    def __init__(self, most: int = FAILURES_MAX) -> None:
        self.most = most
        self.found: list[Exception] = []

    @contextlib.contextmanager
    def one(self, name: str, again: str) -> Iterator[None]:
        """Run one case, whose text is printed first; `again` is the command that repeats it."""
        print(name, flush=True)
        try:
            yield
        except BaseException as error:
            error.add_note(f"{name}; again: {again}")
            if not isinstance(error, Exception):
                raise  # Ctrl-C, or the time limit
            self.found.append(error)
            print("".join(traceback.format_exception(error)), flush=True)
        if len(self.found) >= self.most:
            self.end()

    def end(self) -> None:
        """Raise the collected failures."""
        if self.found:
            raise ExceptionGroup("what failed", self.found)
