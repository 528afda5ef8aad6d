"""The face: `pyrocketstore.open(path)` gives a Store."""

from __future__ import annotations

import asyncio
import atexit
import errno
import heapq
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore import _message
from pyrocketstore._columns import release_memory
from pyrocketstore._commit_log import PutMessageResult
from pyrocketstore._key_search import KeySearch
from pyrocketstore._message import MessageExt
from pyrocketstore._put_columns import Columns
from pyrocketstore._put_path import PutPath
from pyrocketstore._reader import MessageIterator
from pyrocketstore._text import put_properties
from pyrocketstore.batches import Piece, by_file, read_record_batch
from pyrocketstore.commit_log import LMQ_PREFIX
from pyrocketstore.config import BrokerRole, MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.env import Env
from pyrocketstore.errors import (
    OffsetOutOfRange,
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.flush import GroupCommitService
from pyrocketstore.message import (
    Message,
    MessageExtBrokerInner,
    check_properties,
    check_text,
    check_topic,
    join_keys,
)
from pyrocketstore.message_store import OPEN_STORES, DefaultMessageStore
from pyrocketstore.results import STORED_STATUSES, PutMessageStatus
from pyrocketstore.tags import TagsExpression, tags_filter
from pyrocketstore.topic_config import TopicConfigFile
from pyrocketstore.unique_id import new_unique_id

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.verify import VerifyReport

#: Units that an iterator reads ahead: at first, since many want a few messages, and later.
FIRST_READ_COUNT, READ_COUNT = 256, 8192
#: The compiled append's answers; the same numbers as rs_status.
#: A queue id from here on is more likely a mistake of the caller than one of many.
COMING_ID_MAX = 1 << 16
RS_OK, RS_IO_ERROR, RS_TOO_LARGE, RS_BUSY = 0, 26, 28, 30
MAX_TIMESTAMP = (1 << 63) - 1


class StoreWarning(UserWarning):
    """Something about a store or its settings that its owner should know."""


class KeyHits(NamedTuple):
    """Hits of `query_many`, one row a hit: columns of one length.

    `key_index` int64[n], into the keys asked for; `phy_offset` int64[n], bytes; `queue_id`
    int32[n]; `queue_offset` int64[n].
    """

    key_index: npt.NDArray[np.int64]
    phy_offset: npt.NDArray[np.int64]
    queue_id: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]


def open(
    path: str | os.PathLike[str],
    *,
    config: MessageStoreConfig | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    unique_key: bool = False,
    topics_json: bool = True,
    store_host: str | None = None,
    strict: bool = False,
    env: Env | None = None,
    **settings: Any,
) -> Store:
    """Open a store directory: load, recover, start.

    Parameters
    ----------
    path : the root directory; made when it is missing, unless `read_only`
    config : a MessageStoreConfig, or the path of a broker.conf
    read_only : nothing is created, written or locked; also of a store that another process writes
    unique_key : add a UNIQ_KEY to each message, as Java's clients do
    topics_json : keep ROOT/config/topics.json, without which a broker serves no topic
    store_host : "ip:port" in each record, default `brokerIP1:listenPort` or 127.0.0.1:10911
    strict : make an error of what a broker.conf would only be warned of
    settings : names of MessageStoreConfig; sizes that are not given come from the files

    Raises
    ------
    StoreStateError: already open. StoreCorruptionError, StoreIOError: the files. StoreFormatError:
    the settings.

    Source: RocketMQ 4.9.3 DefaultMessageStore#load, #start.
    """
    root = os.fspath(path)
    env = Env() if env is None else env
    if read_only and not env.is_dir(root):
        raise StoreIOError(2, "open", root)
    final = _settings(env, root, config, strict, settings)
    return Store(DefaultStoreParts(env, final, read_only, store_host, unique_key, topics_json))


def _settings(
    env: Env,
    root: str,
    config: MessageStoreConfig | str | os.PathLike[str] | None,
    strict: bool,
    settings: dict[str, Any],
) -> MessageStoreConfig:
    if config is None:
        base = MessageStoreConfig().at_root(root)
    elif isinstance(config, MessageStoreConfig):
        base = config.at_root(root)
    else:
        base, notes = MessageStoreConfig.from_broker_conf(Path(config), strict=strict, root=root)
        for note in notes:
            warnings.warn(note, StoreWarning, stacklevel=4)
    base = base.replace(**settings) if settings else base
    return detect_sizes(env, root, base, base.given)


