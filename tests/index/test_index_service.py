"""Goal: every key of the log is found once, whatever happens to the index directory, the clock or
the device, and results are those of 4.9.3.
Method: compare services over small files with lists of oracle files; the test moves clocks and
breaks system calls."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreError, StoreFormatError, StoreIOError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.index._file import IndexFile, index_file_size
from pyrocketstore.index.geometry import (
    DEFAULT_HASH_SLOT_NUM,
    DEFAULT_INDEX_NUM,
    fitting_geometry,
    geometry_fits,
    infer_geometry,
)
from pyrocketstore.index.index_service import MAX_MSGS_NUM_BATCH, FlushIndexFileThread, IndexService
from pyrocketstore.results import DispatchRequest
from pyrocketstore.system.env import Env, local_time_name
from support import oracle
from support.broken_env import broken, failing, watched
from support.oracle_index import OracleIndexFile, key_hash

TIME = 1_700_000_000_000
FOREVER = 2**62
SLOTS, ENTRIES = 7, 6  # five keys a file
FILE_SIZE = index_file_size(SLOTS, ENTRIES)


class ClockEnv(Env):
    """Time does not pass unless the test moves it."""

    def __init__(self) -> None:
        self.now = TIME
        self.monotonic = 1

    def now_ms(self) -> int:
        return self.now

    def monotonic_ns(self) -> int:
        return self.monotonic


class Place:
    """An index directory with its checkpoint, opened as often as one likes."""

    def __init__(self, path: Path) -> None:
        self.env = ClockEnv()
        self.root = path / "index"
        self.checkpoint_path = str(path / "checkpoint")
        self._opened: list[IndexService] = []

    def open(
        self, clean: bool = True, geometry=(SLOTS, ENTRIES), read_only: bool = False
    ) -> IndexService:
        self.checkpoint = StoreCheckpoint(self.env, self.checkpoint_path, read_only)
        self.flags = RunningFlags()
        service = IndexService(
            self.env, str(self.root), *geometry, self.checkpoint, self.flags, read_only
        )
        self._opened.append(service)
        service.retry_interval_ms = 0
        assert service.load(clean)
        service.remove_left_out()
        return service

    def close(self) -> None:
        """End the threads of all services: they would run in a later test."""
        for service in self._opened:
            with contextlib.suppress(StoreError):
                service.shutdown()

    def names(self) -> list[str]:
        return sorted(os.listdir(self.root)) if self.root.exists() else []

    def content(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted(self.root.glob("*")) if p.is_file()}

    def write(self, name: str, keys, *preset: int, geometry=(SLOTS, ENTRIES)) -> str:
        """A file as a writer left it; keys are (key, phy_offset, time)."""
        self.env.make_directories(str(self.root))
        path = f"{self.root}/{name}"
        index = IndexFile(self.env, path, *geometry, *preset, create=True)
        for row in keys:
            assert index.put_key(*row)
        index.shutdown()
        return path


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.close()


def message(n: int, *keys: str, **fields) -> DispatchRequest:
    """The record at n * 100 of the log, stored n seconds after TIME."""
    fields = {"keys": " ".join(keys), "store_timestamp": TIME + n * 1000} | fields
    return DispatchRequest("T", 0, n * 100, 100, 0, consume_queue_offset=n, **fields)


def build(service: IndexService, *requests: DispatchRequest) -> None:
    for request in requests:
        assert service.build_index(request)


def find(service: IndexService, key: str, begin: int = 0, end: int = FOREVER) -> list[int]:
    return service.query_offset("T", key, 64, begin, end).phy_offsets


def entry_count(service: IndexService) -> int:
    return sum(index_file.index_count - 1 for index_file in service.files)


# ---- building and asking -----------------------------------------------------------------------


def keys_of(request: DispatchRequest) -> list[str]:
    """The keys that 4.9.3 puts for a record, as "topic#key"."""
    keys = [] if request.uniq_key is None else [request.uniq_key]
    keys += [key for key in (request.keys or "").split(" ") if key]
    is_rollback = request.sys_flag & 0xC == 0xC
    return [] if is_rollback else [f"{request.topic}#{key}" for key in keys]


def random_requests(seed: int, count: int) -> list[DispatchRequest]:
    rng = random.Random(seed)
    requests = []
    time = TIME
    for n in range(count):
        time += rng.choice((0, 10, 999, 1000, 4001, 90_000, -3000, -40))
        keys = [
            rng.choice(("a", "b", "é", "Aa", "BB", "", "k" * 40)) for _ in range(rng.randrange(5))
        ]
        requests.append(
            DispatchRequest(
                rng.choice(("T", "主题")), 0, n * 100, 100, 0, time, n,
                keys=rng.choice((None, " ".join(keys))),
                uniq_key=rng.choice((None, f"U{n}", "")),
                sys_flag=rng.choice((0, 4, 8, 12, 1, 13)),
            )
        )  # fmt: skip
    return requests


@pytest.mark.parametrize("seed", range(4))
def test_files_and_answers_are_those_of_the_rules(seed, place):
    requests = random_requests(seed, 60)
    service = place.open()
    models = [OracleIndexFile(SLOTS, ENTRIES)]
    for request in requests:
        build(service, request)
        for key in keys_of(request):
            row = (key_hash(key), request.commit_log_offset, request.store_timestamp)
            if not models[-1].put(*row):
                models.append(
                    OracleIndexFile(SLOTS, ENTRIES, models[-1].end_phy, models[-1].end_time)
                )
                assert models[-1].put(*row)
    assert len(service.files) == len(models) > 3
    assert service.total_size == FILE_SIZE * len(models)
    check_answers(service, models, requests)
    service.shutdown()
    assert list(place.content().values()) == [bytes(model.data) for model in models]
    for read_only in (False, True):
        check_answers(place.open(read_only=read_only), models, requests)


def check_answers(service, models, requests) -> None:
    times = sorted(request.store_timestamp for request in requests)
    rng = random.Random(1)
    for topic in ("T", "主题"):
        for key in ("a", "BB", "é", "U3", "", "unknown"):
            for max_num in (0, 1, 5, 64, 2**31 - 1):
                begin, end = sorted(rng.choices([*times, 0, FOREVER], k=2))
                answer = service.query_offset(topic, key, max_num, begin, end)
                expected = query_by_the_rules(models, f"{topic}#{key}", max_num, begin, end)
                assert answer.phy_offsets == expected
                assert answer.index_last_update_timestamp == models[-1].end_time
                assert answer.index_last_update_phyoffset == models[-1].end_phy
                found = [phy for phy, _ in every_hit(service, topic, key, begin, end)]
                wanted = [
                    request.commit_log_offset
                    for request in requests
                    if begin <= request.store_timestamp <= end
                    for known in keys_of(request)
                    if known == f"{topic}#{key}"
                ]
                assert not set(wanted) - set(found)
                assert found == sorted(found, reverse=True)


def every_hit(service, topic: str, key: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(physical offset, ms) of each entry of all files, newest first, 64 at a time."""
    for index_file in reversed(service.files):
        next_index = -1
        while next_index:
            start = max(0, next_index)
            found = index_file.select_hits(key_hash_of(topic, key), begin, end, 64, start)
            phy_offsets, times, next_index = found
            yield from zip(phy_offsets.tolist(), times.tolist(), strict=True)


