"""Goal: the rules of the house hold: imports point down, functions are short, public names have
docstrings.
Method: read the sources as text and as syntax trees; each rule is first shown to catch a breach."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "pyrocketstore"

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70

#: Folders of the package, and modules beside them: each imports, and cimports, earlier ones alone.
HOUSE = """
    display errors results _rocketstore
    arguments system record filter config files index commit_log consume_queue dispatch flush
    recovery cleaning columns reading consumer schedule transaction ha message_store verify
    store low_level metrics spark __init__ cli __main__
""".split()

#: Folders and modules of `spark/`, in order. Within a folder only cycles are refused.
SPARK = """
    packages encodable_errors parse_errors local_paths fields options schemas task_types read plan
    source lake jobs udf pipeline verify rebuild __init__
""".split()

#: Modules that run on executors of Spark, and the folders of the engine that it may import.
EXECUTORS = """
    packages encodable_errors parse_errors local_paths fields options schemas task_types read
    lake.manifest lake.writer jobs.expected_entries jobs.rebuild_log jobs.verify_rows udf
""".split()
EXECUTORS_ENGINE = """
    display errors results arguments system record filter config files index commit_log
    consume_queue columns reading
""".split()

#: env.py is the only door to the operating system and the clock. Others may use of `os` what does
#: neither read nor change anything outside the process.
OS_MODULES = {"os", "time", "shutil", "tempfile", "mmap", "fcntl"}
OS_PURE = {
    "os.strerror",
    "os.fsdecode",
    "os.fsencode",
    "os.fspath",
    "os.PathLike",
    "os.sep",
    "os.getpid",
    "os.register_at_fork",
    "os.path.join",
    "os.path.basename",
    "os.path.dirname",
}


def package_files(*suffixes: str) -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in suffixes)


def source_files() -> list[Path]:
    places = {"csrc": "*.[ch]", "tests": "*.py", "tools": "*.py", "bench": "*.py"}
    found = [path for place, pattern in places.items() for path in (ROOT / place).rglob(pattern)]
    return sorted([*package_files(".py", ".pyx", ".pxd", ".pyi"), *found, ROOT / "setup.py"])


def module_of(path: Path) -> str:
    """The dotted name of a module below the package; a folder's own name for its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(module: str) -> str:
    """The entry of HOUSE that a module belongs to."""
    return module.partition(".")[0]


def place_of(module: str) -> tuple[int, int]:
    """The place of a module in HOUSE, and of one of `spark/` in SPARK."""
    room, _, rest = module.partition(".")
    part = rest.partition(".")[0] or "__init__"
    return HOUSE.index(room), SPARK.index(part) if room == "spark" else 0


@functools.cache
def outline(text: str) -> tuple[list[ast.Import | ast.ImportFrom], list[tuple[int, int]]]:
    """The imports of Python code, and first and last line of each function; parsed once a text."""
    imports: list[ast.Import | ast.ImportFrom] = []
    blocks = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks.append((node.lineno - 1, node.end_lineno or node.lineno))
    return imports, blocks


@functools.cache
def is_module(name: str) -> bool:
    """Whether a dotted name is a module or folder of the package."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or any(path.with_suffix(s).exists() for s in (".py", ".pyx"))


def imported(text: str, *, is_python: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of every import and cimport, those in functions included."""
    if is_python:
        for node in outline(text)[0]:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            else:
                base = "." * node.level + (node.module or "")
                if base == "pyrocketstore":
                    yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
                else:
                    names = (f"{base}.{alias.name}" for alias in node.names)
                    inner = [name for name in names if is_module(name)]
                    yield from ((node.lineno, name) for name in inner or [base])
        return
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r"\s*from\s+(\S+)\s+c?import\s+(.*)", line):
            base, names = match.groups()
            if base == "pyrocketstore":
                yield from ((number, f"{base}.{n}") for n in re.findall(r"\w+", names))
            else:
                yield number, base
        elif match := re.match(r"\s*c?import\s+([\w.]+)", line):
            yield number, match[1]


def is_engine(module: str) -> bool:
    """Whether a module is below Spark, the metrics and the command."""
    return HOUSE.index(room_of(module)) < HOUSE.index("metrics")


def targets(text: str, *, is_python: bool) -> Iterator[tuple[int, str]]:
    """(line, module below the package) of every import of the package itself."""
    for number, name in imported(text, is_python=is_python):
        top, _, rest = name.partition(".")
        if top == "pyrocketstore":
            yield number, rest if room_of(rest) in HOUSE else "__init__"


