"""The open stores of this process: what a fork, the exit and a dropped object do with them."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from typing import Any, Protocol

from pyrocketstore.display import printable
from pyrocketstore.errors import StoreError
from pyrocketstore.system.signal_shield import Shield, shielded

__all__ = ["OPEN_STORES", "Closer", "OpenStore", "close_at_exit"]


class OpenStore(Protocol):
    """The end of an open store, without the object of the caller."""

    root: str
    pid: int

    def is_dropped(self) -> bool:
        """Return True once the last reference of a caller is gone."""

    def end_dropped(self) -> None:
        """Close a dropped store, or wait until another thread has closed it."""

    def shutdown(self) -> None:
        """Close the store. Raises StoreError."""

    def after_fork(self) -> None:
        """In a forked child: disable this copy, which must touch nothing."""


#: They do not keep the object of a caller alive.
OPEN_STORES: set[OpenStore] = set()


class Closer:
    """Called when the object of a caller is gone: has a new thread close the store, and warns.

    Threads: any, at any point, with any lock held: takes no lock, and waits for nothing. At the end
    of the interpreter, too, when the names of this module may be gone: no store is open.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store

    def __call__(self, gone: weakref.ref[Any], known: set[OpenStore] = OPEN_STORES) -> None:
        store = self._store
        if store not in known or store.pid != os.getpid():
            return
        # If no thread can be started, or a signal handler raises first, the next opening closes the
        # store, or the exit of the process.
        with contextlib.suppress(RuntimeError, MemoryError):
            Shield(store.end_dropped).start()
        # Last, since a warning may be an error.
        text = printable(f"{store.root}: the store was not closed before its last reference went")
        warnings.warn(text, ResourceWarning, stacklevel=2)


def close_at_exit() -> None:
    """Shut down every store of this process that is open, with a ResourceWarning for each."""
    texts = []
    for store in list(OPEN_STORES):
        if store.pid == os.getpid():
            if store.is_dropped():  # the warning was given
                shielded(store.end_dropped)
                continue
            text = f"{store.root}: the store was not closed"
            try:
                store.shutdown()
            except StoreError as error:
                text += f", and closing it has failed: {error}"
            texts.append(text)
    # Last, since a warning may be an error.
    for text in texts:
        warnings.warn(printable(text), ResourceWarning, stacklevel=1)


def _kill_copies_after_fork() -> None:
    for store in list(OPEN_STORES):
        store.after_fork()


os.register_at_fork(after_in_child=_kill_copies_after_fork)