class DefaultStoreParts(NamedTuple):
    """What `open` found out, for Store."""

    env: Env
    config: MessageStoreConfig
    read_only: bool
    store_host: str | None
    unique_key: bool
    topics_json: bool


class Store(PutPath):
    """A store directory: put, read, query. Made by `pyrocketstore.open`.

    Threads: every method from any thread. After a fork the child's copy is dead: every call raises
    StoreStateError.
    """

    def __init__(self, parts: DefaultStoreParts) -> None:
        self.put_fast = False
        self._put_waits = False
        self._state = "closed"
        self._unique_key = parts.unique_key
        self.read_only = parts.read_only
        self.path = parts.config.store_path_root_dir
        self.store_host = parts.store_host or parts.config.store_host
        self._topics: TopicConfigFile | None = None
        #: queue ids of the put_many of a thread: the file is written once for all of them
        self._coming_ids: dict[int, list[Any]] = {}
        self.message_store = DefaultMessageStore(
            parts.config, env=parts.env, read_only=parts.read_only, on_new_queue=self._on_new_queue
        )
        self.bind_put_path(self.message_store.commit_log.core, self.store_host)
        self.message_store.load()
        self._key_search = KeySearch(
            self.message_store.commit_log.core,
            self.message_store.commit_log.mapped_file_queue,
            self.message_store.index_service,
            None if parts.read_only else self.message_store.dispatcher,
            self.wait_dispatched,
        )
        self._state = "open"
        self.message_store.on_dead = self._stop_putting
        try:
            if self.message_store.plan is not None and self.message_store.plan.broken:
                self._warn_broken()
            if not parts.read_only:
                self._start(parts)
        except BaseException:
            self.close()
            raise

    def _start(self, parts: DefaultStoreParts) -> None:
        self.message_store.start()
        if parts.topics_json:
            path = os.path.join(self.path, "config", "topics.json")
            self._topics = TopicConfigFile(parts.env, path)
            self._topics.load()
        service = self.message_store.services.flush_service
        if isinstance(service, GroupCommitService):
            self._put_waits = True
            self._wait_in(service.group)
        slave = parts.config.broker_role is BrokerRole.SLAVE
        self.put_fast = not (slave or parts.unique_key)
        if not self.message_store.running_flags.is_writeable():
            self._stop_putting()

    def _warn_broken(self) -> None:
        plan = self.message_store.plan
        if plan is not None:
            path, position, _ = plan.broken[0]
            kept = "" if self.read_only else "; what lies behind was kept in .broken"
            warnings.warn(
                f"{path}: the log ends before byte {position} ({plan.ended_by}), though valid "
                f"records lie behind it{kept}",
                StoreWarning,
                stacklevel=4,
            )

    def _stop_putting(self, state: str | None = None) -> None:
        self.put_fast = False
        if state is not None:
            self._state = state

    def _on_new_queue(self, topic: str, queue_id: int) -> None:
        light = self.message_store.config.enable_lmq and topic.startswith(LMQ_PREFIX)
        if self._topics is None or light:  # a broker knows light queues by their messages
            return
        ids = self._coming_ids.get(threading.get_ident(), ())
        wanted = [i for i in ids if type(i) is int and queue_id < i < COMING_ID_MAX]
        self._topics.ensure(topic, max(wanted, default=queue_id))
        try:
            self._topics.persist()
        except StoreIOError as error:
            raise PutError(
                PutMessageStatus.SERVICE_NOT_AVAILABLE, False, 0, f"config/topics.json: {error}"
            ) from error

    # ---- life cycle ---------------------------------------------------------------------------

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = ", read-only" if self.read_only else ""
        return f"<pyrocketstore.Store {self.path!r}, {self._state}{mode}>"

    def close(self) -> None:
        """Dispatch and force everything, note the clean end, give the directory free.

        A second call does nothing. Durability: all that was put is on the device.
        """
        self._stop_putting()
        if self._state == "open" and self.message_store.pid == os.getpid():
            self._state = "closed"
            release_memory()
            self.message_store.shutdown()

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._state != "open"

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreStateError(f"{self.path}: the store is {self._state}")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise StoreStateError(f"{self.path}: the store is open read-only")

    # ---- puts ---------------------------------------------------------------------------------

    def _put_slow(
        self,
        topic: str,
        body: Any,
        queue_id: int,
        tags: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        delay_level: int,
        flag: int,
        born_timestamp: int | None,
        born_host: str | None,
    ) -> PutMessageResult:
        """Everything that is not an ordinary put; the arguments are those of `put`."""
        self._check_writable()
        check_topic(topic)
        if delay_level:
            raise StoreFormatError("delay_level: this store has no delivery service")
        named = self._properties(tags, keys, properties)
        message = MessageExtBrokerInner(
            topic,
            body,
            queue_id,
            flag=flag,
            properties=named,
            properties_string=_message.properties_to_string(named),
            born_timestamp=self.message_store.now() if born_timestamp is None else born_timestamp,
            born_host=self.store_host if born_host is None else born_host,
            store_host=self.store_host,
        )
        return self._checked(self.message_store.put_message(message), 1)

    def _properties(
        self,
        tags: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
    ) -> dict[str, str]:
        named: dict[str, str] = {}
        if tags is not None:
            named["TAGS"] = check_text("tags", tags)
        joined = join_keys(keys)
        if joined is not None:
            named["KEYS"] = joined
        if properties:
            check_properties(properties)
            named.update(properties)
        if self._unique_key:
            named["UNIQ_KEY"] = new_unique_id(self.message_store.env, self.store_host)
        return named

    def _checked(self, result: PutMessageResult, count: int) -> PutMessageResult:
        if result.status_code == 0:
            return result
        status = PutMessageStatus(result.status_code)
        stored = status in STORED_STATUSES
        # A store that died earlier refuses without an error of its own.
        cause = result.error or self.message_store.why_not_writeable
        reason = "" if cause is None else str(cause)
        raise PutError(status, stored, count if stored else 0, reason) from cause

    def _roll(self, size: int) -> int:
        """Go on in the next file; the errno when it cannot be made, else 0."""
        try:
            self.message_store.commit_log.roll(size)
        except StoreIOError as error:
            return error.errno or errno.EIO
        except StoreCorruptionError:
            return errno.EEXIST  # the name of the next file is taken
        return 0

    def put_many(
        self,
        topic: str,
        bodies: Any,
        *,
        queue_ids: Any = None,
        tags: Any = None,
        keys: Any = None,
        properties: Any = None,
        born_host: str | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Append many messages in the given order; each is an ordinary single record.

        Parameters
        ----------
        bodies : sequence of bytes-like; a list, a NumPy array or an Arrow array
        queue_ids, tags, keys, properties : one entry a message (None allowed), or None; `queue_ids`
            may be one int for all

        Returns
        -------
        (queue_offsets, phy_offsets) : int64[n], int64[n] (bytes)

        Raises
        ------
        PutError, whose `count` says how many are in the log. Not atomic.

        Durability: as `put`, for all of them together.
        """
        self._check_writable()
        check_topic(topic)
        columns = self._columns(topic, bodies, queue_ids, tags, keys, properties)
        count = len(columns)
        queue_offsets = np.empty(count, np.int64)
        phy_offsets = np.empty(count, np.int64)
        status_before = self.message_store.check_store_status()
        if status_before is not PutMessageStatus.PUT_OK:
            raise PutError(status_before, False, 0, str(self.message_store.failure or ""))
        if not count:
            return queue_offsets, phy_offsets
        thread = threading.get_ident()
        self._coming_ids[thread] = columns.queue_ids or []
        try:
            done, status, error = self._append_columns(
                columns, queue_offsets, phy_offsets, born_host
            )
        finally:
            del self._coming_ids[thread]
        if status != RS_OK:
            self._put_many_failed(done, status, error)
        end = self.message_store.get_max_phy_offset()
        flushed = self.message_store.services.flush_service.handle_disk_flush(end, True)
        if flushed is not PutMessageStatus.PUT_OK:
            raise PutError(flushed, True, count)
        return queue_offsets, phy_offsets

    def _put_many_failed(self, done: int, status: int, error: int | Exception) -> None:
        if isinstance(error, Exception):
            outcome = PutMessageStatus.MESSAGE_ILLEGAL
            if isinstance(error, (PutError, StoreStateError)):
                outcome = PutMessageStatus.SERVICE_NOT_AVAILABLE
            raise PutError(outcome, False, done, str(error)) from error
        if status == RS_TOO_LARGE:
            reason = f"from message {done} on: longer than maxMessageSize or a commit log file"
            raise PutError(PutMessageStatus.MESSAGE_ILLEGAL, False, done, reason)
        if status == RS_BUSY:
            raise PutError(PutMessageStatus.OS_PAGECACHE_BUSY, False, done)
        path = self.message_store.config.commit_log_path
        cause = StoreIOError(error or errno.EIO, "append", path)
        outcome = (
            PutMessageStatus.UNKNOWN_ERROR
            if status == RS_IO_ERROR
            else PutMessageStatus.CREATE_MAPEDFILE_FAILED
        )
        raise PutError(outcome, False, done, str(cause)) from cause

    def _columns(
        self, topic: str, bodies: Any, queue_ids: Any, tags: Any, keys: Any, properties: Any
    ) -> Columns:
        """The columns of put_many as lists, all checked."""
        body_list = _column("bodies", bodies, None)
        count = len(body_list)
        ids: Any = 0 if queue_ids is None else queue_ids
        if not isinstance(ids, int):
            ids = _column("queue_ids", queue_ids, count)
        tag_list = None if tags is None else _column("tags", tags, count)
        key_list = None if keys is None else _column("keys", keys, count)
        texts: list[bytes | None] | None = None
        if properties is not None or self._unique_key:
            named = _column("properties", properties, count)
            texts = [
                put_properties(
                    None,
                    None,
                    self._properties(
                        None if tag_list is None else tag_list[i],
                        None if key_list is None else key_list[i],
                        named[i],
                    ),
                )
                for i in range(count)
            ]
            tag_list = key_list = None
        return Columns(topic, body_list, ids, tag_list, key_list, texts)

    def put_batch(self, topic: str, messages: Iterable[Any], queue_id: int = 0) -> PutMessageResult:
        """Append 4.9.3's batch: one queue, all or nothing, at most maxMessageSize together.

        Parameters
        ----------
        messages : of bytes-like bodies, of `Message`, or of mappings with `body`, `tags`, `keys`,
            `properties`, `flag`

        Raises PutError, StoreFormatError, StoreStateError.
        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessages.
        """
        self._check_writable()
        check_topic(topic)
        columns = self._batch_columns(topic, list(messages), queue_id)
        status = self.message_store.check_store_status()
        if status is not PutMessageStatus.PUT_OK:
            raise PutError(status, False, 0, str(self.message_store.failure or ""))
        result, outcome, error = self._append_batch(columns)
        if result is None:
            self._put_many_failed(0, outcome, error)
            raise AssertionError("not reached")
        return self._checked(self.message_store.wait_flushed(result), len(columns))

    def _batch_columns(self, topic: str, messages: list[Any], queue_id: int) -> Columns:
        """The messages of a batch as columns, all checked."""
        if not messages:
            raise StoreFormatError("a batch needs at least one message")
        if not self._unique_key:
            columns = Columns.of_items(topic, messages, queue_id)
            if columns is not None:
                return columns
        items = [self._batch_item(topic, item) for item in messages]
        texts: list[bytes | None] = [put_properties(None, None, item.properties) for item in items]
        flags = [item.flag for item in items]
        return Columns(topic, [item.body for item in items], queue_id, None, None, texts, flags)

    def _batch_item(self, topic: str, item: Any) -> Message:
        if isinstance(item, Message):
            if item.topic != topic:
                raise StoreFormatError(f"a message for {item.topic!r} in a batch for {topic!r}")
            named = dict(item.properties)
            named = self._properties(named.pop("TAGS", None), named.pop("KEYS", None), named)
            return Message(topic, item.body, flag=item.flag, properties=named)
        if isinstance(item, Mapping):
            unknown = item.keys() - {"body", "tags", "keys", "properties", "flag"}
            if unknown or "body" not in item:
                raise StoreFormatError(f"a message of a batch has no {sorted(unknown) or 'body'}")
            named = self._properties(item.get("tags"), item.get("keys"), item.get("properties"))
            return Message(topic, item["body"], flag=item.get("flag", 0), properties=named)
        return Message(topic, item, properties=self._properties(None, None, None))

    async def aput(self, topic: str, body: Any, **options: Any) -> PutMessageResult:
        """`put` for asyncio: the event loop goes on while the flush is waited for."""
        if self.put_fast and not self._put_waits:
            return self.put(topic, body, **options)
        return await asyncio.to_thread(self.put, topic, body, **options)

    # ---- waiting ------------------------------------------------------------------------------

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is found by queue and by key.

        Returns False when `timeout` (seconds) passed first.
        """
        self._check_open()
        return self.message_store.wait_dispatched(timeout)

    def flush(self) -> None:
        """Force everything that was put before to the device, its queues and index included."""
        self._check_writable()
        self.message_store.flush_all()

    # ---- queues -------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of the topics that have a queue, sorted."""
        self.wait_dispatched()
        return sorted(self.message_store.get_consume_queue_table())

    def queues(self, topic: str) -> list[int]:
        """Queue ids of a topic, sorted."""
        self.wait_dispatched()
        return sorted(self.message_store.get_consume_queue_table().get(topic, {}))

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._check_open()
        self.message_store.wait_dispatched()
        return self.message_store.find_consume_queue(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """First queue offset whose message the log still has; the end if there is none."""
        queue = self._queue(topic, queue_id)
        return queue.first_readable_offset(max(0, self.message_store.get_min_phy_offset()))

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """The queue's end: the offset that its next message gets."""
        return self._queue(topic, queue_id).get_max_offset_in_queue()

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """First offset whose store time is `timestamp_ms` (Unix ms) or later; the end if none."""
        queue = self._queue(topic, queue_id)
        return queue.lower_bound_by_time(
            timestamp_ms, self.message_store.commit_log.pickup_store_timestamp
        )

    # ---- reads --------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int | None = 0,
        *,
        start: int | None = None,
        stop: int | None = None,
        tags: str = "*",
    ) -> Iterator[MessageExt]:
        """The messages of a queue in order.

        Parameters
        ----------
        queue_id : None merges all queues of the topic by store time
        start, stop : queue offsets; None: the first readable one, the end at this call
        tags : "*" or "TagA || TagB", compared exactly

        Raises
        ------
        OffsetOutOfRange at this call; StoreCorruptionError, StoreIOError while reading
        """
        if queue_id is None:
            ids = self.queues(topic)
            parts = [self.read(topic, i, start=start, stop=stop, tags=tags) for i in ids]
            return heapq.merge(*parts, key=lambda m: (m.store_timestamp, m.phy_offset))
        first, end = self._range(topic, queue_id, start, stop)
        wanted = tags_filter(tags)
        pieces = self._pieces(topic, queue_id, first, end, wanted)
        return MessageIterator(pieces, None if wanted is None else wanted.tags, self._check_open)

    def _range(
        self, topic: str, queue_id: int, start: int | None, stop: int | None
    ) -> tuple[int, int]:
        high = self.max_offset(topic, queue_id)
        low = self.min_offset(topic, queue_id)
        first = low if start is None else start
        if not low <= first <= high:
            raise OffsetOutOfRange(low, high, first)
        return first, high if stop is None else min(stop, high)

    def _pieces(
        self, topic: str, queue_id: int, start: int, stop: int, wanted: TagsExpression | None
    ) -> Iterator[Piece]:
        """Where the messages of a range of a queue lie, file by file."""
        queue = self.message_store.find_consume_queue(topic, queue_id)
        count = FIRST_READ_COUNT
        while start < stop:
            self._check_open()
            units = queue.read_units(start, min(count, stop - start))
            if not len(units.phy_offset):
                return
            keep = ~units.is_pre_blank()
            keep &= units.phy_offset >= self.message_store.get_min_phy_offset()
            if wanted is not None and queue.ext is None:
                keep &= np.isin(units.tags_code, wanted.codes)
            start += len(units.phy_offset)
            count = min(2 * count, READ_COUNT)
            yield from by_file(
                self.message_store.commit_log, units.phy_offset[keep], units.size[keep]
            )

    def read_batch(
        self,
        topic: str,
        queue_id: int = 0,
        *,
        start: int,
        max_count: int = 65536,
        max_bytes: int = 64 << 20,
        columns: Sequence[str] | None = None,
        tags: str = "*",
    ) -> pyarrow.RecordBatch:
        """A range of a queue as one Arrow record batch; stops at either bound.

        Parameters
        ----------
        start : queue offset
        max_count : units looked at, at most
        max_bytes : bytes of records, at most; one record always fits
        columns : names of message attributes, None for all
        tags : as of `read`

        Returns
        -------
        pyarrow.RecordBatch, whose schema metadata has `next_offset`

        Raises
        ------
        MissingExtraError without pyarrow; OffsetOutOfRange, StoreCorruptionError, StoreIOError
        """
        first, end = self._range(topic, queue_id, start, None)
        queue = self.message_store.find_consume_queue(topic, queue_id)
        return read_record_batch(
            self.message_store.commit_log,
            queue,
            first,
            min(end, first + max(0, max_count)),
            max_bytes,
            columns,
            tags_filter(tags),
        )

    # ---- keys ---------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int | None = None,
        max_num: int = 32,
        exact: bool = True,
    ) -> list[MessageExt]:
        """The newest `max_num` messages of a topic with a key, ascending by physical offset.

        Parameters
        ----------
        begin, end : Unix ms of the store time, both inclusive
        exact : drop messages that only share the key's hash

        Raises StoreCorruptionError, StoreIOError.
        """
        if self._state != "open":
            self._check_open()
        until = MAX_TIMESTAMP if end is None else end
        return self._key_search.query(topic, key, begin, until, max_num, exact)

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        begin: int = 0,
        end: int | None = None,
        max_num: int = 32,
    ) -> KeyHits:
        """`query` for many keys at once: columns instead of messages, exact hits only."""
        self._check_open()
        until = MAX_TIMESTAMP if end is None else end
        texts = _column("keys", keys, None)
        return KeyHits(*self._key_search.query_many(topic, texts, begin, until, max_num))

    def get(self, phy_offset_or_msg_id: int | str) -> MessageExt | None:
        """The message at a physical offset, or with an offset message id; None if there is none."""
        self._check_open()
        if isinstance(phy_offset_or_msg_id, str):
            _, phy_offset = _message.decode_message_id(phy_offset_or_msg_id)
        else:
            phy_offset = phy_offset_or_msg_id
        return self._message_at(phy_offset)

    def _message_at(self, phy_offset: int) -> MessageExt | None:
        """The message whose own place that is: bytes inside of a body may look like one."""
        log = self.message_store.commit_log
        if log.get_max_offset() <= phy_offset < log.get_appended_offset():
            log.commit_buffers()  # it was put, and lies in a buffer
        message = self.message_store.look_message_by_offset(phy_offset)
        return None if message is None or message.phy_offset != phy_offset else message

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check log, queues and index against each other; nothing is changed.

        Parameters
        ----------
        progress : callable(bytes done, bytes in all)
        """
        from pyrocketstore.verify import verify_store

        self._check_open()
        self.message_store.wait_dispatched()
        return verify_store(self.message_store, progress)


def _column(name: str, values: Any, count: int | None) -> list[Any]:
    """A list, NumPy array or Arrow array as a list; None as a list of None."""
    if values is None and count is not None:
        return [None] * count
    if isinstance(values, (str, bytes)):
        raise StoreFormatError(f"{name}: a sequence is wanted, one entry a message")
    entries: list[Any]
    if hasattr(values, "to_pylist"):
        entries = values.to_pylist()
    elif isinstance(values, np.ndarray):
        entries = values.tolist()
    else:
        entries = list(values)
    if count is not None and len(entries) != count:
        raise StoreFormatError(f"{name} has {len(entries)} entries for {count} bodies")
    return entries


def _close_at_exit() -> None:
    texts = []
    for store in list(OPEN_STORES):
        if store.pid == os.getpid():
            text = f"{store.root}: the store was not closed"
            try:
                store.shutdown()
            except StoreError as error:
                text += f", and that failed now: {error}"
            texts.append(text)
    # Last, since a warning may be an error.
    for text in texts:
        warnings.warn(text, ResourceWarning, stacklevel=1)


atexit.register(_close_at_exit)
