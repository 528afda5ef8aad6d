"""The file system and the clock: the only Python module that touches os and time."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from pyrocketstore._env import EnvTable
from pyrocketstore.errors import NOT_REGULAR, StoreCorruptionError, StoreIOError

__all__ = [
    "O_CREAT",
    "O_NOFOLLOW",
    "O_RDONLY",
    "O_RDWR",
    "O_WRONLY",
    "Env",
    "local_time_name",
    "parent_directory",
]

O_CREAT = os.O_CREAT
O_NOFOLLOW = os.O_NOFOLLOW
O_RDONLY = os.O_RDONLY
O_RDWR = os.O_RDWR
O_WRONLY = os.O_WRONLY

TEMPORARY_SUFFIX = ".tmp"
READ_SIZE = 1 << 20
#: Bytes that a file which is read whole may have: topics.json, a configuration, a manifest.
LARGEST_FILE = 64 << 20


class Env(EnvTable):
    """The calls of `EnvTable`, and what is built from them.

    Everything that must survive a crash goes through the table, so that a test can break or record
    it. Raises StoreIOError unless said otherwise. Threads: any.
    """

    #: Directories below which `check_directory` refuses symbolic links.
    _guarded: frozenset[str] = frozenset()
    _checked: set[str]

    def guard(self, directories: Iterable[str]) -> None:
        """Refuse symbolic links to directories below these from now on; they themselves, and the
        directories above them, may be links.

        A store that is written to guards the directories that its user named.
        """
        self._guarded |= frozenset(directories)
        self._checked = set()

    def unguard(self, directories: Iterable[str]) -> None:
        """Take back `guard`."""
        self._guarded -= frozenset(directories)
        self._checked = set()

    def check_directory(self, path: str) -> None:
        """Raise StoreIOError, ELOOP, where a symbolic link leads out of a guarded directory."""
        if not self._guarded or path in self._guarded or path in self._checked:
            return
        above = [top for top in self._guarded if path.startswith(f"{top}/")]
        if not above:
            return
        at = max(above, key=len)
        for name in path[len(at) + 1 :].split("/"):
            at = f"{at}/{name}"
            if os.path.islink(at):
                raise StoreIOError(errno.ELOOP, "open", at)
        if os.path.isdir(path):
            self._checked.add(path)

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; [] when it is missing."""
        self.check_directory(path)
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _as_store_error(error, "listdir", path) from error

    def list_files(self, path: str) -> list[tuple[str, int]]:
        """(name, size in bytes) of the files in a directory, by name; [] when it is missing."""
        try:
            with os.scandir(path) as entries:
                return sorted((e.name, e.stat().st_size) for e in entries if e.is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _as_store_error(error, "scandir", path) from error

    def files_named(
        self, path: str, is_wanted: Callable[[str], bool], *, follow: bool
    ) -> list[tuple[str, int]]:
        """(name, size in bytes) of the files whose names are wanted, by name; [] without the
        directory.

        Parameters
        ----------
        follow : bool; a symbolic link to a file counts as that file

        Raises StoreIOError naming what has such a name and is not a regular file: EISDIR, EBADFD,
        ELOOP for a link that is not followed.
        """
        self.check_directory(path)
        try:
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries if is_wanted(entry.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _as_store_error(error, "scandir", path) from error
        found = []
        for name in names:
            size = self._size_of_file(f"{path}/{name}", follow)
            if size is not None:
                found.append((name, size))
        return found

    def _size_of_file(self, path: str, follow: bool) -> int | None:
        """Bytes of a regular file; None for one that another process has just deleted."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _as_store_error(error, "stat", path) from error
        if follow and stat.S_ISLNK(status.st_mode):
            try:
                status = os.stat(path)
            except OSError as error:
                raise _as_store_error(error, "stat", path) from error
        _check_regular(status, path)
        return status.st_size

    def check_file(self, path: str, *, follow: bool) -> bool:
        """True for a regular file, False when nothing has that name.

        Raises StoreIOError as `files_named` does.
        """
        return self._size_of_file(path, follow) is not None

    def walk_files(self, directory: str) -> Iterator[tuple[str, int, int]]:
        """(path, bytes, mtime in Unix ms) of all that is no directory below one, by name.

        Symbolic links are not followed: they count as themselves.
        """
        for name in self.listdir(directory):
            path = f"{directory}/{name}"
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                raise _as_store_error(error, "stat", path) from error
            if stat.S_ISDIR(status.st_mode):
                yield from self.walk_files(path)
            else:
                yield path, status.st_size, status.st_mtime_ns // 1_000_000

    def exists(self, path: str) -> bool:
        """True when something has that name."""
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        """True for a directory, also through a link."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """The file's length in bytes."""
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise _as_store_error(error, "stat", path) from error

    def identity(self, path: str, *, follow: bool = True) -> tuple[int, int]:
        """(device, inode), equal for two names of one file or directory."""
        try:
            status = os.stat(path, follow_symlinks=follow)
        except OSError as error:
            raise _as_store_error(error, "stat", path) from error
        return status.st_dev, status.st_ino

    def is_link(self, path: str) -> bool:
        """True for a symbolic link."""
        return os.path.islink(path)

    def identity_of(self, fd: int, path: str = "") -> tuple[int, int]:
        """(device, inode) of an open file or directory."""
        try:
            status = os.fstat(fd)
        except OSError as error:
            raise _as_store_error(error, "fstat", path) from error
        return status.st_dev, status.st_ino

    def is_read_only(self, path: str) -> bool:
        """True when this process may not write there."""
        return not os.access(path, os.W_OK)

    def absolute(self, path: str | os.PathLike[str]) -> str:
        """The path from the root on, `~` replaced by the home directory."""
        return os.path.abspath(os.path.expanduser(os.fspath(path)))

    def make_directories(self, path: str) -> None:
        """Make a directory and what is missing above it.

        Durability: each new name is on the device when this returns.
        """
        path = os.path.abspath(path)
        self.check_directory(path)
        if os.path.isdir(path) and path not in self.new_directories:
            return
        parent = os.path.dirname(path)
        if parent != path:
            self.make_directories(parent)
        self.new_directories.add(path)
        try:
            self.mkdir(path)
        except StoreIOError:
            # Another thread may have made it, or this one when it could not open the parent; then
            # the name still has to be flushed.
            if not os.path.isdir(path):
                self.new_directories.discard(path)
                raise
        self.fsync_directory(parent)
        self.new_directories.discard(path)

    def force_name(self, path: str) -> None:
        """Make the name of a directory durable that another process may have made and not forced.

        Nothing happens where the directory above it may not be opened: it is another's.
        """
        try:
            self.fsync_directory(os.path.dirname(os.path.abspath(path)))
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
        """All bytes of a file, or no more than its first `size`.

        Parameters
        ----------
        max_size : bytes; a larger file is an error, unless `size` says how many of its bytes count
        follow : the path may be a symbolic link

        Raises StoreIOError; StoreCorruptionError for a file that is too large.
        """
        fd = self.open(path, os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW)
        pieces: list[bytes] = []
        position = 0
        stop = max_size + 1 if size is None else size
        try:
            while position < stop:
                wanted = min(READ_SIZE, stop - position)
                piece = self.pread(fd, wanted, position, path)
                pieces.append(piece)
                position += len(piece)
                if len(piece) < wanted:
                    break
        finally:
            self.close(fd)
        if size is None and position > max_size:
            raise StoreCorruptionError(
                path, -1, f"larger than {max_size} bytes, the most it can be"
            )
        return b"".join(pieces)

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Bytes of a file: fewer where it ends, none where there is no such file.

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
        """Make `data` the whole content of a file, at once.

        Durability: a crash leaves the old content or the new; on return it is the new.
        """
        temporary = path + TEMPORARY_SUFFIX
        if self.exists(temporary):
            self.unlink(temporary)  # of a killed process, or a link that leads elsewhere
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.pwrite_all(fd, data, 0, temporary)
            self.fsync(fd, temporary)
        finally:
            self.close(fd, temporary)
        self.rename(temporary, path)
        self.fsync_directory(parent_directory(path))

    def remove(self, path: str) -> None:
        """Delete a file, if it is there. Durability: it is gone for good on return."""
        try:
            self.unlink(path)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            return
        self.fsync_directory(parent_directory(path))

    def sleep(self, seconds: float) -> None:
        """Sleep; Ctrl-C gets through."""
        time.sleep(seconds)

    def disk_usage(self, path: str) -> tuple[int, int, int]:
        """(total, used, usable) bytes of the file system that holds `path`."""
        try:
            usage = shutil.disk_usage(path)
        except OSError as error:
            raise _as_store_error(error, "statvfs", path) from error
        return usage.total, usage.used, usage.free

    def local_time(self, ms: int | None = None) -> time.struct_time:
        """Local time of a Unix time in ms; None: now."""
        return time.localtime((self.now_ms() if ms is None else ms) / 1000)

    def local_time_name(self, ms: int) -> str:
        """A Unix time (ms) as yyyyMMddHHmmssSSS in local time: how index files are named."""
        return local_time_name(ms)

    def data_ranges(self, path: str, start: int, end: int) -> list[tuple[int, int]]:
        """The pieces [begin, end) of a file's range that are not holes; positions in bytes.

        The whole range where the file system does not tell.
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
        """Write the data of a file over itself, holes left out; nobody else may write to it.

        After an fsync has failed the page cache may hold bytes that the device lacks, in pages that
        count as clean: no fsync writes them until they are written to again.
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

        Holes stay holes. Durability: the copy is on the device on return.
        """
        fd = self.open(source, os.O_RDONLY)
        try:
            out = self.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                self.ftruncate(out, size, target)
                for begin, end in self.data_ranges(source, position, position + size):
                    for at in range(begin, end, READ_SIZE):
                        piece = self.pread(fd, min(READ_SIZE, end - at), at, source)
                        self.pwrite_all(out, piece, at - position, target)
                self.fsync(out, target)
            finally:
                self.close(out, target)
        finally:
            self.close(fd, source)
        self.fsync_directory(parent_directory(target))

    def total_memory(self) -> int:
        """This machine's memory, bytes."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def processor_count(self) -> int:
        """How many processors this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def process_id(self) -> int:
        """This process: differs in a forked child."""
        return os.getpid()


def parent_directory(path: str) -> str:
    """The directory that a name lies in."""
    return os.path.dirname(path) or "."


def local_time_name(ms: int) -> str:
    """A Unix time (ms) as yyyyMMddHHmmssSSS in local time: how index files are named."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(ms // 1000)) + f"{ms % 1000:03d}"


def _check_regular(status: os.stat_result, path: str) -> None:
    """Raise the StoreIOError that opening the path for writing would raise."""
    if stat.S_ISLNK(status.st_mode):
        raise StoreIOError(errno.ELOOP, "open", path)
    if stat.S_ISDIR(status.st_mode):
        raise StoreIOError(errno.EISDIR, "open", path)
    if not stat.S_ISREG(status.st_mode):
        raise StoreIOError(NOT_REGULAR, "open", path)


def _as_store_error(error: OSError, operation: str, path: str) -> StoreIOError:
    return StoreIOError(error.errno or 0, operation, path)