def query_by_the_rules(models, key: str, max_num: int, begin: int, end: int) -> list[int]:
    found: list[int] = []
    max_num = min(max_num, MAX_MSGS_NUM_BATCH)
    for model in reversed(models):
        if model.time_matched(begin, end):
            found += model.select(key_hash(key), max_num - len(found), begin, end)
        if model.begin_time < begin or len(found) >= max_num:
            break
    return found


def test_query_offset_stops_at_the_first_older_file(place):
    """4.9.3 trusts the files' order in time; a clock set back hides what select_hits finds."""
    place.write("00000000000000001", [("T#a", 100, TIME + 5000)])
    place.write("00000000000000002", [("T#a", 200, TIME), ("T#a", 300, TIME + 9000)])
    service = place.open()
    assert find(service, "a", TIME + 4000, TIME + 6000) == []
    assert [p for p, _ in every_hit(service, "T", "a", TIME + 4000, TIME + 6000)] == [100]
    assert find(service, "a", TIME - 1, FOREVER) == [300, 200, 100]


def test_long_chains_are_read_chunk_by_chunk(place):
    service = place.open(geometry=(3, 2000))
    build(service, *(message(n, "a", "b") for n in range(700)))
    hits = list(every_hit(service, "T", "a", 0, FOREVER))
    assert hits == [(n * 100, TIME + n * 1000) for n in reversed(range(700))]
    assert find(service, "a") == [n * 100 for n in range(699, 635, -1)]
    assert len(service.query_offset("T", "a", 200, 0, FOREVER, limit=100).phy_offsets) == 100


