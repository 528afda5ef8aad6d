"""Goal: a body that is text is printed as text, any other one as its size, or escaped with --body.
Method: one store with bodies of both kinds; each command that prints messages, in each form."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import pyrocketstore
from pyrocketstore.cli.app import app
from support.sizes import SIZES

IS_TEXT = {
    b"plain": "plain",
    "äé中😀".encode(): "äé中😀",
    b'{\n\t"a": 1\r\n}\x0b\x0c': r'{\n\t"a": 1\r\n}\x0b\x0c',
    "\u202e\u2028\U000e0041".encode(): r"\u202e\u2028\U000e0041",
    "中".encode() * 100: "中" * 100,
    b"": "",
}
IS_NO_TEXT = {
    b"\xff\xfe": r"\xff\xfe",
    b"cut \xc3": r"cut \xc3",
    b"\xed\xa0\x80": r"\xed\xa0\x80",
    b"\xc0\xaf": r"\xc0\xaf",
    b"\xff": r"\xff",
    b"\x1b[31m": r"\x1b[31m",
    b"x" * 1000 + b"\0": "x" * 1000 + r"\x00",
    b"x" * 1000 + b"\xff": "x" * 1000 + r"\xff",
    **{b"a%c" % c: f"a\\x{c:02x}" for c in (*range(9), *range(0xE, 0x20), 0x7F)},
    **{f"{chr(c)}b".encode(): f"\\x{c:02x}b" for c in range(0x80, 0xA0)},
}
BODIES = IS_TEXT | IS_NO_TEXT
SIZES_OF_BODIES = {
    body: f"<{len(body)} byte{'' if len(body) == 1 else 's'}>" for body in IS_NO_TEXT
}
#: how each body is printed without `--body`
SHORT = IS_TEXT | SIZES_OF_BODIES

MANY = {
    "cat": ["cat", "STORE", "orders"],
    "follow": ["follow", "STORE", "orders", "--timeout", "0"],
    "query": ["query", "STORE", "orders", "k", "--max", "999"],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bodies") / "s"
    with pyrocketstore.open(path, **SIZES) as opened:
        for body in BODIES:
            opened.put("orders", body, keys="k")
    path.with_suffix(".conf").write_text("maxHashSlotNum=500\nmaxIndexNum=2000\n")
    return path


def run(store: Path, *words: object) -> str:
    words = (*(str(store) if word == "STORE" else str(word) for word in words),)
    done = CliRunner().invoke(app, [*words, "--config", str(store.with_suffix(".conf"))])
    assert done.exit_code == 0, done.output
    return done.stdout


def last_cells(text: str) -> list[str]:
    return sorted(row.split("\t")[-1] for row in text.splitlines()[1:])


@pytest.mark.parametrize("command", MANY)
def test_in_a_pipe(store: Path, command: str) -> None:
    assert last_cells(run(store, *MANY[command])) == sorted(SHORT.values())
    assert last_cells(run(store, *MANY[command], "--body")) == sorted(BODIES.values())


@pytest.mark.parametrize("command", MANY)
def test_json_is_lossless(store: Path, command: str) -> None:
    for words in (MANY[command], [*MANY[command], "--body"]):
        rows = [json.loads(line) for line in run(store, *words, "--json").splitlines()]
        assert {base64.b64decode(row["body_base64"]) for row in rows} == set(BODIES)


@pytest.mark.parametrize("command", MANY)
def test_on_a_terminal(store: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    ends = {f"  {text}" if len(text) <= 60 else f"  {text[:59]}…" for text in SHORT.values()}
    rows = run(store, *MANY[command]).splitlines()
    assert {end for end in ends if any(row.endswith(end) for row in rows)} == ends
    rows = run(store, *MANY[command], "--body").splitlines()
    ends = {f"  {text}" for text in BODIES.values()}
    assert {end for end in ends if any(row.endswith(end) for row in rows)} == ends


def test_get(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pyrocketstore.open(store, read_only=True, **SIZES) as opened:
        at = {message.body: message.phy_offset for message in opened.read("orders")}
    for body, whole in BODIES.items():
        assert f"\nbody\t{SHORT[body]}\n" in run(store, "get", "STORE", at[body])
        assert f"\nbody\t{whole}\n" in run(store, "get", "STORE", at[body], "--body")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    long = b"x" * 1000 + b"\0"
    assert "<1001 bytes>" in run(store, "get", "STORE", at[long])
    assert BODIES[long] in run(store, "get", "STORE", at[long], "--body")
