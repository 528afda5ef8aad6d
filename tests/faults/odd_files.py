"""A store with an unexpected file at one of its paths, opened in every mode in a child, and
checked.

The name of a case is LAYOUT:PATH:ODDITY. ROCKETSTORE_FAULT=NAME examines that case alone;
ROCKETSTORE_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import select
import shutil
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyrocketstore

ONLY = os.environ.get("ROCKETSTORE_FAULT", "")
STEPS = ("read_only", "verify", "info", "dump", "snapshot")
#: Time limit of a case (s), after which it counts as hung.
TIMEOUT_S = 60
SIZES = {
    "mappedFileSizeCommitLog": 1 << 14,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeConsumeQueueExt": 1 << 14,
    "enableConsumeQueueExt": "true",
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
COUNT = 60
#: Optional paths, which a new store does not have.
ABSENT = (
    "abort",
    "config/topics.json.tmp",
    "config/topics.json.bak",
    "consumequeue/new",
    "consumequeue_ext/new",
    ".broken",
    "lost_messages",
)


# ---- odd things ----------------------------------------------------------------------------------
def link_to(target: str) -> Callable[[Path, Path], None]:
    return lambda path, outside: path.symlink_to(outside / target)


def device(name: str) -> Callable[[Path, Path], None]:
    return lambda path, _: path.symlink_to(name)


def fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path, outside: Path) -> None:
    """Bind a socket under a short name: the length of a socket's path is limited."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    assert stat.S_ISSOCK(path.lstat().st_mode), outside


def directory(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"x")


def empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def unreadable(path: Path, _: Path) -> None:
    path.write_bytes(b"x" * 100)
    path.chmod(0)


ODDITIES: dict[str, Callable[[Path, Path], None]] = {
    "link-to-text": link_to("victim"),
    "link-to-original": link_to("original"),
    "link-to-directory": link_to("folder"),
    "link-to-nothing": link_to("nothing"),
    "fifo": fifo,
    "socket": unix_socket,
    "directory": directory,
    "zero": device("/dev/zero"),
    "null": device("/dev/null"),
    "empty": empty,
}
if os.geteuid() != 0:
    ODDITIES["unreadable"] = unreadable
#: Oddities that an error need not name if they are harmless; the replaced file may be lost.
HARMLESS = {"empty"}


