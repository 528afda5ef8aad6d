"""What a store tells of itself: `stats`, and 4.9.3's runtime info."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyrocketstore import disk_space
from pyrocketstore.async_put import AsyncPuts
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.env import Env
from pyrocketstore.services import StoreServices
from pyrocketstore.stalls import FORCE, StallLog
from pyrocketstore.stats import StoreStats, StoreStatsService, java_double

__all__ = ["StoreReports"]


class StoreReports:
    """Gathers the figures of the parts.

    Parameters
    ----------
    behind : gives the bytes that are not dispatched yet
    earliest : gives the store time (ms) of the first message, -1 for none
    failure : gives what stopped the store, None when nothing did

    Attributes: `services`, None while none runs. Threads: any.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        stats_service: StoreStatsService,
        stall_log: StallLog,
        async_puts: AsyncPuts,
        *,
        behind: Callable[[], int],
        earliest: Callable[[], int],
        failure: Callable[[], BaseException | None],
    ) -> None:
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.stats_service = stats_service
        self.stall_log = stall_log
        self.async_puts = async_puts
        self.services: StoreServices | None = None
        self._behind, self._earliest, self._failure = behind, earliest, failure

    def stats(self) -> StoreStats:
        """Every figure of this moment."""
        counts = self.stats_service
        rates = counts.rates()
        failure = self._failure()
        forces, force_ns = self._forces()
        return StoreStats(
            boot_timestamp=counts.boot_timestamp,
            runtime_ms=counts.runtime_ms,
            put_message_times_total=counts.core.put_count,
            put_message_size_total=counts.core.put_bytes,
            put_message_failed_times=counts.put_message_failed_times,
            put_messages_by_status=counts.put_messages_by_status(),
            put_message_distribute_time=counts.put_message_distribute_time(),
            put_message_entire_time_max=counts.put_message_entire_time_max,
            get_message_times_total_found=counts.get_message_times_total_found,
            get_message_times_total_miss=counts.get_message_times_total_miss,
            get_message_transfered_msg_count=counts.get_message_transfered_msg_count,
            get_message_entire_time_max=counts.get_message_entire_time_max,
            put_tps=rates["put"],
            get_found_tps=rates["found"],
            get_miss_tps=rates["miss"],
            get_transfered_tps=rates["transfered"],
            dispatch_max_buffer=0,
            dispatch_behind_bytes=self._behind(),
            page_cache_lock_time_mills=self.commit_log.core.lock_time_ms(),
            commit_log_min_offset=self.commit_log.get_min_offset(),
            commit_log_max_offset=self.commit_log.get_max_offset(),
            flushed_where=self.flushed_where(),
            earliest_message_timestamp=self._earliest(),
            commit_log_disk_ratio=min(self._log_ratios().values()),
            consume_queue_disk_ratio=disk_space.used_ratio(self.env, self._queue_path),
            async_puts_outstanding=self.async_puts.count,
            async_put_bytes_outstanding=self.async_puts.bytes,
            async_puts_waiting=self.async_puts.waiting,
            forces=forces,
            force_time_total=force_ns / 1e6,
            stalls=dict(self.stall_log.counts),
            failure=None if failure is None else str(failure) or repr(failure),
        )

    def runtime_info(self) -> dict[str, str]:
        """4.9.3's map, with its keys and its texts; of several log paths each, and the least.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getRuntimeInfo.
        """
        ratios = self._log_ratios()
        info = self.stats_service.runtime_info()
        for path, ratio in ratios.items():
            info[f"commitLogDiskRatio_{path}"] = java_double(ratio)
        queue_ratio = disk_space.used_ratio(self.env, self._queue_path)
        return info | {
            "commitLogDiskRatio": java_double(min(ratios.values())),
            "consumeQueueDiskRatio": java_double(queue_ratio),
            "commitLogMinOffset": str(self.commit_log.get_min_offset()),
            "commitLogMaxOffset": str(self.commit_log.get_max_offset()),
        }

    def flushed_where(self) -> int:
        """Everything before this physical offset is on the device."""
        if self.services is None:
            return int(self.commit_log.mapped_file_queue.flushed_where)
        return self.services.log_flush.flushed_where

    def _log_ratios(self) -> dict[str, float]:
        """How full the disk of each path of the log is; -1.0, the least of all, where unknown."""
        paths = self.config.commit_log_paths
        return {path: disk_space.used_ratio(self.env, path) for path in paths}

    @property
    def _queue_path(self) -> str:
        return os.path.join(self.config.store_path_root_dir, "consumequeue")

    def _forces(self) -> tuple[int, int]:
        """Forces of the log, and ns in all."""
        count, total_ns = self.stall_log.calls.get(FORCE, (0, 0))
        group = None if self.services is None else self.services.log_flush.group
        if group is not None:
            count, total_ns = count + group.force_count, total_ns + group.force_total_ns
        return count, total_ns
