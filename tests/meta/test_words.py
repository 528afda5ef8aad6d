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
    r"mend(s|ed|ing)?|headless|wish(es|ed|ing)?|fulfil\w*|anew|hurt(s|ing)?", re.IGNORECASE
)
#: Phrases, which a line break and the marker of a comment may interrupt.
BANNED_PHRASE = re.compile(
    r"\bthe[\s#*/:]+face\b|\brows?[\s#*/:]+of[\s#*/:]+files\b", re.IGNORECASE
)


def banned(text: str) -> Iterator[tuple[int, str]]:
    """Yield (position, word or phrase) of everything in a text that must not be there."""
    for match in WORD.finditer(text):
        if BANNED_WORD.fullmatch(match[0]):
            yield match.start(), match[0]
    for match in BANNED_PHRASE.finditer(text):
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
        f"{name}:{text.count(chr(10), 0, position) + 1}: {word}" for position, word in banned(text)
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
    ],
)
def test_a_term_of_the_field_is_accepted(text: str) -> None:
    assert list(banned(text)) == []


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
