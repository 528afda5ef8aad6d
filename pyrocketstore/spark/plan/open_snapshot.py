"""Open stores for planning while a broker may write to them, and report incomplete stores."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection
from typing import TypeVar

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.plan.losses import find_losses, is_stale
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.task_types import DataLossError
from pyrocketstore.system.env import Env

LOG = logger(__name__)

#: Attempts after a listed file was gone, and after a loss was found, each after a longer wait. An
#: opening after a kill removes files and creates them again, and a store that restarts between two
#: listings may seem to contradict itself.
TRIES = 8
LOSS_TRIES = 4
FIRST_WAIT_S = 0.05

_Planned = TypeVar("_Planned")


def retried(make: Callable[[], _Planned], env: Env | None = None) -> _Planned:
    """Return the result of `make`, and call it again where a file was gone before it was read.

    `make` must begin with a listing. Raises StoreIOError where a file is gone in each attempt.
    """
    env = Env() if env is None else env
    for number in range(TRIES - 1):
        try:
            return make()
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            LOG.info("rocketmq-store: planning starts again: %s", error)
        env.sleep(FIRST_WAIT_S * 2**number)
    return make()


def open_snapshot(
    place: StorePlace, options: SourceOptions, topics: Collection[str] | None = None
) -> StoreSnapshot:
    """Open a store for planning, for some topics or all; the caller closes it.

    Under failOnDataLoss=false, missing files are a warning.

    Raises DataLossError where files are known to be lost; the exceptions of StoreSnapshot.
    """
    found = None if topics is None else _intact_snapshot(place, options, topics)
    return _whole_snapshot(place, options) if found is None else found


def _intact_snapshot(
    place: StorePlace, options: SourceOptions, topics: Collection[str]
) -> StoreSnapshot | None:
    """Open a store for some topics; None where it is damaged, or may have lost something: then the
    units of all queues decide what is lost."""
    with contextlib.ExitStack() as unless_returned:
        try:
            snapshot = StoreSnapshot(place, options.broker_conf, options.on_corrupt, topics)
        except StoreCorruptionError:
            return None
        unless_returned.callback(snapshot.close)
        if snapshot.is_damaged or is_stale(snapshot) or find_losses(snapshot, options):
            return None
        unless_returned.pop_all()
        return snapshot


def _whole_snapshot(place: StorePlace, options: SourceOptions) -> StoreSnapshot:
    for number in range(LOSS_TRIES):
        snapshot = StoreSnapshot(place, options.broker_conf, options.on_corrupt)
        try:
            is_last = number + 1 == LOSS_TRIES
            again = not is_last and is_stale(snapshot)
            losses = [] if again else find_losses(snapshot, options)
        except BaseException:
            snapshot.close()
            raise
        if not losses and not again:
            return snapshot
        if not is_last:
            snapshot.close()
            snapshot.store.env.sleep(FIRST_WAIT_S * 2**number)
    text = f"{place.broker_name}: the store is not complete: {'; '.join(losses)}"
    if options.fail_on_data_loss:
        snapshot.close()
        raise DataLossError(f"{text}; failOnDataLoss=false reads the rest")
    LOG.warning("rocketmq-store: %s; the rest is read", text)
    return snapshot
