"""Runs mutants in worker processes, so that a crash or a hang ends one worker and is reported.

    python tests/faults/fuzz_run.py --kernels 1000000 --stores 20000 --tiny 1000000 --processes 2

ROCKETSTORE_SEED selects other mutants, and `--begin N` continues after mutant N.
ROCKETSTORE_MUTANT=NAME:SEED:NUMBER runs the mutant that a failure named, and makes it smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow

HERE = Path(__file__).parent
if __name__ == "__main__":  # a worker, or the soak
    sys.path[:0] = [str(HERE), str(HERE.parent)]

from support.seed import SEED  # noqa: E402

IS_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")
#: Limits of one mutant: seconds of processor time, and of real time.
CPU_LIMIT_S, HANG_LIMIT_S = (5.0, 120.0) if IS_ASAN else (1.0, 60.0)
#: Seconds of processor time of the first mutant of a kind, which imports what the kind needs.
WARM_LIMIT_S = 10.0
#: Limits of a worker's memory above its size at the start, in bytes. Some buffers have 2.6 MB and
#: are decoded three times, which needs more than 80 MiB. Stores have a few KB, but verify reserves
#: columns for a chunk of a large one.
KERNEL_ROOM, STORE_ROOM = 128 << 20, 256 << 20
NOTE_SIZE = 200
MAX_FAILURES = 5
#: Directory for stores, if it exists: the speed of a disk's fsync is not tested here.
MEMORY = Path("/dev/shm")
SHRINK_CHECKS = 600


# ---- one worker ----------------------------------------------------------------------------------


class Note:
    """A file that names the current mutant, readable after the process has died."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(NOTE_SIZE))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), NOTE_SIZE)

    def set(self, text: str) -> None:
        self.map[:] = text.encode()[:NOTE_SIZE].ljust(NOTE_SIZE, b"\0")