def test_an_empty_index_answers(place):
    service = place.open()
    answer = service.query_offset("T", "a", 64, 0, FOREVER)
    assert answer.phy_offsets == [] and answer.index_last_update_timestamp == 0
    assert answer.index_last_update_phyoffset == 0
    with pytest.raises(StoreFormatError):
        service.query_offset("T", "a", -1, 0, FOREVER)
    assert (service.total_size, service.delete_expired_file(10**9)) == (0, 0)
    assert place.names() == []


def test_the_first_record_makes_a_file_also_without_keys(place):
    service = place.open()
    build(service, message(0, keys=None))
    assert place.names() == [local_time_name(TIME)]
    assert place.content()[local_time_name(TIME)] == bytes(FILE_SIZE)
    # A rolled file without an entry says where the one before it ended.
    build(service, message(1, *"abcde"))
    assert len(place.names()) == 1
    build(service, message(2))
    answer = service.query_offset("T", "a", 1, 0, FOREVER)
    assert len(place.names()) == 2 and service.files[1].index_count == 1
    assert answer.index_last_update_phyoffset == 100
    assert answer.index_last_update_timestamp == TIME + 1000


# ---- not twice ---------------------------------------------------------------------------------


def test_older_records_are_passed_over(place):
    service = place.open()
    build(service, message(5, "a"), message(4, "a"), message(0, "a"))
    assert find(service, "a") == [500]


def contents(service: IndexService) -> list[bytes]:
    """The files that hold an entry; as in 4.9.3 a record asks for a file with room first."""
    filled = [index_file for index_file in service.files if index_file.index_count > 1]
    return [index_file.mapped_file.read(0, index_file.file_size) for index_file in filled]


@pytest.mark.parametrize("count", [1, 4, 5, 6, 10, 11, 17])
@pytest.mark.parametrize("reopened", [False, True])
def test_the_last_record_is_not_indexed_twice(count, reopened, place):
    """Also when its keys lie in more than one file, or only some of them were put."""
    last = message(1, *(f"k{i}" for i in range(count)))
    service = place.open()
    build(service, message(0, "a"), last)
    whole = contents(service)
    for _ in range(2):
        if reopened:
            service.shutdown()
            service = place.open()
        build(service, message(0, "a"), last)
        assert contents(service) == whole
    assert all(find(service, f"k{i}") == [100] for i in range(count))
    build(service, message(2, "k0"))
    assert find(service, "k0") == [200, 100]


@pytest.mark.parametrize("done", range(9))
def test_a_record_that_was_put_in_part_is_completed(done, place):
    keys = [f"k{i}" for i in range(8)]
    service = place.open()
    build(service, message(0, "a"), message(1, *keys[:done]))
    service.shutdown()
    service = place.open()
    build(service, message(1, *keys))
    assert [find(service, key) for key in keys] == [[100]] * 8
    assert entry_count(service) == 9


def test_a_key_that_a_record_has_twice_stays_twice(place):
    service = place.open()
    build(service, message(1, "a", "a", uniq_key="a"), message(1, "a", "a", uniq_key="a"))
    assert find(service, "a") == [100, 100, 100]


# ---- loading -----------------------------------------------------------------------------------


def test_load_skips(place):
    """Files without a numeric name, and directories, hide nothing and are left in place."""
    place.write("20240101000000001", [("T#a", 100, TIME)])
    place.write("20240101000000003", [("T#a", 300, TIME + 1)])
    strays = ["20240101000000002", "sub"]
    for name in strays:
        (place.root / name).mkdir()
    files = [".20240101000000004", "20240101000000004.tmp", "٣٤", "-5", "1e5"]
    for name in files:
        (place.root / name).write_bytes(b"x")
    crashed = place.open(clean=False, read_only=True)
    assert crashed.files == () and crashed.indexed_phy_offset == -1
    service = place.open()
    assert service.indexed_phy_offset == 300
    assert find(service, "a") == [300, 100]
    build(service, message(4, *"abcdef"))
    service.destroy()
    assert set(place.names()) == {*strays, *files}


