"""Exceptions for failures that are not a status; each names the file, or the argument."""

from __future__ import annotations

import copy as _copy
import errno as _errno
import os
from typing import TypeVar

from pyrocketstore.display import printable, shown

#: The errno of an open that met a FIFO, a socket or a device where a store has a file.
NOT_REGULAR: int = getattr(_errno, "EBADFD", _errno.EINVAL)
_OPEN_REASONS = {
    _errno.ELOOP: "a symbolic link (a store follows none when it writes), or a loop of links",
    _errno.EISDIR: "a directory, and must be a regular file",
    NOT_REGULAR: "not a regular file",
    _errno.ESTALE: "its directory was moved or replaced while the store was open; close the store"
    " and open it again",
}


Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """Return a copy without a traceback but with its cause; the error itself if it has no copy.

    A store keeps and raises copies: a traceback refers to the frames of its calls, which would keep
    a store alive after its last reference is gone.
    """
    try:
        copied = _copy.copy(error)
    except Exception:  # noqa: BLE001  the constructor of a foreign class
        return error
    copied.__cause__ = error.__cause__
    return copied if type(copied) is type(error) else error


class StoreError(Exception):
    """The base of all errors that this package raises.

    Its text is printable also where names of files or topics are not; attributes hold the names
    unchanged.
    """

    def __str__(self) -> str:
        try:
            return printable(self._text())
        except ValueError:  # an int of more digits than Python converts to text
            return ", ".join(map(shown, self.args))

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except ValueError:  # as above
            return f"{type(self).__name__}({', '.join(map(shown, self.args))})"

    def _reduced(self, *arguments: object) -> tuple[object, ...]:
        """For pickle and copy: the class, its arguments and its notes."""
        return type(self), arguments, self.__dict__

    def _text(self) -> str:
        return super().__str__()


class StoreStateError(StoreError):
    """The store cannot do this in the state it is in (closed, read-only, already open, forked)."""


class ReplicationError(StoreError):
    """The copy of another broker's log cannot continue: the logs differ, or the other side does not
    keep the protocol. The text has the physical offsets. Nothing was cut."""


