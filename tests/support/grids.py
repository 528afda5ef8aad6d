"""Which cases of a test with parameters `make test` runs; `make test-all` runs the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest


def axes(case: pytest.Function) -> dict[str, tuple[int, ...]]:
    """Map each `parametrize` of a test, and each fixture with parameters, to what identifies its
    values in this case. The names of one `parametrize` are one axis: its rows stay together."""
    parameters = case.callspec.params
    names = [mark.args[0] for mark in case.iter_markers("parametrize")]
    named = [tuple(n.replace(",", " ").split() if isinstance(n, str) else n) for n in names]
    fixtures = set(parameters).difference(*named)
    groups = [*named, *((name,) for name in sorted(fixtures))]
    return {",".join(group): tuple(id(parameters[n]) for n in group) for group in groups}


def covering(cases: Sequence[Mapping[str, object]]) -> set[int]:
    """Return positions of cases that together have each value of each axis at least once.

    A case maps names of axes to values. The case with the most new values is next, of several the
    first.
    """
    wanted = {value for case in cases for value in case.items()}
    chosen: set[int] = set()
    while wanted:
        best = max(range(len(cases)), key=lambda at: len(wanted & cases[at].items()))
        chosen.add(best)
        wanted -= cases[best].items()
    return chosen


def mostly_slow(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return values for `parametrize`, those behind the first `quick` marked as slow."""
    given = list(values)
    rest = (value if isinstance(value, tuple) else (value,) for value in given[quick:])
    return [*given[:quick], *(pytest.param(*value, marks=pytest.mark.slow) for value in rest)]
