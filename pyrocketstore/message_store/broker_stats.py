"""BrokerStatsManager: messages and bytes of puts and gets, by topic, queue and group."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyrocketstore.arguments.scalars import exact_flag, exact_int64, exact_text
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    MessageExtBrokerInner,
    parse_java_int,
)

__all__ = ["BrokerStatsManager", "StatsItem", "StatsSnapshot"]

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS, QUEUE_PUT_SIZE = "QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS, QUEUE_GET_SIZE = "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
#: The names by the parts of their keys: topic, topic@queue, topic@group, topic@queue@group.
_BY_TOPIC = (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)
_BY_QUEUE = (QUEUE_PUT_NUMS, QUEUE_PUT_SIZE)
_BY_GROUP = (GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS)
_BY_QUEUE_AND_GROUP = (QUEUE_GET_NUMS, QUEUE_GET_SIZE)
NAMES = (*_BY_TOPIC, *_BY_QUEUE, *_BY_GROUP, *_BY_QUEUE_AND_GROUP, BROKER_PUT_NUMS, BROKER_GET_NUMS)

#: Of minute, hour and day: the interval of the samples (ms), and how many are kept.
_WINDOWS = ((10_000, 7), (600_000, 7), (3_600_000, 25))

#: Put totals of one queue: (topic, queue id, messages, bytes).
QueuePuts = tuple[str, int, int, int]


class StatsSnapshot(NamedTuple):
    """The growth of an item over a window; 0 before its first sample.

    `tps` is per second, `avgpt` the value of one call.
    Source: RocketMQ 4.9.3 StatsSnapshot.
    """

    sum: int = 0
    tps: float = 0.0
    times: int = 0
    avgpt: float = 0.0


class StatsItem:
    """A value, the number of its additions, and samples of both.

    Source: RocketMQ 4.9.3 StatsItem.
    """

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key
        self.value = self.times = 0
        self._samples = tuple(
            collections.deque[tuple[int, int, int]](maxlen=most) for _, most in _WINDOWS
        )

    def sample(self, window: int, now_ms: int) -> None:
        """Take a sample for window 0 (minute), 1 (hour) or 2 (day)."""
        samples = self._samples[window]
        if not samples:
            samples.append((now_ms - _WINDOWS[window][0], 0, 0))
        samples.append((now_ms, self.times, self.value))

    def get_stats_data_in_minute(self) -> StatsSnapshot:
        """Return the growth over the last 60 s."""
        return self._growth(0)

    def get_stats_data_in_hour(self) -> StatsSnapshot:
        """Return the growth over the last hour."""
        return self._growth(1)

    def get_stats_data_in_day(self) -> StatsSnapshot:
        """Return the growth over the last day."""
        return self._growth(2)

    def _growth(self, window: int) -> StatsSnapshot:
        samples = list(self._samples[window])
        if not samples:
            return StatsSnapshot()
        (began, times, value), last = samples[0], samples[-1]
        grown, calls, elapsed_ms = last[2] - value, last[1] - times, last[0] - began
        tps = grown * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0
        return StatsSnapshot(grown, tps, calls, grown / calls if calls > 0 else 0.0)


class BrokerStatsManager:
    """The figures of 4.9.3's broker for one store, by 4.9.3's names and keys.

    Parameters
    ----------
    cluster_name : str, the key of BROKER_PUT_NUMS and BROKER_GET_NUMS
    enable_queue_stat : bool, count by queue too

    Give it to DefaultMessageStore, which counts its puts, the messages of `get_message`, and with
    `enable_schedule_message_stats` the deliveries of delayed messages for the group
    SCHEDULE_CONSUMER. The store calls `tick`.

    Every method raises StoreTypeError or StoreFormatError for a wrong argument.

    Threads: any. Source: RocketMQ 4.9.3 BrokerStatsManager.
    Differs: the store counts, where 4.9.3's broker does; `times` of puts counts messages, not
    calls; figures of latency, disk and billing are missing.
    """

    def __init__(self, cluster_name: str = "DefaultCluster", enable_queue_stat: bool = True):
        self.cluster_name = exact_text("cluster_name", cluster_name)
        self.enable_queue_stat = exact_flag("enable_queue_stat", enable_queue_stat)
        # Nothing is called under the lock: a signal handler there may wait for a counting thread.
        self._lock = threading.RLock()
        self._updating = threading.Lock()
        self._items: dict[str, dict[str, StatsItem]] = {name: {} for name in NAMES}
        self._put_totals: Callable[[], Iterable[QueuePuts]] = lambda: ()
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._next_ms: list[int | None] = [None] * len(_WINDOWS)

    # ---- counting -----------------------------------------------------------------------------

    def inc_topic_put_nums(self, topic: str, num: int = 1, times: int = 1) -> None:
        """Count messages that were put to a topic."""
        self._add(TOPIC_PUT_NUMS, topic, num, times)

    def inc_topic_put_size(self, topic: str, size: int) -> None:
        """Count bytes that were put to a topic."""
        self._add(TOPIC_PUT_SIZE, topic, size)

    def inc_queue_put_nums(self, topic: str, queue_id: int, num: int = 1, times: int = 1) -> None:
        """Count messages that were put to a queue."""
        if self.enable_queue_stat:
            self._add(QUEUE_PUT_NUMS, f"{topic}@{queue_id}", num, times)

    def inc_queue_put_size(self, topic: str, queue_id: int, size: int) -> None:
        """Count bytes that were put to a queue."""
        if self.enable_queue_stat:
            self._add(QUEUE_PUT_SIZE, f"{topic}@{queue_id}", size)

    def inc_queue_get_nums(self, group: str, topic: str, queue_id: int, num: int) -> None:
        """Count messages that a group got from a queue."""
        if self.enable_queue_stat:
            self._add(QUEUE_GET_NUMS, f"{topic}@{queue_id}@{group}", num)

    def inc_queue_get_size(self, group: str, topic: str, queue_id: int, size: int) -> None:
        """Count bytes that a group got from a queue."""
        if self.enable_queue_stat:
            self._add(QUEUE_GET_SIZE, f"{topic}@{queue_id}@{group}", size)

    def inc_group_get_nums(self, group: str, topic: str, num: int) -> None:
        """Count messages that a group got from a topic."""
        self._add(GROUP_GET_NUMS, f"{topic}@{group}", num)

    def inc_group_get_size(self, group: str, topic: str, size: int) -> None:
        """Count bytes that a group got from a topic."""
        self._add(GROUP_GET_SIZE, f"{topic}@{group}", size)

    def inc_broker_put_nums(self, num: int = 1) -> None:
        """Count messages that were put to any topic; 4.9.3 leaves `times` at 0."""
        self._add(BROKER_PUT_NUMS, self.cluster_name, num, 0)

    def inc_broker_get_nums(self, num: int) -> None:
        """Count messages that any group got."""
        self._add(BROKER_GET_NUMS, self.cluster_name, num, 0)

    def inc_send_back_nums(self, group: str, topic: str) -> None:
        """Count a message that a group sent back."""
        self._add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1)

    def note_delivery(self, message: MessageExtBrokerInner, result: PutMessageResult) -> None:
        """Count a delayed message that was delivered, as a get of SCHEDULE_CONSUMER."""
        text = string_to_properties(message.properties_string or "")
        level = parse_java_int(text.get(PROPERTY_DELAY_TIME_LEVEL, "")) or 0
        num, size = result.message_count, result.wrote_bytes
        group, topic = "SCHEDULE_CONSUMER", "SCHEDULE_TOPIC_XXXX"
        self.inc_queue_get_nums(group, topic, level - 1, num)
        self.inc_queue_get_size(group, topic, level - 1, size)
        self.inc_group_get_nums(group, topic, num)
        self.inc_group_get_size(group, topic, size)

    def note_get(self, group: str, topic: str, queue_id: int, num: int, size: int) -> None:
        """Count messages that `get_message` returned to a group."""
        self.inc_queue_get_nums(group, topic, queue_id, num)
        self.inc_queue_get_size(group, topic, queue_id, size)
        self.inc_group_get_nums(group, topic, num)
        self.inc_group_get_size(group, topic, size)
        self.inc_broker_get_nums(num)

    def _add(self, name: str, key: str, value: int, times: int = 1) -> None:
        value, times = exact_int64("the count", value), exact_int64("times", times)
        items = self._items[name]
        item = items.get(key)
        if item is None:
            item = items.setdefault(key, StatsItem(name, key))
        with self._lock:
            item.value += value
            item.times += times

    # ---- puts of the store, which compiled code counts -----------------------------------------

    def follow(self, put_totals: Callable[[], Iterable[QueuePuts]]) -> None:
        """Count the growth of the totals of a store that was just opened."""
        self.update()
        self._put_totals, self._seen = put_totals, {}

    def update(self) -> None:
        """Count the puts since the last call."""
        if not self._updating.acquire(blocking=False):
            return  # another thread does it now
        try:
            for topic, queue_id, count, size in self._put_totals():
                seen_count, seen_size = self._seen.get((topic, queue_id), (0, 0))
                more, grown = count - seen_count, size - seen_size
                if more > 0:
                    self._seen[topic, queue_id] = count, size
                    self._count_puts(topic, queue_id, more, grown)
        finally:
            self._updating.release()

    def _count_puts(self, topic: str, queue_id: int, count: int, size: int) -> None:
        self._add(TOPIC_PUT_NUMS, topic, count, count)
        self._add(TOPIC_PUT_SIZE, topic, size, count)
        self._add(BROKER_PUT_NUMS, self.cluster_name, count, 0)
        if self.enable_queue_stat:
            self._add(QUEUE_PUT_NUMS, f"{topic}@{queue_id}", count, count)
            self._add(QUEUE_PUT_SIZE, f"{topic}@{queue_id}", size, count)

    # ---- figures ------------------------------------------------------------------------------

    def get_stats_item(self, name: str, key: str) -> StatsItem | None:
        """Return the item of a name and a key, None if nothing was counted for it."""
        name, key = exact_text("name", name), exact_text("key", key)
        self.update()
        return self._items[name].get(key) if name in self._items else None

    def tps_group_get_nums(self, group: str, topic: str) -> float:
        """Return the messages per second that a group got from a topic in the last minute."""
        item = self.get_stats_item(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if item is None else item.get_stats_data_in_minute().tps

    def on_topic_deleted(self, topic: str) -> None:
        """Forget the items of a topic."""
        self._forget((*_BY_TOPIC, *_BY_QUEUE, *_BY_GROUP, *_BY_QUEUE_AND_GROUP), 0, topic)

    def on_group_deleted(self, group: str) -> None:
        """Forget the items of a group."""
        self._forget((*_BY_GROUP, *_BY_QUEUE_AND_GROUP), -1, group)

    def _forget(self, names: Iterable[str], part: int, text: str) -> None:
        for name in names:
            for key in list(self._items[name]):
                if key.split("@")[part] == text:
                    self._items[name].pop(key, None)

    def tick(self, now_ms: int) -> None:
        """Take the samples that are due: each 10 s, 10 min and hour of a monotonic clock (ms)."""
        now_ms = exact_int64("now_ms", now_ms)
        due = [self._is_due(window, now_ms) for window in range(len(_WINDOWS))]
        if not any(due):
            return
        self.update()
        for items in self._items.values():
            for item in list(items.values()):
                for window, is_due in enumerate(due):
                    if is_due:
                        item.sample(window, now_ms)

    def _is_due(self, window: int, now_ms: int) -> bool:
        at = self._next_ms[window]
        if at is not None and now_ms < at:
            return False
        self._next_ms[window] = now_ms + _WINDOWS[window][0]
        return True
