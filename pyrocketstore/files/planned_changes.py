"""Changes of files that an opening for writing plans, and makes once it has planned everything.

Until then the opening only reads: a kill leaves the directory as it was, and what the files prove
is on the device before the first of them changes.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PlannedChanges"]


class PlannedChanges:
    """Calls that change files, in the order in which they are to be made: each at once, except
    between `plan` and `make`. Threads: one.
    """

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] | None = None

    def plan(self) -> None:
        """Have later changes wait for `make`, and forget those that wait already."""
        self._waiting = []

    @property
    def is_planning(self) -> bool:
        """Whether changes wait."""
        return self._waiting is not None

    def add(self, change: Callable[[], object]) -> None:
        """Make a change, or have it wait."""
        if self._waiting is None:
            change()
        else:
            self._waiting.append(change)

    def make(self) -> None:
        """Make the changes that wait, and later ones at once.

        Raises what a change raises: those after it are not made, and the store must not be used.
        """
        waiting, self._waiting = self._waiting or [], None
        for change in waiting:
            change()
