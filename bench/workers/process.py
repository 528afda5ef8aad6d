"""Child processes that run rounds of work, and the measurements of each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.paths import PYTHON_PATH
from bench.workers.workload import PERCENTILES

ANSWER_TIMEOUT_S = 1800
SAMPLE_S = 0.05
#: Fields of Rounds that include the warm-up rounds.
KEPT = ("units", "peak_bytes", "peak_anonymous_bytes", "peak_descriptors")
LATENCIES = tuple(PERCENTILES)


class BenchError(Exception):
    """A worker failed, or gave a wrong answer."""


class WorkerEnded(BenchError):
    """The process of the worker `name` ended unexpectedly."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


@dataclasses.dataclass
class Rounds:
    """Measurements of one worker's rounds; rates are items and bytes per second."""

    rates: list[float] = dataclasses.field(default_factory=list)
    byte_rates: list[float] = dataclasses.field(default_factory=list)
    cpu_us: list[float] = dataclasses.field(default_factory=list)
    latencies_us: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    units: int = 0
    peak_bytes: int = 0
    peak_anonymous_bytes: int = 0
    peak_descriptors: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the answer of one round."""
        seconds = max(answer["seconds"], 1e-9)
        self.units += answer["units"]
        self.rates.append(answer["count"] / seconds)
        self.byte_rates.append(answer["bytes"] / seconds)
        if "cpu" in answer:
            self.cpu_us.append(1e6 * answer["cpu"] / answer["count"])
        for name in LATENCIES:
            if name in answer:
                self.latencies_us.setdefault(name, []).append(answer[name])

    def record(self) -> dict[str, Any]:
        """Return the values for the JSON record."""
        found: dict[str, Any] = {
            "rates": [round(rate, 1) for rate in self.rates],
            "bytes_per_second": round(statistics.median(self.byte_rates)),
            "peak_bytes": self.peak_bytes,
            "peak_anonymous_bytes": self.peak_anonymous_bytes,
            "peak_descriptors": self.peak_descriptors,
        }
        if self.cpu_us:
            found["cpu_us"] = round(statistics.median(self.cpu_us), 4)
        if self.latencies_us:
            found["latencies_us"] = {
                name: [round(value, 3) for value in values]
                for name, values in self.latencies_us.items()
            }
        return found


class Worker:
    """A child process that runs rounds of one kind of work on request."""

    def __init__(self, name: str, command: Sequence[str], problems: Path) -> None:
        self.name = name
        self.rounds = Rounds()
        self._problems = problems
        with problems.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONPATH": PYTHON_PATH},
            )
        try:
            self._answer()
        except BaseException:
            self.kill()
            raise

    def round(self, seconds: float) -> dict[str, Any]:
        """Run one round and record its measurements."""
        assert self._process.stdin is not None
        # If the process has ended, _answer() reports why. Nothing may stay in a buffer, because
        # close() would write it.
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), f"round {seconds}\n".encode())
        answer = self._answer()
        if answer["count"] <= 0:
            raise BenchError(f"{self.name}: the round did no work")
        self.rounds.add(answer)
        self._sample()
        return answer

    def forget(self) -> None:
        """Drop the rates of the warm-up rounds; keep memory peaks and the count of units."""
        kept = {name: getattr(self.rounds, name) for name in KEPT}
        self.rounds = Rounds(**kept)

    def close(self) -> None:
        """End the process; kill it if it does not end."""
        try:
            self._process.communicate("quit\n", timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not select.select([self._process.stdout], [], [], SAMPLE_S)[0]:
            self._sample()
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name}: no answer within {ANSWER_TIMEOUT_S} s")
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            code = self._process.wait(timeout=60)
            errors = self._problems.read_text(errors="replace").split("Stack backtrace:")[0]
            lines = errors.strip().splitlines()
            reason = lines[-1] if lines else "no error output"
            raise WorkerEnded(self.name, f"ended with exit code {code}: {line!r} {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _sample(self) -> None:
        process = f"/proc/{self._process.pid}"
        try:
            text = Path(f"{process}/status").read_text()
            descriptors = len(os.listdir(f"{process}/fd"))
        except OSError:
            return
        self.rounds.peak_descriptors = max(self.rounds.peak_descriptors, descriptors)
        sizes = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("V"))
        sizes |= dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
        for field, name in (("peak_bytes", "VmHWM"), ("peak_anonymous_bytes", "RssAnon")):
            found = 1024 * int(sizes.get(name, "0").split()[0])
            setattr(self.rounds, field, max(getattr(self.rounds, field), found))


def alternate(
    workers: Sequence[Worker],
    warm: int,
    pairs: int,
    seconds: float,
    prepare: Callable[[], None] = lambda: None,
) -> list[list[dict[str, Any]]]:
    """Run rounds of all workers in turn, in reverse order in every second turn.

    Return the answers of each turn, in the order of the workers. The reversal varies which worker
    runs first, and the distance between two workers. Each round begins after a call of `prepare`.
    """
    answers = []
    for number in range(warm + pairs):
        if number == warm:
            for worker in workers:
                worker.forget()
        turn = list(enumerate(workers))
        found = {}
        for at, worker in turn[::-1] if number % 2 else turn:
            prepare()
            found[at] = worker.round(seconds)
        answers.append([found[at] for at in range(len(workers))])
    return answers
