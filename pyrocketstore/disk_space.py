"""How full the file systems under a store are, counted as 4.9.3 counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreIOError

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = [
    "CLEAN_FORCIBLY_RATIO",
    "NO_RATIO",
    "WARNING_LEVEL_RATIO",
    "used_ratio",
]

#: Above this part in use no put is taken (`rocketmq.broker.diskSpaceWarningLevelRatio`).
WARNING_LEVEL_RATIO = 0.90
#: Above this, files go before their time, and no new one of several paths comes to lie there
#: (`rocketmq.broker.diskSpaceCleanForciblyRatio`).
CLEAN_FORCIBLY_RATIO = 0.85
#: What `used_ratio` gives where nothing is known.
NO_RATIO = -1.0


def used_ratio(env: Env, path: str) -> float:
    """The part in use of the file system that holds `path`: whole percents, rounded up, as 0..1.

    -1.0 for a path that is missing or cannot be asked. What only root may use counts as neither
    used nor free.

    Source: RocketMQ 4.9.3 UtilAll#getDiskPartitionSpaceUsedPercent.
    """
    if not path or not env.exists(path):
        return NO_RATIO
    try:
        total, used, usable = env.disk_usage(path)
    except StoreIOError:
        return NO_RATIO
    whole = used + usable
    if total <= 0 or whole <= 0:
        return NO_RATIO
    return -(-used * 100 // whole) / 100
