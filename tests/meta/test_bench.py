"""Goal: the benchmarks do not rot, and their page says what was measured.
Method: run them at smoke sizes; the command fails where the answers of those who take part differ.
The record, the table and the verdicts are made from given numbers. Nothing here looks at a time."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from support.java_store import require_java

ROOT = Path(__file__).parent.parent.parent
BENCH = ROOT / "bench"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "BENCH_FULL"},
    "PYTHONPATH": os.pathsep.join((str(Path(pyrocketstore.__file__).parent.parent), str(ROOT))),
}
TIMEOUT_S = 120


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words],
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
    text = run("-m", "bench", "--smoke", "--only", names, *where, *words)
    assert not list(stores.iterdir()), "the stores stayed"
    return text, json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))


@pytest.fixture
def module(monkeypatch):
    """A module of bench/, by its name there."""
    # Behind all others: a build of pyrocketstore on PYTHONPATH comes first.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    before = set(sys.modules)
    yield lambda name: importlib.import_module(f"bench.{name}")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "bench":
            del sys.modules[name]


#: The folders and modules of bench/, in the order of its docstring; `bench_*.py` are apart.
ORDER = "paths model workers catalog report spark sizes answers measure __main__".split()


def arrows(name: str, text: str) -> list[str]:
    """Imports of a module of bench/ that name a later entry of ORDER, and uses of sys.path."""
    room = ORDER.index(name.partition(".")[0])
    wrong = []
    for node in ast.walk(ast.parse(text)):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            wrong += [f"{name}: a relative import"] if node.level else []
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            wrong.append(f"{name}: sys.path")
        later = [one for one in found if one.startswith("bench.")]
        later = [one for one in later if ORDER.index(one.split(".")[1]) > room]
        wrong += [f"{name}: {one} comes later" for one in later]
    return wrong


def test_imports_point_one_way_and_none_changes_the_path():
    paths = [path for path in BENCH.rglob("*.py") if not path.name.startswith("bench_")]
    paths.remove(BENCH / "__init__.py")
    names = {path: ".".join(path.relative_to(BENCH).with_suffix("").parts) for path in paths}
    assert {name.partition(".")[0] for name in names.values()} == set(ORDER)
    assert [one for path in paths for one in arrows(names[path], path.read_text("utf-8"))] == []
    text = "import sys\nfrom bench import catalog\nfrom . import a\nsys.path.append(1)\n"
    assert len(arrows("model", text)) == 3


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"SKIPPED ALOUD: {package} is not installed (group `bench`)")


@pytest.mark.slow
def test_micro_benchmarks_run():
    out = run("-m", "pytest", "bench", "-p", "no:cacheprovider", "--benchmark-disable")
    assert re.search(r"\d+ passed", out), out


@pytest.mark.java
def test_side_by_side_runs_and_the_answers_agree(tmp_path):
    require_java()
    names = "index_select,query,latency,latency_paced,aput1"
    out, record = smoke(tmp_path, names)
    assert "SMOKE SIZES" in out
    assert set(record["groups"]) == set(names.split(","))
    for name, group in record["groups"].items():
        assert [row["kind"] for row in group["rows"]][:2] == ["base", "ours"], name
        assert all(row["rates"] and row["peak_bytes"] for row in group["rows"])
    latencies = [row["latencies_us"] for row in record["groups"]["latency"]["rows"]]
    assert all(0 < found["p50"][0] <= found["p99"][0] <= found["max"][0] for found in latencies)
    assert all(row["cpu_us"] > 0 for row in record["groups"]["latency"]["rows"])


@pytest.mark.java
def test_records_have_one_size_and_a_loaded_store_finds_its_keys_on_both_sides(tmp_path):
    require_java()
    _, record = smoke(tmp_path, "batch,recover,sync64", "--without", "rust,peers")
    assert "4.9.3, reentrant lock" in _names(record["groups"]["sync64"])
    calls = [row for row in record["groups"]["batch"]["rows"] if row["kind"] == "call"]
    assert [row["beside"] for row in calls] == ["put_batch", "put_many"]
    for name, group in record["groups"].items():
        assert {"base", "ours"} <= {row["kind"] for row in group["rows"]}, name
        assert all("cpu_us" in row for row in group["rows"]), name


@pytest.mark.java
def test_growth_runs_beside_java(tmp_path):
    require_java()
    names = "grow_queues_10000,grow_flush_10000,grow_open_1000,grow_info_1000"
    _, record = smoke(tmp_path, names, "--growth")
    assert _names(record["groups"]["grow_open_1000"])[0] == "4.9.3"
    assert _names(record["groups"]["grow_info_1000"]) == ["queues", "info"]
    assert _names(record["groups"]["grow_queues_10000"]) == ["4.9.3", "put"]
    assert _names(record["groups"]["grow_flush_10000"]) == ["4.9.3", "flush"]
    page = (tmp_path / "out" / "benchmarks.md").read_text(encoding="utf-8")
    assert "grow_queues_10000" in page


@pytest.mark.java
def test_messages_with_properties_have_one_size_on_both_sides(tmp_path):
    require_java()
    _, record = smoke(tmp_path, "put_client,put_unique", "--without", "rust,peers")
    _, growth = smoke(tmp_path, "grow_properties_0,grow_properties_50", "--growth")
    groups = {**record["groups"], **growth["groups"]}
    client = groups.pop("put_client")
    for group in groups.values():
        assert _names(group) == ["4.9.3", "put", "put_many"]
    rows = [row for row in client["rows"] if row["kind"] != "limit"]
    assert [row["name"] for row in rows] == [
        "4.9.3",
        "put",
        "put_many",
        "empty compiled call",
        "encoding call",
        "empty compiled call, put_many",
        "encoding call, put_many",
    ]


@pytest.mark.java
def test_delayed_messages_and_consumers_run_beside_java(tmp_path):
    require_java()
    names = "delayed_deliver,delayed_lateness,put_to_poll"
    _, record = smoke(tmp_path, names, "--without", "rust,peers")
    for group in record["groups"].values():
        assert _names(group) == ["4.9.3", "store"]


@pytest.mark.java
def test_small_reads_run_beside_java(tmp_path):
    require_java()
    names = (
        "small_get,small_time,small_batch,absent_key,old_window,read_only_get,"
        "read_only_query_many,read_only_iterate"
    )
    _, record = smoke(tmp_path, names)
    assert _names(record["groups"]["small_get"])[:2] == ["4.9.3", "get_message"]
    for call in ("get", "query_many"):
        found = _names(record["groups"][f"read_only_{call}"])
        assert found == [call, f"{call}, read-only", "C system calls"]
    for name, group in record["groups"].items():
        assert all(row["rates"] for row in group["rows"]), name


@pytest.mark.java
def test_index_files_grow_beside_java(tmp_path):
    require_java()
    _, record = smoke(tmp_path, "grow_index_files_3", "--growth")
    assert _names(record["groups"]["grow_index_files_3"]) == ["4.9.3", "query"]


@pytest.mark.slow
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
    assert "the loop with the empty compiled call takes" in page


def _names(group: dict[str, Any]) -> list[str]:
    return [row["name"] for row in group["rows"]]


@pytest.mark.parametrize(
    ("peer", "package"),
    [
        ("sqlite", "sqlite3"),
        ("lmdb", "lmdb"),
        ("lmdb_named", "lmdb"),
        ("diskcache", "diskcache"),
        ("persist_queue", "persistqueue"),
    ],
)
def test_a_peer_finds_what_it_stored_and_checks_the_body(module, tmp_path, peer, package):
    needs(package)
    peers = module("workers.peers")
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
    peers = module("workers.peers")
    store = peers.Sqlite(tmp_path / "peer", sync=False, plain=False)
    store.put_all(b"body", 0, 8, 8)
    store._run("UPDATE messages SET crc = ? WHERE key = 'k3'", zlib.crc32(b"other"))
    for look in (lambda: store.by_key("k3"), store.scan, lambda: list(store.read(3))):
        with pytest.raises(peers.BodyDamaged):
            look()
    store.close()


def put_answer(answer: int, **more: int) -> dict[str, int]:
    return {"answer": answer, **more}


def test_a_wrong_answer_is_an_error(module):
    answers, groups = module("answers"), module("catalog")
    workers = module("workers.process")
    group = next(group for group in groups.GROUPS if group.name == "sync1")
    taking = group.variants[:3] + group.variants[4:5]
    sizes = module("sizes").Sizes(False, 1, 0.0)
    right = [put_answer(20, log=20 * group.record), *[put_answer(20)] * 3]
    answers.compare(sizes, group, taking, right)
    for at in range(4):
        wrong = [*right[:at], {**right[at], "answer": 19}, *right[at + 1 :]]
        with pytest.raises(workers.BenchError, match=f"/{taking[at].name}: answer 19, expected 20"):
            answers.compare(sizes, group, taking, wrong)
    short = [put_answer(20, log=20 * group.record - 1), *right[1:]]
    with pytest.raises(workers.BenchError, match="bytes of records, expected"):
        answers.compare(sizes, group, taking, short)


@pytest.mark.parametrize("full", [True, False])
def test_the_answer_of_every_row_but_the_crc_limits_is_known_beforehand(module, full):
    catalog, expected = module("catalog"), module("answers").expected
    sizes = module("sizes").Sizes(full, 1, 0.0)
    known = {}
    for group in (*catalog.GROUPS, *catalog.growth_groups(large=True)):
        for variant in group.variants:
            known[group.name, variant.name] = expected(sizes, group, variant)
    unknown = {name for (_, name), answer in known.items() if answer is None}
    assert unknown == {
        "C CRC alone, 1 thread",
        "C CRC alone, 2 threads",
        "C read and CRC, 1 thread",
        "C read and CRC, 2 threads",
    }
    count = 1_000_000 if full else 2000
    keys = sum(len(f"k{i}") for i in range(count))
    assert known["get", "objects"] == known["get", "LMDB"] == keys + 8 * count
    part = count // 5
    assert known["get", "SQLite"] == sum(len(f"k{i}") for i in range(part)) + 8 * part
    assert known["get", "columns with body"] == known["scan", "4.9.3"] == count
    queries = 500_000 if full else 500
    assert known["query", "query"] == 9 * queries
    assert known["query", "query_many, offsets"] == known["query", "4.9.3, offsets"] == queries


def test_few_pairs_and_smoke_sizes_leave_the_page_alone(module):
    where = module("__main__").default_directory
    assert where(True, 5) == ROOT / "docs"
    assert where(True, 4) is None
    assert where(False, 5) is None


def test_names_that_rows_are_compared_with_are_there(module):
    catalog = module("catalog")
    for group in (*catalog.GROUPS, *catalog.growth_groups(large=True)):
        kinds = {variant.name: variant.kind for variant in group.variants}
        assert len(kinds) == len(group.variants), group.name
        for variant in group.variants:
            for _, *names in variant.goals:
                assert set(names) <= set(kinds), variant.name
            if variant.beside:
                wanted = "base" if variant.kind == "ours" else "ours"
                assert kinds[variant.beside] == wanted, variant.name


def test_what_is_compared_by_a_goal_or_a_limit_stands_before_the_peers(module):
    for group in module("catalog").GROUPS:
        kinds = [variant.kind for variant in group.variants]
        rest = kinds[kinds.index("peer") :] if "peer" in kinds else ["peer"]
        assert set(rest) == {"peer"}, group.name


ENDS_BETWEEN_ROUNDS = """
import sys
print('{"ready": true}', flush=True)
sys.stdin.close()
raise SystemExit('out of room')
"""
WORKS_TWICE = """
import sys
print('{"ready": true}', flush=True)
for count in (3, 0):
    sys.stdin.readline()
    print(f'{{"count": {count}, "bytes": 0, "seconds": 1, "units": 2, "answer": 3}}', flush=True)
