"""Compare pyrocketstore with RocketMQ 4.9.3 and with other stores that a Python program could use.

    python bench/run.py                    measure; write docs/benchmarks.{md,svg,json}
    python bench/run.py --only put,scan    measure a part; the rest of the record stays
    python bench/run.py --growth           rates by messages, queues and threads (--large: more)
    python bench/run.py --smoke            small sizes, as a test of the answers; write nothing
    python bench/run.py --render           write the page from the record

Each variant is a child process; all use one protocol (bench/README.md). Rounds alternate; a ratio
is the median over pairs of rounds of the same turn.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.append(str(ROOT))  # a build on PYTHONPATH comes first

import compiled  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from compiled import Unavailable  # noqa: E402
from groups import GROUPS, Group, Options, Variant  # noqa: E402
from growth import growth_groups  # noqa: E402
from record import Record  # noqa: E402
from support.java_store import JavaStore, JavaUnavailable  # noqa: E402
from workers import BenchError, Worker, WorkerEnded, alternate  # noqa: E402
from workload import RECORD_SIZE  # noqa: E402

HOME = Path(__file__).resolve().parent
JAVA_HEAP = ("-Xms4g", "-Xmx4g")
JAVA_HEAP_SMOKE = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FULL_SECONDS = 2.0
FULL_PAIRS = 5
FULL_WARM_ROUNDS = 2
SMOKE_COUNT_MIN = 20
SMOKE_QUEUES_MAX = 100
#: Small enough that an input store has several files, which can be scanned in parallel.
INPUT_FILE_FULL = 256 << 20
INPUT_FILE_SMOKE = 1 << 20
TAG_SIZE = len("TagA")
#: C programs that read the input store.
READING_LIMITS = {"limit:crc_scan", "limit:read_records"}
#: Packages that the peers require.
PACKAGES = {"lmdb": "lmdb", "persist_queue": "persist-queue", "diskcache": "diskcache"}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Amount of work: for a smoke test or for a measurement."""

    full: bool
    pairs: int
    seconds: float

    @property
    def warm_rounds(self) -> int:
        """Return the number of warm-up rounds of each variant."""
        return FULL_WARM_ROUNDS if self.full else 0

    def count(self, group: Group, variant: Variant) -> int:
        """Return the number of items in one unit of work."""
        if self.full:
            return max(1, round(group.count * variant.share))
        return max(SMOKE_COUNT_MIN, round(group.smoke * variant.share))

    def stored(self, group: Group, variant: Variant) -> int:
        """Return the number of messages in the input store; get and scan read them all."""
        all_of_them = group.input if self.full else group.smoke_input
        if variant.options.get("what") not in {"get", "scan"}:
            return all_of_them
        return max(SMOKE_COUNT_MIN, round(all_of_them * variant.share))

    def options(self, group: Group, variant: Variant) -> dict[str, object]:
        """Return the options of a variant's worker."""
        found: dict[str, object] = {**variant.options, "count": self.count(group, variant)}
        if group.input and not variant.program.startswith("limit:"):
            found["stored"] = self.stored(group, variant)
            found["body"] = group.input_body
            found["mappedFileSizeCommitLog"] = self.input_file_size
        if not self.full:
            found |= {"slots": 1000, "indexes": 20_000}
            found |= {name: 3000 for name in ("stored",) if name in variant.options}
            if "queues" in found:
                found["queues"] = min(int(str(found["queues"])), SMOKE_QUEUES_MAX)
        return found

    @property
    def input_file_size(self) -> int:
        """Return the size in bytes of a log file of an input store."""
        return INPUT_FILE_FULL if self.full else INPUT_FILE_SMOKE


