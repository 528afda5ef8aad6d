"""The images that a power cut may leave of a moment: selections of the changes that are not
durable."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from device import PAGE, Captured, Change, File, Folder, Names, Node
from support.seed import SEED

SECTOR = 512
#: Survival of pages that were not flushed.
PAGE_CLASSES = ("old", "new", "mixed", "torn", "one lost", "one kept", "first ones")
#: Survival of names and lengths.
NAME_CLASSES = ("old", "new", "mixed", "first ones")
LENGTH_CLASSES = ("old", "new", "mixed")

Tree = dict[str, "bytes | Tree"]


class Choice(NamedTuple):
    """The classes of survival in an image."""

    pages: str
    names: str
    lengths: str

    def __str__(self) -> str:
        return f"pages {self.pages}, names {self.names}, lengths {self.lengths}"


def choose(rng: random.Random) -> Choice:
    """Draw a class of each kind."""
    pages = rng.choices(PAGE_CLASSES, (1, 1, 3, 5, 2, 2, 2))[0]
    return Choice(pages, rng.choice(NAME_CLASSES), rng.choice(LENGTH_CLASSES))


def image_of(moment: Captured, choice: Choice, rng: random.Random) -> Tree:
    """Return the directory after the power cut."""
    names: Names = {folder: dict(entries) for folder, entries in moment.names.items()}
    for change in survivors(moment.changes, choice.names, rng):
        change.apply(names)
    contents = _Contents(moment, choice, rng)

    def tree(folder: Folder) -> Tree:
        found: Tree = {}
        for name, node in sorted(names[folder].items()):
            found[name] = tree(node) if isinstance(node, Folder) else contents.of(node)
        return found

    contents.look_at(_files(names, moment.root))
    return tree(moment.root)


def survivors(changes: list[Change], how: str, rng: random.Random) -> list[Change]:
    """Return the changes of names that became durable."""
    if how == "old":
        return []
    if how == "new":
        return changes
    if how == "first ones":
        return changes[: rng.randrange(len(changes) + 1)]
    return [change for change in changes if rng.random() < 0.5]


def _files(names: Names, root: Folder) -> list[File]:
    found: list[File] = []
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, File):
            found.append(node)
        else:
            pending += [names[node][name] for name in sorted(names[node])]
    return found


class _Contents:
    """Return the bytes of each surviving file."""

    def __init__(self, moment: Captured, choice: Choice, rng: random.Random) -> None:
        self.moment = moment
        self.choice = choice
        self.rng = rng
        self.chance = rng.choice((0.1, 0.5, 0.9))
        self.survives: Callable[[int], bool] = lambda number: choice.pages == "new"
        self.seen = 0

    def look_at(self, files: list[File]) -> None:
        """Count the differing pages in the order of `of`."""
        dirty = 0
        for file in files:
            old, new = self.moment.files[file]
            dirty += sum(1 for at in _pages(old, new) if _differs(old, new, at))
        special = self.rng.randrange(dirty) if dirty else 0
        if self.choice.pages == "one lost":
            self.survives = lambda number: number != special
        elif self.choice.pages == "one kept":
            self.survives = lambda number: number == special
        elif self.choice.pages == "first ones":
            self.survives = lambda number: number < special
        elif self.choice.pages in ("mixed", "torn"):
            self.survives = lambda number: self.rng.random() < self.chance

    def of(self, file: File) -> bytes:
        old, new = self.moment.files[file]
        length = len(new)
        if self.choice.lengths == "old" or (
            self.choice.lengths == "mixed" and self.rng.random() < 0.5
        ):
            length = len(old)
        data = bytearray(old.ljust(-(-max(len(old), len(new)) // PAGE) * PAGE, b"\0"))
        for at in _pages(old, new):
            if not _differs(old, new, at):
                continue
            number, self.seen = self.seen, self.seen + 1
            if self.choice.pages == "torn" and self.rng.random() < 0.7:
                self._tear(data, new, at)
            elif self.survives(number):
                data[at : at + PAGE] = new[at : at + PAGE].ljust(PAGE, b"\0")
        return bytes(data[:length])

    def _tear(self, data: bytearray, new: bytes, page: int) -> None:
        """Make single sectors durable: up to one, from one on, or any."""
        cut = self.rng.randrange(PAGE // SECTOR + 1)
        kind = self.rng.randrange(3)
        for number in range(PAGE // SECTOR):
            survives = (number < cut, number >= cut, self.rng.random() < 0.5)[kind]
            if survives:
                at = page + number * SECTOR
                data[at : at + SECTOR] = new[at : at + SECTOR].ljust(SECTOR, b"\0")


def _pages(old: bytes, new: bytes) -> range:
    return range(0, max(len(old), len(new)), PAGE)


def _differs(old: bytes, new: bytes, at: int) -> bool:
    # Bytes behind a length read as zeros.
    a, b = old[at : at + PAGE], new[at : at + PAGE]
    return a != b and a.ljust(PAGE, b"\0") != b.ljust(PAGE, b"\0")


def all_cached(moment: Captured) -> Tree:
    """Return the directory after a kill of the process alone."""
    return image_of(moment, Choice("new", "new", "new"), random.Random(0))


def write(tree: Tree, path: Path) -> None:
    """Write an image to a directory."""
    os.mkdir(path)
    for name, content in tree.items():
        if isinstance(content, dict):
            write(content, path / name)
        else:
            (path / name).write_bytes(content)


def read(path: Path) -> Tree:
    """Read a directory as an image."""
    found: Tree = {}
    for entry in os.scandir(path):
        at = Path(entry.path)
        found[entry.name] = read(at) if entry.is_dir() else at.read_bytes()
    return found


def examine_images(
    captures: Sequence[Captured],
    folder: Path,
    count: int,
    examine: Callable[[Captured, Path, int], object],
) -> None:
    """Write images of each moment, and call `examine` with the moment, the image and its number.

    Image 0 is that of a kill, and `count` more are those of power cuts, drawn by the seed.
    """
    print(f"seed {SEED}: {len(captures)} moments")
    for number, moment in enumerate(captures):
        for image in range(count + 1):
            rng = random.Random(f"{SEED}/{number}/{image}")
            tree = all_cached(moment) if image == 0 else image_of(moment, choose(rng), rng)
            path = folder / f"image-{number}-{image}"
            write(tree, path)
            try:
                examine(moment, path, image)
            except BaseException as error:
                error.add_note(f"seed {SEED}: before {moment.call}, image {number}/{image}")
                raise
            shutil.rmtree(path)