"""


def test_a_worker_that_ends_is_an_error_with_its_last_word(module, tmp_path):
    workers = module("workers.process")
    command = [sys.executable, "-c", "raise SystemExit('no such work')"]
    with pytest.raises(workers.BenchError, match="no such work"):
        workers.Worker("broken", command, tmp_path / "problems")


def test_the_last_word_of_a_worker_is_no_line_of_a_backtrace(module, tmp_path):
    workers = module("workers.process")
    said = "raise SystemExit('Error: out of room\\n\\nStack backtrace:\\n  0: main\\n  1: _start')"
    with pytest.raises(workers.WorkerEnded, match=r"'' Error: out of room$"):
        workers.Worker("broken", [sys.executable, "-c", said], tmp_path / "problems")


def test_a_worker_that_ends_between_its_rounds_is_an_error_with_its_last_word(module, tmp_path):
    workers = module("workers.process")
    command = [sys.executable, "-c", ENDS_BETWEEN_ROUNDS]
    worker = workers.Worker("ended", command, tmp_path / "problems")
    worker._process.wait()  # so that its end of the pipe is gone
    with pytest.raises(workers.BenchError, match="ended with exit code 1: '' out of room"):
        worker.round(0)
    worker.close()


def test_the_end_of_who_writes_the_input_ends_the_group(module, monkeypatch):
    ended = module("workers.process").WorkerEnded
    bench = object.__new__(module("measure").Bench)
    group = module("catalog").GROUPS[0]

    def measured(*_: Any) -> None:
        raise ended("input 1000000", "ended with exit code 1")

    monkeypatch.setattr(bench, "_who", lambda group: (list(group.variants), []))
    monkeypatch.setattr(bench, "_measure", measured)
    with pytest.raises(ended, match="input 1000000 ended with exit code 1"):
        bench.measure(group)


@pytest.mark.parametrize("name", ["rocketmq-rust", "4.9.3"])
def test_a_peer_that_breaks_down_is_left_out_and_named_but_4_9_3_ends_the_group(
    module, monkeypatch, name
):
    ended = module("workers.process").WorkerEnded
    bench = object.__new__(module("measure").Bench)
    group = next(one for one in module("catalog").GROUPS if one.name == "put128")

    def measured(group: Any, taking: Any, left_out: Any) -> list[str]:
        if any(one.name == name for one in taking):
            raise ended(f"{group.name}/{name}", "ended with exit code 1")
        return [one.name for one in taking]

    left_out: list[dict[str, str]] = []
    monkeypatch.setattr(bench, "_who", lambda group: (list(group.variants), left_out))
    monkeypatch.setattr(bench, "_measure", measured)
    if name == "4.9.3":
        with pytest.raises(ended, match=r"put128/4\.9\.3 ended with exit code 1"):
            bench.measure(group)
    else:
        assert bench.measure(group) == [v.name for v in group.variants if v.name != name]
        assert left_out == [{"name": name, "reason": "ended with exit code 1"}]


def test_a_round_that_did_nothing_is_an_error(module, tmp_path):
    workers = module("workers.process")
    worker = workers.Worker("idle", [sys.executable, "-c", WORKS_TWICE], tmp_path / "problems")
    assert worker.round(0)["count"] == 3
    with pytest.raises(workers.BenchError, match="the round did no work"):
        worker.round(0)
    worker.kill()


def test_every_worker_has_a_file_for_its_last_words(module, tmp_path):
    bench = object.__new__(module("measure").Bench)
    bench.home, bench._problems = tmp_path, itertools.count()
    assert bench._problems_file() != bench._problems_file()


class Noted:
    """In the place of a Worker: notes who had a round."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name = name
        self.turns = turns

    def round(self, seconds: float) -> dict[str, Any]:
        self.turns.append(self.name)
        return {"answer": self.name}

    def forget(self) -> None:
        self.turns.append("|")


