"""Load a store whose owner, another process, may make its first files meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.growth import RECENT_MS
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
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
            if not _may_pass(env, settings, config, error) or not attempts.another():
                raise
            continue
        plan = plan_of(store)
        fits = plan is None or not plan.mismatched
        if fits or not _may_pass(env, settings, config) or not attempts.another():
            return store
        close(store)


def _may_pass(
    env: Env,
    settings: Callable[[], MessageStoreConfig],
    before: MessageStoreConfig | None,
    error: StoreCorruptionError | StoreIOError | None = None,
) -> bool:
    """Return whether files were made or removed while they were looked at and loaded."""
    if isinstance(error, StoreIOError):
        return was_removed(error)
    if before is None:
        return False
    try:
        folder = os.path.join(before.store_path_root_dir, "consumequeue")
        is_recent = env.exists(folder) and env.mtime_ms(folder) > env.now_ms() - RECENT_MS
        return is_recent or settings() != before
    except StoreIOError as failed:
        return was_removed(failed)
    except StoreCorruptionError:
        return True
