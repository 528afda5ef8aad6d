"""Goal: over the same damage our store keeps every message that 4.9.3 keeps, and a row of
docs/differs.md describes each difference. Method: a valid store is damaged (damage.py). Copies of
it are recovered by 4.9.3, read by our store, and opened by it for writing. The results are compared
(damaged.py).

ROCKETSTORE_SOAK=N damages 10 N more stores, ROCKETSTORE_SEED in other ways; ROCKETSTORE_DAMAGE=SEED
damages only the one that a failure named. A store contains the times of its creation:
ROCKETSTORE_DAMAGE=DIRECTORY, where the failure kept its stores, repeats exactly the same one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import damaged
import pyrocketstore
from actors import JAVA, OURS, ActorError, Actors, SilentError, actors, write_conf
from damage import damage_store, used_size
from damaged import Answer, Log, differences, refused
from damaged_index import Index, read_queries
from failures import COMMAND, Failures, kept
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError
from pyrocketstore.verify.dump import dump_lines
from support import oracle
from support.golden_lines import index_hash, write_queries
from support.java_store import require_java
from support.random_messages import random_messages, random_queries, spec_line
from support.seed import SEED

pytestmark = [pytest.mark.java, pytest.mark.slow]

SOAK = int(os.environ.get("ROCKETSTORE_SOAK", "0"))
ONLY = os.environ.get("ROCKETSTORE_DAMAGE", "")
ONLY_KEPT = Path(ONLY or "/no directory")
DAMAGES = 60 + 10 * SOAK
DIFFERS = Path(__file__).parents[2] / "docs" / "differs.md"
FILE_SIZE = 32_768
CONFIG = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 150,
}
# 4.9.3 rebuilds the units of delayed messages with wrong tags codes.
KINDS = ("batch", "v6", "tx", "comp", "empty", "collide")
#: 4.9.3 never returns from a looping chain. Without such a chain it gets more time, once.
HANG_TIMEOUT_S, LAST_TIMEOUT_S = 20, 180


class Base(NamedTuple):
    """A valid store, and its queries."""

    path: Path
    queries: Path


class Survey:
    """Damages copies of valid stores and compares the results of both sides."""

    def __init__(self, pool: Actors, directory: Path) -> None:
        self.pool = pool
        self.directory = directory
        self.conf = write_conf(directory / "broker.conf", CONFIG)
        self.bases = {(s, e): self._base(s, e) for s in (OURS, JAVA) for e in ("close", "kill")}
        self.seen: dict[str, int] = {}

    def _base(self, side: str, ending: str) -> Base:
        path = self.directory / f"{side}-{ending}"
        specs = random_messages(5, 200, KINDS, queues=3, max_body=600)
        with self.pool.start(side) as actor:
            actor.ask("open", path=str(path), conf=str(self.conf))
            times = []
            for spec in specs:
                answer = actor.ask("put", spec=json.loads(spec_line(spec)))
                times.append(answer["store_timestamp"])
            actor.ask("wait")
            if ending == "close":
                actor.ask("close")
        rows = random_queries(1, specs, (min(times), max(times)), 60)
        return Base(path, write_queries(self.directory / f"{path.name}.tsv", rows))

    def run(self, base: Base, change: Callable[[Path], str]) -> set[str]:
        """Damage a copy and compare; return the kinds of the differences."""
        case = self.directory / "case"
        root, java, read, written = (case / name for name in ("damaged", "java", "read", "written"))
        with kept(case, base.queries, self.conf):
            shutil.copytree(base.path, root)
            text = change(root)
            for copy in (read, written):
                shutil.copytree(root, copy)
            try:
                theirs = self._theirs(java, root, base)
                loops = self.index_of(java).loops(read_queries(base.queries))
                ours = self._ours(read, base)
                rows = self._judge(theirs, ours, root, loops)
                have = self._written(written, base)
                if isinstance(theirs, Answer) and isinstance(have, Answer):
                    theirs = self._started_again(theirs, have, java, base)
                rows |= self._judge(theirs, have, root, loops)
                if isinstance(theirs, Answer) and isinstance(have, Answer):
                    assert_kept(theirs, have, Log(root, FILE_SIZE), written)
            except BaseException as error:
                error.add_note(f"{base.path.name}: {text}")
                raise
        damaged.counted(self.seen, rows)
        return rows

    def _theirs(self, copy: Path, root: Path, base: Base) -> Answer | ActorError | None:
        """Return the dump of 4.9.3, with a second try if only the machine is slow."""
        for timeout in (HANG_TIMEOUT_S, LAST_TIMEOUT_S):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(root, copy)
            try:
                lines = self.pool.dump(copy, self.conf, base.queries, timeout=timeout)
            except SilentError as error:
                problem: ActorError = error
                if self.index_of(copy).loops(read_queries(base.queries)):
                    break
            except ActorError as error:
                return error
            else:
                return None if lines is None else Answer(lines)
        return problem

    def _started_again(self, theirs: Answer, ours: Answer, copy: Path, base: Base) -> Answer:
        """Return 4.9.3's dump after a second start if our log ends before that of its first start.

        Our dump follows a second start too. Each start examines the last three files; if damage
        removed the last of them, it examines older ones.
        """
        if ours.end >= theirs.end:
            return theirs
        lines = self.pool.dump(copy, self.conf, base.queries, timeout=HANG_TIMEOUT_S)
        return theirs if lines is None else Answer(lines)

    def _ours(self, copy: Path, base: Base) -> Answer | StoreError:
        config, notes = MessageStoreConfig.from_broker_conf(self.conf, root=copy)
        assert not notes
        try:
            answer = Answer(dump_lines(copy, config, base.queries))
            answer.unit_offsets = unit_offsets(copy, config)
            answer.query = lambda topic, key: hits(copy, config, topic, key)
        except StoreError as error:
            return error
        return answer

    def _written(self, copy: Path, base: Base) -> Answer | StoreError:
        """Open for writing and close the store, then read it."""
        try:
            quietly_opened(copy, config=self.conf).close()
        except StoreError as error:
            return error
        return self._ours(copy, base)

    @staticmethod
    def index_of(root: Path) -> Index:
        return Index(root, CONFIG["maxHashSlotNum"], CONFIG["maxIndexNum"])

    def _judge(
        self,
        java: Answer | ActorError | None,
        ours: Answer | StoreError,
        root: Path,
        loops: bool,
    ) -> set[str]:
        if isinstance(java, Answer) and isinstance(ours, Answer):
            return differences(java, ours, Log(root, FILE_SIZE), self.index_of(root))
        return refused(java, ours, root, loops=loops)


def quietly_opened(root: Path, **how: Any) -> pyrocketstore.Store:
    """Suppress the warnings about the damage of a store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        return pyrocketstore.open(root, **how)


