"""StoreStatsService: counts, rates and times of puts and reads."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.display import logger
from pyrocketstore.reading._queue_runs import ReadCounts
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.signal_shield import imported

LOG = logger(__name__)

#: 4.9.3's buckets of put times, and the end (ms) of each; the last one has none.
PUT_TIME_LABELS = tuple(
    """
    [<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s]
    [3~4s] [4~5s] [5~10s] [10s~]
    """.split()
)
PUT_TIME_BOUNDS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
#: The windows of a rate (s), the interval of its samples (ms), and how many are kept.
WINDOWS = (10, 60, 600)
SAMPLE_MS = 1000
SAMPLES_MAX = WINDOWS[-1] + 1
#: How often the reported distribution of put times changes (ms).
ROTATE_MS = 60_000
#: The interval of the checks for stalls (ms).
WATCH_MS = 250


class Tps(NamedTuple):
    """A rate per second over the last 10, 60 and 600 s; None until the window has filled."""

    last_10_s: float | None
    last_60_s: float | None
    last_600_s: float | None


class _Sample(NamedTuple):
    at_ms: int
    put: int
    found: int
    miss: int
    transfered: int


class StoreStatsService(ServiceThread):
    """Count, and take a sample each second for the rates; `watch` is called four times a second.

    An ordinary put costs two additions; calls that are slow anyway (a wait, a new file, a flush, a
    refusal) call `note_put`. The thread's death is logged and stops no put.

    Threads: any. Source: RocketMQ 4.9.3 StoreStatsService.
    Differs: a rate is None until its window has filled, also in the first second.
    """

    def __init__(
        self, core: CommitLogCore, now_ms: Callable[[], int], monotonic_ns: Callable[[], int]
    ) -> None:
        super().__init__("StoreStatsService")
        self.core = core
        self.boot_timestamp = now_ms()
        self.watch: Callable[[], None] = lambda: None
        self.put_message_failed_times = 0
        self.reads = ReadCounts()
        self._clock = monotonic_ns
        self._boot_ns = monotonic_ns()
        self._counts_lock = threading.RLock()  # a signal handler may put inside
        self._statuses = dict.fromkeys((status.name for status in PutMessageStatus), 0)
        self._times = [0] * len(PUT_TIME_LABELS)
        self._time_max = 0
        self._noted = 0  # messages whose put was timed here
        self._stored_not_ok = 0
        self._samples: collections.deque[_Sample] = collections.deque(maxlen=SAMPLES_MAX)
        self._last_times: list[int] | None = None
        self._rotated_times = list(self._times)
        self._rotated_ms = self._tick_ms = self._elapsed_ms()

    # ---- counting -----------------------------------------------------------------------------

    def note_put(self, status: PutMessageStatus | int, count: int, took_ms: int) -> None:
        """Count a timed call that stored `count` messages."""
        if status:
            self.note_outcome(status, count)
        bucket = _bucket(took_ms)
        with self._counts_lock:
            self._noted += count
            if took_ms > self._time_max:
                self._time_max = took_ms
            self._times[bucket] += 1

    def note_puts(self, results: Iterable[tuple[PutMessageResult, int]]) -> None:
        """Count puts that are done, each with the monotonic time (ns) of its append."""
        now = self._clock()
        for result, began_ns in results:
            took_ms = (now - began_ns) // 1_000_000
            self.note_put(result.status_code, result.message_count, took_ms)

    # Nothing is called under the lock: a signal handler that waits there for a thread, which may
    # count too, would wait for ever.

    def note_outcome(
        self, status: PutMessageStatus | int, count: int, *, tried: bool = True
    ) -> None:
        """Count a call that was not PUT_OK; `tried` is False if the checks before the append
        refused it."""
        name = PutMessageStatus(status).name
        with self._counts_lock:
            self._statuses[name] += 1
            self._stored_not_ok += count
            self.put_message_failed_times += tried and not count

    # ---- figures ------------------------------------------------------------------------------

    def put_messages_by_status(self) -> dict[str, int]:
        """Return the messages put with PUT_OK, and the calls with each other outcome."""
        with self._counts_lock:
            others = dict(self._statuses)
            ok = self.core.put_count - self._stored_not_ok
        return {s.name: others.get(s.name, 0) for s in PutMessageStatus} | {"PUT_OK": max(0, ok)}

    def put_times(self) -> list[int]:
        """Return calls by bucket; calls that were not timed count in the first."""
        slow, _ = self.core.slow_put_times()
        with self._counts_lock:
            quick = self.core.put_count - self._noted - sum(slow)
            times = [a + b for a, b in zip(self._times, slow, strict=True)]
        times[0] += max(0, quick)
        return times

    def put_message_distribute_time(self) -> dict[str, int]:
        """Return calls by 4.9.3's labels of buckets."""
        return dict(zip(PUT_TIME_LABELS, self.put_times(), strict=True))

    @property
    def put_message_entire_time_max(self) -> int:
        """Time of the longest put, ms."""
        return max(self._time_max, self.core.slow_put_times()[1])

    def rates(self) -> dict[str, Tps]:
        """Return the rates of the samples: {"put", "found", "miss", "transfered"}."""
        samples = list(self._samples)
        return {name: _rates(samples, name) for name in ("put", "found", "miss", "transfered")}

    # ---- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Sample each second, watch in between."""
        self.sample()
        while True:
            self.wait_for_running(WATCH_MS)
            if self.stopped:
                return
            self.watch()
            if self._elapsed_ms() - self._tick_ms >= SAMPLE_MS:
                self.sample()

    def on_failure(self, error: BaseException) -> None:
        """Log that rates and warnings end."""
        LOG.error("rates and stall warnings have ended: the thread has died: %r", error)

    def sample(self) -> None:
        """Take one sample."""
        self._tick_ms = self._elapsed_ms()
        self._samples.append(
            _Sample(
                self._tick_ms,
                self.core.put_count,
                self.reads.found,
                self.reads.missed,
                self.reads.messages,
            )
        )
        if self._tick_ms - self._rotated_ms > ROTATE_MS:
            times = self.put_times()
            self._last_times = [
                now - before for now, before in zip(times, self._rotated_times, strict=True)
            ]
            self._rotated_times, self._rotated_ms = times, self._tick_ms

    @property
    def runtime_ms(self) -> int:
        """Milliseconds since this object was made, by the monotonic clock."""
        return (self._clock() - self._boot_ns) // 1_000_000

    def _elapsed_ms(self) -> int:
        return self._clock() // 1_000_000

    # ---- as 4.9.3 prints it -------------------------------------------------------------------

    def running_data_info(self) -> str:
        """Return `runtime_info` as lines, from `runtime` on.

        Source: RocketMQ 4.9.3 StoreStatsService#toString.
        """
        info = self.runtime_info()
        del info["bootTimestamp"]
        names = {"putMessageFailedTimes": "getPutMessageFailedTimes"}
        return "".join(f"\t{names.get(k, k)}: {text}\r\n" for k, text in info.items())

    def runtime_info(self) -> dict[str, str]:
        """Return 4.9.3's keys and texts.

        Source: RocketMQ 4.9.3 StoreStatsService#getRuntimeInfo.
        """
        rates = self.rates()
        times = self._last_times
        total = max(1, self.core.put_count)  # 4.9.3 reports 1 before the first put
        return {
            "bootTimestamp": str(self.boot_timestamp),
            "runtime": _duration(self.runtime_ms),
            "putMessageEntireTimeMax": str(self.put_message_entire_time_max),
            "putMessageTimesTotal": str(total),
            "putMessageFailedTimes": str(self.put_message_failed_times),
            "putMessageSizeTotal": str(self.core.put_bytes),
            "putMessageDistributeTime": "null"
            if times is None
            else "".join(f"{k}:{n} " for k, n in zip(PUT_TIME_LABELS, times, strict=True)),
            "putMessageAverageSize": java_double(self.core.put_bytes / total),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": str(self.reads.longest_ms),
            "putTps": _rate_text(rates["put"]),
            "getFoundTps": _rate_text(rates["found"]),
            "getMissTps": _rate_text(rates["miss"]),
            "getTotalTps": " ".join(
                java_double((found or 0.0) + (miss or 0.0))
                for found, miss in zip(rates["found"], rates["miss"], strict=True)
            ),
            "getTransferedTps": _rate_text(rates["transfered"]),
        }


