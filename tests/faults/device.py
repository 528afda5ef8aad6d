"""A simulated device: the content that a directory would have after a power cut at this moment.

A `Device` replaces the functions of an Env's table. The store works on a real directory, which
stands for the page cache. For each file the device records the bytes and the length that the last
msync, fdatasync or fsync made durable, and for each directory the names that its last fsync made
durable. `capture` copies both states, and survivors.py derives from them what a power cut may
leave.

The device makes durable what POSIX promises, with one addition of Linux: an msync is an fdatasync
of a range, and so makes the length of the file durable too. A syncfs writes all files and names,
but the written bytes stay in the cache of the device, where a power cut loses them, until another
call flushes that cache: XFS behaves so if it has no metadata to write.

An fsync can fail (`fail_sync`) as in the kernel: once. The dirty pages of its range are clean
afterwards. Every reader still sees their bytes, but no later fsync writes them unless they are
written to again. Names and lengths belong to the journal of the file system: a later fsync writes
them. An open can fail for a while (`fail_opens`), as in a process without a free descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyrocketstore.system.env import Env
from support.broken_env import PROTOTYPES

PAGE = 4096
#: Calls that make data durable or change names: the power may be cut before each. Written bytes are
#: read from the real file. fallocate, punch and pwrite are not noted: they are called under a lock
#: for which a thread may wait while it holds the GIL, and a Python function would then deadlock.
NOTED = (
    "open close ftruncate mmap munmap msync fdatasync fsync rename unlink mkdir rmdir"
    " fsync_directory open_unnamed link_unnamed link syncfs"
).split()
#: Frequent calls, between which little changes: only some of their moments are considered.
FREQUENT = {"open", "close", "mmap", "munmap", "open_unnamed"}
FREQUENT_RATE = 0.1
#: Number of recent calls in the text of a failure.
EVENTS = 40
#: Calls that make data durable, each of which can be made to fail.
SYNCS = {"msync", "fdatasync", "fsync", "fsync_directory", "syncfs"}
#: A call that began so soon after the failed one may have passed the store's check before it (s).
GRACE_S = 0.05
#: Every function that was put into a table, kept forever: the garbage collector may free an Env
#: before mapped files that still call its table.
CALLBACKS: list[Any] = []


def _through(
    device: weakref.ref[Device], name: str, original: Callable[..., int]
) -> Callable[..., int]:
    """Return a function for the table that notes the call in its device, while that exists."""

    def call(*args: Any) -> int:
        found = device()
        return original(*args) if found is None else found._note(name, original, args)

    return call


class File:
    """An inode: its bytes on the device; those of the page cache are in the real file."""

    def __init__(self, path: str | None, durable: bytes, cached: bytes | None = None) -> None:
        self.durable = bytearray(durable)
        self._cached = cached
        self.path = path or ""
        # An own descriptor, so that an unlinked file can still be read.
        self._fd = -1 if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = -1 if path is None else os.fstat(self._fd).st_ino
        #: position -> bytes of each page whose fsync failed
        self.lost: dict[int, bytes] = {}
        #: the bytes that a syncfs has written to the cache of the device, None without
        self._written: bytearray | None = None

    def cached(self) -> bytes:
        """Return the bytes that readers see."""
        if self._fd < 0:
            return self._cached or b""
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Make [start, stop) and the length durable as they are in the page cache."""
        data = self.cached()
        stop = len(data) if stop is None else min(stop, len(data))
        del self.durable[len(data) :]
        self.durable += bytes(len(data) - len(self.durable))
        for at in list(self.lost):
            if data[at : at + PAGE] != self.lost[at]:
                del self.lost[at]  # written to since the failure
        for at in sorted(at for at in self.lost if start < at + PAGE and at < stop):
            self.durable[start:at] = data[start:at]
            start = at + PAGE
        if start < stop:
            self.durable[start:stop] = data[start:stop]

    def write_back(self) -> None:
        """Write all bytes to the cache of the device."""
        durable = self.durable
        self.durable = bytearray(durable)
        self.sync()
        self._written, self.durable = self.durable, durable

    def flush_cache(self) -> None:
        """Make durable what is in the cache of the device."""
        if self._written is not None:
            self.durable, self._written = self._written, None

    def drop(self, start: int = 0, stop: int | None = None) -> None:
        """Fail the fsync of [start, stop): its dirty pages become clean without being durable."""
        data = self.cached()
        stop = len(data) if stop is None else min(stop, len(data))
        for at in range(start - start % PAGE, stop, PAGE):
            page = data[at : at + PAGE]
            if page != bytes(self.durable[at : at + PAGE]).ljust(len(page), b"\0"):
                self.lost[at] = page

    def close(self) -> None:
        """Forget the page cache."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # the file has no name any more, and nothing reads it


class Folder:
    """A directory: the names that readers see, and those on the device."""

    def __init__(self) -> None:
        self.cached: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = File | Folder
Names = dict[Folder, dict[str, Node]]


class Change(NamedTuple):
    """A change of a name that may not be durable; `node` is None for a removed name.

    A rename also has its source: both names become durable together, or neither does.
    """

    folder: Folder
    name: str
    node: Node | None
    source: tuple[Folder, str] | None = None

    def touches(self, folder: Folder) -> bool:
        """Return True if an fsync of `folder` makes the change durable."""
        return folder is self.folder or (self.source is not None and folder is self.source[0])

    def apply(self, names: Names) -> None:
        """Apply the change to `names`."""
        if self.source is not None:
            folder, name = self.source
            if names[folder].get(name) is self.node:
                del names[folder][name]
        if self.node is None:
            names[self.folder].pop(self.name, None)
        else:
            names[self.folder][self.name] = self.node


class Captured(NamedTuple):
    """A moment: the durable state, the state of the page cache, and the store's promises.

    `files` has (durable, cached) bytes, `lost` the pages that no fsync writes any more. `promised`
    is the result of `Device.promises`. `call` is the call that follows the moment.
    """

    root: Folder
    names: Names
    changes: list[Change]
    files: dict[File, tuple[bytes, bytes]]
    call: str
    clock_ms: int
    promised: Any
    events: list[str]
    lost: dict[File, dict[int, bytes]]


class Device:
    """Records the durable state below `root`, a directory that is durable itself.

    Parameters
    ----------
    root : a directory whose initial content is durable
    seed : determines when `capture` is called, and the spontaneous writes of the kernel
    captures_max : number of moments that are kept, each with the same probability
    rate : share of all calls before which a moment is considered

    Threads: any; one lock covers each call and its note.
    """

    def __init__(self, root: Path, seed: str, *, captures_max: int = 0, rate: float = 1.0) -> None:
        self.root = str(root)
        self.top = Folder()
        self.rng = random.Random(seed)
        self.captures_max = captures_max
        self.rate = rate
        self.captures: list[Captured] = []
        self.clock_ms = 1_700_000_000_000
        #: returns the store's promises so far, at each capture
        self.promises: Callable[[], Any] = lambda: None
        #: number of mappings that the system allows: units of some or all queues go through pwrite
        self.max_map_count = random.Random(f"{seed} mappings").choice((0, 4, 65530))
        self.error: Exception | None = None
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.calls = 0
        #: number of calls that make data durable, and the number of the one that fails
        self.syncs = 0
        self.fail_sync = 0
        #: the numbers of those that flush the whole file system
        self.syncfs_numbers: list[int] = []
        #: a text on the failed call, and the calls that followed it
        self.failed = ""
        self.late: list[str] = []
        self._failed_at = 0.0
        #: number of opens, and the numbers of those that fail with EMFILE
        self.opens = 0
        self.fail_opens = range(0)
        self.refused_opens = 0
        self._looked_at = 0
        self._changes: list[Change] = []
        self._fds: dict[int, File] = {}
        self._maps: dict[int, tuple[File, int]] = {}
        self._lock = threading.RLock()
        self._load(self.root, self.top)

    def _load(self, path: str, folder: Folder) -> None:
        for entry in os.scandir(path):
            node: Node
            if entry.is_dir():
                node = Folder()
                self._load(entry.path, node)
            else:
                node = File(entry.path, Path(entry.path).read_bytes())
            folder.cached[entry.name] = folder.durable[entry.name] = node

    def inherit(self, moment: Captured) -> None:
        """Take over the durable state of `moment`, whose page cache the directory contains.

        This is the state after a kill: unflushed data of the killed process is still not durable.
        """
        new: dict[Node, Node] = {moment.root: self.top}

        def known(node: Node) -> Node:
            if node not in new:
                gone = Folder() if isinstance(node, Folder) else File(None, *moment.files[node])
                new[node] = gone
            return new[node]

        cached = {folder: dict(names) for folder, names in moment.names.items()}
        for change in moment.changes:
            change.apply(cached)
        pending = [moment.root]
        while pending:
            folder = pending.pop()
            ours = new[folder]
            assert isinstance(ours, Folder)
            for name, node in cached[folder].items():
                new[node] = ours.cached[name]
                if isinstance(node, Folder):
                    pending.append(node)
        for folder, names in moment.names.items():
            ours = known(folder)
            assert isinstance(ours, Folder)
            ours.durable = {name: known(node) for name, node in names.items()}
        for node in moment.files:
            ours_file = known(node)
            assert isinstance(ours_file, File)
            ours_file.durable = bytearray(moment.files[node][0])
            ours_file.lost = dict(moment.lost[node])
        for folder, name, node, source in moment.changes:
            at = known(folder)
            assert isinstance(at, Folder)
            moved = None
            if source is not None:
                begin = known(source[0])
                assert isinstance(begin, Folder)
                moved = (begin, source[1])
            self._changes.append(Change(at, name, None if node is None else known(node), moved))
        self.clock_ms = moment.clock_ms

    # ---- the table ------------------------------------------------------------------------------

    def attach(self, env: Env) -> Env:
        """Replace the functions of an Env's table from now on."""
        for name in NOTED:
            prototype = PROTOTYPES[name]
            original = prototype(env.address(name))
            callback = prototype(_through(weakref.ref(self), name, original))
            CALLBACKS.append(callback)
            env.replace(name, ctypes.cast(callback, ctypes.c_void_p).value)
        clock_ms = weakref.ref(self)
        clock = PROTOTYPES["now_ms"](lambda: getattr(clock_ms(), "clock_ms", 0))
        CALLBACKS.append(clock)
        env.replace("now_ms", ctypes.cast(clock, ctypes.c_void_p).value)
        env.keep = [self]  # type: ignore[attr-defined]
        env.dirty_bytes = lambda: 0  # type: ignore[method-assign]
        count = self.max_map_count
        env.max_map_count = lambda: count  # type: ignore[method-assign]
        owner = weakref.ref(env)

        def write_again_and_note(path: str) -> None:
            found = owner()
            assert found is not None
            Env.write_again(found, path)
            with self._lock:
                folder, name = self._find(path)
                file = folder.cached[name]
                assert isinstance(file, File), path
                file.lost.clear()  # each page was overwritten with its own bytes

        env.write_again = write_again_and_note  # type: ignore[method-assign]
        return env

    def _note(self, name: str, original: Callable[..., int], args: tuple[Any, ...]) -> int:
        """Make one call of the table, or let it fail."""
        handler = getattr(self, f"_{name}", None)
        began = time.monotonic()
        with self._lock:
            try:
                self.moment(name, args[0] if isinstance(args[0], bytes) else None)
                if name in SYNCS and self._fails(name, began, args):
                    return -errno.EIO
                if name in ("open", "fsync_directory") and self._refuses():
                    return -errno.EMFILE
                return int(handler(original, *args)) if handler else original(*args)
            except Exception as error:  # noqa: BLE001  it cannot get through the C code
                self.error = self.error or error
                return -errno.EIO

    def _fails(self, name: str, began: float, args: tuple[Any, ...]) -> bool:
        """Count a call that makes data durable; return True if it is the one that fails."""
        self.syncs += 1
        if name == "syncfs":
            self.syncfs_numbers.append(self.syncs)
        if self.failed and began > self._failed_at + GRACE_S:
            self.late.append(f"{name} {self._path_of(name, args)}")
        if self.syncs != self.fail_sync:
            return False
        if name == "msync":
            file, start = self._mapped_at(args[0])
            file.drop(start, _page_up(start + args[1]))
        elif name == "syncfs":
            for file in self._every_file():
                file.drop()
        elif name != "fsync_directory":
            self._fds[args[0]].drop()
        self.failed = f"{name} {self._path_of(name, args)}"
        self._failed_at = time.monotonic()
        return True

    def sync_fails_from_here(self, count: int) -> None:
        """Let a call fail, by its number from now on; earlier failures are cleared."""
        self.fail_sync = self.syncs + count if count else 0
        self.failed, self.late = "", []

    def _refuses(self) -> bool:
        self.opens += 1
        refused = self.opens in self.fail_opens
        self.refused_opens += refused
        return refused

    def _path_of(self, name: str, args: tuple[Any, ...]) -> str:
        if name == "fsync_directory":
            return os.path.relpath(os.fsdecode(args[0]), self.root)
        if name == "syncfs":
            return "."
        file = self._mapped_at(args[0])[0] if name == "msync" else self._fds[args[0]]
        return file.path

    def moment(self, call: str, path: bytes | None = None) -> None:
        """Note a moment at which the power may be cut and the kernel may write pages back."""
        with self._lock:
            self.calls += 1
            self.events.append(call if path is None else f"{call} {path.decode()}")
            rate = self.rate * FREQUENT_RATE if call in FREQUENT else self.rate
            if not self.captures_max or self.rng.random() >= rate:
                return
            if self.rng.random() < 0.05:
                self._write_back()
            # Each moment is kept with the same probability (reservoir sampling).
            self._looked_at += 1
            at = self.rng.randrange(self._looked_at)
            if len(self.captures) < self.captures_max:
                self.captures.append(self.capture(call))
            elif at < self.captures_max:
                self.captures[at] = self.capture(call)

    def _write_back(self) -> None:
        """Make some pages or some names durable, as a kernel may at any time."""
        files = self._reachable()
        if self._changes and self.rng.random() < 0.5:
            self._sync_names(self.rng.choice(self._changes).folder)
        elif files:
            file = self.rng.choice(files)
            pages = range(0, len(file.cached()), PAGE)
            for page in pages:
                if self.rng.random() < 0.5:
                    file.sync(page, page + PAGE)

    def take_captures(self) -> list[Captured]:
        """Return the moments that were kept since the last call."""
        with self._lock:
            taken, self.captures = self.captures, []
            return taken

    def capture(self, call: str) -> Captured:
        """Copy the state of the device."""
        with self._lock:
            names: Names = {}
            pending = [self.top]
            while pending:
                folder = pending.pop()
                if folder in names:
                    continue
                names[folder] = dict(folder.durable)
                nodes = [*folder.durable.values(), *folder.cached.values()]
                nodes += [c.node for c in self._changes if c.node is not None]
                pending += [node for node in nodes if isinstance(node, Folder)]
            files = {file: (bytes(file.durable), file.cached()) for file in self._reachable()}
            changes = [change for change in self._changes if change.folder in names]
            return Captured(self.top, names, changes, files, call, self.clock_ms,
                            self.promises(), list(self.events),
                            {file: dict(file.lost) for file in files})  # fmt: skip

    def _reachable(self) -> list[File]:
        """Return the files with a name in the page cache, on the device or in a pending change."""
        found: dict[Node, None] = {self.top: None}
        pending: list[Node] = [self.top, *(c.node for c in self._changes if c.node is not None)]
        while pending:
            node = pending.pop()
            found[node] = None
            if isinstance(node, Folder):
                inner = (*node.durable.values(), *node.cached.values())
                pending += [n for n in inner if n not in found]
        return [node for node in found if isinstance(node, File)]

    # ---- names ----------------------------------------------------------------------------------

    def _find(self, path: str) -> tuple[Folder, str]:
        """Return the directory of a path, and the last name."""
        relative = os.path.relpath(path, self.root)
        if relative.startswith(".."):
            raise ValueError(f"{path} is outside of {self.root}")
        *above, name = relative.split("/")
        folder = self.top
        for part in above:
            node = folder.cached[part]
            assert isinstance(node, Folder), path
            folder = node
        return folder, name

    def _change(self, change: Change) -> None:
        self._changes.append(change)
        if change.source is not None:
            del change.source[0].cached[change.source[1]]
        if change.node is None:
            del change.folder.cached[change.name]
        else:
            change.folder.cached[change.name] = change.node

    def _sync_names(self, folder: Folder) -> None:
        left = []
        for change in self._changes:
            if change.touches(folder):
                change.apply(_DurableNames())
            else:
                left.append(change)
        self._changes = left

    def _open(self, original: Callable[..., int], path: bytes, flags: int, mode: int) -> int:
        fd = original(path, flags, mode)
        if fd >= 0:
            text = os.fsdecode(path)
            folder, name = self._find(text)
            file = folder.cached.get(name)
            if file is None:
                file = File(text, b"")
                self._change(Change(folder, name, file))
            assert isinstance(file, File), text
            assert file.inode == os.fstat(fd).st_ino, f"{text} was changed behind the table"
            self._fds[fd] = file
        return fd

    def _open_unnamed(self, original: Callable[..., int], path: bytes, mode: int) -> int:
        fd = original(path, mode)
        if fd >= 0:
            self._fds[fd] = File(f"/proc/self/fd/{fd}", b"")
        return fd

    def _link_unnamed(self, original: Callable[..., int], fd: int, path: bytes) -> int:
        result = original(fd, path)
        if result >= 0:
            # The file becomes durable with its name, its bytes and length only with an fsync.
            self._change(Change(*self._find(os.fsdecode(path)), self._fds[fd]))
        return result

    def _link(self, original: Callable[..., int], source: bytes, target: bytes) -> int:
        result = original(source, target)
        if result >= 0:
            folder, name = self._find(os.fsdecode(source))
            file = folder.cached[name]
            self._change(Change(*self._find(os.fsdecode(target)), file))
        return result

    def _close(self, original: Callable[..., int], fd: int) -> int:
        self._fds.pop(fd, None)
        return original(fd)

    def _rename(self, original: Callable[..., int], source: bytes, target: bytes) -> int:
        result = original(source, target)
        if result >= 0:
            old = self._find(os.fsdecode(source))
            folder, name = self._find(os.fsdecode(target))
            self._change(Change(folder, name, old[0].cached[old[1]], old))
        return result

    def _unlink(self, original: Callable[..., int], path: bytes) -> int:
        result = original(path)
        if result >= 0:
            folder, name = self._find(os.fsdecode(path))
            self._change(Change(folder, name, None))
        return result

    _rmdir = _unlink

    def _mkdir(self, original: Callable[..., int], path: bytes, mode: int) -> int:
        result = original(path, mode)
        if result >= 0:
            folder, name = self._find(os.fsdecode(path))
            self._change(Change(folder, name, Folder()))
        return result

    def _fsync_directory(self, original: Callable[..., int], path: bytes) -> int:
        result = original(path)
        if result >= 0:
            text = os.fsdecode(path)
            if os.path.samefile(text, self.root):
                self._sync_names(self.top)
            elif text.startswith(self.root + "/"):
                folder, name = self._find(text)
                node = folder.cached[name]
                assert isinstance(node, Folder), text
                self._sync_names(node)
        return result

    # ---- bytes ----------------------------------------------------------------------------------

    def _mmap(self, original: Callable[..., int], fd: int, size: int, *rest: Any) -> int:
        result = original(fd, size, *rest)
        if result >= 0 and fd >= 0:
            self._maps[rest[1][0]] = (self._fds[fd], size)
        return result

    def _munmap(self, original: Callable[..., int], base: int, size: int) -> int:
        self._maps.pop(base, None)
        return original(base, size)

    def _msync(self, original: Callable[..., int], base: int, size: int) -> int:
        result = original(base, size)
        if result >= 0:
            self._flush_cache()
            file, start = self._mapped_at(base)
            file.sync(start, _page_up(start + size))
        return result

    def _mapped_at(self, address: int) -> tuple[File, int]:
        """Return the file that is mapped at an address, and the position in it."""
        for start, (file, length) in self._maps.items():
            if start <= address < start + length:
                return file, address - start
        raise ValueError("msync of memory that is not a file's")

    def _fsync(self, original: Callable[..., int], fd: int) -> int:
        result = original(fd)
        if result >= 0:
            self._flush_cache()
            self._fds[fd].sync()
        return result

    _fdatasync = _fsync

    def _syncfs(self, original: Callable[..., int], fd: int) -> int:
        # The real call would flush the file system of the machine, where that is supported.
        for file in self._every_file():
            file.write_back()
        for change in self._changes:
            change.apply(_DurableNames())
        self._changes = []
        return 0

    def _flush_cache(self) -> None:
        for file in self._every_file():
            file.flush_cache()

    def _every_file(self) -> list[File]:
        return list(dict.fromkeys([*self._reachable(), *self._fds.values()]))

    def release(self) -> None:
        """Close the descriptors, and raise the error of a noted call."""
        for file in self._reachable():
            file.close()
        if self.error is not None:
            raise self.error


class _DurableNames(dict[Folder, dict[str, Node]]):
    """Return the names on the device in the form of Change.apply."""

    def __missing__(self, folder: Folder) -> dict[str, Node]:
        return folder.durable


def _page_up(position: int) -> int:
    return -(-position // PAGE) * PAGE
