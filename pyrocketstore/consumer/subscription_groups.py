"""ROOT/config/subscriptionGroup.json: a broker serves only groups that are listed in it, or that
it may create by itself."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import StoreError, StoreStateError, without_frames
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import (
    ConfigFile,
    java_number,
    table_of,
    with_counter,
)
from pyrocketstore.record.message import LMQ_PREFIX

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

RETRY_MAX_TIMES = 16
_TIMES = "retryMaxTimes"
_TABLE, _VERSION = "subscriptionGroupTable", "dataVersion"
#: Bins of the broker's table of groups, a ConcurrentHashMap made for 1024.
_BINS = 2048
_REMEDY = "delete it and its backup: a broker then creates groups with default settings"


class SubscriptionGroups:
    """The consumer groups of a store in the form of 4.9.3's SubscriptionGroupManager.

    Parameters
    ----------
    env : Env
    root : the store's root directory
    lmq : bool, list no group that begins with %LMQ%, as a broker with enableLmq does: such a group
        always has the default settings

    Groups are added, never changed, and unknown fields are kept. A group whose entry is damaged
    has the default settings, and its entry stays: see ConfigFile.

    Threads: any; `groups` and `retry_max_times` take no lock, so that a signal handler that raises
    leaves none held. The other calls are for `shielded` calls.
    Source: RocketMQ 4.9.3 SubscriptionGroupManager, LmqSubscriptionGroupManager.
    Differs: see ConfigFile.
    """

    def __init__(self, env: Env, root: str, *, lmq: bool = False) -> None:
        self.lmq = lmq
        self.path = os.path.join(root, "config", "subscriptionGroup.json")
        self.error: StoreError | None = None
        self._env = env
        self._file = ConfigFile(env, self.path, _valid_part, _REMEDY)
        self._lock = threading.Lock()  # over the content and the writes of the file
        self._content: dict[str, Any] = {}  # replaced, never changed
        self._changed = self._closed = False

    def load(self) -> None:
        """Read the file or its backup. Raises StoreCorruptionError, StoreIOError.

        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
        with self._lock:
            self._content = self._file.read()
            self._changed = self._closed = False
            self.error = None

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name."""
        self._file.note_unclean_stop()

    def ensure(self, group: str) -> None:
        """Add a group with default settings unless it is known; the next `persist` writes it.

        Source: RocketMQ 4.9.3 SubscriptionGroupManager#findSubscriptionGroupConfig.
        """
        if self.lmq and group.startswith(LMQ_PREFIX):
            return
        with self._lock:
            if self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            table = self._content.get(_TABLE, {})
            if group not in table and not self._file.is_damaged(_TABLE, group):
                new = {group: _new_entry(group)}
                self._content = {
                    **self._content,
                    _VERSION: self._next_version(),
                    _TABLE: fastjson.map_order(table, new, _BINS),
                }
                self._changed = True

    def _next_version(self) -> dict[str, Any]:
        version = dict(self._content.get(_VERSION, {"counter": 0, "timestamp": 0}))
        version["counter"] = version.get("counter", 0) + 1
        version["timestamp"] = self._env.now_ms()
        return version

    def groups(self) -> list[str]:
        """Return the names of the groups, sorted."""
        return sorted(self._content.get(_TABLE, {}))

    def retry_max_times(self, group: str) -> int:
        """Return after how many attempts a message of a group is a dead letter."""
        times: int = self._content.get(_TABLE, {}).get(group, {}).get(_TIMES, RETRY_MAX_TIMES)
        return times

    def persist(self) -> None:
        """Write the file if a group was added.

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError,
        and the next call tries again; StoreStateError after `close`.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._lock:
            if self._changed and self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            try:
                if self._changed:
                    self._file.write(self._content)
                    self._changed = False
                else:
                    self._file.flush_name()
            except StoreError as error:
                self.error = without_frames(error)
                raise
            self.error = None

    def close(self) -> None:
        """Write nothing from now on, after the end of a write in another thread."""
        with self._lock:
            self._closed = True


def _new_entry(group: str) -> dict[str, Any]:
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": group,
        "notifyConsumerIdsChangedEnable": True,
        _TIMES: RETRY_MAX_TIMES,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content without entries whose used fields have other types. Raises ContentError."""
    found = {}
    for group, entry in table_of(content, _TABLE).items():
        if group and isinstance(entry, dict):
            value = entry.get(_TIMES)
            times = RETRY_MAX_TIMES if value is None else java_number(value, 32)
            if times is not None:
                found[group] = {**entry, _TIMES: times} if _TIMES in entry else entry
    return with_counter({**content, _TABLE: found} if _TABLE in content else content, _VERSION)
