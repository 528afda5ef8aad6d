"""The face: `pyrocketstore.open(path)` gives a Store."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pyrocketstore import _message
from pyrocketstore._columns import release_memory
from pyrocketstore._exact import body_bytes, int_between
from pyrocketstore._key_search import KeySearch
from pyrocketstore._message import MessageExt
from pyrocketstore._put_columns import Columns
from pyrocketstore._put_result import PutMessageResult
from pyrocketstore._reader import MergedMessages, MessageIterator
from pyrocketstore.arguments import queue_id_of
from pyrocketstore.async_store import Appender, AsyncStore
from pyrocketstore.at_exit import close_at_exit
from pyrocketstore.batches import read_record_batch
from pyrocketstore.config import BrokerRole, MessageStoreConfig, absolute_path
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import (
    OffsetOutOfRange,
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.exact import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    QUEUE_ID_MAX,
    exact_flag,
    exact_int64,
    exact_queue_id,
    exact_text,
    whole_number,
)
from pyrocketstore.flush import GroupCommitService
from pyrocketstore.key_gaps import KeyGaps
from pyrocketstore.lost_ends import lost_end
from pyrocketstore.message import (
    Message,
    MessageExtBrokerInner,
    MessageRefused,
    batch_too_large,
    check_topic,
    property_pairs,
)
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.put_rules import named_properties, properties_text
from pyrocketstore.queue_reading import QueuePieces, QueueRange
from pyrocketstore.recovery import RecoveryPlan
from pyrocketstore.results import STORED_STATUSES, PutMessageStatus
from pyrocketstore.shield import imported, shielded
from pyrocketstore.skipped import MessageReader, QueueDamage, SkippedMessages
from pyrocketstore.store_parts import (
    DefaultStoreParts,
    KeyHits,
    NewQueues,
    StoreWarning,
    column_of,
    is_number,
    settings_of,
)
from pyrocketstore.tags import TagsExpression, tags_filter
from pyrocketstore.topic_config import TopicConfigFile
from pyrocketstore.topic_names import check_known
from pyrocketstore.unique_id import new_unique_id
from pyrocketstore.unreadable_hits import UnreadableHits

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.verify import VerifyReport

LOG = logger(__name__)

#: The compiled append's answers; the same numbers as rs_status.
RS_OK, RS_IO_ERROR, RS_TOO_LARGE, RS_BUSY = 0, 26, 28, 30
#: So many files of a wrong length are named when a store is opened.
MISMATCHED_MAX = 5


def open(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    config: MessageStoreConfig | str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
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
    path : the root directory; made when it is missing, unless `read_only`. Relative paths, here
        and in the settings, count from the working directory at this call
    config : a MessageStoreConfig, or the path of a broker.conf
    read_only : nothing is created, written or locked; also of a store that another process writes
    unique_key : add a UNIQ_KEY to each message, as Java's clients do
    topics_json : keep ROOT/config/topics.json, without which a broker serves no topic
    store_host : "ip:port" in each record, default `brokerIP1:listenPort` or 127.0.0.1:10911
    strict : make an error of what a broker.conf would only be warned of
    settings : names of MessageStoreConfig; sizes that are not given come from the files. Nothing is
        ever deleted unless `file_reserved_time`, `disk_max_used_space_ratio` or a broker.conf is
        given

    Raises
    ------
    StoreStateError: already open. StoreCorruptionError, StoreIOError: the files. StoreFormatError:
    the settings.

    Source: RocketMQ 4.9.3 DefaultMessageStore#load, #start.
    """
    if env is not None and not isinstance(env, Env):
        raise StoreTypeError(f"env must be a pyrocketstore.env.Env, not {type(env).__name__}")
    root = absolute_path(path, "path")
    read_only, strict = exact_flag("read_only", read_only), exact_flag("strict", strict)
    unique_key = exact_flag("unique_key", unique_key)
    topics_json = exact_flag("topics_json", topics_json)
    used = Env() if env is None else env
    notices: list[str] = []

    def open_store() -> Store:
        if read_only and not used.is_dir(root):
            raise StoreIOError(2, "open", root)
        final = settings_of(used, root, config, strict, settings, notices, read_only)
        parts = (used, final, read_only, store_host, unique_key, topics_json, notices)
        return Store(DefaultStoreParts(*parts))

    store = shielded(open_store, Store.close)
    try:  # here, where the caller is known
        for notice in notices:
            warnings.warn(notice, StoreWarning, stacklevel=2)
    except BaseException:
        store.close()
        raise
    return store


