"""Access to the file system and the clock; the only Python module that calls os and time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pyrocketstore.errors import NOT_REGULAR, StoreCorruptionError, StoreIOError, StoreTypeError
from pyrocketstore.system._env import EnvTable

O_CREAT = os.O_CREAT
O_NOFOLLOW = os.O_NOFOLLOW
O_RDONLY = os.O_RDONLY
O_RDWR = os.O_RDWR
O_WRONLY = os.O_WRONLY
_WRITES = O_CREAT | O_RDWR | O_WRONLY

TEMPORARY_SUFFIX = ".tmp"
READ_SIZE = 1 << 20
#: vm.max_map_count where no one has changed it.
DEFAULT_MAX_MAP_COUNT = 65530
#: Largest size, in bytes, of a file that is read whole: topics.json, a configuration, a manifest.
LARGEST_FILE = 64 << 20

#: Parts that pathlib would remove from an absolute path: empty names, `.`, and a last slash.
_UNUSUAL_PATH = re.compile(r"/(?:\.?/|\.?\Z)")
#: Numbers for new names, ascending over all threads.
_name_numbers = itertools.count(1)

_AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Env(EnvTable):
    """The calls of `EnvTable` and the operations built from them.

    Every call that durability depends on goes through the table, so that a test can record it or
    make it fail. Methods raise StoreIOError unless documented otherwise. Threads: any.
    """

    #: Directories below which `check_directory` refuses symbolic links.
    _guarded: frozenset[str] = frozenset()
    #: Directories that were no symbolic links, and all directories above them below a guarded one.
    _checked: set[str]
    #: {path: (device, inode)} of directories that no call may make again or replace by another.
    _pinned: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def guard(self, directories: Iterable[str]) -> None:
        """Refuse symbolic links to directories below `directories` from now on.

        The guarded directories themselves and the directories above them may be links. A store that
        is written to guards the directories that its user named.
        """
        self._guarded |= frozenset(directories)
        self._checked = set()

    def unguard(self, directories: Iterable[str]) -> None:
        """Undo `guard` for these directories."""
        self._guarded -= frozenset(directories)
        self._checked = set()

    def pin(self, directories: Mapping[str, tuple[int, int]]) -> None:
        """Refuse changes of names below `directories` once another directory has their path.

        The directories of an open store are pinned: if one is moved away, no call makes it again,
        and no call changes the store that has taken its place. Values are (device, inode).
        """
        self._pinned = {**self._pinned, **directories}

    def unpin(self, directories: Iterable[str]) -> None:
        """Undo `pin` for these directories."""
        gone = set(directories)
        self._pinned = {path: one for path, one in self._pinned.items() if path not in gone}

    def check_pinned(self, path: str) -> None:
        """Raise StoreIOError (ESTALE) if a pinned directory above `path` was moved or replaced."""
        for top, identity in self._pinned.items():
            if path != top and not path.startswith(f"{top}/"):
                continue
            if self.identity_at(f"{top}/.") != identity:
                raise StoreIOError(errno.ESTALE, "open", path)

    def open(
        self,
        path: _AnyPath,
        flags: int,
        mode: int = 0o644,
        *,
        into: list[int] | None = None,
    ) -> int:
        """As `EnvTable.open`; an open for writing is refused where `check_pinned` refuses it."""
        if not self._pinned or not flags & _WRITES:
            return super().open(path, flags, mode, into=into)
        self.check_pinned(os.fsdecode(path))
        fd = super().open(path, flags, mode, into=into)
        try:
            self.check_pinned(os.fsdecode(path))  # the directory may have been moved meanwhile
        except StoreIOError:
            if into is not None:
                into.remove(fd)
            self.close(fd, path)
            raise
        return fd

    def rmdir(self, path: _AnyPath) -> None:
        """Remove one empty directory, unless `check_pinned` refuses the path."""
        self.check_pinned(os.fsdecode(path))
        super().rmdir(path)

    def unlink(self, path: _AnyPath) -> None:
        """Remove the name of a file, unless `check_pinned` refuses the path."""
        self.check_pinned(os.fsdecode(path))
        super().unlink(path)

    def rename(self, source: _AnyPath, target: _AnyPath) -> None:
        """Rename `source` to `target`, replacing it, unless `check_pinned` refuses a path."""
        self.check_pinned(os.fsdecode(source))
        self.check_pinned(os.fsdecode(target))
        super().rename(source, target)

    def check_directory(self, path: str) -> None:
        """Raise StoreIOError (ELOOP) if a symbolic link leads out of a guarded directory."""
        if not self._guarded or path in self._guarded or path in self._checked:
            return
        above = [top for top in self._guarded if path.startswith(f"{top}/")]
        if not above:
            return
        at = max(above, key=len)
        passed = []
        for name in path[len(at) + 1 :].split("/"):
            at = f"{at}/{name}"
            if os.path.islink(at):
                raise StoreIOError(errno.ELOOP, "open", at)
            passed.append(at)
        if os.path.isdir(path):
            self._checked.update(passed)

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] if the directory is missing."""
        self.check_directory(path)
        with contextlib.suppress(FileNotFoundError), _store_errors("listdir", path):
            return sorted(os.listdir(path))
        return []

    def entries(self, path: str) -> list[tuple[str, str]]:
        """Return (name, type) of the entries of a directory as `list_directory` does; [] if the
        directory is missing."""
        self.check_directory(path)
        try:
            return self.list_directory(path)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            return []

    def list_files(self, path: str) -> list[tuple[str, int]]:
        """Return (name, size in bytes) of the files in a directory, sorted by name.

        A missing directory has no files.
        """
        with (
            contextlib.suppress(FileNotFoundError),
            _store_errors("scandir", path),
            os.scandir(path) as entries,
        ):
            return sorted((e.name, e.stat().st_size) for e in entries if e.is_file())
        return []

    def files_named(
        self, path: str, is_wanted: Callable[[str], bool], *, follow: bool
    ) -> list[tuple[str, int]]:
        """Return (name, size in bytes) of the files whose names are wanted, sorted by name.

        A missing directory has no files.

        Parameters
        ----------
        is_wanted : decides by a name
        follow : bool; a symbolic link to a file counts as that file

        Raises StoreIOError for a wanted name that is not a regular file: EISDIR, EBADFD, or ELOOP
        for a link that is not followed.
        """
        self.check_directory(path)
        names: list[str] = []
        with (
            contextlib.suppress(FileNotFoundError),
            _store_errors("scandir", path),
            os.scandir(path) as entries,
        ):
            names = sorted(entry.name for entry in entries if is_wanted(entry.name))
        found = []
        for name in names:
            size = self._size_of_file(f"{path}/{name}", follow)
            if size is not None:
                found.append((name, size))
        return found

    def _size_of_file(self, path: str, follow: bool) -> int | None:
        """Return the size of a regular file; None if the file was deleted meanwhile."""
        status = _lstat(path)
        if status is None:
            return None
        if follow and stat.S_ISLNK(status.st_mode):
            status = _called("stat", path, os.stat, path)
        _check_regular(status, path)
        return status.st_size

    def check_file(self, path: str, *, follow: bool) -> bool:
        """Return True for a regular file, False if nothing has that name.

        Raises StoreIOError as `files_named` does.
        """
        return self._size_of_file(path, follow) is not None

    def walk_files(self, directory: str) -> Iterator[tuple[str, int, int]]:
        """Yield (path, bytes, mtime in Unix ms) of everything below a directory but directories.

        Entries come in the order of their names. Symbolic links are not followed: a link counts as
        a file.
        """
        for name in self.listdir(directory):
            path = f"{directory}/{name}"
            status = _lstat(path)
            if status is None:
                continue  # deleted since the listing
            if stat.S_ISDIR(status.st_mode):
                yield from self.walk_files(path)
            else:
                yield path, status.st_size, status.st_mtime_ns // 1_000_000

    def exists(self, path: str) -> bool:
        """Return True if something has that name."""
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        """Return True for a directory or a symbolic link to one."""
        return os.path.isdir(path)

    def require_directory(self, path: str) -> None:
        """Raise StoreIOError if the path does not exist or is not a directory."""
        if not self.is_dir(path):
            code = errno.ENOTDIR if self.exists(path) else errno.ENOENT
            raise StoreIOError(code, "open", path)

    def size(self, path: str) -> int:
        """Return the file's length in bytes."""
        return _called("stat", path, os.stat, path).st_size

    def modified_ms(self, path: str) -> int:
        """Return the time of the last modification, Unix ms; -1 for a missing file."""
        try:
            return int(self.mtime_ms(path))
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                return -1
            raise

    def identity(self, path: str, *, follow: bool = True) -> tuple[int, int]:
        """Return (device, inode), which is equal for two names of one file or directory."""
        status = _called("stat", path, os.stat if follow else os.lstat, path)
        return status.st_dev, status.st_ino

    def identity_at(self, path: str) -> tuple[int, int] | None:
        """Return (device, inode) of a name, which is not followed; None if nothing is there."""
        try:
            return self.identity(path, follow=False)
        except StoreIOError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    def is_link(self, path: str) -> bool:
        """Return True for a symbolic link."""
        return os.path.islink(path)

    def identity_of(self, fd: int, path: str = "") -> tuple[int, int]:
        """Return (device, inode) of an open file or directory."""
        status = _called("fstat", path, os.fstat, fd)
        return status.st_dev, status.st_ino

    def absolute(self, path: str | os.PathLike[str]) -> str:
        """Return the absolute path, with `~` replaced by the home directory, and `..` kept."""
        return _absolute(os.path.expanduser(os.fspath(path)))

    def make_directories(self, path: str, *, durable: bool = True) -> None:
        """Make a directory and all missing directories above it.

        Durability: with `durable`, each new name is on the device on return; without it, once
        `fsync_new_names` has returned.
        """
        path = _absolute(path)
        self.check_pinned(path)
        if not self._make_in_checked(path):
            self.check_directory(path)
            self._make_missing(path)
            self.check_directory(path)
        if durable:
            self.fsync_new_names(path)

    def _make_in_checked(self, path: str) -> bool:
        """Make a directory below a directory that was checked, with no more calls than mkdir's.

        Returns False without such a directory, or if `path` or a name above it is there already.
        """
        if not self._guarded or path in self._checked:
            return False
        missing = [path]
        parent = path.rpartition("/")[0]
        while parent not in self._checked:
            if not parent:
                return False
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        for name in reversed(missing):
            try:
                self.mkdir(name)
            except StoreIOError as error:
                if error.errno in (errno.EEXIST, errno.ENOENT):
                    return False
                raise
            self.made_names[parent] = next(_name_numbers)
            self._checked.add(name)
            parent = name
        return True

    def _make_missing(self, path: str) -> None:
        if os.path.isdir(path):
            return
        if path in self._pinned:  # moved away since `check_pinned`
            raise StoreIOError(errno.ESTALE, "mkdir", path)
        parent = os.path.dirname(path)
        if parent != path:
            self._make_missing(parent)
        try:
            self.mkdir(path)
        except StoreIOError:
            if not os.path.isdir(path):  # else another thread has made it
                raise
        finally:
            if os.path.isdir(path):
                self.made_names[parent] = next(_name_numbers)

    def fsync_new_names(self, path: str) -> None:
        """Flush the names of the directories on the way to `path` that this Env has made.

        Durability: on return, `path` is on the device if it is a directory. Threads: any; a name
        that another thread makes meanwhile stays for the next call.
        """
        at, parents = _absolute(path), []
        while (parent := os.path.dirname(at)) != at:
            if self.made_names.get(parent, 0) > self.flushed_names.get(parent, 0):
                parents.append(parent)
            at = parent
        for parent in reversed(parents):
            number = self.made_names[parent]
            self.fsync_directory(parent)
            self.flushed_names[parent] = number

    def note_flushed_names(self, names: Mapping[str, int], device: int) -> None:
        """Take note that a file system was flushed after `made_names` was copied to `names`."""
        for parent, number in names.items():
            if number > self.flushed_names.get(parent, 0):
                with contextlib.suppress(StoreIOError):  # a directory that is gone again
                    if self.identity(parent)[0] == device:
                        self.flushed_names[parent] = number

    def fsync_parent_directory(self, path: str) -> None:
        """Flush the directory above `path`, and names that this Env has made on the way to it, so
        that the name `path` is durable.

        Another process may have made `path` without a flush. A parent directory that this process
        may not open (EACCES) is left alone: it belongs to another user.
        """
        parent = os.path.dirname(_absolute(path))
        self.fsync_new_names(parent)
        number = self.made_names.get(parent, 0)
        try:
            self.fsync_directory(parent)
            self.flushed_names[parent] = number
        except StoreIOError as error:
            if error.errno != errno.EACCES:
                raise

    def read_file(
        self,
        path: str,
        *,
        size: int | None = None,
        max_size: int = LARGEST_FILE,
        follow: bool = True,
    ) -> bytes:
        """Return all bytes of a file, or its first `size` bytes.

        Parameters
        ----------
        size : bytes to read at most; None: the whole file
        max_size : bytes; without `size`, a larger file is an error
        follow : the path may be a symbolic link

        Raises StoreIOError; StoreCorruptionError for a file larger than `max_size`.
        """
        fd = self.open(path, os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW)
        chunks: list[bytes] = []
        position = 0
        stop = max_size + 1 if size is None else size
        try:
            while position < stop:
                wanted = min(READ_SIZE, stop - position)
                chunk = self.pread(fd, wanted, position, path)
                chunks.append(chunk)
                position += len(chunk)
                if len(chunk) < wanted:
                    break
        finally:
            self.close(fd)
        if size is None and position > max_size:
            raise StoreCorruptionError(
                path, -1, f"larger than {max_size} bytes, the largest size allowed"
            )
        return b"".join(chunks)

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Read `size` bytes at `position`: fewer at the end of the file, none if it is missing.

        Raises StoreIOError.
        """
        try:
            fd = self.open(path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            return b""
        try:
            return self.pread(fd, size, position, path)
        finally:
            self.close(fd, path)

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the content of a file by `data`, atomically.

        Durability: a crash leaves the old or the new content; on return, the new one is durable.
        """
        temporary = path + TEMPORARY_SUFFIX
        if self.exists(temporary):
            self.unlink(temporary)  # left by a killed process, or a link to another file
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.pwrite_all(fd, data, 0, temporary)
            self.fsync(fd, temporary)
        finally:
            self.close(fd, temporary)
        self.rename(temporary, path)
        self.fsync_directory(parent_directory(path))

    def remove(self, path: str) -> None:
        """Delete a file if it exists. Durability: on return, the deletion is on the device."""
        try:
            self.unlink(path)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            return
        self.fsync_directory(parent_directory(path))

    def sleep(self, seconds: float) -> None:
        """Sleep; Ctrl-C interrupts the sleep."""
        time.sleep(seconds)

    def disk_usage(self, path: str) -> tuple[int, int, int]:
        """Return (total, used, usable) bytes of the file system that holds `path`."""
        disk = _called("statvfs", path, os.statvfs, path)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return disk.f_blocks * disk.f_frsize, used, disk.f_bavail * disk.f_frsize

    def local_time(self, ms: int | None = None) -> time.struct_time:
        """Return the local time of a Unix time in ms; None: of now."""
        return time.localtime((self.now_ms() if ms is None else ms) / 1000)

    def local_time_name(self, ms: int) -> str:
        """Return the name of an index file: a Unix time (ms) as yyyyMMddHHmmssSSS, local time."""
        return local_time_name(ms)

    def data_ranges(self, path: str, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts [begin, end) of a file's range that are not holes, in bytes.

        Where the file system does not report holes, the whole range counts as data.
        """
        fd = self.open(path, os.O_RDONLY)
        ranges = []
        at = start
        try:
            while at < end:
                try:
                    begin = os.lseek(fd, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        break
                    return [(start, end)]
                if begin >= end:
                    break
                at = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
                ranges.append((begin, at))
        finally:
            self.close(fd, path)
        return ranges

    def write_again(self, path: str) -> None:
        """Write the data of a file over itself, except for holes.

        After a failed fsync the page cache may hold bytes that the device lacks, in pages marked
        clean. No fsync writes such a page until it is written to again.

        Threads: no other thread or process may write to the file meanwhile.
        """
        fd = self.open(path, os.O_RDWR)
        try:
            for begin, end in self.data_ranges(path, 0, self.file_size(fd, path)):
                for at in range(begin, end, READ_SIZE):
                    data = self.pread(fd, min(READ_SIZE, end - at), at, path)
                    self.pwrite_all(fd, data, at, path)
        finally:
            self.close(fd, path)

    def copy_range(self, source: str, target: str, position: int, size: int) -> None:
        """Copy `size` bytes from `position` of one file into a new file.

        Holes stay holes. Durability: on return, the copy is on the device.
        """
        fd = self.open(source, os.O_RDONLY)
        try:
            out = self.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                self.ftruncate(out, size, target)
                for begin, end in self.data_ranges(source, position, position + size):
                    for at in range(begin, end, READ_SIZE):
                        data = self.pread(fd, min(READ_SIZE, end - at), at, source)
                        self.pwrite_all(out, data, at - position, target)
                self.fsync(out, target)
            finally:
                self.close(out, target)
        finally:
            self.close(fd, source)
        self.fsync_directory(parent_directory(target))

    def total_memory(self) -> int:
        """Return the size of this machine's memory in bytes."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def dirty_bytes(self) -> int:
        """Return the bytes of all files, also of other programs, that the kernel has to write; 0 if
        that is unknown.
        """
        found = 0
        with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
            for line in file:
                if line.startswith(("Dirty:", "Writeback:")):
                    found += int(line.split()[1]) << 10
        return found

    def max_map_count(self) -> int:
        """Return how many mappings a process may have; Linux's default if that is unknown."""
        with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count") as file:
            return int(file.read())
        return DEFAULT_MAX_MAP_COUNT

    def processor_count(self) -> int:
        """Return the number of processors that this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def lock_owners(self, inode: int) -> set[int]:
        """Return the ids of the processes that lock files or directories with this inode number.

        The list of the kernel (/proc/locks) is read: open file description locks have no owner in
        it, and devices are not compared, because an overlay shows others. Empty if it is unknown.
        """
        found = set()
        with contextlib.suppress(OSError, ValueError), open("/proc/locks") as file:
            for line in file:
                words = line.split()
                if "->" not in words and words[5].endswith(f":{inode}"):
                    found.add(int(words[4]))
        return {process_id for process_id in found if process_id > 0}

    def process_id(self) -> int:
        """Return the id of this process, which differs in a forked child."""
        return os.getpid()


def check_env(value: object) -> None:
    """Raise StoreTypeError for a value that is not an Env."""
    if not issubclass(type(value), Env):  # `isinstance` believes what a mock says
        raise StoreTypeError(f"env must be an Env, not {type(value).__name__}")


def parent_directory(path: str) -> str:
    """Return the directory that contains `path`."""
    return os.path.dirname(path) or "."


def is_zeros(data: bytes) -> bool:
    """Return whether all bytes are 0x00; True without bytes."""
    return data == bytes(len(data))  # many times faster than a loop or `strip`


def _absolute(path: str) -> str:
    """Return the absolute path; `..` stays, because the name before it may be a link's."""
    if path[:1] == "/" and not _UNUSUAL_PATH.search(path):
        return path  # the common case: pathlib would return the same
    return str(Path(path).absolute())


def local_time_name(ms: int) -> str:
    """Return the name of an index file: a Unix time (ms) as yyyyMMddHHmmssSSS, local time."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(ms // 1000)) + f"{ms % 1000:03d}"


def _check_regular(status: os.stat_result, path: str) -> None:
    """Raise the StoreIOError that an open of the path for writing would raise."""
    if stat.S_ISLNK(status.st_mode):
        raise StoreIOError(errno.ELOOP, "open", path)
    if stat.S_ISDIR(status.st_mode):
        raise StoreIOError(errno.EISDIR, "open", path)
    if not stat.S_ISREG(status.st_mode):
        raise StoreIOError(NOT_REGULAR, "open", path)


def _called(
    operation: str, path: str, call: Callable[[Argument], Result], argument: Argument
) -> Result:
    """Return the result of a call; its OSError becomes a StoreIOError."""
    try:
        return call(argument)
    except OSError as error:
        raise StoreIOError(error.errno or 0, operation, path) from error


@contextlib.contextmanager
def _store_errors(operation: str, path: str) -> Iterator[None]:
    """Raise an OSError of the body as a StoreIOError, except for FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreIOError(error.errno or 0, operation, path) from error


def _lstat(path: str) -> os.stat_result | None:
    """Return the status of a file or link; None if it is missing."""
    with contextlib.suppress(FileNotFoundError), _store_errors("stat", path):
        return os.lstat(path)
    return None
