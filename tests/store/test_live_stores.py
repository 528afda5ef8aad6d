"""Goal: a reader beside a process that writes, cleans, is killed and recovers meets no error and no
false problem; a store's own verify passes beside its own cleaner.
Method: files are deleted at chosen moments of an opening and of a check; then readers open, verify,
query and dump in a loop beside a writer of small files that cleans all the time and is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreIOError
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines

SETTINGS = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 1000,
    "max_hash_slot_num": 100,
    "max_index_num": 500,
}
LIFE_S = 1.5
LIVES = 4
TIMEOUT_S = 60

WRITER = """
import sys, time, pyrocketstore, pyrocketstore.cleaning.expired_files as cleaning
cleaning.FIRST_CLEAN_MS = 50
store = pyrocketstore.open(sys.argv[1], file_reserved_time=0, clean_resource_interval=20,
    delete_commit_log_files_interval=0, delete_consume_queue_files_interval=0,
    delete_when=";".join("%02d" % hour for hour in range(24)), **eval(sys.argv[2]))
print("up", flush=True)
number = 0
while True:
    store.put_many("T", [b"x" * 200] * 25, queue_ids=number % 4, keys=["k%d" % number] * 25)
    number += 1
    time.sleep(0.003)
"""


def fill(store: pyrocketstore.Store) -> None:
    for i in range(800):
        store.put("T", b"%d " % i + bytes(300), queue_id=i % 2, keys=f"k{i}")
    store.wait_dispatched()


def expire(root: Path, count: int) -> None:
    """Delete the oldest files as a cleaner does: of the log, then of the queues."""
    for path in sorted((root / "commitlog").iterdir())[:count]:
        path.unlink()
    lowest = int(min(path.name for path in (root / "commitlog").iterdir()))
    for queue in (root / "consumequeue" / "T").iterdir():
        for path in sorted(queue.iterdir())[:-1]:
            if int.from_bytes(path.read_bytes()[-20:-12], "big") < lowest:
                path.unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose owner is still there, or was killed."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        fill(store)
    (root / "abort").touch()
    return root


def test_a_check_beside_a_cleaner_in_another_process(root: Path) -> None:
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        expired: list[int] = []

        def progress(done: int, total: int) -> None:
            if done > 0 and not expired:
                expired.append(done)
                expire(root, 3)

        report = store.verify(progress)
    assert expired and report.ok and report.expired > 0, report.problems


def test_a_check_after_all_known_files_have_expired(root: Path) -> None:
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        files = sorted((root / "commitlog").iterdir())
        behind = int(files[-1].name) + files[-1].stat().st_size
        (root / "commitlog" / f"{behind:020d}").write_bytes(bytes(files[-1].stat().st_size))
        expire(root, len(files))
        assert list(store.read("T", 0)) == []
        report = store.verify()
    assert report.ok and report.records == 0, report.problems


def test_what_is_wrong_stays_wrong_beside_a_cleaner(root: Path) -> None:
    unit = root / "consumequeue" / "T" / "0" / f"{3 * 1000:020d}"
    shutil.copy(unit.with_name(f"{2 * 1000:020d}"), unit)
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        assert not store.verify().ok


def test_a_check_beside_the_own_cleaner(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        engine = store.message_store
        expired: list[int] = []

        def progress(done: int, total: int) -> None:
            if done > 0 and len(expired) < 2:
                expired.append(done)
                files = engine.commit_log.mapped_file_queue
                files.delete_expired_file_by_time(
                    0, clean_immediately=True, before=len(expired) * 150_000
                )
                for queue in engine.consume_queues():
                    queue.delete_expired_file(files.get_min_offset())

        report = store.verify(progress)
        assert len(expired) == 2 and report.ok and report.files < 5, report.problems
        assert engine.get_min_phy_offset() > 0


class Deleting(Env):
    """Deletes the oldest files before the n-th file is opened."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__()
        self.root, self.left = root, at

    def open(self, path: str, *rest: int, **named: int) -> int:
        self.left -= 1
        if self.left == 0:
            expire(self.root, 2)
        return super().open(path, *rest, **named)


@pytest.mark.parametrize("at", [*range(1, 30), *range(30, 120, 7)])
def test_files_deleted_while_a_reader_opens(root: Path, at: int) -> None:
    with pyrocketstore.open(root, read_only=True, env=Deleting(root, at), **SETTINGS) as store:
        lowest = store.message_store.get_min_phy_offset()
        for queue_id in (0, 1):
            bodies = [int(m.body.split()[0]) for m in store.read("T", queue_id)]
            assert bodies == list(range(bodies[0], 800, 2))
        assert (root / "commitlog" / f"{lowest:020d}").exists() or store.message_store.env.left > 0


@pytest.mark.parametrize("reloads", [False, True])
def test_a_log_file_deleted_before_the_gaps_of_the_index_are_found(
    tmp_path: Path, reloads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record that the index names was in it."""
    find = LoadedFiles.uncovered_by_index

    def delete_and_find(files: LoadedFiles) -> list[tuple[int, int]]:
        monkeypatch.setattr(LoadedFiles, "uncovered_by_index", find)
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        return find(files)

    with pyrocketstore.open(tmp_path, **SETTINGS) as store:
        store.put("T", b"first", keys="k")
        store.put_many("T", [bytes(100)] * (3 * SETTINGS["mapped_file_size_commit_log"] // 100))
    if not reloads:
        monkeypatch.setattr(LoadedFiles, "uncovered_by_index", delete_and_find)
    with pyrocketstore.open(tmp_path, read_only=True, **SETTINGS) as reader:
        if reloads:
            monkeypatch.setattr(LoadedFiles, "uncovered_by_index", delete_and_find)
            reader.message_store.engine._reload()
        assert reader.query("T", "k") == []
        assert reader.min_offset("T") > 0


def test_a_file_that_was_never_there_is_an_error(root: Path) -> None:
    (root / "commitlog" / f"{1 << 16:020d}").unlink()
    (root / "commitlog" / f"{1 << 16:020d}").symlink_to(root / "nowhere")
    with pytest.raises(StoreIOError, match="No such file"):
        pyrocketstore.open(root, read_only=True, **SETTINGS)


def look(root: Path) -> str:
    """Open, verify, query and dump once; what was wrong, or nothing."""
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        report = store.verify()
        if not report.ok:
            return str([str(problem) for problem in report.problems[:3]])
        store.query("T", "k7")
        store.query_many("T", [f"k{i}" for i in range(50)])
    config = MessageStoreConfig(store_path_root_dir=str(root), **SETTINGS)
    if not list(dump_lines(root, config)):
        return "nothing was dumped"
    return ""


@pytest.mark.slow
def test_readers_beside_a_writer_that_cleans_and_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    looks = 0
    for life in range(LIVES):
        words = [sys.executable, "-W", "ignore", "-c", WRITER, str(root), repr(SETTINGS)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            if life == 0:
                assert child.stdout is not None and child.stdout.readline() == "up\n"
            until = time.monotonic() + LIFE_S
            while time.monotonic() < until:
                wrong = look(root)
                assert not wrong, f"life {life}, look {looks}: {wrong}"
                looks += 1
            assert child.poll() is None
        finally:
            child.kill()
            child.communicate(timeout=TIMEOUT_S)
    assert looks > LIVES