class Bench:
    """One run: its workers, its directories, and the programs that are not available."""

    def __init__(self, sizes: Sizes, home: Path) -> None:
        self.sizes = sizes
        self.home = home
        self._java = JavaStore()
        self._missing: dict[str, str] = {}
        self._inputs: dict[tuple[int, int], Path] = {}
        self._problems = itertools.count()
        try:
            self._java.build()
        except JavaUnavailable as problem:
            self._missing["java"] = str(problem)
            print(f"SKIPPED ALOUD: {problem}: 4.9.3 is not measured", file=sys.stderr)

    @property
    def has_java(self) -> bool:
        """Return whether 4.9.3 takes part."""
        return "java" not in self._missing

    def facts(self) -> dict[str, str]:
        """Return the facts of this run for the record."""
        rust = compiled.OUT.joinpath("rust").exists() and "rust" not in self._missing
        found = machine.facts(self.home, java=self.has_java, rust=rust)
        sizes = self.sizes
        found["method"] = (
            f"{sizes.pairs} pairs of rounds after {sizes.warm_rounds} warm-up rounds, "
            f"at least {sizes.seconds:g} s per round"
        )
        if self.has_java:
            found["heap"] = " ".join(JAVA_HEAP if sizes.full else JAVA_HEAP_SMOKE)
        found["size"] = "measured" if sizes.full else "SMOKE SIZES"
        return found

    def prepare(self, groups: Sequence[Group], skipped: Sequence[str]) -> None:
        """Build the programs of the groups before anything is timed."""
        for name in skipped:
            self._missing[name] = "left out by --without"
        for variant in (variant for group in groups for variant in group.variants):
            with contextlib.suppress(Unavailable):
                self._program(variant)

    def measure(self, group: Group) -> dict[str, Any]:
        """Run one group, again without a peer that fails; return its part of the record."""
        taking, left_out = self._who(group)
        while True:
            try:
                return self._measure(group, taking, left_out)
            except WorkerEnded as problem:
                named = [one for one in taking if _worker_name(group, one) == problem.name]
                broken = named[0] if named else None  # None: the writer of the input store
                if broken is None or broken.kind != "peer":
                    raise
                print(f"LEFT OUT ALOUD: {problem}", file=sys.stderr, flush=True)
                taking.remove(broken)
                left_out.append({"name": broken.name, "reason": problem.reason})

    def _measure(
        self, group: Group, taking: Sequence[Variant], left_out: Sequence[dict[str, str]]
    ) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            workers = []
            for variant in taking:
                path = self._place(group, variant, len(workers))
                stack.callback(shutil.rmtree, path, ignore_errors=True)
                workers.append(self._worker(group, variant, path))
                stack.callback(workers[-1].close)
            sizes = self.sizes
            read_bytes = self._read_bytes(group, taking)
            prepare = functools.partial(self._prepare, group)
            answers = alternate(workers, sizes.warm_rounds, sizes.pairs, sizes.seconds, prepare)
        for found in answers:
            compare(self.sizes, group, taking, found)
        rows = [
            {
                **_described(variant),
                "n": self._n(group, variant),
                **worker.rounds.record(),
            }
            for variant, worker in zip(taking, workers, strict=True)
        ]
        return {
            "title": group.title,
            "unit": group.unit,
            "latency": group.shows_latency,
            "axis": group.axis,
            "at": group.at,
            "note": group.note,
            "piles_up": _piles_up(group),
            "written_bytes": self._written(group, workers),
            "read_bytes": read_bytes,
            "rows": rows,
            "left_out": list(left_out),
        }

    def _prepare(self, group: Group) -> None:
        """Prepare the machine for a round: its free memory must not decide about rates of puts."""
        if self.sizes.full and group.record and machine.reports_free_pages():
            machine.provide_free_memory()

    def _written(self, group: Group, workers: Sequence[Worker]) -> int:
        """Return the maximum size in bytes of a store's log: one unit of work, or all of them."""
        units = max(worker.rounds.units for worker in workers) if _piles_up(group) else 1
        return units * group.record * (group.count if self.sizes.full else group.smoke)

    def _read_bytes(self, group: Group, taking: Sequence[Variant]) -> int:
        """Return the size in bytes of the input store and all its copies, all in the page cache."""
        if not group.input:
            return 0
        files = [one.stat() for one in self._input(group).rglob("*") if one.is_file()]
        copies = sum(_reads_a_copy(variant) for variant in taking)
        return (1 + copies) * sum(512 * stat.st_blocks for stat in files)

    def _who(self, group: Group) -> tuple[list[Variant], list[dict[str, str]]]:
        taking, left_out = [], []
        for variant in group.variants:
            try:
                self._program(variant)
            except Unavailable as problem:
                left_out.append({"name": variant.name, "reason": str(problem)})
            else:
                taking.append(variant)
        return taking, left_out

    def _program(self, variant: Variant) -> list[str]:
        """Return the command without options. Raises Unavailable."""
        if reason := self._missing.get(variant.program):
            raise Unavailable(reason)
        queues = int(str(variant.options.get("queues", 0)))
        if variant.program == "java" and self.sizes.full and queues > machine.open_files_max():
            raise Unavailable(
                f"4.9.3 keeps each queue file open: {queues:,} queues need more than the limit of"
                f" {machine.open_files_max():,} open files"
            )
        package = PACKAGES.get(str(variant.options.get("peer")))
        if package and not machine.has(package):
            raise Unavailable(f"{package} is not installed (`make bench` installs it)")
        try:
            if variant.program == "rust":
                return [str(compiled.rust(build=self.sizes.full))]
            if variant.program.startswith("limit:"):
                return [str(compiled.limit(variant.program.removeprefix("limit:")))]
            if variant.program == "empty":
                compiled.empty_call()
        except Unavailable as problem:
            self._missing[variant.program] = str(problem)
            print(f"SKIPPED ALOUD: {variant.name}: {problem}", file=sys.stderr)
            raise
        script = "peers.py" if variant.program == "peers" else "ours.py"
        return [sys.executable, str(HOME / script)]

    def _worker(self, group: Group, variant: Variant, path: Path) -> Worker:
        options = self.sizes.options(group, variant)
        if variant.program == "empty":
            options["module"] = compiled.empty_call()
        command = self._command(variant, path, options)
        return Worker(_worker_name(group, variant), command, self._problems_file())

    def _problems_file(self) -> Path:
        """Return the file for the standard error of one worker."""
        return self.home / f"problems-{next(self._problems)}.txt"

    def _command(self, variant: Variant, path: Path, options: Options) -> list[str]:
        words = [str(path), *(f"{name}={value}" for name, value in options.items())]
        if variant.program == "java":
            heap = JAVA_HEAP if self.sizes.full else JAVA_HEAP_SMOKE
            return self._java.command("bench", *words, jvm=heap)
        return [*self._program(variant), *words]

    def _n(self, group: Group, variant: Variant) -> int:
        if group.input and variant.options.get("what") in {"get", "scan"}:
            return self.sizes.stored(group, variant)
        return self.sizes.count(group, variant)

    def _place(self, group: Group, variant: Variant, number: int) -> Path:
        """Return a directory for one worker: new, or its own copy of an input store."""
        path = self.home / f"{group.name}-{number}"
        if group.input and _reads_a_copy(variant):
            source = self._input(group)
            subprocess.run(["cp", "-a", "--sparse=always", source, path], check=True)
            fsync_files(path)
        return path

    def _input(self, group: Group) -> Path:
        """Return the store that the variants read copies of; 4.9.3 writes it if available."""
        count = group.input if self.sizes.full else group.smoke_input
        key = (count, group.input_body)
        if key not in self._inputs:
            for old in self._inputs.values():
                shutil.rmtree(old)
            self._inputs.clear()
            path = self.home / f"input-{count}-{group.input_body}"
            program = "java" if self.has_java else "ours"
            variant = Variant(f"input {count}", program, {}, "", "")
            options: Options = {
                "what": "put",
                "keep": "true",
                "count": count,
                "body": group.input_body,
                "mappedFileSizeCommitLog": self.sizes.input_file_size,
            }
            command = self._command(variant, path, options)
            worker = Worker(variant.name, command, self._problems_file())
            worker.round(0)
            worker.close()
            self._inputs[key] = path
        return self._inputs[key]


