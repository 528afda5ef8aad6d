"""Goal: of a test with several parameters, `make test` runs each value of each of them, and leaves
the other combinations to `make test-all`; rows of one `parametrize` stay together.
Method: grids that another pytest collects, with and without the marker `slow`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.grids import covering

pytest_plugins = ["pytester"]

GRID = """
import pytest

@pytest.fixture(params=["f", "g"])
def fixed(request):
    return request.param

@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize("b", [[], {}, None])
@pytest.mark.parametrize("c, d", [(1, 1), (1, 2), (2, 2)])
def test_grid(a, b, c, d, fixed):
    pass

@pytest.mark.parametrize("a", range(7))
def test_one_axis(a):
    pass

@pytest.mark.parametrize(("c", "d"), [(1, 1), (1, 2), (2, 2), (2, 1)])
def test_rows(c, d):
    pass

def test_alone():
    pass
"""


def ids(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    found = pytester.runpytest_subprocess("--collect-only", "-p", "no:cacheprovider", *arguments)
    return [line.partition("::")[2] for line in found.outlines if "::" in line]


def test_values_of_a_grid(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(tests))
    shutil.copy(tests / "conftest.py", pytester.path)
    shutil.copy(tests / "slow_tests.txt", pytester.path)
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nmarkers = ['slow', 'spark', 'faults']")
    pytester.makepyfile(test_grids=GRID)
    every = ids(pytester, "-q")
    quick, rest = ids(pytester, "-q", "-m", "not slow"), ids(pytester, "-q", "-m", "slow")
    assert sorted(quick + rest) == sorted(every)
    assert len(every) == 5 * 3 * 3 * 2 + 7 + 4 + 1
    values, all_values = (
        [set(axis) for axis in zip(*(name[10:-1].split("-") for name in names), strict=True)]
        for names in ([n for n in given if n.startswith("test_grid[")] for given in (quick, every))
    )
    assert values == all_values
    assert sum(name.startswith("test_grid[") for name in quick) == 5
    assert [name for name in rest if not name.startswith("test_grid[")] == []


@pytest.mark.parametrize(
    ("cases", "chosen"),
    [
        ([], set()),
        ([{}], set()),
        ([{"a": 1}, {"a": 1}, {"a": 2}], {0, 2}),
        ([{"a": a, "b": b} for a in (1, 2) for b in (1, 2)], {0, 3}),
        ([{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2)], {0, 3, 4}),
        ([{"a": 1}, {"a": 1, "b": 1}], {1}),
    ],
)
def test_the_fewest_cases_with_every_value(cases: list[dict[str, int]], chosen: set[int]) -> None:
    assert covering(cases) == chosen
