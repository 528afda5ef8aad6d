"""Compare pyrocketstore with RocketMQ 4.9.3 and with other stores that a Python program could use.

    python -m bench                    measure; write docs/benchmarks.{md,svg,json}
    python -m bench --only put,scan    measure a part; the rest of the record stays
    python -m bench --growth           rates by messages, queues and threads (--large: more)
    python -m bench --smoke            small sizes, as a test of the answers; write nothing
    python -m bench --render           write the page from the record

Each variant is a child process; all use one protocol (bench/README.md). Rounds alternate; a ratio
is the median over pairs of rounds of the same turn.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from bench.catalog import GROUPS, growth_groups
from bench.measure import Bench
from bench.paths import BUILD, ROOT
from bench.report import page
from bench.report.record import Record
from bench.sizes import Sizes
from bench.workers.process import BenchError

FULL_SECONDS = 2.0
FULL_PAIRS = 5


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
        page.render(arguments.out or ROOT / "docs")
        return 0
    pairs = arguments.pairs or (FULL_PAIRS if full else 1)
    out = arguments.out or default_directory(full, pairs)
    seconds = arguments.seconds if arguments.seconds is not None else FULL_SECONDS * full
    sizes = Sizes(full, pairs, seconds)
    base = arguments.directory or BUILD
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
        print("\n".join(page.run_facts(facts)), flush=True)
        for group in arguments.groups:
            try:
                found = bench.measure(group)
            except BenchError as problem:
                print(f"bench: {problem}", file=sys.stderr, flush=True)
                failures += 1
                continue
            record.add(group.name, found)
            print("\n".join(["", *page.section(group.name, found)]), flush=True)
            if out is not None:
                record.write(out)
    if out is not None:
        page.render(out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