def test_every_second_turn_goes_the_other_way(module):
    turns: list[str] = []
    workers = [Noted(name, turns) for name in "abc"]
    answers = module("workers.process").alternate(workers, 1, 2, 0.0)
    assert "".join(turns) == "abc|||cbaabc"
    assert [[one["answer"] for one in found] for found in answers] == [["a", "b", "c"]] * 3


def test_each_round_begins_after_the_machine_is_prepared(module):
    turns: list[str] = []
    workers = [Noted(name, turns) for name in "ab"]
    module("workers.process").alternate(workers, 1, 1, 0.0, lambda: turns.append("-"))
    assert "".join(turns) == "-a-b||-b-a"


@pytest.mark.parametrize(
    ("full", "record", "reports", "provided"),
    [(True, 100, True, 1), (True, 0, True, 0), (True, 100, False, 0), (False, 100, True, 0)],
)
def test_free_memory_is_provided_before_measured_puts_alone(
    module, monkeypatch, full, record, reports, provided
):
    measure, machine = module("measure"), module("report.machine")
    calls: list[int] = []
    monkeypatch.setattr(machine, "reports_free_pages", lambda: reports)
    monkeypatch.setattr(machine, "provide_free_memory", lambda: calls.append(1))
    bench = object.__new__(measure.Bench)
    bench.sizes = measure.Sizes(full, 1, 0.0)
    bench._prepare(measure.Group("g", "", (), 1, 1, record=record))
    assert len(calls) == provided