@pytest.mark.parametrize(
    ("limit", "kept", "indexed"),
    [
        (TIME + 9, ["1", "2", "3"], 600),
        (TIME + 8, ["1", "2"], 400),
        (TIME + 4, ["1"], 200),
        (TIME + 1, [], -1),
        (0, [], -1),
    ],
)
def test_load_after_a_crash(limit, kept, indexed, place):
    """Files that end after the checkpoint are dropped, and it is said what they held."""
    place.write("1", [("T#a", 100, TIME + 1), ("T#a", 200, TIME + 2)])
    place.write("2", [("T#a", 300, TIME + 3), ("T#a", 400, TIME + 5)], 200, TIME + 2)
    place.write("3", [("T#a", 500, TIME + 4), ("T#a", 600, TIME + 9)], 400, TIME + 5)
    checkpoint = StoreCheckpoint(place.env, place.checkpoint_path)
    checkpoint.index_msg_timestamp = limit
    checkpoint.flush()
    for read_only in (True, False):
        clean = place.open(read_only=read_only)
        assert len(clean.files) == 3
    for read_only in (True, False):
        service = place.open(clean=False, read_only=read_only)
        assert [index_file.name for index_file in service.files] == kept
        assert service.indexed_phy_offset == indexed
        assert place.names() == (["1", "2", "3"] if read_only else kept)


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_without_a_byte_is_what_a_crash_left(clean, place):
    place.write("1", [("T#a", 100, TIME)])
    checkpoint = StoreCheckpoint(place.env, place.checkpoint_path)
    checkpoint.index_msg_timestamp = TIME
    checkpoint.flush()
    (place.root / "2").write_bytes(b"")
    service = place.open(clean=clean, read_only=True)
    assert len(service.files) == 1 and place.names() == ["1", "2"]
    service = place.open(clean=clean)
    assert len(service.files) == 1 and place.names() == ["1"]


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [1, 39, 40, FILE_SIZE - 1])
def test_a_file_that_was_cut_and_those_behind_it_are_set_aside(size, place):
    place.write("1", [("T#a", 100, TIME)])
    path = place.write("2", [("T#b", 200, TIME)])
    place.write("3", [("T#c", 300, TIME)])
    os.truncate(path, size)
    before = place.content()
    for read_only in (True, False):
        service = place.open(read_only=read_only)
        assert service.begin_of_files_after(400) == 100
        assert service.indexed_phy_offset == 100
        assert place.content() == before, "load changes nothing"
        service.drop_files_after(400)
        assert service.begin_of_files_after(400) == -1
        assert find(service, "a") == [100] and find(service, "c") == []
        assert place.names() == (["1", "2", "3"] if read_only else ["1"])
    (folder,) = (place.root.parent / ".broken").glob("*/index")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} | place.content() == before


@pytest.mark.bad_input
def test_files_of_another_geometry_are_refused_and_kept(place):
    place.write("1", many_keys(30), geometry=(10, 40))
    before = place.content()
    for names in (["1"], ["1", "2"]):
        with pytest.raises(StoreFormatError, match="fits maxHashSlotNum=10, maxIndexNum=40"):
            place.open(geometry=(10, 41))
        assert place.names() == names and place.content() == before
        place.write("2", many_keys(5), geometry=(10, 40))
        before = place.content()
    place = Place(place.root.parent / "other")
    for name in ("1", "2"):
        place.write(name, many_keys(30), geometry=(20, 60))
    before = place.content()
    with pytest.raises(StoreFormatError, match="fits maxHashSlotNum=20, maxIndexNum=60"):
        place.open(geometry=(20, 61))
    assert place.content() == before


def test_load_that_fails_removes_nothing(place):
    place.write("1", [("T#a", 100, TIME)])
    place.write("2", [("T#a", 200, TIME)])
    for name in ("open", "pread"):
        with failing(place.env, name, errno.EIO), pytest.raises(StoreIOError):
            place.open(clean=False)
        assert place.names() == ["1", "2"]


