"""Goal: a read-only opening changes no byte, time or lock, in each state of the store, also beside
a writer. Method: compare the directory before and after every way to read; count the calls that
would change something; read while another process writes; remove the permissions."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError, StoreIOError, StoreStateError
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines
from support.broken_env import PROTOTYPES, broken, watched
from support.golden_stores import GOLDEN, unpack
from support.processes import SETTINGS, TIMEOUT_S, filled, open_store, run, start
from support.snapshot import snapshot

#: Calls that a reader must not make.
CHANGING = (
    "ftruncate fallocate punch msync fdatasync fsync pwrite rename unlink mkdir rmdir link"
    " open_unnamed fsync_directory lock"
).split()
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings about logs that end early."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        yield


def read_everything(store: pyrocketstore.Store) -> int:
    """Call whatever reads; gives the number of messages."""
    count = 0
    for topic in store.topics():
        for queue_id in store.queues(topic):
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            messages = list(store.read(topic, queue_id))
            count += len(messages)
            assert len(messages) <= high - low
            for message in messages[:3]:
                assert store.get(message.phy_offset) == message
                store.get(message.msg_id)
                store.offset_at(topic, queue_id, message.store_timestamp)
                if message.keys:
                    key = message.keys.split(" ")[0]
                    store.query(message.topic, key)
                    store.query_many(message.topic, [key])
        list(store.read(topic, None))
    store.verify()
    store.wait_dispatched()
    below = store.message_store
    below.get_earliest_message_time()
    for topic, queues in below.get_consume_queue_table().items():
        for queue_id in queues:
            result = below.get_message("g", topic, queue_id, 0, 32)
            if result is not None:
                result.release()
            below.get_message_store_time_stamp(topic, queue_id, 0)
    below.query_message("Topic-0", "k", 32, 0, 1 << 62).release()
    for name in ("put", "put_many", "put_batch"):
        with pytest.raises(StoreStateError, match="read-only"):
            getattr(store, name)("T", [b"x"] if name != "put" else b"x")
    with pytest.raises(StoreStateError, match="read-only"):
        store.flush()
    return count


def answers(store: pyrocketstore.Store, keys: list[str]) -> list[object]:
    """The results of each way to read, twice over."""
    offsets = [message.phy_offset for message in store.read("T")]
    found: list[object] = [
        list(store.read("T")),
        [store.get(offset) for offset in offsets],
        store.get_many(offsets),
        [store.query("T", key) for key in keys],
        store.query_many("T", keys).phy_offset.tolist(),
        store.query("T", "absent"),
    ]
    result = store.message_store.get_message("g", "T", 0, 0, 32)
    try:
        return [*found, result.messages()]
    finally:
        result.release()


def config_path(name: str) -> Path | None:
    path = GOLDEN / f"{name}.conf"
    return path if path.exists() else None


def open_reader(root: Path, conf: Path | None, **options) -> pyrocketstore.Store:
    if conf is not None:
        return pyrocketstore.open(root, read_only=True, config=conf, **options)
    return open_store(root, read_only=True, **options)


def settings(root: Path, conf: Path | None) -> MessageStoreConfig:
    if conf is None:
        return MessageStoreConfig().at_root(root).replace(**SETTINGS)
    return MessageStoreConfig.from_broker_conf(conf, root=root)[0]


def our_killed_store(root: Path) -> Path:
    """Killed while it was put to, and cut within its last record."""
    child = start(
        """
        store = open_store()
        for i in range(200):
            result = store.put("T", b"%d " % i * 30, queue_id=i % 2, keys=f"k{i}")
        print(result.phy_offset, flush=True)
        time.sleep(60)
        """,
        root,
    )
    last = int(child.stdout.readline())
    child.kill()
    child.communicate(timeout=TIMEOUT_S)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(last + 100)
        log.write(b"\xff" * 20)
    return root


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, Path]:
    """One store of each kind; nobody changes them."""
    base = tmp_path_factory.mktemp("stores")
    found = {name: unpack(name, base) for name in ("plain", "killed", "torn", "x-lostfiles")}
    found["ours"] = filled(base / "ours", 100)
    found["ours-killed"] = our_killed_store(base / "ours-killed")
    damaged = filled(base / "ours-damaged", 100)
    with (damaged / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(1000)
        log.write(b"\xff")
    found["ours-damaged"] = damaged
    (base / "empty").mkdir()
    found["empty"] = base / "empty"
    return found


KINDS = "plain killed torn x-lostfiles ours ours-killed ours-damaged empty".split()
COUNTS = {"plain": 600, "torn": 398, "ours": 100, "ours-killed": 199, "empty": 0}


# ---- nothing changes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_reading_changes_nothing(stores, kind):
    root, conf = stores[kind], config_path(kind)
    before = snapshot(root)
    with quiet():
        with open_reader(root, conf) as store:
            count = read_everything(store)
            assert snapshot(root) == before
            first = repr(store)
            with open_reader(root, conf) as second:
                assert read_everything(second) == count
        lines = list(dump_lines(root, settings(root, conf)))
    assert "read-only" in first
    assert snapshot(root) == before
    assert count == COUNTS.get(kind, count)
    if kind != "ours-damaged":
        assert sum(line.startswith('{"message"') for line in lines) == count


@pytest.mark.parametrize("kind", KINDS)
def test_reading_makes_no_call_that_could_change_anything(stores, kind):
    root, conf = stores[kind], config_path(kind)
    env = Env()
    calls = {}
    with contextlib.ExitStack() as stack, quiet():
        for name in CHANGING:
            refused = broken(env, name, lambda original, *args: -errno.EPERM)
            calls[name] = stack.enter_context(refused)
        opened = stack.enter_context(watched(env, "open"))
        mapped = stack.enter_context(watched(env, "mmap"))
        with open_reader(root, conf, env=env) as store:
            read_everything(store)
    assert set(CHANGING) < set(PROTOTYPES)
    assert {name for name, made in calls.items() if made} == set()
    paths = {args[0] for args in opened}
    assert all(args[1] & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) == 0 for args in opened)
    assert not any(path.endswith(b"/lock") for path in paths)
    assert all(args[0] == -1 for args in mapped), "a file was mapped"


def cli(*args: object) -> None:
    testing = pytest.importorskip("click.testing")
    pytest.importorskip("rich")
    from pyrocketstore.cli import app

    result = testing.CliRunner().invoke(app.app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


@pytest.mark.parametrize("kind", ["plain", "killed", "torn", "ours-killed"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_reading_commands_change_nothing(stores, kind, form):
    root, conf = stores[kind], config_path(kind)
    config = () if conf is None else ("--config", conf)
    before = snapshot(root)
    with quiet():
        cli("dump", root, *config, *form)
        cli("info", root, *config, *form)
        cli("cat", root, "Topic-0", *config, *form)
        cli("query", root, "Topic-0", "key", *config, *form)
        cli("get", root, "0", *config, *form)
        cli("verify", root, *config, *form)
    assert snapshot(root) == before


# ---- while another process writes ---------------------------------------------------------------

WRITER = """
store = open_store()
def put(first, last):
    for i in range(first, last):
        result = store.put("T", b"%d" % i, queue_id=i % 2, keys=f"k{i}", tags="even")
        assert result.queue_offset == i // 2
