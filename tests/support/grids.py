"""Which cases of a test with several parameters `make test` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
