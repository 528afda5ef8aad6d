"""`DefaultMessageStore.put_encoded`: columns of messages whose properties are encoded already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments.columns import column_of, is_number
from pyrocketstore.arguments.scalars import exact_int32, exact_int64
from pyrocketstore.commit_log._puts import ColumnAppends
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.errors import (
    PutError,
    StoreError,
    StoreFormatError,
    without_frames,
)
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.record.message import MAX_TOPIC_SIZE, MessageExtBrokerInner, settle
from pyrocketstore.results import PutMessageStatus, Status

if TYPE_CHECKING:
    from pyrocketstore.commit_log._puts import Columns, PutMessageResult
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.message_store.stats import StoreStatsService
    from pyrocketstore.system.env import Env


class PutResults(NamedTuple):
    """The results of `put_encoded`: columns with one row for each message.

    `status` int32[n], numbers of PutMessageStatus; `queue_offset` int64[n]; `phy_offset` int64[n],
    bytes; both -1 for a message that is not in the log. `errors` has the error behind the status of
    a row, if there is one; of a run of rows with the same error, that of the first row.
    """

    status: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]
    phy_offset: npt.NDArray[np.int64]
    errors: dict[int, BaseException]


class EncodedRows(NamedTuple):
    """The arguments of `put_encoded` as lists of one length; None: the default for all rows."""

    topics: list[Any]
    queue_ids: list[Any] | int
    bodies: list[Any]
    properties: list[Any] | None
    flags: list[Any] | None
    sys_flags: list[Any] | None
    born_timestamps: list[Any] | None
    born_hosts: list[Any] | None

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> EncodedRows:
        """Return the rows. Raises StoreTypeError, StoreFormatError."""
        topics, queue_ids, bodies, properties, flags, sys_flags, times, hosts = arguments
        body_list = column_of("bodies", bodies, None)
        count = len(body_list)
        one_host = hosts is None or issubclass(type(hosts), (str, bytes, tuple))
        one_topic = issubclass(type(topics), str)
        return cls(
            [topics] * count if one_topic else column_of("topics", topics, count),
            queue_ids if is_number(queue_ids) else column_of("queue_ids", queue_ids, count),
            body_list,
            None if properties is None else column_of("properties", properties, count),
            _numbers("flags", flags, count),
            _numbers("sys_flags", sys_flags, count),
            _times(times, count),
            None
            if hosts is None
            else [hosts] * count
            if one_host
            else column_of("born_hosts", hosts, count),
        )


def _numbers(name: str, values: Any, count: int) -> list[Any] | None:
    if is_number(values):
        number = exact_int32(name, values)
        return [number] * count if number else None
    return column_of(name, values, count)


def _times(values: Any, count: int) -> list[Any] | None:
    if values is None:
        return None
    if is_number(values):
        return [exact_int64("born_timestamps", values)] * count
    return column_of("born_timestamps", values, count)


def _status_of(error: PutError) -> PutMessageStatus:
    status = error.status
    if isinstance(status, PutMessageStatus):
        return status
    return PutMessageStatus.SERVICE_NOT_AVAILABLE


def is_ordinary(topic: str) -> bool:
    """Return False for a topic whose puts the put of a single message may refuse."""
    return topic.isascii() and len(topic) <= MAX_TOPIC_SIZE and is_safe_name(topic)


class EncodedPuts:
    """The puts of encoded messages into one store.

    Parameters
    ----------
    config : MessageStoreConfig
    env : Env
    log : CommitLog
    stats : StoreStatsService, counts the puts
    refusal : callable() -> (PutMessageStatus, cause), makes room; PUT_OK: puts are possible
    append_message : callable(MessageExtBrokerInner) -> PutMessageResult, without the flush
    flush : callable(phy_offset) -> PutMessageStatus, waits until the log is durable up to there

    Threads: any.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        env: Env,
        log: CommitLog,
        stats: StoreStatsService,
        *,
        refusal: Callable[[], tuple[PutMessageStatus, BaseException | None]],
        append_message: Callable[[MessageExtBrokerInner], PutMessageResult],
        flush: Callable[[int], PutMessageStatus],
    ) -> None:
        self.config, self.env, self.log, self.stats = config, env, log, stats
        self.refusal, self.append_message, self.flush = refusal, append_message, flush
        self.appends = ColumnAppends(log.core, config.store_host)
        self._multi = config.enable_multi_dispatch or config.enable_lmq

    def put(self, *arguments: Any) -> PutResults:
        """As `DefaultMessageStore.put_encoded`; the arguments in its order."""
        rows = EncodedRows.of(arguments)
        columns = self.appends.encoded(
            rows.topics,
            rows.bodies,
            rows.queue_ids,
            rows.properties,
            rows.flags,
            rows.sys_flags,
            rows.born_timestamps,
            rows.born_hosts,
            multi=self._multi,
            is_ordinary=is_ordinary,
        )
        call = _Call(self, rows, columns)
        status, cause = self.refusal()
        if status is PutMessageStatus.PUT_OK:
            call.append_all()
        else:
            call.refuse_from(0, status, cause)
        return call.finish()


