"""The record of the last measurements (benchmarks.json), and the ratios between its rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.model import BASE

FORMAT = 1


class Record:
    """Groups by name, each with the run that measured it last."""

    def __init__(self, runs: dict[str, Any], groups: dict[str, Any]) -> None:
        self.runs = runs
        self.groups = groups
        self._run = ""

    @classmethod
    def read(cls, directory: Path | None) -> Record:
        """Return the record in the directory, or an empty one."""
        path = directory / "benchmarks.json" if directory else None
        if path is None or not path.exists():
            return cls({}, {})
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return cls({}, {})
        return cls(found["runs"], found["groups"])

    def begin(self, facts: Mapping[str, str]) -> None:
        """Begin a new run; the groups added next belong to it."""
        self._run = str(1 + max(map(int, self.runs), default=0))
        self.runs[self._run] = dict(facts)

    def add(self, name: str, group: Mapping[str, Any]) -> None:
        """Replace a group's figures; drop runs that no group refers to any more."""
        self.groups[name] = {"run": self._run, **group}
        used = {group["run"] for group in self.groups.values()}
        self.runs = {number: run for number, run in self.runs.items() if number in used}

    def write(self, directory: Path) -> None:
        """Write benchmarks.json."""
        directory.mkdir(parents=True, exist_ok=True)
        found = {"format": FORMAT, "runs": self.runs, "groups": self.groups}
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        directory.joinpath("benchmarks.json").write_text(text, encoding="utf-8")


def row_of(group: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the row with this name, if the group has it."""
    return next((row for row in group["rows"] if row["name"] == name), None)


def base_of(group: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of 4.9.3 to compare with: the one that a row of ours names, or BASE."""
    named = row_of(group, row.get("beside", "")) if row["kind"] == "ours" else None
    return named or row_of(group, BASE)


def ours_of(group: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of ours to compare with: the one that the row names, or the first."""
    named = row_of(group, row.get("beside", "")) if row["kind"] != "ours" else None
    return named or next((one for one in group["rows"] if one["kind"] == "ours"), None)


def ratios(row: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Return the ratio of the rates of each pair of rounds."""
    return [a / b for a, b in zip(row["rates"], base["rates"], strict=True)]


def median_ratio(row: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    """Return the median over the pairs of rounds."""
    return statistics.median(ratios(row, base))


def short(value: float) -> str:
    """Format with three significant digits, two for small numbers."""
    if value >= 100:
        return f"{value:,.0f}"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
