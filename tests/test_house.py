"""Goal: the rules of ARCHITECTURE.md hold: arrows point down, pieces stay small, names are told.
Method: read the sources as text and as syntax trees; each rule is first shown to catch a breach."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyrocketstore"

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70

#: A module may import, or cimport, what has a smaller number and nothing else.
LEVELS = {
    "__main__": 7.9,
    "cli": 7.5,
    "spark": 7.2,
    "__init__": 7.4,
    "dump": 7.3,
    "store": 7.0,
    "batches": 6.5,
    "at_exit": 6.5,
    "tags": 4.0,
    "queue_reading": 6.4,
    "topic_names": 6.0,
    "skipped": 1.25,
    "arguments": 0.25,
    "verify": 6.5,
    "index_check": 6.4,
    "verify_report": 6.3,
    "opening_problems": 6.4,
    "message_store": 6.0,
    "store_parts": 6.0,
    "reads": 5.5,
    "reports": 5.7,
    "message_futures": 5.7,
    "services": 5.5,
    "put_room": 5.1,
    "async_put": 5.2,
    "async_store": 6.5,
    "metrics": 7.1,
    "recovery": 5.0,
    "dispatch": 5.0,
    "flush": 5.0,
    "cleaning": 5.0,
    "queue_removal": 5.1,
    "mending": 5.1,
    "log_scan": 4.0,
    "lost_records": 4.1,
    "commit_log": 4.1,
    "put_rules": 4.2,
    "kept_units": 4.05,
    "consume_queue": 4.1,
    "unit_check": 4.3,
    "topic_config": 4.0,
    "index_service": 4.1,
    "index_directory": 4.0,
    "index_geometry": 4.05,
    "index_gaps": 4.3,
    "key_gaps": 6.1,
    "unreadable_hits": 6.1,
    "index_forcing": 4.0,
    "queue_table": 4.2,
    "mismatched_files": 4.15,
    "lost_ends": 6.2,
    "broken_folder": 2.1,
    "consume_queue_ext": 4.0,
    "queue_units": 4.0,
    "multi_path": 3.1,
    "mapped_file_queue": 3.0,
    "queue_directories": 3.0,
    "store_checkpoint": 3.0,
    "lock_file": 3.0,
    "unique_id": 2.1,
    "stats": 2.5,
    "stalls": 2.1,
    "disk_space": 2.1,
    "service_thread": 2.0,
    "joinable_thread": 1.9,
    "periodic": 2.1,
    "live_stores": 2.1,
    "transient_store_pool": 2.5,
    "allocate_mapped_file_service": 2.9,
    "config": 2.05,
    "env": 2.0,
    "arrow": 1.5,
    "_face": 1.6,
    "_put_path": 1.5,
    "_tally": 1.0,
    "_put_columns": 1.45,
    "_put_result": 1.1,
    "_group_commit": 1.45,
    "_key_search": 1.5,
    "_commit_log": 1.4,
    "_dispatch": 1.5,
    "_log_piece": 1.45,
    "_scan": 1.4,
    "_reader": 1.4,
    "_file_columns": 1.45,
    "_verify": 1.5,
    "_columns": 1.3,
    "_column_memory": 1.28,
    "_text_columns": 1.4,
    "_log_walk": 1.45,
    "_queue_rows": 1.45,
    "_consume_queue": 1.3,
    "_index_file": 1.3,
    "_index_walk": 1.2,
    "_index_keys": 1.25,
    "_values": 1.25,
    "_queue_check": 1.2,
    "_prefill": 1.25,
    "_message": 1.2,
    "_mapped_file": 1.1,
    "_writes": 1.05,
    "_new_file": 1.05,
    "new_files": 2.1,
    "_record": 1.1,
    "_text": 1.0,
    "_exact": 0.25,
    "_allocation": 1.0,
    "_env": 1.0,
    "shield": 1.01,
    "file_sizes": 0.3,
    "message": 0.3,
    "exact": 0.2,
    "properties_file": 0.1,
    "config_keys": 0.0,
    "results": 0.0,
    "errors": 0.0,
    "display": -1.0,
    "_rocketstore": 0.9,
}

#: Packages within the package; each counts as one module.
PACKAGES = {"cli", "spark"}

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
    """The name in LEVELS: `cli` for everything in that package."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported(text: str, *, is_python: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of every import and cimport, those in functions included."""
    if is_python:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                if base == "pyrocketstore":
                    yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
                else:
                    yield node.lineno, base
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


