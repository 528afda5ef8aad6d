"""A run: selects the variants that are available, makes their stores, and runs their rounds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.answers import compare
from bench.model import Group, Options, Variant, worker_name
from bench.paths import module_command
from bench.report import machine
from bench.sizes import Sizes
from bench.workers import compiled
from bench.workers.compiled import Unavailable
from bench.workers.process import Worker, WorkerEnded, alternate
from tests.support.java_driver import JavaDriver, JavaUnavailable

JAVA_HEAP = ("-Xms4g", "-Xmx4g")
JAVA_HEAP_SMOKE = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: C programs that read the input store.
READING_LIMITS = {"limit:crc_scan", "limit:read_records"}
#: Packages that the peers require.
PACKAGES = {"lmdb": "lmdb", "persist_queue": "persist-queue", "diskcache": "diskcache"}


class Bench:
    """One run: its workers, its directories, and the programs that are not available."""

    def __init__(self, sizes: Sizes, home: Path) -> None:
        self.sizes = sizes
        self.home = home
        self._java = JavaDriver()
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
        rust = compiled.BUILD.joinpath("rust").exists() and "rust" not in self._missing
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
                named = [one for one in taking if worker_name(group, one) == problem.name]
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
        worker = "peers" if variant.program == "peers" else "ours"
        return module_command(f"bench.workers.{worker}")

    def _worker(self, group: Group, variant: Variant, path: Path) -> Worker:
        options = self.sizes.options(group, variant)
        if variant.program == "empty":
            options["module"] = compiled.empty_call()
        command = self._command(variant, path, options)
        return Worker(worker_name(group, variant), command, self._problems_file())

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


def _piles_up(group: Group) -> bool:
    """Return whether all units of work write to one store."""
    return any("open" in variant.options for variant in group.variants)


def _reads_a_copy(variant: Variant) -> bool:
    """Return whether the variant works on a copy of the group's input store."""
    return variant.kind in {"base", "ours"} or variant.program in READING_LIMITS


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
