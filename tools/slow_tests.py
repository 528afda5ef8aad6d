"""Adds the slow ones of the quick tests to tests/slow_tests.txt, so that `make test` leaves them to
`make test-all`.

    make test-quick; python tools/slow_tests.py build/counts/test-quick.xml

Each file of tests keeps at least one quick test, and so does `make test` the smoke test of Spark.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow_tests.txt"
SLOW_S = 0.5
#: Always quick: the one test of Spark that `make test` has.
KEPT = {"tests/spark/test_source.py"}


def node_of(case: ElementTree.Element) -> tuple[str, str]:
    """Return the file of a test, and its node id; two empty texts for what is not of a file."""
    parts = case.get("classname", "").split(".")
    for count in range(len(parts), 0, -1):
        file = f"{'/'.join(parts[:count])}.py"
        if (ROOT / file).exists():
            return file, "::".join([file, *parts[count:], case.get("name", "")])
    return "", ""


def main(path: Path) -> None:
    """Add what took long in the run of a JUnit file."""
    times: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        file, node = node_of(case)
        times[file].append((float(case.get("time", 0)), node))
    known = set(LIST.read_text().splitlines()) if LIST.exists() else set()
    found = {
        node
        for file, cases in times.items()
        if file and file not in KEPT
        for seconds, node in sorted(cases)[1:]
        if seconds >= SLOW_S
    }
    LIST.write_text("".join(f"{node}\n" for node in sorted(known | found)))
    print(f"{len(found - known)} tests added to {LIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