def test_the_record_keeps_each_rounds_latencies_and_counts_all_units(module):
    rounds = module("workers.process").Rounds()
    answer = {"count": 10, "bytes": 80, "seconds": 2.0, "units": 3, "answer": 10, "cpu": 0.5}
    for number in (1.0, 4.0):
        rounds.add(answer | dict.fromkeys(("p50", "p99", "p99.9", "max"), number))
    found = rounds.record()
    assert found["latencies_us"]["p99"] == [1.0, 4.0]
    assert found["rates"] == [5.0, 5.0]
    assert found["cpu_us"] == 50_000
    assert rounds.units == 6


def test_columns_count_the_bytes_of_their_values_alone(module):
    needs("pyarrow")
    import pyarrow

    binary_bytes = module("workers.ours.read").binary_bytes
    bodies = [b"x" * 1024] * 1000
    for kind in (pyarrow.binary(), pyarrow.large_binary()):
        column = pyarrow.array(bodies, kind)
        assert column.nbytes > 1_024_000
        assert binary_bytes(column) == 1_024_000
        assert binary_bytes(column[10:13]) == 3 * 1024


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
    text = "\n".join(module("report.page").section("work", group))
    assert (
        "| put | 1 | 1,000 | 300 msg/s | 300–400 | 2.50 |  | 64 | 16 | **2.00** (1.00–3.00) |"
        in (text)
    )
    assert "- *put*: what put did" in text
    assert "- left out: *LMDB*: not here" in text
    assert "- goal of *put*: 3 × 4.9.3; measured 2.00: **not reached**" in text
    assert "- goal of *put*: 0.9 × C; measured 0.91: reached" in text
    assert "- limits of *put*: C 1.10 ×: at the limit" in text
    assert "50 % of the 3333333 ns that *put* takes" in text


