"""What `pyrocketstore.open` finds out for a Store, and the rows that its callers give and get."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore._put_columns import Columns
from pyrocketstore.config import MessageStoreConfig, absolute_path, detect_sizes
from pyrocketstore.display import printable
from pyrocketstore.env import Env
from pyrocketstore.errors import PutError, StoreFormatError, StoreIOError, StoreTypeError
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.shield import shielded
from pyrocketstore.topic_config import TopicConfigFile

__all__ = [
    "ComingIds",
    "DefaultStoreParts",
    "KeyHits",
    "NewQueues",
    "StoreWarning",
    "column_of",
    "is_number",
    "settings_of",
]

#: A queue id from here on is more likely a mistake of the caller than one of many.
COMING_ID_MAX = 1 << 16


class StoreWarning(UserWarning):
    """Something about a store or its settings that its owner should know."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ComingIds:
    """The queue ids of the put_many that each thread is in.

    Threads: any. A signal handler may call put_many inside of put_many: the ids of the outer call
    come back.
    """

    def __init__(self) -> None:
        self._columns: dict[int, Columns] = {}

    @contextlib.contextmanager
    def known(self, columns: Columns) -> Iterator[None]:
        """The rows of this thread's call."""
        thread = threading.get_ident()
        outer = self._columns.get(thread)
        self._columns[thread] = columns
        try:
            yield
        finally:
            if outer is None:
                self._columns.pop(thread, None)
            else:
                self._columns[thread] = outer

    def highest(self, queue_id: int) -> int:
        """The highest plausible id of this thread's call, `queue_id` at least."""
        columns = self._columns.get(threading.get_ident())
        highest = -1 if columns is None else columns.highest_queue_id(COMING_ID_MAX)
        return max(highest, queue_id)


class NewQueues:
    """Adds the topics of new queues to config/topics.json; it knows nothing of the store.

    Threads: any.
    """

    def __init__(self, config: MessageStoreConfig) -> None:
        self._enable_lmq = config.enable_lmq
        #: None: no topics.json is kept
        self.topics: TopicConfigFile | None = None
        #: topics.json is written once for all queues of a put_many
        self.coming_ids = ComingIds()

    def add(self, topic: str, queue_id: int) -> None:
        """Called before the first put to a queue. Raises PutError."""
        light = self._enable_lmq and topic.startswith(LMQ_PREFIX)
        if self.topics is None or light:  # a broker knows light queues by their messages
            return
        count = self.coming_ids.highest(queue_id)
        shielded(functools.partial(_add_topic, self.topics, topic, count))


def _add_topic(topics: TopicConfigFile, topic: str, queue_id: int) -> None:
    topics.ensure(topic, queue_id)
    try:
        topics.persist()
    except StoreIOError as error:
        raise PutError(
            PutMessageStatus.SERVICE_NOT_AVAILABLE, False, 0, f"config/topics.json: {error}"
        ) from error


class KeyHits(NamedTuple):
    """Hits of `query_many`, one row a hit: columns of one length.

    `key_index` int64[n], into the keys asked for; `phy_offset` int64[n], bytes; `queue_id`
    int32[n]; `queue_offset` int64[n].
    """

    key_index: npt.NDArray[np.int64]
    phy_offset: npt.NDArray[np.int64]
    queue_id: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]


def settings_of(
    env: Env,
    root: str,
    config: MessageStoreConfig | str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
    strict: bool,
    settings: dict[str, Any],
    notices: list[str],
    read_only: bool,
) -> MessageStoreConfig:
    """The settings of a store in `root`: given, from a broker.conf, and what its files tell.

    Raises StoreFormatError. `notices` gets a text for each line of a broker.conf that does nothing.
    """
    if config is None:
        base = MessageStoreConfig().at_root(root)
    elif isinstance(config, MessageStoreConfig):
        base = config.at_root(root)
    else:
        path = Path(absolute_path(config, "config"))
        base, notes = MessageStoreConfig.from_broker_conf(path, strict=strict, root=root)
        notices += notes
    base = (base.replace(**settings) if settings else base).absolute()
    return detect_sizes(env, root, base, base.given, read_only=read_only)


class DefaultStoreParts(NamedTuple):
    """What `open` found out, for Store."""

    env: Env
    config: MessageStoreConfig
    read_only: bool
    store_host: str | None
    unique_key: bool
    topics_json: bool
    notices: list[str]


def is_number(value: Any) -> bool:
    """Whether a value counts as one number for all rows, and not as a column."""
    return hasattr(type(value), "__index__") and not getattr(value, "ndim", 0)


def column_of(name: str, values: Any, count: int | None) -> list[Any]:
    """A list, NumPy array or Arrow array as a list; None as a list of None.

    Raises
    ------
    StoreTypeError: it is not a sequence, or a NumPy array whose entries a list would not have.
    StoreFormatError: it has not `count` entries.
    """
    if type(values) is list and (count is None or len(values) == count):
        return values.copy()  # the caller may change theirs meanwhile
    if values is None and count is not None:
        return [None] * count
    odd = (str, bytes, bytearray, memoryview, Mapping, Set)
    if isinstance(values, odd) or not (
        isinstance(values, Iterable) or hasattr(values, "to_pylist")
    ):
        kind = type(values).__name__
        raise StoreTypeError(f"{name} must be a sequence with one entry a message, not {kind}")
    entries: list[Any]
    if hasattr(values, "to_pylist"):
        entries = _arrow_entries(name, values)
    elif isinstance(values, np.ndarray):
        entries = _entries(name, values)
    else:
        entries = list(values)
    if count is not None and len(entries) != count:
        raise StoreFormatError(f"{name} has {len(entries)} entries for {count} bodies")
    return entries


def _arrow_entries(name: str, values: Any) -> list[Any]:
    """The entries of an Arrow array, whose offsets are looked at first: Arrow itself does not."""
    if hasattr(values, "validate"):
        try:
            values.validate(full=True)
        except (ValueError, TypeError, LookupError, NotImplementedError) as error:  # Arrow's
            raise StoreFormatError(f"{name} is no valid Arrow array: {error}") from error
    try:
        entries: list[Any] = values.to_pylist()
    except (ValueError, TypeError, LookupError, NotImplementedError) as error:
        raise StoreFormatError(f"{name}: Arrow cannot give its entries: {error}") from error
    return entries


def _entries(name: str, values: npt.NDArray[Any]) -> list[Any]:
    """The entries of a NumPy array, as they are."""
    if values.ndim != 1:
        raise StoreTypeError(f"{name} must have one dimension, not {values.ndim}")
    if values.dtype.kind == "S":
        raise StoreTypeError(
            f"{name}: NumPy drops the zeros at the end of bytes of dtype {values.dtype.str}: give "
            "a list, or an array of objects or of V"
        )
    if values.dtype.kind in "mM":
        raise StoreTypeError(f"{name} must not be of dtype {values.dtype}, a time")
    entries: list[Any] = values.tolist()
    return entries
