"""Write the record of the last measurements as a Markdown page, with plots."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.model import BASE
from bench.report.record import Record, base_of, median_ratio, ours_of, ratios, row_of, short
from bench.workers.process import LATENCIES

#: A row has reached its limit if the C program is at most so many times as fast.
LIMIT_RATIO = 1.15
MIB = 1 << 20
GIB = 1 << 30
#: Facts that the first lines of a run include.
FIRST_FACTS = set(
    "note,when,size,method,processor,cores,memory,kernel,file system,dirty limit".split(",")
)

INTRO = """\
# Benchmarks

`python -m bench` writes this page from the record in [benchmarks.json](benchmarks.json).
[bench/README.md](../bench/README.md) describes the method. In short: a turn runs each variant once
(one round). A ratio, of rates or of latencies, is the median, over turns, of the ratio of two
variants within one turn; the smallest and the largest ratio follow in parentheses. Only ratios are
meaningful: rates on one machine differ by a factor of two between hours.

| to repeat | command |
|---|---|
| all tables | `make bench` |
| one table | `make bench ONLY=put`, with the name in the table's heading |
| the curves | `make bench-growth`; with `LARGE=1` up to 50 M messages |
| Spark | `make bench-spark`; one part: `python -m bench.spark.read`, for example |
| single functions | `make bench-micro` |

Columns of the tables:

- *n*: items in one unit of work.
- *CPU µs*: processor time per item of the whole process in the timed part, with its service
  threads; not measured for rocketmq-rust.
- *anonymous MiB*: peak memory without the pages of files.
- *descriptors*: the largest number of open descriptors, where a run has counted them.
- *÷ 4.9.3*: rate relative to RocketMQ 4.9.3.
- *ours ÷ this*: rate of the first row of ours relative to this row.

A note below the table names the row if a ratio refers to another one. "Until queryable" means that
the last message can be read by queue and queried by key.

A note such as "limits of *put*" lists C programs that do a part of the work, each with its rate
relative to *put*. If none has as many threads as the row, all are listed. The row is at its limit
if the fastest of them is at most 1.15 times as fast.
"""

SPARK_RECORD = "benchmarks-spark.json"
SPARK_INTRO = """\
All variants of a part alternate within one run. A ratio is the median over pairs of rounds; the
smallest and the largest follow in parentheses.

- Reading: the action `noop` reads all columns and discards them. The *ceiling* is a source that
  returns one finished Arrow batch repeatedly, with the schema, rows and bytes of the store: the
  cost of moving rows into Spark. Spark's Parquet reader answers `count` from the files' footers
  without reading a column.
- Functions: *plain Python* is a Python function that reads the same fields. It receives its values
  through Arrow; the next row receives them pickled. *finished structs* and *finished batches*
  return rows that are already decoded, through the kind of function that *decode_message* and
  *decode_batches* use. They are the limits of these two rows: "limit 1.26 ×" means that the limit
  is 1.26 times as fast. *scan* only reads the column.
- Export: *write.parquet* is Spark's own writer over the data source. *raw bytes* writes and fsyncs
  as many bytes as *export none*.
"""


def run_facts(facts: Mapping[str, str]) -> list[str]:
    """Return the facts that a run's numbers depend on, as list items."""
    lines = [f"- {facts['when']}; {facts['size']}; {facts['method']}"]
    lines.append(
        f"- {facts['processor']}, {facts['cores']} cores, {facts['memory']}; {facts['kernel']}; "
        f"{facts['file system']}; writers wait above {facts['dirty limit']} of dirty pages"
    )
    if "note" in facts:
        lines.append(f"- {facts['note']}")
    rest = [f"{name} {text}" for name, text in facts.items() if name not in FIRST_FACTS]
    lines.append("- " + "; ".join(rest))
    return lines