def test_read_only_puts_stay_in_memory(place):
    service = place.open()
    build(service, message(0, "a", "b"))
    service.shutdown()
    before = place.content()
    service = place.open(read_only=True)
    build(service, *(message(n, "a", "b", "c") for n in range(1, 5)))
    assert find(service, "a") == [400, 300, 200, 100, 0]
    assert len(service.files) == 3 and service.files[-1].path is None
    service.flush()
    service.shutdown()
    assert place.content() == before and place.checkpoint.index_msg_timestamp == 0


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("count", [2, 20, 399])
def test_smaller_sizes_than_those_of_a_file_are_refused(place, count, read_only):
    """Where they put the entries, the file has zeros, as after a crash."""
    place.write("1", many_keys(count), geometry=(1000, 4000))
    before = place.content()
    for given in ((100, 400), (100, 4000), (999, 3000)):
        if read_only:
            service = place.open(geometry=given, read_only=True)
            assert "maxHashSlotNum=1000, maxIndexNum=4000" in str(service.geometry_error)
        else:
            with pytest.raises(StoreFormatError, match="maxHashSlotNum=1000, maxIndexNum=4000"):
                place.open(geometry=given)
    assert place.content() == before


# ---- geometry ----------------------------------------------------------------------------------


def many_keys(count: int):
    return [(f"T#key-{n}", n * 100, TIME + n) for n in range(count)]


def test_geometry(place):
    """It is not in the file: what is assumed must agree with the entries."""
    # The 1:4 ratio is found out by itself.
    path = place.write("1", many_keys(30), geometry=(10, 40))
    assert infer_geometry(place.env, [path]) == (10, 40)
    service = place.open(geometry=(None, None))
    assert service.geometry == (10, 40) and find(service, "key-7") == [700]
    assert place.open(geometry=(10, None)).geometry == (10, 40)
    assert place.open(geometry=(None, 40)).geometry == (10, 40)
    # Contradictions, of the same length and of another.
    for wrong in (
        (15, 39),
        (5, 41),
        (15, None),
        (9, None),
        (None, 39),
        (None, 41),
        (8, 40),
        (1, 2),
    ):
        with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
            place.open(geometry=wrong)
    assert geometry_fits(place.env, path, 10, 40)
    assert not geometry_fits(place.env, path, 15, 39)
    assert not geometry_fits(place.env, path, 10, 41)
    # What nothing says: to be written it is refused, to be read only queries say so.
    (place.root / "1").unlink()
    place.write("2", many_keys(30), geometry=(20, 60))
    before = place.content()
    with pytest.raises(StoreFormatError, match="give the maxHashSlotNum"):
        place.open(geometry=(None, None), clean=False)
    assert place.content() == before
    service = place.open(geometry=(None, None), read_only=True)
    assert service.geometry_error is not None and service.files == ()
    with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
        find(service, "key-7")
    assert find(place.open(geometry=(20, 60), read_only=True), "key-7") == [700]


def test_the_default_geometry_is_found_out(place):
    default = (DEFAULT_HASH_SLOT_NUM, DEFAULT_INDEX_NUM)
    assert infer_geometry(place.env, []) == default
    assert infer_geometry(place.env, [], (7, None)) == (7, DEFAULT_INDEX_NUM)
    path = place.write("1", many_keys(5), geometry=default)
    empty = f"{place.root}/2"
    Path(empty).write_bytes(b"")
    assert infer_geometry(place.env, [path, empty]) == default
    service = place.open(geometry=(None, None))
    assert service.geometry == default and find(service, "key-3") == [300]


def test_files_that_differ_in_length_need_a_geometry(place):
    place.write("1", many_keys(5), geometry=(10, 40))
    place.write("2", many_keys(5), geometry=(11, 44))
    with pytest.raises(StoreFormatError, match="differ in length"):
        place.open(geometry=(None, None))


@pytest.mark.bad_input
def test_a_few_damaged_entries_do_not_change_the_geometry(place):
    path = place.write("1", many_keys(60), geometry=(40, 160))

    def damage(first: int, data: bytes) -> None:
        with open(path, "r+b") as file:
            file.seek(index_file_size(40, first))
            file.write(data)

    damage(5, bytes(40))
    damage(57, b"\xff" * 60)
    assert geometry_fits(place.env, path, 40, 160)
    # Entries of zeros are what a power cut leaves; they do not contradict what is configured.
    damage(20, bytes(20 * 41))
    assert not geometry_fits(place.env, path, 40, 160)
    assert geometry_fits(place.env, path, 40, 160, lenient=True)
    assert not geometry_fits(place.env, path, 45, 159, lenient=True)
    assert place.open(geometry=(40, 160)).geometry == (40, 160)


