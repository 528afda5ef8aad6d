"""StoreReports: the figures of a store, as `stats` and as 4.9.3's runtime info."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.message_store.stats import StoreStatsService, java_double
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system import disk_space
from pyrocketstore.system.signal_shield import imported
from pyrocketstore.system.stalls import LOG_FLUSH, StallLog

if TYPE_CHECKING:
    from pyrocketstore.message_store.store_stats import StoreStats

_STORE_STATS = "pyrocketstore.message_store.store_stats"


class StoreReports:
    """The figures of all parts of a store.

    Parameters
    ----------
    earliest : returns the store time (ms) of the first message, -1 without one
    failure : returns what ended the puts of the store, None while they are taken

    Attributes: `files`, and `services`, None while none runs. Threads: any.
    """

    def __init__(
        self,
        files: StoreFiles,
        async_puts: AsyncPuts,
        stall_log: StallLog,
        stats_service: StoreStatsService,
        *,
        earliest: Callable[[], int],
        failure: Callable[[], BaseException | None],
    ) -> None:
        self.files, self._async_puts, self._stall_log = files, async_puts, stall_log
        self.stats_service = stats_service
        self.services: StoreServices | None = None
        self._earliest, self._failure = earliest, failure

    def stats(self) -> StoreStats:
        """Return every figure of this moment."""
        counts = self.stats_service
        reads = counts.reads
        rates = counts.rates()
        failure = self._failure()
        flushes, flush_ns = self._log_flushes()
        log = self.files.commit_log
        kind = cast("type[StoreStats]", imported(_STORE_STATS).StoreStats)
        return kind(
            boot_timestamp=counts.boot_timestamp,
            runtime_ms=counts.runtime_ms,
            put_message_times_total=counts.core.put_count,
            put_message_size_total=counts.core.put_bytes,
            put_message_failed_times=counts.put_message_failed_times,
            put_messages_by_status=counts.put_messages_by_status(),
            put_message_distribute_time=counts.put_message_distribute_time(),
            put_message_entire_time_max=counts.put_message_entire_time_max,
            get_message_times_total_found=reads.found,
            get_message_times_total_miss=reads.missed,
            get_message_transfered_msg_count=reads.messages,
            get_message_entire_time_max=reads.longest_ms,
            put_tps=rates["put"],
            get_found_tps=rates["found"],
            get_miss_tps=rates["miss"],
            get_transfered_tps=rates["transfered"],
            dispatch_max_buffer=0,
            dispatch_behind_bytes=self.files.dispatch_behind_bytes(),
            page_cache_lock_time_mills=log.core.lock_time_ms(),
            commit_log_min_offset=log.get_min_offset(),
            commit_log_max_offset=log.get_max_offset(),
            flushed_where=self.flushed_where(),
            earliest_message_timestamp=self._earliest(),
            commit_log_disk_ratio=min(self._log_ratios().values()),
            consume_queue_disk_ratio=disk_space.used_ratio(self.files.env, self._queue_path),
            async_puts_outstanding=self._async_puts.count,
            async_put_bytes_outstanding=self._async_puts.bytes,
            async_puts_waiting=self._async_puts.waiting,
            forces=flushes,
            force_time_total=flush_ns / 1e6,
            stalls=dict(self._stall_log.counts),
            failure=None if failure is None else str(failure) or repr(failure),
        )

    def runtime_info(self) -> dict[str, str]:
        """Return 4.9.3's map, with its keys and texts; the disk ratio of each log path, and the
        least.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getRuntimeInfo.
        """
        ratios = self._log_ratios()
        info = self.stats_service.runtime_info()
        for path, ratio in ratios.items():
            info[f"commitLogDiskRatio_{path}"] = java_double(ratio)
        queue_ratio = disk_space.used_ratio(self.files.env, self._queue_path)
        return info | {
            "commitLogDiskRatio": java_double(min(ratios.values())),
            "consumeQueueDiskRatio": java_double(queue_ratio),
            "commitLogMinOffset": str(self.files.commit_log.get_min_offset()),
            "commitLogMaxOffset": str(self.files.commit_log.get_max_offset()),
        }

    def flushed_where(self) -> int:
        """Return the physical offset before which everything is durable."""
        if self.services is None:
            return int(self.files.commit_log.mapped_file_queue.flushed_where)
        return self.services.log_flush.flushed_where

    def _log_ratios(self) -> dict[str, float]:
        """Return the used ratio of the disk of each log path; -1.0 where it is unknown."""
        paths = self.files.config.commit_log_paths
        return {path: disk_space.used_ratio(self.files.env, path) for path in paths}

    @property
    def _queue_path(self) -> str:
        return self.files.queue_table.path

    def _log_flushes(self) -> tuple[int, int]:
        """Return the number of log flushes, and their total time in ns."""
        count, total_ns = self._stall_log.calls.get(LOG_FLUSH, (0, 0))
        group = None if self.services is None else self.services.log_flush.group
        if group is not None:
            count, total_ns = count + group.force_count, total_ns + group.force_total_ns
        return count, total_ns
