"""Load a store whose owner, another process, may make its first files meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.recovery.plan import RecoveryPlan
from pyrocketstore.system.env import Env
from pyrocketstore.system.live_stores import Attempts, was_removed

T = TypeVar("T")


def load_with_sizes(
    env: Env,
    settings: Callable[[], MessageStoreConfig],
    load: Callable[[MessageStoreConfig], T],
    plan_of: Callable[[T], RecoveryPlan | None],
    close: Callable[[T], object],
) -> T:
    """Load a store; load it again while files do not fit, or are gone, and their sizes change the
    settings.

    Parameters
    ----------
    settings : callable(), reads the sizes of the files that are there now
    load : callable(settings), returns the loaded store
    plan_of : callable(store), returns the plan of its recovery
    close : callable(store), called before the store is loaded again
    """
    attempts = Attempts(env)
    while True:
        config = None
        try:
            config = settings()
            store = load(config)
        except (StoreCorruptionError, StoreIOError) as error:
            # A queue that is being removed counts for no size, but may have been loaded.
            is_gone = was_removed(error) or not env.exists(os.path.dirname(error.path))
            may_pass = is_gone or _are_others(settings, config)
            if not may_pass or not attempts.another():
                raise
            continue
        plan = plan_of(store)
        if plan is None or not plan.mismatched or not _are_others(settings, config):
            return store
        if not attempts.another():
            return store
        close(store)


def _are_others(
    settings: Callable[[], MessageStoreConfig], before: MessageStoreConfig | None
) -> bool:
    """Return whether the files have other sizes now, or are being made or deleted."""
    try:
        return before is not None and settings() != before
    except (StoreCorruptionError, StoreIOError):
        return True
