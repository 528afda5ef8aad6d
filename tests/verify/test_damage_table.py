"""Goal: each file of a store may be damaged in each way: nothing crashes, a reader changes nothing,
a derived file refuses no opening, nothing intact is lost, and docs/damage.md says what happens.
Method: damage one file of a closed store at a time, and compare info, verify and both openings
with the page. With ROCKETSTORE_WRITE_DAMAGE_PAGE=1 the table of the page is written again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.damage_table import (
    DAMAGES,
    FILES,
    HEAD,
    KINDS,
    Made,
    kind_of,
    make_store,
    outcome_of,
    parsed,
    table,
)
from support.grids import mostly_slow

pytest.importorskip("click")

PAGE = Path(__file__).parent.parent.parent / "docs" / "damage.md"
NAMES = [name for name, _, _ in FILES]
Stores = dict[str, tuple[Made, Made]]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    root = tmp_path_factory.mktemp("stores")
    return {
        kind: (
            make_store(root / f"store-{kind}", b"ours", kind),
            make_store(root / f"other-{kind}", b"another", kind),
        )
        for kind in KINDS
    }


@pytest.mark.parametrize("name", mostly_slow(NAMES, 6))
def test_a_damaged_file(stores: Stores, tmp_path: Path, name: str) -> None:
    said = parsed(PAGE.read_text())
    for damage in DAMAGES:
        outcome, faults = outcome_of(name, damage, *stores[kind_of(name)], tmp_path / "work")
        assert not faults, (damage, faults)
        if name.startswith(("`consumequeue", "`index")) or (
            name == "`checkpoint`" and damage in ("random", "cut")
        ):
            assert outcome.verify.startswith("reports"), (damage, outcome)
        if name.startswith("`config") and damage in ("empty", "zeros", "random", "cut"):
            is_backup = name.endswith(".bak`")
            assert is_backup or outcome.info in ("warns", "reports"), (damage, outcome)
            assert is_backup or outcome.verify in ("warns", "reports: config"), (damage, outcome)
            assert not outcome.read_only.startswith("refuses"), (damage, outcome)
        if "ROCKETSTORE_WRITE_DAMAGE_PAGE" not in os.environ:
            assert said[name, damage] == outcome, f"{damage}: run `make damage-page`"


@pytest.mark.skipif("ROCKETSTORE_WRITE_DAMAGE_PAGE" not in os.environ, reason="writes the page")
def test_the_page_is_written(stores: Stores, tmp_path: Path) -> None:
    found = {
        (name, damage): outcome_of(name, damage, *stores[kind_of(name)], tmp_path / "work")[0]
        for name in NAMES
        for damage in DAMAGES
    }
    page = PAGE.read_text()
    begin = page.index(HEAD)
    end = page.index("\n\n", begin) + 1 if "\n\n" in page[begin:] else len(page)
    PAGE.write_text(page[:begin] + table(found) + page[end:])