def ratio_text(row: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the median pair, then the smallest and the largest."""
    return _pairs_text(ratios(row, base))


def _pairs_text(pairs: Sequence[float]) -> str:
    return f"**{short(statistics.median(pairs))}** ({short(min(pairs))}–{short(max(pairs))})"


def section(name: str, group: Mapping[str, Any]) -> list[str]:
    """Return a group's heading, table and notes."""
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
    titles = ["variant", "threads", "n", "rate (median)", "range", "GB/s", "CPU µs", "peak MiB"]
    titles += ["anonymous MiB", "÷ 4.9.3 (pairs)", "ours ÷ this (pairs)"]
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
    base = row_of(group, BASE)
    titles = ["variant", "threads", "n", *(f"{name} µs" for name in LATENCIES)]
    titles += ["CPU µs", "peak MiB", "anonymous MiB"]
    titles += ["4.9.3 ÷ this, p50 (pairs)", "4.9.3 ÷ this, p99 (pairs)"]
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
    """Return a percentile of each round; an old record has one for all rounds."""
    found = row["latencies_us"][name]
    return list(found) if isinstance(found, list) else [found]


def _latency(row: Mapping[str, Any], name: str) -> float:
    """Return the median over the rounds; for `max` the largest."""
    values = _latencies(row, name)
    return max(values) if name == "max" else statistics.median(values)


def latency_ratio_text(base: Mapping[str, Any], row: Mapping[str, Any], name: str) -> str:
    """Return the ratio of a percentile of two rows, formatted as in ratio_text."""
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
            found = {base["name"]: median_ratio(row, base) for base in bases}
            fastest = min(found, key=lambda name: found[name])
            among = f" (the fastest of {len(found)})" if len(found) > 1 else ""
            yield (
                f"- goal of *{row['name']}*: {wanted:g} × {fastest}{among}; "
                f"{_measured(found[fastest], wanted)}"
            )


def _floor_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes on goals that are absolute rates."""
    for row in group["rows"]:
        for wanted, unit in row.get("floors", ()):
            if unit == "GB/s":
                found, goal = row["bytes_per_second"] / 1e9, f"{wanted:g} GB/s"
            else:
                found, goal = statistics.median(row["rates"]), f"{wanted:,.0f} {unit}"
            yield f"- goal of *{row['name']}*: {goal}; {_measured(found, wanted)}"


def _measured(found: float, wanted: float) -> str:
    """Return a measured value and whether it reaches a goal, with the digits that show it."""
    reached = found >= wanted
    text = short(found)
    for digits in range(3, 16):
        # A value slightly below a goal of 2 must not be shown as 2.00.
        if (float(text.replace(",", "")) >= wanted) == reached:
            break
        text = f"{found:,.{digits}f}"
    return f"measured {text}: {'reached' if reached else '**not reached**'}"


def _beside_note(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return a note if a row is compared with another one than the rest of its table."""
    named = row.get("beside", "")
    if not named or row_of(group, named) is None:
        return ""
    which = "÷ 4.9.3" if row["kind"] == "ours" else "ours ÷ this"
    return f". *{which}* refers to *{named}*"


def _other_base_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """Yield ratios of latencies to rows of 4.9.3 that are not the base of the table."""
    bases = [row for row in group["rows"] if row["kind"] == "base" and row["name"] != BASE]
    for base in bases:
        for row in (row for row in group["rows"] if row["kind"] == "ours"):
            found = [f"{name} {latency_ratio_text(base, row, name)}" for name in ("p50", "p99")]
            yield f"- *{base['name']}* ÷ *{row['name']}* (pairs): {', '.join(found)}"


def _call_notes(group: Mapping[str, Any]) -> Iterator[str]:
    for row in (row for row in group["rows"] if row["kind"] == "call"):
        ours = ours_of(group, row)
        if ours is None:
            continue
        empty, whole = (1e9 / statistics.median(one["rates"]) for one in (row, ours))
        share = median_ratio(ours, row)
        yield (
            f"- the loop with the {row['name'].partition(',')[0]} takes {empty:.0f} ns per "
            f"message, {100 * share:.0f} % of the {whole:.0f} ns that *{ours['name']}* takes in "
            "that loop"
        )


def _limit_notes(group: Mapping[str, Any]) -> Iterator[str]:
    """Compare each row with the fastest C program that may use as many threads."""
    limits = [row for row in group["rows"] if row["kind"] == "limit"]
    ours = [row for row in group["rows"] if row["kind"] == "ours"]
    for row in ours if limits else ():
        own = [limit for limit in limits if limit.get("beside", "") in ("", row["name"])]
        alike = [limit for limit in own if limit["threads"] == row["threads"]] or own
        if not alike:
            continue
        found = {limit["name"]: median_ratio(limit, row) for limit in alike}
        text = ", ".join(f"{name} {short(ratio)} ×" for name, ratio in found.items())
        verdict = "at" if max(found.values()) <= LIMIT_RATIO else "below"
        yield f"- limits of *{row['name']}*: {text}: {verdict} the limit"


def _spark(directory: Path) -> list[str]:
    """Return the section of the measurements of bench/spark/, if there are any."""
    path = directory / SPARK_RECORD
    if not path.exists():
        return []
    record = json.loads(path.read_text("utf-8"))
    lines = ["## Spark", "", SPARK_INTRO]
    lines += run_facts(record["facts"])
    for title, text in record["parts"].items():
        lines += ["", f"### {title}", "", text]
    return lines


def render(directory: Path) -> None:
    """Write benchmarks.md and the plots from benchmarks.json."""
    try:
        from bench.report import plot
    except ImportError as problem:
        print(f"SKIPPED ALOUD: {problem}: the plots are not written", file=sys.stderr)
        plot = None
    record = Record.read(directory)
    curves = {name: group for name, group in record.groups.items() if group["axis"]}
    tables = {name: group for name, group in record.groups.items() if not group["axis"]}
    lines = [INTRO]
    if tables and plot:
        plot.ratios(tables, directory / "benchmarks.svg")
    if tables:
        lines += ["![rates relative to RocketMQ 4.9.3](benchmarks.svg)", ""]
    lines += ["## Runs", ""]
    for number, facts in record.runs.items():
        names = [f"`{name}`" for name, group in record.groups.items() if group["run"] == number]
        lines += [f"Run {number}: {', '.join(names)}", "", *run_facts(facts), ""]
    if tables:
        lines += ["## Results", ""]
        for name, group in tables.items():
            lines += [*section(name, group), *_size_notes(group, record), ""]
    if curves:
        if plot:
            plot.curves(curves, directory / "benchmarks-growth.svg")
        lines += ["## Growth", ""]
        lines += ["![rates by messages, queues and threads](benchmarks-growth.svg)", ""]
        lines += [*_curve_table(curves, record), ""]
    lines += _spark(directory)
    directory.joinpath("benchmarks.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")


def _size_notes(group: Mapping[str, Any], record: Record) -> list[str]:
    """Return notes if the group exceeds the kernel's limit for dirty pages, or the memory."""
    facts = record.runs[group["run"]]
    notes = []
    written = group["written_bytes"] / GIB
    if written > _gib(facts["dirty limit"]):
        what = "all rounds of the faster variant" if group.get("piles_up") else "one unit of work"
        notes.append(
            f"- {what} wrote {written:.1f} GiB, more than the limit for dirty pages: the disk "
            "determines the rate"
        )
    read = group.get("read_bytes", 0) / GIB
    if read > _gib(facts["memory"]):
        notes.append(
            f"- the store and its copies have {read:.1f} GiB, more than the memory of "
            f"{facts['memory']}: part of them was read from disk"
        )
    return notes


def _gib(text: str) -> float:
    """Return the number in a fact such as "24 GiB"."""
    return float(text.split()[0])


def _curve_table(curves: Mapping[str, Any], record: Record) -> Iterator[str]:
    titles = ["work", "axis", "value", "variant", "threads", "rate (median)", "CPU µs"]
    titles += ["peak MiB", "anonymous MiB", "descriptors", "÷ 4.9.3 (pairs)"]
    yield _line(titles)
    yield _line(["---"] * len(titles))
    for name, group in curves.items():
        base = row_of(group, BASE)
        for row in group["rows"]:
            cells = [f"{group['title']} (`{name}`)", group["axis"], f"{group['at']:,}"]
            cells += [row["name"], row["threads"]]
            cells.append(f"{statistics.median(row['rates']):,.0f} {group['unit']}/s")
            cells += _costs(row)
            cells.append(f"{row['peak_descriptors']:,}" if "peak_descriptors" in row else "")
            cells.append(ratio_text(row, base) if base and row is not base else "")
            yield _line(cells)
    yield ""
    for name, group in curves.items():
        notes = [note.removeprefix("- ") for note in _size_notes(group, record)]
        notes += [note.removeprefix("- ") for note in (*_goal_notes(group), *_limit_notes(group))]
        if any(row["kind"] == "limit" for row in group["rows"]):
            notes += [f"*{row['name']}*: {row['words']}" for row in group["rows"]]
        notes += [group["note"]] if group.get("note") else []
        if notes:
            yield f"- `{name}`: {'; '.join(notes)}"
