"""Makes the n-th system call of a kind fail, return short or kill the process, below an Env.

`inject.c` is csrc/env_posix.c over system calls that count. No Python runs in a call, so a store
under injection has its normal speed.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from pyrocketstore.system.env import Env

ROOT = Path(__file__).parent.parent.parent

#: Calls in the order of the enum in inject.c.
CALLS = (
    "open", "ftruncate", "fallocate", "punch", "mmap", "msync", "fdatasync", "fsync",
    "fsync_directory", "pread", "pwrite", "rename", "unlink", "mkdir", "open_unnamed", "link",
    "syncfs",
)  # fmt: skip
ANY = "any"
#: The fields of rs_env in order.
TABLE = (
    "open", "close", "ftruncate", "fallocate", "punch", "mmap", "munmap", "msync", "madvise",
    "fdatasync", "fsync", "pread", "pwrite", "rename", "unlink", "mkdir", "rmdir",
    "fsync_directory", "lock", "file_size", "now_ms", "monotonic_ns", "mlock", "munlock",
    "lock_directory", "unlock",
    "open_unnamed", "link_unnamed", "link", "link_count", "syncfs",
    "list_directory",
)  # fmt: skip
ERROR, SHORT, KILL = range(3)
FOREVER = 1 << 60


class _Report(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char * 512),
        ("thread", ctypes.c_char * 32),
        ("size", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("is_zero", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("again", ctypes.c_int),
        ("removed", ctypes.c_int),
    )


class Hit(NamedTuple):
    """The first call that was hit: its path, its thread and its size.

    `is_zero`: it was a pwrite of zeros; `again`: a later call of the kind in the same directory
    passed; `removed`: the file was deleted later.
    """

    path: str
    thread: str
    size: int
    position: int
    is_zero: bool
    again: bool
    removed: bool


@functools.cache
def build() -> str:
    """Compile inject.c; return the path of the library, which is deleted with this process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = f"{folder}/inject.so"
    source = str(Path(__file__).parent / "inject.c")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *flags, f"-I{ROOT / 'csrc'}", source, "-o", target], check=True)
    return target


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.inject_arm.argtypes = (
        ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_char_p,
    )  # fmt: skip
    library.inject_count.restype = ctypes.c_long
    library.inject_report.restype = ctypes.POINTER(_Report)
    return library


def kind_of(call: str) -> int:
    """Return the number of a call in inject.c."""
    return len(CALLS) if call == ANY else CALLS.index(call)


class Faults:
    """The counters and the fault of this process.

    Parameters
    ----------
    path : of a library that another process built
    """

    def __init__(self, path: str = "") -> None:
        self.library = _load(path or build())
        self.disarm()

    def env(self) -> Env:
        """Return an Env whose calls are counted and can be hit."""
        table = (ctypes.c_void_p * len(TABLE))()
        self.library.rs_env_posix(table)
        env = Env()
        for name, address in zip(TABLE, table, strict=True):
            env.replace(name, address)
        env.dirty_bytes = lambda: 0  # type: ignore[method-assign]
        env.max_map_count = lambda: 4  # type: ignore[method-assign]
        return env

    def arm(
        self,
        call: str,
        first: int = FOREVER,
        last: int = FOREVER,
        *,
        action: int = ERROR,
        errno: int = 0,
        only: str = "",
    ) -> None:
        """Reset the counters, and hit the calls `first` to `last` (from 1) of a kind.

        With `only`, just the calls whose path contains it count.
        """
        kind = kind_of(call)
        self.library.inject_arm(kind, first, last, action, errno, only.encode())

    def no_unnamed_files(self, *, on: bool) -> None:
        """Disable or enable files without a name (O_TMPFILE) in the file system."""
        self.library.inject_no_unnamed(int(on))

    def disarm(self) -> None:
        """Let every call pass."""
        self.library.inject_disarm()

    def count(self, call: str) -> int:
        """Return the number of calls of a kind since `arm`."""
        return int(self.library.inject_count(kind_of(call)))

    @property
    def fired(self) -> int:
        """Return the number of calls that were hit since `arm`."""
        return int(self.library.inject_fired())

    def hit(self) -> Hit:
        """Return the first call that was hit."""
        r = self.library.inject_report().contents
        flags = map(bool, (r.is_zero, r.again, r.removed))
        return Hit(r.path.decode(), r.thread.decode(), r.size, r.position, *flags)