def fsync_files(path: Path) -> None:
    """Write a copy to disk; otherwise the kernel would do it during the rounds."""
    for file in (one for one in path.rglob("*") if one.is_file()):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def compare(
    sizes: Sizes, group: Group, taking: Sequence[Variant], answers: Sequence[Mapping[str, Any]]
) -> None:
    """Raise BenchError if a variant gave a wrong answer."""
    for variant, answer in zip(taking, answers, strict=True):
        who = _worker_name(group, variant)
        wanted = expected(sizes, group, variant)
        if wanted is not None and answer["answer"] != wanted:
            raise BenchError(f"{who}: answer {answer['answer']}, expected {wanted}")
        # Only 4.9.3 and ours report the log's size, and only if a unit of work creates a new store.
        log = sizes.count(group, variant) * group.record
        if group.record and answer.get("log", log) != log:
            raise BenchError(f"{who}: {answer['log']} bytes of records, expected {log}")


def expected(sizes: Sizes, group: Group, variant: Variant) -> int | None:
    """Return the answer that a variant must give (see README.md); None if it is not known."""
    if not variant.answers:
        return None
    what = variant.options.get("what")
    count = sizes.count(group, variant)
    if what in {"get", "get_checked"}:  # tags twice, keys k0, k1...
        stored = sizes.stored(group, variant)
        return sum((2 * TAG_SIZE + 1 + digits) * many for digits, many in _digits(stored))
    if what in {"get_columns", "scan", "rebuild", "recover"}:
        return sizes.stored(group, variant)
    if what == "index_put":  # the physical offset of the last key
        return (count - 1) * RECORD_SIZE
    reads_hits = what in {"query", "query_checked", "query_many_messages"}
    if reads_hits and "places" not in variant.options:
        return count * (2 * TAG_SIZE + 1)
    return count