def wrong_arrows(module: str, text: str, *, is_python: bool) -> list[str]:
    """Imports of `module` that name a later entry of HOUSE, are relative, or belong to env.py."""
    wrong = []
    for number, name in imported(text, is_python=is_python):
        if name.startswith("."):
            wrong.append(f"{module}:{number}: relative import {name}")
        if module == "system.env" or not is_engine(module):
            continue
        if name.partition(".")[0] in OS_MODULES - {"os"}:
            wrong.append(f"{module}:{number}: {name} is env.py's business")
    for number, target in targets(text, is_python=is_python):
        if place_of(target) > place_of(module):
            wrong.append(f"{module}:{number}: {target} comes later")
    return wrong


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle; [] if there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in sorted(graph.get(module, ())):
            if found := walk(target, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := walk(module, []))), [])


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports; a .pyx and its .pxd are one module."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path in package_files(".py", ".pyx", ".pxd"):
        module, text = module_of(path), path.read_text(encoding="utf-8")
        graph[module] |= {m for _, m in targets(text, is_python=path.suffix == ".py")} - {module}
    return graph


def doors(module: str, text: str) -> list[str]:
    """Uses of `os` that belong into env.py."""
    if module == "system.env" or not is_engine(module):
        return []
    tree = ast.parse(text)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            name = ast.unparse(node)
            if name.startswith("os.") and name not in OS_PURE:
                wrong.append(f"{module}:{node.lineno}: {name} is env.py's business")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "os":
            wrong.append(f"{module}:{node.lineno}: import os as a whole")
    return wrong


CYTHON_START = re.compile(r"^(\s*)(?:async\s+def|def|cdef|cpdef)\b[^=]*\(")
CYTHON_NAME = re.compile(r"^\s*(?:async\s+)?(?:def|cdef class|class)\s+(\w+)")


def cython_blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """(first, end) indexes of functions: from the signature to the first line not indented more."""
    for first, line in enumerate(lines):
        match = CYTHON_START.match(line)
        if not match:
            continue
        at = first
        while at < len(lines) and not re.search(r":\s*(#.*)?$", lines[at]):
            if at > first and not lines[at].strip():
                break  # a declaration without a body
            at += 1
        if at == len(lines) or not lines[at].strip():
            continue
        indent = len(match[1])
        end = at + 1
        while end < len(lines):
            rest = lines[end]
            if rest.strip() and len(rest) - len(rest.lstrip()) <= indent:
                break
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        yield first, end


def c_blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The same for C: from the line above a brace in the first column to its partner."""
    start = None
    for number, line in enumerate(lines):
        if start is None and (line == "{" or (re.match(r"\w.*\)\s*\{$", line))):
            start = number
        elif start is not None and line.startswith("}"):
            yield start, number + 1
            start = None


def docstring_lines(block: list[str]) -> int:
    text = "\n".join(block)
    match = re.search(r':\s*\n\s*r?"""(?:.|\n)*?"""', text)
    return match[0].count("\n") if match else 0


def long_functions(name: str, text: str) -> list[str]:
    """Functions over the limit, their docstrings not counted."""
    lines = text.split("\n")
    if name.endswith(".py"):
        blocks: Iterable[tuple[int, int]] = outline(text)[1]
    else:
        blocks = c_blocks(lines) if name.endswith((".c", ".h")) else cython_blocks(lines)
    found = []
    for first, end in blocks:
        count = end - first - docstring_lines(lines[first:end])
        if count > FUNCTION_LINES_MAX:
            found.append(f"{name}:{first + 1}: {count} lines")
    return found


def undocumented_python(name: str, text: str) -> list[str]:
    """Public functions, classes and methods without a docstring, and modules."""
    tree = ast.parse(text)
    missing = [] if ast.get_docstring(tree) or not tree.body else [f"{name}: module"]

    def visit(node: ast.AST, is_inner: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if child.name.startswith("_") or is_inner:
                    continue
                if not ast.get_docstring(child) and not is_exempt(child):
                    missing.append(f"{name}:{child.lineno}: {child.name}")
                visit(child, not isinstance(child, ast.ClassDef))

    def is_exempt(child: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        decorators = [ast.unparse(d) for d in child.decorator_list]
        return any(d.endswith((".setter", "overload", "override")) for d in decorators)

    visit(tree, False)
    return missing


def undocumented_cython(name: str, text: str) -> list[str]:
    """The same for .pyx: every `def` and class that Python can see."""
    lines = text.split("\n")
    missing = (
        [] if text.lstrip().startswith(('"""', "#")) and '"""' in text else [f"{name}: module"]
    )
    for first, line in enumerate(lines):
        match = CYTHON_NAME.match(line)
        if not match or match[1].startswith("_") or ".setter" in lines[first - 1]:
            continue
        at = first
        while at < len(lines) - 1 and not re.search(r":\s*(#.*)?$", lines[at]):
            at += 1
        if not re.match(r'\s*r?"""', lines[at + 1]):
            missing.append(f"{name}:{first + 1}: {match[1]}")
    return missing


