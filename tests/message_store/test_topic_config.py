"""Goal: topics.json remains readable for a 4.9.3 broker, and keeps the entries that it wrote.
Method: the broker's own file, byte for byte; damaged files; crashes between the system calls."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import PutError, StoreCorruptionError, StoreIOError, StoreStateError
from pyrocketstore.errors import StoreFsyncError
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.system.env import Env
from support.broken_env import broken, watched
from support.gates import Gate
from support.sizes import SIZES

#: No service flushes by itself.
QUIET = {**SIZES, "flush_interval_consume_queue": 10**7, "flush_interval_commit_log": 10**7}
GOLDEN = Path(__file__).parent.parent / "golden" / "broker-clean.tar.xz"
NEW_ENTRY = (
    '\t\t"orders":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":3,\n'
    '\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"orders",\n'
    '\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":3\n\t\t}\n'
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def loaded(path: Path) -> TopicConfigFile:
    file = TopicConfigFile(Env(), str(path))
    file.load()
    return file


@contextlib.contextmanager
def failing_for(env: Env, name: str, code: int) -> Iterator[None]:
    """Let every open for writing of a file whose name begins so fail."""

    def fail(original, path, flags, mode):
        wanted = os.path.basename(path.decode()).startswith(name) and flags & os.O_ACCMODE
        return -code if wanted else original(path, flags, mode)

    with broken(env, "open", fail):
        yield


def broker_file() -> bytes:
    with tarfile.open(GOLDEN) as archive:
        member = archive.extractfile("broker-clean/config/topics.json")
        assert member is not None
        return member.read()


def test_the_brokers_file_round_trips(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(broker_file())
    file = loaded(path)
    assert file.text().encode() == broker_file()
    assert file.topics()["orders"] == 4
    assert not file.ensure("orders", 3)
    file.persist()
    assert path.read_bytes() == broker_file()


def test_a_new_file_has_the_brokers_form(path: Path) -> None:
    file = loaded(path)
    assert file.ensure("orders", 2)
    file.persist()
    text = path.read_text()
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":')
    assert text.endswith('\t"topicConfigTable":{\n' + NEW_ENTRY + "\t}\n}")
    assert loaded(path).topics() == {"orders": 3}


def test_entries_are_widened_never_narrowed(path: Path) -> None:
    path.parent.mkdir()
    content = json.loads(broker_file())
    content["topicConfigTable"]["orders"]["attributes"] = {"later": "kept"}
    content["topicConfigTable"]["orders"]["perm"] = 4
    path.write_text(json.dumps(content))
    file = loaded(path)
    assert file.ensure("orders", 9)
    assert not file.ensure("orders", 1)
    file.persist()
    written = json.loads(path.read_bytes())
    orders = written["topicConfigTable"]["orders"]
    assert (orders["readQueueNums"], orders["writeQueueNums"], orders["perm"]) == (10, 10, 4)
    assert orders["attributes"] == {"later": "kept"}
    assert written["dataVersion"]["counter"] == content["dataVersion"]["counter"] + 1
    assert json.loads(path.with_name("topics.json.bak").read_bytes()) == content


def test_the_backup_stands_in(path: Path) -> None:
    path.parent.mkdir()
    path.with_name("topics.json.bak").write_bytes(broker_file())
    for damaged in (None, b"", b"{", b"\xff\xfe", b"[]", bytes(500)):
        if damaged is not None:
            path.write_bytes(damaged)
        assert loaded(path).topics()["orders"] == 4


def test_nothing_readable_is_an_error_that_names_the_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not json")
    with pytest.raises(StoreCorruptionError, match=r"topics\.json: not valid JSON"):
        loaded(path)
    with pytest.raises(StoreCorruptionError, match="topics_json=False"):
        pyrocketstore.open(path.parent.parent)
    with pyrocketstore.open(path.parent.parent, topics_json=False) as store:
        store.put("t", b"x")
    assert path.read_bytes() == b"not json"


def test_a_backup_that_stands_in_lives_on(path: Path) -> None:
    path.parent.mkdir()
    backup = path.with_name("topics.json.bak")
    backup.write_bytes(broker_file())
    path.write_bytes(b"{torn")
    file = loaded(path)
    assert file.ensure("orders", 7)
    file.persist()
    assert backup.read_bytes() == broker_file()
    assert loaded(path).topics()["orders"] == 8
    old = path.read_bytes()
    assert file.ensure("orders", 8)
    file.persist()
    assert backup.read_bytes() == old


@pytest.mark.parametrize(
    "text",
    [
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":null}',
        '{"topicConfigTable":"orders"}',
    ],
)
def test_a_table_of_another_type_is_not_read(text: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StoreCorruptionError, match="topicConfigTable: must be an object, not"):
        loaded(path)
    assert path.read_text() == text


def test_the_brokers_own_topics_are_left_to_it(path: Path) -> None:
    file = loaded(path)
    for topic in ("SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer"):
        assert not file.ensure(topic, 20)
    file.persist()
    assert not path.exists()


#: Checksums of the order in which a Java ConcurrentHashMap(1024) gives the same names.
ORDERS = {
    40: "d9f7477c5ae47ab69cf8add8d88bf168d8baf68cce486fb35db114c56cca1155",
    1535: "890e2a5293e8659c3502d08800374f69b0689bcaa946bd1cc352e3cc57ab7d96",
}


def test_topics_stand_where_a_broker_prints_them(path: Path) -> None:
    file = loaded(path)
    for number in range(max(ORDERS)):
        file.ensure(f"t-{number * 7}%{number}", 0)
        if number + 1 in ORDERS:
            names = "".join(f"{name}\n" for name in file.topics())
            assert hashlib.sha256(names.encode()).hexdigest() == ORDERS[number + 1]


def test_a_new_topic_is_inserted_into_the_brokers_order(path: Path) -> None:
    path.parent.mkdir()
    content = json.loads(broker_file())
    lost = content["topicConfigTable"].pop("batchy")
    path.write_text(json.dumps(content))
    file = loaded(path)
    assert file.ensure("batchy", 3)
    assert list(file.topics()) == list(json.loads(broker_file())["topicConfigTable"])
    assert json.loads(file.text())["topicConfigTable"]["batchy"] == lost


def test_an_order_that_is_no_brokers_stays(path: Path) -> None:
    path.parent.mkdir()
    content = json.loads(broker_file())
    names = sorted(content["topicConfigTable"])
    content["topicConfigTable"] = {name: content["topicConfigTable"][name] for name in names}
    path.write_text(json.dumps(content))
    file = loaded(path)
    assert file.ensure("A", 0)
    assert list(file.topics()) == [*names, "A"]


def test_numbers_as_keys_are_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"a":{"readQueueNums":2}},"other":{1:2,-3:4}}')
    assert loaded(path).topics() == {"a": 2}


@pytest.mark.parametrize(
    "value", ["[" * 99_999, "[" * 400 + "]" * 400, '{"a":' * 60 + "1" + "}" * 60]
)
def test_a_file_of_too_many_levels_is_reported(path: Path, value: str) -> None:
    """Python's parser, and what prints it again, would run out of stack."""
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"orders":{"other":' + value + "}}}")
    with pytest.raises(StoreCorruptionError, match="not valid JSON"):
        loaded(path)


def test_half_a_character_is_written_as_java_writes_it(path: Path) -> None:
    """A question mark: there is no UTF-8 for it."""
    path.parent.mkdir()
    path.write_text('{"topicConfigTable":{"orders":{"topicName":"\\ud800"}}}')
    file = loaded(path)
    assert file.ensure("events", 0)
    file.persist()
    assert loaded(path).text().count('"topicName":"?"') == 1


def test_a_store_keeps_it(tmp_path: Path) -> None:
    for _ in range(2):
        with pyrocketstore.open(tmp_path) as store:
            store.put("a", b"x", queue_id=5)
            store.put_many("b", [b"x", b"y"], queue_ids=[0, 1])
            store.put_batch("c", [b"x"])
    file = loaded(tmp_path / "config" / "topics.json")
    assert file.topics() == {"a": 6, "b": 2, "c": 1}


#: Every call of the table that changes something, or says that it is on the device.
CHANGING = ("open", "pwrite", "fsync", "close", "rename", "unlink", "mkdir", "fsync_directory")


def persisted_until(path: Path, count: int) -> list[tuple[str, str]]:
    """Persist a change; from call number `count` on nothing is done any more, as after a kill.
    Gives (call, path) of those that were done."""
    file = loaded(path)
    file.ensure("later", 4)
    done: list[tuple[str, str]] = []
    names: dict[int, str] = {}

    def call(name: str):
        def replacement(original, *args):
            if len(done) >= count:
                return -errno.EIO
            result = original(*args)
            named = args[0].decode() if isinstance(args[0], bytes) else names.get(args[0], "")
            if name == "open":
                names[result] = named
            done.append((name, named))
            return result

        return replacement

    with contextlib.ExitStack() as stack:
        for name in CHANGING:
            stack.enter_context(broken(file.env, name, call(name)))
        try:
            file.persist()
        except StoreIOError:
            assert len(done) == count
    return done


def test_a_kill_after_any_call_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    old, new = {"orders": 4}, {"orders": 4, "later": 5}
    seen = []
    for count in range(100):
        path = tmp_path / str(count) / "config" / "topics.json"
        first = loaded(path)
        first.ensure("orders", 3)
        first.persist()
        done = persisted_until(path, count)
        found = loaded(path).topics()
        assert found in (old, new), f"killed after {done}"
        seen.append(found)
        # Whatever was left behind: the next change goes through.
        again = loaded(path)
        again.ensure("last", 0)
        again.persist()
        assert loaded(path).topics() == {**found, "last": 1}
        if len(done) < count:
            break
    assert [seen[0], seen[-1]] == [old, new]
    assert 10 < count < 99
    # A power cut: what a name stands for was forced before the name, and the name after it.
    renames = [i for i, (name, _) in enumerate(done) if name == "rename"]
    assert len(renames) == 2, "the backup, and the file"
    for at in renames:
        temporary = done[at][1]
        assert ("fsync", temporary) in done[:at]
        assert ("pwrite", temporary) not in done[done.index(("fsync", temporary)) :]
        assert done[at + 1][0] == "fsync_directory"


def test_topics_json_names_queues_of_an_earlier_life(tmp_path: Path) -> None:
    """Goal: a broker serves what is put now, also to queues that were there before."""
    with pyrocketstore.open(tmp_path, topics_json=False, **SIZES) as store:
        store.put("t", b"", queue_id=2)
        store.put("untouched", b"")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.put("t", b"", queue_id=2).queue_offset == 1
        assert store.put_many("t", [b""], queue_ids=2)[0].tolist() == [2]
    table = json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert {name: entry["readQueueNums"] for name, entry in table.items()} == {"t": 3}


def test_a_close_waits_for_a_write(tmp_path: Path) -> None:
    """Ctrl-C in a flush leaves the write of topics.json to its thread; that must not continue under
    the next owner of the directory, whose topics it would remove."""
    env, gate = Env(), Gate()
    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    topics = store.message_store.topics
    assert topics is not None
    with broken(env, "rename", gate):
        gate.close()
        store._new_queues.add("t", 0)
        adding = threading.Thread(target=topics.persist)
        adding.start()
        assert gate.held.acquire(timeout=20)
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()
        gate.open()
        closing.join(20)
        adding.join(20)
    with pytest.raises(StoreStateError, match=r"topics\.json: the store is closed"):
        store._new_queues.add("u", 0)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("v", b"x")
    entries = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert sorted(entries) == ["t", "v"]


def table_of(root: Path) -> dict[str, int]:
    """Return {topic: readQueueNums} as topics.json has it; {} without the file."""
    file = root / "config" / "topics.json"
    if not file.exists():
        return {}
    table = json.loads(file.read_bytes())["topicConfigTable"]
    return {name: entry["readQueueNums"] for name, entry in table.items()}


def test_puts_to_new_topics_write_no_file(tmp_path: Path) -> None:
    """A thousand topics cost the writes of one."""
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **QUIET) as store:
        with watched(env, "rename") as renamed:
            for number in range(1000):
                store.put(f"t{number}", b"x", queue_id=number % 3)
            assert not renamed
            store.flush()
        assert 1 <= len(renamed) <= 3, "topics.json, and its backup"
        assert table_of(tmp_path) == {f"t{n}": n % 3 + 1 for n in range(1000)}


