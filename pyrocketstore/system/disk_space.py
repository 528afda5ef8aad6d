"""The used ratio of the file systems under a store, computed as in 4.9.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreIOError

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

#: Above this used ratio every put is refused (`rocketmq.broker.diskSpaceWarningLevelRatio`).
WARNING_LEVEL_RATIO = 0.90
#: Above this used ratio files are deleted before they expire, and with several commit log paths no
#: new file is made on the file system (`rocketmq.broker.diskSpaceCleanForciblyRatio`).
CLEAN_FORCIBLY_RATIO = 0.85
#: The result of `used_ratio` where the ratio is unknown.
NO_RATIO = -1.0


def used_ratio(env: Env, path: str) -> float:
    """Return the used ratio (0..1) of the file system of `path`, rounded up to whole percents.

    The ratio is -1.0 for a path that is missing or whose file system cannot be queried. Space that
    is reserved for root counts as neither used nor free.

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