class StoreIOError(StoreError, OSError):
    """A system call failed.

    Parameters
    ----------
    errno : int
    operation : str, the call ("msync", "fallocate", …)
    path : str, the file
    position : int, bytes into the file; -1: no position
    """

    def __init__(self, errno: int, operation: str, path: str, position: int = -1) -> None:
        super().__init__(errno, os.strerror(errno), path)
        self.operation = operation
        self.path = path
        self.position = position

    def _text(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        reason = self.strerror
        if self.operation in ("open", "mkdir") and self.errno is not None:
            reason = _OPEN_REASONS.get(self.errno, reason)
        return f"{self.operation} failed: {self.path}{where}: {reason} (errno {self.errno})"

    def __reduce__(self) -> tuple[object, ...]:
        return self._reduced(self.errno, self.operation, self.path, self.position)


#: Causes that may disappear while a call waits; any other fails at once.
PASSING_ERRORS = frozenset(
    {
        _errno.ENOSPC,
        _errno.EDQUOT,
        _errno.EMFILE,
        _errno.ENFILE,
        _errno.ENOMEM,
        _errno.EAGAIN,
        _errno.EINTR,
        _errno.EBUSY,
    }
)


def is_failed_open(error: BaseException) -> bool:
    """True if a file could not be opened, as in a process without a free descriptor."""
    return isinstance(error, StoreIOError) and error.operation == "open"


def is_passing(error: BaseException) -> bool:
    """True if the failed call may be tried again: a full disk, or another resource is short."""
    if not isinstance(error, StoreIOError) or isinstance(error, StoreFsyncError):
        return False
    return error.errno in PASSING_ERRORS


class StoreFsyncError(StoreIOError):
    """An fsync failed: data or a file name may never reach the device. Another fsync could succeed
    and would prove nothing.

    The store accepts no more puts and acknowledges nothing until it is opened again. The parameters
    are those of StoreIOError.
    """

    def _text(self) -> str:
        return f"{super()._text()}; a failed fsync is final: open the store again"


class StoreCorruptionError(StoreError):
    """Bytes on disk that 4.9.3 would not have written.

    Parameters
    ----------
    path : str, the file
    position : int, bytes into the file; -1 where the file as a whole is wrong
    reason : str
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = path
        self.position = position
        self.reason = reason

    def _text(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}{where}: {self.reason}"


class DamagedMessageError(StoreCorruptionError):
    """Messages of a queue that cannot be read: damaged records, or a missing file of the log.

    Parameters
    ----------
    path : str, the file of the log
    position : int, bytes into the file; -1 where the file is missing
    reason : str
    topic, queue_id : the queue
    start, stop : int, queue offsets [start, stop): reading can continue at `stop`
    """

    def __init__(
        self,
        path: str,
        position: int,
        reason: str,
        topic: str,
        queue_id: int,
        start: int,
        stop: int,
    ) -> None:
        super().__init__(path, position, reason)
        self.topic = topic
        self.queue_id = queue_id
        self.start = start
        self.stop = stop

    def _text(self) -> str:
        which = f"queue offset {self.start}"
        if self.stop > self.start + 1:
            which = f"queue offsets {self.start} to {self.stop - 1}"
        return f"{super()._text()} ({self.topic}/{self.queue_id}, {which})"

    def __reduce__(self) -> tuple[object, ...]:
        place = (self.topic, self.queue_id, self.start, self.stop)
        return self._reduced(self.path, self.position, self.reason, *place)


class StoreFormatError(StoreError, ValueError):
    """A message, a name or a setting that the store cannot keep."""


class StoreTypeError(StoreFormatError, TypeError):
    """An argument of a type that the store does not accept."""


class OffsetOutOfRange(StoreError, LookupError):
    """A read that should start outside of the queue.

    Parameters
    ----------
    min_offset, max_offset : int, queue offsets: the first readable one and the end
    offset : int, the requested offset
    topic, queue_id : the queue
    """

    def __init__(
        self,
        min_offset: int,
        max_offset: int,
        offset: int | None = None,
        topic: str | None = None,
        queue_id: int | None = None,
    ) -> None:
        super().__init__(min_offset, max_offset, offset, topic, queue_id)
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.offset = offset
        self.topic = topic
        self.queue_id = queue_id

    def _text(self) -> str:
        asked = "the offset" if self.offset is None else f"offset {shown(self.offset)}"
        queue = "the queue" if self.topic is None else f"queue {self.topic}/{self.queue_id}"
        begin, end = self.min_offset, self.max_offset
        return f"{asked} is outside of {queue}, which begins at {begin} and ends before {end}"


class MessagesRemovedError(StoreError, LookupError):
    """Messages that were removed before a consumer had read them: they expired, or were trimmed.

    Parameters
    ----------
    topic, queue_id : the queue
    start, stop : int, queue offsets [start, stop): reading continues at `stop`
    """

    def __init__(self, topic: str, queue_id: int, start: int, stop: int) -> None:
        super().__init__(topic, queue_id, start, stop)
        self.topic = topic
        self.queue_id = queue_id
        self.start = start
        self.stop = stop

    def _text(self) -> str:
        count = self.stop - self.start
        return (
            f"{count} messages of queue {self.topic}/{self.queue_id} from queue offset {self.start}"
            f" on were removed before they were read; the next one is at {self.stop} "
            '(on_loss="skip" continues there without an error)'
        )


class UnknownTopicError(StoreError, LookupError):
    """A read of a topic that the store does not know.

    Parameters
    ----------
    path : str, the store
    topic : str, the requested name
    nearest : str or None, the known topic with the most similar name
    """

    def __init__(self, path: str, topic: str, nearest: str | None = None) -> None:
        super().__init__(path, topic, nearest)
        self.path = path
        self.topic = topic
        self.nearest = nearest

    def _text(self) -> str:
        hint = "no topic has a similar name; `pyrocketstore info` and Store.topics() list all"
        if self.nearest is not None:
            hint = f"did you mean {self.nearest!r}?"
        return f"{self.path}: there is no topic {shown(self.topic)}: {hint}"


class DiskFullError(StoreError):
    """Puts are refused because a disk is full.

    Parameters
    ----------
    path : str, a directory on it
    ratio : float, the fraction in use
    limit : float, the fraction above which puts are refused
    """

    def __init__(self, path: str, ratio: float, limit: float) -> None:
        super().__init__(path, ratio, limit)
        self.path = path
        self.ratio = ratio
        self.limit = limit

    def _text(self) -> str:
        used, limit = round(self.ratio * 100), round(self.limit * 100)
        return f"{self.path}: {used} % of the disk is in use; above {limit} % puts are refused"


class PutError(StoreError):
    """A put of `Store` with a status other than PUT_OK.

    Parameters
    ----------
    status : PutMessageStatus
    stored : bool, True where the message is in the log nevertheless (a flush or replica timed out)
    count : int, how many messages of this call are in the log
    """

    def __init__(self, status: object, stored: bool, count: int, reason: str = "") -> None:
        super().__init__(status, stored, count, reason)
        self.status = status
        self.stored = stored
        self.count = count
        self.reason = reason

    def _text(self) -> str:
        name = getattr(self.status, "name", self.status)
        text = f"{name}: {self.count} message(s) of this call are in the log"
        return f"{text}: {self.reason}" if self.reason else text


class MissingExtraError(StoreError, ImportError):
    """An optional feature whose packages are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs: pip install 'pyrocketstore[{extra}]'")
        self.what = what
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return self._reduced(self.what, self.extra)


class StoreWarning(UserWarning):
    """A problem of a store or its settings that its owner should know of."""

    def __str__(self) -> str:
        return printable(super().__str__())
