"""Goal: docs/differs.md names only modules and tests that exist, and each departure has both.
Method: read its tables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    """Return the cells of each row of the page, without the heads of its tables."""
    lines = (ROOT / "docs" / "differs.md").read_text(encoding="utf-8").splitlines()
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"\|[\s|:-]+\|", line)]
    heads = {*rules, *(number - 1 for number in rules)}
    found = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in heads
    ]
    assert found
    for number in rules:
        assert lines[number - 1].endswith("| kept by | test |"), lines[number - 1]
    return found


def test_departures_name_tests_that_exist() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    page = (ROOT / "docs" / "differs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert sorted(n for n in named if f"def {n}(" not in sources) == []
    assert [cells[0] for cells in rows() if "`test_" not in cells[-1]] == []


def test_departures_name_modules_that_exist() -> None:
    for cells in rows():
        modules = re.findall(r"`([\w/]+\.pyx?)`", cells[-2])
        assert modules, f"no module keeps: {cells[0]}"
        assert ", ".join(f"`{module}`" for module in modules) == cells[-2]
        missing = [m for m in modules if not (ROOT / "pyrocketstore" / m).is_file()]
        assert not missing, f"{missing}: {cells[0]}"
