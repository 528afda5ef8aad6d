"""Ours beside RocketMQ 4.9.3, round against round, in one run; prints a Markdown table.

Both sides are child processes that speak the same protocol (bench/README.md): one prepares its
work, then each line "round SECONDS" makes it repeat a unit of work until the timed part took that
long. Rounds alternate, a ratio is the median over the pairs.

    python bench/run.py                  smoke sizes: does it still run, and agree?
    BENCH_FULL=1 python bench/run.py     measures; --only put,scan limits it
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

from java_store import JavaStore, JavaUnavailable  # noqa: E402

OURS = Path(__file__).with_name("ours.py")
JAVA_HEAP = ("-Xms4g", "-Xmx4g")
JAVA_HEAP_SMOKE = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FULL_SECONDS = 2.0
FULL_PAIRS = 5
FULL_WARM_ROUNDS = 2
ANSWER_TIMEOUT_S = 600

Options = Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of ours to do a group's work.

    `goal` is the ratio wanted, `against` the base it is taken over: "java" or another variant's
    name. `answers` says whether it must give the number that 4.9.3 gives.
    """

    name: str
    options: Options
    threads: str
    goal: float | None = None
    against: str = "java"
    answers: bool = True


@dataclasses.dataclass(frozen=True)
class Group:
    """One kind of work of 4.9.3 and all of ours that are measured against it.

    `count` and `smoke` are items of one unit of work. `input` names the store that is read:
    "" (none, made by the work itself) or a key of INPUTS. `unit` is what a second's rate counts.
    """

    name: str
    title: str
    java: Options
    ours: tuple[Variant, ...]
    count: int
    smoke: int
    input: str = ""
    unit: str = "msg"
    java_threads: str = "put + dispatch"


PUT_THREADS = "put + dispatch"

