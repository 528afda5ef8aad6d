"""Goal: public names are loaded when they are used, are listed consistently, and `help` is short.
Method: look at sys.modules in fresh interpreters; compare the lists of names; render with pydoc."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore

SOURCE = Path(pyrocketstore.__file__).read_text(encoding="utf-8")
#: Folders that belong to the engine: importing the package, or decoding columns, loads none.
ENGINE = "commit_log consume_queue dispatch flush recovery cleaning message_store store".split()
HELP_LINES_MAX = 102


def loaded(code: str) -> set[str]:
    """The folders and modules of the package that a fresh interpreter has after `code`."""
    code = f"import sys\n{code}\nprint(*(m for m in sys.modules if m.startswith('pyrocketstore.')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return {name.split(".")[1] for name in run.stdout.split()}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import pyrocketstore", set()),
        ("import pyrocketstore; dir(pyrocketstore); pyrocketstore.__version__", set()),
        ("from pyrocketstore import StoreError", {"errors"}),
        ("import pyrocketstore.columns._decode, pyrocketstore.columns.arrow", {"columns"}),
    ],
)
def test_an_import_loads_no_engine(code: str, wanted: set[str]) -> None:
    found = loaded(code)
    assert not found.intersection(ENGINE)
    assert wanted <= found


def test_a_store_loads_the_engine() -> None:
    assert loaded("from pyrocketstore import Store").issuperset(ENGINE)


def test_the_engine_loads_no_large_module_that_few_calls_need() -> None:
    """asyncio alone takes about as long as the engine."""
    large = """
        asyncio ssl decimal difflib pyarrow
        pyrocketstore.columns._decode pyrocketstore.reading.batches
    """.split()
    code = (
        "import sys, numpy; before = set(sys.modules)\n"
        "from pyrocketstore import DefaultMessageStore, Store, open\n"
        f"print(*set(sys.modules).difference(before).intersection({large}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


def test_every_public_name_can_be_imported() -> None:
    found: dict[str, object] = {}
    exec("from pyrocketstore import *", found)
    del found["__builtins__"]
    assert sorted(found) == sorted(pyrocketstore.__all__)
    assert all(getattr(pyrocketstore, name) is value for name, value in found.items())


def test_the_lists_of_names_agree() -> None:
    """`__all__`, and the names that type checkers see."""
    typed = [
        alias.name
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyrocketstore")
        for alias in node.names
        if alias.name not in {"close_at_exit", "imported"}
    ]
    assert sorted(typed) == sorted(pyrocketstore.__all__)
    assert sorted(pyrocketstore.__all__) == list(pyrocketstore.__all__)
    assert set(pyrocketstore.__all__) < set(dir(pyrocketstore))


def test_a_name_that_is_not_public() -> None:
    with pytest.raises(AttributeError, match="'pyrocketstore' has no attribute 'Stor'"):
        pyrocketstore.Stor  # type: ignore[attr-defined]  # noqa: B018


def test_help_begins_with_an_example_and_names_everything() -> None:
    text = pydoc.render_doc(pyrocketstore, renderer=pydoc.plaintext)
    lines = [line.strip() for line in text.splitlines()]
    assert len(lines) <= HELP_LINES_MAX
    assert "import pyrocketstore" in lines[: lines.index("DESCRIPTION") + 2]
    doc = pyrocketstore.__doc__ or ""
    assert [name for name in pyrocketstore.__all__ if f"{name}" not in doc] == []