def java_double(value: float) -> str:
    """Format a number as Java's Double.toString does."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    sign, digits, exponent = imported("decimal").Decimal(repr(value)).normalize().as_tuple()
    first, *rest = digits
    fraction = "".join(map(str, rest)) or "0"
    return f"{'-' * sign}{first}.{fraction}E{int(exponent) + len(rest)}"


def _bucket(took_ms: int) -> int:
    for number, bound in enumerate(PUT_TIME_BOUNDS):
        if took_ms < bound:
            return number
    return len(PUT_TIME_BOUNDS)


def _rates(samples: list[_Sample], name: str) -> Tps:
    def rate(window: int) -> float | None:
        if len(samples) <= window:
            return None
        last, before = samples[-1], samples[-1 - window]
        elapsed_ms = last.at_ms - before.at_ms
        if elapsed_ms <= 0:
            return None
        return float(getattr(last, name) - getattr(before, name)) / elapsed_ms * 1000

    return Tps(*(rate(window) for window in WINDOWS))


def _rate_text(rates: Tps) -> str:
    return " ".join("" if rate is None else java_double(rate) for rate in rates)


def _duration(took_ms: int) -> str:
    seconds = took_ms // 1000
    parts = {
        "days": seconds // 86400,
        "hours": seconds // 3600 % 24,
        "minutes": seconds // 60 % 60,
        "seconds": seconds % 60,
    }
    return f"[ {', '.join(f'{value:,} {name}' for name, value in parts.items())} ]"