def test_the_file_is_written_soon_and_not_too_often(path: Path) -> None:
    env = Env()
    file = TopicConfigFile(env, str(path))
    file.load()
    file.request("a", 0)
    file.persist(at_once=False)
    assert loaded(path).topics() == {"a": 1}
    file._not_before_ns = env.monotonic_ns() + 3600 * 10**9  # the last write was slow
    file.request("b", 0)
    file.persist(at_once=False)
    assert loaded(path).topics() == {"a": 1}
    file.persist()
    assert loaded(path).topics() == {"a": 1, "b": 1}


def test_a_write_does_not_delay_a_request(path: Path) -> None:
    """Goal: a put to a new topic does not wait for the device."""
    env, gate = Env(), Gate()
    file = TopicConfigFile(env, str(path))
    file.load()
    file.request("a", 0)
    with broken(env, "rename", gate):
        gate.close()
        writing = threading.Thread(target=file.persist)
        writing.start()
        assert gate.held.acquire(timeout=20)
        file.request("a", 6)
        file.request("b", 2)
        assert file.topics() == {"a": 7, "b": 3}
        gate.open()
        writing.join(20)
    assert loaded(path).topics() == {"a": 1}, "the content at the begin of the write"
    file.persist()
    assert loaded(path).topics() == {"a": 7, "b": 3}