def test_every_folder_has_a_place():
    rooms = {room_of(module_of(path)) for path in package_files(".py", ".pyx", ".pxd")}
    assert rooms ^ set(HOUSE) == set(), "HOUSE lists the folders in order"


def test_every_part_of_spark_has_a_place():
    names = {module_of(path) for path in (PACKAGE / "spark").rglob("*.py")} - {"spark"}
    assert {name.split(".")[1] for name in names} ^ set(SPARK) == {"__init__"}


def test_every_folder_says_what_it_is_for():
    for folder in sorted({path.parent for path in package_files(".py", ".pyx")} - {PACKAGE}):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text and len(text.splitlines()) >= 3, folder


def test_no_module_imports_itself_through_others():
    assert cycle(import_graph()) == []


def runs_on_executors(module: str) -> bool:
    room, _, rest = module.partition(".")
    return room == "spark" and any(rest == e or rest.startswith(f"{e}.") for e in EXECUTORS)


def test_executors_import_no_engine():
    wrong = [
        f"{module}: {target}"
        for module, found in import_graph().items()
        if runs_on_executors(module)
        for target in found
        if not runs_on_executors(target) and room_of(target) not in EXECUTORS_ENGINE
    ]
    assert not wrong, "\n".join(wrong)


def test_arrows_point_down():
    wrong = []
    for path in package_files(".py", ".pyx", ".pxd"):
        text = path.read_text(encoding="utf-8")
        wrong += wrong_arrows(module_of(path), text, is_python=path.suffix == ".py")
    assert not wrong, "\n".join(wrong)


