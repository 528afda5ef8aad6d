"""Goal: no bytes in a small file, and no text of an option, cause any exception of a parser but a
StoreError that names the file. Method: fuzz_texts.py, with a new seed in each run.

ROCKETSTORE_SEED repeats a run, ROCKETSTORE_SOAK_TEXTS=N examines N mutants of each target, and
ROCKETSTORE_TEXT=TARGET:SEED:NUMBER repeats the mutant that a failure named.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from fuzz_texts import Fuzz
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.spark.lake.manifest import read_note
from support.seed import SEED

COUNT = int(os.environ.get("ROCKETSTORE_SOAK_TEXTS", "300"))
ONLY = os.environ.get("ROCKETSTORE_TEXT", "")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(max(300, COUNT // 10)),
]


def test_mutants_of_texts(tmp_path: Path) -> None:
    fuzz = Fuzz(tmp_path)
    counts: Counter[tuple[str, str]] = Counter()
    if ONLY:
        target, seed, number = ONLY.split(":")
        fuzz.examine(target, seed, int(number))
        return
    print(f"ROCKETSTORE_SEED={SEED}, {COUNT} mutants each")
    failures = []
    for target in fuzz.targets:
        for number in range(COUNT):
            try:
                counts[target, fuzz.examine(target, SEED, number)] += 1
            except AssertionError as error:
                failures.append(f"ROCKETSTORE_TEXT={error}")
    print(dict(counts))
    assert not failures, f"{len(failures)}:\n" + "\n".join(failures[:20])
    for target in fuzz.targets:  # otherwise the mutants are changed too much, or too little
        assert counts[target, "refused"] > 0 or target == "conf"
        assert counts[target, "taken"] > 0


def test_a_damaged_note_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "3.jsonl").write_text('{"rows": 1}\n')
    with pytest.raises(StoreCorruptionError, match="not a manifest") as refused:
        read_note(tmp_path, 3)
    assert refused.value.path == str(tmp_path / "3.jsonl")


def test_canary_a_parser_that_raises_something_else(tmp_path: Path) -> None:
    fuzz = Fuzz(tmp_path)

    def wrong(_: object) -> None:
        raise KeyError("rows")

    fuzz.targets["run"] = wrong
    with pytest.raises(AssertionError, match="run:1:0: KeyError"):
        fuzz.examine("run", "1", 0)
