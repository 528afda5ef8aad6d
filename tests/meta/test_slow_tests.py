"""Goal: each entry of slow_tests.txt leaves a test out that exists, and no file of tests is left
out as a whole.
Method: the texts of the files."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
NODES = (TESTS / "slow_tests.txt").read_text().splitlines()


def test_each_entry_is_a_test() -> None:
    assert sorted(set(NODES)) == NODES
    for node in NODES:
        file, *classes, name = node.partition("[")[0].split("::")
        text = (TESTS.parent / file).read_text()
        for one in (*(f"class {each}" for each in classes), f"def {name}"):
            assert re.search(rf"\b{one}\b", text), node


def test_each_file_keeps_a_quick_test() -> None:
    for file in {node.partition("::")[0] for node in NODES}:
        named = {node.partition("::")[2] for node in NODES if node.startswith(f"{file}::")}
        whole = {name for name in named if "[" not in name}
        defined = set(
            re.findall(r"^ *(?:async )?def (test_\w+)", (TESTS.parent / file).read_text(), re.M)
        )
        assert defined - {name.rpartition("::")[2] for name in whole}, file
