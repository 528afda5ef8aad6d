"""Goal: query and query_many find exactly the log's messages with a key, as `Store` promises: the
newest, each once, ascending, keys and times compared exactly, also with a wrong index.
Method: stores whose index has several files, collisions and shared keys; each answer is compared
with the oracle's reading of the whole log. Then index and log are falsified."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.system.env import Env
from support import oracle
from support.broken_env import watched
from support.seed import SEED

FOREVER = 2**63 - 1
LOG_SIZE = 65536
SETTINGS: dict[str, Any] = {
    "disk_max_used_space_ratio": 99,
    "mapped_file_size_commit_log": LOG_SIZE,
    "max_hash_slot_num": 40,
    "max_index_num": 160,
}
#: "Aa" and "BB" have one hash, and so have what they begin.
KEYS = [
    "Aa",
    "BB",
    "Aax",
    "BBx",
    "ключ",
    "a\ufffdb",
    "😀",
    "gemeinsam",
    *(f"k{i}" for i in range(40)),
]
TOPICS = ["T", "U", "Aa", "BB"]


def fill(path: Path) -> None:
    dice = random.Random(5)
    with pyrocketstore.open(path, **SETTINGS) as store:
        for i in range(500):
            keys = dice.sample(KEYS, dice.choice([0, 1, 1, 2, 5]))
            if dice.random() < 0.1:
                keys += keys[:1]  # named twice
            properties = {"x": "y"} if i % 3 else {"other": dice.choice(["a", "k1"])}
            store.put(
                dice.choice(TOPICS),
                b"b" * dice.randrange(500),
                queue_id=i % 2,
                keys=" ".join(keys) or None,
                tags="t" if i % 2 else None,
                properties=properties,
            )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "store"
    fill(path)
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "store"))


@pytest.fixture(params=[False, True], ids=["mapped", "read-only"])
def store(path: Path, request: pytest.FixtureRequest) -> Iterator[pyrocketstore.Store]:
    with pyrocketstore.open(path, read_only=request.param, **SETTINGS) as opened:
        yield opened


def log_of(path: Path) -> dict[int, oracle.Record]:
    """Every record by its place."""
    found = {}
    for file in sorted((path / "commitlog").iterdir()):
        rows, _, _ = oracle.scan_log(file.read_bytes(), int(file.name))
        found.update({int(file.name) + position: record for position, record in rows})
    return found


def holds(record: oracle.Record, topic: str, key: str, exact: bool) -> bool:
    pairs = oracle.index_keys(record)
    if exact:
        return (topic, key) in pairs
    hashed = oracle.index_key_hash(topic, key)
    return any(oracle.index_key_hash(*pair) == hashed for pair in pairs)


def expected(
    log: dict[int, oracle.Record],
    topic: str,
    key: str,
    begin: int = 0,
    end: int = FOREVER,
    max_num: int = 32,
    exact: bool = True,
) -> list[int]:
    places = [
        place
        for place, record in log.items()
        if begin <= record.store_timestamp <= end and holds(record, topic, key, exact)
    ]
    return sorted(places)[-max_num:] if max_num > 0 else []


def test_answers_are_the_logs(store: pyrocketstore.Store, path: Path):
    log = log_of(path)
    assert len(log) == 500
    assert len(store.message_store.index_service.files) > 2
    times = sorted({record.store_timestamp for record in log.values()})
    windows = [
        (0, FOREVER),
        (times[0], times[len(times) // 2]),
        (times[-1], FOREVER),
        (times[0], times[0]),
    ]
    sizes = [0, 1, 3, 32, 64, 65, 10_000, -1]
    for topic in [*TOPICS, "none"]:
        for key in [*KEYS, "none", "", "k", "Aa BB"]:
            begin, end = windows[len(key) % 4]
            max_num = sizes[(len(topic) + len(key)) % len(sizes)]
            for exact in (True, False):
                hits = store.query(topic, key, max_num=max_num, exact=exact)
                places = expected(log, topic, key, max_num=max_num, exact=exact)
                assert [m.phy_offset for m in hits] == places, (topic, key, max_num, exact)
                for message in hits:
                    assert oracle.decode_record(message.record) == log[message.phy_offset]
            hits = store.query(topic, key, begin=begin, end=end, max_num=max_num)
            places = expected(log, topic, key, begin, end, max_num)
            assert [m.phy_offset for m in hits] == places


@pytest.mark.slow
def test_query_many_is_query_for_each(store: pyrocketstore.Store, path: Path):
    log = log_of(path)
    keys = [*KEYS, "none", *KEYS[:7], *(f"k{i}" for i in range(200)), "\ud800"]
    for topic in [*TOPICS, "none"]:
        for max_num in (1, 3, 32, 0):
            rows = []
            for i, key in enumerate(keys):
                for place in expected(log, topic, key, max_num=max_num):
                    rows.append((i, place, log[place].queue_id, log[place].queue_offset))
            found = store.query_many(topic, keys, max_num=max_num)
            assert list(zip(*(column.tolist() for column in found), strict=True)) == rows
            assert [column.dtype.name for column in found] == ["int64", "int64", "int32", "int64"]
    empty = store.query_many("T", [])
    assert [len(column) for column in empty] == [0, 0, 0, 0]


def test_arguments(store: pyrocketstore.Store):
    with pytest.raises(TypeError):
        store.query("T", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.query_many("T", ["k1", None])  # type: ignore[list-item]
    with pytest.raises(StoreFormatError, match="end 18446744073709551616"):
        store.query("T", "k1", end=2**64)
    assert store.query("T", "\ud800") == []
    assert store.query("\ud800", "k1") == []
    store.close()
    for call in (lambda: store.query("T", "k1"), lambda: store.query_many("T", ["k1"])):
        with pytest.raises(StoreStateError, match="closed"):
            call()


def test_a_lone_surrogate_is_nobodys_key(path: Path):
    """Its bytes may stand in a damaged record; Java reads U+FFFD there."""
    with pyrocketstore.open(path, **SETTINGS) as store:
        put = store.put("T", b"", keys="a\u5000b")
        damage(path, put.phy_offset, "a\u5000b".encode(), b"a\xed\xa0\x80b")
        index = store.message_store.index_service.files[-1]
        store.wait_dispatched()
        index.put_hash(key_hash_of("T", "a\ud800b"), put.phy_offset, 1)
        index.put_hash(key_hash_of("T", "a\ufffdb"), put.phy_offset, 1)
        assert store.query("T", "a\ud800b") == []
        assert put.phy_offset in [m.phy_offset for m in store.query("T", "a\ud800b", exact=False)]
        # One U+FFFD for the surrogate, as in Java.
        assert put.phy_offset in [m.phy_offset for m in store.query("T", "a\ufffdb")]
        assert store.query("T", "a\ufffd\ufffdb") == []


def damage(path: Path, phy_offset: int, old: bytes, new: bytes) -> None:
    """Other bytes of the same size, on disk and so in the mapping too."""
    assert len(old) == len(new)
    with open(path / "commitlog" / f"{phy_offset // LOG_SIZE * LOG_SIZE:020d}", "r+b") as file:
        file.seek(phy_offset % LOG_SIZE)
        size = int.from_bytes(file.read(4), "big")
        file.seek(phy_offset % LOG_SIZE)
        record = file.read(size)
        assert record.count(old) == 1
        file.seek(phy_offset % LOG_SIZE)
        file.write(record.replace(old, new))


@pytest.mark.parametrize(
    ("bad", "reads_as"),
    [
        (b"a\xff\xffb", "a\ufffd\ufffdb"),
        (b"a\xe4\xb8b", "a\ufffdb"),
        (b"a\xc3\xa9b", "a\u00e9b"),
        (b"a\xff b", "a\ufffd"),
        (b"\xc3 \xa9b", "\ufffdb"),
    ],
)
@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY"])
def test_malformed_keys_are_read_as_java_reads_them(
    path: Path, name: str, bad: bytes, reads_as: str
):
    if name == "UNIQ_KEY" and b" " in bad:
        reads_as = oracle.java_text(bad)
    with pyrocketstore.open(path, unique_key=name == "UNIQ_KEY", **SETTINGS) as store:
        if name == "KEYS":
            put = store.put("T", b"", keys="abcd"[: len(bad)])
            old = b"KEYS\x01" + b"abcd"[: len(bad)]
            new = b"KEYS\x01" + bad
        else:
            put = store.put("T", b"")
            whole = store.get(put.phy_offset)
            assert whole is not None
            assert whole.uniq_key is not None
            unique = whole.uniq_key.encode()
            old = b"UNIQ_KEY\x01" + unique
            new = b"UNIQ_KEY\x01" + bad + unique[len(bad) :]
            reads_as += whole.uniq_key[len(bad) :]
        damage(path, put.phy_offset, old, new)
        store.wait_dispatched()
        index = store.message_store.index_service.files[-1]
        index.put_hash(key_hash_of("T", reads_as), put.phy_offset, 1)
        assert [m.phy_offset for m in store.query("T", reads_as)][-1:] == [put.phy_offset]
        assert put.phy_offset in store.query_many("T", [reads_as]).phy_offset.tolist()


def warns_of_wrong_offsets(max_num: int) -> AbstractContextManager[object]:
    """Places inside of the log that hold no record; a few hits are found before any of them."""
    if max_num < 10:
        return nullcontext()
    return pytest.warns(pyrocketstore.StoreWarning, match="4 physical offsets at which")


def test_an_index_with_wrong_offsets(path: Path):
    """Places that are no records, named twice, out of order, or another message's: all passed."""
    log = log_of(path)
    with pyrocketstore.open(path, **SETTINGS) as store:
        service = store.message_store.index_service
        places = expected(log, "T", "gemeinsam", max_num=10_000)
        assert len(places) > 5
        end = store.message_store.get_max_phy_offset()
        hashed = key_hash_of("T", "gemeinsam")
        wrong = [-1, -(2**63), 2**63 - 1, end, end - 1, end - 4, end - 91, places[0] + 1, 3]
        wrong += [place for place in log if place not in places][:30]
        for max_num in (1, 2, 10_000):
            for phy_offset in [*wrong, *places[:2], *reversed(places), places[3], *wrong, *places]:
                file = service.get_and_create_last_index_file()
                assert file.put_hash(hashed, phy_offset, 1)
            assert len(service.files) > 3
            with warns_of_wrong_offsets(max_num):
                found = [m.phy_offset for m in store.query("T", "gemeinsam", max_num=max_num)]
            assert found == places[-max_num:]
            with warns_of_wrong_offsets(max_num):
                many = store.query_many("T", ["gemeinsam"] * 3, max_num=max_num)
            assert many.phy_offset.tolist() == 3 * places[-max_num:]
        assert expected(log, "T", "k1") == [m.phy_offset for m in store.query("T", "k1")]


