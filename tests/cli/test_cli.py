"""Goal: each command prints the expected output in each form, with the right exit code, and one
line for each error. Method: run the command in a child process on small stores."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.verify.dump import dump_lines
from support.sizes import SIZES

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
    assert "--start requires --queue" in run("cat", store, "orders", "--start", 1, code=2).stderr
    beyond = run("cat", store, "orders", "--queue", 0, "--start", 99, code=1)
    assert beyond.stderr.startswith("Error: offset 99 is outside of queue orders/0")


@pytest.mark.slow
def test_cat_of_unknown_queues_and_topics(store: Path) -> None:
    for more in ((), ("--start", 5)):
        done = run("cat", store, "orders", "--queue", 99, *more, code=1)
        assert "topic 'orders' has no queue 99; its queues: 0, 1\n" in done.stderr
        assert not done.stdout
    done = run("cat", store, "zzz", "--queue", 99, code=1)
    assert "no topic 'zzz'" in done.stderr and "`pyrocketstore info`" in done.stderr
    for option in ("--queue", "--start"):
        assert option in run("cat", store, "orders", option, -1, code=2).stderr


@pytest.mark.slow
def test_export_refuses_an_unknown_option(store: Path, tmp_path: Path) -> None:
    words = ("export", "--spark", store, tmp_path / "lake", "-o", "topik=orders")
    done = run(*words, code=2)
    assert "--option 'topik=orders'" in done.stderr and "topicPattern" in done.stderr


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


@pytest.mark.parametrize("words", [("query",), ("query", "--json")], ids=len)
def test_a_query_whose_begin_is_after_its_end(store: Path, words: tuple[str, ...]) -> None:
    times = {"2026-01-02T00:00:00.000Z": "2026-01-01T00:00Z", "2026-01-02T00:00Z": "0"}
    for begin, end in times.items():
        bounds = ("--begin", begin, "--end", end)
        done = run(words[0], store, "orders", "k7", *words[1:], *bounds, *conf(store), code=2)
        text = "--begin 2026-01-02T00:00:00.000Z is after --end "
        assert text + ("0" if end == "0" else "2026-01-01T00:00:00.000Z") in done.stderr
        assert done.stdout == ""


def test_a_query_never_guesses_the_geometry(store: Path) -> None:
    asked = run("query", store, "orders", "k7", code=0)
    # 500 slots and 2000 entries are the usual 1:4; another ratio requires settings.
    assert "k7" in asked.stdout


def test_verify(store: Path, tmp_path: Path) -> None:
    printed = run("verify", store, *conf(store)).stdout.splitlines()
    assert [line.split("\t")[0] for line in printed] == ["verdict", "lost or wrong", "to do"]
    assert printed[0].startswith("verdict\tthe store is ok: ")
    assert printed[1:] == ["lost or wrong\tnothing", "to do\tnothing"]
    assert "\nok\tyes\n" in run("verify", store, *conf(store), "--details").stdout
    damaged = tmp_path / "store"
    subprocess.run(["cp", "-a", str(store), str(damaged)], check=True)
    log = damaged / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[90] ^= 1
    log.write_bytes(data)
    done = run("verify", damaged, *conf(store), code=1)
    printed = done.stdout.splitlines()
    assert printed[0].startswith("verdict\tthe store is damaged: ")
    assert printed[1].startswith(f"lost or wrong\tlog files {log.name} (its first message: 20")
    assert printed[2].startswith("to do\tthe log is damaged")
    assert "\nok\t" not in done.stdout
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


@pytest.mark.slow
def test_only_commands_with_two_forms_of_output_have_the_option_json(store: Path) -> None:
    assert "No such option" in run("dump", store, "--json", code=2).stderr
    for name in ("info", "cat", "query", "get", "verify"):
        assert "--json" in run(name, "--help").stdout
    assert "--json" not in run("dump", "--help").stdout


def test_mistakes_get_one_line(store: Path, tmp_path: Path) -> None:
    assert "does not exist" in run("info", tmp_path / "none", code=2).stderr
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    for command in ("info", "dump", "verify"):
        assert "contains no store" in run(command, tmp_path / "empty", code=1).stderr
    assert list((tmp_path / "empty").iterdir()) == []
    bad = tmp_path / "bad.conf"
    bad.write_text("mappedFileSizeCommitLog=12x\nnoSuchKey=1\n")
    warned = run("info", store, "--config", bad).stderr
    assert f"{bad}:1" in warned
    assert f"{bad}:2" in warned
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").write_bytes(b"x" * 100)
    (tmp_path / "store" / "commitlog" / f"{100:020d}").mkdir()
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
@pytest.mark.slow
def test_times_that_no_clock_has(store: Path, time: str) -> None:
    for option in ("--begin", "--end"):
        assert time in run("query", store, "orders", "k1", option, time, code=2).stderr


@pytest.mark.slow
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
@pytest.mark.slow
def test_each_line_of_queries_counts(store: Path, tmp_path: Path, line: bytes, reason: str) -> None:
    queries = tmp_path / "queries"
    queries.write_bytes(b"topic\tk\t1\t0\t5\r\n" + line + b"\ntopic\tk\t1\t0\t5\n")
    result = run("dump", store, "--queries", queries, code=1)
    assert f"{queries}:2: " in result.stderr and reason in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The body of the first message has a wrong CRC; recovery does not look at it."""
    root = tmp_path / "damaged"
    with pyrocketstore.open(root, **SIZES) as opened:
        for i in range(600):
            body = (b"%d " % i).ljust(500, b"x")
            opened.put("orders", body, queue_id=i % 2, keys=f"k{i}")
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"0 xxx") + 1] = ord("!")
    log.write_bytes(data)
    root.with_suffix(".conf").write_text(CONF)
    return root


