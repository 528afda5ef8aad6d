"""A long run that fails: each failure is told at once with what repeats it, its files are kept, and
the run goes on until there are a few."""

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
    """A directory that is gone afterwards, or moved with copies of the other files to a place that
    the error names. No later run clears that place."""
    directory.mkdir()
    try:
        yield
    except BaseException as error:
        place = Path(tempfile.mkdtemp(prefix="rocketstore-failed-"))
        for path in others:
            shutil.copy(path, directory)
        shutil.move(directory, place / "case")
        error.add_note(f"the stores are kept in {place / 'case'}")
        raise
    shutil.rmtree(directory)


class Failures:
    """Collects what fails of many."""

    def __init__(self, most: int = FAILURES_MAX) -> None:
        self.most = most
        self.found: list[Exception] = []

    @contextlib.contextmanager
    def one(self, name: str, again: str) -> Iterator[None]:
        """One of the many, told before it begins; `again` is the command that repeats it."""
        print(name, flush=True)
        try:
            yield
        except BaseException as error:
            error.add_note(f"{name}; again: {again}")
            if not isinstance(error, Exception):
                raise  # Ctrl-C, or the time is over
            self.found.append(error)
            print("".join(traceback.format_exception(error)), flush=True)
        if len(self.found) >= self.most:
            self.end()

    def end(self) -> None:
        """Fails where something did."""
        if self.found:
            raise ExceptionGroup("what failed", self.found)