class _Call:
    """One call of `put_encoded`."""

    def __init__(self, puts: EncodedPuts, rows: EncodedRows, columns: Columns) -> None:
        self.puts, self.rows, self.columns = puts, rows, columns
        count = len(columns)
        self.began_ms = puts.env.monotonic_ms()
        self.alone = np.frombuffer(columns.rows_alone(), np.uint8)
        self.status = np.zeros(count, np.int32)
        self.queue_offset = np.full(count, -1, np.int64)
        self.phy_offset = np.full(count, -1, np.int64)
        self.errors: dict[int, BaseException] = {}

    def append_all(self) -> None:
        """Append the rows in order, until no further one can be appended."""
        first = 0
        for row in np.flatnonzero(self.alone).tolist():
            if not self._append(first, row):
                return
            self._put_alone(row)
            first = row + 1
        self._append(first, len(self.alone))

    def _append(self, first: int, stop: int) -> bool:
        """Append ordinary rows; False: neither the rest of them nor a later one can be."""
        while first < stop:
            first, status, cause = self.puts.appends.append(
                self.columns, first, stop, self.queue_offset, self.phy_offset
            )
            if status == Status.NEED_PYTHON:  # a row of a queue that is refused
                row = self.puts.appends.failed_row
                if row > first and not self._append(first, row):
                    return False
                self._put_alone(row)
                first = row + 1
            elif status != Status.OK:
                outcome, error = self.puts.log.outcome_of(status, cause)
                self.refuse_from(first, outcome, None if error is None else without_frames(error))
                return False
        return True

    def _put_alone(self, row: int) -> None:
        rows, host = self.rows, self.puts.config.store_host
        try:
            message = self._message(row, rows, host)
            settle(message)
            result = self.puts.append_message(message)
        except PutError as error:
            self._refuse(row, _status_of(error), error)
        except StoreFormatError as error:
            self._refuse(row, PutMessageStatus.MESSAGE_ILLEGAL, error)
        except StoreError as error:
            self._refuse(row, PutMessageStatus.SERVICE_NOT_AVAILABLE, error)
        else:
            self.status[row] = result.status_code
            if result.error is not None:
                self.errors[row] = result.error
            if not result.status_code:
                self.queue_offset[row] = result.queue_offset
                self.phy_offset[row] = result.phy_offset

    def _refuse(self, row: int, status: PutMessageStatus, error: StoreError) -> None:
        self.status[row], self.errors[row] = status, without_frames(error)

    def _message(self, row: int, rows: EncodedRows, host: str) -> MessageExtBrokerInner:
        text = "" if rows.properties is None else rows.properties[row]
        if text is None:
            text = ""
        elif not isinstance(text, str):
            text = bytes(text).decode("utf-8", "replace")  # the columns have checked it
        queue_id = rows.queue_ids[row] if isinstance(rows.queue_ids, list) else rows.queue_ids
        times, hosts = rows.born_timestamps, rows.born_hosts
        return MessageExtBrokerInner(
            rows.topics[row],
            rows.bodies[row],
            0 if queue_id is None else queue_id,
            flag=0 if rows.flags is None else rows.flags[row],
            sys_flag=0 if rows.sys_flags is None else rows.sys_flags[row],
            properties=string_to_properties(text),
            properties_string=text,
            born_timestamp=self.puts.env.now_ms() if times is None else times[row],
            born_host=host if hosts is None else hosts[row],
            store_host=host,
        )

    def refuse_from(
        self, first: int, status: PutMessageStatus, cause: BaseException | None
    ) -> None:
        """Give all rows from `first` on this status."""
        self.status[first:] = status
        if cause is not None and first < len(self.status):
            self.errors[first] = cause

    def finish(self) -> PutResults:
        """Wait for the flush, count the messages, and return the results."""
        puts = self.puts
        stored = self.phy_offset >= 0
        count, flushed = int(np.count_nonzero(stored)), PutMessageStatus.PUT_OK
        if count:
            flushed = puts.flush(puts.log.get_appended_offset())
            self.status[stored] = flushed
            took_ms = puts.env.monotonic_ms() - self.began_ms
            puts.stats.note_put(flushed, count, took_ms)
        for status in self.status[~stored & (self.alone == 0)].tolist():
            puts.stats.note_outcome(status, 0, tried=False)
        return PutResults(self.status, self.queue_offset, self.phy_offset, self.errors)