GROUPS = (
    Group(
        "put",
        "put 1 KiB, tag and key, async flush, until found",
        {"what": "put", "body": 1024},
        (
            Variant("put", {"what": "put", "body": 1024}, PUT_THREADS, 3.0),
            Variant("put_many", {"what": "put_many", "body": 1024}, PUT_THREADS),
        ),
        count=1_000_000,
        smoke=2_000,
    ),
    Group(
        "put128",
        "put 128 B, tag and key, async flush, until found",
        {"what": "put", "body": 128},
        (
            Variant("put", {"what": "put", "body": 128}, PUT_THREADS, 1.25),
            Variant("put_many", {"what": "put_many", "body": 128}, PUT_THREADS, 4.0),
        ),
        count=3_000_000,
        smoke=2_000,
    ),
    Group(
        "batch",
        "put 32 x 1 KiB a batch, until found",
        {"what": "batch", "body": 1024, "batch": 32},
        (
            Variant("put_batch", {"what": "batch", "body": 1024, "batch": 32}, PUT_THREADS, 4.0),
            Variant("put_many", {"what": "put_many", "body": 1024}, PUT_THREADS, 8.0),
        ),
        count=1_000_000,
        smoke=2_048,
    ),
    Group(
        "sync1",
        "put 1 KiB, sync flush",
        {"what": "put", "body": 1024, "flushDiskType": "SYNC_FLUSH"},
        (
            Variant("raw", {"what": "raw_sync", "body": 1024}, "1", answers=False),
            Variant("put", {"what": "put", "body": 1024, "sync": 1}, PUT_THREADS, 2.0),
            Variant("put", {"what": "put", "body": 1024, "sync": 1}, PUT_THREADS, 0.9, "raw"),
        ),
        count=2_000,
        smoke=20,
    ),
    Group(
        "sync64",
        "put 1 KiB, sync flush, 64 putting threads",
        {"what": "put", "body": 1024, "flushDiskType": "SYNC_FLUSH", "threads": 64},
        (
            Variant(
                "put",
                {"what": "put", "body": 1024, "sync": 1, "threads": 64},
                "64 put + dispatch",
                2.0,
            ),
        ),
        count=60_000,
        smoke=128,
        java_threads="64 put + dispatch",
    ),
    Group(
        "scan",
        "scan with CRC, 1 KiB",
        {"what": "scan"},
        (
            Variant("scan", {"what": "scan", "threads": 1}, "1", 2.5),
            Variant("scan", {"what": "scan", "threads": 2}, "2", 4.0),
        ),
        count=1_000_000,
        smoke=2_000,
        input="singles",
        java_threads="1",
    ),
    Group(
        "rebuild",
        "rebuild all queues and the index from the log, CRC on",
        {"what": "rebuild"},
        (
            Variant("load", {"what": "rebuild"}, "2", 5.0),
            Variant("load, one processor", {"what": "rebuild", "cpus": 1}, "1"),
        ),
        count=1_000_000,
        smoke=2_000,
        input="singles",
        java_threads="1",
    ),
    Group(
        "recover",
        "load after a crash, same start file",
        {"what": "recover"},
        (
            Variant("load", {"what": "recover"}, "2", 4.0),
            Variant("load, one processor", {"what": "recover", "cpus": 1}, "1"),
        ),
        count=1_000_000,
        smoke=2_000,
        input="singles",
        java_threads="1",
    ),
    Group(
        "cq",
        "ConsumeQueue append",
        {"what": "cq"},
        (
            Variant("single calls", {"what": "cq"}, "1", 0.3),
            Variant("arrays", {"what": "cq_arrays"}, "1", 8.0),
        ),
        count=20_000_000,
        smoke=10_000,
        unit="unit",
        java_threads="1",
    ),
    Group(
        "index_put",
        "IndexFile put, 3 M keys",
        {"what": "index_put"},
        (Variant("arrays", {"what": "index_put"}, "1", 2.0),),
        count=3_000_000,
        smoke=3_000,
        unit="key",
        java_threads="1",
    ),
    Group(
        "index_select",
        "IndexFile select among 3 M keys",
        {"what": "index_select", "stored": 3_000_000},
        (
            Variant("single calls", {"what": "index_select", "stored": 3_000_000}, "1", 1.0),
            Variant("arrays", {"what": "index_select_many", "stored": 3_000_000}, "1", 2.0),
        ),
        count=1_000_000,
        smoke=1_000,
        unit="key",
        java_threads="1",
    ),
    Group(
        "get",
        "get 32 a call, decoded, body copied, tags and keys read",
        {"what": "get", "pull": 32},
        (
            Variant("objects", {"what": "get", "pull": 32}, "1", 1.0),
            Variant("columns without body", {"what": "get_columns"}, "1", None, answers=False),
            Variant("columns with body", {"what": "get_columns", "bodies": 1}, "1", answers=False),
        ),
        count=1_000_000,
        smoke=2_000,
        input="singles",
        java_threads="1",
    ),
    Group(
        "query",
        "query by key to message",
        {"what": "query", "decode": "true"},
        (
            Variant("query", {"what": "query"}, "1", 1.0),
            Variant("query_many", {"what": "query_many"}, "1", 2.0),
        ),
        count=500_000,
        smoke=500,
        input="singles",
        unit="query",
        java_threads="1",
    ),
)

