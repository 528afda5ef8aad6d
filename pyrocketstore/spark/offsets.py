"""The offsets of a stream: how they are written down, and how far a batch goes."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.manifest import Mark
from pyrocketstore.spark.options import Bound

VERSION = 1
#: Stands for the start until the first batch has pinned it: Spark does not keep a start.
INITIAL: dict[str, Any] = {"v": VERSION, "init": 1}

#: (broker, topic, queue id).
QueueKey = tuple[str, str, int]
#: The next queue offset to read of each queue.
Positions = dict[QueueKey, int]


#: Of queues, their last messages that were read: see RecordMarks.
StreamMarks = dict[QueueKey, Mark]


def encode_offset(
    ends: Mapping[QueueKey, int],
    begins: Mapping[QueueKey, int],
    marks: Mapping[QueueKey, Mark] | None = None,
) -> dict[str, Any]:
    """An offset as JSON takes it: where a batch ends, where those queues begin that do not go on
    where the last batch ended, and the marks of the messages before `ends`."""
    result: dict[str, Any] = {"v": VERSION}
    if begins:
        result["from"] = _nested(begins)
    result["q"] = _nested(ends)
    if marks or (marks is not None and any(ends.values())):
        # A mark's queue offset is that before its queue's end.
        told = {key: _without_nothing(mark[1:]) for key, mark in marks.items()}
        result["m"] = _nested(told)
    return result


def _without_nothing(values: tuple[int | None, ...]) -> list[int]:
    return [value for value in values if value is not None]


def decode_offset(offset: Mapping[str, Any]) -> tuple[Positions, Positions] | None:
    """(ends, begins) of an offset; None for INITIAL.

    Raises StoreFormatError for one that a newer version wrote, or that is none of ours.
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
    return _flat(offset.get("q")), _flat(offset.get("from", {}))


def decode_marks(offset: Mapping[str, Any]) -> StreamMarks | None:
    """The marks of an offset; None for one that has none, as those of the first versions.

    Raises StoreFormatError for what is none of ours.
    """
    ends, found = decode_offset(offset), offset.get("m")
    if found is None or ends is None:
        return None
    try:
        return {
            key: _mark(ends[0][key] - 1, values)
            for broker, topics in found.items()
            for topic, queues in topics.items()
            for queue_id, values in queues.items()
            for key in [(broker, topic, int(queue_id))]
        }
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise _not_an_offset(found) from error


def _mark(queue_offset: int, values: Any) -> Mark:
    if not isinstance(values, list) or len(values) not in (2, 4):
        raise ValueError("no mark")
    if not all(type(value) is int and -(1 << 63) <= value < 1 << 63 for value in values):
        raise ValueError("no mark")
    phy_offset, size, *told = values
    return Mark(queue_offset, phy_offset, size, *(told or (None, None)))


def _nested(positions: Mapping[QueueKey, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for (broker, topic, queue_id), position in sorted(positions.items()):
        result.setdefault(broker, {}).setdefault(topic, {})[str(queue_id)] = position
    return result


def _flat(nested: Any) -> Positions:
    try:
        return {
            (broker, topic, int(queue_id)): int(position)
            for broker, topics in nested.items()
            for topic, queues in topics.items()
            for queue_id, position in queues.items()
        }
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise _not_an_offset(nested) from error


def _not_an_offset(found: object) -> StoreFormatError:
    return StoreFormatError(
        f"rocketmq-store: the checkpoint holds no offset of this source: {reprlib.repr(found)}"
    )


def named_queues(bound: Bound) -> set[QueueKey]:
    """The queues that a bound names, by offset or by time; broker "" stands for every broker."""
    return {
        (broker, topic, queue_id)
        for positions in (bound.offsets, bound.timestamps)
        for broker, topics in positions.items()
        for topic, queues in topics.items()
        for queue_id in queues
    }


def check_brokers(bound: Bound, brokers: Sequence[str]) -> None:
    """Raises StoreFormatError for a broker that a bound names and that is not among `brokers`."""
    unknown = {*bound.offsets, *bound.timestamps} - {"", *brokers}
    if unknown:
        raise StoreFormatError(
            f"rocketmq-store: the start names the broker {min(unknown)!r}, the stores are "
            f"{', '.join(sorted(brokers))}"
        )


def share(behind: Mapping[QueueKey, int], limit: int) -> Positions:
    """How many messages a batch takes of each queue, by what each is behind.

    Every queue that is behind gets one at least, so none starves; beyond that `limit` holds.
    """
    waiting = {key: count for key, count in behind.items() if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    spare = limit - len(waiting)
    if spare <= 0:
        return dict.fromkeys(waiting, 1)
    # One each, and of the others a part of what is left of each; what rounding leaves goes to
    # those that it took most from.
    rest = total - len(waiting)
    shares = {key: 1 + spare * (count - 1) // rest for key, count in waiting.items()}
    left = limit - sum(shares.values())
    by_loss = sorted(waiting, key=lambda key: (-(spare * (waiting[key] - 1) % rest), key))
    for key in by_loss[:left]:
        shares[key] += 1
    return shares
