"""Adds up the counts of several runs of pytest, as their JUnit files have them, and prints them as
pytest does.

    python tools/test_counts.py build/counts
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def counts_of(path: Path) -> tuple[Counter[str], float]:
    """Return the counts of one run, and its seconds."""
    counts: Counter[str] = Counter()
    seconds = 0.0
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors")}
        skipped = int(suite.get("skipped", 0))
        counts["failed"] += number["failures"]
        counts["passed"] += number["tests"] - number["failures"] - number["errors"] - skipped
        counts["skipped"] += skipped
        counts["errors"] += number["errors"]
        seconds += float(suite.get("time", 0))
    return counts, seconds


def main(directory: Path) -> int:
    """Print the sum for the files of a directory; 1 if a test failed, or if there is no file."""
    total: Counter[str] = Counter()
    seconds = 0.0
    for path in sorted(directory.glob("*.xml")):
        counts, took = counts_of(path)
        total += counts
        seconds += took
        print(f"{path.stem}: {counts['passed']} passed, {counts['failed']} failed in {took:.0f} s")
    text = ", ".join(f"{total[name]} {name}" for name in ("failed", "passed", "skipped", "errors")
                     if total[name])  # fmt: skip
    print(f" {text or 'no tests ran'} in {seconds:.2f}s ".center(80, "="))
    return int(not total["passed"] or total["failed"] + total["errors"] > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