put(0, 500)
store.flush()
print("ready", flush=True)
sys.stdin.readline()
i = 500
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), done.set()), daemon=True).start()
print("going", flush=True)
while not done.is_set() or i % 2:
    put(i, i + 1)
    i += 1
store.close()
print(i, flush=True)
"""


def locks_of(root: Path) -> list[tuple[str, str, int]]:
    """Name, kind and process of the locks of the store's directories and of its lock file, as the
    kernel reports. A lock of an open file description has no process (-1)."""
    paths = [root, root / "lock", root / "commitlog"]
    names = {path.stat().st_ino: path.name for path in paths}
    with open("/proc/locks") as table:
        rows = [line.split() for line in table]
    inodes = [(int(row[5].rpartition(":")[2]), row) for row in rows if row[1] != "->"]
    return sorted((names[i], row[1], int(row[4])) for i, row in inodes if i in names)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="no /proc/locks")
def test_reading_a_store_that_another_process_writes(tmp_path):
    root = tmp_path / "store"
    child = start(WRITER, root, stdin=subprocess.PIPE)
    try:
        assert child.stdout.readline() == "ready\n"
        # The writer rests, its store open.
        before = snapshot(root)
        owners = locks_of(root)
        assert owners == [
            ("commitlog", "FLOCK", child.pid),
            ("lock", "OFDLCK", -1),
            (root.name, "FLOCK", child.pid),
        ]
        with open_reader(root, None) as store:
            assert read_everything(store) == 500
            assert locks_of(root) == owners
        assert sum(1 for line in dump_lines(root, settings(root, None)) if "message" in line) == 500
        assert snapshot(root) == before
        # It writes as fast as it can.
        print("go", file=child.stdin, flush=True)
        assert child.stdout.readline() == "going\n"
        seen = 500
        for _ in range(5):
            with open_reader(root, None) as store:
                for queue_id in (0, 1):
                    numbers = [int(m.body) for m in store.read("T", queue_id)]
                    assert numbers == list(range(queue_id, queue_id + 2 * len(numbers), 2))
                    assert len(numbers) * 2 >= seen - 1
                seen = 2 * min(store.max_offset("T", i) for i in (0, 1))
                assert [m.keys for m in store.query("T", f"k{seen - 1}")] == [f"k{seen - 1}"]
                report = store.verify()
                assert report.ok, report.problems
                with pytest.raises(StoreStateError):
                    store.put("T", b"x")
            with pytest.raises(StoreStateError, match="already open by another process"):
                open_store(root)
        print("stop", file=child.stdin, flush=True)
        out, err = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 0, err
    assert int(out) >= seen
    known = {"abort", "lock", "checkpoint", "commitlog", "config", "consumequeue", "index"}
    known.add("sync_point")
    assert {path.name for path in root.iterdir()} <= known - {"abort"}
    with open_store(root) as store:
        assert store.message_store.plan.clean
        assert store.max_offset("T", 0) * 2 == int(out)
        assert store.verify().ok


def test_a_reader_keeps_no_writer_away(tmp_path):
    """A store may be opened, written and closed while someone reads it; who reads sees its own
    moment, and files that were there then."""
    root = filled(tmp_path / "store", 100)
    with open_store(root, read_only=True) as reader:
        assert len(list(reader.read("T"))) == 100
        run("s = open_store(); s.put_many('T', [b'x'] * 50); s.close()", root)
        with open_store(root) as store:
            store.put("T", b"y", keys="later")
            store.put("T", b"z", keys="k7")  # where the index starts to look is moved on
            store.put("T", b"z", keys="k7")
            store.wait_dispatched()
            assert len(list(reader.read("T"))) == 100
            assert reader.max_offset("T") == 100
            assert [m.body for m in reader.query("T", "k7")] == [b"7"]
            assert reader.query("T", "later") == []
            report = reader.verify()
            assert report.ok, report.problems
    with open_store(root, read_only=True) as reader:
        assert reader.max_offset("T") == 153


def test_a_file_that_is_cut_under_a_reader_is_an_error(tmp_path):
    root = filled(tmp_path / "store", 100)
    with open_store(root, read_only=True) as reader:
        assert len(list(reader.read("T"))) == 100
        path = root / "commitlog" / f"{0:020d}"
        os.truncate(path, 4096)
        with pytest.raises(StoreError, match=f"{0:020d}"):
            list(reader.read("T"))
        os.truncate(path, SETTINGS["mapped_file_size_commit_log"])
        os.truncate(root / "consumequeue" / "T" / "0" / f"{0:020d}", 100)
        with pytest.raises(StoreError, match=f"{0:020d}"):
            list(reader.read("T"))


# ---- directories that cannot be read, or not be written -----------------------------------------


def test_a_missing_directory_is_an_error_and_is_not_made(tmp_path):
    missing = tmp_path / "no" / "store"
    with pytest.raises(StoreIOError, match="no/store") as caught:
        pyrocketstore.open(missing, read_only=True)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(StoreIOError, match="no/store"):
        list(dump_lines(missing))
    with pytest.raises(StoreIOError, match="no/store"):
        list(dump_lines(missing, settings(missing, None)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_reported_as_missing(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StoreIOError, match="file: Not a directory") as caught:
        pyrocketstore.open(path, read_only=True)
    assert caught.value.errno == errno.ENOTDIR


def test_a_file_instead_of_a_directory_is_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with pytest.raises(StoreIOError):
        pyrocketstore.open(path, read_only=True)
    with pytest.raises(StoreIOError):
        pyrocketstore.open(path)
    assert path.read_bytes() == b"x"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach."""
    place = Path(tempfile.mkdtemp(prefix="pyrocketstore-"))
    place.chmod(0o755)
    yield place
    for path in [place, *place.rglob("*")]:
        with contextlib.suppress(OSError):
            path.chmod(0o755)
    shutil.rmtree(place)