def test_env_is_the_only_door():
    wrong = []
    for path in package_files(".py"):
        wrong += doors(module_of(path), path.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


def test_lines_are_short():
    wrong = []
    for path in source_files():
        name = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_LENGTH_MAX:
                wrong.append(f"{name}:{number}: {len(line)} characters")
            if line != line.rstrip() or "\t" in line:
                wrong.append(f"{name}:{number}: a tab, or blanks at the end")
    assert not wrong, "\n".join(wrong)


def test_functions_are_short():
    wrong = []
    for path in source_files():
        if path.suffix not in {".pxd", ".pyi"}:
            name = str(path.relative_to(ROOT))
            wrong += long_functions(name, path.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


def test_public_names_are_documented():
    wrong = []
    for path in package_files(".py", ".pyx"):
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        wrong += undocumented_python(name, text) if path.suffix == ".py" else []
        wrong += undocumented_cython(name, text) if path.suffix == ".pyx" else []
    assert not wrong, "\n".join(wrong)


def test_every_compiled_module_has_a_stub():
    assert [p.stem for p in package_files(".pyx") if not p.with_suffix(".pyi").exists()] == []


def test_nothing_is_excepted_barely():
    """No bare except and no swallowed error in Cython, which ruff does not read."""
    wrong = []
    for path in package_files(".pyx"):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if re.match(r"\s*except\s*(BaseException\s*)?:", line):
                wrong.append(f"{path.name}:{number}")
    assert not wrong, "\n".join(wrong)


#: Modules, and calls, that make code or any object of bytes.
CODE_OF_BYTES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
CALLS_OF_CODE = r"(?<![\w.])(eval|exec|compile|__import__)\("


def code_of_bytes(path: Path, text: str) -> list[str]:
    modules = imported(text, is_python=path.suffix == ".py")
    wrong = [f"{path}:{n}: {m}" for n, m in modules if m.split(".")[0] in CODE_OF_BYTES]
    return wrong + [f"{path}: {found[0]}" for found in re.finditer(CALLS_OF_CODE, text)]


def test_nothing_that_is_read_becomes_code():
    files = package_files(".py", ".pyx")
    assert [w for p in files for w in code_of_bytes(p, p.read_text(encoding="utf-8"))] == []


def test_canary_code_of_bytes():
    for text in ("import pickle", "from marshal import loads", "x = eval(text)"):
        assert code_of_bytes(Path("a.py"), text) != []
    assert code_of_bytes(Path("a.py"), "import json\nre.compile(x)") == []


# ---- tests ---------------------------------------------------------------------------------------


def imports_of_tests(name: str, text: str) -> list[str]:
    """Imports of test modules; helpers are in tests/support, or beside the tests that use them."""
    found = imported(text, is_python=True)
    return [f"{name}:{n}: {m}" for n, m in found if m.rpartition(".")[2].startswith("test_")]


def test_no_test_module_is_imported_by_another():
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        wrong += imports_of_tests(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


def test_tests_that_start_java_say_so():
    """`make test` leaves them to `make test-all` by the marker."""
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "spark"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    starting = {name for name, text in texts.items() if re.search(r"\brequire_java(_5x)?\(", text)}
    assert len(starting) > 10
    assert [name for name in sorted(starting) if "mark.java" not in texts[name]] == []


def test_names_of_test_modules_are_unique():
    """Pytest puts the folder of each test module on sys.path, where one name is one module."""
    folders = [path for path in (ROOT / "tests").iterdir() if path.name != "support"]
    names = Counter(path.stem for folder in folders for path in folder.rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "conftest"] == []


def test_canary_imports_of_tests():
    assert imports_of_tests("a.py", "from test_b import c") != []
    assert imports_of_tests("a.py", "def f():\n    import store.test_b") != []
    assert imports_of_tests("a.py", "from support.golden_stores import unpack") == []


# The rules themselves: each must catch what it is there for.


@pytest.mark.parametrize(
    ("module", "text", "is_python"),
    [
        ("system.env", "from pyrocketstore.commit_log.log import CommitLog", True),
        ("dispatch.reput", "def f():\n    from pyrocketstore.recovery.plan import x", True),
        ("dispatch.reput", "from pyrocketstore import recovery", True),
        ("commit_log.log", "import pyrocketstore", True),
        ("config.keys", "from .errors import StoreError", True),
        ("commit_log.log", "import time", True),
        ("record._text", "from pyrocketstore.files._mapped_file cimport MappedFile", False),
        (
            "record._message",
            "    from pyrocketstore.index.index_service import IndexService",
            False,
        ),
        ("system._env", "cimport pyrocketstore.dispatch._dispatcher", False),
        ("system._env", "from pyrocketstore cimport files, record", False),
        ("spark.plan.task_splitting", "from pyrocketstore.spark.source import batch", True),
        ("spark.read.units", "from pyrocketstore.spark import register", True),
        ("spark.fields", "from pyrocketstore.spark.read.units import RangeUnits", True),
    ],
)
def test_canary_arrows(module, text, is_python):
    assert wrong_arrows(module, text, is_python=is_python) != []


def test_canary_allowed_arrows():
    text = "from pyrocketstore.system._env cimport EnvTable\nfrom libc.stdint cimport int64_t"
    assert wrong_arrows("files._mapped_file", text, is_python=False) == []
    text = (
        "import json\nfrom pyrocketstore.errors import StoreError\nfrom pyrocketstore import system"
    )
    assert wrong_arrows("commit_log.log", text, is_python=True) == []


def test_canary_cycles():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_canary_doors():
    assert doors("commit_log.log", "import os\nos.unlink('a')\n") != []
    assert doors("commit_log.log", "import os\nos.path.exists('a')\n") != []
    assert doors("commit_log.log", "from os import unlink\n") != []
    assert doors("commit_log.log", "import os\na = os.path.join('a', os.fspath(b))\n") == []
    assert doors("system.env", "import os\nos.unlink('a')\n") == []


def test_canary_long_functions():
    body = "\n".join(["    x = 1"] * FUNCTION_LINES_MAX)
    doc = '    """One.\n\n\n\n    """\n'
    assert long_functions("a.py", f"def f():\n{body}\n") == ["a.py:1: 71 lines"]
    short = body[: -len("\n    x = 1")]
    assert long_functions("a.py", f"def f():\n{doc}{body}\n") == ["a.py:1: 71 lines"]
    assert long_functions("a.py", f"def f():\n{doc}{short}\n") == []
    signature = "cdef int64_t f(\n    int a,\n) noexcept nogil:"
    assert long_functions("a.pyx", f"{signature}\n{body}\n\ndef g(): pass\n") != []
    assert long_functions("a.pyx", f"cdef int g() noexcept nogil\n\ndef h(x):\n{short}\n") == []
    assert long_functions("a.c", "int f(void)\n{\n" + body + "\n}\n") != []
    assert long_functions("a.c", "int f(void) {\n" + short + "\n}\n") != []
    assert long_functions("a.c", "int f(void) {\n    return 1;\n}\n") == []


def test_canary_docstrings():
    assert undocumented_python("a.py", '"""M."""\ndef f(): pass') == ["a.py:2: f"]
    assert undocumented_python("a.py", '"""M."""\nclass A:\n    def f(self): pass') != []
    assert undocumented_python("a.py", '"""M."""\ndef _f(): pass\ndef g():\n    "D."') == []
    assert undocumented_cython("a.pyx", '"""M."""\ndef f(\n    int a,\n):\n    pass\n') != []
    assert undocumented_cython("a.pyx", '"""M."""\ncdef class A:\n    """D."""\n') == []
    assert undocumented_cython("a.pyx", '"""M."""\ncdef class A:\n    cdef int x\n') != []
