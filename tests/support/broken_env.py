"""Puts functions written in Python into an Env's table, so that a test can break any system call.

with broken(env, "msync", lambda original, *args: -errno.EIO):
    ...
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from pyrocketstore.system._env import EnvTable

I32 = ctypes.c_int
I64 = ctypes.c_int64
PATH = ctypes.c_char_p
MEMORY = ctypes.c_void_p

PROTOTYPES = {
    "open": ctypes.CFUNCTYPE(I32, PATH, I32, I32),
    "close": ctypes.CFUNCTYPE(I32, I32),
    "ftruncate": ctypes.CFUNCTYPE(I32, I32, I64),
    "fallocate": ctypes.CFUNCTYPE(I32, I32, I64, I64),
    "punch": ctypes.CFUNCTYPE(I32, I32, I64, I64),
    "mmap": ctypes.CFUNCTYPE(I32, I32, I64, I32, ctypes.POINTER(MEMORY)),
    "munmap": ctypes.CFUNCTYPE(I32, MEMORY, I64),
    "msync": ctypes.CFUNCTYPE(I32, MEMORY, I64),
    "madvise": ctypes.CFUNCTYPE(I32, MEMORY, I64, I32),
    "fdatasync": ctypes.CFUNCTYPE(I32, I32),
    "fsync": ctypes.CFUNCTYPE(I32, I32),
    "pread": ctypes.CFUNCTYPE(I64, I32, MEMORY, I64, I64),
    "pwrite": ctypes.CFUNCTYPE(I64, I32, MEMORY, I64, I64),
    "rename": ctypes.CFUNCTYPE(I32, PATH, PATH),
    "unlink": ctypes.CFUNCTYPE(I32, PATH),
    "mkdir": ctypes.CFUNCTYPE(I32, PATH, I32),
    "rmdir": ctypes.CFUNCTYPE(I32, PATH),
    "fsync_directory": ctypes.CFUNCTYPE(I32, PATH),
    "lock": ctypes.CFUNCTYPE(I32, I32),
    "file_size": ctypes.CFUNCTYPE(I64, I32),
    "now_ms": ctypes.CFUNCTYPE(I64),
    "monotonic_ns": ctypes.CFUNCTYPE(I64),
    "mlock": ctypes.CFUNCTYPE(I32, MEMORY, I64, I32),
    "munlock": ctypes.CFUNCTYPE(I32, MEMORY, I64),
    "lock_directory": ctypes.CFUNCTYPE(I32, PATH),
    "unlock": ctypes.CFUNCTYPE(I32, I32),
    "open_unnamed": ctypes.CFUNCTYPE(I32, PATH, I32),
    "link_unnamed": ctypes.CFUNCTYPE(I32, I32, PATH),
    "link": ctypes.CFUNCTYPE(I32, PATH, PATH),
    "link_count": ctypes.CFUNCTYPE(I64, I32),
    "syncfs": ctypes.CFUNCTYPE(I32, I32),
    "list_directory": ctypes.CFUNCTYPE(I64, PATH, I32, ctypes.POINTER(MEMORY)),
}


@contextlib.contextmanager
def broken(env: EnvTable, name: str, function: Callable[..., int]) -> Iterator[list[Any]]:
    """Call function(original, *arguments) instead of the table's; gives the list of arguments
    that it was called with."""
    prototype = PROTOTYPES[name]
    original = prototype(env.address(name))
    calls: list[Any] = []

    def replacement(*args: Any) -> int:
        calls.append(args)
        return function(original, *args)

    callback = prototype(replacement)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    before = env.replace(name, address)
    try:
        yield calls
    finally:
        env.replace(name, before)


def watched(env: EnvTable, name: str) -> contextlib.AbstractContextManager[list[Any]]:
    """Only record the calls."""
    return broken(env, name, lambda original, *args: original(*args))


def failing(env: EnvTable, name: str, code: int) -> contextlib.AbstractContextManager[list[Any]]:
    """Fail with that errno each time."""
    return broken(env, name, lambda original, *args: -code)
