"""Marks in a stream's offsets: check that its stores are those that it has read so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from pyrocketstore.display import logger
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.plan.continuity import RecordMarks
from pyrocketstore.spark.plan.offsets import Positions, QueueKey, StreamMarks, decode_marks
from pyrocketstore.spark.plan.stream_store import StreamStore
from pyrocketstore.spark.task_types import DataLossError, Mark, QueueRange

LOG = logger(__name__)

#: Broker -> how its store is mismatched, and queue -> how it is mismatched.
_Mismatches = tuple[dict[str, str], dict[QueueKey, str]]


class StreamStores:
    """Makes the marks of a stream's offsets, and compares them with the stores.

    A queue's mark is the physical offset and size of its last message. The mark of the log's last
    message also has its store time and its body's CRC. As long as the log has that message, all
    earlier bytes are unchanged, because a log is append-only. The other marks show whether their
    queues were recreated.

    Parameters
    ----------
    stores : callable, broker -> its queues
    looks : callable, yields after each new look at the stores, as long as they may contradict a
        mark before that counts: an opening after a kill removes units and puts them back

    Threads: one.
    """

    def __init__(
        self,
        stores: Callable[[], Mapping[str, StreamStore]],
        options: SourceOptions,
        looks: Callable[[], Iterable[object]],
    ) -> None:
        self._stores = stores
        self._options = options
        self._looks = looks
        #: of queues that were compared: where they were read to, and ended
        self._compared: dict[QueueKey, tuple[int, int]] = {}
        self._warned = False

    # ---- marks -----------------------------------------------------------------------------------

    def after(self, ends: Positions, kept: Positions, start: Mapping[str, Any]) -> StreamMarks:
        """Return the marks of an offset that ends at `ends`. Queues in `kept`, whose end did not
        change, keep their marks of `start`. Raises StoreIOError."""
        known = decode_marks(start) or {}
        marks: StreamMarks = {}
        for broker, store in self._stores().items():
            reader = _reader(store)
            own = {key: end for key, end in ends.items() if key[0] == broker}
            found: StreamMarks = {}
            for key, end in own.items():
                mark = known.get(key) if kept.get(key) == end else None
                if mark is None and end > 0:
                    mark = reader.mark_at(_whole(store, key, end), end - 1, with_record=False)
                if mark is not None:
                    found[key] = mark
            if found:
                last = max(found, key=lambda key: found[key].phy_offset)
                if found[last].store_timestamp is None:
                    found[last] = reader.with_record(found[last])
            marks |= found
        # Marks of stores that the query no longer has, which failOnDataLoss=false allows.
        marks |= {k: mark for k, mark in known.items() if k in ends and k[0] not in self._stores()}
        return {key: marks[key] for key in sorted(marks)}

    # ---- comparing -------------------------------------------------------------------------------

    def mismatched(
        self, start: Mapping[str, Any], begins: Positions, queue_ends: Positions
    ) -> _Mismatches:
        """Return the stores, and the queues of other stores, that contradict the marks in `start`.

        Parameters
        ----------
        begins : where each queue was read to
        queue_ends : the ends of the selected queues that exist

        Each queue is compared at its first call and whenever its end has moved. Raises
        StoreIOError.
        """
        now = {key: (begins.get(key, -1), end) for key, end in queue_ends.items()}
        moved = {key for key, at in now.items() if self._compared.get(key) != at}
        if not moved:
            return {}, {}
        marks = decode_marks(start)
        if marks is None and any(begins.values()):
            self._warn()
        marks = marks or {}
        stores, found = self._settled(marks, moved)
        self._compared |= {key: now[key] for key in moved if key not in found}
        return stores, found

    def check_batch(self, marks: StreamMarks, keys: Set[QueueKey]) -> None:
        """Check that a batch with `marks` at its end is read from the stores that it was planned
        for; `keys` are the queues with messages in it.

        Raises DataLossError under failOnDataLoss, else logs a warning; StoreIOError.
        """
        stores, found = self._settled(marks, keys)
        found_texts = [(broker, how) for broker, how in sorted(stores.items())]
        found_texts += [(f"{key[0]}: {key[1]}/{key[2]}", how) for key, how in sorted(found.items())]
        for name, how in found_texts:
            text = f"{name} {how}, and a batch was planned of it"
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{text}; failOnDataLoss=false omits the messages whose units have changed"
                )
            LOG.warning("rocketmq-store: %s: messages whose units have changed are omitted", text)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning(
                "rocketmq-store: a version without marks wrote the checkpoint: whether the "
                "stores are still the same is unknown, and is checked from now on"
            )

    def _settled(self, marks: StreamMarks, keys: Set[QueueKey]) -> _Mismatches:
        """Return the stores and the queues of `keys` that contradict marks after all looks."""
        found = self._contradicting(marks, keys)
        for _ in self._looks() if any(found) else ():
            found = self._contradicting(marks, keys)
            if not any(found):
                break
        return found

    def _contradicting(self, marks: StreamMarks, keys: Set[QueueKey]) -> _Mismatches:
        stores: dict[str, str] = {}
        queues: dict[QueueKey, str] = {}
        for broker, store in self._stores().items():
            compared = sorted(key for key in keys if key[0] == broker)
            if not compared:
                continue
            reader = _reader(store)
            by_topic: dict[str, dict[int, Mark]] = {}
            for key, mark in marks.items():
                if key[0] == broker:
                    by_topic.setdefault(key[1], {})[key[2]] = mark
            text = reader.contradiction(by_topic)
            if text:
                stores[broker] = f"is another store, or has lost its end: the checkpoint has {text}"
                continue
            for key in compared:
                if key not in marks:
                    continue
                at = marks[key].queue_offset
                if reader.is_recreated(_whole(store, key, at + 1), marks[key]):
                    before = f"byte {marks[key].phy_offset} of the log"
                    queues[key] = f"was recreated: its message {at} was at {before}"
        return stores, queues


def _reader(store: StreamStore) -> RecordMarks:
    return RecordMarks(store.snapshot, store.snapshot.log_files())


def _whole(store: StreamStore, key: QueueKey, stop: int) -> QueueRange:
    """Return the range of a queue up to `stop`: later units are not compared."""
    return store.range_of(key[1:], 0, stop)