AS_NOBODY = """
import logging
logging.disable(logging.CRITICAL)
from pyrocketstore.verify import run as verify, dump
pyrocketstore.open  # imported while this user may
os.setuid(65534)
def outcome(call):
    try:
        return call()
    except StoreError as error:
        return f"{type(error).__name__} {getattr(error, 'errno', '')} {getattr(error, 'path', '')}"
def read():
    with open_store(read_only=True) as store:
        store.verify()
        return len(list(store.read("T"))), len(store.query("T", "k7"))
print(outcome(read))
print(outcome(lambda: open_store().close()))
print(outcome(lambda: sum("message" in line for line in dump.dump_lines(path))))
"""


@ROOT_ONLY
def test_a_user_who_may_only_read(open_place):
    root = filled(open_place / "store", 30)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(root)
    result = run(AS_NOBODY, root)
    lines = result.stdout.splitlines()
    assert lines[0] == "(30, 1)"
    assert lines[1].startswith(f"StoreIOError {errno.EACCES} {root}")
    assert lines[2] == "30"
    assert snapshot(root) == before


@ROOT_ONLY
@pytest.mark.parametrize("mode", [0o000, 0o444], ids=oct)
def test_a_user_without_rights(open_place, mode):
    root = filled(open_place / "store", 30)
    before = snapshot(root)
    root.chmod(mode)
    result = run(AS_NOBODY, root)
    root.chmod(0o755)
    for line in result.stdout.splitlines():
        assert line.startswith(f"StoreIOError {errno.EACCES} {root}"), result.stdout
    assert [row[2:] for row in snapshot(root)] == [row[2:] for row in before]


