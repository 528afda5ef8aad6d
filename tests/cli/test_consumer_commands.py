"""Goal: `delayed` and `consumers` print what a store and its ROOT/config have, and change nothing.
Method: stores of 4.9.3 with their own files; small stores; damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from support.golden_stores import GOLDEN, unpack
from support.sizes import SIZES

#: Level 1 is due at once; the others never within a test.
LEVELS = "0s 1h 2h"
SECOND = 1000


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pyrocketstore", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str], kind: str) -> list[dict[str, Any]]:
    return [json.loads(line)[kind] for line in done.stdout.splitlines()]


def table(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.split("\t") for line in done.stdout.splitlines()]


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with pyrocketstore.open(path, message_delay_level=LEVELS, **SIZES) as opened:
        for _ in range(3):
            opened.put("t", b"", delay_level=2)
            opened.put("t", b"", delay_level=3)
        opened.put("u", b"", delay_level=3)
        opened.put("t", b"now", delay_level=1)
        for number in range(9):
            opened.put("orders", b"%d" % number, queue_id=number % 2)
        with opened.consumer("billing", "orders") as consumer:
            assert len(consumer.poll(4, 0)) == 4
            consumer.commit()
        while not opened.max_offset("t", 0):
            time.sleep(0.002)
    path.with_suffix(".conf").write_text(f"messageDelayLevel={LEVELS}\n")
    return path


def conf(path: Path) -> tuple[str, str]:
    return "--config", str(path.with_suffix(".conf"))


def test_delayed(store: Path) -> None:
    before = contents(store)
    found = rows(run("delayed", store, *conf(store), "--json"), "delayed")
    assert [tuple(row.values())[:4] for row in found] == [
        (2, 3600 * SECOND, "t", 3),
        (3, 7200 * SECOND, "t", 3),
        (3, 7200 * SECOND, "u", 1),
    ]
    with pyrocketstore.open(store, read_only=True) as opened:
        stored = [m.store_timestamp for m in opened.read("SCHEDULE_TOPIC_XXXX", 1)]
    assert found[0]["first_due_time"] == stored[0] + 3600 * SECOND
    assert found[0]["last_due_time"] == stored[-1] + 3600 * SECOND
    header, first, *_ = table(run("delayed", store, *conf(store)))
    assert header == ["level", "delay ms", "real topic", "count", "first due time", "last due time"]
    assert first[:4] == ["2", "3600000", "t", "3"]
    assert first[4].startswith("20") and first[4].endswith("Z")
    assert contents(store) == before


@pytest.mark.slow
def test_delayed_without_the_brokers_levels(store: Path) -> None:
    """A unit has the time at which its message is due; only the length of a delay is a setting."""
    with_levels, without = (
        rows(run("delayed", store, *words, "--json"), "delayed") for words in (conf(store), ())
    )
    assert [row["delay_ms"] for row in without] == [5 * SECOND, 10 * SECOND, 10 * SECOND]
    for row in (*with_levels, *without):
        del row["delay_ms"]
    assert with_levels == without


def test_delayed_messages_of_4_9_3(tmp_path: Path) -> None:
    path = unpack("mixed", tmp_path)
    found = rows(run("delayed", path, "--config", GOLDEN / "mixed.conf", "--json"), "delayed")
    expected: Counter[tuple[int, str]] = Counter()
    for line in (GOLDEN / "mixed.jsonl").read_text("ascii").splitlines():
        message = json.loads(line).get("message", {})
        if message.get("cq_topic") == "SCHEDULE_TOPIC_XXXX":
            topic = dict(message["properties"])["REAL_TOPIC"]
            expected[message["cq_queue_id"] + 1, topic] += 1
    assert expected
    assert {(row["level"], row["real_topic"]): row["count"] for row in found} == expected
    assert [row["level"] for row in found] == sorted(row["level"] for row in found)


@pytest.mark.slow
def test_a_broker_that_has_delivered_everything(tmp_path: Path) -> None:
    path = unpack("broker-clean", tmp_path)
    assert run("delayed", path, "--config", GOLDEN / "broker-clean.conf", "--json").stdout == ""
    (path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:52,2:43,3:97}}')
    (row,) = rows(run("delayed", path, "--json"), "delayed")
    assert (row["level"], row["count"]) == (3, 1)


def test_consumers(store: Path) -> None:
    before = contents(store)
    header, *found = table(run("consumers", store))
    assert header == ["group", "topic", "queue id", "position", "max offset", "lag"]
    positions = [(row[:3], int(row[3])) for row in found]
    assert [name for name, _ in positions] == [["billing", "orders", str(i)] for i in (0, 1)]
    assert sum(position for _, position in positions) == 4
    assert [row[4:] for row in found] == [
        [str(end), str(end - position)]
        for end, (_, position) in zip((5, 4), positions, strict=True)
    ]
    assert contents(store) == before


@pytest.mark.slow
def test_groups_of_4_9_3(tmp_path: Path) -> None:
    path = unpack("broker-clean", tmp_path)
    found = rows(run("consumers", path, "--json"), "consumer")
    assert [list(row.values()) for row in found] == [
        ["CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 80, 80, 0],
        ["CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 80, 80, 0],
        ["cg-1", "%RETRY%cg-1", 0, 56, 57, 1],
        ["cg-1", "orders", 0, 592, 592, 0],
        ["cg-1", "orders", 1, 618, 618, 0],
        ["cg-1", "orders", 2, 610, 610, 0],
        ["cg-1", "orders", 3, 605, 605, 0],
    ]


def test_a_broker_with_light_queues_has_another_file(store: Path) -> None:
    text = '{"lmqOffsetTable":{"%LMQ%q@%LMQ%g":7},"offsetTable":{"orders@h":{0:2}}}'
    (store / "config" / "lmqConsumerOffset.json").write_text(text)
    store.with_suffix(".conf").write_text("enableLmq=true\n")
    found = rows(run("consumers", store, *conf(store), "--json"), "consumer")
    assert [list(row.values()) for row in found] == [
        ["%LMQ%g", "%LMQ%q", 0, 7, 0, 0],
        ["h", "orders", 0, 2, 5, 3],
    ]


@pytest.mark.slow
def test_a_position_in_a_queue_that_is_gone(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"gone@g":{3:5}}}')
    (row,) = rows(run("consumers", store, "--json"), "consumer")
    assert list(row.values()) == ["g", "gone", 3, 5, 0, 0]
    assert not (store / "consumequeue" / "gone").exists()


@pytest.mark.parametrize(
    ("command", "name"), [("consumers", "consumerOffset.json"), ("delayed", "delayOffset.json")]
)
@pytest.mark.slow
def test_a_damaged_file_is_one_line(store: Path, command: str, name: str) -> None:
    file = store / "config" / name
    file.write_text("{")
    file.with_name(name + ".bak").unlink(missing_ok=True)
    error = run(command, store, code=1).stderr
    assert error.startswith(
        f"Error: {file}: not valid JSON: line 1, column 2: must be a key or '}}'"
    )
    assert error.count("\n") == 1


@pytest.mark.slow
def test_other_commands_read_a_store_with_damaged_config_files(store: Path) -> None:
    damaged = {file.name.removesuffix(".bak") for file in (store / "config").iterdir()}
    for file in (store / "config").iterdir():
        file.write_text("{")
    checked = run("verify", "--details", store, *conf(store), code=1).stdout
    rows = [line.split("\t")[0] for line in checked.splitlines() if "config/" in line]
    kinds = [kind for kind in rows if kind != "to do"]
    assert kinds == ["config"] * len(damaged)
    assert "complete\tyes" in checked
    assert len(run("cat", store, "orders").stdout.splitlines()) == 10
    run("info", store, code=1)


@pytest.mark.parametrize("command", ["delayed", "consumers", "transactions"])
@pytest.mark.slow
def test_a_store_without_either(tmp_path: Path, command: str) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as opened:
        opened.put("t", b"")
    assert len(run(command, tmp_path).stdout.splitlines()) == 1
    assert run(command, tmp_path, "--json").stdout == ""
    assert "does not exist" in run(command, tmp_path / "none", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "contains no store" in run(command, tmp_path / "empty", code=1).stderr


def test_transactions(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as opened:
        made = opened.prepare("orders", b"", group="shop", queue_id=3, born_timestamp=1000)
        opened.prepare("orders", b"", group="shop").commit()
    before = contents(tmp_path)
    (row,) = rows(run("transactions", tmp_path, "--json"), "transaction")
    assert row == {
        "transaction_id": made.transaction_id,
        "group": "shop",
        "real_topic": "orders",
        "queue_id": 3,
        "born_time": 1000,
        "checks": 0,
    }
    header, found = table(run("transactions", tmp_path))
    assert header == ["transaction id", "group", "real topic", "queue id", "born time", "checks"]
    assert found[4] == "1970-01-01T00:00:01.000Z"
    assert contents(tmp_path) == before
