"""Prints counts that say how much code there is, and how much of it knows the whole store.

    python tools/structure_counts.py [--details] [ROOT]

ROOT is a checkout, by default this one. Python is parsed; Cython and C are counted by line and by
pattern. Each count says below how it is taken, so that two checkouts can be compared.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from module_tests import only_through_others, untested

#: Classes whose instance is the whole store: a function that takes one may touch everything.
WHOLE_STORE = {"StoreContext", "DefaultMessageStore", "Engine", "Store"}
#: Classes whose instance is all files of a store, without puts, services and life cycle.
ALL_FILES = {"StoreFiles", "LoadedFiles"}
PUBLIC = "pyrocketstore/message_store/default_message_store.py"
ENGINE = "pyrocketstore/message_store/engine.py"
#: Names of the flag that says whether a store may be changed.
MODE = re.compile(r"\b(read_only|writable|is_read_only|is_writable)\b")
CYTHON_BRANCH = re.compile(r"^\s*(if|elif|while)\b|\bif\b.*\belse\b")
#: A step that makes the bytes of records a part of a file of the log, and one that shows them.
STORES = re.compile(r"\b(store_indirect|store_records|write_records)\(")
PUBLISHES = re.compile(r"\bpublish_indirect\(|rs_store_release\(&file\.wrote,")
ROLLS = re.compile(r"\.roll\(")


def sources(root: Path, *suffixes: str) -> list[Path]:
    """The source files of the package with one of the suffixes, in order."""
    found = (root / "pyrocketstore").rglob("*")
    return sorted(path for path in found if path.suffix in suffixes)


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def python_statements(path: Path) -> int:
    """The number of statements of a Python file, docstrings left out."""
    tree = ast.parse(path.read_text())
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return count - sum(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for node in ast.walk(tree)
    )


def cython_statements(path: Path) -> int:
    """The number of logical lines of a Cython file, without comments and docstrings."""
    count, only_string, empty = 0, True, True
    readline = io.StringIO(path.read_text()).readline
    for token in tokenize.generate_tokens(readline):
        if token.type == tokenize.NEWLINE:
            count += not (only_string or empty)
            only_string, empty = True, True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            empty = False
            only_string = only_string and token.type == tokenize.STRING
    return count


def c_statements(path: Path) -> int:
    """The number of semicolons and opening braces of a C file, comments left out."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    return text.count(";") + text.count("{")


def mode_branches(root: Path) -> dict[str, int]:
    """By file: conditions in which the flag read_only, or its opposite, stands."""
    found: dict[str, int] = {}
    for path in sources(root, ".py"):
        tree = ast.parse(path.read_text())
        tests: list[ast.expr] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
                tests.append(node.test)
            elif isinstance(node, ast.comprehension):
                tests += node.ifs
            elif isinstance(node, ast.BoolOp):
                tests.append(node)
        # A condition within a condition is the same branch.
        inner = {id(child) for test in tests for child in ast.walk(test) if child is not test}
        count = sum(
            id(test) not in inner and bool(MODE.search(ast.unparse(test))) for test in tests
        )
        if count:
            found[str(path.relative_to(root))] = count
    for path in sources(root, ".pyx", ".pxd"):
        count = sum(
            bool(MODE.search(line) and CYTHON_BRANCH.search(line))
            for line in path.read_text().splitlines()
        )
        if count:
            found[str(path.relative_to(root))] = count
    return found


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a Python file imports, those for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("pyrocketstore.")}


def imports_of_recovery(root: Path) -> set[str]:
    """The modules of other folders that the folder of recovery imports."""
    found: set[str] = set()
    for path in (root / "pyrocketstore" / "recovery").glob("*.py"):
        found |= imported_modules(path)
    return {name for name in found if not name.startswith("pyrocketstore.recovery")}


