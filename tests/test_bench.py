"""Goal: the benchmarks do not rot, and their page says what was measured.
Method: run them at smoke sizes; run.py fails where the answers of those who take part differ. The
record, the table and the verdicts are made from given numbers. Nothing here looks at a time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pyrocketstore
from java_store import require_java

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "BENCH_FULL"},
    "PYTHONPATH": str(Path(pyrocketstore.__file__).parent.parent),
}
TIMEOUT_S = 120


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def smoke(tmp_path: Path, names: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Run groups at smoke sizes: (what was printed, the record)."""
    stores, out = tmp_path / "stores", tmp_path / "out"
    where = ("--directory", str(stores), "--out", str(out))
    text = run("bench/run.py", "--smoke", "--only", names, *where, *words)
    assert not list(stores.iterdir()), "the stores stayed"
    return text, json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))


@pytest.fixture
def module(monkeypatch):
    """A module of bench/, which is no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    loaded: list[str] = []

    def load(name: str) -> ModuleType:
        before = set(sys.modules)
        found = importlib.import_module(name)
        loaded.extend(set(sys.modules) - before)
        return found

    yield load
    for name in loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"SKIPPED ALOUD: {package} is not installed (group `bench`)")


def test_micro_benchmarks_run():
    out = run("-m", "pytest", "bench", "-p", "no:cacheprovider", "--benchmark-disable")
    assert re.search(r"\d+ passed", out), out


@pytest.mark.java
def test_side_by_side_runs_and_the_answers_agree(tmp_path):
    require_java()
    names = "index_select,query,latency"
    out, record = smoke(tmp_path, names)
    assert "SMOKE SIZES" in out
    assert set(record["groups"]) == set(names.split(","))
    for name, group in record["groups"].items():
        assert [row["kind"] for row in group["rows"]][:2] == ["base", "ours"], name
        assert all(row["rates"] and row["peak_bytes"] for row in group["rows"])
    latencies = [row["latencies_us"] for row in record["groups"]["latency"]["rows"]]
    assert all(0 < found["p50"] <= found["p99"] <= found["max"] for found in latencies)
    assert all(row["cpu_us"] > 0 for row in record["groups"]["latency"]["rows"])


@pytest.mark.java
def test_growth_runs_beside_java(tmp_path):
    require_java()
    _, record = smoke(tmp_path, "grow_queues_10000", "--growth")
    assert _names(record["groups"]["grow_queues_10000"]) == ["4.9.3", "put"]
    page = (tmp_path / "out" / "benchmarks.md").read_text(encoding="utf-8")
    assert "grow_queues_10000" in page


def test_without_java_ours_and_the_others_are_measured(tmp_path):
    _, record = smoke(tmp_path, "put128,sync1,get", "--without", "java,rust")
    assert {name for group in record["groups"].values() for name in _names(group)} > {
        "put",
        "put_many",
        "empty compiled call",
        "C appends",
        "C stores, helper ahead",
        "C stores over zeros, helper ahead",
        "C writes",
        "SQLite, 1000 a transaction",
    }
    left_out = {one["name"]: one["reason"] for one in record["groups"]["put128"]["left_out"]}
    assert left_out["4.9.3"] == left_out["rocketmq-rust"] == "left out by --without"
    facts = next(iter(record["runs"].values()))
    assert {"processor", "kernel", "file system", "CRC kernel", "SQLite"} <= set(facts)
    page = (tmp_path / "out" / "benchmarks.md").read_text(encoding="utf-8")
    assert "left out: *rocketmq-rust*" in page
    assert "the loop around an empty compiled call takes" in page


def _names(group: dict[str, Any]) -> list[str]:
    return [row["name"] for row in group["rows"]]


@pytest.mark.parametrize(
    ("peer", "package"),
    [
        ("sqlite", "sqlite3"),
        ("lmdb", "lmdb"),
        ("diskcache", "diskcache"),
        ("persist_queue", "persistqueue"),
    ],
)
def test_a_peer_finds_what_it_stored_and_checks_the_body(module, tmp_path, peer, package):
    needs(package)
    peers = module("peers")
    store = peers.PEERS[peer](tmp_path / "peer", sync=False, plain=False)
    try:
        store.put_all(b"body" * 100, 5, 10, 4)
        items = [item for queue_id in range(4) for item in store.read(queue_id)]
        assert sorted(item.key for item in items) == sorted(f"k{i}" for i in range(5, 15))
        assert {(item.tag, item.body) for item in items} == {("TagA", b"body" * 100)}
        assert store.holds(1, 2)
        assert not store.holds(1, 3)
        if store.keyed:
            assert store.by_key("k14").key == "k14"
            assert store.by_key("k15") is None
    finally:
        store.close()


def test_a_peer_of_which_a_body_was_damaged_says_so(module, tmp_path):
    peers = module("peers")
    store = peers.Sqlite(tmp_path / "peer", sync=False, plain=False)
    store.put_all(b"body", 0, 8, 8)
    store._run("UPDATE messages SET crc = ? WHERE key = 'k3'", zlib.crc32(b"other"))
    for look in (lambda: store.by_key("k3"), store.scan, lambda: list(store.read(3))):
        with pytest.raises(peers.BodyDamaged):
            look()
    store.close()


def test_a_wrong_answer_is_an_error(module):
    run_module, groups = module("run"), module("groups")
    workers = module("workers")
    group = next(group for group in groups.GROUPS if group.name == "sync1")
    taking = group.variants[:3] + group.variants[4:5]
    sizes = run_module.Sizes(False, 1, 0.0)
    run_module.compare(sizes, group, taking, [20, 20, 20, 20])
    with pytest.raises(workers.BenchError, match=r"answer 19, 4\.9\.3 says 20"):
        run_module.compare(sizes, group, taking, [20, 19, 20, 20])
    with pytest.raises(workers.BenchError, match="answer 21 is not its count"):
        run_module.compare(sizes, group, taking, [20, 20, 20, 21])


def test_a_worker_that_ends_is_an_error_with_its_last_word(module, tmp_path):
    workers = module("workers")
    command = [sys.executable, "-c", "raise SystemExit('no such work')"]
    with pytest.raises(workers.BenchError, match="no such work"):
        workers.Worker("broken", command, tmp_path / "problems")


def row(name: str, kind: str, rates: list[float], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "threads": "1",
        "words": f"what {name} did",
        "goals": [],
        "n": 1000,
        "rates": rates,
        "bytes_per_second": 2_500_000_000,
        "peak_bytes": 64 << 20,
        "peak_anonymous_bytes": 16 << 20,
        **more,
    }


@pytest.fixture
def group() -> dict[str, Any]:
    return {
        "title": "Work",
        "unit": "msg",
        "latency": False,
        "axis": "",
        "at": 0,
        "written_bytes": 0,
        "rows": [
            row("4.9.3", "base", [100.0, 200.0, 300.0]),
            row("put", "ours", [300.0, 400.0, 300.0], goals=[[3.0, "4.9.3"], [0.9, "C"]]),
            row("C", "limit", [330.0, 440.0, 330.0]),
            row("empty", "call", [600.0, 800.0, 600.0]),
        ],
        "left_out": [{"name": "LMDB", "reason": "not here"}],
    }


def test_the_table_has_ratios_of_pairs_goals_and_limits(module, group):
    text = "\n".join(module("report").section("work", group))
    assert (
        "| put | 1 | 1,000 | 300 msg/s | 300–400 | 2.50 |  | 64 | 16 | **2.00** (1.00–3.00) |"
        in (text)
    )
    assert "- *put*: what put did" in text
    assert "- left out: *LMDB*: not here" in text
    assert "- goal of *put*: 3 × 4.9.3; 2.00: **not reached**" in text
    assert "- goal of *put*: 0.9 × C; 0.91: reached" in text
    assert "- limit of *put*: C 1.10 ×: closes the row" in text
    assert "50 % of the 3333333 ns that *put* takes" in text


def test_a_limit_far_above_ours_leaves_the_row_open(module, group):
    group["rows"][2]["rates"] = [600.0, 800.0, 600.0]
    text = module("report").section("work", group)
    assert "- limit of *put*: C 2.00 ×: leaves the row open" in text


def test_of_several_limits_the_fastest_decides_and_threads_are_compared_with_their_like(
    module, group
):
    rates = [600.0, 800.0, 600.0]
    group["rows"].append(row("D", "limit", rates, threads="2"))
    assert "- limit of *put*: C 1.10 ×: closes the row" in module("report").section("work", group)
    group["rows"][1]["threads"] = "put + dispatch"
    text = module("report").section("work", group)
    assert "- limit of *put*: C 1.10 ×, D 2.00 ×: leaves the row open" in text


def test_a_later_run_replaces_only_its_own_groups(module, group, tmp_path):
    report = module("report")
    record = report.Record.read(tmp_path)
    record.begin({"when": "first"})
    record.add("a", group)
    record.add("b", group)
    record.write(tmp_path)
    again = report.Record.read(tmp_path)
    again.begin({"when": "second"})
    again.add("b", group)
    again.write(tmp_path)
    found = json.loads((tmp_path / "benchmarks.json").read_text(encoding="utf-8"))
    runs = {name: found["runs"][one["run"]]["when"] for name, one in found["groups"].items()}
    assert runs == {"a": "first", "b": "second"}
    again.begin({"when": "third"})
    again.add("a", group)
    again.add("b", group)
    assert [run["when"] for run in again.runs.values()] == ["third"]


def test_the_plots_name_every_row(module, group, tmp_path):
    needs("matplotlib")
    plot = module("plot")
    plot.ratios({"work": group}, tmp_path / "bars.svg")
    bars = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert all(f"work: {name}" in bars for name in ("put", "C", "empty"))
    curve = {"a": group | {"axis": "queues", "at": 1}, "b": group | {"axis": "queues", "at": 9}}
    plot.curves(curve, tmp_path / "curves.svg")
    assert "queues" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


def test_the_page_shows_the_record_that_lies_beside_it(module):
    report = module("report")
    record = report.Record.read(ROOT / "docs")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, group in record.groups.items():
        assert f"(`{name}`" in page
        for one in group["rows"]:
            assert f"| {one['name']} |" in page


def test_unknown_work_is_refused():
    with pytest.raises(AssertionError, match="no such work: nothing"):
        run("bench/run.py", "--only", "nothing")
