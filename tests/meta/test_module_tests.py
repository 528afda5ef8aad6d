"""Goal: tests/README.md names, for each module of the package, tests that exercise it.
Method: `tools/module_tests.py` over this checkout, and over a small one with each kind of fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import module_tests

ROOT = Path(__file__).parents[2]


def test_each_module_has_a_row_that_is_true() -> None:
    assert module_tests.faults(ROOT) == {}


FILES = {
    "pyrocketstore/__init__.py": "from pyrocketstore.store.api import open",
    "pyrocketstore/store/api.py": "from pyrocketstore.files import _file",
    "pyrocketstore/__main__.py": "import pyrocketstore.store.api",
    "pyrocketstore/files/_file.pyx": "from pyrocketstore.files._name cimport (\n    a,\n)\n",
    "pyrocketstore/files/_file.pxd": "from pyrocketstore.files._parts cimport Part\n",
    "pyrocketstore/files/_name.pyx": "from pyrocketstore.files._end import b\n",
    "pyrocketstore/files/_parts.pyx": "",
    "pyrocketstore/files/_end.pyx": "",
    "tests/store/test_api.py": "import pyrocketstore\npyrocketstore.open('a')\n",
    "tests/store/test_command.py": "run([executable, '-m', 'pyrocketstore', 'info'])\n",
    "tests/files/test_file.py": "from pyrocketstore.files._file import File\n",
    "tests/files/test_end.py": "m = import_module('pyrocketstore.files._end')\n",
}
ROWS = {
    "__main__.py": "`store/test_command.py`",
    "store/api.py": "`store/test_api.py`",
    "files/_file.pyx": "`files/test_file.py`; through `store/api.py`: `store/test_api.py`",
    "files/_name.pyx": "through `store/api.py`: `store/test_api.py`",
    "files/_parts.pyx": "through `files/_file.pyx`: `files/test_file.py`",
    "files/_end.pyx": "`files/test_end.py`",
}


def faults(root: Path, rows: dict[str, str]) -> list[str]:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table = "".join(f"| `{module}` | {tests} | something |\n" for module, tests in rows.items())
    (root / "tests" / "README.md").write_text(f"| module | tests | a |\n|---|---|---|\n{table}")
    return [line for lines in module_tests.faults(root).values() for line in lines]


def test_a_valid_table(tmp_path: Path) -> None:
    assert faults(tmp_path, ROWS) == []
    assert module_tests.untested(tmp_path) == []
    assert module_tests.only_through_others(tmp_path) == [
        "pyrocketstore.files._name",
        "pyrocketstore.files._parts",
    ]


@pytest.mark.parametrize(
    ("module", "cell", "reason"),
    [
        ("store/api.py", "", "'' is not a list of files"),
        ("store/api.py", "the tests of all folders", "is not a list of files"),
        ("store/api.py", "`store/test_no.py`", "tests/store/test_no.py does not exist"),
        ("store/api.py", "`files/test_file.py`", "does not import pyrocketstore.store.api"),
        ("files/_name.pyx", "`files/test_file.py`", "does not import pyrocketstore.files._name"),
        (
            "files/_name.pyx",
            "through `files/_file.pyx`: `store/test_no.py`",
            "tests/store/test_no.py does not exist",
        ),
        (
            "files/_name.pyx",
            "through `files/_file.pyx`: `store/test_api.py`",
            "tests/store/test_api.py does not import pyrocketstore.files._file",
        ),
        (
            "files/_end.pyx",
            "through `store/api.py`: `store/test_api.py`",
            "pyrocketstore.store.api does not reach it by 2 imports",
        ),
        ("files/_gone.pyx", "`files/test_file.py`", "pyrocketstore.files._gone: does not exist"),
    ],
)
def test_a_wrong_row(tmp_path: Path, module: str, cell: str, reason: str) -> None:
    found = faults(tmp_path, {**ROWS, module: cell})
    assert len(found) == 1 and reason in found[0], found


def test_a_missing_row(tmp_path: Path) -> None:
    del (rows := dict(ROWS))["files/_end.pyx"]
    assert faults(tmp_path, rows) == ["pyrocketstore.files._end: 0 rows, not 1"]
    assert module_tests.untested(tmp_path) == ["pyrocketstore.files._end"]


def test_a_checkout_without_the_page(tmp_path: Path) -> None:
    faults(tmp_path, ROWS)
    (tmp_path / "tests" / "README.md").unlink()
    assert len(module_tests.untested(tmp_path)) == len(ROWS)
