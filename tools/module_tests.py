"""Checks the tables of tests/README.md: which tests show that a module of the package works.

    python tools/module_tests.py [ROOT]

A row is `module | tests | what they show`, with paths below `pyrocketstore` and below `tests`. The
tests are files, separated by commas, which import the module:

    `index/test_index_file.py`, `faults/fuzz_keys.py`

A name that one module imports from another counts as an import of both. Files behind
``through `recovery/plan.py`:`` import that module instead, and it reaches the module of the row by
at most two imports. A semicolon ends such a list.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from itertools import pairwise
from pathlib import Path

ROW = re.compile(r"\| `([\w/]+\.pyx?)` \| ([^|]*) \| ([^|]+) \|")
PART = re.compile(r"(?:through `([\w/]+\.pyx?)`: )?(`[\w/]+\.py`(?:, `[\w/]+\.py`)*)")
COMPILED_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s|c?import\s+([\w.]+))", re.M)
#: The text that a function gets which imports a module when it is first used.
DOTTED = re.compile(r"pyrocketstore(\.\w+)+")
COMMAND = ("-m", "pyrocketstore")
STEPS_MAX = 2


@functools.cache
def modules(root: Path) -> dict[str, Path]:
    """The modules of the package by dotted name, without the docstrings of its folders."""
    package = root / "pyrocketstore"
    found = (path for path in sorted(package.rglob("*")) if path.suffix in (".py", ".pyx"))
    return {dotted(path, root): path for path in found if path.stem != "__init__"}


def dotted(path: Path, root: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def named(short: str) -> str:
    """The dotted name of a module by its path in the tables."""
    return ".".join(("pyrocketstore", *Path(short).with_suffix("").parts))


@functools.cache
def python_imports(path: Path) -> frozenset[tuple[str, str]]:
    """(module, name) of each import of a Python file; "" for a module as a whole.

    Attributes of `pyrocketstore` are its public names. The arguments `-m pyrocketstore` of a child
    process run `pyrocketstore.__main__`.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {("pyrocketstore", node.attr)} if node.value.id == "pyrocketstore" else set()
        elif isinstance(node, ast.List | ast.Tuple):
            words = [getattr(element, "value", None) for element in node.elts]
            if COMMAND in pairwise(words):
                found.add(("pyrocketstore.__main__", ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {(node.value, "")} if DOTTED.fullmatch(node.value) else set()
    return frozenset(found)


def definers(root: Path, module: str, name: str) -> set[str]:
    """The modules that an import of one name reaches: by re-export, up to where it is defined."""
    path = root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {module, f"{module}.{name}"}
    if name and module.startswith("pyrocketstore") and path.exists():
        for source, other in python_imports(path):
            if other == name and source != module:
                found |= definers(root, source, name)
    return found


@functools.cache
def imports(root: Path, path: Path) -> set[str]:
    """The modules of the package that a Python file imports, those that define its names too."""
    found: set[str] = set()
    for module, name in python_imports(path):
        if module.partition(".")[0] == "pyrocketstore":
            found |= definers(root, module, name)
    return found & set(modules(root))


def import_graph(root: Path) -> dict[str, set[str]]:
    """Module -> modules that it imports or cimports."""
    known, graph = modules(root), {}
    for module, path in known.items():
        if path.suffix == ".py":
            graph[module] = imports(root, path)
        else:
            files = (path, path.with_suffix(".pxd"))
            text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.exists())
            graph[module] = {a or b for a, b in COMPILED_IMPORT.findall(text)} & set(known)
    return graph


def reached(graph: dict[str, set[str]], module: str) -> set[str]:
    """The modules that a module imports in at most STEPS_MAX steps."""
    found = {module}
    for _ in range(STEPS_MAX):
        found |= {target for one in found for target in graph.get(one, ())}
    return found


def rows(root: Path) -> list[tuple[str, str]]:
    """(dotted name, cell of the tests) of each row of tests/README.md; [] without the page."""
    page = root / "tests" / "README.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return [(named(short), tests) for short, tests, _ in ROW.findall(text)]


def wrong_cell(root: Path, graph: dict[str, set[str]], module: str, cell: str) -> list[str]:
    """Return the faults of the tests that a row names."""
    wrong = []
    for part in cell.split("; "):
        match = PART.fullmatch(part)
        if match is None:
            wrong.append(f"{module}: {part!r} is not a list of files")
            continue
        target = named(match[1]) if match[1] else module
        if module not in reached(graph, target):
            wrong.append(f"{module}: {target} does not reach it by {STEPS_MAX} imports")
        for name in re.findall(r"`([^`]+)`", match[2]):
            path = root / "tests" / name
            if not path.is_file():
                wrong.append(f"{module}: tests/{name} does not exist")
            elif target not in imports(root, path):
                wrong.append(f"{module}: tests/{name} does not import {target}")
    return wrong


def faults(root: Path) -> dict[str, list[str]]:
    """Return the faults of the tables, by module."""
    known, graph = modules(root), import_graph(root)
    found: dict[str, list[str]] = {}
    listed = rows(root)
    for module, cell in listed:
        if module not in known:
            found[module] = [f"{module}: does not exist"]
        elif wrong := wrong_cell(root, graph, module, cell):
            found[module] = wrong
    names = [module for module, _ in listed]
    for module in known:
        if names.count(module) != 1:
            found.setdefault(module, []).append(f"{module}: {names.count(module)} rows, not 1")
    return found


def untested(root: Path) -> list[str]:
    """Modules of the package without a valid row."""
    known = modules(root)
    return [module for module in faults(root) if module in known]


def only_through_others(root: Path) -> list[str]:
    """Modules that no test of their row imports."""
    return [
        module
        for module, cell in rows(root)
        if all(part.startswith("through ") for part in cell.split("; "))
    ]


def main(root: Path) -> int:
    """Print each fault of the tables; the exit code is 1 if there is one."""
    wrong = [line for lines in faults(root).values() for line in lines]
    for line in wrong:
        print(line)
    print(f"{len(modules(root))} modules, {len(only_through_others(root))} only through others")
    return bool(wrong)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent))