def watch(limit_s: float = CPU_LIMIT_S) -> None:
    """Restart both watchdogs, whose signals end the process."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, HANG_LIMIT_S)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory(room: int) -> None:
    """Turn an allocation beyond `room` bytes into a MemoryError.

    The sanitizer reserves address space of its own. With it, `make soak-fuzz` limits each
    allocation by max_allocation_size_mb: an allocation of a length from a damaged file is a
    MemoryError too, but many small ones together are not.
    """
    if not IS_ASAN:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def quiet() -> None:
    logging.disable()
    warnings.simplefilter("ignore")


def makers(layer: str) -> tuple[type, ...]:
    """The kernels, which make and check mutants."""
    import fuzz_keys
    import fuzz_large
    import fuzz_records
    import fuzz_stores
    import fuzz_tables

    if layer == "kernels":
        return (
            *fuzz_records.KERNELS,
            *fuzz_tables.KERNELS,
            *fuzz_keys.KERNELS,
            *fuzz_large.KERNELS,
        )
    return fuzz_stores.TINY_KERNELS if layer == "tiny" else fuzz_stores.KERNELS


class Worker:
    """Run every `step`-th mutant from `first` on in this process, `count` of them."""

    def __init__(self, layer: str, seed: str, scratch: Path) -> None:
        self.layer = layer
        self.seed = seed
        self.note = Note(scratch / "note")
        self.kernels: list[Any] = []
        for maker in makers(layer):
            folder = scratch / maker.name
            folder.mkdir()
            self.kernels.append(maker(seed, folder))
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, first: int, step: int, count: int) -> dict[str, Any]:
        room = KERNEL_ROOM if self.layer == "kernels" else STORE_ROOM
        for i in range(len(self.kernels)):  # lazily made objects exist before memory is measured
            with contextlib.suppress(AssertionError):
                name = f"{self.kernels[i].name}:{self.seed}:warm{i}"
                self.one(self.kernels[i], name, WARM_LIMIT_S)
                if self.layer != "kernels":
                    self.kernels[i].warm()
        pyarrow.array([0])  # Arrow's allocator reserves address space when it is first used
        self.failures.clear()
        self.counts.clear()
        gc.collect()
        gc.freeze()  # these objects stay: exclude them from collections
        turns = [kernel for kernel in self.kernels for _ in range(kernel.weight)]
        limit_memory(room)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.process_time()
        with watched():
            for number in range(first, first + step * count, step):
                kernel = turns[number // step % len(turns)]
                self.one(kernel, f"{kernel.name}:{self.seed}:{number}")
                if len(self.failures) >= MAX_FAILURES:
                    break
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if grown > room and not IS_ASAN:
            self.failures.append(f"the process grew by {grown} bytes")
        return {
            "counts": self.counts,
            "failures": self.failures,
            "seconds": time.process_time() - begin,
            "grown": grown,
            "notes": [kernel.note() for kernel in self.kernels if hasattr(kernel, "note")],
        }

    def one(self, kernel: Any, name: str, limit_s: float = CPU_LIMIT_S) -> None:
        self.note.set(name)
        watch(limit_s)
        self.counts[kernel.name] += 1
        mutant = kernel.make(random.Random(name))
        try:
            kernel.check(mutant)
        except Exception as error:  # noqa: BLE001 - every kind of failure is reported
            self.failures.append(report(name, mutant, error))

    def repeat(self, name: str) -> dict[str, Any]:
        """Run the mutant of a name, and make it smaller if it fails."""
        kernel = next(kernel for kernel in self.kernels if kernel.name == name.split(":")[0])
        mutant = kernel.make(random.Random(name))
        failed = failing(kernel, type(None))
        error = failed(mutant)
        if error is not None:
            smaller = shrink(kernel, mutant, failing(kernel, type(error)))
            self.failures.append(report(name, mutant, error))
            self.failures.append(report(f"{name}, smaller", smaller, failed(smaller) or error))
        return {"counts": {kernel.name: 1}, "failures": self.failures, "seconds": 0, "grown": 0,
                "notes": [f"{mutant.text}; {bytes_text(mutant)}"]}  # fmt: skip


def report(name: str, mutant: Any, error: BaseException) -> str:
    last = "".join(traceback.format_exception(error)[-4:])
    return f"ROCKETSTORE_MUTANT={name}\n  {mutant.text}\n  {bytes_text(mutant)}\n{last}"


def bytes_text(mutant: Any) -> str:
    data = getattr(mutant, "data", None)
    if isinstance(data, bytes):
        shown = data.hex() if len(data) <= 1000 else data[:1000].hex() + "…"
        return f"{len(data)} bytes {shown}, arguments {mutant.arguments}"
    return str(mutant)


def failing(kernel: Any, wanted: type) -> Callable[[Any], BaseException | None]:
    """Return a function: mutant -> its failure, None if there is none of the given type."""

    def failure(mutant: Any) -> BaseException | None:
        try:
            kernel.check(mutant)
        except Exception as error:  # noqa: BLE001 - as above
            return error if wanted is type(None) or isinstance(error, wanted) else None
        return None

    return failure


def shrink(kernel: Any, mutant: Any, fails: Callable[[Any], object]) -> Any:
    """Return a minimal mutant that still fails; each step takes the first smaller one."""
    checks = 0
    found = True
    while found and checks < SHRINK_CHECKS:
        found = False
        for smaller in kernel.shrink(mutant):
            checks += 1
            if fails(smaller) is not None:
                mutant, found = smaller, True
                break
            if checks >= SHRINK_CHECKS:
                break
    return mutant


# ---- all workers ---------------------------------------------------------------------------------


class Outcome:
    """The combined results of all workers of a run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.grown = 0

    def add(self, found: dict[str, Any]) -> None:
        self.counts.update(found["counts"])
        self.failures += found["failures"]
        self.notes += found["notes"]
        self.seconds += found["seconds"]
        self.grown = max(self.grown, found["grown"])

    def text(self, layer: str) -> str:
        total = sum(self.counts.values())
        rate = total / self.seconds if self.seconds else 0
        parts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        what = {"kernels": "kernel mutants (buffers)", "tiny": "mutants of tiny stores"}.get(
            layer, "whole-store mutants"
        )
        return (f"{total} {what}, seed {SEED}, {self.seconds:.1f} s, {rate:.0f} a second, memory "
                f"grew by {self.grown >> 20} MiB: {parts}")  # fmt: skip


