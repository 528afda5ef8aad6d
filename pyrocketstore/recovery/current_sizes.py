"""Load a store whose owner, another process, may make its first files meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.recovery.plan import RecoveryPlan

T = TypeVar("T")


def load_with_sizes(
    settings: Callable[[], MessageStoreConfig],
    load: Callable[[MessageStoreConfig], T],
    plan_of: Callable[[T], RecoveryPlan | None],
    close: Callable[[T], object],
) -> T:
    """Load a store; load it again while files do not fit and their sizes change the settings.

    Parameters
    ----------
    settings : callable(), reads the sizes of the files that are there now
    load : callable(settings), returns the loaded store
    plan_of : callable(store), returns the plan of its recovery
    close : callable(store), called before the store is loaded again
    """
    while True:
        config = settings()
        try:
            store = load(config)
        except StoreCorruptionError:
            if settings() == config:
                raise
            continue
        plan = plan_of(store)
        if plan is None or not plan.mismatched or settings() == config:
            return store
        close(store)
