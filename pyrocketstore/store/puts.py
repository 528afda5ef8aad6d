"""The puts of a store beside the compiled path: their arguments, refusals and waits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments._numbers_and_bodies import body_bytes, int_between
from pyrocketstore.arguments.columns import column_of, is_number
from pyrocketstore.arguments.scalars import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    QUEUE_ID_MAX,
    exact_queue_id,
)
from pyrocketstore.commit_log._puts import Columns, PropertyTexts, PutMessageResult, of_message
from pyrocketstore.commit_log.put_rules import (
    light_queue_names,
    named_properties,
    properties_text,
)
from pyrocketstore.display import shown
from pyrocketstore.errors import (
    PutError,
    StoreError,
    StoreFormatError,
    StoreStateError,
)
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.record._text import UniqueIds
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    SCHEDULE_TOPIC,
    Message,
    MessageExtBrokerInner,
    MessageRefused,
    batch_too_large,
    check_delayable,
    check_topic,
    property_pairs,
    real_queue_properties,
)
from pyrocketstore.results import STORED_STATUSES, PutMessageStatus, Status
from pyrocketstore.store._store_calls import PutPath
from pyrocketstore.system._open_state import StoreState

_BATCH_FIELDS = frozenset({"body", "tags", "keys", "properties", "flag"})


def level_of(value: Any, name: str = "delay_level") -> int:
    """A delay level, 0 for none."""
    return int_between(value, 0, INT32_MAX, name)


def _each(name: str, values: Any, count: int) -> list[Any]:
    """A column, or one number for each of `count` rows."""
    return [values] * count if is_number(values) else column_of(name, values, count)


class SlowPuts:
    """Puts of one message that are not ordinary: a new queue, a refusal, a full file.

    Parameters
    ----------
    engine : Engine
    state : StoreState
    store_host : str, in each record
    ids : UniqueIds or None, makes the UNIQ_KEY of each message

    Threads: any.
    """

    def __init__(
        self,
        engine: Engine,
        state: StoreState,
        store_host: str,
        ids: UniqueIds | None,
    ) -> None:
        self.engine = engine
        self.state = state
        self.store_host = store_host
        self.ids = ids

    # ---- called by the compiled path ------------------------------------------------------------

    def put(self, *arguments: Any) -> PutMessageResult:
        """Put one message; the arguments are those of `PutPath.put`."""
        return self.put_message(self.message_of(*arguments))

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a message whose fields have their exact types. Raises PutError."""
        return self.checked(self.put_result(message), 1)

    def put_result(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a message as `put_message` does; return the result whatever its status."""
        while True:
            has_room = self.make_room()
            result = self.engine.puts.put(message)
            if not (has_room and self._may_wait(result.status)):
                return result

    def timed_out(self, result: PutMessageResult) -> PutMessageResult:
        """Raise PutError for a put that is in the log and did not reach the device in time."""
        self.engine.stats_service.note_outcome(result.status_code, result.message_count)
        return self.checked(result, 1)

    # ---- messages -------------------------------------------------------------------------------

    def message_of(
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
        self.state.check_writable()
        topic = check_topic(topic)
        queue_id = int_between(queue_id, 0, QUEUE_ID_MAX, "queue_id")
        level = level_of(delay_level)
        if born_timestamp is None:
            born_timestamp = self.engine.env.now_ms()
        else:
            born_timestamp = int_between(born_timestamp, INT64_MIN, INT64_MAX, "born_timestamp")
        named = self.properties(tags, keys, properties)
        if level:
            named[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        return MessageExtBrokerInner(
            topic,
            body_bytes(body),
            queue_id,
            flag=int_between(flag, INT32_MIN, INT32_MAX, "flag"),
            properties=named,
            properties_string=self.text_of(named),
            born_timestamp=born_timestamp,
            born_host=self.store_host if born_host is None else born_host,
            store_host=self.store_host,
        )

    def properties(self, tags: Any, keys: Any, properties: Any) -> dict[str, str]:
        """The properties of a message by name. Raises StoreFormatError."""
        named = named_properties(tags, keys, properties)
        if self.ids is not None:
            named[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = self.ids.new()
        return named

    def light_properties(
        self, light_queues: Any, properties: Any, delay_level: Any
    ) -> dict[str, str] | None:
        """The properties of a message for light queues. Raises StoreStateError,
        StoreFormatError."""
        named = dict(property_pairs("properties", properties or {}))
        names = light_queue_names(light_queues)
        if not names:
            return named
        config = self.engine.files.config
        if not (config.enable_lmq and config.enable_multi_dispatch):
            raise StoreStateError(
                "light_queues: open the store with enable_lmq=True and enable_multi_dispatch=True"
            )
        if PROPERTY_INNER_MULTI_DISPATCH in named:
            reason = f"the property {PROPERTY_INNER_MULTI_DISPATCH} names light queues too"
            raise StoreFormatError(f"light_queues: {reason}")
        if level_of(delay_level):
            reason = "they would have the message at once, and again with its delivery"
            raise StoreFormatError(f"light_queues of a delayed message: {reason}")
        return named | {PROPERTY_INNER_MULTI_DISPATCH: ",".join(names)}

    def text_of(self, named: dict[str, str], number: int | None = None) -> str:
        """The properties text of a message, and in errors its number in a call of several.

        Raises PutError: it is too long.
        """
        try:
            return properties_text(named)
        except MessageRefused as refused:
            named_refusal = refused if number is None else of_message(number, refused)
            raise self.illegal(named_refusal) from refused

    def text_bytes(self, tags: Any, keys: Any, properties: Any) -> bytes:
        """The properties text of a message as bytes.

        Raises StoreFormatError, as `properties`; MessageRefused: it is too long.
        """
        return properties_text(self.properties(tags, keys, properties)).encode()

    # ---- outcomes -------------------------------------------------------------------------------

    def illegal(self, refused: MessageRefused) -> PutError:
        """The error of a message that no put can store; nothing of its call is in the log."""
        self.engine.stats_service.note_outcome(PutMessageStatus[refused.status], 0)
        return PutError(PutMessageStatus[refused.status], False, 0, refused.reason)

    def checked(self, result: PutMessageResult, count: int) -> PutMessageResult:
        """The result of a put of `count` messages. Raises PutError for any status but PUT_OK."""
        if result.status_code == 0:
            return result
        status = PutMessageStatus(result.status_code)
        stored = status in STORED_STATUSES
        if not stored:
            self.state.check()  # a close beside this put explains more than its status
        # A store that failed earlier refuses without an error of its own.
        cause = result.error or self.engine.why_no_puts
        reason = "" if cause is None else str(cause)
        if isinstance(cause, MessageRefused):
            reason = cause.reason
        raise PutError(status, stored, count if stored else 0, reason) from cause

    def note_many(self, status: int, count: int, began_ms: int) -> None:
        """Count a put_many that has ended."""
        engine = self.engine
        engine.stats_service.note_put(status, count, engine.env.monotonic_ms() - began_ms)

    # ---- room -----------------------------------------------------------------------------------

    def make_room(self) -> bool:
        """Wait, by flushing the log, while more than `max_unforced_bytes` are not durable.

        False: the log cannot be flushed, and the put reports why.
        """
        puts = self.engine.async_puts
        while puts.is_behind() or puts.must_give_way():
            try:
                self.engine.flush()
            except StoreError:
                return False
            puts.grant()  # waiters in line come first
        return True

    def _may_wait(self, status: object) -> bool:
        """Whether a put was refused because another one took the room made for it."""
        return (
            status is PutMessageStatus.OS_PAGECACHE_BUSY
            and self.engine.async_puts.max_unforced_bytes > 0
            and not self.engine.puts.is_busy()
        )

    def wait_for_room(self) -> None:
        """Wait until puts may be tried. Raises PutError with the reason where none may."""
        while True:
            has_room = self.make_room()
            status = self.engine.puts.status()
            if status is PutMessageStatus.PUT_OK:
                return
            if not (has_room and self._may_wait(status)):
                raise self._refused(status)

    def _refused(self, status: PutMessageStatus) -> PutError:
        """The error of a put of which nothing was tried. Raises StoreStateError: a close did."""
        self.state.check()
        cause = self.engine.why_no_puts
        error = PutError(status, False, 0, "" if cause is None else str(cause))
        error.__cause__ = cause
        return error


class SlowAppends(SlowPuts):
    """The same puts without the wait until the message is durable, for `aput`."""

    def put(self, *arguments: Any) -> PutMessageResult:
        """Append one message; the arguments are those of `PutPath.put`."""
        return self.checked(self.engine.puts.append(self.message_of(*arguments)), 1)


class BatchPuts:
    """`put_many` and `put_batch`.

    Parameters
    ----------
    path : PutPath
    slow : SlowPuts

    Threads: any.
    """

    def __init__(self, path: PutPath, slow: SlowPuts) -> None:
        self._path = path
        self._slow = slow
        self._engine = slow.engine

    def put_many(
        self,
        topic: Any,
        bodies: Any,
        queue_ids: Any,
        tags: Any,
        keys: Any,
        properties: Any,
        born_host: Any,
        delay_levels: Any = 0,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `Store.put_many`."""
        slow, engine = self._slow, self._engine
        slow.state.check_writable()
        topic = check_topic(topic)
        if is_number(delay_levels) and not level_of(delay_levels):
            runs = [self._columns(topic, bodies, queue_ids, tags, keys, properties)]
        else:
            rows = (queue_ids, tags, keys, properties)
            runs = self._delayed_runs(topic, bodies, delay_levels, born_host, *rows)
        count = sum(map(len, runs))
        queue_offsets = np.empty(count, np.int64)
        phy_offsets = np.empty(count, np.int64)
        slow.wait_for_room()
        if not count:
            return queue_offsets, phy_offsets
        began, first = engine.env.monotonic_ms(), 0
        for columns in runs:
            try:
                done, status, error = self._path.append_columns(
                    columns, queue_offsets[first:], phy_offsets[first:], born_host
                )
            except MessageRefused as refused:
                raise slow.illegal(refused) from refused
            if status != Status.OK:
                self._fail(first + done, status, error, began)
            first += done
        end = engine.files.commit_log.get_max_offset()
        flushed = engine.services.flush_service.handle_disk_flush(end, True)
        slow.note_many(flushed, count, began)
        if flushed is not PutMessageStatus.PUT_OK:
            raise PutError(flushed, True, count)
        return queue_offsets, phy_offsets

    def put_batch(
        self, topic: Any, messages: Any, queue_id: Any, tags: Any, keys: Any, properties: Any
    ) -> PutMessageResult:
        """As `Store.put_batch`."""
        slow, engine = self._slow, self._engine
        if properties is None and slow.ids is None:
            try:
                done = self._path.append_ordinary_batch(topic, messages, queue_id, tags, keys)
            except MessageRefused as refused:
                raise slow.illegal(refused) from refused
            if done is not None:
                if done[0] is None:
                    self._fail(0, done[1], done[2], engine.env.now_ms())
                engine.stats_service.note_put(0, done[0].message_count, 0)
                return done[0]
        slow.state.check_writable()
        topic = check_topic(topic)
        queue_id = exact_queue_id(queue_id)
        if tags is None and keys is None and properties is None:
            columns = self._batch_columns(topic, column_of("messages", messages, None), queue_id)
        else:
            columns = self._columns(topic, messages, queue_id, tags, keys, properties)
        if not len(columns):
            raise StoreFormatError("a batch needs at least one message")
        slow.wait_for_room()
        try:
            result, outcome, error = self._path.append_batch(columns)
        except MessageRefused as refused:
            raise slow.illegal(refused) from refused
        if result is None:
            self._fail(0, outcome, error, engine.env.now_ms())
        return slow.checked(engine.puts.wait_flushed(result), len(columns))

    def _fail(self, done: int, status: int, cause: int | Exception, began: int) -> NoReturn:
        """Raise PutError for a call of which `done` messages are in the log."""
        slow = self._slow
        if done == 0:
            slow.state.check()
        if status == Status.NEED_PYTHON:
            assert isinstance(cause, Exception)
            outcome = PutMessageStatus.MESSAGE_ILLEGAL
            if isinstance(cause, (PutError, StoreStateError)):
                outcome = PutMessageStatus.SERVICE_NOT_AVAILABLE
            slow.note_many(outcome, done, began)
            raise PutError(outcome, False, done, str(cause)) from cause
        if status == Status.TOO_LARGE:  # of a batch: each row of it fits
            limit = self._engine.files.commit_log.core.max_message_size
            raise slow.illegal(batch_too_large(limit + 1, limit))
        outcome, error = self._engine.files.commit_log.outcome_of(status, cause)
        if error is None:
            raise PutError(outcome, False, done)
        reason = str(error)
        if outcome is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            reason = f"from message {done} on: {self._engine.why_no_puts or error}"
        slow.note_many(outcome, done, began)
        raise PutError(outcome, False, done, reason) from error

    def _columns(
        self, topic: str, bodies: Any, queue_ids: Any, tags: Any, keys: Any, properties: Any
    ) -> Columns:
        """The columns of put_many and put_batch as lists, all checked."""
        slow = self._slow
        body_list = column_of("bodies", bodies, None)
        count = len(body_list)
        ids: Any = 0 if queue_ids is None else queue_ids
        ids = exact_queue_id(ids) if is_number(ids) else column_of("queue_ids", queue_ids, count)
        tag_list = None if tags is None else column_of("tags", tags, count)
        key_list = None if keys is None else column_of("keys", keys, count)
        texts: PropertyTexts | None = None
        if properties is not None or slow.ids is not None:
            named = column_of("properties", properties, count)
            try:
                texts = PropertyTexts.of(tag_list, key_list, named, slow.ids, slow.text_bytes)
            except MessageRefused as refused:
                raise slow.illegal(refused) from refused
            tag_list = key_list = None
        return self._checked_columns(topic, body_list, ids, tag_list, key_list, texts)

    def _delayed_runs(
        self,
        topic: str,
        bodies: Any,
        delay_levels: Any,
        born_host: Any,
        queue_ids: Any,
        tags: Any,
        keys: Any,
        properties: Any,
    ) -> list[Columns]:
        """The columns of put_many with delay levels: one for each run of messages that are delayed,
        or are not. All are checked; then the queues are noted, as for other puts."""
        body_list = column_of("bodies", bodies, None)
        count = len(body_list)
        queues = [0 if one is None else exact_queue_id(one, f"queue_ids[{i}]")
                  for i, one in enumerate(_each("queue_ids", queue_ids, count))]  # fmt: skip
        levels = [0 if one is None else level_of(one, f"delay_levels[{i}]")
                  for i, one in enumerate(_each("delay_levels", delay_levels, count))]  # fmt: skip
        texts = [("tags", tags), ("keys", keys), ("properties", properties)]
        rows = zip(*(column_of(name, column, count) for name, column in texts), strict=True)
        named = [self._properties(number, *row) for number, row in enumerate(rows)]
        if any(levels):
            try:
                check_delayable(topic)
            except MessageRefused as refused:
                raise self._slow.illegal(refused) from refused
        runs = self._runs(topic, body_list, queues, levels, named, born_host)
        if any(levels):
            for queue_id in {one for one, level in zip(queues, levels, strict=True) if level}:
                self._engine.files.commit_log.core.slot(topic, queue_id)
            self._engine.puts.start_schedule()
        return runs

    def _properties(self, number: int, *row: Any) -> dict[str, str]:
        """The properties of one message of a call by name. Raises StoreFormatError."""
        try:
            return self._slow.properties(*row)
        except StoreFormatError as error:
            raise of_message(number, error) from error

    def _runs(
        self,
        topic: str,
        body_list: list[Any],
        queues: list[int],
        levels: list[int],
        named: list[dict[str, str]],
        born_host: Any,
    ) -> list[Columns]:
        slow, log, runs, first = self._slow, self._engine.files.commit_log, [], 0
        for is_delayed, run in itertools.groupby(levels, bool):
            rows = slice(first, first := first + sum(1 for _ in run))
            for at in range(rows.start, rows.stop if is_delayed else rows.start):
                levels[at] = min(levels[at], log.max_delay_level)
                named[at][PROPERTY_DELAY_TIME_LEVEL] = str(levels[at])
                named[at] |= real_queue_properties(topic, queues[at])
            numbered = enumerate(named[rows], rows.start)
            texts = [slow.text_of(one, number).encode() for number, one in numbered]
            targets = [(topic, queues[rows])]  # a delayed message must fit into its real topic too
            if is_delayed:
                targets.append((SCHEDULE_TOPIC, [level - 1 for level in levels[rows]]))
            for target, in_queues in targets:
                columns = self._run_of(target, body_list[rows], in_queues, texts)
                self._check(columns, rows.start, born_host)
            runs.append(columns)
        return runs

    def _run_of(
        self, topic: str, bodies: list[Any], queue_ids: list[int], texts: list[bytes]
    ) -> Columns:
        property_texts = PropertyTexts(len(texts))
        for text in texts:
            property_texts.add(text)
        return self._checked_columns(topic, bodies, queue_ids, None, None, property_texts)

    def _check(self, columns: Columns, first: int, born_host: Any) -> None:
        try:
            self._path.check_columns(columns, first, born_host)
        except MessageRefused as refused:
            raise self._slow.illegal(refused) from refused

    def _checked_columns(self, *columns: Any) -> Columns:
        try:
            return Columns(*columns)
        except MessageRefused as refused:
            raise self._slow.illegal(refused) from refused

    def _batch_columns(self, topic: str, messages: list[Any], queue_id: int) -> Columns:
        """The messages of a batch as columns, all checked."""
        slow = self._slow
        try:
            columns = Columns.of_items(topic, messages, queue_id, slow.ids)
        except MessageRefused as refused:
            raise slow.illegal(refused) from refused
        if columns is not None:
            return columns
        items = [self._batch_item(topic, number, item) for number, item in enumerate(messages)]
        texts = PropertyTexts(len(items))
        for number, item in enumerate(items):
            texts.add(slow.text_of(item.properties, number).encode())
        flags = [item.flag for item in items]
        bodies = [item.body for item in items]
        return self._checked_columns(topic, bodies, queue_id, None, None, texts, flags)

    def _batch_item(self, topic: str, number: int, item: Any) -> Message:
        """One message of a batch. Raises StoreFormatError, which names the message."""
        try:
            return self._batch_message(topic, item)
        except StoreFormatError as error:
            raise of_message(number, error) from error

    def _batch_message(self, topic: str, item: Any) -> Message:
        properties = self._slow.properties
        if isinstance(item, Message):
            if (named_topic := check_topic(item.topic)) != topic:
                raise StoreFormatError(f"a message for {named_topic!r} in a batch for {topic!r}")
            named: Any = dict(property_pairs("properties", item.properties))
            named = properties(named.pop("TAGS", None), named.pop("KEYS", None), named)
            return Message(topic, item.body, flag=item.flag, properties=named)
        if issubclass(type(item), Mapping):
            item = dict(property_pairs("a message of a batch", item))
            unknown = ", ".join(sorted(map(shown, item.keys() - _BATCH_FIELDS)))
            if unknown or "body" not in item:
                problem = f"unknown fields: {unknown}" if unknown else "the field body is missing"
                allowed = "it has a body, and may have tags, keys, properties and flag"
                raise StoreFormatError(f"{problem}; {allowed}")
            named = properties(item.get("tags"), item.get("keys"), item.get("properties"))
            return Message(topic, item["body"], flag=item.get("flag", 0), properties=named)
        return Message(topic, item, properties=properties(None, None, None))
