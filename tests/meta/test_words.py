"""Goal: prose and identifiers use the terms of the field, not words of the project's own.
Method: search the sources and pages for words and phrases that have only a private meaning here.
Canaries show that the search finds each of them, and that it accepts terms such as
`FileChannel.force`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())

#: Files and directories that are searched.
SEARCHED = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    ".github",
    "bench",
    "csrc",
    "docs",
    "examples",
    "pyrocketstore",
    "tests",
    "tools",
)
SUFFIXES = frozenset(".c .h .java .md .pxd .py .pyi .pyx .rs .sh .toml .yml".split())

#: A word of prose, or a part of an identifier in snake_case or CamelCase.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
BANNED_WORD = re.compile(
    r"mend(s|ed|ing)?|headless|wish(es|ed|ing)?|fulfil\w*|anew|hurt(s|ing)?|strange|sound|demands",
    re.IGNORECASE,
)


def phrases(*texts: str) -> re.Pattern[str]:
    """Return a pattern of phrases, which a line break and a comment's marker may interrupt."""
    return re.compile("|".join(text.replace(" ", r"[\s#*/:]+") for text in texts), re.IGNORECASE)


BANNED_PHRASE = phrases(
    r"\bthe face\b",
    r"\brows? of files\b",
    r"\bstands still\b",
    r"\bcomes? to lie\b",
    r"\bheads? of (?:a|the|each|every) (?:record|file)\b",
)

#: Python and pages keep to these, too; sources in other languages have some of them.
TEXTS = frozenset(".md .py .pyi .sh .toml .yml".split())
BANNED_WORD_OF_TEXTS = re.compile(r"told|tells|lies", re.IGNORECASE)
BANNED_PHRASE_OF_TEXTS = phrases(
    r"\b(?:go|goes|going|went|gone) on\b",
    r"\b(?<!there.)is (?-i:none)\b",
    r"\b(?<!there.)is no (?!longer|more|other)\w+",
)
#: The begin of a docstring, or of a comment on a name, that is a free relative clause.
OPENING = re.compile(r'(?:"""|#: )(?:What|Who|Whoever|Whatever)\b(?![^."]*\?)')


def banned(text: str, suffix: str = ".md") -> Iterator[tuple[int, str]]:
    """Yield (position, word or phrase) of everything in a text that must not be there."""
    is_text = suffix in TEXTS
    for match in WORD.finditer(text):
        word = match[0]
        if BANNED_WORD.fullmatch(word) or (is_text and BANNED_WORD_OF_TEXTS.fullmatch(word)):
            yield match.start(), word
    patterns = [BANNED_PHRASE, BANNED_PHRASE_OF_TEXTS, OPENING] if is_text else [BANNED_PHRASE]
    for pattern in patterns:
        for match in pattern.finditer(text):
            yield match.start(), " ".join(WORD.findall(match[0]))


def files_below(*names: str) -> list[Path]:
    """Return the text files among `names` and below them, except for this one."""
    found = {path for name in names for path in [ROOT / name, *(ROOT / name).rglob("*")]}
    return sorted(
        path
        for path in found
        if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)
    )


def findings(path: Path) -> list[str]:
    """Return `path:line: word` for each banned word in the name and in the text of a file."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    return [f"{name}:1: {word} in the file's name" for _, word in banned(name)] + [
        f"{name}:{text.count(chr(10), 0, position) + 1}: {word}"
        for position, word in banned(text, path.suffix)
    ]


def test_the_sources_use_the_terms_of_the_field() -> None:
    files = files_below(*SEARCHED)
    assert len(files) > len(SEARCHED), "the search has lost its files"
    assert not [finding for path in files for finding in findings(path)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Each part of the face is listed.", "the face"),
        ("# through the\n    # face of a store", "the face"),
        ("files in a row of files", "row of files"),
        ("of two rows\n/// of files", "rows of files"),
        ("def is_mending(self)", "mending"),
        ("class MendedQueue", "Mended"),
        ("HEADLESS_QUEUES = 2", "HEADLESS"),
        ("self.fulfil_piece(wanted)", "fulfil"),
        ("cdef int wish = 0", "wish"),
        ("the wishes of readers", "wishes"),
        ("it is built anew", "anew"),
        ("from tests.hurt_stores import zeroed", "hurt"),
        ("def _before(told: object)", "told"),
        ("the queue that lies behind it", "lies"),
        ("a sound store", "sound"),
        ("log_demands", "demands"),
        ("a strange name", "strange"),
        ("the log goes\n# on", "goes on"),
        ("a waiter that stands still", "stands still"),
        ("the head of a record", "head of a record"),
        ("queueId 5 is none", "is none"),
        ("the name is no possible offset", "is no possible"),
        ('"""What the store has left."""', "What"),
        ("#: Who waits for a flush.", "Who"),
    ],
)
def test_a_breach_is_found(text: str, word: str) -> None:
    assert [found for _, found in banned(text)] == [word]


@pytest.mark.parametrize(
    "text",
    [
        "4.9.3 calls FileChannel.force(false) and MappedByteBuffer#force.",
        "the interface and the surface of the package",
        "a recommended and amended text",
        "rows of the file, a row of the table",
        "there is no file, it is no longer open, there is none, and None is None",
        '"""Whatsoever."""',
        "# What a leader owes",
        "#: What is the name of the file?",
        "the head of the table, and head -1",
    ],
)
def test_a_term_of_the_field_is_accepted(text: str) -> None:
    assert list(banned(text)) == []


def test_some_rules_hold_only_for_texts() -> None:
    text = '"""What lies behind it is none, and goes on; the store is sound."""'
    assert [word for _, word in banned(text, ".pyx")] == ["sound"]
    assert {word for _, word in banned(text, ".py")} == {
        *("sound", "lies", "is none", "goes on", "What"),
    }


def test_a_finding_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "docs" / "mending.md"
    path.parent.mkdir()
    path.write_text("one\ntwo anew\nthe\nface\n")
    assert files_below("docs") == [path]
    assert findings(path) == [
        "docs/mending.md:1: mending in the file's name",
        "docs/mending.md:2: anew",
        "docs/mending.md:3: the face",
    ]