@ROOT_ONLY
@pytest.mark.parametrize("part", ["commitlog", "consumequeue/T/0", "index", "checkpoint"])
def test_a_user_without_rights_to_a_part(open_place, part):
    """An unreadable file is an error with its path, and never counts as empty."""
    root = filled(open_place / "store", 30)
    (root / part).chmod(0)
    result = run(AS_NOBODY, root)
    read, _, dumped = result.stdout.splitlines()
    assert read.startswith(f"StoreIOError {errno.EACCES} {root / part}")
    assert dumped == read


@contextlib.contextmanager
def read_only_mount(source: Path, target: Path) -> Iterator[Path]:
    """`source` bound to `target`, read-only; skips where that is not possible."""
    target.mkdir()
    commands = (
        ["mount", "--bind", str(source), str(target)],
        ["mount", "-o", "remount,bind,ro", str(target)],
    )
    mounted = False
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
            mounted = True
        yield target
    finally:
        if mounted:
            subprocess.run(["umount", str(target)], check=True)


@ROOT_ONLY
@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount")
@pytest.mark.parametrize("kind", ["ours", "ours-killed", "torn", "empty"])
def test_a_read_only_mount(stores, tmp_path, kind):
    conf = config_path(kind)
    before = snapshot(stores[kind])
    with read_only_mount(stores[kind], tmp_path / "mount") as root, quiet():
        with pytest.raises(OSError, match="Read-only"):
            (root / "probe").touch()
        with open_reader(root, conf) as store:
            assert read_everything(store) == COUNTS[kind]
        assert list(dump_lines(root, settings(root, conf)))
        for _ in range(2):
            with pytest.raises(StoreIOError) as caught:
                pyrocketstore.open(root, config=conf)
            assert caught.value.errno == errno.EROFS
    assert snapshot(stores[kind]) == before