def test_after_a_crash_the_file_is_completed(tmp_path: Path) -> None:
    """Goal: a broker serves every topic whose messages survive. Method: topics.json lacks one, as
    after a kill, and an entry that a broker has changed stays."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("a", b"x", queue_id=5)
        store.put("b", b"x")
        store.put("c", b"x", queue_id=1)
    file = tmp_path / "config" / "topics.json"
    content = json.loads(file.read_bytes())
    del content["topicConfigTable"]["b"]
    content["topicConfigTable"]["a"] |= {"readQueueNums": 9, "writeQueueNums": 2, "perm": 4}
    file.write_text(json.dumps(content))
    with pyrocketstore.open(tmp_path, **SIZES):
        pass
    assert table_of(tmp_path) == {"a": 9, "c": 2}, "after a clean stop the file is not changed"
    for name in ("topics.json", "topics.json.bak"):
        (file.parent / name).write_text(json.dumps(content))
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES):
        pass
    assert json.loads(file.read_bytes()) == content, "a read-only store writes nothing"
    with pyrocketstore.open(tmp_path, **SIZES):
        pass
    assert table_of(tmp_path) == {"a": 9, "b": 1, "c": 2}
    entry = json.loads(file.read_bytes())["topicConfigTable"]["a"]
    assert (entry["writeQueueNums"], entry["perm"]) == (6, 4)


def test_a_damaged_file_keeps_the_mark_of_a_crash(tmp_path: Path) -> None:
    """Once it is repaired, the next opening still completes it."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("a", b"x")
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    for file in (tmp_path / "config").iterdir():
        file.write_text("{")
    with pytest.raises(StoreCorruptionError):
        pyrocketstore.open(tmp_path, **SIZES)
    assert (tmp_path / "abort").exists()
    for file in (tmp_path / "config").iterdir():
        file.unlink()
    with pyrocketstore.open(tmp_path, **SIZES):
        pass
    assert table_of(tmp_path) == {"a": 1}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