def imported_names(path: Path) -> int:
    """The number of names that the imports of a Python file bind."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(len(node.names) for node in nodes)


def parameters_of(root: Path, classes: set[str]) -> tuple[int, int]:
    """How many parameters are annotated with one of the classes, and in how many files."""
    count = files = 0
    for path in sources(root, ".py"):
        found = 0
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    annotation = argument.annotation
                    text = "" if annotation is None else ast.unparse(annotation)
                    found += bool(classes & set(re.findall(r"\w+", text)))
        count += found
        files += bool(found)
    return count, files


def methods_and_lines(root: Path) -> tuple[int, int]:
    """Methods of the class DefaultMessageStore, and lines of its module."""
    text = (root / PUBLIC).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name == "DefaultMessageStore":
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            return len(methods), len(text.splitlines())
    return 0, len(text.splitlines())


def functions_of(path: Path) -> Iterator[str]:
    """The texts of the functions of a Python or Cython file, by indentation."""
    block: list[str] = []
    for line in path.read_text().splitlines():
        starts = re.match(r" *(cdef|cpdef|def|async def)\b", line) and "(" in line
        if starts and not line.lstrip().startswith("cdef class"):
            if block:
                yield "\n".join(block)
            block = []
        block.append(line)
    yield "\n".join(block)


def roll_loops(root: Path) -> list[str]:
    """Functions outside of the roll itself that call it in a loop, until the records fit."""
    return [
        f"{path.relative_to(root)}: {text.lstrip().splitlines()[0][:60]}"
        for path in sources(root, ".py", ".pyx")
        for text in functions_of(path)
        if ROLLS.search(text) and re.search(r"^\s+(while|for)\b", text, re.MULTILINE)
    ]


def publishing_functions(root: Path) -> list[str]:
    """Functions that store bytes of records into the log's file and then publish them."""
    return [
        f"{path.relative_to(root)}: {text.lstrip().splitlines()[0][:60]}"
        for path in sources(root, ".pyx")
        for text in functions_of(path)
        if STORES.search(text) and PUBLISHES.search(text)
    ]


def table_rows(root: Path) -> int:
    """The rows of all tables of docs/differs.md, without their heads."""
    text = (root / "docs" / "differs.md").read_text().splitlines()
    rows = [line for line in text if line.startswith("|")]
    rules = sum(bool(re.fullmatch(r"\|[\s|:-]+\|", line)) for line in rows)
    return len(rows) - 2 * rules


def main(root: Path, *, details: bool) -> None:
    """Print one line for each count; with details also what was counted."""
    package, c_files = sources(root, ".py", ".pyx", ".pxd"), sorted((root / "csrc").glob("*.[ch]"))
    branches = mode_branches(root)
    parameters, files = parameters_of(root, WHOLE_STORE)
    file_parameters, _ = parameters_of(root, ALL_FILES)
    methods, length = methods_and_lines(root)
    # Older checkouts have the engine in the public module.
    engine = root / (ENGINE if (root / ENGINE).is_file() else PUBLIC)
    statements = (
        sum(map(python_statements, sources(root, ".py")))
        + sum(map(cython_statements, sources(root, ".pyx", ".pxd")))
        + sum(map(c_statements, c_files))
    )
    rows = [
        ("lines of pyrocketstore/", lines(package)),
        ("lines of csrc/", lines(c_files)),
        ("statements", statements),
        ("branches on read_only, writable", sum(branches.values())),
        ("files with such branches", len(branches)),
        ("modules that recovery/ imports from other folders", len(imports_of_recovery(root))),
        ("lines of default_message_store.py", length),
        ("methods of DefaultMessageStore", methods),
        ("names that default_message_store.py imports", imported_names(root / PUBLIC)),
        ("lines of engine.py", lines([engine])),
        ("names that engine.py imports", imported_names(engine)),
        ("parameters that are the whole store", parameters),
        ("files with such parameters", files),
        ("parameters that are all files of a store", file_parameters),
        ("loops over the end of a file", len(roll_loops(root))),
        ("functions that store and publish records", len(publishing_functions(root))),
        (".pyx modules", len(sources(root, ".pyx"))),
        ("rows of docs/differs.md", table_rows(root)),
        ("modules without a valid row in tests/README.md", len(untested(root))),
        ("modules that tests reach only through others", len(only_through_others(root))),
    ]
    for name, count in rows:
        print(f"{count:7,}  {name}")
    if details:
        by_file = [f"{name}: {count}" for name, count in branches.items()]
        for title, found in (
            ("branches on read_only, writable", by_file),
            ("loops over the end of a file", roll_loops(root)),
            ("functions that store and publish records", publishing_functions(root)),
            ("modules without a valid row in tests/README.md", untested(root)),
            ("modules that tests reach only through others", only_through_others(root)),
        ):
            print(f"\n{title}:", *found, sep="\n    ")


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    checkout = Path(paths[0]) if paths else Path(__file__).resolve().parent.parent
    main(checkout, details="--details" in sys.argv)