# ---- stores --------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """A store that is copied for each case.

    `home` contains its root, the other directories of its log and its broker.conf. `messages` are
    the physical offset and body of each message.
    """

    home: Path
    messages: list[tuple[int, bytes]]


def make_layout(home: Path, several: bool) -> Layout:
    """Make a store with all kinds of files, and with `several` log directories."""
    home.mkdir()
    root = home / "store"
    write_conf(home, several)
    messages = []
    with pyrocketstore.open(root, config=home / "broker.conf") as store:
        for number in range(COUNT):
            body = b"%d " % number + bytes(700)
            put = store.put(
                "orders" if number % 3 else "payments",
                body,
                queue_id=number % 2,
                keys=f"k{number}",
                tags="A",
            )
            messages.append((put.phy_offset, body))
        store.wait_dispatched()
    kept = root / ".broken" / "20200101000000000"
    kept.mkdir(parents=True)
    (kept / ("0" * 20)).write_bytes(b"kept")
    return Layout(home, messages)


def write_conf(home: Path, several: bool) -> None:
    lines = [f"{key}={value}" for key, value in SIZES.items()]
    lines.append("storePathRootDir=/nowhere")
    if several:
        lines.append(f"storePathCommitLog={home}/log1,{home}/log2")
    (home / "broker.conf").write_text("\n".join(lines) + "\n")


def paths_of(layout: Layout) -> list[str]:
    """Return the paths that are replaced, relative to `home`."""
    found = [str(path.relative_to(layout.home)) for path in sorted(layout.home.rglob("*"))]
    found.remove("store")
    logs = [layout.home / path for path in found if path.endswith("/" + "0" * 20)]
    absent = [f"store/{path}" for path in ABSENT]
    for log in {path.parent for path in logs if "log" in path.parent.name}:
        names = sorted(int(path.name) for path in log.iterdir())
        absent.append(f"{log.relative_to(layout.home)}/{names[-1] + (1 << 14):020d}")
    absent.append(f"store/consumequeue/orders/0/{2000:020d}")
    absent.append("store/consumequeue/orders/9")
    return sorted({*found, *absent})


class Case(NamedTuple):
    """A case, whose name is LAYOUT:PATH:ODDITY."""

    layout: str
    path: str
    oddity: str

    def __str__(self) -> str:
        return ":".join(self)


# ---- the campaign --------------------------------------------------------------------------------
class Child:
    """The process of odd_child.py, which is restarted after a case that hung."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, root: Path, conf: Path, steps: tuple[str, ...]) -> dict[str, dict[str, str]]:
        """Return the error of each step; raise AssertionError if the child hangs or dies."""
        if self._process is None:
            command = [sys.executable, str(Path(__file__).parent / "odd_child.py")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        case = {"root": str(root), "conf": str(conf), "steps": steps}
        print(json.dumps(case), file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            self.close()
            raise AssertionError(f"hung for {TIMEOUT_S} s" if not ready else "the child died")
        found: dict[str, dict[str, str]] = json.loads(line)
        return found

    def close(self) -> None:
        """Kill the child."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Campaign:
    """Runs and counts cases. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.layouts = {
            "plain": make_layout(path / "plain", False),
            "several": make_layout(path / "several", True),
        }
        self._child = Child()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def all(self) -> list[Case]:
        """Return every combination of layout, path and oddity."""
        return [
            Case(name, path, oddity)
            for name, layout in self.layouts.items()
            for path in paths_of(layout)
            for oddity in ODDITIES
        ]

    def some(self, seed: str, count: int) -> list[Case]:
        """Return `count` random cases, among them each oddity and each kind of path."""
        rng = random.Random(seed)
        cases = self.all()
        rng.shuffle(cases)
        chosen: dict[Case, None] = {}
        seen: set[str] = set()
        for case in cases:
            kinds = {case.oddity, kind_of(case.path)}
            if not kinds <= seen:
                chosen[case] = None
                seen |= kinds
        for case in cases[:count]:
            if len(chosen) < count:
                chosen[case] = None
        return list(chosen)

    def run(self, case: Case) -> None:
        """Run one case. Raises AssertionError for a failure."""
        home = self.path / "case"
        try:
            self._run(case, home, self.layouts[case.layout])
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_FAULT={case}")
            raise
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _run(self, case: Case, home: Path, layout: Layout) -> None:
        shutil.copytree(layout.home, home)
        write_conf(home, case.layout == "several")
        outside = self.path / "outside"
        path = home / case.path
        put_odd(path, outside, ODDITIES[case.oddity])
        odd = described(path)
        root, conf = home / "store", home / "broker.conf"
        try:
            victims, before = tree(outside), tree(home)
            found = self._child.run(root, conf, STEPS)
            self._judge(case, path, found)
            assert tree(home) == before, "reading has changed the store"
            found = self._child.run(root, conf, ("write",))
            self._judge(case, path, found)
            refused = bool(found["write"]["kind"])
            is_named = case.path in ("log1", "log2")  # named in broker.conf, so they may be links
            if not is_named or refused:
                assert tree(outside) == victims, "something outside of the store was changed"
            self._find_all(case, layout, home, odd, refused)
        finally:
            shutil.rmtree(outside, ignore_errors=True)

    def _judge(self, case: Case, path: Path, found: dict[str, dict[str, str]]) -> None:
        self.counts["cases"] += "write" in found
        is_other_conf = case[1:] == ("broker.conf", "link-to-text")
        for step, result in found.items():
            self.counts["refused" if result["kind"] else "taken"] += step != "descriptors"
            assert result["kind"] != "other", f"{step}: {result['text']}"
            if result["kind"] and case.oddity not in HARMLESS and not is_other_conf:
                # The command wraps its lines at the width of the terminal.
                text = "".join(result["text"].split())
                # A missing log file may have been in any of the log's directories.
                logs = ("log1", "log2") if case.path in ("log1", "log2") else ()
                names = [str(path), *(str(path.with_name(name)) for name in logs)]
                assert any(name in text for name in names), (
                    f"{step} names no file: {result['text']}"
                )

    def _find_all(
        self, case: Case, layout: Layout, home: Path, odd: tuple[int, str], refused: bool
    ) -> None:
        """Require that nothing is lost once the replaced file is restored."""
        path, hidden = home / case.path, self.path / "outside" / "original"
        taken = not os.path.lexists(path) or described(path) != odd
        if not taken:
            remove(path)
            if os.path.lexists(hidden):
                hidden.rename(path)
        write_conf(home, case.layout == "several")
        is_log = path.parent.name in ("commitlog", "log1", "log2")
        lost = {int(path.name)} if is_log and taken and not refused else set()
        if case.path in ("log1", "log2") and taken and not refused and hidden.is_dir():
            lost = {int(name) for name in os.listdir(hidden)}
        with pyrocketstore.open(home / "store", config=home / "broker.conf") as store:
            read: set[int] = set()
            for topic in ("orders", "payments") if refused else ():
                read |= {message.phy_offset for message in store.read(topic, None)}
            for phy_offset, body in layout.messages:
                if phy_offset - phy_offset % (1 << 14) in lost:
                    continue  # the message was in the replaced file
                message = store.get(phy_offset)
                assert message is not None, f"the message at {phy_offset} is lost"
                assert message.body == body
                assert not refused or phy_offset in read, f"no queue has message {phy_offset}"
                self.counts["messages"] += 1


def kind_of(path: str) -> str:
    """Return a path with its numbers replaced: one code path handles each kind."""
    return "".join("0" if char.isdigit() else char for char in path).replace("payments", "orders")


def put_odd(path: Path, outside: Path, make: Callable[[Path, Path], None]) -> None:
    """Put an oddity at a path, and move the replaced file outside."""
    outside.mkdir()
    (outside / "victim").write_bytes(b"precious text\n" * 4000)
    (outside / "folder").mkdir()
    for name in ("0" * 20, "victim", f"{1 << 14:020d}"):
        (outside / "folder" / name).write_bytes(b"precious text\n" * 100)
    if os.path.lexists(path):
        path.rename(outside / "original")
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path, outside)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def tree(top: Path) -> dict[str, tuple[int, str]]:
    """Return kind and content of everything in a directory."""
    return {str(path.relative_to(top)): described(path) for path in walk(top)}


def walk(top: Path) -> Iterator[Path]:
    for path in sorted(top.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)


def described(path: Path) -> tuple[int, str]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return stat.S_IFMT(mode), os.readlink(path)
    if stat.S_ISREG(mode) and os.access(path, os.R_OK):
        return stat.S_IFMT(mode), hashlib.sha256(path.read_bytes()).hexdigest()
    return stat.S_IFMT(mode), ""