@pytest.mark.slow
def test_a_damaged_body_is_never_shown_as_good(damaged: Path) -> None:
    with pyrocketstore.open(damaged, read_only=True, **SIZES) as opened:
        first, second = opened.get(0), next(iter(opened.read("orders", 1)))
        assert first is not None
        assert (first.is_crc_valid, second.is_crc_valid) == (False, True)
        assert not opened.query("orders", "k0")[0].is_crc_valid
    one = ("--count", 1)
    for words in (
        ("get", damaged, 0),
        ("query", damaged, "orders", "k0", *conf(damaged)),
        ("cat", damaged, "orders", *one),
    ):
        done = run(*words, code=1)
        assert "wrong CRC" in done.stdout
        assert "damaged body" in done.stderr
        (row,) = lines(run(*words, "--json", code=1))
        assert row["damage"] == "wrong CRC"
    assert "wrong CRC" in run("get", damaged, 0, "--raw", code=1).stderr
    good = run("cat", damaged, "orders", "--queue", 1, *one)
    assert "CRC" not in good.stdout + good.stderr
    (row,) = lines(run("cat", damaged, "orders", "--queue", 1, *one, "--json"))
    assert row["damage"] is None


def test_cat_goes_on_behind_damage(damaged: Path) -> None:
    (damaged / "commitlog" / f"{65536:020d}").unlink()
    ended = run("cat", damaged, "orders", "--json", code=1)
    assert "missing" in ended.stderr
    assert "--on-corrupt skip" in ended.stderr
    whole = run("cat", damaged, "orders", "--json", "--on-corrupt", "skip", code=1)
    rows = lines(whole)
    assert 0 < len(lines(ended)) < len(rows) < 600
    assert f"{600 - len(rows)} messages cannot be read, in 2 ranges" in whole.stderr
    assert "skipped: orders/0, queue offsets" in whole.stderr
    assert "1 of the messages have a damaged body" in whole.stderr
    assert "'ignore'" in run("cat", damaged, "orders", "--on-corrupt", "ignore", code=2).stderr
    # Also of a queue whose ends cannot be read.
    assert "are missing before this file" in run("info", damaged, code=1).stderr


def test_bodies_have_one_form(tmp_path: Path) -> None:
    """Whole in a pipe; in JSON both keys, whatever the body is."""
    bodies = [b"text" * 500, b"\xff\x00binary", b"", "ä\t日本".encode()]
    with pyrocketstore.open(tmp_path, **SIZES) as opened:
        for body in bodies:
            opened.put("orders", body)
        no_zlib = MessageExtBrokerInner("orders", b"no zlib", 0, sys_flag=1)
        opened.message_store.put_message(no_zlib)
    rows = lines(run("cat", tmp_path, "orders", "--json", code=1))
    assert [base64.b64decode(row["body_base64"]) for row in rows[:4]] == bodies
    assert [row["body"] for row in rows] == ["text" * 500, None, "", "ä\t日本", None]
    assert rows[4]["body_base64"] is None
    assert "inflate" in rows[4]["damage"]
    text = run("cat", tmp_path, "orders", code=1).stdout.splitlines()
    assert text[1].endswith("\t" + "text" * 500)
    assert text[2].endswith("\t<8 bytes>")
    assert "inflate" in text[5]
    assert "text" * 500 in run("get", tmp_path, 0).stdout


