"""Offsets of a stream: their encoding, and the division of a batch among queues."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.options import Bound
from pyrocketstore.spark.task_types import Mark

_Value = TypeVar("_Value")

VERSION = 1
#: The start until the first batch has pinned it: Spark does not keep a start.
INITIAL: dict[str, Any] = {"v": VERSION, "init": 1}

#: (broker, topic, queue id).
QueueKey = tuple[str, str, int]
#: The next queue offset to read of each queue.
Positions = dict[QueueKey, int]
#: The last message read of each queue: see RecordMarks.
StreamMarks = dict[QueueKey, Mark]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a batch: messages that it waits for, messages at most, bytes of records at most."""

    rows_min: int = 0
    rows_max: int | None = None
    bytes_max: int | None = None


def encode_offset(
    ends: Mapping[QueueKey, int],
    begins: Mapping[QueueKey, int],
    marks: Mapping[QueueKey, Mark] | None = None,
) -> dict[str, Any]:
    """Return an offset for JSON: where a batch ends, where those queues begin that do not continue
    at the end of the last batch, and the marks of the messages before `ends`."""
    result: dict[str, Any] = {"v": VERSION}
    if begins:
        result["from"] = _nested(begins)
    result["q"] = _nested(ends)
    if marks or (marks is not None and any(ends.values())):
        # A mark's queue offset is its queue's end minus 1.
        values = {key: _without_nothing(mark[1:]) for key, mark in marks.items()}
        result["m"] = _nested(values)
    return result


def _without_nothing(values: tuple[int | None, ...]) -> list[int]:
    return [value for value in values if value is not None]


def decode_offset(offset: Mapping[str, Any]) -> tuple[Positions, Positions] | None:
    """Return (ends, begins) of an offset; None for INITIAL.

    Raises StoreFormatError for an offset of a newer version, and for any other value.
    """
    if not isinstance(offset, Mapping):
        raise _not_an_offset(offset)
    version = offset.get("v")
    if version != VERSION:
        raise StoreFormatError(
            f"rocketmq-store: the checkpoint holds an offset of version {reprlib.repr(version)}; "
            f"this is version {VERSION}"
        )
    if "init" in offset:
        return None
    ends, begins = offset.get("q"), offset.get("from", {})
    return _flat(ends, lambda _, at: int(at)), _flat(begins, lambda _, at: int(at))


def decode_marks(offset: Mapping[str, Any]) -> StreamMarks | None:
    """Return the marks of an offset; None without marks, as in the first versions.

    Raises StoreFormatError for a value that is not an offset.
    """
    ends, found = decode_offset(offset), offset.get("m")
    if found is None or ends is None:
        return None
    at = ends[0]
    return _flat(found, lambda key, values: _mark(at[key] - 1, values))


def _mark(queue_offset: int, values: Any) -> Mark:
    if not isinstance(values, list) or len(values) not in (2, 4):
        raise ValueError("no mark")
    if not all(type(value) is int and -(1 << 63) <= value < 1 << 63 for value in values):
        raise ValueError("no mark")
    phy_offset, size, *record = values
    return Mark(queue_offset, phy_offset, size, *(record or (None, None)))


def _nested(positions: Mapping[QueueKey, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for (broker, topic, queue_id), position in sorted(positions.items()):
        result.setdefault(broker, {}).setdefault(topic, {})[str(queue_id)] = position
    return result


def _flat(nested: Any, make: Callable[[QueueKey, Any], _Value]) -> dict[QueueKey, _Value]:
    try:
        return {
            key: make(key, value)
            for broker, topics in nested.items()
            for topic, queues in topics.items()
            for queue_id, value in queues.items()
            for key in [(broker, topic, int(queue_id))]
        }
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise _not_an_offset(nested) from error


def _not_an_offset(found: object) -> StoreFormatError:
    return StoreFormatError(
        f"rocketmq-store: the checkpoint has no offset of this source: {reprlib.repr(found)}"
    )


def named_queues(bound: Bound) -> set[QueueKey]:
    """Return the queues that a bound names, by offset or by time; broker "" means every broker."""
    return {
        key
        for positions in (bound.offsets, bound.timestamps)
        for key in _flat(positions, lambda key, _: key)
    }


def check_brokers(bound: Bound, brokers: Sequence[str]) -> None:
    """Raise StoreFormatError for a broker that a bound names and that is not among `brokers`."""
    unknown = {*bound.offsets, *bound.timestamps} - {"", *brokers}
    if unknown:
        raise StoreFormatError(
            f"rocketmq-store: the start names the broker {min(unknown)!r}, the stores are "
            f"{', '.join(sorted(brokers))}"
        )


def share(behind: Mapping[QueueKey, int], limit: int) -> Positions:
    """Return the messages that a batch takes of each queue, by how far each queue is behind.

    Each queue that is behind gets at least one message, even above `limit`.
    """
    waiting = {key: count for key, count in behind.items() if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    spare = limit - len(waiting)
    if spare <= 0:
        return dict.fromkeys(waiting, 1)
    # One message each, and a proportional share of the rest; the remainder of the rounding goes to
    # the queues with the largest loss.
    rest = total - len(waiting)
    shares = {key: 1 + spare * (count - 1) // rest for key, count in waiting.items()}
    left = limit - sum(shares.values())
    by_loss = sorted(waiting, key=lambda key: (-(spare * (waiting[key] - 1) % rest), key))
    for key in by_loss[:left]:
        shares[key] += 1
    return shares
