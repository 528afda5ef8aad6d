"""The record of the last measurements as JSON, as a Markdown page and as plots."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FORMAT = 1
BASE = "4.9.3"
#: A limit closes a row when the C program is at most that much faster.
CLOSING_RATIO = 1.15
LATENCIES = ("p50", "p99", "p99.9", "max")
MIB = 1 << 20
#: Facts that the first lines of a head tell by themselves.
TOLD = set("note,when,size,method,processor,cores,memory,kernel,file system,dirty limit".split(","))

INTRO = """\
# Benchmarks

Written by `bench/run.py`; the numbers are in [benchmarks.json](benchmarks.json). The method is told
in [bench/README.md](../bench/README.md). In short: all sides work in turn within one run, on the
same number of messages; a ratio is the median over the pairs of neighbouring rounds, with the
smallest and the largest pair behind it. Only ratios count: the same machine gives rates that differ
by a factor of two between hours.

| to repeat | command |
|---|---|
| everything but the curves | `make bench` |
| one table | `make bench ONLY=put` (its name stands in its heading) |
| the curves | `make bench-growth`, with `LARGE=1` up to 50 M messages |
| single functions | `make bench-micro` |

In the tables *n* is what one unit of work does, *anonymous* the memory that is not pages of files,
*÷ 4.9.3* the rate over that of RocketMQ 4.9.3, *ours ÷ it* the rate of the first row of ours over
that row. CPU is the whole process's, per item, in the timed part, its service threads included.
"""


class Record:
    """Groups by name, each with the run that measured it last."""

    def __init__(self, runs: dict[str, Any], groups: dict[str, Any]) -> None:
        self.runs = runs
        self.groups = groups
        self._run = ""

    @classmethod
    def read(cls, directory: Path | None) -> Record:
        """The record there, or an empty one."""
        path = directory / "benchmarks.json" if directory else None
        if path is None or not path.exists():
            return cls({}, {})
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return cls({}, {})
        return cls(found["runs"], found["groups"])

    def begin(self, facts: Mapping[str, str]) -> None:
        """A new run; what is added from here on belongs to it."""
        self._run = str(1 + max(map(int, self.runs), default=0))
        self.runs[self._run] = dict(facts)

    def add(self, name: str, group: Mapping[str, Any]) -> None:
        """A group's new figures in the place of its old ones."""
        self.groups[name] = {"run": self._run, **group}
        used = {group["run"] for group in self.groups.values()}
        self.runs = {number: run for number, run in self.runs.items() if number in used}

    def write(self, directory: Path) -> None:
        """Keep it as benchmarks.json."""
        directory.mkdir(parents=True, exist_ok=True)
        found = {"format": FORMAT, "runs": self.runs, "groups": self.groups}
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        directory.joinpath("benchmarks.json").write_text(text, encoding="utf-8")


def head(facts: Mapping[str, str]) -> list[str]:
    """What a run's numbers depend on, as a list."""
    lines = [f"- {facts['when']}; {facts['size']}; {facts['method']}"]
    lines.append(
        f"- {facts['processor']}, {facts['cores']} cores, {facts['memory']}; {facts['kernel']}; "
        f"{facts['file system']}; writers wait from {facts['dirty limit']} of dirty pages on"
    )
    if "note" in facts:
        lines.append(f"- {facts['note']}")
    rest = [f"{name} {text}" for name, text in facts.items() if name not in TOLD]
    lines.append("- " + "; ".join(rest))
    return lines


