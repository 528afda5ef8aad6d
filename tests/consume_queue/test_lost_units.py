"""Goal: recovery restores any lost part of a queue from the log, also when its records are far
before the end, and also after an interrupted recovery.
Method: a queue whose messages come first in the log, and another that fills many later files; files
of the first are removed or zeroed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreIOError
from pyrocketstore.recovery.apply import Applying
from pyrocketstore.recovery.plan import Planning
from support.damaged_stores import claim_flushed

pytestmark = pytest.mark.slow

SIZES = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 100,
    "max_index_num": 4000,
}
#: 20 a file
COUNT = 90


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "store"
    with pyrocketstore.open(path, **SIZES) as store:
        for i in range(COUNT):
            store.put("early", b"%d" % i, keys=f"k{i}")
        store.put_many("late", [bytes(1000)] * 100)
    assert len(list((path / "commitlog").iterdir())) > 6
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(filled, tmp_path / "store"))


def queue_file(path: Path, number: int) -> Path:
    return path / "consumequeue" / "early" / "0" / f"{number * 400:020d}"


def be_killed(path: Path) -> None:
    """As a kill leaves it, after which the checkpoint says that nearly all was forced."""
    (path / "abort").touch()
    claim_flushed(path)


def damage(path: Path, how: str) -> None:
    if how == "no middle file":
        queue_file(path, 2).unlink()
    elif how == "two gaps":
        queue_file(path, 1).unlink()
        queue_file(path, 3).unlink()
    elif how == "no first file":
        queue_file(path, 0).unlink()
    elif how == "an empty first file":
        queue_file(path, 0).write_bytes(b"")
    elif how == "zeros in the middle":
        with queue_file(path, 2).open("r+b") as file:
            file.seek(100)
            file.write(bytes(100))
    else:
        raise AssertionError(how)


def is_whole(path: Path, read_only: bool = False) -> None:
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        assert [m.body for m in store.read("early")] == [b"%d" % i for i in range(COUNT)]
        if not read_only:
            assert store.verify().ok
            assert store.put("early", b"next").queue_offset == COUNT
            assert [len(store.query("early", f"k{i}")) for i in range(COUNT)] == [1] * COUNT


DAMAGES = [
    "no middle file",
    "two gaps",
    "no first file",
    "an empty first file",
    "zeros in the middle",
]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("how", DAMAGES)
def test_the_log_gives_lost_units_again(path: Path, how: str, killed: bool) -> None:
    damage(path, how)
    if killed:
        be_killed(path)
    is_whole(path, read_only=True)
    is_whole(path)
    is_whole_after_close(path)


def is_whole_after_close(path: Path) -> None:
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean
        assert store.max_offset("early") == COUNT + 1
        assert store.verify().ok


def test_a_reader_does_not_warn_of_a_missing_first_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It builds the queue in memory at each opening; the owner repairs it, and warns once."""
    (path / "consumequeue" / "early" / "0" / ("0" * 20)).unlink()
    text = "early/0: its first file is missing"
    caplog.set_level("INFO", "pyrocketstore.consume_queue.queues_recovery")
    for read_only, level in [(True, "INFO"), (True, "INFO"), (False, "WARNING")]:
        caplog.clear()
        with pyrocketstore.open(path, read_only=read_only) as store:
            assert [int(m.body) for m in store.read("early", 0)] == list(range(COUNT))
            assert store.verify().ok != read_only
        found = [
            r for r in caplog.records if r.name == "pyrocketstore.consume_queue.queues_recovery"
        ]
        assert [(r.levelname, r.getMessage()) for r in found] == [(level, text)]


def test_a_hole_in_a_queue_makes_old_damage_no_end_of_the_log(path: Path) -> None:
    """After a kill the log is scanned from the checkpoint on, also where a queue must be cut."""
    damage(path, "no middle file")
    with (path / "commitlog" / f"{3 << 14:020d}").open("r+b") as file:
        file.write(bytes(100))
    be_killed(path)
    with pyrocketstore.open(path, **SIZES) as store:
        plan = store.message_store.plan
        assert plan is not None
        assert plan.scan_from > 3 << 14
        assert plan.broken == []
        reader = store.read("late", on_corrupt="skip")
        assert (len(list(reader)), reader.skipped.count) == (99, 1)
        assert [m.body for m in store.read("early")] == [b"%d" % i for i in range(COUNT)]


#: Ends the process when recovery gets to a function, or behind the first call of it.
KILL = """
import os, signal, sys
import pyrocketstore
from pyrocketstore.message_store.loading import LoadingToWrite
from pyrocketstore.recovery.apply import Applying
from pyrocketstore.recovery.plan import Planning
module, name = {"plan": (Planning, "make_plan"), "apply": (Applying, "apply_plan"),
                "replay": (Applying, "_replay"), "force": (LoadingToWrite, "_fsync_again"),
                }[sys.argv[2]]
function = getattr(module, name)
def die(*arguments, **settings):
    if sys.argv[2] == "force":
        function(*arguments, **settings)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, die)
pyrocketstore.open(sys.argv[1], **SIZES)
"""


@pytest.mark.parametrize("where", ["plan", "apply", "replay", "force"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_recovery_that_is_killed_is_made_again(path: Path, how: str, where: str) -> None:
    """Units that it has removed, and not yet written again, are not forgotten."""
    damage(path, how)
    be_killed(path)
    script = f"SIZES = {SIZES!r}\n{KILL}"
    child = subprocess.run(
        [sys.executable, "-c", script, str(path), where],
        env={**os.environ, "PYTHONPATH": str(Path(pyrocketstore.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert (path / "abort").exists()
    is_whole(path)


@pytest.mark.parametrize("step", [(Planning, "make_plan"), (Applying, "apply_plan")])
def test_a_recovery_that_fails_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    """After a clean stop: an error behind the cut does not leave a store that looks clean, and an
    error before it changes nothing."""
    damage(path, "no middle file")
    claim_flushed(path)

    def fail(*arguments: object) -> None:
        raise StoreIOError(errno.EIO, "pread", "a file of the log")

    with monkeypatch.context() as patch:
        patch.setattr(*step, fail)
        with pytest.raises(StoreIOError, match="pread"):
            pyrocketstore.open(path, **SIZES)
    assert (path / "abort").exists() == (step[0] is Applying)
    is_whole(path)


@pytest.mark.parametrize("what", ["last file", "directory"])
def test_the_whole_log_is_read_on_request(path: Path, what: str) -> None:
    """An opening after a clean stop misses the loss; verify reports it, a full scan repairs it."""
    if what == "directory":
        shutil.rmtree(path / "consumequeue" / "early")
    else:
        queue_file(path, 4).unlink()
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert not store.verify().ok
    (path / "abort").touch()
    (path / "checkpoint").unlink()
    is_whole(path)
