"""The life of a store: what it has opened and started, and what may follow."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from pyrocketstore.errors import StoreStateError

__all__ = ["TRANSITIONS", "Life", "LifeState", "set_by_load", "set_by_start"]


class Life(enum.Enum):
    """The states of a store."""

    NEW = "not loaded"
    #: its files are open: it can be read
    LOADED = "loaded"
    #: its services start: no put is possible yet
    STARTING = "starting"
    STARTED = "started"
    #: its services have ended: it can be read
    STOPPED = "stopped"
    #: its files are being closed
    CLOSING = "closing"
    #: everything is released
    ENDED = "closed"
    #: a copy in a forked child, which must touch nothing
    FORKED = "dead: the process was forked"


#: The states that may follow on each state; FORKED may follow on any. A load after an end
#: goes back to NEW.
TRANSITIONS: Mapping[Life, frozenset[Life]] = MappingProxyType(
    {
        Life.NEW: frozenset({Life.LOADED, Life.CLOSING}),
        Life.LOADED: frozenset({Life.STARTING, Life.CLOSING}),
        Life.STARTING: frozenset({Life.STARTED, Life.STOPPED}),
        Life.STARTED: frozenset({Life.STOPPED}),
        Life.STOPPED: frozenset({Life.CLOSING}),
        Life.CLOSING: frozenset({Life.ENDED}),
        Life.ENDED: frozenset({Life.NEW}),
        Life.FORKED: frozenset(),
    }
)
_LOADED = frozenset({Life.LOADED, Life.STARTING, Life.STARTED, Life.STOPPED})
_STARTED = frozenset({Life.STARTING, Life.STARTED})


class LifeState:
    """The state of one store.

    Threads: any reads; `end_puts` from any; `move` by one at a time.
    """

    def __init__(self) -> None:
        self.now = Life.NEW
        self._ends = False

    def move(self, life: Life) -> None:
        """Enter a state. Raises StoreStateError if it does not follow on the present one."""
        if life is not Life.FORKED and life not in TRANSITIONS[self.now]:
            raise StoreStateError(f"a store that is {self.now.value} cannot become {life.value}")
        if life is Life.NEW:
            self._ends = False
        self.now = life

    def end_puts(self) -> None:
        """Refuse puts from now on: a shutdown has begun, and may wait for other threads."""
        self._ends = True

    @property
    def is_loaded(self) -> bool:
        """Whether the files are open."""
        return self.now in _LOADED

    @property
    def is_started(self) -> bool:
        """Whether the services run."""
        return self.now in _STARTED

    @property
    def takes_puts(self) -> bool:
        """Whether puts are possible, as far as the life of the store decides it."""
        return self.now is Life.STARTED and not self._ends

    @property
    def has_ended(self) -> bool:
        """Whether everything is released."""
        return self.now is Life.ENDED


class _HasRoot(Protocol):
    root: str


class _NotSetYet:
    """Raises StoreStateError in place of an attribute that an object does not have yet.

    The attribute of the object replaces this one, which therefore costs a set one nothing.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __get__(self, store: _HasRoot | None, owner: type) -> _NotSetYet:
        if store is None:
            return self
        raise StoreStateError(f"{store.root}: {self.reason}")


def set_by_load() -> Any:
    """Return the value in the class of an attribute that `load` sets."""
    return _NotSetYet("the store is not loaded: call load() first")


def set_by_start() -> Any:
    """Return the value in the class of an attribute that `start` sets."""
    return _NotSetYet("the store is not started: call start() first")
