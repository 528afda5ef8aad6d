"""The marks in a stream's offsets: whether its stores are those that it has read up to there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Set
from typing import Any

from pyrocketstore.display import logger
from pyrocketstore.spark.lake_marks import RecordMarks
from pyrocketstore.spark.live import LiveQueues
from pyrocketstore.spark.manifest import Mark
from pyrocketstore.spark.offsets import Positions, QueueKey, StreamMarks, decode_marks
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.snapshot import DataLossError, QueueRange

LOG = logger(__name__)

_LOOK_AGAIN_S = 0.1
#: Broker -> how it is strange, and queue -> how.
_Strange = tuple[dict[str, str], dict[QueueKey, str]]


class StreamStores:
    """Makes the marks of a stream's offsets, and compares them with the stores.

    A queue's mark is the place and size of its last message; that of the last message of all in a
    log tells its store time and its body's CRC too. While the log has that one, all before it is
    the same, since a log is only appended to: the others say whether their queues were made anew.

    Parameters
    ----------
    stores : callable, broker -> its queues
    patience_s : how long a store may contradict a mark before that counts, seconds: one that is
        opened after a kill takes units away and puts them back

    Threads: one.
    """

    def __init__(
        self,
        stores: Callable[[], Mapping[str, LiveQueues]],
        options: SourceOptions,
        patience_s: float,
    ) -> None:
        self._stores = stores
        self._options = options
        self._patience_s = patience_s
        #: of queues that were compared: where they were read to, and ended
        self._compared: dict[QueueKey, tuple[int, int]] = {}
        self._warned = False

    # ---- marks -----------------------------------------------------------------------------------

    def after(self, ends: Positions, kept: Positions, start: Mapping[str, Any]) -> StreamMarks:
        """The marks of an offset that ends at `ends`: those of `start` for queues that stay where
        they were in it, which are in `kept`. Raises StoreIOError."""
        known = decode_marks(start) or {}
        marks: StreamMarks = {}
        for broker, store in self._stores().items():
            reader = _reader(store)
            own = {key: end for key, end in ends.items() if key[0] == broker}
            found: StreamMarks = {}
            for key, end in own.items():
                mark = known.get(key) if kept.get(key) == end else None
                if mark is None and end > 0:
                    mark = reader.mark_at(_whole(store, key, end), end - 1, told=False)
                if mark is not None:
                    found[key] = mark
            if found:
                last = max(found, key=lambda key: found[key].phy_offset)
                if found[last].store_timestamp is None:
                    found[last] = reader.told(found[last])
            marks |= found
        # Of a store that is not given now, as where failOnDataLoss=false goes on without it.
        marks |= {k: mark for k, mark in known.items() if k in ends and k[0] not in self._stores()}
        return {key: marks[key] for key in sorted(marks)}

    # ---- comparing -------------------------------------------------------------------------------

    def strange(
        self, start: Mapping[str, Any], begins: Positions, heads: Positions
    ) -> dict[QueueKey, str]:
        """Which queues, read up to `begins`, are not those of the marks in `start`, and how so.

        Each is compared when this first sees it, and whenever it has moved since. Raises
        StoreIOError.
        """
        moved = {key for key, at in begins.items() if self._compared.get(key) != (at, heads[key])}
        if not moved:
            return {}
        marks = decode_marks(start)
        if marks is None and any(begins.values()):
            self._warn()
        marks = marks or {}
        stores, found = self._settled(marks, moved)
        self._compared |= {k: (begins[k], heads[k]) for k in moved if k not in found}
        return found | {key: stores[key[0]] for key in begins if key[0] in stores}

    def check_batch(self, end: Mapping[str, Any], keys: Set[QueueKey]) -> None:
        """See whether a batch that was planned up to `end` is read of the stores that it was
        planned for; `keys` are the queues that have messages in it.

        Raises DataLossError, unless that is to be a warning; StoreIOError.
        """
        stores, found = self._settled(decode_marks(end) or {}, keys)
        told = [(broker, how) for broker, how in sorted(stores.items())]
        told += [(f"{key[0]}: {key[1]}/{key[2]}", how) for key, how in sorted(found.items())]
        for name, how in told:
            text = f"{name} {how}, and a batch was planned of it"
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{text}; failOnDataLoss=false reads what is there now")
            LOG.warning("rocketmq-store: %s: what is there now is read", text)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning(
                "rocketmq-store: the checkpoint is of a version that noted no marks: whether the "
                "stores are those that it was made with is not known, and looked at from now on"
            )

    def _settled(self, marks: StreamMarks, keys: Set[QueueKey]) -> _Strange:
        """The stores, and the queues among `keys`, that contradict marks once they had time."""
        found = self._contradicting(marks, keys)
        if not any(found):
            return found
        env = next(iter(self._stores().values())).env
        until_ns = env.monotonic_ns() + int(self._patience_s * 1e9)
        while any(found) and env.monotonic_ns() < until_ns:
            env.sleep(_LOOK_AGAIN_S)
            for store in self._stores().values():
                store.ends(now=True)
            found = self._contradicting(marks, keys)
        return found

    def _contradicting(self, marks: StreamMarks, keys: Set[QueueKey]) -> _Strange:
        stores: dict[str, str] = {}
        queues: dict[QueueKey, str] = {}
        for broker, store in self._stores().items():
            asked = sorted(key for key in keys if key[0] == broker and key in marks)
            if not asked:
                continue
            reader = _reader(store)
            by_topic: dict[str, dict[int, Mark]] = {}
            for key, mark in marks.items():
                if key[0] == broker:
                    by_topic.setdefault(key[1], {})[key[2]] = mark
            text = reader.contradiction(by_topic)
            if text:
                stores[broker] = (
                    f"is of another store, or one that has lost its end: the checkpoint has {text}"
                )
                continue
            for key in asked:
                at = marks[key].queue_offset
                if reader.is_anew(_whole(store, key, at + 1), marks[key]):
                    place = f"byte {marks[key].phy_offset} of the log"
                    queues[key] = f"was made anew: its message {at} was that of {place}"
        return stores, queues


def _reader(store: LiveQueues) -> RecordMarks:
    files = store.log_files()
    end = files[-1].from_offset + files[-1].size if files else 0
    return RecordMarks(store.env, files, end, functools.partial(_known, store))


def _known(store: LiveQueues, topic: str, queue_id: int) -> QueueRange | None:
    return store.range_of((topic, queue_id), 0, 0) if store.has_queue((topic, queue_id)) else None


def _whole(store: LiveQueues, key: QueueKey, stop: int) -> QueueRange:
    """The units of a queue up to one: nobody looks behind that."""
    return store.range_of(key[1:], 0, stop)