def test_names_of_properties_are_printed_as_they_are(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as opened:
        opened.put("orders", b"x", properties={"trace_id": "7", "store_time": "12"})
    text = run("get", tmp_path, 0).stdout
    assert "property trace_id\t7\n" in text
    assert "property store_time\t12\n" in text


def test_an_unknown_topic_is_an_error(store: Path) -> None:
    done = run("cat", store, "order", code=1)
    assert "did you mean 'orders'?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, mapped_file_size_commit_log=1 << 24) as opened:
        opened.put_many("orders", [b"x" * 1000] * 4000)
    command = [sys.executable, "-m", "pyrocketstore", "cat", str(tmp_path), "orders"]
    # Tests that run in the background have SIGINT ignored, and a child inherits that.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    process.stdout.readline()  # it prints, and waits for us with more than a pipe holds
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors


@pytest.mark.slow
def test_numbers_are_ascii_digits_of_64_bits(store: Path) -> None:
    for number in ("٣", "1_0", str(2**63), "9" * 5000, "-1"):
        done = run("cat", store, "orders", "--count", number, code=2)
        assert "Invalid value for '--count'" in done.stderr
    for option in ("--start", "--queue"):
        assert option in run("cat", store, "orders", option, "٣", code=2).stderr
    for number in ("٣", "0"):
        assert "'--max'" in run("query", store, "orders", "k1", "--max", number, code=2).stderr
    for number in ("٣", "1_0", ""):
        assert "neither an offset" in run("get", store, number, code=2).stderr
    everything = run("cat", store, "orders", "--count", str(2**63 - 1), "--json")
    assert len(lines(everything)) == 30
    assert len(lines(run("cat", store, "orders", "--count", "+3", "--json"))) == 3
    for time in ("٣", "1_0"):
        assert "neither Unix ms" in run("query", store, "orders", "k", "--end", time, code=2).stderr


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["cat", "--help"]])
@pytest.mark.slow
def test_a_full_device_gets_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pyrocketstore", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


def test_a_log_that_ends_before_valid_records(store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    log = next((copy / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"body 20")] ^= 1
    log.write_bytes(bytes(data))
    for words in (["cat", copy, "orders"], ["info", copy], ["verify", copy]):
        done = run(*words, code=1)
        assert "valid records follow" in done.stderr


@pytest.mark.slow
def test_a_search_that_finds_nothing_says_why(store: Path) -> None:
    def nothing(*words: object) -> str:
        done = run("query", store, *words, code=1)
        return " ".join(done.stderr.split())

    assert "did you mean 'orders'?" in nothing("ordrs", "k7")
    text = nothing("orders", "no-such-key", "--end", "2026-01-31T00:00:00Z")
    assert "no message of topic 'orders' has the key 'no-such-key'; searched: store times" in text
    assert "to 2026-01-31T00:00:00.000Z" in text
    assert "to the end" in nothing("orders", "no-such-key", "--json")


def test_get_looks_up_a_unique_key(tmp_path: Path) -> None:
    """Of Java's clients it has the length of an offset message id."""
    key, other = "7F000001" * 4, "a-key-of-another-client"
    with pyrocketstore.open(tmp_path, **SIZES, unique_key=True) as opened:
        opened.put("orders", b"made here", keys=key)  # as a key, which is not a UNIQ_KEY
        engine = opened.message_store
        for body, name in ((b"old", key), (b"new", key), (b"other", other)):
            message = pyrocketstore.MessageExtBrokerInner("other", body)
            message.properties_string = f"UNIQ_KEY\x01{name}\x02"
            assert engine.put_message(message).is_ok()
        made = next(iter(opened.read("orders"))).uniq_key
    assert run("get", tmp_path, key, "--raw").stdout == "new"
    assert run("get", tmp_path, other, "--raw").stdout == "other"
    assert run("get", tmp_path, made, "--raw").stdout == "made here"
    assert "none has it as its UNIQ_KEY" in run("get", tmp_path, "F" * 32, code=1).stderr