def run(layer: str, count: int, processes: int = 1, only: str = "", begin: int = 0) -> Outcome:
    """Run `count` mutants of a layer from number `begin` on; the outcome has all failures."""
    outcome = Outcome()
    seed = only.split(":")[1] if only else SEED
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rocketstore-fuzz-", dir=memory) as scratch:
        workers = []
        for i in range(processes):
            folder = Path(scratch) / str(i)
            folder.mkdir()
            own = count // processes + (i < count % processes)
            words = [sys.executable, str(HERE / "fuzz_run.py"), "--worker", layer, "--seed", seed,
                     "--scratch", str(folder), "--first", str(begin + i), "--step", str(processes),
                     "--count", str(own), "--only", only]  # fmt: skip
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                env = {**os.environ, "MALLOC_ARENA_MAX": "1"}
                workers.append((folder, subprocess.Popen(words, stdout=out, stderr=err, env=env)))
        for folder, process in workers:
            code = process.wait()
            if code:
                outcome.failures.append(ended(folder, code))
            else:
                outcome.add(json.loads((folder / "out").read_text().splitlines()[-1]))
    return outcome


def ended(folder: Path, code: int) -> str:
    """Describe a worker that ended early."""
    note = folder / "note"
    name = note.read_bytes().rstrip(b"\0").decode() if note.exists() else "the start"
    why = {
        -signal.SIGPROF: f"took more than {CPU_LIMIT_S} s of processor time",
        -signal.SIGALRM: f"did not end in {HANG_LIMIT_S} s",
    }.get(code, f"ended with {code}")
    error = (folder / "err").read_text(errors="replace")
    return f"ROCKETSTORE_MUTANT={name}\n  the process {why}\n{error[-4000:]}"


def worker_main(words: argparse.Namespace) -> None:
    quiet()
    threading.stack_size(1 << 20)  # unused stack space counts towards the limit
    worker = Worker(words.worker, words.seed, Path(words.scratch))
    found = worker.repeat(words.only) if words.only else worker.run(
        words.first, words.step, words.count
    )  # fmt: skip
    print(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=0)
    parser.add_argument("--stores", type=int, default=0)
    parser.add_argument("--tiny", type=int, default=0)
    parser.add_argument("--begin", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--processes", type=int, default=1)
    for name in ("--worker", "--seed", "--scratch", "--only"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    for name in ("--first", "--step", "--count"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker:
        worker_main(words)
        return 0
    mutant = os.environ.get("ROCKETSTORE_MUTANT", "")
    failed = 0
    counts = {"kernels": words.kernels, "stores": words.stores, "tiny": words.tiny}
    for layer, count in counts.items():
        if count and not mutant:
            outcome = run(layer, count, words.processes, begin=words.begin)
            print(outcome.text(layer), *outcome.notes, *outcome.failures, sep="\n", flush=True)
            failed += len(outcome.failures)
    if mutant:
        outcome = repeat(mutant)
        print(*outcome.notes, *outcome.failures, sep="\n")
        failed += len(outcome.failures)
    return 1 if failed else 0


def repeat(mutant: str) -> Outcome:
    """Run the mutant of a name."""
    kind = mutant.partition("-")[0]
    return run({"store": "stores", "tiny": "tiny"}.get(kind, "kernels"), 1, 1, mutant)


if __name__ == "__main__":
    sys.exit(main())
