"""A store's figures for Prometheus: a collector of prometheus-client (`pyrocketstore[metrics]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyrocketstore.errors import MissingExtraError, StoreStateError
from pyrocketstore.message_store.stats import PUT_TIME_BOUNDS
from pyrocketstore.message_store.store_stats import StoreStats

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("pyrocketstore.metrics", "metrics") from error

if TYPE_CHECKING:
    from pyrocketstore.store.api import Store

__all__ = ["StoreCollector"]

#: name without its unit's suffix `_total` -> (help, field of StoreStats)
COUNTERS = {
    "put_messages": ("Messages appended to the log.", "put_message_times_total"),
    "put_bytes": ("Bytes of the messages appended to the log.", "put_message_size_total"),
    "put_failed": ("Puts that failed after the checks.", "put_message_failed_times"),
    "get_found": ("Reads that returned messages.", "get_message_times_total_found"),
    "get_missed": ("Reads that returned no message.", "get_message_times_total_miss"),
    "get_messages": ("Messages that reads returned.", "get_message_transfered_msg_count"),
    "forces": ("Flushes of the commit log to disk.", "forces"),
}
GAUGES = {
    "dispatch_behind_bytes": ("Bytes that are in no queue yet.", "dispatch_behind_bytes"),
    "commit_log_min_offset_bytes": ("First physical offset.", "commit_log_min_offset"),
    "commit_log_max_offset_bytes": ("Physical offset of the end.", "commit_log_max_offset"),
    "flushed_offset_bytes": ("The log is durable before it.", "flushed_where"),
    "commit_log_disk_ratio": ("Used part of the log's disk; -1: unknown.", "commit_log_disk_ratio"),
    "queue_disk_ratio": ("Used part of the queues' disk; -1: unknown.", "consume_queue_disk_ratio"),
    "async_puts": ("Puts whose flush is outstanding.", "async_puts_outstanding"),
    "async_put_bytes": ("Their bytes.", "async_put_bytes_outstanding"),
    "async_puts_waiting": ("Puts that wait for room.", "async_puts_waiting"),
}
GAUGES_MS = {
    "boot_time_seconds": ("When the store was opened, Unix time.", "boot_timestamp"),
    "earliest_message_time_seconds": ("Store time of the first.", "earliest_message_timestamp"),
    "put_lock_held_seconds": ("How long the put lock is held.", "page_cache_lock_time_mills"),
    "put_max_seconds": ("The longest put.", "put_message_entire_time_max"),
    "get_max_seconds": ("The longest pull.", "get_message_entire_time_max"),
}


class StoreCollector(Collector):
    """Exports the figures of a store at each scrape, and keeps none.

    Parameters
    ----------
    store : Store
    labels : further labels of every figure, e.g. {"store": "orders"}
    prefix : str, before every name

    A closed store has `up` 0 and no other metric. Usage:
    `prometheus_client.REGISTRY.register(StoreCollector(store))`.

    Threads: any. Raises MissingExtraError at import without prometheus-client.
    """

    def __init__(
        self, store: Store, labels: Mapping[str, str] | None = None, prefix: str = "pyrocketstore"
    ) -> None:
        self.store = store
        self._names = list(labels or ())
        self._values = list((labels or {}).values())
        self._prefix = prefix

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: registering a collector does not read the store."""
        return [self._gauge("up", "1 while the store accepts puts, else 0.", [])]

    def collect(self) -> Iterable[Metric]:
        """The figures of this moment."""
        try:
            stats = self.store.stats()
        except StoreStateError:
            return [self._gauge("up", "1 while the store accepts puts, else 0.", [([], 0)])]
        return list(self._families(stats))

    def _families(self, stats: StoreStats) -> Iterable[Metric]:
        up = int(stats.failure is None and self.store.message_store.life.takes_puts)
        yield self._gauge("up", "1 while the store accepts puts, else 0.", [([], up)])
        outcomes = stats.put_messages_by_status.items()
        refused = [([name], n) for name, n in outcomes if name != "PUT_OK"]
        yield self._counter("put_not_ok", "Puts that were not PUT_OK.", refused, "status")
        for name, (text, field) in COUNTERS.items():
            yield self._counter(name, text, [([], getattr(stats, field))])
        seconds = stats.force_time_total / 1000
        yield self._counter("force_seconds", "Seconds spent in flushes to disk.", [([], seconds)])
        causes = [([cause], n) for cause, n in stats.stalls.items()]
        yield self._counter("stalls", "Calls and waits that took too long.", causes, "cause")
        for name, (text, field) in GAUGES.items():
            yield self._gauge(name, text, [([], getattr(stats, field))])
        for name, (text, field) in GAUGES_MS.items():
            yield self._gauge(name, text, [([], getattr(stats, field) / 1000)])
        yield self._put_times(stats)

    def _put_times(self, stats: StoreStats) -> Metric:
        """Calls by time, with the bounds of 4.9.3. Quick puts are not timed."""
        buckets, calls = [], 0
        bounds = [*(str(bound / 1000) for bound in PUT_TIME_BOUNDS), "+Inf"]
        for bound, count in zip(bounds, stats.put_message_distribute_time.values(), strict=True):
            calls += count
            buckets.append((bound, calls))
        family = HistogramMetricFamily(
            f"{self._prefix}_put_seconds", "Time of a put.", labels=self._names
        )
        family.add_metric(self._values, buckets, None)
        return family

    def _counter(
        self, name: str, text: str, samples: Sequence[tuple[list[str], float]], label: str = ""
    ) -> Metric:
        names = [*self._names, label] if label else self._names
        family = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=names)
        for values, value in samples:
            family.add_metric([*self._values, *values], value)
        return family

    def _gauge(self, name: str, text: str, samples: Sequence[tuple[list[str], float]]) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=self._names)
        for values, value in samples:
            family.add_metric([*self._values, *values], value)
        return family