def test_a_row_is_compared_with_the_one_that_it_names(module, group):
    group["rows"] += [
        row("4.9.3, places", "base", [50.0, 50.0, 50.0], beside="many"),
        row("many", "ours", [100.0, 150.0, 200.0], beside="4.9.3, places"),
        row("checked", "ours", [30.0, 20.0, 30.0]),
        row("LMDB", "peer", [10.0, 10.0, 10.0], beside="checked"),
        row("SQLite", "peer", [10.0, 10.0, 10.0], beside="not there"),
    ]
    report = module("report.page")
    text = report.section("work", group)
    last = {line.split(" | ")[0]: line.split(" | ")[-2:] for line in text if line[:2] == "| "}
    assert last["| many"] == ["**3.00** (2.00–4.00)", "**2.67** (1.50–3.00) |"]
    assert last["| LMDB"] == ["**0.05** (0.033–0.10)", "**3.00** (2.00–3.00) |"]
    assert last["| 4.9.3, places"] == ["**0.25** (0.17–0.50)", "**3.00** (2.00–4.00) |"]
    assert last["| SQLite"][1] == "**30.0** (30.0–40.0) |"
    assert "- *LMDB*: what LMDB did. *ours ÷ this* refers to *checked*" in text
    assert "- *many*: what many did. *÷ 4.9.3* refers to *4.9.3, places*" in text
    assert "- *SQLite*: what SQLite did" in text