def unit_offsets(root: Path, config: MessageStoreConfig) -> dict[tuple[str, int], dict[int, int]]:
    """Return, by queue and phy_offset, the queue offset of the unit that names it."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    with quietly_opened(root, read_only=True, config=config) as store:
        for queue in store.message_store.consume_queues():
            low = queue.get_min_offset_in_queue()
            units = queue.read_units(low, queue.get_max_offset_in_queue() - low)
            units = enumerate(zip(units.phy_offset.tolist(), units.size.tolist(), strict=True), low)
            found[queue.topic, queue.queue_id] = {at: n for n, (at, size) in units if size > 0}
    return found


def hits(root: Path, config: MessageStoreConfig, topic: str, key: str) -> set[int]:
    """Return the physical offsets of the messages that `Store.query` finds."""
    with quietly_opened(root, read_only=True, config=config) as store:
        return {message.phy_offset for message in store.query(topic, key, max_num=64, exact=False)}


def assert_kept(java: Answer, ours: Answer, log: Log, copy: Path) -> None:
    """Bytes that 4.9.3 still has behind the end of our log are in .broken."""
    broken = [path.read_bytes() for path in (copy / ".broken").rglob("*") if path.is_file()]
    for messages in java.messages.values():
        for message in messages:
            if message["phy_offset"] >= ours.end:
                record = log.data(message["phy_offset"])[: message["size"]]
                assert any(record in data for data in broken), f"lost: {message}"


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    with actors(require_java()) as pool:
        yield Survey(pool, tmp_path_factory.mktemp("damaged"))


@pytest.mark.timeout(1800 + 120 * SOAK)
def test_damaged_stores(survey: Survey) -> None:
    failures = Failures()
    if ONLY_KEPT.is_dir():
        base = Base(ONLY_KEPT / "damaged", next(ONLY_KEPT.glob("*.tsv")))
        survey.run(base, lambda root: f"unchanged from {ONLY_KEPT}")
        return
    seeds = [ONLY] if ONLY else [f"{SEED}.{number}" for number in range(DAMAGES)]
    for seed in seeds:
        rng = random.Random(seed)
        base = survey.bases[rng.choice((OURS, JAVA)), rng.choice(("close", "kill"))]
        again = f"ROCKETSTORE_DAMAGE={seed} {COMMAND}test_damaged.py -k stores"
        with failures.one(f"damage {seed}", again):
            survey.run(base, lambda root, rng=rng: damage_store(rng, root))  # type: ignore[misc]
    print(f"{len(seeds)} damaged stores; differences: {survey.seen}")
    failures.end()


def test_every_difference_is_a_row_of_differs() -> None:
    cells = {line.split(" | ")[0].removeprefix("| ") for line in DIFFERS.read_text().splitlines()}
    assert set(damaged.ROWS.values()) <= cells


# ---- one damage each for the rows that name this file -------------------------------------------


def first_file(root: Path, pattern: str, at_least: int = 2) -> Path:
    """The first file of a file sequence is removed."""
    for directory in sorted(root.glob(pattern)):
        files = sorted(directory.iterdir())
        if len(files) > at_least:
            return files[0]
    raise AssertionError(f"no long file sequence: {pattern}")


def zero(path: Path, position: int, size: int) -> str:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(size))
    return f"{size} zeros at {position} of {path}"


@pytest.mark.parametrize("side", [OURS, JAVA])
def test_a_unit_of_zeros_is_no_message(survey: Survey, side: str) -> None:
    """Units in a file that recovery does not read: 4.9.3 returns each as a message of size 0."""

    def change(root: Path) -> str:
        return zero(first_file(root, "consumequeue/*/*", 4), 0, 200)

    assert damaged.ZERO_UNIT in survey.run(survey.bases[side, "close"], change)


@pytest.mark.parametrize("side", [OURS, JAVA])
def test_zeros_in_the_log_are_no_message(survey: Survey, side: str) -> None:
    """A record in a file that recovery does not read: 4.9.3 returns its damaged rest."""

    def change(root: Path) -> str:
        path = sorted((root / "commitlog").iterdir())[1]
        return zero(path, 8192, 12_288)

    assert damaged.NO_RECORD in survey.run(survey.bases[side, "close"], change)


def test_old_damage_beside_a_damaged_checkpoint(survey: Survey) -> None:
    """4.9.3 ends the log at zeros in its second file, though units prove later records."""

    def change(root: Path) -> str:
        checkpoint = root / "checkpoint"
        data = bytearray(checkpoint.read_bytes())
        data[17] ^= 0xC5
        checkpoint.write_bytes(data)
        path = sorted((root / "commitlog").iterdir())[1]
        return f"{zero(path, 28_672, 4096)}, byte 17 of the checkpoint"

    assert damaged.CHECKPOINT in survey.run(survey.bases[OURS, "kill"], change)


def test_a_log_that_ends_before_the_messages_of_whole_queues(survey: Survey) -> None:
    """The second record stores another physicalOffset: `.broken` has the records of all queues but
    one (`assert_kept`), and 4.9.3 keeps them."""

    def change(root: Path) -> str:
        path = min((root / "commitlog").iterdir())
        (size,) = struct.unpack(">i", path.read_bytes()[:4])
        with path.open("r+b") as file:
            file.seek(size + 28)
            file.write(b"\1")
        return f"another physicalOffset at {size} of {path}"

    assert damaged.OTHER_PLACE in survey.run(survey.bases[OURS, "kill"], change)


@pytest.mark.parametrize("stated", ["-1", "0", "n - 1", "n + 1", "n + 3000", "(1 << 63) - 1"])
@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_queue_keeps_its_last_message_that_states_another_offset(
    survey: Survey, ending: str, stated: str
) -> None:
    """No checksum covers the stored queueOffset. Of each queue the last record is damaged in turn,
    and `survey` requires the messages of 4.9.3."""
    for side in (OURS, JAVA):
        base = survey.bases[side, ending]
        for phy_offset, offset in sorted(last_records(base.path).items()):
            other = eval(stated, {"n": offset})

            def change(root: Path, at: int = phy_offset, other: int = other) -> str:
                path = root / "commitlog" / f"{at - at % FILE_SIZE:020d}"
                with path.open("r+b") as file:
                    file.seek(at % FILE_SIZE + 20)
                    file.write(struct.pack(">q", other))
                return f"the record at {at} states queue offset {other}"

            survey.run(base, change)


def last_records(root: Path) -> dict[int, int]:
    """Return phy_offset and queue offset of the last record of each queue."""
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for path in sorted((root / "commitlog").iterdir()):
        records, _, _ = oracle.scan_log(path.read_bytes())
        for position, record in records:
            last[record.topic, record.queue_id] = int(path.name) + position, record.queue_offset
    return dict(last.values())


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_index_entries_behind_the_end_are_taken_out(survey: Survey, ending: str) -> None:
    """4.9.3 keeps the entries, and reports an index that reaches behind the end of the log."""

    def change(root: Path) -> str:
        path = [p for p in sorted((root / "commitlog").iterdir()) if p.read_bytes().strip(b"\0")][
            -1
        ]
        half = used_size(path) // 2
        return zero(path, half, FILE_SIZE - half)

    assert damaged.STALE_KEYS in survey.run(survey.bases[JAVA, "close"], change)


@pytest.mark.skipif(not SOAK, reason="4.9.3 hangs for 20 s: only in the soak")
def test_a_chain_that_loops_hangs_4_9_3_alone(survey: Survey, tmp_path: Path) -> None:
    """A query for a missing key follows the chain of another key forever."""
    base = survey.bases[JAVA, "close"]
    slots = CONFIG["maxHashSlotNum"]
    file = survey.index_of(base.path).files()[0]
    slot, newest = next((s, n) for s, n in file.slots.items() if file.entries[n][3])
    eldest = newest
    while file.entries[eldest][3]:
        eldest = file.entries[eldest][3]
    absent = next(k for k in map(str, range(10**6)) if index_hash("T", k) % slots == slot)

    def change(root: Path) -> str:
        path = min((root / "index").iterdir())
        with path.open("r+b") as data:
            data.seek(40 + 4 * slots + 20 * eldest + 16)
            data.write(struct.pack(">i", newest))
        return f"the chain of slot {slot} loops in {path}"

    queries = write_queries(tmp_path / "queries.tsv", [("T", absent, 32, 0, (1 << 63) - 1)])
    assert survey.run(base._replace(queries=queries), change) == {damaged.CHAINS}


def test_a_length_is_checked_before_it_is_used(survey: Survey) -> None:
    """4.9.3 allocates an array of the size in the record, and runs out of memory."""

    def change(root: Path) -> str:
        path = sorted((root / "commitlog").iterdir())[0]
        with path.open("r+b") as file:
            (size,) = struct.unpack(">i", file.read(4))
            file.seek(size)
            file.write(b"\x7f")
        return "the second record is 2 GiB long"

    assert damaged.LENGTHS in survey.run(survey.bases[JAVA, "kill"], change)


def test_index_files_have_names_of_their_own(survey: Survey, tmp_path: Path) -> None:
    """A rebuild makes several index files in one millisecond, and their names are times."""
    copy = tmp_path / "store"
    base = survey.bases[OURS, "kill"]
    shutil.copytree(base.path, copy)
    shutil.rmtree(copy / "index")
    conf = write_conf(tmp_path / "conf", CONFIG | {"maxIndexNum": 8, "maxHashSlotNum": 4})
    with pyrocketstore.open(copy, config=conf) as store:
        assert store.verify().ok
        entries = store.verify().index_entries
    names = [path.name for path in (copy / "index").iterdir()]
    assert len(names) == -(-entries // 7) > 50