@pytest.mark.parametrize("field", ["size", "magic", "offset", "body", "topic", "huge", "none"])
def test_damaged_records_are_no_hits(path: Path, field: str):
    log = log_of(path)
    places = expected(log, "T", "gemeinsam", max_num=10_000)
    bad = places[len(places) // 2]
    body = len(log[bad].body)
    at, new = {
        "size": (0, b"\x00\x00\x00\x5b"),
        "huge": (0, b"\x7f\xff\xff\xff"),
        "none": (0, b"\x00\x00\x00\x00"),
        "magic": (4, b"\x00"),
        "offset": (28, b"\x01"),
        "body": (84, b"\x7f\xff\xff\xff"),
        "topic": (88 + body, b"\x7f"),
    }[field]
    for read_only in (False, True):
        copy = Path(shutil.copytree(path, path.parent / f"copy{read_only}"))
        with pyrocketstore.open(copy, read_only=read_only, **SETTINGS) as store:
            with open(copy / "commitlog" / f"{bad // LOG_SIZE * LOG_SIZE:020d}", "r+b") as file:
                file.seek(bad % LOG_SIZE + at)
                file.write(new)
            with pytest.warns(pyrocketstore.StoreWarning, match="1 physical offset at which"):
                found = [m.phy_offset for m in store.query("T", "gemeinsam", max_num=1000)]
            assert found == [place for place in places if place != bad]
            with pytest.warns(pyrocketstore.StoreWarning, match="1 physical offset at which"):
                many = store.query_many("T", ["gemeinsam"], max_num=1000).phy_offset.tolist()
            assert many == found


def test_files_that_are_gone_have_no_hits(path: Path):
    log = log_of(path)
    places = expected(log, "T", "gemeinsam", max_num=10_000)
    with pyrocketstore.open(path, **SETTINGS) as store:
        store.message_store.commit_log.mapped_file_queue.mapped_files[0].destroy()
        found = [m.phy_offset for m in store.query("T", "gemeinsam", max_num=1000)]
        assert found == [place for place in places if place >= LOG_SIZE]
        first, *rest = store.message_store.index_service.files
        in_first = first.index_count - 1
        first.destroy()
        left = [m.phy_offset for m in store.query("T", "gemeinsam", max_num=1000)]
        assert in_first > 0
        assert left == [p for p in found if p >= rest[0].begin_phy_offset]
        assert store.query_many("T", ["gemeinsam"], max_num=1000).phy_offset.tolist() == left
        # Nothing is held any more.
        assert all(not f.is_mapped or f.is_available() for f in files_of(store))
    assert all(f.is_cleanup_over() for f in files_of(store))


def files_of(store: pyrocketstore.Store) -> Any:
    return store.message_store.commit_log.mapped_file_queue.mapped_files


@pytest.mark.parametrize("part", ["commitlog", "index"])
def test_files_that_are_cut_are_errors(path: Path, part: str):
    log = log_of(path)
    key = "gemeinsam"
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        for file in (path / part).iterdir():
            with open(file, "r+b") as opened:
                opened.truncate(60 if part == "index" else 100)
        for call in (
            lambda: store.query("T", key),
            lambda: store.query("T", key, max_num=1000),
            lambda: store.query_many("T", [*KEYS, key]),
        ):
            with pytest.raises(StoreCorruptionError, match="the file ends"):
                call()
    assert expected(log, "T", key)


def test_what_was_put_is_found_at_once_by_many_threads(tmp_path: Path):
    failures = []
    with pyrocketstore.open(tmp_path / "store", **SETTINGS) as store:

        def work(name: int) -> None:
            for i in range(150):
                put = store.put("T", b"x" * 300, queue_id=name, keys=f"{name}-{i} all")
                hits = store.query("T", f"{name}-{i}")
                many = store.query_many("T", [f"{name}-{i}", f"{name}-{i // 2}"])
                if [m.phy_offset for m in hits] != [put.phy_offset] or len(many.key_index) != 2:
                    failures.append((name, i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(store.query("T", "all", max_num=1000)) == 600


def test_without_files_there_are_no_hits(tmp_path: Path):
    with pyrocketstore.open(tmp_path / "store", **SETTINGS) as store:
        low = store.message_store
        search = KeySearch(
            low.commit_log.core,
            low.commit_log.mapped_file_queue,
            low.index_service,
            low.dispatcher,
            store.wait_dispatched,
        )
        assert search.query("T", "k", 0, FOREVER, 32, True) == []
        assert [len(column) for column in search.query_many("T", ["k"], 0, FOREVER, 32)] == [0] * 4


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_an_index_file_that_is_deleted_before_its_records(path: Path) -> None:
    """A header that names no record of the log does not prove that its records expired.

    The log has older files: a search without this index file would be silently incomplete.
    """
    name = sorted((path / "index").iterdir())[0]
    with name.open("r+b") as file:
        file.seek(24)
        file.write((LOG_SIZE + 5).to_bytes(8, "big"))
    (path / "commitlog" / f"{LOG_SIZE:020d}").unlink()
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        name.unlink()
        for search in (lambda: store.query("T", "Aa"), lambda: store.query_many("T", ["Aa"])):
            with pytest.raises(StoreIOError) as caught:
                search()
            assert (caught.value.errno, caught.value.path) == (errno.ENOENT, str(name))
        for each in (path / "commitlog").iterdir():  # the store's owner deleted the whole log
            each.unlink()
        assert store.query("T", "Aa") == []


def test_a_call_asks_once_whether_a_log_file_was_deleted(path: Path) -> None:
    """Records that follow each other are read together, and others one by one."""
    env = Env()
    with pyrocketstore.open(path, read_only=True, env=env, **SETTINGS) as store:
        files = len(store.message_store.commit_log.mapped_file_queue.mapped_files)
        messages = sorted(m.phy_offset for t in TOPICS for m in store.read(t, None))
        assert len(messages) == 500
        assert 2 < files <= 8
        mixed = random.Random(SEED).sample(messages, len(messages))
        for offsets in (messages, messages[::-1], messages[::7] + messages[3::9], mixed):
            right = [store.get(offset) for offset in offsets]
            with watched(env, "link_count") as asked, watched(env, "pread") as reads:
                assert store.get_many(offsets) == right
            assert len(asked) == files
            if offsets == messages:
                assert len(reads) < len(offsets) / 4


def test_a_call_keeps_few_of_many_log_files(tmp_path: Path) -> None:
    """Records in random order, in more files than a call keeps open."""
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 8192}
    with pyrocketstore.open(tmp_path, **settings) as store:
        offsets = [store.put("T", bytes([i]) * 1000, keys="k").phy_offset for i in range(150)]
    env = Env()
    with pyrocketstore.open(tmp_path, read_only=True, env=env, **settings) as store:
        order = random.Random(SEED).sample(range(150), 150)
        found = store.get_many([offsets[i] for i in order])
        assert [m.body[0] for m in found if m is not None] == order
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            store.get_many([offsets[i] for i in order])
            assert len(store.query("T", "k", max_num=150)) == 150
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_a_deleted_log_file_is_missed_by_the_next_call(path: Path) -> None:
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        messages = sorted(m.phy_offset for t in TOPICS for m in store.read(t, None))
        kept = [offset for offset in messages if offset >= LOG_SIZE]
        assert None not in store.get_many(messages)
        (path / "commitlog" / f"{0:020d}").unlink()
        found = store.get_many(messages)
        assert [m.phy_offset for m in found if m is not None] == kept
        assert store.get(messages[0]) is None


@pytest.mark.parametrize(
    ("size", "reads_each"), [(10, 1), (1900, 1), (4000, 1), (8000, 1), (8200, 2), (20_000, 2)]
)
def test_the_first_read_of_a_record_has_the_size_of_earlier_ones(
    tmp_path: Path, size: int, reads_each: int
) -> None:
    """8 KiB suffice; else the header is read first, for the size."""
    with pyrocketstore.open(tmp_path) as store:
        offsets = [store.put("T", b"x" * size, keys=f"k{i}").phy_offset for i in range(12)]
    env = Env()
    with pyrocketstore.open(tmp_path, read_only=True, env=env) as store:
        assert len(store.get(offsets[0]).body) == size
        for offset in offsets[::-3]:  # none follows the one before
            with watched(env, "pread") as reads:
                assert store.get(offset).phy_offset == offset
            assert len(reads) == reads_each


def test_records_of_mixed_sizes_are_read_whole(tmp_path: Path) -> None:
    """Small ones after large ones, and the last one, after which the file may end."""
    chance = random.Random(f"{SEED}")
    bodies = [bytes([i % 251]) * chance.choice((0, 100, 1000, 4000, 9000)) for i in range(200)]
    settings: dict[str, Any] = {"mapped_file_size_commit_log": LOG_SIZE}
    with pyrocketstore.open(tmp_path, **settings) as store:
        offsets = [store.put("T", body, keys="k").phy_offset for body in bodies]
    with pyrocketstore.open(tmp_path, read_only=True, **settings) as store:
        order = list(range(len(bodies)))
        chance.shuffle(order)
        for i in order:
            message = store.get(offsets[i])
            assert message is not None and message.body == bodies[i]
            assert store.get(offsets[i] + 1) is None
        found = store.query("T", "k", max_num=len(bodies))
        assert [message.body for message in found] == bodies
