"""Ways to damage a store, which a seed determines."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PAGE_SIZE = 4096
UNIT_SIZE = 20
CHECKPOINT_SIZE = 4096
Way = Callable[[random.Random, Path], str]


class Damage(NamedTuple):
    """A text about the damage, and the names of its kinds."""

    text: str
    ways: tuple[str, ...]


def files(root: Path, *patterns: str) -> list[Path]:
    """Return the files of a store below `root`, sorted by name."""
    found = (path for pattern in patterns for path in root.glob(pattern))
    return sorted(path for path in found if path.is_file())


def used_size(path: Path) -> int:
    """Return the number of bytes up to the last one that is not zero; at least 1."""
    return max(1, len(path.read_bytes().rstrip(b"\0")))


def _used(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.read_bytes().strip(b"\0")]


LOG, QUEUE, INDEX = "commitlog/*", "consumequeue/*/*/*", "index/*"


def _overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _zero_rest(rng: random.Random, root: Path, path: Path, used: int) -> str:
    position = rng.randrange(used)
    _overwrite(path, position, bytes(path.stat().st_size - position))
    return f"zeros from byte {position} of {path.relative_to(root)}"


# ---- the log ------------------------------------------------------------------------------------


def tail_cut(rng: random.Random, root: Path) -> str:
    """Zero the last used file from some byte on, as after a crash of the machine."""
    path = _used(files(root, LOG))[-1]
    return _zero_rest(rng, root, path, used_size(path))


def tail_shortened(rng: random.Random, root: Path) -> str:
    """Cut a log file, so that it is shorter than the others."""
    path = rng.choice(files(root, LOG))
    size = rng.choice((0, 1, rng.randrange(path.stat().st_size)))
    os.truncate(path, size)
    return f"{path.relative_to(root)} has {size} bytes"


def log_file_removed(rng: random.Random, root: Path) -> str:
    """Remove one file of the log."""
    path = rng.choice(files(root, LOG))
    path.unlink()
    return f"{path.relative_to(root)} removed"


# ---- anywhere -----------------------------------------------------------------------------------


def zeroed_pages(rng: random.Random, root: Path) -> str:
    """Zero pages, as if the device had never written them."""
    texts = []
    for _ in range(rng.randrange(1, 3)):
        path = rng.choice(_used(files(root, LOG, LOG, QUEUE, INDEX)))
        page = rng.randrange((used_size(path) + PAGE_SIZE - 1) // PAGE_SIZE)
        size = min(PAGE_SIZE, path.stat().st_size - page * PAGE_SIZE)
        _overwrite(path, page * PAGE_SIZE, bytes(size))
        texts.append(f"page {page} of {path.relative_to(root)} zeroed")
    return ", ".join(texts)


def flipped_byte(rng: random.Random, root: Path) -> str:
    """Change one byte in the log, a queue, the index or the checkpoint."""
    pattern = rng.choice((LOG, LOG, QUEUE, INDEX, "checkpoint"))
    path = rng.choice(_used(files(root, pattern)) or _used(files(root, LOG)))
    position = rng.randrange(used_size(path))
    mask = rng.randrange(1, 256)
    _overwrite(path, position, bytes([path.read_bytes()[position] ^ mask]))
    return f"byte {position} of {path.relative_to(root)} xor {mask:#x}"


# ---- queues, index, checkpoint ------------------------------------------------------------------


def queues_removed(rng: random.Random, root: Path) -> str:
    """Remove all queues, those of a topic, or one queue."""
    depth = rng.choice(("consumequeue", "consumequeue/*", "consumequeue/*/*"))
    path = rng.choice(sorted(root.glob(depth)))
    shutil.rmtree(path)
    return f"{path.relative_to(root)} removed"


def queue_file_removed(rng: random.Random, root: Path) -> str:
    """Remove any file of a queue."""
    path = rng.choice(files(root, QUEUE))
    path.unlink()
    return f"{path.relative_to(root)} removed"


def queue_cut(rng: random.Random, root: Path) -> str:
    """Zero a queue file from some byte on, not always at a unit."""
    path = rng.choice(_used(files(root, QUEUE)))
    return _zero_rest(rng, root, path, used_size(path))


def queue_shortened(rng: random.Random, root: Path) -> str:
    """Cut a queue file, so that it is shorter than the others."""
    path = rng.choice(files(root, QUEUE))
    size = rng.choice((0, UNIT_SIZE, rng.randrange(path.stat().st_size)))
    os.truncate(path, size)
    return f"{path.relative_to(root)} has {size} bytes"


def index_removed(rng: random.Random, root: Path) -> str:
    """Remove the index, or one of its files."""
    path = rng.choice([root / "index", *files(root, INDEX)])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"{path.relative_to(root)} removed"


def index_shortened(rng: random.Random, root: Path) -> str:
    """Cut an index file, so that it is shorter than its geometry requires."""
    path = rng.choice(files(root, INDEX))
    size = rng.choice((0, 40, rng.randrange(path.stat().st_size)))
    os.truncate(path, size)
    return f"{path.relative_to(root)} has {size} bytes"


def checkpoint_changed(rng: random.Random, root: Path) -> str:
    """Remove, empty or zero the checkpoint, or make it older or newer than the store."""
    path = root / "checkpoint"
    what = rng.choice(("removed", "emptied", "zeroed", "older", "newer"))
    if what == "removed":
        path.unlink()
    elif what == "emptied":
        path.write_bytes(b"")
    elif what == "zeroed":
        path.write_bytes(bytes(CHECKPOINT_SIZE))
    else:
        step = rng.choice((1, 500, 4000, 10**7)) * (-1 if what == "older" else 1)
        data = path.read_bytes()
        times = [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)]
        fresh = b"".join(max(0, time + step).to_bytes(8, "big") for time in times)
        path.write_bytes(fresh + data[24:])
        what += f" by {abs(step)} ms"
    return f"checkpoint {what}"


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        tail_cut,
        tail_shortened,
        log_file_removed,
        zeroed_pages,
        flipped_byte,
        queues_removed,
        queue_file_removed,
        queue_cut,
        queue_shortened,
        index_removed,
        index_shortened,
        checkpoint_changed,
    )
}
WEIGHTS = (6, 1, 1, 4, 6, 2, 3, 4, 1, 2, 1, 2)


def damage_store(rng: random.Random, root: Path) -> Damage:
    """Damage a store in one way, sometimes in two."""
    ways = rng.choices(list(WAYS), WEIGHTS, k=1 if rng.random() < 0.75 else 2)
    if len(set(ways)) == 2 and {"queues_removed", "index_removed", "log_file_removed"} & set(ways):
        ways = ways[:1]  # the second may find no file left to damage
    ways = list(dict.fromkeys(ways))
    text = ", ".join(WAYS[way](rng, root) for way in ways)
    return Damage(text, tuple(ways))
