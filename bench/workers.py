"""Child processes that do rounds of work in turn, and what is noted of each."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ANSWER_TIMEOUT_S = 1800
SAMPLE_S = 0.05
LATENCIES = ("p50", "p99", "p99.9", "max")


class BenchError(Exception):
    """A worker did not do its work, or gave another answer than 4.9.3."""


@dataclasses.dataclass
class Rounds:
    """What the rounds of one worker measured; rates are items and bytes a second."""

    rates: list[float] = dataclasses.field(default_factory=list)
    byte_rates: list[float] = dataclasses.field(default_factory=list)
    cpu_us: list[float] = dataclasses.field(default_factory=list)
    latencies_us: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    peak_bytes: int = 0
    peak_anonymous_bytes: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Note one round's answer."""
        seconds = max(answer["seconds"], 1e-9)
        self.rates.append(answer["count"] / seconds)
        self.byte_rates.append(answer["bytes"] / seconds)
        if "cpu" in answer:
            self.cpu_us.append(1e6 * answer["cpu"] / answer["count"])
        for name in LATENCIES:
            if name in answer:
                self.latencies_us.setdefault(name, []).append(answer[name])

    def record(self) -> dict[str, Any]:
        """As it goes into the JSON record."""
        found: dict[str, Any] = {
            "rates": [round(rate, 1) for rate in self.rates],
            "bytes_per_second": round(statistics.median(self.byte_rates)),
            "peak_bytes": self.peak_bytes,
            "peak_anonymous_bytes": self.peak_anonymous_bytes,
        }
        if self.cpu_us:
            found["cpu_us"] = round(statistics.median(self.cpu_us), 4)
        for name, values in self.latencies_us.items():
            value = max(values) if name == "max" else statistics.median(values)
            found.setdefault("latencies_us", {})[name] = round(value, 2)
        return found


class Worker:
    """A child process that does rounds of one kind of work when told."""

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
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        try:
            self._answer()
        except BaseException:
            self.kill()
            raise

    def round(self, seconds: float) -> dict[str, Any]:
        """Do one round and note what it measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"round {seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.rounds.add(answer)
        self._sample()
        return answer

    def forget(self) -> None:
        """Drop what the warm-up rounds measured; the peak of memory stays."""
        peak, anonymous = self.rounds.peak_bytes, self.rounds.peak_anonymous_bytes
        self.rounds = Rounds(peak_bytes=peak, peak_anonymous_bytes=anonymous)

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        try:
            self._process.communicate("quit\n", timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not select.select([self._process.stdout], [], [], SAMPLE_S)[0]:
            self._sample()
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name} gave no answer in {ANSWER_TIMEOUT_S} s")
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            code = self._process.wait(timeout=60)
            lines = self._problems.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no reason given"
            raise BenchError(f"{self.name} ended with exit code {code}: {line!r} {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _sample(self) -> None:
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        sizes = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("V"))
        sizes |= dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
        for field, name in (("peak_bytes", "VmHWM"), ("peak_anonymous_bytes", "RssAnon")):
            found = 1024 * int(sizes.get(name, "0").split()[0])
            setattr(self.rounds, field, max(getattr(self.rounds, field), found))


def alternate(workers: Sequence[Worker], warm: int, pairs: int, seconds: float) -> list[list[Any]]:
    """Rounds of all workers in turn; the answers of each round, in the order of the workers."""
    answers = []
    for number in range(warm + pairs):
        if number == warm:
            for worker in workers:
                worker.forget()
        answers.append([worker.round(seconds)["answer"] for worker in workers])
    return answers