def ratios(row: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Rate over rate, pair by pair."""
    return [a / b for a, b in zip(row["rates"], base["rates"], strict=True)]


def ratio_text(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """The median pair and, behind it, the smallest and the largest."""
    pairs = ratios(row, base)
    return f"**{short(statistics.median(pairs))}** ({short(min(pairs))}–{short(max(pairs))})"


def short(value: float) -> str:
    """Three digits that matter, no more; two of a small number."""
    if value >= 100:
        return f"{value:,.0f}"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _row_of(group: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((row for row in group["rows"] if row["name"] == name), None)


def _first_of_ours(group: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in group["rows"] if row["kind"] == "ours"), None)


def section(name: str, group: Mapping[str, Any]) -> list[str]:
    """A group's heading, table and what it says."""
    lines = [f"### {group['title']} (`{name}`)", ""]
    lines += _latency_table(group) if group["latency"] else _rate_table(group)
    lines.append("")
    lines += [f"- *{row['name']}*: {row['words']}" for row in group["rows"] if row["words"]]
    lines += [f"- left out: *{one['name']}*: {one['reason']}" for one in group["left_out"]]
    notes = [*_goal_notes(group), *_call_notes(group), *_limit_notes(group)]
    return [*lines, *([""] if notes else []), *notes]


def _rate_table(group: Mapping[str, Any]) -> list[str]:
    base, ours = _row_of(group, BASE), _first_of_ours(group)
    titles = ["how", "threads", "n", "rate (median)", "rates", "GB/s", "CPU µs", "peak MiB"]
    titles += ["of it anonymous", "÷ 4.9.3 (pairs)", "ours ÷ it"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for row in group["rows"]:
        rates = row["rates"]
        speed = row["bytes_per_second"] / 1e9
        cells = [row["name"], row["threads"], f"{row['n']:,}"]
        cells.append(f"{statistics.median(rates):,.0f} {group['unit']}/s")
        cells.append(f"{min(rates):,.0f}–{max(rates):,.0f}")
        cells += [f"{speed:.2f}" if speed >= 0.005 else "", *_costs(row)]
        cells.append(ratio_text(row, base) if base and row is not base else "")
        cells.append(ratio_text(ours, row) if ours and row is not ours else "")
        lines.append(_line(cells))
    return lines


def _latency_table(group: Mapping[str, Any]) -> list[str]:
    base = _row_of(group, BASE)
    titles = ["how", "threads", "n", *(f"{name} µs" for name in LATENCIES)]
    titles += ["CPU µs", "peak MiB", "of it anonymous", "p50 of 4.9.3 ÷ its", "p99 of 4.9.3 ÷ its"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for row in group["rows"]:
        cells = [row["name"], row["threads"], f"{row['n']:,}"]
        cells += [short(row["latencies_us"][name]) for name in LATENCIES]
        cells += _costs(row)
        for name in ("p50", "p99"):
            beside = base and row is not base
            cells.append(
                f"**{short(base['latencies_us'][name] / row['latencies_us'][name])}**"
                if base and beside
                else ""
            )
        lines.append(_line(cells))
    return lines


def _costs(row: Mapping[str, Any]) -> list[str]:
    cpu = short(row["cpu_us"]) if "cpu_us" in row else ""
    return [cpu, f"{row['peak_bytes'] / MIB:,.0f}", f"{row['peak_anonymous_bytes'] / MIB:,.0f}"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _goal_notes(group: Mapping[str, Any]) -> Iterator[str]:
    for row in group["rows"]:
        for wanted, name in row["goals"]:
            base = _row_of(group, name)
            if base is None:
                continue
            found = statistics.median(ratios(row, base))
            verdict = "reached" if found >= wanted else "**not reached**"
            yield f"- goal of *{row['name']}*: {wanted:g} × {name}; {short(found)}: {verdict}"


def _call_notes(group: Mapping[str, Any]) -> Iterator[str]:
    row, ours = (
        next((row for row in group["rows"] if row["kind"] == "call"), None),
        _first_of_ours(group),
    )
    if row is None or ours is None:
        return
    empty, whole = (1e9 / statistics.median(one["rates"]) for one in (row, ours))
    share = statistics.median(ratios(ours, row))
    yield (
        f"- the loop around an empty compiled call takes {empty:.0f} ns a message, "
        f"{100 * share:.0f} % of the {whole:.0f} ns that *{ours['name']}* takes in the same loop"
    )


def _limit_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """A row is closed when the fastest C program that may use as many threads hardly beats it."""
    limits = [row for row in group["rows"] if row["kind"] == "limit"]
    ours = [row for row in group["rows"] if row["kind"] == "ours"]
    for row in ours if limits else ():
        alike = [limit for limit in limits if limit["threads"] == row["threads"]] or limits
        found = {limit["name"]: statistics.median(ratios(limit, row)) for limit in alike}
        told = ", ".join(f"{name} {short(ratio)} ×" for name, ratio in found.items())
        closed = max(found.values()) <= CLOSING_RATIO
        verdict = "closes the row" if closed else "leaves the row open"
        yield f"- limit of *{row['name']}*: {told}: {verdict}"


def render(directory: Path) -> None:
    """benchmarks.md and the plots, from benchmarks.json."""
    try:
        import plot
    except ImportError as problem:
        print(f"SKIPPED ALOUD: {problem}: the plots stay as they are", file=sys.stderr)
        plot = None
    record = Record.read(directory)
    curves = {name: group for name, group in record.groups.items() if group["axis"]}
    tables = {name: group for name, group in record.groups.items() if not group["axis"]}
    lines = [INTRO]
    if tables and plot:
        plot.ratios(tables, directory / "benchmarks.svg")
    if tables:
        lines += ["![rates over those of RocketMQ 4.9.3](benchmarks.svg)", ""]
    lines += ["## Runs", ""]
    for number, facts in record.runs.items():
        names = [f"`{name}`" for name, group in record.groups.items() if group["run"] == number]
        lines += [f"Run {number}: {', '.join(names)}", "", *head(facts), ""]
    if tables:
        lines += ["## Figures", ""]
        for name, group in tables.items():
            lines += [*section(name, group), *_dirty_note(group, record), ""]
    if curves:
        if plot:
            plot.curves(curves, directory / "benchmarks-growth.svg")
        lines += ["## How they grow", ""]
        lines += ["![rates by messages, queues and threads](benchmarks-growth.svg)", ""]
        lines += [*_curve_table(curves, record), ""]
    directory.joinpath("benchmarks.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")


def _dirty_note(group: Mapping[str, Any], record: Record) -> list[str]:
    """Told where a unit of work writes more than the kernel lets be dirty."""
    limit = float(record.runs[group["run"]]["dirty limit"].split()[0]) * (1 << 30)
    if group["written_bytes"] <= limit:
        return []
    written = group["written_bytes"] / (1 << 30)
    return [f"- a unit of work writes {written:.1f} GiB, beyond the dirty limit: the disk's rate"]


def _curve_table(curves: Mapping[str, Any], record: Record) -> Iterator[str]:
    titles = ["work", "by", "at", "how", "threads", "rate (median)", "CPU µs", "peak MiB"]
    titles += ["of it anonymous", "÷ 4.9.3 (pairs)"]
    yield _line(titles)
    yield _line(["---"] * len(titles))
    for name, group in curves.items():
        base = _row_of(group, BASE)
        beyond = "; beyond the dirty limit" if _dirty_note(group, record) else ""
        for row in group["rows"]:
            cells = [f"{group['title']} (`{name}`{beyond})", group["axis"], f"{group['at']:,}"]
            cells += [row["name"], row["threads"]]
            cells.append(f"{statistics.median(row['rates']):,.0f} {group['unit']}/s")
            cells += _costs(row)
            cells.append(ratio_text(row, base) if base and row is not base else "")
            yield _line(cells)
