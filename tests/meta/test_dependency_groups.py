"""Goal: each make target installs what it imports.
Method: compare the imports of its files with its group in pyproject.toml and `compile`."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
GROUPS = PROJECT["dependency-groups"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

#: Groups that a target installs -> its files, and those of the package that it does not import.
FILES = {
    ("compile",): (("setup.py",), ()),
    ("demo",): (
        ("tools/demo.py", "pyrocketstore/**/*.py", "pyspark_rocketmq/**/*.py"),
        ("pyrocketstore/cli", "pyrocketstore/metrics.py"),
    ),
    ("dev",): (("pyrocketstore/**/*.py", "pyspark_rocketmq/**/*.py", "tests/**/*.py"), ()),
    ("dev", "bench"): (("bench/**/*.py", "tools/*.py", "examples/*.py"), ()),
}


def name_of(requirement: str) -> str:
    """The normalized name of a distribution: `PyArrow>=15` is `pyarrow`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def content(group: str) -> set[str]:
    """The distributions that a group names, included groups too."""
    found: set[str] = set()
    for item in GROUPS[group]:
        found |= {name_of(item)} if isinstance(item, str) else content(item["include-group"])
    return found


def third_party(text: str) -> set[str]:
    """Top-level modules that a file imports, neither the standard library's nor relative ones."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


@functools.cache
def owners_of_modules() -> Mapping[str, list[str]]:
    """The distributions of each top-level module; reads the file lists of all that is installed."""
    return packages_distributions()


def missing(modules: Iterable[str], installed: set[str]) -> list[str]:
    """Modules of distributions that are not among `installed`; the project's own are of none."""
    owners = owners_of_modules()
    return sorted(
        module
        for module in modules
        if module in owners
        and not {name_of(owner) for owner in owners[module]} & (installed | {"pyrocketstore"})
    )


@pytest.mark.parametrize("groups", FILES, ids="+".join)
def test_a_group_has_what_its_files_import(groups: tuple[str, ...]) -> None:
    patterns, left_out = FILES[groups]
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    paths -= {path for path in paths if str(path.relative_to(ROOT)).startswith(left_out)}
    assert paths
    installed = content("compile").union(*map(content, groups))
    wrong = {str(p): missing(third_party(p.read_text("utf-8")), installed) for p in paths}
    assert {name: modules for name, modules in wrong.items() if modules} == {}


def test_a_missing_distribution_is_found() -> None:
    assert missing(third_party("import numpy.typing, os\nfrom rich import table"), {"rich"}) == [
        "numpy"
    ]


def test_every_group_that_make_installs_is_in_pyproject() -> None:
    """`$(VENV)/.NAME` installs the group NAME."""
    named = set(re.findall(r"(?:\$\(VENV\)/|\$\(WITH_GROUP\))\.([a-z-]+)", MAKEFILE))
    named |= set(re.findall(r"--group ([a-z-]+)", MAKEFILE))
    assert {"compile", "demo", "dev", "test-local", "bench"} <= named <= set(GROUPS)
    assert content("compile") >= {name_of(r) for r in PROJECT["build-system"]["requires"]}
    assert content("compile") | content("demo") >= {
        name_of(r)
        for r in PROJECT["project"]["dependencies"]
        + PROJECT["project"]["optional-dependencies"]["spark"]
    }
