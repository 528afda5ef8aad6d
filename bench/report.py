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
GIB = 1 << 30
#: Facts that the first lines of a head tell by themselves.
TOLD = set("note,when,size,method,processor,cores,memory,kernel,file system,dirty limit".split(","))

INTRO = """\
# Benchmarks

Written by `bench/run.py`; the numbers are in [benchmarks.json](benchmarks.json). The method is told
in [bench/README.md](../bench/README.md). In short: all sides work in turn within one run, forth and
back; a ratio, of rates as of latencies, is the median over the pairs of rounds of the same turn,
with the smallest and the largest pair behind it. Only ratios count: the same machine gives rates
that differ by a factor of two between hours.

| to repeat | command |
|---|---|
| everything but the curves | `make bench` |
| one table | `make bench ONLY=put` (its name stands in its heading) |
| the curves | `make bench-growth`, with `LARGE=1` up to 50 M messages |
| Spark | `make bench-spark`; a part of it is `bench/spark_read.py` and so on |
| single functions | `make bench-micro` |

In the tables *n* is what one unit of work does, *anonymous* the memory that is not pages of files,
*÷ 4.9.3* the rate over that of RocketMQ 4.9.3, *ours ÷ it* the rate of the first row of ours over
that row; below a table stands which row is compared with another one than these. CPU is the whole
process's, per item, in the timed part, its service threads included; rocketmq-rust's is not known.
"""

SPARK_RECORD = "benchmarks-spark.json"
SPARK_INTRO = """All sides of a part work in turn within one run; ratios are medians over
neighbouring rounds, with the smallest and the largest. The ceiling is a source that gives one
finished Arrow batch of the same schema, rows and bytes again and again: what Spark itself takes to
move them. Spark's Parquet reader answers `count` from the footers of the files and reads no column.
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
    return _pairs_text(ratios(row, base))


def _pairs_text(pairs: Sequence[float]) -> str:
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


def base_of(group: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of 4.9.3 that a row is compared with: the one that a row of ours names, or BASE."""
    named = _row_of(group, row.get("beside", "")) if row["kind"] == "ours" else None
    return named or _row_of(group, BASE)