def _digits(count: int) -> Iterator[tuple[int, int]]:
    """Yield (digits, how many of the numbers below `count` have so many digits)."""
    for digits in range(1, len(str(count)) + 1):
        first = 10 ** (digits - 1) if digits > 1 else 0
        if first < count:
            yield digits, min(count, 10**digits) - first


def _piles_up(group: Group) -> bool:
    """Return whether all units of work write to one store."""
    return any("open" in variant.options for variant in group.variants)


def _reads_a_copy(variant: Variant) -> bool:
    """Return whether the variant works on a copy of the group's input store."""
    return variant.kind in {"base", "ours"} or variant.program in READING_LIMITS


def _worker_name(group: Group, variant: Variant) -> str:
    return f"{group.name}/{variant.name}"


def _described(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "kind": variant.kind,
        "threads": variant.threads,
        "words": variant.words,
        "goals": [list(goal) for goal in variant.goals],
        "floors": [list(floor) for floor in variant.floors],
        "beside": variant.beside,
    }


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--smoke", action="store_true", help="small sizes, as a test; write nothing")
    what.add_argument("--render", action="store_true", help="write the page from the record")
    parser.add_argument(
        "--growth", action="store_true", help="measure the curves instead of the tables"
    )
    parser.add_argument("--large", action="store_true", help="with --growth: up to 50 M messages")
    parser.add_argument("--only", default="", help="names of groups, comma-separated")
    parser.add_argument(
        "--without",
        default="",
        help="programs to leave out: java, rust, peers, empty; comma-separated",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        help=f"pairs of rounds ({FULL_PAIRS}); with fewer, the record in docs/ stays",
    )
    parser.add_argument("--seconds", type=float, help=f"minimum seconds per round ({FULL_SECONDS})")
    parser.add_argument("--note", default="", help="a remark about this run for the page")
    parser.add_argument("--directory", type=Path, help="directory for the stores (build/bench)")
    parser.add_argument(
        "--out", type=Path, help="directory for record and page (docs; smoke: none)"
    )
    arguments = parser.parse_args()
    groups = growth_groups(large=arguments.large) if arguments.growth else GROUPS
    names = [name for name in arguments.only.split(",") if name]
    known = {group.name for group in groups}
    if unknown := sorted(set(names) - known):
        parser.error(
            f"--only: unknown group {', '.join(unknown)}; choose from {', '.join(sorted(known))}"
        )
    arguments.groups = [group for group in groups if not names or group.name in names]
    arguments.without = [name for name in arguments.without.split(",") if name]
    return arguments


def default_directory(full: bool, pairs: int) -> Path | None:
    """Return the directory for record and page; None where the ratios would be noise."""
    return ROOT / "docs" if full and pairs >= FULL_PAIRS else None


def main() -> int:
    """Measure the selected groups; return the exit status."""
    arguments = parse_arguments()
    full = not arguments.smoke
    if arguments.render:
        report.render(arguments.out or ROOT / "docs")
        return 0
    pairs = arguments.pairs or (FULL_PAIRS if full else 1)
    out = arguments.out or default_directory(full, pairs)
    seconds = arguments.seconds if arguments.seconds is not None else FULL_SECONDS * full
    sizes = Sizes(full, pairs, seconds)
    base = arguments.directory or ROOT / "build" / "bench"
    base.mkdir(parents=True, exist_ok=True)
    failures = 0
    # Remove the stores on SIGTERM as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: terminated"))
    with tempfile.TemporaryDirectory(dir=base) as temporary:
        bench = Bench(sizes, Path(temporary))
        bench.prepare(arguments.groups, arguments.without)
        facts = bench.facts()
        facts |= {"note": arguments.note} if arguments.note else {}
        record = Record.read(out)
        record.begin(facts)
        print("\n".join(report.run_facts(facts)), flush=True)
        for group in arguments.groups:
            try:
                found = bench.measure(group)
            except BenchError as problem:
                print(f"bench: {problem}", file=sys.stderr, flush=True)
                failures += 1
                continue
            record.add(group.name, found)
            print("\n".join(["", *report.section(group.name, found)]), flush=True)
            if out is not None:
                record.write(out)
    if out is not None:
        report.render(out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