@pytest.mark.bad_input
def test_a_count_beyond_the_file_contradicts_only_a_guess(place):
    path = place.write("1", many_keys(30), geometry=(10, 40))
    with open(path, "r+b") as file:
        file.seek(36)
        file.write((41).to_bytes(4, "big"))
    assert place.open(geometry=(None, None)).wrong.keys() == {path}
    assert find(place.open(geometry=(10, 40)), "key-29") == [2900]


@pytest.mark.bad_input
@pytest.mark.parametrize("configured", [(300, 1000), (None, None)], ids=["given", "not given"])
@pytest.mark.parametrize("seed", range(20))
def test_garbage_over_an_index_file_locks_nothing_out(seed, configured, place):
    """The file is not a valid index of any geometry: it is set aside, and left out when reading."""
    slots, entries = (300, 1000) if configured[0] else (300, 1200)  # 1:4 is what one assumes
    path = place.write("2", many_keys(60), geometry=(slots, entries))
    random_bytes = random.Random(seed)
    with open(path, "r+b") as file:
        file.seek(random_bytes.randrange(40, 1240))
        file.write(random_bytes.randbytes(4096))
    before = place.content()
    service = place.open(geometry=configured, read_only=True)
    assert service.wrong.keys() == {path} and service.files == () and not service.geometry_error
    assert service.begin_of_files_after(6000) == -1, "the log is not replayed in memory"
    service = place.open(geometry=configured)
    assert service.geometry == (slots, entries) and service.begin_of_files_after(6000) == 0
    assert place.content() == before
    service.drop_files_after(6000)
    assert place.names() == []
    (kept,) = (place.root.parent / ".broken").glob("*/index/2")
    assert kept.read_bytes() == before["2"]


@pytest.mark.bad_input
def test_garbage_in_one_of_several_files(place):
    for number in range(1, 7):
        keys = [(f"T#{number}-{n}", 100 * number + n, TIME + n) for n in range(40)]
        path = place.write(str(number), keys, geometry=(10, 50))
    wrong = f"{place.root}/3"
    with open(wrong, "r+b") as file:
        file.seek(40)
        file.write(random.Random(1).randbytes(900))
    for configured in ((10, 50), (10, None), (None, 50)):
        service = place.open(geometry=configured, read_only=True)
        assert service.wrong.keys() == {wrong} and len(service.files) == 5
        assert find(service, "6-7") == [607] and find(service, "3-7") == []
    # Of another geometry are files that are valid.
    place.write("7", many_keys(30), geometry=(15, 49))
    for configured in ((10, 50), (None, 50), (None, None)):
        with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
            place.open(geometry=configured)
    assert path


@pytest.mark.parametrize("count", [1, 2, 3, 10, 60, 90])
@pytest.mark.parametrize("first", [0, 100, 1 << 40])
def test_the_geometry_of_a_valid_file_is_found(count, first, place):
    keys = [(f"T#key-{n}", first + n * 100, TIME + n) for n in range(count)]
    for geometry in ((10, 100), (33, 91), (1, 97)):
        path = place.write("1", keys, geometry=geometry)
        size = index_file_size(*geometry)
        found = fitting_geometry(place.env, path, size)
        assert found is not None and geometry_fits(place.env, path, *found)
        assert found == geometry or count < 10
        # The bytes behind the last entry are those of an older file.
        with open(path, "r+b") as file:
            file.seek(size - 3)
            file.write(b"\x07")
        if first and count >= 10:
            assert fitting_geometry(place.env, path, size) == geometry
        os.remove(path)
    assert fitting_geometry(place.env, place.write("2", []), FILE_SIZE) is None


# ---- names, new files --------------------------------------------------------------------------