def test_settings_of_a_store_come_from_its_files(stores):
    """Nobody who only reads has to know how large the files are."""
    before = snapshot(stores["ours"])
    with pyrocketstore.open(stores["ours"], read_only=True) as store:
        assert read_everything(store) == 100
    lines = [json.loads(line) for line in dump_lines(stores["ours"])]
    assert sum("message" in line for line in lines) == 100
    assert snapshot(stores["ours"]) == before


def test_the_comparison_sees_what_changes(stores, tmp_path):
    """An opening for writing changes the store: else the tests above would prove nothing."""
    root = Path(shutil.copytree(stores["ours"], tmp_path / "store"))
    before = snapshot(root)
    open_store(root).close()
    assert snapshot(root) != before
    digest = hashlib.sha256((root / "lock").read_bytes()).hexdigest()
    assert ("lock", digest) in [(row[0], row[3]) for row in snapshot(root)]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_last_record_that_is_being_written_is_waited_for(tmp_path, goes_on):
    """Goal: tags and keys of a live store's last record are not lost; a torn one counts as in
    4.9.3. Method: its last bytes are zeros, and come while the reader opens the store."""
    root = tmp_path / "store"
    with open_store(root) as store:
        puts = [store.put("T", bytes(50), tags="TagA", keys=f"k{i}") for i in range(5)]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "abort").touch()
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    end = puts[-1].phy_offset + puts[-1].wrote_bytes
    whole = bytes(data[end - 12 : end])
    data[end - 12 : end] = bytes(12)
    log.write_bytes(data)

    def finish() -> None:
        with log.open("r+b") as file:
            file.seek(end - 12)
            file.write(whole)

    timer = threading.Timer(0.05, finish)
    if goes_on:
        timer.start()
    try:
        with open_store(root, read_only=True) as store:
            assert store.max_offset("T") == 5
            assert [m.tags for m in store.read("T")][:4] == ["TagA"] * 4
            if goes_on:
                assert [m.keys for m in store.query("T", "k4")] == ["k4"]
                assert store.verify().ok
    finally:
        timer.cancel()


# ---- descriptors -------------------------------------------------------------------------------


def kept_below(root: Path) -> list[str]:
    """The files below a directory that this process has open."""
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return [link for link in links if link.startswith(f"{root}/")]


def test_files_stay_open_between_reads(tmp_path):
    root = filled(tmp_path / "s", 100)
    keys = [f"k{i}" for i in range(0, 100, 7)]
    with open_store(root) as store:
        expected = answers(store, keys)
    env = Env()
    with open_store(root, read_only=True, env=env) as store:
        assert answers(store, keys) == expected
        before = len(kept_below(root))
        with watched(env, "open") as opened, watched(env, "close") as closed:
            assert answers(store, keys) == expected
        assert (opened, closed) == ([], [])
        assert len(kept_below(root)) == before > 0
    assert kept_below(root) == []


def test_a_store_without_free_descriptors_opens_per_call(tmp_path):
    """The limit leaves room for no kept file: reads work as before, and leave nothing open."""
    root = filled(tmp_path / "s", 30)
    with open_store(root) as store:
        expected = [message.body for message in store.read("T")]
    done = run(
        """
        import resource
        with open_store(read_only=True) as store:
            resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))
            bodies = [message.body for message in store.read("T")]
            assert all(store.query("T", f"k{i}") for i in range(30))
            print(len(bodies), flush=True)
        """,
        root,
    )
    assert done.stdout.strip() == str(len(expected))


def test_a_read_takes_few_calls(tmp_path):
    """Records next to each other are read together, 512 KiB a call."""
    root = tmp_path / "s"
    with open_store(root) as store:
        store.put_many("T", [b"x" * 1000] * 400)
    env = Env()
    with open_store(root, read_only=True, env=env) as store, watched(env, "pread") as reads:
        assert len(list(store.read("T"))) == 400
    assert len(reads) <= 10
