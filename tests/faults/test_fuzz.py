"""Goal: no bytes in a store's files crash, hang or mislead a decoder or the engine, exhaust memory,
or make a reader write. The engine's answers equal those of a plain reader of the same bytes.
Method: mutants made with knowledge of the fields of each format. Kernels (fuzz_records,
fuzz_tables) pass buffers directly to the compiled decoders. Whole stores (fuzz_stores) are opened,
read, queried, dumped, verified and every tenth time written to. All mutants run in separate
processes (fuzz_run).

ROCKETSTORE_SOAK_MUTANTS=N runs N kernel mutants and N / 40 whole-store mutants, ROCKETSTORE_SEED
selects others, and ROCKETSTORE_MUTANT=NAME:SEED:NUMBER repeats the mutant that a failure named.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import fuzz_records
import fuzz_run
import fuzz_stores
import fuzz_tables
from support import oracle

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_MUTANTS", "0"))
PROCESSES = (os.cpu_count() or 1) if SOAK else 1
MUTANT = os.environ.get("ROCKETSTORE_MUTANT", "")

pytestmark = pytest.mark.timeout(max(600, SOAK // 100))


@pytest.mark.skipif(bool(MUTANT), reason="one mutant is requested")
@pytest.mark.parametrize(
    ("layer", "count"),
    [
        ("kernels", SOAK or 40_000),
        ("stores", SOAK // 40 or 400),
        ("tiny", SOAK or 800),
        pytest.param("kernels", 3000, marks=pytest.mark.bad_input),
        pytest.param("stores", 50, marks=pytest.mark.bad_input),
    ],
)
def test_mutants(layer: str, count: int) -> None:
    outcome = fuzz_run.run(layer, count, PROCESSES)
    print(outcome.text(layer), *outcome.notes, sep="\n")
    assert not outcome.failures, "\n".join(outcome.failures)
    assert sum(outcome.counts.values()) == count


@pytest.mark.skipif(not MUTANT, reason="ROCKETSTORE_MUTANT names none")
def test_the_requested_mutant() -> None:
    outcome = fuzz_run.repeat(MUTANT)
    print(*outcome.notes, sep="\n")
    assert not outcome.failures, "\n".join(outcome.failures)


def test_memory_grows_with_what_is_scanned(tmp_path: Path) -> None:
    """A chunk has more records and keys than a scan reserves memory for at first."""
    kernel = fuzz_records.LogKernel("1", tmp_path)
    data = b""
    for _ in range(4200):
        at = kernel.BASE + len(data)
        record = oracle.Record(properties=b"KEYS\1a b", phy_offset=at, queue_offset=at)
        data += oracle.encode_record(record)
    kernel.check(fuzz_records.Bytes("", data, (0, len(data), len(data), True)))


# ---- the tests are tested ------------------------------------------------------------------------


def test_a_mutant_is_its_name(tmp_path: Path) -> None:
    """Equal names give equal bytes, different names different ones."""
    for maker in (*fuzz_records.KERNELS, *fuzz_tables.KERNELS):
        made = []
        for i, number in enumerate((1, 1, 2)):
            folder = tmp_path / f"{maker.name}{i}"
            folder.mkdir()
            made.append(maker("7", folder).make(random.Random(f"{maker.name}:7:{number}")))
        assert made[0] == made[1] and made[0] != made[2], maker.name


@pytest.mark.parametrize(
    "maker", [fuzz_records.BatchKernel, fuzz_stores.PlainKernel], ids=["kernel", "store"]
)
def test_a_mutant_is_repeated_by_its_name(tmp_path: Path, maker: type[fuzz_records.Kernel]) -> None:
    """A mutant of another seed in another process: the base stores are reproducible."""
    name = f"{maker.name}:3:17"
    outcome = fuzz_run.repeat(name)
    assert not outcome.failures
    mutant = maker("3", tmp_path).make(random.Random(name))
    assert outcome.notes == [f"{mutant.text}; {fuzz_run.bytes_text(mutant)}"]


def test_a_decoder_that_is_wrong_is_found_and_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If records with a negative body length were refused, some mutant would show it."""
    check = fuzz_records.check_message

    def wrong(data: bytes, *words: int, **names: bool) -> tuple[str, int]:
        verdict, size = check(data, *words, **names)
        return (
            ("bad_size", size) if verdict == "ok" and data[36:40] == bytes(4) else (verdict, size)
        )

    monkeypatch.setattr(fuzz_records, "check_message", wrong)
    kernel = fuzz_records.RecordKernel("1", tmp_path)
    for number in range(500):
        mutant = kernel.make(random.Random(f"record:1:{number}"))
        try:
            kernel.check(mutant)
        except AssertionError as error:
            fails = fuzz_run.failing(kernel, AssertionError)
            smaller = fuzz_run.shrink(kernel, mutant, fails)
            assert len(smaller.data) <= len(mutant.data) and fails(smaller) is not None
            assert "ROCKETSTORE_MUTANT=record:1" in fuzz_run.report("record:1:0", smaller, error)
            return
    raise AssertionError("nothing was found in 500 mutants")


def test_a_reader_that_writes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store mutant loses the changes that do not contribute to its failure."""
    kernel = fuzz_stores.PlainKernel("1", tmp_path)
    mutant = fuzz_stores.StoreMutant("", {"checkpoint": bytes(4096), "abort": b""}, 1, True)
    kernel.check(mutant)

    def check_dump(self: fuzz_stores.StoreKernel, *words: object) -> None:
        (self.root / "abort").unlink(missing_ok=True)

    monkeypatch.setattr(fuzz_stores.StoreKernel, "check_dump", check_dump)
    fails = fuzz_run.failing(kernel, AssertionError)
    assert fails(mutant) is not None
    assert set(fuzz_run.shrink(kernel, mutant, fails).changes) == {"abort"}


@pytest.mark.parametrize("what", ["crash", "hang"])
def test_a_process_that_ends_names_its_mutant(tmp_path: Path, what: str) -> None:
    (tmp_path / "note").write_bytes(b"record:1:77".ljust(200, b"\0"))
    (tmp_path / "err").write_text("notes")
    code = {"crash": -11, "hang": -fuzz_run.signal.SIGPROF}[what]
    text = fuzz_run.ended(tmp_path, code)
    assert text.startswith("ROCKETSTORE_MUTANT=record:1:77\n") and "notes" in text
    assert ("processor time" in text) == (what == "hang")