def test_a_goal_over_several_rows_is_over_the_fastest(module, group):
    group["rows"][1]["goals"] = [[2.0, "4.9.3", "locked"]]
    text = module("report.page").section("work", group)
    assert "- goal of *put*: 2 × 4.9.3; measured 2.00: reached" in text
    group["rows"].append(row("locked", "base", [200.0, 250.0, 400.0]))
    text = module("report.page").section("work", group)
    assert "- goal of *put*: 2 × locked (the fastest of 2); measured 1.50: **not reached**" in text
    group["rows"][-1]["rates"] = [20.0, 20.0, 20.0]
    text = module("report.page").section("work", group)
    assert "- goal of *put*: 2 × 4.9.3 (the fastest of 2); measured 2.00: reached" in text


def test_a_goal_may_be_a_rate(module, group):
    group["rows"][1]["floors"] = [[300.0, "msg/s"], [10_000_000.0, "msg/s"], [2.5, "GB/s"]]
    group["rows"][2]["floors"] = [[3.0, "GB/s"]]
    text = module("report.page").section("work", group)
    assert "- goal of *put*: 300 msg/s; measured 300: reached" in text
    assert "- goal of *put*: 10,000,000 msg/s; measured 300: **not reached**" in text
    assert "- goal of *put*: 2.5 GB/s; measured 2.50: reached" in text
    assert "- goal of *C*: 3 GB/s; measured 2.50: **not reached**" in text


def test_a_value_near_a_goal_has_the_digits_that_differ(module):
    measured = module("report.page")._measured
    assert measured(1.996, 2.0) == "measured 1.996: **not reached**"
    assert measured(2.0, 2.0) == "measured 2.00: reached"
    assert measured(1.99, 2.0) == "measured 1.99: **not reached**"
    assert measured(2.0004, 2.0003) == "measured 2.0004: reached"
    assert measured(1.999999996, 2.0) == "measured 1.999999996: **not reached**"
    assert measured(9_999_999.75, 10_000_000.0) == "measured 9,999,999.750: **not reached**"
    assert measured(0.0951, 0.0952) == "measured 0.095: **not reached**"


def timed(**percentiles: Any) -> dict[str, Any]:
    return {"p99.9": [7.0] * 3, "max": [9.0, 900.0, 90.0], **percentiles}


def test_ratios_of_latencies_are_of_pairs(module, group):
    # Median over median would be 20 / 4 = 5.
    java, ours = timed(p50=[2.0] * 3, p99=[20.0, 10.0, 30.0]), timed(p50=[1.0] * 3)
    locked = timed(p50=[3.0] * 3, p99=[2.0, 10.0, 4.0])
    group["latency"] = True
    group["rows"] = [
        row("4.9.3", "base", [1.0] * 3, latencies_us=java),
        row("put", "ours", [1.0] * 3, latencies_us=ours | {"p99": [2.0, 10.0, 4.0]}),
        row("4.9.3, reentrant lock", "base", [1.0] * 3, latencies_us=locked),
    ]
    text = module("report.page").section("work", group)
    line = next(line for line in text if line.startswith("| put |"))
    assert "| 1.00 | 4.00 | 7.00 | 900 |" in line
    assert line.endswith("| **2.00** (2.00–2.00) | **7.50** (1.00–10.0) |")
    beside = "p50 **3.00** (3.00–3.00), p99 **1.00** (1.00–1.00)"
    assert f"- *4.9.3, reentrant lock* ÷ *put* (pairs): {beside}" in text


def test_the_page_names_what_does_not_fit_into_memory(module, group):
    report = module("report.page")
    record = module("report.record").Record(
        {"1": {"dirty limit": "4.0 GiB", "memory": "24 GiB"}}, {}
    )
    group |= {"run": "1", "axis": "messages", "at": 1, "note": "a note"}
    assert list(report._size_notes(group, record)) == []
    group |= {"written_bytes": 5 << 30, "read_bytes": 36 << 30}
    notes = " ".join(report._size_notes(group, record))
    assert "one unit of work wrote 5.0 GiB, more than the limit for dirty pages" in notes
    assert "have 36.0 GiB, more than the memory of 24 GiB" in notes
    group["piles_up"] = True
    table = "\n".join(report._curve_table({"curve": group}, record))
    assert "- `curve`: all rounds of the faster variant wrote 5.0 GiB" in table
    assert table.endswith("; a note")


