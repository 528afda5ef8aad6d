"""LockFile: the lock that makes one store of one process the owner of its directories."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreFsyncError, StoreIOError, StoreStateError
from pyrocketstore.system.env import O_CREAT, O_RDWR, Env, parent_directory
from pyrocketstore.system.signal_shield import GIVE_UP_SECONDS, abandonment, check_abandoned

__all__ = ["LockFile", "store_lock"]

LOCK_TEXT = b"lock"
#: How often `take` repeats when the file is replaced between its opening and its lock.
TRIES_MAX = 20
#: Interval of checks whether an interrupted opening has ended (s).
PAUSE_S = 0.002

_Identity = tuple[int, int]


class _Owner:
    """The owner of a directory. While the store is unused, `give_up` releases the directory; an
    abandoned call that took it releases it soon."""

    def __init__(self) -> None:
        self.is_unused: Callable[[], bool] = lambda: False
        self.give_up: Callable[[], None] = lambda: None
        self.is_abandoned: Callable[[], bool] = lambda: False


class LockFile:
    """The lock of a store.

    Parameters
    ----------
    env : Env
    path : str, the file; its directory is made by `take`
    directories : other directories that the store writes to; missing ones are skipped
    guarded : directories below which nothing is written through a symbolic link while the lock is
        held
    on_fsync_failure : a method, called with the first error of an fsync while the lock is held; no
        fsync follows it. It is referred to weakly

    Three locks exclude three kinds of other owners:

    - a record lock on byte 0 of the file, which 4.9.3 takes too; an open file description lock
      where the kernel has it, so that closing another descriptor of the file does not release it;
    - an flock of each directory, which remains when the file is deleted, and covers a directory
      that two stores share;
    - a registry of directories in this process, for file systems without flock.

    A forked child closes its copies of the descriptors and has no lock.

    Threads: any. Source: RocketMQ 4.9.3 DefaultMessageStore#start.
    Differs: must be taken before anything in the directory is touched; locks directories too.
    """

    _registry: ClassVar[dict[_Identity, _Owner]] = {}
    _held: ClassVar[weakref.WeakSet[LockFile]] = weakref.WeakSet()

    def __init__(
        self,
        env: Env,
        path: str,
        directories: Sequence[str] = (),
        guarded: Sequence[str] = (),
        on_fsync_failure: Callable[[StoreFsyncError], None] | None = None,
    ) -> None:
        self._env = env
        self.path = path
        self._directories = tuple(dict.fromkeys((parent_directory(path), *directories)))
        self._guarded = tuple(guarded)
        self._watcher = None if on_fsync_failure is None else weakref.WeakMethod(on_fsync_failure)
        self._process_id = -1
        self._owner = _Owner()
        # Compiled code fills these lists, so that no signal handler can raise before it is done.
        self._file_fds: list[int] = []
        self._folder_fds: list[int] = []
        self._folders: dict[_Identity, str] = {}

    @property
    def is_held(self) -> bool:
        """True while this object has the lock (never in a forked child)."""
        return bool(self._file_fds) and self._process_id == self._env.process_id()

    def descriptors(self) -> dict[int, tuple[int, str]]:
        """Return {device: (descriptor, path) of a locked directory}; empty without the lock."""
        if not self.is_held:
            return {}
        found = zip(self._folder_fds, self._folders.items(), strict=False)
        return {device: (fd, path) for fd, ((device, _), path) in found}

    def take(self) -> None:
        """Take the lock. Raises StoreStateError when one of the directories is already open.

        Waits shortly for the end of an interrupted opening of this process.
        """
        if self.is_held:
            raise self._in_use(self._directories[0], by_this=True)
        self._env.make_directories(self._directories[0])
        self._process_id = self._env.process_id()
        self._owner.is_abandoned = abandonment()
        self._held.add(self)
        try:
            self._lock_directories()
            self._lock_file()
            self._env.pwrite_all(self._file_fds[0], LOCK_TEXT, 0, self.path)
            self._env.fsync(self._file_fds[0], self.path)
        except BaseException:
            self._release_all()
            raise
        self._env.guard(self._guarded)
        self._env.pin({path: identity for identity, path in self._folders.items()})
        if self._watcher is not None:
            self._env.watch_fsyncs(self._watcher)

    def release(self) -> None:
        """Release the lock; no-op without it, and in a forked child."""
        if self.is_held:
            self._env.unguard(self._guarded)
            self._env.unpin(self._folders.values())
            if self._watcher is not None:
                self._env.unwatch_fsyncs(self._watcher)
            self._release_all()

    def release_on_demand(self, is_unused: Callable[[], bool], give_up: Callable[[], None]) -> None:
        """Register calls for `take` of another lock of this process: while `is_unused()` returns
        True, it calls `give_up`, which returns once this lock is released."""
        self._owner.is_unused, self._owner.give_up = is_unused, give_up

    def check(self) -> None:
        """Raise StoreStateError when the lock has lost its effect: the file or a directory was
        deleted, moved or replaced, and another process may have taken its lock."""
        if not self.is_held:
            return
        if self._env.identity_of(self._file_fds[0], self.path) != self._env.identity_at(self.path):
            raise StoreStateError(
                f"{self.path} was deleted or replaced while the store was open: another process may"
                " be writing to the store; close it and open it again"
            )
        for identity, directory in list(self._folders.items()):
            if self._env.identity_at(f"{directory}/.") != identity:
                raise StoreStateError(
                    f"{directory} was moved or replaced while the store was open; close the store"
                    " and open it again"
                )

    def _lock_directories(self) -> None:
        for directory in self._directories:
            identity = self._env.identity_at(f"{directory}/.")
            if identity is None or identity in self._folders:
                continue  # missing, or a second name of a directory
            self._folders[identity] = directory
            self._register(identity, directory)
            if not self._env.lock_directory(directory, self._folder_fds):
                raise self._in_use(directory)

    def _register(self, identity: _Identity, directory: str) -> None:
        collected = False
        until_ns = self._env.monotonic_ns() + int(GIVE_UP_SECONDS * 1e9)
        while (owner := self._registry.setdefault(identity, self._owner)) is not self._owner:
            if owner.is_unused():
                owner.give_up()
            elif owner.is_abandoned() and self._env.monotonic_ns() < until_ns:
                check_abandoned()
                self._env.sleep(PAUSE_S)
            elif collected:
                raise self._in_use(directory, by_this=True)
            else:  # only a reference cycle or an exception may refer to that store
                gc.collect()
                collected = True

    def _in_use(self, directory: str, *, by_this: bool = False) -> StoreStateError:
        """Return the error for a directory that has an owner; it names the owner's process id."""
        owners = {self._env.process_id()} if by_this else set()
        for path in () if by_this else (f"{directory}/.", self.path):
            identity = self._env.identity_at(path)
            owners |= set() if identity is None else self._env.lock_owners(identity[1])
        owner = "this process" if by_this else "another process"
        number = f" (process id {owners.pop()})" if len(owners) == 1 else ""
        return StoreStateError(f"{directory} is already open by {owner}{number}")

    def _lock_file(self) -> None:
        env = self._env
        for _ in range(TRIES_MAX):
            env.open(self.path, O_RDWR | O_CREAT, into=self._file_fds)
            fd = self._file_fds[0]
            if not env.lock(fd, self.path):
                raise self._in_use(self._directories[0])
            if env.identity_of(fd, self.path) == self._env.identity_at(self.path):
                return
            env.close(self._file_fds.pop(), self.path)
        raise StoreStateError(f"{self.path}: another process keeps replacing the lock file")

    def _release_all(self) -> None:
        """Release everything. Can be called again after an interruption at any point."""
        try:
            for fd in (*self._file_fds, *self._folder_fds):
                self._env.unlock(fd, self.path)
        finally:
            for identity in list(self._folders):
                if self._registry.get(identity) is self._owner:
                    del self._registry[identity]
            self._folders.clear()
            self._owner = _Owner()  # the old one may refer to the store
            self._close()

    def _close(self) -> None:
        error = None
        for fds in (self._folder_fds, self._file_fds):
            while fds:
                try:
                    self._env.close(fds.pop(), self.path)
                except StoreIOError as failed:
                    error = error or failed
        self._held.discard(self)
        if error is not None:
            raise error

    def _after_fork(self) -> None:
        """In a forked child: close the copies, which would keep the parent's locks alive."""
        self._folders.clear()
        self._close()


def store_lock(
    env: Env,
    config: MessageStoreConfig,
    on_fsync_failure: Callable[[StoreFsyncError], None] | None = None,
) -> LockFile:
    """Return the lock of a store: of its root and of all directories of its log."""
    return LockFile(
        env,
        os.path.join(config.store_path_root_dir, "lock"),
        config.all_commit_log_paths,
        config.named_directories,
        on_fsync_failure,
    )


def _drop_inherited() -> None:
    LockFile._registry.clear()
    for lock in list(LockFile._held):
        lock._after_fork()


os.register_at_fork(after_in_child=_drop_inherited)
