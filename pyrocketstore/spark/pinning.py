"""Opening stores for planning, beside whoever writes them; those that lack something are told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.spark.losses import find_losses, is_stale
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.snapshot import DataLossError, StoreSnapshot

LOG = logger(__name__)

#: A file that was listed and is gone, and a loss that was seen, is looked at again so often, each
#: time after a longer wait: a store that is opened after a kill takes files away and makes them
#: anew, and one that is stopped and started between two looks may seem to contradict itself.
TRIES = 8
LOSS_TRIES = 4
FIRST_WAIT_S = 0.05

_Planned = TypeVar("_Planned")


def retried(make: Callable[[], _Planned], env: Env | None = None) -> _Planned:
    """What `make` gives, called again where a file was gone before it could be read.

    It must begin from the beginning, with a listing. Raises StoreIOError where that goes on.
    """
    env = Env() if env is None else env
    for number in range(TRIES - 1):
        try:
            return make()
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            LOG.info("rocketmq-store plans again: %s", error)
        env.sleep(FIRST_WAIT_S * 2**number)
    return make()


def open_snapshot(place: StorePlace, options: SourceOptions) -> StoreSnapshot:
    """A store for planning, which the caller closes.

    Under failOnDataLoss=false what it lacks is a warning.

    Raises DataLossError where files of it are surely lost; what StoreSnapshot raises.
    """
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
        raise DataLossError(f"{text}; failOnDataLoss=false reads what is left")
    LOG.warning("rocketmq-store: %s; what is left is read", text)
    return snapshot
