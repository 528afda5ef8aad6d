"""Goal: the code, the links and the import paths in README.md and docs/ work.
Method: each block of Python code runs in a new directory; each path in docs/api.md is imported."""

from __future__ import annotations

import asyncio
import importlib
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyrocketstore

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (page, code)
    for page in ("README.md", "docs/python.md", "docs/retention.md", "docs/follow.md")
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    if "spark" not in code  # tests/spark runs the same lines of docs/spark.md
]


def close_stores(names: dict[str, Any]) -> None:
    for name in [name for name, value in names.items() if isinstance(value, pyrocketstore.Store)]:
        names.pop(name).close()


#: Pages with whole programs, each with the text that it prints, None where the page has none.
PROGRAMS = [
    (page, code, printed if follows else None)
    for page in (
        "docs/consume.md",
        "docs/delayed.md",
        "docs/filter.md",
        "docs/light-queues.md",
        "docs/transactions.md",
    )
    for code, follows, printed in re.findall(
        r"```python\n(.*?)```(\n\n```\n(.*?)```)?", (ROOT / page).read_text("utf-8"), re.DOTALL
    )
]


@pytest.mark.parametrize(("page", "code", "printed"), PROGRAMS)
def test_the_programs_of_the_page_print_what_it_shows(
    page: str,
    code: str,
    printed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    found = capsys.readouterr().out
    assert found
    assert printed is None or found == printed


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_the_code_of_the_page_runs(
    page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "data" / "store"
    names: dict[str, Any] = {"pyrocketstore": pyrocketstore, "handle": print}
    store = pyrocketstore.open(root)
    store.put("orders", b"paid")
    if "store =" in code or "open(" in code:  # the block opens the directory itself
        store.close()
        (tmp_path / "broker.conf").write_text("brokerRole=ASYNC_MASTER\n")
    else:
        names["store"] = store
    if "prometheus_client" in code:
        prometheus_client = pytest.importorskip("prometheus_client")
        monkeypatch.setattr(prometheus_client, "start_http_server", lambda port: None)
        monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    if "read_batch" in code:
        pytest.importorskip("pyarrow")
    try:
        exec(code.replace("/var/store", str(root)), names)
        if "async def" in code:
            order = SimpleNamespace(body=b"paid", id="order-8")
            assert asyncio.run(names["handle_order"](order)) == 1
    finally:
        close_stores(names)


def test_the_code_of_the_python_page_runs_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    prometheus_client = pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda port: None)
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    monkeypatch.chdir(tmp_path)
    pyrocketstore.open("broker").close()
    (tmp_path / "broker.conf").write_text("brokerRole=ASYNC_MASTER\n")
    names: dict[str, Any] = {"handle": print}
    try:
        for page, code in BLOCKS:
            if page == "docs/python.md":
                exec(code.replace("/var/store", str(tmp_path / "broker")), names)
    finally:
        close_stores(names)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=str)
def test_the_links_of_the_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


def test_the_changelog_of_the_first_version_names_no_earlier_behaviour() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["0.1.0, not released"]
    assert re.findall(r"\b[Bb]efore[,:]|\bno longer\b|\bany more\b", text) == []


def api_paths() -> list[str]:
    """The import paths of docs/api.md; those of a section follow its heading."""
    paths, section = [], ""
    for line in (ROOT / "docs" / "api.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").strip("`")
        elif found := re.match(r"\| `([\w.]+)` \|", line):
            name = found[1]
            paths.append(name if "." in name else f"{section}.{name}")
    return paths


@pytest.mark.parametrize("path", api_paths())
def test_each_import_path_of_the_page_exists(path: str) -> None:
    if path.startswith("pyrocketstore.spark"):
        pytest.importorskip("pyspark")
    module, _, name = path.rpartition(".")
    if not hasattr(importlib.import_module(module), name):
        importlib.import_module(path)


def test_the_page_has_every_public_name() -> None:
    named = {path for path in api_paths() if path.count(".") == 1}
    assert named == {f"pyrocketstore.{name}" for name in pyrocketstore.__all__}


def test_the_readme_names_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (line,) = [
        line
        for line in (ROOT / "README.md").read_text("utf-8").splitlines()
        if line.startswith("pip install . ")
    ]
    names = [re.split(r"[^A-Za-z0-9_-]", wanted)[0] for wanted in project["dependencies"]]
    assert [name for name in names if name not in re.findall(r"[\w-]+", line)] == []
