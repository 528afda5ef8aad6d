"""Changes of files that an opening plans, and makes once it has planned everything.

Until then an opening only reads: a kill leaves the directory as it was, and what the files prove
is on the device before the first of them changes. A read-only opening makes none of them: what it
would change is in memory.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PlannedChanges"]


class PlannedChanges:
    """Calls that change files, in the order in which they are to be made: each at once, except
    between `plan` and `make`. Threads: one.

    Parameters
    ----------
    read_only : bool, no change is made
    """

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._waiting: list[Callable[[], object]] | None = None

    def plan(self) -> None:
        """Have later changes wait for `make`, and forget those that wait already."""
        self._waiting = None if self._read_only else []

    @property
    def is_planning(self) -> bool:
        """Whether changes wait."""
        return self._waiting is not None

    def add(self, change: Callable[[], object]) -> None:
        """Make a change, or have it wait."""
        if self._waiting is not None:
            self._waiting.append(change)
        elif not self._read_only:
            change()

    def make(self) -> None:
        """Make the changes that wait, and later ones at once.

        Raises what a change raises: those after it are not made, and the store must not be used.
        """
        waiting, self._waiting = self._waiting or [], None
        for change in waiting:
            change()