def ours_of(group: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of ours that another is compared with: the one it names, or the first."""
    named = _row_of(group, row.get("beside", "")) if row["kind"] != "ours" else None
    return named or next((one for one in group["rows"] if one["kind"] == "ours"), None)


def section(name: str, group: Mapping[str, Any]) -> list[str]:
    """A group's heading, table and what it says."""
    lines = [f"### {group['title']} (`{name}`)", ""]
    lines += _latency_table(group) if group["latency"] else _rate_table(group)
    lines.append("")
    lines += [
        f"- *{row['name']}*: {row['words']}{_beside_note(group, row)}"
        for row in group["rows"]
        if row["words"]
    ]
    lines += [f"- left out: *{one['name']}*: {one['reason']}" for one in group["left_out"]]
    lines += [f"- {group['note']}"] if group.get("note") else []
    if group["latency"]:
        notes = [*_other_base_notes(group)]
    else:
        notes = [*_goal_notes(group), *_floor_notes(group), *_call_notes(group)]
        notes += _limit_notes(group)
    return [*lines, *([""] if notes else []), *notes]


def _rate_table(group: Mapping[str, Any]) -> list[str]:
    titles = ["how", "threads", "n", "rate (median)", "rates", "GB/s", "CPU µs", "peak MiB"]
    titles += ["of it anonymous", "÷ 4.9.3 (pairs)", "ours ÷ it"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for row in group["rows"]:
        base, ours = base_of(group, row), ours_of(group, row)
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
    titles += ["CPU µs", "peak MiB", "of it anonymous"]
    titles += ["p50 of 4.9.3 ÷ its (pairs)", "p99 of 4.9.3 ÷ its (pairs)"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for row in group["rows"]:
        cells = [row["name"], row["threads"], f"{row['n']:,}"]
        cells += [short(_latency(row, name)) for name in LATENCIES]
        cells += _costs(row)
        cells += [
            latency_ratio_text(base, row, name) if base and row is not base else ""
            for name in ("p50", "p99")
        ]
        lines.append(_line(cells))
    return lines


def _latencies(row: Mapping[str, Any], name: str) -> list[float]:
    """A percentile of each round; an old record has but one for all."""
    found = row["latencies_us"][name]
    return list(found) if isinstance(found, list) else [found]


def _latency(row: Mapping[str, Any], name: str) -> float:
    """The median of the rounds; of the maxima the largest."""
    values = _latencies(row, name)
    return max(values) if name == "max" else statistics.median(values)


def latency_ratio_text(base: Mapping[str, Any], row: Mapping[str, Any], name: str) -> str:
    """Of two rows a percentile over the other's, pair by pair: as ratio_text."""
    both = zip(_latencies(base, name), _latencies(row, name), strict=True)
    return _pairs_text([a / b for a, b in both])


def _costs(row: Mapping[str, Any]) -> list[str]:
    cpu = short(row["cpu_us"]) if "cpu_us" in row else ""
    return [cpu, f"{row['peak_bytes'] / MIB:,.0f}", f"{row['peak_anonymous_bytes'] / MIB:,.0f}"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _goal_notes(group: Mapping[str, Any]) -> Iterator[str]:
    for row in group["rows"]:
        for wanted, *names in row["goals"]:
            bases = [base for base in group["rows"] if base["name"] in names]
            if not bases:
                continue
            found = {base["name"]: statistics.median(ratios(row, base)) for base in bases}
            fastest = min(found, key=lambda name: found[name])
            among = f" (the fastest of {len(found)})" if len(found) > 1 else ""
            yield (
                f"- goal of *{row['name']}*: {wanted:g} × {fastest}{among}; "
                f"{short(found[fastest])}: {_verdict(found[fastest] >= wanted)}"
            )


def _floor_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """Goals that are rates by themselves."""
    for row in group["rows"]:
        for wanted, unit in row.get("floors", ()):
            if unit == "GB/s":
                found, told = row["bytes_per_second"] / 1e9, f"{wanted:g} GB/s"
            else:
                found, told = statistics.median(row["rates"]), f"{wanted:,.0f} {unit}"
            verdict = _verdict(found >= wanted)
            yield f"- goal of *{row['name']}*: {told}; {short(found)}: {verdict}"


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def _beside_note(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Told where a row is compared with another one than the rest of its table."""
    named = row.get("beside", "")
    if not named or _row_of(group, named) is None:
        return ""
    which = "÷ 4.9.3" if row["kind"] == "ours" else "ours ÷ it"
    return f". Its *{which}* is with *{named}*"


def _other_base_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """Latencies of ours beside a row of 4.9.3 that is not the base of the table."""
    bases = [row for row in group["rows"] if row["kind"] == "base" and row["name"] != BASE]
    for base in bases:
        for row in (row for row in group["rows"] if row["kind"] == "ours"):
            found = [f"{name} {latency_ratio_text(base, row, name)}" for name in ("p50", "p99")]
            yield f"- *{base['name']}* ÷ *{row['name']}* (pairs): {', '.join(found)}"


def _call_notes(group: Mapping[str, Any]) -> Iterator[str]:
    row = next((row for row in group["rows"] if row["kind"] == "call"), None)
    ours = ours_of(group, row) if row else None
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


def _spark(directory: Path) -> list[str]:
    """What bench/spark.py found, if it ran."""
    path = directory / SPARK_RECORD
    if not path.exists():
        return []
    record = json.loads(path.read_text("utf-8"))
    lines = ["## Spark", "", SPARK_INTRO]
    lines += head(record["facts"])
    for title, text in record["parts"].items():
        lines += ["", f"### {title}", "", text]
    return lines


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
            lines += [*section(name, group), *_size_notes(group, record), ""]
    if curves:
        if plot:
            plot.curves(curves, directory / "benchmarks-growth.svg")
        lines += ["## How they grow", ""]
        lines += ["![rates by messages, queues and threads](benchmarks-growth.svg)", ""]
        lines += [*_curve_table(curves, record), ""]
    lines += _spark(directory)
    directory.joinpath("benchmarks.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")


def _size_notes(group: Mapping[str, Any], record: Record) -> list[str]:
    """Told where more is written than the kernel lets be dirty, or read than fits into memory."""
    facts = record.runs[group["run"]]
    notes = []
    written = group["written_bytes"] / GIB
    if written > _gib(facts["dirty limit"]):
        piled = "all rounds of the faster side write" if group.get("piles_up") else ""
        what = piled or "a unit of work writes"
        notes.append(f"- {what} {written:.1f} GiB, beyond the dirty limit: the disk's rate")
    read = group.get("read_bytes", 0) / GIB
    if read > _gib(facts["memory"]):
        notes.append(
            f"- the store and its copies take {read:.1f} GiB, beyond the memory of "
            f"{facts['memory']}: not all is read from the page cache"
        )
    return notes


def _gib(text: str) -> float:
    """Of a fact like "24 GiB"."""
    return float(text.split()[0])


def _curve_table(curves: Mapping[str, Any], record: Record) -> Iterator[str]:
    titles = ["work", "by", "at", "how", "threads", "rate (median)", "CPU µs", "peak MiB"]
    titles += ["of it anonymous", "÷ 4.9.3 (pairs)"]
    yield _line(titles)
    yield _line(["---"] * len(titles))
    for name, group in curves.items():
        base = _row_of(group, BASE)
        for row in group["rows"]:
            cells = [f"{group['title']} (`{name}`)", group["axis"], f"{group['at']:,}"]
            cells += [row["name"], row["threads"]]
            cells.append(f"{statistics.median(row['rates']):,.0f} {group['unit']}/s")
            cells += _costs(row)
            cells.append(ratio_text(row, base) if base and row is not base else "")
            yield _line(cells)
    yield ""
    for name, group in curves.items():
        notes = [note.removeprefix("- ") for note in _size_notes(group, record)]
        notes += [group["note"]] if group.get("note") else []
        if notes:
            yield f"- `{name}`: {'; '.join(notes)}"
