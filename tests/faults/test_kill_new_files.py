"""Goal: at whatever moment a process is killed, every file of its store has its full length, so
that 4.9.3 loads the directory.
Method: children whose stores have very small files are killed while they make new ones, most of
them at the system calls of that operation. The lengths are checked, and 4.9.3 loads a copy.

ROCKETSTORE_SOAK_KILLS=N makes N kills, ROCKETSTORE_SEED selects other moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from injection import ANY, build
from nursery import Nursery
from places import directory
from small_files import SMALL, SMALL_JAVA, odd_files
from support.java_store import require_java
from support.seed import SEED

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_KILLS", "0"))
KILLS = SOAK // 2 or 12
STORE_CYCLES = 4
LONGEST_S = 0.3
#: The calls that make a file.
MAKING = (
    "open", "open_unnamed", "ftruncate", "link", "unlink", "fdatasync", "fsync_directory", "mkdir",
)  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    path = directory()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery") / "errors")
    yield nursery
    nursery.close()


class Java:
    """A process of 4.9.3 that loads one copy after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "broker.conf"
        self.conf.write_text("".join(f"{k}={v}\n" for k, v in SMALL_JAVA.items()))
        self.errors = (folder / "java").open("w+")
        self.process = subprocess.Popen(
            require_java().command("serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def loads(self, store: Path) -> bool:
        """Return True if 4.9.3 loads a copy of the store."""
        copy = self.folder / "copy"
        shutil.copytree(store, copy, ignore=lambda *_: {"lock"})
        out = self.folder / "out"
        request = {"do": "dump", "path": str(copy), "conf": str(self.conf), "out": str(out)}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        shutil.rmtree(copy)
        return bool(answer.get("exit") == 0)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            assert stream is not None
            stream.close()


def moment(rng: random.Random) -> tuple[float, tuple[str, str, int]]:
    """Draw the death of the next child: after some seconds, or at a call."""
    draw = rng.random()
    if draw < 0.2:
        return LONGEST_S * rng.random(), (build(), ANY, 0)
    if draw < 0.4:
        return LONGEST_S, (build(), ANY, rng.randrange(1, 2000))
    return LONGEST_S, (build(), rng.choice(MAKING), rng.randrange(1, 40))


@pytest.mark.java
@pytest.mark.timeout(300 + 5 * SOAK)
@pytest.mark.parametrize("unnamed", [True, False])
def test_4_9_3_loads_what_a_kill_leaves(folder: Path, nursery: Nursery, unnamed: bool) -> None:
    """Kills with and without files without a name (O_TMPFILE)."""
    rng = random.Random(f"{SEED} new files {unnamed}")
    files = 0
    with contextlib.closing(Java(folder)) as java:
        for cycle in range(KILLS):
            if cycle % STORE_CYCLES == 0:
                path = folder / f"store{cycle}"
            seconds, kill = moment(rng)
            said = f"seed {SEED}, {unnamed}, cycle {cycle}, {seconds:.3f} s, {kill[1]} {kill[2]}"
            status = nursery.run_and_kill(
                seconds,
                do="make_files",
                path=str(path),
                seed=f"{SEED}.{cycle}",
                kill=kill,
                unnamed=unnamed,
            )
            assert status == -signal.SIGKILL, nursery.errors.read_text()[-5000:]
            assert list(odd_files(path, SMALL)) == [], said
            if path.exists():
                assert java.loads(path), f"{said}: 4.9.3 does not load it"
            if cycle % STORE_CYCLES == STORE_CYCLES - 1:
                with pyrocketstore.open(path, **SMALL) as store:
                    assert store.verify().ok, said
                assert [p for p in path.rglob("*") if p.name.endswith(".new")] == []
                files += sum(p.is_file() and p.name.isdigit() for p in path.rglob("*"))
                shutil.rmtree(path)
    print(f"seed {SEED}: {KILLS} kills, {files} files")
    assert files > KILLS * (20 if SOAK else 1)
