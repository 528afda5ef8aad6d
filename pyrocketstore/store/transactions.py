"""The transactions of a `Store`: prepare, find again, decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.read_arguments import group_of
from pyrocketstore.arguments.scalars import exact_text
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreFormatError, StoreStateError
from pyrocketstore.flush.flush_services import GroupCommitService
from pyrocketstore.record._text import UniqueIds
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    MessageExtBrokerInner,
    MessageRefused,
)
from pyrocketstore.store._store_calls import MessagePuts
from pyrocketstore.store.puts import SlowPuts
from pyrocketstore.system.signal_shield import shielded
from pyrocketstore.transaction.commit_search import find_committed
from pyrocketstore.transaction.positions import TRANSACTION_GROUP, Positions
from pyrocketstore.transaction.prepared import PREPARED, Found, PreparedMessage, read_prepared
from pyrocketstore.transaction.records import check_sizes, half_properties, make_half
from pyrocketstore.transaction.service import (
    StoreCallsOfTransactions,
    TransactionalMessageService,
    TransactionLimits,
)

if TYPE_CHECKING:
    from types import TracebackType

    from pyrocketstore.commit_log._puts import PutMessageResult
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.consumer.offsets import ConsumerOffsets
    from pyrocketstore.message_store.engine import Engine
    from pyrocketstore.record._message import MessageExt

LOG = logger(__name__)

_MS_OF_AN_HOUR = 3_600_000
#: Topics to which no message can be committed.
_NO_TARGETS = (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)

#: Properties that the records of a transaction get later; light queues would show it undecided.
_NOT_FOR_A_HALF = (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
)

TransactionCheck = Callable[["Transaction"], object]


class Transaction:
    """A message that consumers do not see until it is committed. `Store.prepare` makes it.

    As a context manager it commits at the end of the block, and rolls back after an exception,
    unless it was decided inside.

    Attributes
    ----------
    transaction_id : str, the property UNIQ_KEY; `Store.transaction` finds it again by this
    group : str, the producer group
    topic, queue_id : str, int, where the message appears
    born_timestamp : int, Unix ms
    check_times : int, the checks so far that decided nothing
    status : "prepared", "committed", "rolled back", "discarded" or "expired"
    result : PutMessageResult of the committed message, or None

    Threads: any.
    """

    def __init__(
        self, prepared: PreparedMessage, decisions: StoreDecisions, owner: object = None
    ) -> None:
        self._prepared = prepared
        self._decisions = decisions
        self._owner = owner  # a Store that is only referred to by this must not be closed

    @property
    def transaction_id(self) -> str:
        """str: the property UNIQ_KEY."""
        return self._prepared.transaction_id

    @property
    def group(self) -> str:
        """str: the producer group."""
        return self._prepared.group

    @property
    def topic(self) -> str:
        """str: the topic in which the message appears."""
        return self._prepared.topic

    @property
    def queue_id(self) -> int:
        """int: the queue in which the message appears."""
        return self._prepared.queue_id

    @property
    def born_timestamp(self) -> int:
        """int: when the message was made, Unix ms."""
        return self._prepared.born_timestamp

    @property
    def check_times(self) -> int:
        """int: the checks so far that decided nothing."""
        return self._prepared.check_times

    @property
    def status(self) -> str:
        """str: "prepared", "committed", "rolled back", "discarded" or "expired"."""
        return self._prepared.status

    @property
    def result(self) -> PutMessageResult | None:
        """The result of the put of the committed message; None before."""
        return self._prepared.result

    @property
    def message(self) -> MessageExt:
        """The half message: body, tags, keys and properties. Its topic is that of half messages.

        Raises StoreStateError: the store is closed, or the half message has expired.
        """
        return self._decisions.half_of(self._prepared)

    def commit(self) -> PutMessageResult:
        """Make the message visible in its topic; return `result`. A second call returns the same.

        Raises
        ------
        PutError: the message could not be stored, and the transaction is undecided; with `stored`,
        it is committed and not durable in time
        StoreStateError: the transaction was rolled back or discarded, its half message has expired,
        or the store is closed or read-only
        StoreCorruptionError: the half message is damaged. StoreIOError

        Durability: as `Store.put`.
        Source: RocketMQ 4.9.3 EndTransactionProcessor#processRequest.
        """
        return self._decisions.commit(self._prepared)

    def rollback(self) -> None:
        """Decide that the message never becomes visible. A second call does nothing.

        Raises PutError: the transaction is undecided. StoreStateError: it was committed, or the
        store is closed or read-only. StoreIOError.

        Durability: as `Store.put`.
        """
        self._decisions.rollback(self._prepared)

    def __enter__(self) -> Transaction:
        self._prepared.is_in_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._prepared.is_in_block = False
        if self.status != PREPARED:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except StoreError as failure:
            LOG.error("transaction %s is undecided: %s", self.transaction_id, failure)
            error.add_note(f"and transaction {self.transaction_id} is undecided: {failure}")

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.queue_id}"
        return f"<pyrocketstore.Transaction {self.transaction_id} for {where}, {self.status}>"


class StoreDecisions:
    """The calls that a Transaction makes; they do not refer to the Store.

    Parameters
    ----------
    log : callable() -> CommitLog of this moment
    slow : SlowPuts

    Threads: any.
    """

    def __init__(self, log: Callable[[], CommitLog], slow: SlowPuts) -> None:
        self._log = log
        self._slow = slow
        self.service: TransactionalMessageService | None = None

    def half_of(self, prepared: PreparedMessage) -> MessageExt:
        """Return the half message."""
        self._slow.state.check()
        with self._slow.state:
            if self.service is not None:
                return self.service.half_of(prepared)
            return half_in(self._log(), prepared)

    def commit(self, prepared: PreparedMessage) -> PutMessageResult:
        """Commit a transaction. Raises as `Transaction.commit`."""
        service = self._writable()
        try:
            return self._slow.checked(service.commit(prepared), 1)
        except StoreStateError:
            self._slow.state.check()  # a close beside this call explains more
            raise

    def rollback(self, prepared: PreparedMessage) -> None:
        """Roll a transaction back. Raises as `Transaction.rollback`."""
        service = self._writable()
        try:
            result = service.rollback(prepared)
        except StoreStateError:
            self._slow.state.check()
            raise
        if result is not None:
            self._slow.checked(result, 1)

    def _writable(self) -> TransactionalMessageService:
        self._slow.state.check_writable()
        assert self.service is not None
        return self.service


def half_in(log: CommitLog, prepared: PreparedMessage) -> MessageExt:
    """Return the half message of a read-only store."""
    half = log.look_message(prepared.phy_offset, prepared.size)
    if half is None:
        reason = f"byte {prepared.phy_offset} of the log: the half message has expired"
        raise StoreStateError(reason)
    return half


class StoreTransactions:
    """Make and find the transactions of a store.

    Parameters
    ----------
    engine : Engine
    slow : SlowPuts
    offsets : ConsumerOffsets, loaded
    check : callable(Transaction) or None

    Threads: any; `start` from a thread that no signal handler interrupts.
    """

    def __init__(
        self,
        engine: Engine,
        slow: SlowPuts,
        offsets: ConsumerOffsets,
        check: TransactionCheck | None,
    ) -> None:
        self._engine = engine
        self._slow = SlowPuts(self._engine, slow.state, slow.store_host, slow.ids)
        self._offsets = offsets
        self._check = check
        self._decisions = StoreDecisions(lambda: engine.files.reads.commit_log, self._slow)
        self._ids = slow.ids or UniqueIds(engine.env, slow.store_host)

    # ---- life cycle -----------------------------------------------------------------------------

    def start(self) -> None:
        """Read what is prepared, and start the thread of the checks. Raises StoreError."""
        engine, config = self._engine, self._engine.files.config
        self._wait_dispatched()
        put = self._slow.put_result
        if not isinstance(engine.services.flush_service, GroupCommitService):  # no put waits
            core = engine.files.commit_log.core
            put = MessagePuts(core, self._slow.state, self._slow).put_message
        calls = StoreCallsOfTransactions(
            put,
            self._wait_dispatched,
            self._offsets.commit_offset,
            engine.flush,
            self._offsets.persist,
        )
        reserved_ms = config.file_reserved_time * _MS_OF_AN_HOUR if engine.cleans else None
        limits = TransactionLimits(
            config.transaction_time_out,
            config.transaction_check_interval,
            config.transaction_check_max,
            reserved_ms,
        )
        found, written = self._found(), self._positions()
        if written == (-1, -1):
            written = Positions(found.half_start, found.op_start)
        service = TransactionalMessageService(
            engine.files.commit_log,
            engine.files.queue_table,
            found,
            written,
            calls,
            limits,
            self._slow.store_host,
            None if self._check is None else _CheckCall(self._check, self._decisions),
        )
        service.end_decided(found.leftover)
        self._decisions.service = service
        engine.closing.at_clean_stop.insert(0, service.note_positions)
        engine.services.start_transactions(service)

    def _wait_dispatched(self) -> None:
        self._engine.wait_dispatched()
        self._engine.check_complete()

    def _found(self) -> Found:
        reads, time_out = self._engine.files.reads, self._engine.files.config.transaction_time_out
        return read_prepared(reads.commit_log, reads.queues, *self._positions(), time_out)

    def _positions(self) -> Positions:
        """Return the positions of the file, -1 where it has none."""
        topics = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
        return Positions(
            *(self._offsets.query_offset(TRANSACTION_GROUP, topic, 0) for topic in topics)
        )

    # ---- calls ----------------------------------------------------------------------------------

    def prepare(self, message: MessageExtBrokerInner, group: Any, owner: object) -> Transaction:
        """Put the half message of a message. Raises as `Store.prepare`."""
        service = self._decisions.service
        assert service is not None
        topic, queue_id = message.topic, message.queue_id
        if topic in _NO_TARGETS:
            raise StoreFormatError(f"topic {topic}: a transaction cannot be committed to it")
        reserved = [name for name in _NOT_FOR_A_HALF if name in message.properties]
        if reserved:
            raise StoreFormatError(
                f"the property {reserved[0]} of a transaction is set by the store"
            )
        unique_id = message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        unique_id = unique_id or self._ids.new()
        named = half_properties(message.properties, group_of(group), unique_id, topic, queue_id)
        make_half(message, named)
        core = self._engine.files.commit_log.core
        try:
            check_sizes(message, topic, core.max_message_size)
        except MessageRefused as refused:
            raise self._slow.illegal(refused) from refused
        # A broker serves the queues that topics.json has, and may commit this one.
        core.slot(topic, queue_id)
        result, prepared = service.prepare(message)
        self._slow.checked(result, 1)
        assert prepared is not None
        return Transaction(prepared, self._decisions, owner)

    def transaction(self, transaction_id: Any, owner: object) -> Transaction | None:
        """Return the first undecided transaction with this id, or None."""
        wanted = exact_text("transaction_id", transaction_id)
        service = self._decisions.service
        if service is None:
            found = (one for one in self._read_again() if one.transaction_id == wanted)
            prepared = next(found, None)
        else:
            prepared = service.find(wanted)
        return None if prepared is None else Transaction(prepared, self._decisions, owner)

    def transactions(self, owner: object) -> list[Transaction]:
        """Return the undecided transactions, in the order of their half messages."""
        service = self._decisions.service
        prepared = self._read_again() if service is None else service.undecided()
        return [Transaction(one, self._decisions, owner) for one in prepared]

    def _read_again(self) -> list[PreparedMessage]:
        def read() -> list[PreparedMessage]:
            self._offsets.load()
            found, reads = self._found().prepared, self._engine.files.reads
            committed = find_committed(reads.commit_log, reads.queues, found)
            ended = {one.key for one, _ in committed}
            return [one for one in found if one.key not in ended]

        return shielded(read)


class _CheckCall:
    """Calls the program's check with a Transaction."""

    def __init__(self, check: TransactionCheck, decisions: StoreDecisions) -> None:
        self._check = check
        self._decisions = decisions

    def __call__(self, prepared: PreparedMessage) -> object:
        return self._check(Transaction(prepared, self._decisions))