class Store(AsyncStore):
    """A store directory: put, read, query. Made by `pyrocketstore.open`.

    A store that nobody refers to any more is closed, with a ResourceWarning. Iterators of `read`,
    coroutines of `aput` and `message_store` count as references.

    Threads: every method from any thread. After a fork the child's copy is dead: every call raises
    StoreStateError.
    """

    def __init__(self, parts: DefaultStoreParts) -> None:
        self.put_fast = False
        self._may_put_fast = False
        self._state = "closed"
        self._unique_key = parts.unique_key
        self.read_only = parts.read_only
        self.path = parts.config.store_path_root_dir
        given = parts.store_host
        self.store_host = parts.config.store_host if given is None else given
        self._new_queues = NewQueues(parts.config)
        self.message_store = DefaultMessageStore(
            parts.config,
            env=parts.env,
            read_only=parts.read_only,
            on_new_queue=self._new_queues.add,
            cleans=parts.config.asks_for_cleaning,
        )
        core = self.message_store.commit_log.core
        self.bind_put_path(core, self.store_host)
        self._appender = Appender(core, self.store_host, self)
        self.message_store.load()
        self._key_search = KeySearch(
            self.message_store.commit_log.core,
            self.message_store.commit_log.mapped_file_queue,
            self.message_store.index_service,
            None if parts.read_only else self.message_store.dispatcher,
            self.message_store.wait_dispatched,
        )
        self._key_search.gaps = self._find_key_gaps()
        self._key_search.unreadable = UnreadableHits(self.message_store.commit_log)
        self._state = "open"
        self.message_store.on_dead = _while_alive(self._stop_putting)
        try:
            plan = self.message_store.plan
            if plan is not None:
                parts.notices.extend(self._notices_of(plan))
            parts.notices.extend(self.message_store.index_service.notices())
            if not parts.read_only:
                self._start(parts)
        except BaseException:
            self.close()
            raise

    @property
    def key_gaps(self) -> KeyGaps | None:
        """Where queries search the log because the index does not cover it; None: nowhere."""
        gaps: KeyGaps | None = self._key_search.gaps
        return gaps

    def _find_key_gaps(self) -> KeyGaps | None:
        """Where queries must search the log; None where the index covers it."""
        engine = self.message_store
        parts = engine.uncovered_by_index() if engine.index_enabled else []
        config = engine.config
        if not parts:
            return None
        files = engine.index_service.files
        return KeyGaps(engine.env, engine.commit_log, files, parts, config.max_key_search_bytes)

    def _start(self, parts: DefaultStoreParts) -> None:
        self.message_store.start()
        if parts.topics_json:
            path = os.path.join(self.path, "config", "topics.json")
            topics = TopicConfigFile(parts.env, path)
            topics.load()
            self._new_queues.topics = topics
        service = self.message_store.services.flush_service
        if isinstance(service, GroupCommitService):
            self._wait_in(service.group)
        slave = parts.config.broker_role is BrokerRole.SLAVE
        bounded = self.message_store.async_puts.max_unforced_bytes > 0
        self._may_put_fast = not (slave or parts.unique_key or bounded)
        self.put_fast = self._appender.put_fast = self._may_put_fast
        self.message_store.on_alive = _while_alive(self._go_on_putting)
        if not self.message_store.running_flags.is_writeable():
            self._stop_putting()
        cleaning = self.message_store.services.clean_resource
        if cleaning is not None and cleaning.notice is not None:
            parts.notices.append(cleaning.notice)

    def _notices_of(self, plan: RecoveryPlan) -> Iterator[str]:
        """What the owner should know of what the opening found."""
        if plan.broken:
            path, position, _ = plan.broken[0]
            kept = "" if self.read_only else "; what lies behind was kept in .broken"
            yield (
                f"{path}: the log ends before byte {position} ({plan.ended_by}), though valid "
                f"records lie behind it{kept}"
            )
        lost = lost_end(self.message_store, plan.beyond)
        if lost is not None:
            LOG.warning("%s; these messages are missing: restore the files from a copy", lost)
        log_paths = self.message_store.config.all_commit_log_paths
        for path, reason in plan.mismatched[:MISMATCHED_MAX]:
            if os.path.dirname(path) in log_paths:
                yield f"{path}: {reason}; this part of the log is read as far as the file goes"
            else:
                where = " in memory" if self.read_only else ""
                yield f"{path}: {reason}; the units that it lacks were built{where} from the log"
        if len(plan.mismatched) > MISMATCHED_MAX:
            yield f"{len(plan.mismatched) - MISMATCHED_MAX} more files have a wrong length or name"

    def _stop_putting(self, state: str | None = None) -> None:
        self.put_fast = self._appender.put_fast = False
        if state is not None:
            self._state = state

    def _go_on_putting(self) -> None:
        self.put_fast = self._may_put_fast and self._state == "open"
        self._appender.put_fast = self.put_fast

    # ---- life cycle ---------------------------------------------------------------------------

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StoreError as unclean:
            if error is None:
                raise
            # What the body raised is what its caller waits for.
            LOG.error("the store was not closed cleanly: %s", unclean)
            error.add_note(f"and the store was not closed cleanly: {unclean}")

    def __repr__(self) -> str:
        mode = ", read-only" if self.read_only else ""
        return f"<pyrocketstore.Store {self.path!r}, {self._state}{mode}>"

    def close(self) -> None:
        """Dispatch and force everything, note the clean end, give the directory free.

        A second call does nothing, unless Ctrl-C got through the first: then it waits for that to
        end, and until it has, the directory stays taken. A signal handler may call it, whatever it
        interrupts, and end the process then. Durability: all that was put is on the device.

        Raises the StoreError that kept that from being so, also one that was told before, after
        all was given back: `abort` stays, and the next opening recovers. Where the body of a `with`
        raised, this is a note to its exception.
        """
        self._stop_putting()
        if self.message_store.pid != os.getpid():
            return
        if self._state == "open":
            self._state = "closed"
            release_memory()
        if not self.message_store.has_ended:
            self.message_store.shutdown()

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._state != "open"

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreStateError(f"{self.path}: the store is {self._state}")

    @contextlib.contextmanager
    def _while_open(self) -> Iterator[None]:
        """What is read inside is whole: files that a close let go look damaged, or empty."""
        self._check_open()
        try:
            yield
        except StoreCorruptionError:
            self._check_open()
            raise
        self._check_open()

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise StoreStateError(f"{self.path}: the store is open read-only")

    # ---- puts ---------------------------------------------------------------------------------

    def _put_slow(self, *arguments: Any) -> PutMessageResult:
        """Everything that is not an ordinary put; the arguments are those of `put`."""
        message = self._message_of(*arguments)
        while True:
            has_room = self._make_room()
            result = self.message_store.put_settled(message)
            if not (has_room and self._may_wait(result.status)):
                return self._checked(result, 1)

    def _message_of(
        self,
        topic: Any,
        body: Any,
        queue_id: Any,
        tags: Any,
        keys: Any,
        properties: Any,
        delay_level: Any,
        flag: Any,
        born_timestamp: Any,
        born_host: Any,
    ) -> MessageExtBrokerInner:
        """The arguments of `put` as a message: each taken once, as the type that is stored."""
        self._check_writable()
        topic = check_topic(topic)
        queue_id = int_between(queue_id, 0, QUEUE_ID_MAX, "queue_id")
        if int_between(delay_level, INT32_MIN, INT32_MAX, "delay_level"):
            raise StoreFormatError("delay_level: this store has no delivery service")
        if born_timestamp is None:
            born_timestamp = self.message_store.now()
        else:
            born_timestamp = int_between(born_timestamp, INT64_MIN, INT64_MAX, "born_timestamp")
        named = self._properties(tags, keys, properties)
        return MessageExtBrokerInner(
            topic,
            body_bytes(body),
            queue_id,
            flag=int_between(flag, INT32_MIN, INT32_MAX, "flag"),
            properties=named,
            properties_string=self._text_of(named),
            born_timestamp=born_timestamp,
            born_host=self.store_host if born_host is None else born_host,
            store_host=self.store_host,
        )

    def _text_of(self, named: dict[str, str]) -> str:
        """The properties text of a message. Raises PutError: it is too long."""
        try:
            return properties_text(named)
        except MessageRefused as refused:
            raise self._illegal(refused) from refused

    def _illegal(self, refused: MessageRefused) -> PutError:
        """A message that no put could store; nothing of its call is in the log."""
        self.message_store.stats_service.note_outcome(PutMessageStatus[refused.status], 0)
        return PutError(PutMessageStatus[refused.status], False, 0, refused.reason)

    def _properties(self, tags: Any, keys: Any, properties: Any) -> dict[str, str]:
        named = named_properties(tags, keys, properties)
        if self._unique_key:
            named["UNIQ_KEY"] = new_unique_id(self.message_store.env, self.store_host)
        return named

    def _checked(self, result: PutMessageResult, count: int) -> PutMessageResult:
        if result.status_code == 0:
            return result
        status = PutMessageStatus(result.status_code)
        stored = status in STORED_STATUSES
        # A store that died earlier refuses without an error of its own.
        if not stored:
            self._check_open()  # a close beside this put says more than its status
        cause = result.error or self.message_store.why_not_writeable
        reason = "" if cause is None else str(cause)
        if isinstance(cause, MessageRefused):
            reason = cause.reason
        raise PutError(status, stored, count if stored else 0, reason) from cause

    def _refused(self, status: PutMessageStatus) -> PutError:
        """Nothing was put, and what stopped the store. Raises StoreStateError: a close did."""
        self._check_open()
        cause = self.message_store.why_not_writeable
        error = PutError(status, False, 0, "" if cause is None else str(cause))
        error.__cause__ = cause
        return error

    def _wait_for_room(self) -> None:
        """Raises PutError, with what stopped the store, when no put may be tried."""
        while True:
            has_room = self._make_room()
            status = self.message_store.check_store_status()
            if status is PutMessageStatus.PUT_OK:
                return
            if not (has_room and self._may_wait(status)):
                raise self._refused(status)

    def _roll(self, size: int) -> int:
        """Go on in the next file; the errno when it cannot be made, else 0."""
        try:
            self.message_store.commit_log.roll(size)
        except StoreIOError as error:
            return error.errno or errno.EIO
        except StoreCorruptionError:
            return errno.EEXIST  # the name of the next file is taken
        except StoreStateError:
            return errno.ESHUTDOWN  # a close beside this put
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
        bodies : sequence of bytes-like; a list, a NumPy array (of objects or V, not S, which drops
            zeros) or an Arrow array
        queue_ids, tags, keys, properties : one entry a message (None allowed), or None, each as
            `put` takes it; `queue_ids` may be one int for all

        Returns
        -------
        (queue_offsets, phy_offsets) : int64[n], int64[n] (bytes)

        Raises
        ------
        StoreTypeError, StoreFormatError, PutError with a `count` of 0: a row that no put could
        store, before any of them is written
        PutError, whose `count` says how many are in the log. Not atomic
        StoreStateError, closed or read-only, and nothing is in the log

        Durability: as `put`, for all of them together.
        """
        self._check_writable()
        topic = check_topic(topic)
        columns = self._columns(topic, bodies, queue_ids, tags, keys, properties)
        count = len(columns)
        queue_offsets = np.empty(count, np.int64)
        phy_offsets = np.empty(count, np.int64)
        self._wait_for_room()
        if not count:
            return queue_offsets, phy_offsets
        began = self.message_store.env.monotonic_ms()
        try:
            with self._new_queues.coming_ids.known(columns):
                done, status, error = self._append_columns(
                    columns, queue_offsets, phy_offsets, born_host
                )
        except MessageRefused as refused:
            raise self._illegal(refused) from refused
        if status != RS_OK:
            self._put_many_failed(done, status, error, began)
        end = self.message_store.get_max_phy_offset()
        flushed = self.message_store.services.flush_service.handle_disk_flush(end, True)
        self._note_many(flushed, count, began)
        if flushed is not PutMessageStatus.PUT_OK:
            raise PutError(flushed, True, count)
        return queue_offsets, phy_offsets

    def _put_many_failed(
        self, done: int, status: int, error: int | Exception, began: int
    ) -> NoReturn:
        if done == 0:
            self._check_open()
        if isinstance(error, Exception):
            outcome = PutMessageStatus.MESSAGE_ILLEGAL
            if isinstance(error, (PutError, StoreStateError)):
                outcome = PutMessageStatus.SERVICE_NOT_AVAILABLE
            self._note_many(outcome, done, began)
            raise PutError(outcome, False, done, str(error)) from error
        if status == RS_TOO_LARGE:  # of a batch: each row of it fits
            limit = self.message_store.commit_log.core.max_message_size
            raise self._illegal(batch_too_large(limit + 1, limit))
        if status == RS_BUSY:
            raise PutError(PutMessageStatus.OS_PAGECACHE_BUSY, False, done)
        if error == errno.ESHUTDOWN:
            reason = f"from message {done} on: the store was closed meanwhile"
            self._note_many(PutMessageStatus.SERVICE_NOT_AVAILABLE, done, began)
            raise PutError(PutMessageStatus.SERVICE_NOT_AVAILABLE, False, done, reason)
        path = self.message_store.config.commit_log_path
        operation = self.message_store.commit_log.core.failed_operation
        cause = StoreIOError(error or errno.EIO, operation, path)
        outcome = (
            PutMessageStatus.UNKNOWN_ERROR
            if status == RS_IO_ERROR
            else PutMessageStatus.CREATE_MAPEDFILE_FAILED
        )
        self._note_many(outcome, done, began)
        raise PutError(outcome, False, done, str(cause)) from cause

    def _columns(
        self, topic: str, bodies: Any, queue_ids: Any, tags: Any, keys: Any, properties: Any
    ) -> Columns:
        """The columns of put_many and put_batch as lists, all checked."""
        body_list = column_of("bodies", bodies, None)
        count = len(body_list)
        ids: Any = 0 if queue_ids is None else queue_ids
        ids = exact_queue_id(ids) if is_number(ids) else column_of("queue_ids", queue_ids, count)
        tag_list = None if tags is None else column_of("tags", tags, count)
        key_list = None if keys is None else column_of("keys", keys, count)
        texts: list[bytes | None] | None = None
        if properties is not None or self._unique_key:
            named = column_of("properties", properties, count)
            texts = [
                self._text_of(
                    self._properties(
                        None if tag_list is None else tag_list[i],
                        None if key_list is None else key_list[i],
                        named[i],
                    )
                ).encode()
                for i in range(count)
            ]
            tag_list = key_list = None
        return self._checked_columns(topic, body_list, ids, tag_list, key_list, texts)

    def _checked_columns(self, *columns: Any) -> Columns:
        try:
            return Columns(*columns)
        except MessageRefused as refused:
            raise self._illegal(refused) from refused

    def put_batch(
        self,
        topic: str,
        messages: Iterable[Any],
        queue_id: int = 0,
        *,
        tags: Any = None,
        keys: Any = None,
        properties: Any = None,
    ) -> PutMessageResult:
        """Append 4.9.3's batch: one queue, all or nothing, at most maxMessageSize together.

        Parameters
        ----------
        messages : of bytes-like bodies, of `Message`, or of mappings with `body`, `tags`, `keys`,
            `properties`, `flag`
        tags, keys, properties : columns as `put_many` takes them, the fastest form: one entry a
            message (None allowed), or None; with any of them all messages are bytes-like

        Raises PutError, StoreFormatError, StoreStateError.
        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessages.
        """
        self._check_writable()
        topic = check_topic(topic)
        queue_id = exact_queue_id(queue_id)
        if tags is None and keys is None and properties is None:
            columns = self._batch_columns(topic, column_of("messages", messages, None), queue_id)
        else:
            columns = self._columns(topic, messages, queue_id, tags, keys, properties)
        if not len(columns):
            raise StoreFormatError("a batch needs at least one message")
        self._wait_for_room()
        try:
            result, outcome, error = self._append_batch(columns)
        except MessageRefused as refused:
            raise self._illegal(refused) from refused
        if result is None:
            self._put_many_failed(0, outcome, error, self.message_store.now())
        return self._checked(self.message_store.wait_flushed(result), len(columns))

    def _batch_columns(self, topic: str, messages: list[Any], queue_id: int) -> Columns:
        """The messages of a batch as columns, all checked."""
        if not self._unique_key:
            try:
                columns = Columns.of_items(topic, messages, queue_id)
            except MessageRefused as refused:
                raise self._illegal(refused) from refused
            if columns is not None:
                return columns
        items = [self._batch_item(topic, item) for item in messages]
        texts: list[bytes | None] = [self._text_of(item.properties).encode() for item in items]
        flags = [item.flag for item in items]
        bodies = [item.body for item in items]
        return self._checked_columns(topic, bodies, queue_id, None, None, texts, flags)

    def _batch_item(self, topic: str, item: Any) -> Message:
        if isinstance(item, Message):
            if check_topic(item.topic) != topic:
                raise StoreFormatError(f"a message for {item.topic!r} in a batch for {topic!r}")
            named: Any = dict(property_pairs("properties", item.properties))
            named = self._properties(named.pop("TAGS", None), named.pop("KEYS", None), named)
            return Message(topic, item.body, flag=item.flag, properties=named)
        if isinstance(item, Mapping):
            item = dict(property_pairs("a message of a batch", item))
            unknown = item.keys() - {"body", "tags", "keys", "properties", "flag"}
            if unknown or "body" not in item:
                names = sorted(map(repr, unknown)) or "body"
                raise StoreFormatError(f"a message of a batch has no {names}")
            named = self._properties(item.get("tags"), item.get("keys"), item.get("properties"))
            return Message(topic, item["body"], flag=item.get("flag", 0), properties=named)
        return Message(topic, item, properties=self._properties(None, None, None))

    # ---- waiting ------------------------------------------------------------------------------

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is found by queue and by key.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises TypeError,
        StoreFormatError: no such number.
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
        topic = exact_text("topic", topic)
        self.wait_dispatched()
        return sorted(self.message_store.get_consume_queue_table().get(topic, {}))

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        exact_text("topic", topic)
        queue_id = queue_id_of(queue_id)
        self._check_open()
        self.message_store.wait_dispatched()
        return self.message_store.find_consume_queue(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """First queue offset whose message the log still has; the end if there is none.

        A queue that does not exist has no messages: 0.

        Raises TypeError, StoreFormatError: no name, or no queue id.
        """
        with self._while_open():
            queue = self._queue(topic, queue_id)
            self.message_store.commit_log.mapped_file_queue.forget_deleted()
            return queue.first_readable_offset(max(0, self.message_store.get_min_phy_offset()))

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """The queue's end: the offset that its next message gets; 0 for one that does not exist.

        Raises TypeError, StoreFormatError: no name, or no queue id.
        """
        with self._while_open():
            return self._queue(topic, queue_id).get_max_offset_in_queue()

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """First offset whose store time is `timestamp_ms` (Unix ms) or later; the end if none.

        Raises TypeError, StoreFormatError: no name, no queue id, or no time.
        """
        timestamp_ms = exact_int64("timestamp_ms", timestamp_ms)
        with self._while_open():
            return self._queue(topic, queue_id).lower_bound_by_time(
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
        tags: str | None = "*",
        on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> MessageReader:
        """The messages of a queue in order.

        Parameters
        ----------
        queue_id : None merges all queues of the topic by store time; `start` and `stop` belong to
            one queue and are refused then
        start, stop : queue offsets; None: the first readable one, the end at this call
        tags : "TagA || TagB", compared exactly; "*" or None: all
        on_corrupt : what becomes of a message that cannot be read, because its record or its unit
            in the queue is damaged, or the file of the log is missing. "raise": the iterator raises
            DamagedMessageError, whose `start` and `stop` are queue offsets, and its next call
            continues at `stop`. Each such message is in the range of one error; a missing file may
            take several errors, one behind the other. "skip": it passes over that message
        check_crc : True: a body that does not have its CRC is damage, too

        Returns
        -------
        An iterator of MessageExt, whose attribute `skipped` (SkippedMessages) has the count and the
        ranges of the messages that could not be read so far

        Raises
        ------
        UnknownTopicError, OffsetOutOfRange, StoreFormatError, TypeError at this call;
        DamagedMessageError (a StoreCorruptionError) and StoreIOError while reading. After the
        StoreIOError of a record the iterator continues; after that of a queue's file it has ended

        Messages that expire before their turn are passed over: it goes on at the new minimum.
        """
        skipped = SkippedMessages()
        checked = exact_flag("check_crc", check_crc)
        options = _ReadOptions(tags_filter(tags), on_corrupt, checked, skipped)
        if queue_id is not None:
            return self._messages(topic, queue_id, start, stop, options)
        if start is not None or stop is not None:
            raise StoreFormatError("start and stop belong to one queue: give a queue_id with them")
        options.damage(topic, 0)  # a wrong word is told here, also where there is no queue
        ids = self.queues(topic)
        if not ids:
            self._check_topic(topic)
        parts = [self._messages(topic, i, None, None, options) for i in ids]
        return MergedMessages(parts, skipped)

    def _messages(
        self,
        topic: str,
        queue_id: int,
        start: int | None,
        stop: int | None,
        options: _ReadOptions,
    ) -> MessageIterator:
        with self._while_open():
            part, first, end = self._part(topic, queue_id, start, stop, options)
        note_get = self.message_store.stats_service.note_get
        return QueuePieces(part, first, end, self._while_open, note_get).messages()

    def _part(
        self,
        topic: str,
        queue_id: int,
        start: int | None,
        stop: int | None,
        options: _ReadOptions,
    ) -> tuple[QueueRange, int, int]:
        """What to read of a queue, and its queue offsets."""
        topic, queue_id = exact_text("topic", topic), queue_id_of(queue_id)
        damage = options.damage(topic, queue_id)
        self.message_store.wait_dispatched()
        queue = self.message_store.queue_table.get(topic, queue_id)
        if queue is None:
            self._check_topic(topic)
            queue = self.message_store.find_consume_queue(topic, queue_id)
        log = self.message_store.commit_log
        floor = max(0, log.get_min_offset())
        low = queue.first_readable_offset(floor)  # first: it may move while messages are put
        high = queue.get_max_offset_in_queue()
        first = low if start is None else whole_number("start", start)
        end = high if stop is None else min(whole_number("stop", stop), high)
        if not low <= first <= high:
            raise OffsetOutOfRange(low, high, first, topic, queue_id)
        part = QueueRange(log, queue, floor, options.wanted, damage, options.check_crc)
        return part, first, end

    def _check_topic(self, topic: str) -> None:
        """Raise UnknownTopicError for a topic without a queue that nothing else names."""
        known = self.message_store.get_consume_queue_table()
        if topic not in known:
            check_known(self.message_store.env, self.path, topic, known)

    def read_batch(
        self,
        topic: str,
        queue_id: int = 0,
        *,
        start: int,
        max_count: int = 65536,
        max_bytes: int = 64 << 20,
        columns: Sequence[str] | None = None,
        tags: str | None = "*",
        on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> pyarrow.RecordBatch:
        """A range of a queue as one Arrow record batch; stops at either bound.

        Parameters
        ----------
        start : queue offset
        max_count : units looked at, at most
        max_bytes : bytes of records as they are stored, at most, and bytes of `body` once bodies
            are inflated, at most; one record always fits
        columns : names of message attributes, None for all; none gives a batch that has only rows
        tags, check_crc : as of `read`
        on_corrupt : as of `read`. "raise": no batch is given; `start` and `stop` of the error say
            which messages cannot be read. "skip": also a body that does not inflate is passed over

        Returns
        -------
        pyarrow.RecordBatch, whose schema metadata has `next_offset`; with on_corrupt="skip" also
        `skipped_count` and `skipped`, the ranges as a JSON array of SkippedRange's parameters

        Raises
        ------
        MissingExtraError without pyarrow; UnknownTopicError, OffsetOutOfRange, DamagedMessageError
        (a StoreCorruptionError), StoreIOError, StoreFormatError, TypeError
        """
        count = whole_number("max_count", max_count)
        byte_count = min(whole_number("max_bytes", max_bytes), INT64_MAX)
        checked = exact_flag("check_crc", check_crc)
        options = _ReadOptions(tags_filter(tags), on_corrupt, checked, SkippedMessages(None))
        with self._while_open():
            part, first, end = self._part(topic, queue_id, start, None, options)
            stop = min(end, first + max(0, count))
            return read_record_batch(part, first, stop, max(byte_count, 0), columns)

    # ---- keys ---------------------------------------------------------------------------------

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        begin: int = 0,
        end: int | None = None,
        max_num: int = 32,
    ) -> KeyHits:
        """`query` for many keys at once: columns instead of messages, exact hits only.

        One StoreWarning tells of what cannot be read, for all keys together.
        """
        since = exact_int64("begin", begin)
        until = INT64_MAX if end is None else exact_int64("end", end)
        topic, count = exact_text("topic", topic), whole_number("max_num", max_num)
        texts = [exact_text("a key", key) for key in column_of("keys", keys, None)]
        with self._while_open():
            return KeyHits(*self._key_search.query_many(topic, texts, since, until, count))

    def get(self, phy_offset_or_msg_id: int | str) -> MessageExt | None:
        """The message at a physical offset, or with an offset message id; None if there is none.

        It is given as RocketMQ gives it, also with a body that does not have its CRC: that is what
        `MessageExt.is_crc_valid` says.
        """
        given = phy_offset_or_msg_id
        if type(given) is int:  # as nearly always
            phy_offset = given
        elif isinstance(given, str):
            phy_offset = _message.decode_message_id(exact_text("a message id", given))[1]
        else:
            phy_offset = whole_number("a physical offset", given)
        if not 0 <= phy_offset <= INT64_MAX:
            return None
        with self._while_open():
            self.message_store.commit_log.commit_appended()
            return self._key_search.message_at(phy_offset)

    def get_many(self, phy_offsets: npt.ArrayLike) -> list[MessageExt | None]:
        """The messages at some physical offsets (int64[n], bytes), those of `query_many` say; None
        for one where no message begins: bytes inside of a body may look like one."""
        if isinstance(phy_offsets, (str, bytes, bytearray)):
            kind = type(phy_offsets).__name__
            raise StoreTypeError(f"phy_offsets must be a sequence of int64, not {kind}")
        given = _array_of(phy_offsets)
        if given.ndim != 1:
            raise StoreTypeError(f"phy_offsets must have one dimension, not {given.ndim}")
        if given.size and given.dtype.kind not in "iu":
            raise StoreTypeError(f"phy_offsets are of type {given.dtype}, not int64")
        with self._while_open():
            self.message_store.commit_log.commit_appended()
            return self._key_search.messages_at(np.ascontiguousarray(given, np.int64))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check log, queues and index against each other; nothing is changed.

        Parameters
        ----------
        progress : callable(bytes done, bytes in all)
        """
        given: Any = progress
        if given is not None and not callable(given):
            kind = type(given).__name__
            raise StoreTypeError(f"progress must be a callable or None, not {kind}")
        verify_store = imported("pyrocketstore.verify").verify_store
        with self._while_open():
            self.message_store.wait_dispatched()
            report: VerifyReport = verify_store(self.message_store, progress)
            return report


def _array_of(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of what a caller gave. Raises StoreTypeError, StoreFormatError."""
    if hasattr(values, "to_pylist"):
        values = column_of("phy_offsets", values, None)
    # A tuple: an entry's special method may change a list.
    values = tuple(values) if isinstance(values, list) else values
    try:
        return np.asarray(values)
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        raise StoreTypeError(f"phy_offsets cannot be read as int64: {error}") from error


class _ReadOptions(NamedTuple):
    """How `read` and `read_batch` were asked to read."""

    wanted: TagsExpression | None
    on_corrupt: str
    check_crc: bool
    skipped: SkippedMessages

    def damage(self, topic: str, queue_id: int) -> QueueDamage:
        """What becomes of damage in a queue. Raises StoreFormatError."""
        return QueueDamage(topic, queue_id, self.on_corrupt, self.skipped)


def _while_alive(method: Callable[..., None]) -> Callable[..., None]:
    """Call a method as long as its object is there: what calls it does not keep that alive."""
    weakly = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = weakly()
        if found is not None:
            found(*arguments)

    return call


atexit.register(close_at_exit)
