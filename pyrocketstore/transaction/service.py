"""TransactionalMessageService: decide transactions, and check those that nobody decides.

The module is compiled, so that no signal handler raises between the acquisition of a lock and its
release, other than in a put.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from pyrocketstore.arguments.scalars import exact_text
from pyrocketstore.commit_log._puts import PutMessageResult, make_result
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreStateError
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Host,
    MessageExtBrokerInner,
)
from pyrocketstore.results import STORED_STATUSES, AppendMessageStatus, PutMessageStatus
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.transaction.commit_search import find_committed
from pyrocketstore.transaction.positions import (
    TRANSACTION_GROUP,
    Positions,
    TransactionPositions,
)
from pyrocketstore.transaction.prepared import (
    COMMITTED,
    DISCARDED,
    EXPIRED,
    PREPARED,
    ROLLED_BACK,
    Found,
    PreparedMessage,
    PutHalf,
    read_prepared,
)
from pyrocketstore.transaction.records import (
    committed_message,
    discarded_message,
    op_message,
    put_back_message,
)

LOG = logger(__name__)

#: How often changed positions are written (ms). Source: 4.9.3's flushConsumerOffsetInterval.
PERSIST_MS = 5000
#: How often a close looks whether the thread waits for the answer of a check (s).
_LOOK_S = 0.05
_ANSWERS = ("commit", "rollback")
#: Another attempt cannot succeed.
_HOPELESS = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)


class TransactionLimits(NamedTuple):
    """Settings of the checks.

    time_out_ms : a half message is not checked for so long after its birth
    check_interval_ms : the time between two rounds of checks
    check_max : a half message that was put back so often is discarded
    reserved_ms : one that is older is discarded; None: its age does not matter

    Source: RocketMQ 4.9.3 BrokerConfig transactionTimeOut, transactionCheckInterval,
    transactionCheckMax, MessageStoreConfig fileReservedTime.
    """

    time_out_ms: int
    check_interval_ms: int
    check_max: int
    reserved_ms: int | None


class StoreCallsOfTransactions(NamedTuple):
    """The calls of its store that the service makes.

    put : callable(message), returns the result, whatever its status
    wait_dispatched : callable(), makes all units of earlier puts readable, or raises StoreError
    commit_offset : callable(group, topic, queue_id, offset), notes a position
    flush : callable(), makes everything that was put durable
    persist : callable(), writes the noted positions
    """

    put: Callable[[MessageExtBrokerInner], PutMessageResult]
    wait_dispatched: Callable[[], object]
    commit_offset: Callable[[str, str, int, int], None]
    flush: Callable[[], object]
    persist: Callable[[], None]


class TransactionalMessageService(ServiceThread):
    """The transactions of a store, and the thread that checks them and writes their positions.

    Parameters
    ----------
    commit_log : CommitLog
    queue_table : ConsumeQueueTable
    found : Found, what was prepared before
    written : Positions, those of the file
    calls : StoreCallsOfTransactions
    limits : TransactionLimits
    host : the store host in op messages
    check : callable(PreparedMessage) or None, returns "commit", "rollback" or None

    A transaction has one commit record: before it is put for a half message that this process has
    not put, or after a put that failed, the log is searched for it. The op message follows the
    commit record; where it cannot be put, a later round tries again.

    Threads: any. A signal handler that raises in a put leaves a transaction undecided or decided,
    and the next call finds out which. A handler cannot decide the transaction whose call it
    interrupts.

    Source: RocketMQ 4.9.3 TransactionalMessageServiceImpl, TransactionalMessageCheckService.
    Differs: the callback decides before a half message is put back; one that was put back, or is
    discarded, gets an op message, so that a broker does not decide it again; one within its
    immunity is not put back.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queue_table: ConsumeQueueTable,
        found: Found,
        written: Positions,
        calls: StoreCallsOfTransactions,
        limits: TransactionLimits,
        host: Host,
        check: Callable[[PreparedMessage], object] | None,
    ) -> None:
        super().__init__("TransactionalMessageService")
        self._env = commit_log.env
        self._log = commit_log
        self._table = queue_table
        self._calls = calls
        self._limits = limits
        self._host = host
        self._check = check
        self._lock = threading.Lock()  # over the tables; nothing is put or read under it
        self._prepared = {one.key: one for one in found.prepared}
        self._positions = TransactionPositions(
            found.half_start, found.op_start, found.decided, found.ops
        )
        self._written = written
        #: decided transactions whose op message could not be put
        self._without_op: list[PreparedMessage] = []
        #: ids of half messages whose put raised
        self._unsure: set[str] = set()
        self._persisting = threading.Lock()
        self._is_asking = False
        self._is_idle = False  # the thread sleeps until the next half message
        now_ns = self._env.monotonic_ns()
        self._check_at_ns = now_ns + limits.check_interval_ms * 1_000_000
        self._persist_at_ns = now_ns + PERSIST_MS * 1_000_000

    def end_decided(self, leftover: list[int]) -> None:
        """Put the op messages that an earlier process has not put: for half messages of decided
        transactions, and of those whose commit record is in the log.

        Raises StoreIOError.
        """
        for offset in leftover:
            self._put_op(offset, waits=False)
        undecided = self.undecided()
        for one, record in find_committed(self._log, self._table, undecided):
            with self._deciding(one):
                self._end_found(one, record)

    # ---- transactions -------------------------------------------------------------------------

    def prepare(
        self, message: MessageExtBrokerInner
    ) -> tuple[PutMessageResult, PreparedMessage | None]:
        """Put a half message; return the result, and the transaction if it is stored."""
        unique_id = message.properties[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX]
        try:
            result = self._calls.put(message)
            if not _is_stored(result):
                return result, None
            half = PutHalf(
                message.properties,
                result.queue_offset,
                result.phy_offset,
                result.wrote_bytes,
                message.born_timestamp,
            )
            one = PreparedMessage(half, self._limits.time_out_ms)
            self._register(one)
        except BaseException:
            self._unsure.add(unique_id)  # it may be stored
            raise
        return result, one

    def _register(self, *added: PreparedMessage) -> None:
        """Add transactions to the table."""
        with self._lock:
            self._prepared |= {one.key: one for one in added}
            wakes = self._ends_idle()
        if wakes:
            self.wakeup()

    def _ends_idle(self) -> bool:
        """Under the lock: whether the thread must be woken."""
        wakes, self._is_idle = self._is_idle, False
        return wakes

    def _find_unsure(self) -> None:
        """Add the transactions whose half messages are stored though their put raised."""
        if not self._unsure:
            return
        unsure = self._unsure.copy()
        self._calls.wait_dispatched()
        with self._lock:
            positions = self._positions.move()
        time_out_ms = self._limits.time_out_ms
        found = read_prepared(self._log, self._table, *positions, time_out_ms).prepared
        with self._lock:
            unsure &= self._unsure  # another call may have added some, and they may be decided
            self._unsure -= unsure
            unsure -= {one.transaction_id for one in self._prepared.values()}
            self._prepared |= {one.key: one for one in found if one.transaction_id in unsure}
            wakes = self._ends_idle()
        if wakes:
            self.wakeup()

    def find(self, transaction_id: str) -> PreparedMessage | None:
        """Return the first undecided transaction with this id, None if there is none."""
        return next((one for one in self.undecided() if one.transaction_id == transaction_id), None)

    def undecided(self) -> list[PreparedMessage]:
        """Return the undecided transactions, in the order of their half messages."""
        self._look_again()
        with self._lock:
            found = list(self._prepared.values())
        return sorted(found, key=lambda one: one.half_offset)

    def _look_again(self) -> None:
        """Bring the undecided transactions up to date with the queues."""
        self._find_unsure()
        self._end_unclear()
        self._moved()

    def half_of(self, one: PreparedMessage) -> MessageExt:
        """Return the half message. Raises StoreStateError: it has expired; StoreIOError."""
        return self._message(one.phy_offset, one.size)

    def commit(self, one: PreparedMessage) -> PutMessageResult:
        """Commit a transaction; return the result of the put. A second call returns the same.

        Raises StoreStateError: it was rolled back or discarded, or its half message has expired.
        StoreCorruptionError: the half message is damaged. StoreIOError.
        """
        with self._deciding(one):
            if one.status == COMMITTED and one.result is not None:
                return one.result
            self._refuse_decided(one)
            half = self._whole_half(one)
            if one.may_be_committed and self._was_committed(one) and one.result is not None:
                return one.result
            one.may_be_committed = True  # until the put has an outcome
            result = self._calls.put(committed_message(half, one.topic, one.queue_id))
            if _is_stored(result):
                one.result = result
                self._end(one, COMMITTED)
            return result

    def rollback(self, one: PreparedMessage) -> PutMessageResult | None:
        """Roll a transaction back; return the result of the put of its op message, None if it was
        rolled back or discarded before.

        Raises StoreStateError: it was committed. StoreIOError.
        """
        with self._deciding(one):
            if one.status in (ROLLED_BACK, DISCARDED, EXPIRED):
                return None
            if one.status == PREPARED and one.may_be_committed:
                self._was_committed(one)
            if one.status == COMMITTED:
                raise StoreStateError(f"transaction {one.transaction_id}: it was committed")
            result = self._put_ops(one, one.open_offsets, waits=True)
            if _is_stored(result):
                self._forget(one, ROLLED_BACK)
                self._pass(one)
            return result

    def _deciding(self, one: PreparedMessage, *, waits: bool = True) -> _Deciding:
        # A close waits for the thread of the service, in a handler that has interrupted a decision.
        return _Deciding(one, waits and not self.is_current)

    def _refuse_decided(self, one: PreparedMessage) -> None:
        if one.status != PREPARED:
            raise StoreStateError(f"transaction {one.transaction_id}: it was {one.status}")

    def _was_committed(self, one: PreparedMessage) -> bool:
        """Return whether the log has the commit record; the transaction is ended then."""
        self._calls.wait_dispatched()
        found = find_committed(self._log, self._table, [one])
        if found:
            self._end_found(*found[0])
        else:
            one.may_be_committed = False
        return bool(found)

    def _end_found(self, one: PreparedMessage, record: MessageExt) -> None:
        one.result = make_result(
            PutMessageStatus.PUT_OK,
            AppendMessageStatus.PUT_OK,
            record.phy_offset,
            record.queue_offset,
            record.size,
            record.store_timestamp,
            1,
            [record.phy_offset],
            record.store_host,
        )
        self._end(one, COMMITTED)

    def _end_unclear(self) -> None:
        """End the transactions whose commit record is in the log though its put raised."""
        with self._lock:
            unclear = [one for one in self._prepared.values() if one.may_be_committed]
        for one in unclear:
            try:
                with self._deciding(one, waits=False):
                    if one.status == PREPARED and one.may_be_committed:
                        self._was_committed(one)
            except _Busy:
                pass  # that call will end it

    def _message(self, phy_offset: int, size: int) -> MessageExt:
        self._log.commit_appended()
        message = self._log.look_message(phy_offset, size)
        if message is None or message.topic != TRANS_HALF_TOPIC:
            raise StoreStateError(
                f"the half message at byte {phy_offset} of the log has expired, or cannot be read"
            )
        return message

    def _whole_half(self, one: PreparedMessage) -> MessageExt:
        half = self.half_of(one)
        if not half.is_crc_valid:
            path = self._log.config.commit_log_path
            reason = f"the body of the half message of transaction {one.transaction_id} is damaged"
            raise StoreCorruptionError(path, one.phy_offset, reason)
        return half

    def _end(self, one: PreparedMessage, status: str, *, waits: bool = False) -> None:
        """Note that a transaction is decided in the log, and put its op message."""
        self._forget(one, status)
        stored = False
        try:
            stored = _is_stored(self._put_ops(one, one.open_offsets, waits=waits))
        except StoreError as error:
            LOG.warning("transaction %s: op message: %s", one.transaction_id, error)
        finally:
            if stored:
                self._pass(one)
            else:
                with self._lock:
                    self._without_op.append(one)

    def _put_ops(
        self, one: PreparedMessage, offsets: list[int], *, waits: bool, put_back: bool = False
    ) -> PutMessageResult:
        """Put an op message for some of a transaction's half messages; return the last result, or
        the first one that is not stored. A broker would decide a half message without one again."""
        for offset in offsets.copy():
            is_last = offset == offsets[-1]
            result = self._put_op(offset, waits=waits and is_last, put_back=put_back)
            if not _is_stored(result):
                break
            one.open_offsets.remove(offset)
        return result

    def _put_op(self, half_offset: int, *, waits: bool, put_back: bool = False) -> PutMessageResult:
        now_ms = self._env.now_ms()
        op = op_message(half_offset, now_ms, self._host, waits=waits, put_back=put_back)
        result = self._calls.put(op)
        if _is_stored(result):
            with self._lock:
                self._positions.note_op(result.queue_offset, half_offset)
        return result

    def _forget(self, one: PreparedMessage, status: str) -> None:
        one.status = status
        with self._lock:
            self._prepared.pop(one.key, None)

    def _pass(self, one: PreparedMessage) -> None:
        offsets = one.half_offsets()
        with self._lock:
            for offset in offsets:
                self._positions.note_decided(offset)

    # ---- the thread -----------------------------------------------------------------------------

    def run(self) -> None:
        """Check, and write positions, until the thread is stopped."""
        while not self.stopped:
            self.wait_for_running(self.run_due())

    def run_due(self) -> float | None:
        """Do what is due; return the ms until there may be more to do, None: with the next put."""
        now_ns = self._env.monotonic_ns()
        if now_ns >= self._check_at_ns:
            self.check_undecided()
            self._check_at_ns = now_ns + self._limits.check_interval_ms * 1_000_000
        if now_ns >= self._persist_at_ns:
            self._persist_or_log()
            self._persist_at_ns = now_ns + PERSIST_MS * 1_000_000
        with self._lock:
            is_idle = not self._prepared and not self._without_op
            self._is_idle = is_idle and self._positions.move() == self._written
            if self._is_idle:
                return None
        return max(0.0, (min(self._check_at_ns, self._persist_at_ns) - now_ns) / 1e6)

    def check_undecided(self) -> None:
        """Put missing op messages, and ask about each transaction that is due."""
        with self._lock:
            without_op, self._without_op = self._without_op, []
        for one in without_op:
            if self.stopped:
                return
            self._end(one, one.status)
        if self._check is None:
            return
        for one in self.undecided():
            if self.stopped:
                return
            try:
                self._check_one(one)
            except _Busy:
                continue  # another thread decides it now
            except StoreError as error:
                if self._has_ended():
                    return
                LOG.error("the check of transaction %s failed: %s", one.transaction_id, error)

    def _check_one(self, one: PreparedMessage) -> None:
        age_ms = self._env.now_ms() - one.born_timestamp
        if one.is_in_block or 0 <= age_ms < one.immunity_ms:
            return
        reserved_ms = self._limits.reserved_ms
        is_too_old = reserved_ms is not None and age_ms > reserved_ms
        if one.check_times >= self._limits.check_max or is_too_old:
            self._discard(one)
            return
        answer = self._ask(one)
        if self._has_ended():
            return
        result = None
        if answer == "commit":
            result = self.commit(one)
        elif answer == "rollback":
            result = self.rollback(one)
        else:
            self._put_back(one)
        if result is not None and not _is_stored(result):
            LOG.error(
                "transaction %s: %s was not stored: %s; the next check tries again",
                one.transaction_id, answer, result.status.name,
            )  # fmt: skip
            if result.status in _HOPELESS:
                one.check_times += 1

    def _has_ended(self) -> bool:
        return self.stopped

    def _ask(self, one: PreparedMessage) -> str | None:
        """Return the answer of the callback, None if it is not a valid answer."""
        assert self._check is not None
        self._is_asking = True
        try:
            answer = self._check(one)
        except BaseException as error:  # of the program: the thread lives on
            LOG.exception("the check of transaction %s raised %r", one.transaction_id, error)
            return None
        finally:
            self._is_asking = False
        if answer is None:
            return None
        text = exact_text("an answer", answer) if issubclass(type(answer), str) else ""
        if text in _ANSWERS:
            return text
        reason = "the check of transaction %s returned %s: must be 'commit', 'rollback' or None"
        LOG.error(reason, one.transaction_id, shown(answer))
        return None

    def _put_back(self, one: PreparedMessage) -> None:
        """Put the half message again, with the number of its checks."""
        with self._deciding(one):
            if one.status != PREPARED:
                return
            half = self._whole_half(one)
            result = self._calls.put(put_back_message(half, one.check_times + 1))
            if not _is_stored(result):
                LOG.error("transaction %s: put back: %s", one.transaction_id, result.status.name)
                if result.status in _HOPELESS:
                    one.check_times += 1  # so that it is discarded
                return
            again = self._message(result.phy_offset, result.wrote_bytes)
            # A broker that was killed may have left several: no position would pass the older ones.
            old = one.open_offsets.copy()
            one.follow(again, self._limits.time_out_ms)
            with self._lock:
                for offset in old:
                    self._positions.note_decided(offset)
            self._put_ops(one, old, waits=False, put_back=True)

    def _discard(self, one: PreparedMessage) -> None:
        """Put a half message that no check has decided into TRANS_CHECK_MAX_TIME_TOPIC."""
        with self._deciding(one):
            if one.status != PREPARED:
                return
            half = self._whole_half(one)
            if one.may_be_committed and self._was_committed(one):
                return
            result = self._calls.put(discarded_message(half))
            if not _is_stored(result):
                LOG.error("transaction %s: discard: %s", one.transaction_id, result.status.name)
                if result.status not in _HOPELESS:
                    return
            self._end(one, DISCARDED, waits=True)

    # ---- positions ------------------------------------------------------------------------------

    def _persist_or_log(self) -> None:
        try:
            self.persist()
        except StoreError as error:
            if not self.stopped:
                LOG.error("the positions of transactions: %s; the next round tries again", error)

    def persist(self) -> None:
        """Flush what was put, and write the positions if they have changed. Raises StoreError."""
        with self._persisting:
            positions = self._moved()
            if positions != self._written:
                self._calls.flush()
                self._note(positions)
                self._calls.persist()
                self._written = positions

    def note_positions(self) -> None:
        """Give the positions to the table of all groups; everything that was put is durable."""
        with self._persisting:
            positions = self._moved()
            if positions != self._written:
                self._note(positions)

    def _note(self, positions: Positions) -> None:
        self._calls.commit_offset(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0, positions.half)
        self._calls.commit_offset(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0, positions.op)

    def _moved(self) -> Positions:
        """Return the positions, moved behind what is decided or has expired."""
        queue = self._table.find(TRANS_HALF_TOPIC, 0)
        low = queue.first_readable_offset(max(0, self._log.get_min_offset()))
        with self._lock:
            gone = [one for one in self._prepared.values() if one.half_offset < low]
            for one in gone:
                del self._prepared[one.key]
            positions = self._positions.move(low)
        for one in gone:
            one.status = EXPIRED
            LOG.error("transaction %s has expired undecided", one.transaction_id)
        return positions

    # ---- life cycle -----------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> bool:
        """End the thread, and wait for it unless it waits for the program's own answer."""
        self.request_stop()
        while not super().shutdown(_LOOK_S):
            if self._is_asking:
                return False
        return True


def _is_stored(result: PutMessageResult) -> bool:
    code = result.status_code
    return code == 0 or PutMessageStatus(code) in STORED_STATUSES


class _Busy(StoreStateError):
    """Another call decides the transaction, and this one does not wait for it."""


class _Deciding:
    """Hold the lock of a transaction. Raises StoreStateError: this thread holds it, and a signal
    handler has interrupted it; _Busy: another thread does, and `waits` is False."""

    def __init__(self, one: PreparedMessage, waits: bool) -> None:
        self._one = one
        self._waits = waits

    def __enter__(self) -> None:
        name, caller = self._one.transaction_id, threading.get_ident()
        if self._one.decided_by == caller:
            raise _Busy(f"transaction {name}: its decision was interrupted by this call")
        if not self._one.lock.acquire(self._waits):
            raise _Busy(f"transaction {name}: another thread decides it")
        self._one.decided_by = caller

    def __exit__(self, *error: object) -> None:
        self._one.decided_by = 0
        self._one.lock.release()
