"""Goal: whatever is at the path of a file or directory of a store, an opening ends soon, changes
nothing outside of the store, loses nothing in it, and its error names the path.
Method: a link, a FIFO, a socket, a device, a directory or an empty file at each path of a store,
which a child then opens in every mode. Each run has a new seed; odd_files.py describes how to
repeat a case or a run."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import places
from odd_files import ONLY, Campaign, Case
from support.seed import SEED

SOAK = bool(os.environ.get("ROCKETSTORE_SOAK_ODD_FILES"))
#: Number of cases in a run of all tests; the soak takes all.
COUNT = 40


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a directory, in memory if possible."""
    found = places.directory()
    logging.disable(logging.ERROR)  # recovery logs many warnings
    yield found
    logging.disable(logging.NOTSET)
    shutil.rmtree(found)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_odd_things_at_the_paths_of_a_store(path: Path) -> None:
    with Campaign(path) as campaign:
        cases = campaign.all() if SOAK else campaign.some(SEED, COUNT)
        if ONLY:
            cases = [Case(*ONLY.split(":"))]
        print(f"{len(cases)} of {len(campaign.all())} cases, ROCKETSTORE_SEED={SEED}")
        try:
            for case in cases:
                campaign.run(case)
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_SEED={SEED}")
            raise
        print(dict(campaign.counts))
    assert campaign.counts["cases"] == len(cases)
    assert ONLY or campaign.counts["refused"] > len(cases)


def test_canary_a_victim_that_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that writes through a link, or names no file, is detected."""
    with Campaign(path) as campaign:
        case = Case("plain", "store/checkpoint", "link-to-text")
        campaign.run(case)

        def run(root: Path, _: Path, steps: tuple[str, ...]) -> dict[str, dict[str, str]]:
            if "write" in steps:
                (root / "checkpoint").write_bytes(b"through the link")
            return {step: {"kind": "", "text": ""} for step in steps}

        monkeypatch.setattr(campaign._child, "run", run)
        with pytest.raises(AssertionError, match="outside of the store"):
            campaign.run(case)
        silent = {"kind": "store", "text": "it did not work"}
        monkeypatch.setattr(campaign._child, "run", lambda *_: dict.fromkeys(["info"], silent))
        with pytest.raises(AssertionError, match="names no file"):
            campaign.run(case)


def test_canary_a_child_that_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odd_files.TIMEOUT_S", 1)
    with Campaign(path) as campaign:
        monkeypatch.setattr("odd_files.STEPS", ("hang",))
        with pytest.raises(AssertionError, match=r"hung|died"):
            campaign.run(Case("plain", "store/checkpoint", "fifo"))