def test_names_go_up_when_the_clock_goes_back(place):
    service = place.open()
    for n, now in enumerate((TIME, TIME - 3_600_000, TIME, TIME + 1, TIME + 5000)):
        place.env.now = now
        build(service, message(n, *"abcde"))
    names = [index_file.name for index_file in service.files]
    first = int(local_time_name(TIME))
    assert names == [str(first + n) for n in range(4)] + [local_time_name(TIME + 5000)]
    service.shutdown()
    place.env.now = TIME - 9_999_999
    service = place.open()
    assert [index_file.name for index_file in service.files] == names
    build(service, message(9, "a"))
    assert service.files[-1].name == f"{int(names[-1]) + 1}"


def test_a_name_that_is_taken_is_left_alone(place):
    place.root.mkdir()
    taken = place.root / local_time_name(TIME)
    taken.mkdir()
    service = place.open()
    build(service, message(0, "a"))
    assert service.files[0].name == f"{int(taken.name) + 1}" and taken.is_dir()


def test_begin_new_file(place):
    service = place.open()
    build(service, message(1, "a"))
    first = service.files[0]
    place.env.now += 1
    second = service.begin_new_file(first)
    assert (second.end_phy_offset, second.begin_timestamp) == (100, TIME + 1000)
    place.env.now += 1
    third = service.begin_new_file(None)
    assert (third.end_phy_offset, third.begin_timestamp, third.index_count) == (0, 0, 1)
    assert service.files == (first, second, third)
    build(service, message(2, "b"))
    assert third.index_count == 2 and second.index_count == 1
    assert find(service, "b") == [200] and find(service, "a") == [100]
    service.flush()
    service.shutdown()
    assert [index_file.index_count for index_file in place.open().files] == [2, 1, 2]


# ---- what fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["mkdir", "open", "ftruncate", "link_unnamed", "fsync_directory", "mmap"]
)
def test_creation_that_fails(call, place):
    """Three tries, then the flag, and silence for a while; nothing is left lying about."""
    service = place.open()
    with failing(place.env, call, errno.ENOSPC) as calls:
        assert not service.build_index(message(0, "a"))
        assert len(calls) == 3
        assert place.flags.is_index_file_error()
        assert isinstance(service.last_error, StoreIOError)
        assert service.last_error.errno == errno.ENOSPC
        for n in range(100):
            assert not service.build_index(message(n, "a"))
        assert len(calls) == 3 and place.names() == []
        place.env.monotonic += service.retry_backoff_ms * 1_000_000
        assert not service.build_index(message(0, "a"))
        assert len(calls) == 6
    assert service.retry_get_and_create_index_file() is None
    place.env.monotonic += service.retry_backoff_ms * 1_000_000
    build(service, message(0, "a"), message(1, "a"))
    assert find(service, "a") == [100, 0] and len(place.names()) == 1


def test_a_roll_that_fails_in_the_middle_of_a_record(place):
    service = place.open()
    request = message(1, *(f"k{i}" for i in range(8)))
    with failing(place.env, "ftruncate", errno.ENOSPC):
        assert not service.build_index(request)
    place.env.monotonic += service.retry_backoff_ms * 1_000_000
    with broken(place.env, "ftruncate", once(errno.ENOSPC, after=1)):
        build(service, request)
    assert [find(service, f"k{i}") for i in range(8)] == [[100]] * 8
    assert entry_count(service) == 8


def once(code: int, after: int):
    """A call that fails one time, after that many that worked."""
    count = 0

    def function(original, *args) -> int:
        nonlocal count
        count += 1
        return -code if count == after + 1 else original(*args)

    return function


def test_a_put_that_fails_is_made_up_for(place):
    service = place.open()
    build(service, message(0, keys=None))
    with failing(place.env, "fallocate", errno.ENOSPC):
        assert not service.build_index(message(1, "a", "b"))
        assert not service.build_index(message(1, "a", "b"))
    assert place.flags.is_index_file_error() and entry_count(service) == 0
    place.env.monotonic += service.retry_backoff_ms * 1_000_000
    build(service, message(1, "a", "b"), message(2, "b"))
    assert (find(service, "a"), find(service, "b")) == ([100], [200, 100])


def test_shutdown_ends_the_tries(place):
    service = place.open()
    service.retry_interval_ms = 10**9
    service.shutdown()
    with failing(place.env, "open", errno.ENOSPC) as calls:
        assert service.retry_get_and_create_index_file() is None
    assert len(calls) == 1


# ---- forcing, removing -------------------------------------------------------------------------