def test_a_limit_far_above_ours_leaves_the_row_open(module, group):
    group["rows"][2]["rates"] = [600.0, 800.0, 600.0]
    text = module("report.page").section("work", group)
    assert "- limits of *put*: C 2.00 ×: below the limit" in text


def test_a_limit_that_names_a_row_limits_this_row_alone(module, group):
    group["rows"][2]["beside"] = "other"
    group["rows"].append(row("other", "ours", [1000.0, 1000.0, 1000.0]))
    text = "\n".join(module("report.page").section("work", group))
    assert "limits of *put*" not in text
    assert "- limits of *other*: C " in text


def test_of_several_limits_the_fastest_decides_and_threads_are_compared_with_their_like(
    module, group
):
    rates = [600.0, 800.0, 600.0]
    group["rows"].append(row("D", "limit", rates, threads="2"))
    assert "- limits of *put*: C 1.10 ×: at the limit" in module("report.page").section(
        "work", group
    )
    group["rows"][1]["threads"] = "put + dispatch"
    text = module("report.page").section("work", group)
    assert "- limits of *put*: C 1.10 ×, D 2.00 ×: below the limit" in text


def test_a_later_run_replaces_only_its_own_groups(module, group, tmp_path):
    read = module("report.record").Record.read
    record = read(tmp_path)
    record.begin({"when": "first"})
    record.add("a", group)
    record.add("b", group)
    record.write(tmp_path)
    again = read(tmp_path)
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
    plot = module("report.plot")
    plot.ratios({"work": group}, tmp_path / "bars.svg")
    bars = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert all(f"work: {name}" in bars for name in ("put", "C", "empty"))
    curve = {"a": group | {"axis": "queues", "at": 1}, "b": group | {"axis": "queues", "at": 9}}
    plot.curves(curve, tmp_path / "curves.svg")
    assert "queues" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


def test_the_page_shows_the_record_beside_it(module):
    record = module("report.record").Record.read(ROOT / "docs")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, group in record.groups.items():
        assert f"(`{name}`" in page
        for one in group["rows"]:
            assert f"| {one['name']} |" in page


@pytest.mark.parametrize(("bits", "taken"), [("111001", True), ("111110", False), ("", False)])
def test_a_host_that_takes_back_free_pages_is_a_fact(module, tmp_path, bits, taken):
    assert not module("report.machine").reports_free_pages(tmp_path)
    device = tmp_path / "virtio0"
    device.mkdir()
    (device / "features").write_text(bits + "0" * 58 + "\n")
    assert module("report.machine").reports_free_pages(tmp_path) == taken


def test_the_page_shows_what_sparks_side_gave(module, tmp_path):
    report = module("report.page")
    docs = tmp_path / "docs"
    docs.mkdir()
    docs.joinpath("benchmarks.json").write_bytes((ROOT / "docs" / "benchmarks.json").read_bytes())
    report.render(docs)
    assert "## Spark" not in docs.joinpath("benchmarks.md").read_text(encoding="utf-8")
    names = ("when", "size", "method", "processor", "cores", "memory", "kernel", "file system")
    facts = {name: f"<{name}>" for name in (*names, "dirty limit")}
    record = {"facts": facts, "parts": {"Reading": "| a table |", "Functions": "another"}}
    docs.joinpath(report.SPARK_RECORD).write_text(json.dumps(record), encoding="utf-8")
    report.render(docs)
    page = docs.joinpath("benchmarks.md").read_text(encoding="utf-8")
    assert "- <when>; <size>; <method>" in page
    assert page.endswith("### Reading\n\n| a table |\n\n### Functions\n\nanother\n")


def test_unknown_work_is_refused():
    with pytest.raises(AssertionError, match="unknown group nothing"):
        run("-m", "bench", "--only", "nothing")
