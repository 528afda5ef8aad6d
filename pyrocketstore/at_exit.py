"""Stores that nobody closed are closed when the interpreter ends, and their owner is told."""

from __future__ import annotations

import os
import warnings

from pyrocketstore.display import printable
from pyrocketstore.errors import StoreError
from pyrocketstore.message_store import OPEN_STORES
from pyrocketstore.shield import shielded

__all__ = ["close_at_exit"]


def close_at_exit() -> None:
    """Shut down every store of this process that is open, with a ResourceWarning for each."""
    texts = []
    for store in list(OPEN_STORES):
        if store.pid == os.getpid():
            if store.is_dropped():  # it was warned of
                shielded(store.end_dropped)
                continue
            text = f"{store.root}: the store was not closed"
            try:
                store.shutdown()
            except StoreError as error:
                text += f", and that failed now: {error}"
            texts.append(text)
    # Last, since a warning may be an error.
    for text in texts:
        warnings.warn(printable(text), ResourceWarning, stacklevel=1)
