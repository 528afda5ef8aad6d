"""The parts of a comparison: groups, and in each group the variants that do the same work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Options = Mapping[str, object]
#: The variant that ratios refer to.
BASE = "4.9.3"
#: A ratio, and the names of the rows; the ratio refers to the fastest of them.
Goal = tuple[float, *tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to do a group's work.

    - `program`: java, ours, empty, peers, rust or limit:NAME.
    - `words`: what the variant does, for the page.
    - `goals`: ratios to other rows; `floors`: absolute rates, as (rate, "msg/s" or "GB/s").
    - `beside`: the row to compare with, if not the first one: for ours a row of 4.9.3, for all
      others a row of ours.
    - `share`: the part of the group's count that one unit of work does.
    - `answers`: whether the answer is known in advance.
    """

    name: str
    program: str
    options: Options
    threads: str
    words: str
    goals: tuple[Goal, ...] = ()
    floors: tuple[tuple[float, str], ...] = ()
    beside: str = ""
    share: float = 1.0
    answers: bool = True

    @property
    def kind(self) -> str:
        """base, ours, call, peer or limit."""
        if self.program.startswith("limit:"):
            return "limit"
        return {"java": "base", "ours": "ours", "empty": "call"}.get(self.program, "peer")


@dataclasses.dataclass(frozen=True)
class Group:
    """One kind of work and its variants.

    - `count`, `smoke`: items of one unit of work, measured and in a smoke test.
    - `input`, `smoke_input`: messages in the store to read (0: the work creates its own store),
      with bodies of `input_body` bytes.
    - `unit`: the item of a rate; `record`: bytes of one item on disk, 0 if nothing is written.
    - `axis`, `at`: the curve and the position on it (growth).
    - `note`: a remark for the page.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    count: int
    smoke: int
    input: int = 0
    smoke_input: int = 2_000
    input_body: int = 1024
    unit: str = "msg"
    record: int = 0
    shows_latency: bool = False
    axis: str = ""
    at: int = 0
    note: str = ""


def java(options: Options, threads: str, words: str, name: str = BASE, beside: str = "") -> Variant:
    """Return a variant of RocketMQ 4.9.3 in a JVM."""
    return Variant(name, "java", options, threads, words, beside=beside)


def ours(
    name: str, options: Options, threads: str, words: str, goal: float = 0.0, **more: object
) -> Variant:
    """Return a variant of ours; `goal` is a ratio to the row of 4.9.3 that it is compared with."""
    goals = ((goal, str(more.get("beside", BASE))),) if goal else ()
    return dataclasses.replace(
        Variant(name, "ours", options, threads, words, goals),
        **more,  # type: ignore[arg-type]
    )


def peer(name: str, options: Options, words: str, share: float = 1.0, beside: str = "") -> Variant:
    """Return a variant of a store that a Python program could use instead."""
    return Variant(name, "peers", options, "1", words, share=share, beside=beside)


def worker_name(group: Group, variant: Variant) -> str:
    """Return the name of the worker of a variant, as errors show it."""
    return f"{group.name}/{variant.name}"
