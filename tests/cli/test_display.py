"""Goal: no text of a store reaches a terminal, a log or a JSON line as anything but plain
characters: escape sequences, controls of direction and lone surrogates are written as escapes.
Method: stores whose topics, keys, properties, bodies and paths hold all of them; every command in
every form and encoding in a child process; every logger, error and warning of the package."""

from __future__ import annotations

import ast
import importlib
import io
import json
import logging
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import pyrocketstore
from pyrocketstore import errors
from pyrocketstore.cli.output import Output
from pyrocketstore.cli.spark_commands import SKIPPED_COLUMNS, _last_line
from pyrocketstore.cli.store_command import StoreGroup
from pyrocketstore.display import json_text, printable
from pyrocketstore.errors import StoreWarning
from pyrocketstore.record.message import MessageRefused
from support.sizes import SIZES

PACKAGE = Path(pyrocketstore.__file__).parent

CONTROLS = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0))]
DIRECTIONS = [*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
BREAKS = ["\u2028", "\u2029"]
SURROGATES = ["\ud800", "\udbff", "\udc80", "\udcff", "\udfff"]
HOSTILE = [*CONTROLS, *DIRECTIONS, *BREAKS, *SURROGATES]

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\u2028\x7f"
MARKUP = "[red]x [link=http] :bomb: [bold]"
PLAIN = "aé中😀 \\ [b]"


def hostile_in(text: str) -> set[str]:
    """The characters of a text that should have been escaped; tab and line feed separate."""
    return (set(text) & set(HOSTILE)) - {"\t", "\n"}


# ---- the function --------------------------------------------------------------------------------


@pytest.mark.parametrize("char", HOSTILE, ids=lambda char: f"{ord(char):04x}")
def test_one_character(char: str) -> None:
    code = ord(char)
    assert printable(f"a{char}b").isprintable()
    assert f"{code:x}" in printable(char) or char in "\t\n\r"
    line = json_text({f"k{char}": f"a{char}b"})
    assert line.isprintable()
    assert json.loads(line) == {f"k{char}": f"a{char}b"}
    strict = json_text({f"k{char}": f"é{char}b"}, ascii_only=True)
    assert strict.isascii()
    assert json.loads(strict) == {f"k{char}": f"é{char}b"}


def test_plain_text_stays_as_it_is() -> None:
    assert printable(PLAIN) == PLAIN
    assert json_text({"a": PLAIN, "n": [1, None, 0.5, True]}) == (
        '{"a":"aé中😀 \\\\ [b]","n":[1,null,0.5,true]}'
    )


def test_a_character_beyond_16_bits_is_a_pair_in_json() -> None:
    tag = "\U000e0041"
    assert json_text([tag]) == '["\\udb40\\udc41"]'
    assert json.loads(json_text([tag])) == [tag]
    assert printable(tag) == "\\U000e0041"


# ---- errors, warnings, log lines -----------------------------------------------------------------

PATH = f"/store/{EVIL}\udcff/0"
ERRORS = [
    errors.StoreError(PATH),
    errors.StoreStateError(PATH),
    errors.StoreIOError(5, "msync", PATH, 7),
    errors.StoreCorruptionError(PATH, 3, f"topic {EVIL}"),
    errors.DamagedMessageError(PATH, 3, f"topic {EVIL}", EVIL, 1, 5, 9),
    errors.UnknownTopicError(PATH, EVIL, EVIL),
    errors.StoreFormatError(f"{PATH}: no"),
    errors.DiskFullError(PATH, 0.95, 0.9),
    errors.PutError(EVIL, False, 0, PATH),
    errors.MissingExtraError(EVIL, "cli"),
    MessageRefused(EVIL, 1),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_shown_printable_and_keeps_what_it_holds(error: errors.StoreError) -> None:
    text = str(error)
    assert text.isprintable()
    assert "owned" in text
    if getattr(error, "path", None) is not None:
        assert error.path == PATH
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text


def test_a_warning_is_shown_printable() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"{PATH}: no", StoreWarning, stacklevel=1)
    assert "owned" in str(caught[0].message)
    assert str(caught[0].message).isprintable()


def package_modules() -> list[str]:
    """All modules, those of Spark where it is installed."""
    found = []
    for module in pkgutil.walk_packages([str(PACKAGE)], "pyrocketstore."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue
        found.append(module.name)
    return found


def test_every_log_line_is_printable() -> None:
    package_modules()
    names = [name for name in logging.root.manager.loggerDict if name.startswith("pyrocketstore.")]
    loggers = [logging.getLogger(name) for name in names]
    used = [logger for logger in loggers if f"{logger.name}".count(".")]
    assert len(used) > 15
    for logger in used:
        if not hasattr(importlib.import_module(logger.name), "LOG"):
            continue
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        try:
            logger.error("%s: %d lost", PATH, 7)
            logger.error(PATH)
            logger.error("plain %s", PLAIN)
        finally:
            logger.removeHandler(handler)
        first, second, third = stream.getvalue().splitlines()
        assert first == f"{printable(PATH)}: 7 lost"
        assert second == printable(PATH)
        assert third == f"plain {PLAIN}"


def test_loggers_are_made_in_one_place() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "display.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in {"getLogger", "basicConfig"}:
                wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []


# ---- the command ---------------------------------------------------------------------------------

ENCODINGS = {
    "utf-8": {"PYTHONIOENCODING": "utf-8:strict"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "LANG=C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


#: Runs the commands in its arguments one after the other, as each would run alone.
CHILD = """
import itertools, os, sys, traceback
from pyrocketstore.cli.app import app
for is_mark, words in itertools.groupby(sys.argv[1:], "NEXT".__eq__):
    if is_mark:
        continue
    code = 0
    try:
        app.main(list(words), prog_name="pyrocketstore")
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 99
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.write(stream.fileno(), b"\\0%d\\0" % code)
"""


def run_all(*commands: list[object], extra: dict[str, str] | None = None) -> list[Done]:
    """(exit code, output, errors) of commands, none of which may print anything hostile."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "LC_", "LANG"))}
    extra = extra or ENCODINGS["utf-8"]
    words = [os.fsencode(str(word)) for command in commands for word in (*command, "NEXT")]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words], capture_output=True, timeout=120, env=kept | extra
    )
    assert done.returncode == 0, done.stderr
    found = []
    outs, errs = done.stdout.decode("utf-8").split("\0"), done.stderr.decode("utf-8").split("\0")
    for out, code, err in zip(outs[::2], outs[1::2], errs[::2], strict=False):
        if "FORCE_COLOR" in extra:  # the colours of rich itself
            out, err = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (out, err))
        assert hostile_in(out) == set(), out
        assert hostile_in(err) == set(), err
        assert "Traceback" not in err, err
        found.append(Done(int(code), out, err))
    assert len(found) == len(commands)
    return found


class Done(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose directory, topics, keys, properties and bodies are hostile."""
    path = tmp_path_factory.mktemp("display") / f"st{EVIL}"
    with pyrocketstore.open(path, **SIZES) as opened:
        for i, text in enumerate((EVIL, MARKUP, PLAIN)):
            key = text.replace(" ", "_")
            opened.put(
                "orders",
                text.encode("utf-8"),
                tags=f"T{key}",  # a tag begins with no control character
                keys=key,
                properties={f"name{text}": text},
            )
            opened.put(f"topic{i}", text.encode("utf-8"))
        opened.put("orders", b"\xff\x1b[31m")
    queues = path / "consumequeue"
    for i, text in enumerate((EVIL, MARKUP, PLAIN)):
        (queues / f"topic{i}").rename(queues / text)
    (path / f"file{EVIL}").write_bytes(b"")
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_in_every_encoding(store: Path, encoding: str) -> None:
    commands: list[list[object]] = [
        ["info", store, "--files"],
        ["cat", store, "orders"],
        ["cat", store, EVIL],
        ["query", store, "orders", MARKUP.replace(" ", "_")],
        ["get", store, "0"],
        ["verify", store],
    ]
    commands += [[*command, "--json"] for command in commands]
    commands.append(["dump", store])
    found = run_all(*commands, extra=ENCODINGS[encoding])
    for command, done in zip(commands, found, strict=True):
        assert done.out + done.err
        # `verify` finds that queues were renamed, and what `cat` finds there is another topic's.
        assert done.code in (0, 1)
        assert not hostile_in(done.err)
        assert encoding == "utf-8" or done.out.isascii()
        if "--json" in command or "dump" in command:
            assert all(isinstance(json.loads(line), dict) for line in done.out.splitlines())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_parses_to_the_same_text(store: Path, encoding: str) -> None:
    commands = [["cat", store, "orders", "--json"], ["info", store, "--json"]]
    messages, facts = (
        [json.loads(line) for line in done.out.splitlines()]
        for done in run_all(*commands, extra=ENCODINGS[encoding])
    )
    assert len(messages) == 4
    for row, text in zip(messages, (EVIL, MARKUP, PLAIN), strict=False):
        assert row["body"] == text
        assert row["tags"] == "T" + text.replace(" ", "_")
        assert row["properties"][f"name{text}"] == text
    path, topics = facts[0]["store"]["path"], {row["queue"]["topic"] for row in facts[1:]}
    if encoding == "LANG=C":  # where a name of a file is text only in ASCII
        assert os.fsencode(path) == os.fsencode(store)
        assert os.fsencode(EVIL) in map(os.fsencode, topics)
    else:
        assert path == str(store)
        assert {EVIL, MARKUP, PLAIN} <= topics


def test_a_terminal_shows_markup_as_it_is(store: Path) -> None:
    extra = {**ENCODINGS["utf-8"], "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "400"}
    info, cat, get = run_all(
        ["info", store, "--files"], ["cat", store, "orders"], ["get", store, "0"], extra=extra
    )
    assert "┃" in info.out, "that was not rich"
    assert MARKUP in info.out
    assert printable(EVIL) in info.out
    assert MARKUP in cat.out
    assert printable(f"name{EVIL}") in get.out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_names_that_are_not_utf8(tmp_path: Path, encoding: str) -> None:
    root = tmp_path / "st\udcff"
    with pyrocketstore.open(root, **SIZES) as opened:
        opened.put("t", b"x")
    (root / "file\udc9b").write_bytes(b"")
    commands: list[list[object]] = [["info", root, "--files"], ["info", root, "--files", "--json"]]
    text, rows = run_all(*commands, extra=ENCODINGS[encoding])
    assert text.code == rows.code == 0
    for done in (text, rows):
        assert "\\udcff" in done.out
        assert "\\udc9b" in done.out
    assert json.loads(rows.out.splitlines()[0])["store"]["path"] == str(root)


def test_errors_of_the_command(tmp_path: Path, store: Path) -> None:
    damaged = tmp_path / f"st{EVIL}"
    log = damaged / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(b"x" * 100)
    (log / f"{100:020d}").mkdir()
    empty = tmp_path / f"empty{EVIL}"
    empty.mkdir()
    conf = tmp_path / f"c{EVIL}.conf"
    conf.write_text("mappedFileSizeCommitLog=12\x1b[31m\n\x1b]0;no=1\n")
    for done in run_all(*([command, damaged] for command in ("info", "dump", "verify"))):
        assert done.code == 1
        assert done.err.count("\n") == 1
        assert printable(str(damaged)) in done.err
    (done,) = run_all(["info", empty])
    assert done.code == 1
    assert "contains no store" in done.err
    commands: list[list[object]] = [
        ["info", tmp_path / f"none{EVIL}"],
        ["get", store, EVIL],
        [EVIL],
        [f"--{EVIL}"],
        ["info", store, f"--{EVIL}"],
        ["cat", store, "orders", "--queue", EVIL],
        ["export", store, tmp_path / EVIL, "--master", EVIL],
        ["report", EVIL, store],
    ]
    for done in run_all(*commands):
        assert done.code == 2
        assert done.err
    (done,) = run_all(["info", store, "--config", conf])
    assert printable(f"{conf}:1: mappedFileSizeCommitLog") in done.err


def test_a_warning_of_opening_is_printable(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "st", **SIZES) as opened:
        opened.put("t", b"x")
    conf = tmp_path / f"c{EVIL}.conf"
    conf.write_text("no\x1bKey=1\n")
    (done,) = run_all(["info", tmp_path / "st", "--config", conf])
    assert "unknown key" in done.err


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_tables_and_errors_of_the_commands_on_spark(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows that `export` and `report` print, and the error of a job that failed."""

    @click.command(cls=StoreGroup, invoke_without_command=True)
    def failing() -> None:
        output = Output(as_json=as_json)
        row = [*[EVIL] * 7, MARKUP, PATH]
        output.facts("export", {EVIL: EVIL, "runs": [EVIL]})
        output.table("skipped", SKIPPED_COLUMNS, [row])
        output.table("traffic", [EVIL, MARKUP], [[[EVIL], (PATH, None)]])
        raise click.ClickException(_last_line(f"first\npyrocketstore.errors.E: {PATH}\n  more"))

    with pytest.raises(SystemExit):
        failing.main([])
    out, err = capsys.readouterr()
    assert hostile_in(out) | hostile_in(err) == set()
    assert err == f"Error: {printable(PATH)}\n"
    if as_json:
        rows = [json.loads(line) for line in out.splitlines()]
        assert rows[0] == {"export": {EVIL: EVIL, "runs": [EVIL]}}
        assert rows[1]["skipped"]["path"] == PATH
        assert rows[2]["traffic"] == {
            EVIL.replace(" ", "_"): [EVIL],
            MARKUP.replace(" ", "_"): [PATH, None],
        }
    else:
        assert printable(PATH) in out
