"""Goal: ARCHITECTURE.md is short, and its facts are those of the code.
Method: count its words; compare its folders, modules, locks, dependencies and the order of calls in
recovery with the sources. Canaries show that a wrong path and another order are found."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyrocketstore"
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")

WORDS_MAX = 2000

#: The functions of the table in the section on recovery, and where they are: module and class.
RECOVERY = {
    "load": ("message_store/loading.py", "Loading"),
    "_make_plan": ("message_store/loading.py", "Loading"),
    "_before_changes": ("message_store/loading.py", "LoadingToWrite"),
    "make_plan": ("recovery/plan.py", "Planning"),
    "apply_plan": ("recovery/apply.py", "Applying"),
}


def section(title: str) -> str:
    """Return the text between a heading and the next one of its level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables in a text, headers included."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|-"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def code_in(text: str) -> list[str]:
    """Return what a text has in backticks."""
    return re.findall(r"`([^`]+)`", text)


def listed_calls() -> dict[str, list[str]]:
    """Return the calls that the page gives for each function of the recovery, in its order."""
    listed: dict[str, list[str]] = {}
    name = ""
    for first, calls, _ in list(rows(section("Recovery")))[1:]:
        name = (code_in(first) or [name])[0]
        listed.setdefault(name, []).extend(code_in(calls))
    return listed


def calls_of(text: str, function: str, in_class: str = "") -> list[str]:
    """Return the dotted names of the calls in a function, in the order of the source."""
    tree: ast.AST = ast.parse(text)
    if in_class:
        [tree] = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name == in_class
        ]
    [found] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    calls = [node for node in ast.walk(found) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.func.end_lineno, call.func.end_col_offset))
    return [ast.unparse(call.func) for call in calls]


def first_missing(names: Iterable[str], calls: list[str]) -> str:
    """Return the first name that no call has after the calls of the names before it; "" if none."""
    rest = iter(calls)
    for name in names:
        if not any(call == name or call.endswith(f".{name}") for call in rest):
            return name
    return ""


def missing_paths(text: str) -> list[str]:
    """Return the modules and folders that a text names in backticks and that do not exist."""
    named = [name for name in code_in(text) if re.fullmatch(r"[\w/]+(/|\.(py|pyx|pxd|h|c))", name)]
    stored = {name for name in code_in(section("The files of a store")) if name.endswith("/")}
    places = (ROOT, PACKAGE)
    return [
        name
        for name in named
        if name not in stored and not any((place / name).exists() for place in places)
    ]


def attributes_of(name: str) -> set[str]:
    """Return the attributes that the methods of all classes of a name set on self."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        if f"class {name}" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                found |= {
                    inner.attr
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                }
    return found


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= WORDS_MAX


def test_the_page_names_each_folder() -> None:
    named = {code.strip("/") for cell, *_ in rows(section("Folders")) for code in code_in(cell)}
    hidden = {"__init__", "__main__", "py.typed"}
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or path.suffix == ".py"
    }
    assert named == found - hidden


def test_each_path_on_the_page_exists() -> None:
    assert missing_paths(PAGE) == []
    assert missing_paths("`recovery/no_plan.py`, `attic/`, `recovery/plan.py`") == [
        "recovery/no_plan.py",
        "attic/",
    ]


def test_the_page_lists_the_functions_of_the_recovery() -> None:
    assert list(listed_calls()) == list(RECOVERY)


@pytest.mark.parametrize("function", RECOVERY)
def test_the_recovery_makes_its_calls_in_the_order_of_the_page(function: str) -> None:
    path, in_class = RECOVERY[function]
    calls = calls_of((PACKAGE / path).read_text("utf-8"), function, in_class)
    assert first_missing(listed_calls()[function], calls) == ""


def test_another_order_is_found() -> None:
    text = "def f(self):\n    self.log.load()\n    for x in a():\n        self.make(b).finish()\n"
    calls = calls_of(text, "f")
    assert calls == ["self.log.load", "a", "self.make", "self.make(b).finish"]
    assert first_missing(["log.load", "a", "finish"], calls) == ""
    assert first_missing(["a", "log.load"], calls) == "log.load"
    assert first_missing(["load", "load"], calls) == "load"


def test_each_lock_on_the_page_exists() -> None:
    locks = [
        code.split(".")
        for code in code_in(section("Threads and locks"))
        if re.fullmatch(r"[A-Z]\w+\.\w+", code)
    ]
    assert len(locks) > 5
    assert [lock for lock in locks if lock[1] not in attributes_of(lock[0])] == []


def test_the_pages_name_the_required_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [re.split(r"[<>=~]", text)[0] for text in project["dependencies"]]
    listed = f"{', '.join(required[:-1])} and {required[-1]}"
    assert f"The required dependencies are {listed}." in PAGE
    assert f"the engine; it needs {listed}" in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_names_each_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    readme = (ROOT / "README.md").read_text("utf-8")
    named = re.findall(r"pip install '\.\[(\w+)\]'", readme)
    assert sorted(named) == sorted(project["optional-dependencies"])
