"""Goal: `pyrocketstore follow-broker` copies a broker's log until Ctrl-C, and reports by its exit
code and one line why a copy has ended.
Method: run the command in a child process, with brokers and masters of the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyrocketstore
from support.copies import FILE, make_log
from support.fake_broker import answer_to, broker
from support.ha_master import LogMaster, ScriptedMaster
from support.sizes import SIZES

CONF = "".join(
    f"{name}={value}\n"
    for name, value in {
        "mappedFileSizeCommitLog": SIZES["mapped_file_size_commit_log"],
        "mappedFileSizeConsumeQueue": SIZES["mapped_file_size_consume_queue"],
        "maxHashSlotNum": SIZES["max_hash_slot_num"],
        "maxIndexNum": SIZES["max_index_num"],
        "listenPort": 10911,
    }.items()
)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "pyrocketstore", "follow-broker", *map(str, words)]


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@contextmanager
def serving(log: bytes, end: int) -> Iterator[ScriptedMaster]:
    """A broker that serves a log, and says that it ends at `end`."""
    table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(end)}
    with (
        ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master,
        broker(lambda request: answer_to(request, table), port=master.port - 1),
    ):
        yield master


def test_the_command_copies_until_it_has_everything(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 300)
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(log))}
    with (
        ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master,
        broker(lambda request: answer_to(request, table), port=master.port - 1),
    ):
        done = run(master.address, tmp_path / "s", "--config", conf, "--once", "--json")
        again = run(master.address, tmp_path / "s", "--config", conf, "--once")
    states = [json.loads(line)["copy"]["state"] for line in done.stdout.splitlines()]
    assert states and set(states) <= {"connecting", "comparing", "following"}
    assert again.stdout.splitlines()[0].split("\t") == ["state", "master", "end", "error"]
    with pyrocketstore.open(tmp_path / "s", read_only=True, **SIZES) as copy:
        assert sum(copy.max_offset("t", queue_id) for queue_id in range(3)) == 300
        assert copy.verify().ok


def test_once_compares(tmp_path: Path) -> None:
    """A copy that is as long as the log of another broker, or longer, is an error."""
    log = make_log(tmp_path / "m", 300)
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    other = bytearray(log)
    other[-20] ^= 1
    for served, end, text in (
        (log, len(log), ""),
        (bytes(other), len(log), "differs"),
        (log, len(log) - 70_000, "is another log, or was cut"),
    ):
        with serving(served, end) as master:
            words = master.address, tmp_path / "s", "--config", conf, "--once"
            done = run(*words, code=1 if text else 0)
        assert text in done.stderr


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 30)
    with ScriptedMaster(LogMaster(lambda: log, FILE)).listening() as master:
        words = command(master.address, tmp_path / "s", "--from", 0, "--json")
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as child:
            assert child.stdout is not None and child.stderr is not None
            try:
                while json.loads(child.stdout.readline())["copy"]["state"] != "following":
                    pass
                child.send_signal(signal.SIGINT)
                assert child.wait(60) == 130
                assert child.stderr.read() == ""
            finally:
                child.kill()


def test_a_copy_that_cannot_continue(tmp_path: Path) -> None:
    log = make_log(tmp_path / "m", 300)
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    with ScriptedMaster(LogMaster(lambda: log, 2 * FILE)).listening() as master:
        words = master.address, tmp_path / "s", "--from", 7, "--config", conf
        assert "physical offset 7 is not the first byte" in run(*words, code=1).stderr


def test_wrong_usage(tmp_path: Path) -> None:
    assert "must be" in run("127.0.0.1", tmp_path, code=1).stderr
    for begin in ("middle", "-1"):
        assert "first, last or" in run("h:1", tmp_path, "--from", begin, code=2).stderr