def level(module: str) -> float:
    """Of a module without a level: 0, which the test above this one does not accept."""
    return LEVELS.get(module, 0.0)


def wrong_arrows(module: str, text: str, *, is_python: bool) -> list[str]:
    """Imports of `module` that do not point down."""
    wrong = []
    for number, name in imported(text, is_python=is_python):
        if name.startswith("."):
            wrong.append(f"{module}:{number}: relative import {name}")
            continue
        top, _, rest = name.partition(".")
        if top != "pyrocketstore":
            if top in OS_MODULES - {"os"} and module != "env" and level(module) < 7:
                wrong.append(f"{module}:{number}: {name} is env.py's business")
            continue
        target = rest.split(".")[0] or "__init__"
        target = target if target in LEVELS else "__init__"
        if target == module and target in PACKAGES:
            continue
        if LEVELS[target] >= level(module):
            wrong.append(f"{module}:{number}: {target} is not below")
    return wrong


def doors(module: str, text: str) -> list[str]:
    """Uses of `os` that belong into env.py."""
    if module == "env" or level(module) >= 7:
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


def python_blocks(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno - 1, node.end_lineno or node.lineno


def long_functions(name: str, text: str) -> list[str]:
    """Functions over the limit, their docstrings not counted."""
    lines = text.split("\n")
    if name.endswith(".py"):
        blocks = python_blocks(text)
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


def test_every_module_has_a_level():
    names = {module_of(path) for path in package_files(".py", ".pyx", ".pxd")}
    assert names - LEVELS.keys() == set(), "give it a level in tests/test_house.py"


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


def test_flows_never_import_each_other():
    flows = {name for name, level in LEVELS.items() if level == 5.0}
    assert flows == {"recovery", "dispatch", "flush", "cleaning"}


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


# The rules themselves: each must catch what it is there for.


@pytest.mark.parametrize(
    ("module", "text", "is_python"),
    [
        ("env", "from pyrocketstore.commit_log import CommitLog", True),
        ("recovery", "def f():\n    from pyrocketstore.dispatch import x", True),
        ("dispatch", "from pyrocketstore import recovery", True),
        ("commit_log", "import pyrocketstore", True),
        ("config", "from .errors import StoreError", True),
        ("commit_log", "import time", True),
        ("_mapped_file", "from pyrocketstore._message cimport crc32", False),
        ("_message", "    from pyrocketstore.env import Env", False),
        ("_env", "cimport pyrocketstore._dispatch", False),
        ("_env", "from pyrocketstore cimport _mapped_file, _message", False),
    ],
)
def test_canary_arrows(module, text, is_python):
    assert wrong_arrows(module, text, is_python=is_python) != []


def test_canary_allowed_arrows():
    text = "from pyrocketstore._env cimport EnvTable\nfrom libc.stdint cimport int64_t\nimport json"
    assert wrong_arrows("_mapped_file", text, is_python=False) == []
    text = "import json\nfrom pyrocketstore.errors import StoreError\nfrom pyrocketstore import env"
    assert wrong_arrows("commit_log", text, is_python=True) == []


def test_canary_doors():
    assert doors("commit_log", "import os\nos.unlink('a')\n") != []
    assert doors("commit_log", "import os\nos.path.exists('a')\n") != []
    assert doors("commit_log", "from os import unlink\n") != []
    assert doors("commit_log", "import os\na = os.path.join('a', os.fspath(b))\n") == []
    assert doors("env", "import os\nos.unlink('a')\n") == []


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


def test_departures_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "differs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert sorted(n for n in named if f"def {n}(" not in sources) == []