#: Stores that reading groups start from: how 4.9.3 makes them.
INPUTS: dict[str, Options] = {"singles": {"what": "put", "body": 1024, "keep": "true"}}
INPUT_COUNT_FULL = 1_000_000
#: Several files, so that they can be worked on side by side.
INPUT_FILE_FULL = 256 << 20
INPUT_FILE_SMOKE = 1 << 20
INPUT_COUNT_SMOKE = 2_000


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much to do: for a smoke test or for a measurement."""

    full: bool
    pairs: int
    seconds: float

    @property
    def warm_rounds(self) -> int:
        """Rounds of each side that do not count."""
        return FULL_WARM_ROUNDS if self.full else 0

    def count(self, group: Group) -> int:
        """Items of one unit of work."""
        return group.count if self.full else group.smoke

    def options(self, options: Options) -> dict[str, object]:
        """The options, with what is kept small in a smoke test."""
        scaled = dict(options)
        if not self.full:
            scaled |= {"slots": 1000, "indexes": 20_000}
            scaled |= {name: 3000 for name in ("stored",) if name in scaled}
        return scaled


class Worker:
    """A child process that does rounds of one kind of work when told."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.rates: list[float] = []
        self.byte_rates: list[float] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        self._answer()

    def round(self, seconds: float) -> dict[str, Any]:
        """Do one round and note its rate."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"round {seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.rates.append(answer["count"] / max(answer["seconds"], 1e-9))
        self.byte_rates.append(answer["bytes"] / max(answer["seconds"], 1e-9))
        return answer

    def forget(self) -> None:
        """Drop what the warm-up rounds measured."""
        self.rates.clear()
        self.byte_rates.clear()

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        try:
            self._process.communicate("quit\n", timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            code = self._process.wait(timeout=60)
            raise SystemExit(f"bench: {self.name} ended with exit code {code}: {line!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(
    group: Group, sizes: Sizes, java: JavaStore, inputs: Mapping[str, Path], home: Path
) -> list[str]:
    """Run one group; its rows of the table."""
    workers: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        distinct = {_worker_key(variant): variant for variant in group.ours}
        for key in ("java", *distinct):
            options = group.java if key == "java" else distinct[key].options
            path = _place(home / f"{group.name}-{len(workers)}", inputs.get(group.input))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            options = sizes.options({**options, "count": sizes.count(group)})
            if group.input:
                options |= _input_options(sizes)
            command = _command(key, java, path, options, sizes)
            workers[key] = Worker(f"{group.name}/{key}", command)
            stack.callback(workers[key].close)
        for number in range(sizes.warm_rounds + sizes.pairs):
            if number == sizes.warm_rounds:
                for worker in workers.values():
                    worker.forget()
            answers = {key: worker.round(sizes.seconds) for key, worker in workers.items()}
            for key, variant in distinct.items():
                if variant.answers and answers[key]["answer"] != answers["java"]["answer"]:
                    raise SystemExit(
                        f"bench: {group.name}/{key}: answer {answers[key]['answer']}, "
                        f"4.9.3 says {answers['java']['answer']}"
                    )
    rows = [_row(group, "4.9.3", group.java_threads, workers["java"], None, None)]
    for variant in group.ours:
        base = workers["java"] if variant.against == "java" else _named(workers, variant.against)
        rows.append(
            _row(group, variant.name, variant.threads, workers[_worker_key(variant)], base, variant)
        )
    return rows


def _worker_key(variant: Variant) -> str:
    return " ".join([variant.name, *(f"{k}={v}" for k, v in sorted(variant.options.items()))])


def _named(workers: Mapping[str, Worker], name: str) -> Worker:
    return next(worker for key, worker in workers.items() if key.split(" ")[0] == name)


def _command(key: str, java: JavaStore, path: Path, options: Options, sizes: Sizes) -> list[str]:
    words = [f"{name}={value}" for name, value in options.items()]
    if key == "java":
        heap = JAVA_HEAP if sizes.full else JAVA_HEAP_SMOKE
        return java.command("bench", str(path), *words, jvm=heap)
    return [sys.executable, str(OURS), str(path), *words]


def _place(path: Path, source: Path | None) -> Path:
    """A directory for one worker: empty, or its own copy of an input store."""
    if source is not None:
        subprocess.run(["cp", "-a", "--sparse=always", source, path], check=True)
    return path


def _row(
    group: Group,
    name: str,
    threads: str,
    worker: Worker,
    base: Worker | None,
    variant: Variant | None,
) -> str:
    rate = statistics.median(worker.rates)
    spread = f"{min(worker.rates):,.0f}–{max(worker.rates):,.0f}"
    byte_rate = statistics.median(worker.byte_rates) / 1e9
    cells = [group.title, name, threads, f"{rate:,.0f} {group.unit}/s", spread]
    cells.append(f"{byte_rate:.2f}" if byte_rate else "")
    if base is None or variant is None:
        cells += ["1", ""]
    else:
        pairs = [ours / theirs for ours, theirs in zip(worker.rates, base.rates, strict=True)]
        over = "" if variant.against == "java" else f" of {variant.against}"
        cells.append(
            f"**{statistics.median(pairs):.2f}**{over} ({min(pairs):.2f}–{max(pairs):.2f})"
        )
        cells.append("" if variant.goal is None else f"{variant.goal:g}")
    return "| " + " | ".join(cells) + " |"


def _input_count(sizes: Sizes) -> int:
    return INPUT_COUNT_FULL if sizes.full else INPUT_COUNT_SMOKE


def _input_options(sizes: Sizes) -> dict[str, object]:
    """What both sides must know of an input store."""
    file_size = INPUT_FILE_FULL if sizes.full else INPUT_FILE_SMOKE
    return {"stored": _input_count(sizes), "mappedFileSizeCommitLog": file_size}


def make_input(name: str, sizes: Sizes, java: JavaStore, path: Path) -> Path:
    """Let 4.9.3 write an input store; both sides then read copies of it."""
    options = {**INPUTS[name], **_input_options(sizes), "count": _input_count(sizes)}
    worker = Worker(f"input {name}", _command("java", java, path, options, sizes))
    worker.round(0)
    worker.close()
    return path


def machine(home: Path, sizes: Sizes) -> Iterator[str]:
    """What the numbers depend on."""
    from pyrocketstore._message import crc32_kernel

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith(("model name", "CPU implementer"))
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    yield f"- {time.strftime('%Y-%m-%d %H:%M')}; {'measured' if sizes.full else 'SMOKE SIZES'}"
    yield f"- {model}, {os.cpu_count()} cores, {memory:.0f} GiB; Linux {platform.release()}"
    yield f"- file system {_file_system(home)}; CRC kernel {crc32_kernel()}"
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    yield f"- Python {platform.python_version()} (GIL {'on' if gil else 'off'}); " + (
        java.stderr.splitlines()[0] + ", heap " + " ".join(JAVA_HEAP)
    )
    yield (
        f"- {sizes.pairs} pairs of rounds after {sizes.warm_rounds} warm ones, "
        f"at least {sizes.seconds:g} s a round"
    )


def _file_system(path: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, f"{kind} ({options})")
    return best[1]


def parse_arguments() -> tuple[argparse.Namespace, Sizes]:
    """The command line; BENCH_FULL=1 in the environment is --full."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="measure")
    size.add_argument("--smoke", action="store_true", help="only see that it runs")
    names = [group.name for group in GROUPS]
    parser.add_argument("--only", default="", help=f"of {','.join(names)}")
    parser.add_argument("--pairs", type=int, help=f"rounds of each side ({FULL_PAIRS})")
    parser.add_argument("--seconds", type=float, help=f"least time of a round ({FULL_SECONDS})")
    parser.add_argument("--directory", type=Path, help="where the stores go (build/bench)")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.only.split(",") if name]
    unknown = set(wanted) - set(names)
    if unknown:
        parser.error(f"--only: no such work: {', '.join(sorted(unknown))}")
    arguments.only = wanted
    full = arguments.full or (bool(os.environ.get("BENCH_FULL")) and not arguments.smoke)
    pairs = arguments.pairs or (FULL_PAIRS if full else 1)
    seconds = arguments.seconds if arguments.seconds is not None else FULL_SECONDS * full
    return arguments, Sizes(full, pairs, seconds)


def main() -> int:
    """Measure what was asked for."""
    arguments, sizes = parse_arguments()
    java = JavaStore()
    try:
        java.build()
    except JavaUnavailable as problem:
        print(f"SKIPPED ALOUD: {problem}: nothing to measure against", file=sys.stderr)
        return 0
    base = arguments.directory or ROOT / "build" / "bench"
    base.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory(dir=base) as temporary:
        home = Path(temporary)
        lines += [*machine(home, sizes), ""]
        lines.append(
            "| work | how | threads | rate (median) | rates | GB/s | ratio (pairs) | goal |"
        )
        lines.append("|---|---|---|---|---|---|---|---|")
        print("\n".join(lines), flush=True)
        inputs: dict[str, Path] = {}
        for group in GROUPS:
            if arguments.only and group.name not in arguments.only:
                continue
            if group.input and group.input not in inputs:
                path = home / f"input-{group.input}"
                inputs[group.input] = make_input(group.input, sizes, java, path)
            rows = measure(group, sizes, java, inputs, home)
            print("\n".join(rows), flush=True)
            lines += rows
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
