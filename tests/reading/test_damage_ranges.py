"""Goal: each message that cannot be read is in the range of exactly one error if reading continues
after errors, and these ranges equal those that skipping counts; also in merged queues, by tags and
in batches. Method: damage random bytes of stores whose log files have more messages than one lookup
covers; compare the messages that were read with those that were put, and the ways to read."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pyrocketstore
from pyrocketstore import DamagedMessageError
from pyrocketstore.cli.commands import app
from pyrocketstore.reading._queue_runs import FIRST_READ_COUNT

LOG_SIZE = 1 << 17
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 20 * 2000,
    "message_index_enable": False,
}
#: Of T/0; each file of the log holds some 800 of them, and every eleventh message is of T/1.
COUNT = 8000
#: An opening looks at the last three files; damage there would end the log.
LOOKED_AT = 3
UNIT = struct.Struct(">qiq")
Ranges = list[tuple[int, int]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranges") / "store"
    ids = [queue_id for i in range(COUNT // 10) for queue_id in [0] * 10 + [1]]
    numbers = [0, 0]
    bodies, tags = [], []
    for queue_id in ids:
        bodies.append(b"%d" % numbers[queue_id])
        tags.append("AB"[numbers[queue_id] % 2])
        numbers[queue_id] += 1
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put_many("T", bodies, queue_ids=ids, tags=tags)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "store"))


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def places(root: Path) -> list[int]:
    """Physical offsets of the messages of T/0, bytes of the log."""
    data = b"".join(p.read_bytes() for p in sorted((root / "consumequeue/T/0").iterdir()))
    return [place for place, _, _ in UNIT.iter_unpack(data[: 20 * COUNT])]


def read_all(reader: Any) -> tuple[list[tuple[int, int]], list[DamagedMessageError]]:
    """(queue id, queue offset) of each message, and the errors: everything, also behind these."""
    messages: list[tuple[int, int]] = []
    errors = []
    while True:
        try:
            for message in reader:
                messages.append((message.queue_id, message.queue_offset))
        except DamagedMessageError as error:
            errors.append(error)
        else:
            return messages, errors


def batches(store: pyrocketstore.Store, mode: str, max_count: int) -> tuple[list[int], Ranges]:
    """Queue offsets of the messages of T/0 in batches, and the ranges that no batch has."""
    found: list[int] = []
    ranges: Ranges = []
    start, end = 0, store.max_offset("T")
    stop = end
    while start < end:
        count = min(max_count, stop - start)
        try:
            batch = store.read_batch("T", start=start, max_count=count, on_corrupt=mode)
        except DamagedMessageError as error:
            assert start <= error.start < error.stop <= start + count
            stop = error.start  # messages before it are returned without an error
            if error.start == start:
                ranges.append((error.start, error.stop))
                start, stop = error.stop, end
            continue
        found += batch["queue_offset"].to_pylist()
        for part in json.loads(batch.schema.metadata.get(b"skipped", b"[]")):
            ranges.append((part["start"], part["stop"]))
        start = int(batch.schema.metadata[b"next_offset"])
        if start == stop:
            stop = end
    return found, ranges


def offsets_in(ranges: Ranges) -> list[int]:
    return [offset for start, stop in ranges for offset in range(start, stop)]


def check(store: pyrocketstore.Store, lost: Callable[[int], bool]) -> None:
    """All ways to read give the same messages and the same ranges; `lost`: of T/0."""
    expected = [i for i in range(COUNT) if lost(i)]
    kept = [(0, i) for i in range(COUNT) if not lost(i)]
    skipping = store.read("T", on_corrupt="skip")
    assert read_all(skipping) == (kept, [])
    assert offsets_in([(r.start, r.stop) for r in skipping.skipped.ranges]) == expected
    for queue_id in (0, None):
        reader = store.read("T", queue_id)
        messages, errors = read_all(reader)
        assert [m for m in messages if m[0] == 0] == kept
        ranges = [(e.start, e.stop) for e in errors if e.queue_id == 0]
        assert offsets_in(ranges) == expected
        assert sum(e.stop - e.start for e in errors) == reader.skipped.count
        again = store.read("T", queue_id, on_corrupt="skip")
        assert read_all(again) == (messages, [])
        assert again.skipped.count == reader.skipped.count
        assert again.skipped.ranges == reader.skipped.ranges
    by_tag = store.read("T", tags="A")
    messages, errors = read_all(by_tag)
    assert messages == [m for m in kept if m[1] % 2 == 0]
    skipping = store.read("T", tags="A", on_corrupt="skip")
    assert read_all(skipping) == (messages, [])
    covered = offsets_in([(e.start, e.stop) for e in errors])
    assert len(covered) == len(set(covered)) == skipping.skipped.count == by_tag.skipped.count
    assert set(covered) >= {i for i in expected if i % 2 == 0}
    for mode in ("raise", "skip"):
        for max_count in (700, COUNT):
            found, ranges = batches(store, mode, max_count)
            assert found == [i for _, i in kept]
            assert offsets_in(ranges) == expected


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("doublings", [0, 1, 2, 3])
def test_each_message_of_a_missing_file_is_in_one_error(
    root: Path, doublings: int, read_only: bool
) -> None:
    """The file's messages are looked up in two steps or three; the first steps end there."""
    boundary = FIRST_READ_COUNT * (2 ** (doublings + 1) - 1)
    where = places(root)
    number = where[boundary] // LOG_SIZE
    if number == 0:
        number = 1  # without its first file the log would begin with the second
    which = {i for i, place in enumerate(where) if place // LOG_SIZE == number}
    (root / "commitlog" / f"{number * LOG_SIZE:020d}").unlink()
    with pyrocketstore.open(root, read_only=read_only, **SETTINGS) as store:
        check(store, which.__contains__)
    for word in ("raise", "skip"):
        result = CliRunner().invoke(app, ["cat", str(root), "T", "--queue=0", "--on-corrupt", word])
        assert result.exit_code == 1
        if word == "skip":
            assert f"{len(which)} messages cannot be read, in 1 ranges" in result.stderr
            assert len(result.stdout.splitlines()) == COUNT - len(which) + 1
        else:
            assert f"queue offsets {min(which)} to " in result.stderr


@pytest.mark.parametrize("seed", range(12))
def test_ranges_over_random_damage(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    files, where = log_files(root)[:-LOOKED_AT], places(root)
    end = next(i for i, place in enumerate(where) if place >= len(files) * LOG_SIZE)
    lost: set[int] = set()
    for gone in rng.sample(files[1:], rng.randrange(3)):
        base = int(gone.name)
        lost |= {i for i, place in enumerate(where) if base <= place < base + LOG_SIZE}
        gone.unlink()
    units = rng.sample(range(end), rng.choice((0, 3, 40)))
    for i in units:  # another message's place
        with (root / f"consumequeue/T/0/{i // 2000 * 40000:020d}").open("r+b") as file:
            file.seek(i % 2000 * 20)
            file.write(struct.pack(">q", where[i + 7]))
    records = rng.sample(range(end), rng.choice((0, 3, 40)))
    for first in rng.sample(range(end - 600), rng.randrange(3)):
        records += range(first, first + 600)
    for i in set(records) - lost:
        with (root / "commitlog" / f"{where[i] // LOG_SIZE * LOG_SIZE:020d}").open("r+b") as file:
            file.seek(where[i] % LOG_SIZE + 4)
            file.write(b"no")
    lost |= {*units, *records}
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        check(store, lost.__contains__)


def test_a_file_that_goes_while_it_is_read(root: Path) -> None:
    """Messages that were looked up before are left out, and counted, chunk by chunk."""
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        reader = store.read("T")
        given = [next(reader).queue_offset for _ in range(10)]
        for file in log_files(root)[1:-1]:
            file.unlink()
        messages, errors = read_all(reader)
        given += [offset for _, offset in messages]
        covered = offsets_in([(e.start, e.stop) for e in errors])
        assert sorted(given + covered) == list(range(COUNT))
        assert reader.skipped.count == len(covered)
