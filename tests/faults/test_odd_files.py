"""Goal: whatever lies where a store has a file or a directory, opening the store ends soon, harms
nothing outside of it, loses nothing in it, and an error says which path it is.
Method: a link, a FIFO, a socket, a device, a directory or an empty file at each path of a store,
which a child then opens in every way. The seed is another one in each run; odd_files.py says how a
case, or a run, is repeated."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import places
from odd_files import ONLY, SEED, Campaign, Case

SOAK = bool(os.environ.get("ROCKETSTORE_SOAK_ODD_FILES"))
#: What a run of all tests takes of the cases; the soak takes all.
COUNT = 40


@pytest.fixture
def path() -> Iterator[Path]:
    """A directory, in memory if there is some."""
    found = places.directory()
    logging.disable(logging.ERROR)  # recovery has much to say
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
    """A child that writes through a link, or names no file, is seen."""
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
