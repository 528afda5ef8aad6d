"""Goal: each command says what it should, in each form, with the right exit code, and one line for
each error. Method: run the command in a child process on small stores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.dump import dump_lines

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
CONF = "maxHashSlotNum=500\nmaxIndexNum=2000\nlistenPort=10911\n"


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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "store"
    with pyrocketstore.open(path, **SIZES) as opened:
        for i in range(30):
            opened.put("orders", b"body %d" % i, queue_id=i % 2, tags=f"T{i % 3}", keys=f"k{i}")
    path.with_suffix(".conf").write_text(CONF)
    return path


def lines(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def conf(store: Path) -> tuple[str, str]:
    return "--config", str(store.with_suffix(".conf"))


def test_info(store: Path) -> None:
    text = run("info", store, *conf(store), "--files").stdout
    assert "stopped cleanly\tyes" in text
    assert "orders\t0\t0\t15\t15" in text
    assert f"{store}/commitlog/{0:020d}\t65536" in text
    facts, first, second = lines(run("info", store, "--json"))
    assert (facts["store"]["queue_count"], facts["store"]["stopped_cleanly"]) == (2, True)
    assert facts["store"]["earliest_message_timestamp"] == first["queue"]["first_store_time"]
    assert 0 < facts["store"]["commit_log_disk_ratio"] <= 1
    assert (first["queue"]["max_offset"], second["queue"]["queue_id"]) == (15, 1)


def test_cat(store: Path) -> None:
    rows = lines(run("cat", store, "orders", "--json"))
    assert [row["body"] for row in rows] == [f"body {i}" for i in range(30)]
    some = lines(run("cat", store, "orders", "--queue", 1, "--start", 5, "--count", 3, "--json"))
    assert [row["queue_offset"] for row in some] == [5, 6, 7]
    tagged = lines(run("cat", store, "orders", "--tags", "T1 || T2", "--json"))
    assert {row["tags"] for row in tagged} == {"T1", "T2"}
    assert len(run("cat", store, "orders").stdout.splitlines()) == 31
    assert "--start needs --queue" in run("cat", store, "orders", "--start", 1, code=2).stderr
    beyond = run("cat", store, "orders", "--queue", 0, "--start", 99, code=1)
    assert beyond.stderr.startswith("Error: offset 99 is outside of the queue")


def test_query_and_get(store: Path) -> None:
    (hit,) = lines(run("query", store, "orders", "k7", "--json", *conf(store)))
    assert (hit["body"], hit["keys"]) == ("body 7", "k7")
    assert run("query", store, "orders", "none", *conf(store), code=1).stdout.count("\n") == 1
    (again,) = lines(run("get", store, hit["msg_id"], "--json"))
    assert again == hit
    assert run("get", store, hit["phy_offset"], "--raw").stdout == "body 7"
    assert "k7" in run("get", store, hit["phy_offset"]).stdout
    assert "no message at 5" in run("get", store, 5, code=1).stderr
    assert "neither an offset nor" in run("get", store, "x", code=2).stderr


def test_a_query_never_guesses_the_geometry(store: Path) -> None:
    asked = run("query", store, "orders", "k7", code=0)
    # 500 slots and 2000 entries are the usual 1:4; another ratio must be told.
    assert "k7" in asked.stdout


def test_verify(store: Path, tmp_path: Path) -> None:
    assert run("verify", store, *conf(store)).stdout.startswith("ok\tyes")
    damaged = tmp_path / "store"
    subprocess.run(["cp", "-a", str(store), str(damaged)], check=True)
    log = damaged / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[90] ^= 1
    log.write_bytes(data)
    done = run("verify", damaged, *conf(store), code=1)
    assert done.stdout.startswith("ok\tno")
    assert str(log) in done.stdout


def test_a_dump_writes_control_characters_as_4_9_3s_driver_does(tmp_path: Path) -> None:
    text = 'a\b\f\n\r\t\x00\x1f\x7f"é'
    with pyrocketstore.open(tmp_path) as store:
        store.put("t", b"", properties={"name": text, "other": "\\b\\u0041"})
    (line,) = (one for one in dump_lines(tmp_path) if one.startswith('{"message"'))
    numbers = "".join(f"\\u{ord(c):04x}" for c in text[1:-2])
    assert f'"name":"a{numbers}\\"\\u00e9"' in line
    assert '"other":"\\\\b\\\\u0041"' in line
    assert json.loads(line)["message"]["properties"]["name"] == text


def test_dump(store: Path) -> None:
    rows = lines(run("dump", store, *conf(store)))
    assert list(rows[0]) == ["store"]
    assert sum("message" in row for row in rows) == 30


def test_mistakes_get_one_line(store: Path, tmp_path: Path) -> None:
    assert "does not exist" in run("info", tmp_path / "none", code=2).stderr
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    for command in ("info", "dump", "verify"):
        assert "holds no store" in run(command, tmp_path / "empty", code=1).stderr
    assert list((tmp_path / "empty").iterdir()) == []
    bad = tmp_path / "bad.conf"
    bad.write_text("mappedFileSizeCommitLog=12x\nnoSuchKey=1\n")
    warned = run("info", store, "--config", bad).stderr
    assert f"{bad}:1" in warned
    assert f"{bad}:2" in warned
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").write_bytes(b"x" * 100)
    (tmp_path / "store" / "commitlog" / f"{100:020d}").write_bytes(b"x" * 50)
    (tmp_path / "store" / "commitlog" / f"{200:020d}").write_bytes(b"x" * 100)
    failed = run("info", tmp_path / "store", code=1)
    assert failed.stderr.count("\n") == 1
    assert f"{100:020d}" in failed.stderr


def test_a_closed_pipe_is_quiet(store: Path) -> None:
    command = f"{sys.executable} -m pyrocketstore dump {store} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith('{"store"')


def test_help_and_version() -> None:
    text = run("--help").stdout
    for name in ("dump", "info", "cat", "query", "get", "verify"):
        assert name in text
    assert pyrocketstore.__version__ in run("--version").stdout


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['click'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'click' else real(n, *a)\n"
        "from pyrocketstore.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'pyrocketstore[cli]'" in done.stderr


@pytest.mark.parametrize("command", ["info", "cat", "verify", "dump", "query"])
@pytest.mark.parametrize("output", ["/dev/full", None])
def test_output_that_cannot_be_written(store: Path, command: str, output: str | None) -> None:
    """Also where the rest of what was to be written is dropped while the process ends."""
    words = {"cat": ("orders",), "query": ("orders", "k1")}.get(command, ())
    script = (
        f"{sys.executable} -m pyrocketstore {command} {store} {' '.join((*words, *conf(store)))}"
    )
    done = subprocess.run(
        ["sh", "-c", f"{script} {'>&-' if output is None else '> ' + output}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("time", ["99999999999999999999", "0001-01-01", "-9e99", "9999999-01-01"])
def test_times_that_no_clock_has(store: Path, time: str) -> None:
    for option in ("--begin", "--end"):
        assert time in run("query", store, "orders", "k1", option, time, code=2).stderr


def test_without_a_command_the_help_is_printed() -> None:
    assert "\n  -h, --help" in run(code=2).stderr


def test_queries_are_a_regular_file_of_text(store: Path, tmp_path: Path) -> None:
    assert "regular file" in run("dump", store, "--queries", "/dev/zero", code=1).stderr
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in run("dump", store, "--queries", tmp_path / "binary", code=1).stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"topic\xff\tk\t1\t0\t1", "not UTF-8"),
        (b"topic\tk\t32\t0\t9223372036854775808", "end is '9223372036854775808'"),
        (b"topic\tk\t32\t-9223372036854775809\t0", "begin is"),
        (b"topic\tk\t2147483648\t0\t0", "max_num is"),
        (b"topic\tk\t-1\t0\t0", "max_num is '-1'"),
        (b"topic\tk\t1_0\t0\t0", "max_num is '1_0'"),
        (b"topic\tk\t1\t0\tx", "end is 'x'"),
        (b"topic\tk\t1", "3 field(s)"),
        (b"topic\tk\t1\t0\t5\t6", "6 field(s)"),
        (b"", "1 field(s)"),
    ],
)
def test_each_line_of_queries_counts(store: Path, tmp_path: Path, line: bytes, reason: str) -> None:
    queries = tmp_path / "queries"
    queries.write_bytes(b"topic\tk\t1\t0\t5\r\n" + line + b"\ntopic\tk\t1\t0\t5\n")
    result = run("dump", store, "--queries", queries, code=1)
    assert f"{queries}:2: " in result.stderr and reason in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout
