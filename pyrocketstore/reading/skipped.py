"""Counts and ranges of messages of a queue that could not be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyrocketstore.errors import DamagedMessageError, StoreCorruptionError, StoreIOError
from pyrocketstore.reading._messages import DamageFields, SkippedFields

if TYPE_CHECKING:
    from pyrocketstore.record._message import MessageExt

MISSING_FILE = "this file of the log is missing"


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedRange:
    """Consecutive messages of one queue that could not be read, for one reason.

    Parameters
    ----------
    topic, queue_id : the queue
    start, stop : int, queue offsets [start, stop)
    path : str, the file of the log
    position : int, bytes into the file: what was read for `start`; -1 where the file is missing
    reason : str
    """

    topic: str
    queue_id: int
    start: int
    stop: int
    path: str
    position: int
    reason: str

    @property
    def message_count(self) -> int:
        """How many messages."""
        return self.stop - self.start

    def to_dict(self) -> dict[str, Any]:
        """The parameters by name."""
        return dataclasses.asdict(self)


class SkippedMessages(SkippedFields):
    """The messages that an iterator of `Store.read` could not read so far.

    With `on_corrupt="raise"` each of them was also an exception. True when there is any.

    Threads: those of the iterator; one at a time.
    """

    __slots__ = ()

    @property
    def count(self) -> int:
        """How many messages."""
        return self._count

    @property
    def ranges(self) -> tuple[SkippedRange, ...]:
        """Where they are, in the order of reading; the first 4096 ranges."""
        return tuple(self._ranges)

    def __bool__(self) -> bool:
        return self._count > 0

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"_count": self._count, "_ranges": self._ranges}
        return type(self), (self._max_ranges,), (None, state)

    def __repr__(self) -> str:
        return f"<SkippedMessages: {self._count} in {len(self._ranges)} ranges>"

    def add(self, found: SkippedRange) -> None:
        """Count the messages of a range, which extends the last one where it can."""
        self._count += found.message_count
        last = self._ranges[-1] if self._ranges else None
        if last is not None and (last.topic, last.queue_id, last.stop, last.path, last.reason) == (
            (found.topic, found.queue_id, found.start, found.path, found.reason)
        ):
            self._ranges[-1] = dataclasses.replace(last, stop=found.stop)
        elif self._max_ranges is None or len(self._ranges) < self._max_ranges:
            self._ranges.append(found)


class MessageReader(Protocol):
    """The iterator of `Store.read`; `skipped` has the messages that it could not read."""

    @property
    def skipped(self) -> SkippedMessages:
        """The messages that could not be read, so far."""

    def __iter__(self) -> Iterator[MessageExt]: ...

    def __next__(self) -> MessageExt: ...


class QueueDamage(DamageFields):
    """The treatment of the messages of one queue that cannot be read.

    Parameters
    ----------
    topic, queue_id : the queue
    on_corrupt : "raise" or "skip"
    skipped : gets each such message

    Attributes
    ----------
    is_replaced : callable() or None, called for what cannot be read: True if another process has
        removed the queue or made it again, so that it is not damage

    Raises StoreFormatError for another word.
    """

    __slots__ = ()

    def message(self, path: str, position: int, reason: str, start: int) -> Exception | None:
        """Note that one message cannot be read; the error to raise, if any."""
        return self._note(path, position, reason, start, start + 1)

    def missing_file(self, path: str, start: int, stop: int) -> Exception | None:
        """Note messages whose file of the log is missing; the error to raise, if any.

        A file has as many errors as it has ranges that are looked up together.
        """
        return self._note(path, -1, MISSING_FILE, start, stop)

    def failed(self, error: StoreCorruptionError | StoreIOError, start: int) -> Exception | None:
        """Note that reading the message at `start` failed; the error to raise, if any.

        An I/O error is always raised: the messages may be valid.
        """
        if isinstance(error, StoreCorruptionError):
            return self.message(error.path, error.position, error.reason, start)
        if self.queue_was_replaced():
            return None
        self.message(error.path, error.position, str(error), start)
        return error

    def no_units(self, error: StoreIOError, start: int, stop: int) -> bool:
        """Note messages whose units cannot be read; return whether to raise the error."""
        if self.queue_was_replaced():
            return False
        self._note(error.path, error.position, str(error), start, stop)
        return True

    def queue_was_replaced(self) -> bool:
        """Return True if another process has removed the queue or made it again."""
        return self.is_replaced is not None and self.is_replaced()

    def _note(
        self, path: str, position: int, reason: str, start: int, stop: int
    ) -> DamagedMessageError | None:
        if self.queue_was_replaced():
            return None
        found = SkippedRange(self.topic, self.queue_id, start, stop, path, position, reason)
        self.skipped.add(found)
        return None if self.skips else DamagedMessageError(**found.to_dict())

    def unnoted(self) -> Self:
        """The same for a second look, which counts nothing here."""
        return type(self)(self.topic, self.queue_id, "skip", SkippedMessages(None))