def test_a_full_file_is_forced_and_the_checkpoint_moves(place):
    service = place.open()
    with watched(place.env, "msync") as calls:
        build(service, message(0, *"abcde"))
        assert calls == []
        build(service, message(1, "a"))
        service.wait_flushed()
        assert [size for _, size in calls] == [FILE_SIZE]
    assert place.checkpoint.index_msg_timestamp == TIME
    on_disk = Path(place.checkpoint_path).read_bytes()
    assert oracle.decode_checkpoint(on_disk) == (0, 0, TIME)
    # A crash now: the full file stays, the open one is built again from the log.
    service = place.open(clean=False)
    assert len(service.files) == len(place.names()) == 1
    assert service.indexed_phy_offset == 0
    assert find(service, "a") == [0]


def test_shutdown_forces_the_open_file(place):
    service = place.open()
    build(service, message(0, "a"))
    with watched(place.env, "msync") as calls:
        service.shutdown()
        service.shutdown()
    assert len(calls) == 1 and service.files == ()
    service = place.open()
    with watched(place.env, "msync") as calls:
        service.flush()
        build(service, message(1, "a"))
        service.flush()
        service.flush()
        service.shutdown()
    assert len(calls) == 1
    assert find(place.open(), "a") == [100, 0]


def test_a_full_file_that_cannot_be_forced(place):
    """It is never taken for forced: flush and shutdown say so, the checkpoint stays."""
    service = place.open()
    with failing(place.env, "msync", errno.EIO):
        build(service, message(0, *"abcde"), message(1, "a"))
        service.wait_flushed()
    assert place.flags.is_index_file_error()
    for n in range(2, 14):
        place.env.monotonic += service.retry_backoff_ms * 1_000_000
        build(service, message(n, "a"))
    with pytest.raises(StoreIOError, match="msync"):
        service.flush()
    assert place.checkpoint.index_msg_timestamp == 0
    with pytest.raises(StoreIOError, match="msync"):
        service.shutdown()
    assert service.files == ()
    service.shutdown()


def test_delete_expired_file(place):
    service = place.open()
    build(service, *(message(n, *"abcde") for n in range(4)))
    names = place.names()
    assert service.delete_expired_file(0) == 0
    assert service.delete_expired_file(101) == 2
    assert place.names() == names[2:] and find(service, "a") == [300, 200]
    assert service.delete_expired_file(200) == 0
    with failing(place.env, "unlink", errno.EACCES), pytest.raises(StoreIOError):
        service.delete_expired_file(10**9)
    service.shutdown()
    service = place.open()
    assert service.delete_expired_file(10**9) == len(names[2:]) - 1
    assert place.names() == names[-1:]
    service.destroy()
    assert place.names() == [] and service.files == ()


def test_files_behind_a_cut_are_dropped(place):
    service = place.open()
    build(service, *(message(n, *"abcde") for n in range(4)))
    assert service.begin_of_files_after(400) == -1
    # From the end of what is kept, since the header of what is dropped may be wrong.
    assert service.begin_of_files_after(150) == 100
    service.drop_files_after(150)
    assert find(service, "a") == [100, 0] and service.indexed_phy_offset == 100
    assert len(place.names()) == 2
    service.drop_files_after(0)
    assert service.files == () and service.indexed_phy_offset == -1


def test_the_thread_that_forces_dies(place, monkeypatch, caplog):
    """The failure is reported, `flush` does the work, and the next full file starts a thread."""
    service = place.open()
    force = FlushIndexFileThread._flush
    dies = [True]

    def die_once(thread: FlushIndexFileThread, index_file: IndexFile) -> None:
        if dies:
            dies.clear()
            raise MemoryError
        force(thread, index_file)

    monkeypatch.setattr(FlushIndexFileThread, "_flush", die_once)
    build(service, message(0, *"abcde"), message(1, "a"))
    service.wait_flushed()
    assert "FlushIndexFileThread has died: MemoryError" in caplog.text
    assert place.checkpoint.index_msg_timestamp == 0
    service.flush()
    place.env.monotonic += service.retry_backoff_ms * 1_000_000
    build(service, *[message(n, "a") for n in range(2, 8)])
    service.wait_flushed()
    assert place.checkpoint.index_msg_timestamp >= TIME
    service.shutdown()
    assert len(find(place.open(), "a")) == 8
