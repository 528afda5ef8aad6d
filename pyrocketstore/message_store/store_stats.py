"""StoreStats: the figures of a store at one moment.

A module of its own, which the first call of `stats` imports: making the class takes longer than the
import of most modules of the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyrocketstore.message_store.stats import Tps

__all__ = ["StoreStats"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreStats:
    """The figures of a store at one moment, counted since it was opened.

    Times are ms, timestamps Unix ms, sizes and offsets bytes, ratios 0 to 1 (-1: unknown), rates
    per second. `put_message_times_total` counts messages, `put_message_distribute_time` calls by
    4.9.3's buckets, `put_messages_by_status` messages for PUT_OK and calls for the rest;
    `put_message_failed_times` counts calls that failed after the checks, as in 4.9.3. A put without
    a wait is not timed, and counts in the first bucket. A found `get` is a pull, or a chunk of
    `read` or `read_batch`, that returned messages; `get_message_transfered_msg_count` counts
    messages. `commit_log_disk_ratio` is the least of several paths. `dispatch_max_buffer` is always
    0, as in 4.9.3. `forces` and `force_time_total` are the flushes of the commit log; `stalls`
    counts by cause calls that took longer than `stall_warning_mills`. `failure` is the reason why
    no put is accepted any more, or None.

    Source: RocketMQ 4.9.3 StoreStatsService, DefaultMessageStore#getRuntimeInfo.
    """

    boot_timestamp: int
    runtime_ms: int
    put_message_times_total: int
    put_message_size_total: int
    put_message_failed_times: int
    put_messages_by_status: Mapping[str, int]
    put_message_distribute_time: Mapping[str, int]
    put_message_entire_time_max: int
    get_message_times_total_found: int
    get_message_times_total_miss: int
    get_message_transfered_msg_count: int
    get_message_entire_time_max: int
    put_tps: Tps
    get_found_tps: Tps
    get_miss_tps: Tps
    get_transfered_tps: Tps
    dispatch_max_buffer: int
    dispatch_behind_bytes: int
    page_cache_lock_time_mills: int
    commit_log_min_offset: int
    commit_log_max_offset: int
    flushed_where: int
    earliest_message_timestamp: int
    commit_log_disk_ratio: float
    consume_queue_disk_ratio: float
    async_puts_outstanding: int
    async_put_bytes_outstanding: int
    async_puts_waiting: int
    forces: int
    force_time_total: float
    stalls: Mapping[str, int]
    failure: str | None

    @property
    def put_message_average_size(self) -> float:
        """Bytes of a message in the log, 0 before the first."""
        return self.put_message_size_total / max(1, self.put_message_times_total)
