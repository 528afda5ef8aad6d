"""Goal: `pyrocketstore follow` prints messages while another process puts them, until Ctrl-C or
the timeout, with the exit codes of its help.
Method: run the command in a child process beside a store that this process writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import Store
from support.sizes import SIZES

SIZES_LOG = SIZES["mapped_file_size_commit_log"]
CONF = "maxHashSlotNum=500\nmaxIndexNum=2000\nlistenPort=10911\n"


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "pyrocketstore", "follow", *map(str, words)]


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def bodies(text: str) -> list[str]:
    return [json.loads(line)["body"] for line in text.splitlines()]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "broker.conf").write_text(CONF)
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        for number in range(6):
            store.put("orders", b"body %d" % number, queue_id=number % 2, tags=f"T{number % 3}")
        store.wait_dispatched()
        yield store


def test_messages_are_printed_when_they_come(owner: Store, tmp_path: Path) -> None:
    words = command(owner.path, "orders", "--json", "--config", tmp_path / "broker.conf")
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            for number in range(9):
                if number >= 6:
                    owner.put("orders", b"body %d" % number, queue_id=number)
                assert bodies(child.stdout.readline()) == [f"body {number}"]
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
            assert child.stderr.read() == ""
        finally:
            child.kill()


def test_options(owner: Store) -> None:
    def found(*words: object) -> list[str]:
        return bodies(run(owner.path, "orders", "--timeout", 0.05, "--json", *words).stdout)

    assert found() == [f"body {number}" for number in range(6)]
    assert found("--from-end") == []
    assert found("--queue", 1, "--start", 1) == ["body 3", "body 5"]
    assert found("--tags", "T1 || T2", "--queue", 0) == ["body 2", "body 4"]
    text = run(owner.path, "orders", "--timeout", 0).stdout
    assert len(text.splitlines()) == 7
    assert run(owner.path, "none", "--timeout", 0, "--json").stdout == ""
    for words in (("--start", 1), ("--queue", 0, "--start", 1, "--from-end")):
        assert "--start requires" in run(owner.path, "orders", *words, code=2).stderr
    assert "outside" in run(owner.path, "orders", "--queue", 0, "--start", 9, code=1).stderr


def test_a_lost_end(owner: Store) -> None:
    message = list(owner.read("orders", 1))[1]
    with open(f"{owner.path}/commitlog/{0:020d}", "r+b") as log:
        log.seek(message.phy_offset + 4)
        log.write(b"xxxx")
    done = run(owner.path, "orders", "--queue", 1, "--timeout", 0, "--json", code=1)
    assert bodies(done.stdout) == ["body 1"]
    assert "the log ends before" in done.stderr


def test_expired_messages(owner: Store) -> None:
    for number in range(6, 2000):
        owner.put("orders", b"body %d" % number, queue_id=number % 2)
    owner.wait_dispatched()
    files = owner.message_store.commit_log.mapped_file_queue
    files.delete_expired_file_by_time(0, clean_immediately=True, before=SIZES_LOG)
    words = (owner.path, "orders", "--queue", 1, "--start", 0, "--timeout", 0, "--json")
    low = owner.min_offset("orders", 1)
    assert f"the next one is at {low}" in run(*words, code=1).stderr
    found = bodies(run(*words, "--on-loss", "skip").stdout)
    assert found == [f"body {number}" for number in range(2 * low + 1, 2000, 2)]
