"""Calls of a program for dispatched messages: its dispatchers, and the arriving listener."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.dispatch.observers import (
    Arriving,
    BitMap,
    Dispatch,
    MessageArrivingListener,
    Observers,
    arriving_of,
)
from pyrocketstore.dispatch.replay import replay_observed
from pyrocketstore.errors import StoreStateError
from pyrocketstore.recovery.recovery_plan import RecoveryPlan

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.dispatch.reput import ReputMessageService

__all__ = ["ProgramDispatch"]


class ProgramDispatch:
    """The calls of a program for each message, and the end up to which messages are dispatched.

    Parameters
    ----------
    config : MessageStoreConfig
    listener : as `message_arriving_listener` of DefaultMessageStore

    Attributes: `dispatchers`, a list to which a program appends.
    """

    def __init__(
        self, config: MessageStoreConfig, listener: Arriving | MessageArrivingListener | None
    ) -> None:
        self._config, self._arriving = config, arriving_of(listener)
        self.dispatchers: list[Dispatch] = []
        self.confirm_offset: int | None = None
        self._service: ReputMessageService | None = None
        #: the thread that calls dispatchers during recovery
        self._replayed_by: int | None = None

    def observers(self, bit_map: BitMap | None) -> Observers | None:
        """Return what the dispatcher calls for each record; None: nothing."""
        is_slave = self._config.broker_role is BrokerRole.SLAVE
        arriving = None if is_slave else self._arriving
        if arriving is None and not self.dispatchers:
            return None
        light = self._config.enable_lmq
        return Observers(self.dispatchers, arriving, light_queues=light, bit_map=bit_map)

    def replay(self, log: CommitLog, plan: RecoveryPlan, bit_map: BitMap | None) -> None:
        """Call the dispatchers for the records that recovery has read. Raises StoreIOError."""
        if not self.dispatchers:
            return
        observers = Observers(self.dispatchers, None, light_queues=False, bit_map=bit_map)
        self._replayed_by = threading.get_ident()
        try:
            replay_observed(log, plan.scan_from, plan.log_end, observers)
        finally:
            self._replayed_by = None

    def confirm(self, phy_offset: int) -> None:
        """With `duplication_enable`, let only records before `phy_offset` be dispatched."""
        self.confirm_offset = phy_offset
        self._bound()

    def follow(self, service: ReputMessageService) -> None:
        """Use the service of a store that starts."""
        self._service = service
        self._bound()

    def _bound(self) -> None:
        service, phy_offset = self._service, self.confirm_offset
        if self._config.duplication_enable and service is not None and phy_offset is not None:
            service.confirm(phy_offset)

    def refuse_call(self) -> None:
        """Raise StoreStateError in the thread that dispatches: the call would wait for itself."""
        replays = self._replayed_by == threading.get_ident()
        if replays or (self._service is not None and self._service.is_current):
            raise StoreStateError(
                f"{self._config.store_path_root_dir}: a dispatcher or arriving listener cannot"
                " close the store or remove queues: let another thread do it"
            )
