"""Plot the record as SVG: ratios as bars, growth as curves. Requires matplotlib (group `bench`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from bench.model import BASE
from bench.report.record import base_of, median_ratio, short

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "pyrocketstore"  # equal records give equal files
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
matplotlib.rcParams["font.size"] = 8

from matplotlib import pyplot  # noqa: E402

COLOURS = {"ours": "#2b6cb0", "call": "#a0aec0", "peer": "#c05621", "limit": "#718096"}
LEGEND = {
    "ours": "pyrocketstore",
    "peer": "other stores",
    "limit": "C program, less work",
    "call": "empty call",
}
BAR_INCHES = 0.19


def ratios(groups: Mapping[str, Any], target: Path) -> None:
    """Plot a bar for each row: its rate relative to the row of 4.9.3 that it is compared with.

    Without Java, the bars are relative to our first row.
    """
    bars: list[tuple[str, str, float]] = []
    for name, group in groups.items():
        rows = [row for row in group["rows"] if row["kind"] != "base"]
        first = next((row for row in rows if row["kind"] == "ours"), None)
        for row in () if group["latency"] else rows:
            base = base_of(group, row) or first
            if base is not None:
                ratio = median_ratio(row, base)
                bars.append((f"{name}: {row['name']}", row["kind"], ratio))
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + BAR_INCHES * max(len(bars), 1)))
    for kind, label in LEGEND.items():
        chosen = [(i, bar[2]) for i, bar in enumerate(bars) if bar[1] == kind]
        if chosen:
            places, values = zip(*chosen, strict=True)
            axes.barh(places, values, color=COLOURS[kind], label=label, left=0)
    for i, (_, _, value) in enumerate(bars):
        axes.text(value * 1.05, i, short(value), va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel("rate ÷ rate of RocketMQ 4.9.3, median over pairs of rounds (log scale)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    _save(figure, target)


def curves(groups: Mapping[str, Any], target: Path) -> None:
    """Plot a panel for each axis with a line for each variant."""
    names = list(dict.fromkeys(group["axis"] for group in groups.values()))
    figure, panels = pyplot.subplots(
        (len(names) + 1) // 2, 2, figsize=(9, 2.6 * ((len(names) + 1) // 2)), squeeze=False
    )
    for panel, axis in zip(panels.flat, names, strict=False):
        points: dict[str, list[tuple[int, float]]] = {}
        for group in (group for group in groups.values() if group["axis"] == axis):
            for row in group["rows"]:
                rate = statistics.median(row["rates"])
                points.setdefault(row["name"], []).append((group["at"], rate))
        for name, found in points.items():
            xs, ys = zip(*sorted(found), strict=True)
            colour = "#c05621" if name == BASE else "#2b6cb0"
            panel.plot(xs, ys, marker="o", markersize=3, color=colour, label=name)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel(axis)
        panel.set_ylabel("per second")
        panel.legend()
    for panel in list(panels.flat)[len(names) :]:
        panel.remove()
    _save(figure, target)


def _save(figure: Any, target: Path) -> None:
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="svg", metadata={"Date": None})
    pyplot.close(figure)