def test_a_write_that_fails_for_a_while(tmp_path: Path, code: int) -> None:
    """Goal: no topic is lost silently, and the store continues. The checkpoint waits, a flush
    raises, and new topics are refused until the file can be written."""
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **QUIET) as store:
        store.put("a", b"x")
        before = store.message_store.checkpoint.logics_msg_timestamp
        with failing_for(env, "topics.json", code):
            for _ in range(2):
                with pytest.raises(StoreIOError, match=r"topics\.json"):
                    store.flush()
            assert store.message_store.checkpoint.logics_msg_timestamp == before
            with pytest.raises(PutError, match=r"topics\.json"):
                store.put("b", b"x")
            store.put("a", b"y")
        store.flush()
        assert table_of(tmp_path) == {"a": 1}
        store.put("b", b"x")
    assert table_of(tmp_path) == {"a": 1, "b": 1}
    assert not (tmp_path / "abort").exists()


def test_a_close_that_cannot_write_it_says_so(tmp_path: Path) -> None:
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, **QUIET)
    store.put("a", b"x")
    with failing_for(env, "topics.json", errno.ENOSPC), pytest.raises(StoreIOError):
        store.close()
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [message.body for message in store.read("a")] == [b"x"]
    assert table_of(tmp_path) == {"a": 1}


def test_a_failed_fsync_of_it_is_final(tmp_path: Path) -> None:
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, **QUIET)
    store.put("a", b"x")
    store.wait_dispatched()
    store.message_store.flush()
    with broken(env, "fsync", lambda original, fd: -errno.EIO):
        for _ in range(2):
            with pytest.raises(StoreFsyncError):
                store.flush()
    with pytest.raises(PutError):
        store.put("a", b"x")
    with pytest.raises(StoreFsyncError):
        store.close()
    assert (tmp_path / "abort").exists()


def test_the_name_of_a_killed_process_is_flushed(tmp_path: Path) -> None:
    """The file may have been renamed without a flush of its directory."""
    env = Env()
    with pyrocketstore.open(tmp_path / "live", **SIZES) as store:
        store.put("t", b"x")
        store.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store = pyrocketstore.open(tmp_path / "killed", env=env, **SIZES)
    with watched(env, "fsync_directory") as flushed:
        store.close()
        assert (os.fsencode(tmp_path / "killed" / "config"),) in flushed
    with watched(env, "fsync_directory") as flushed:
        pyrocketstore.open(tmp_path / "killed", env=env, **SIZES).close()
        assert (os.fsencode(tmp_path / "killed" / "config"),) not in flushed
