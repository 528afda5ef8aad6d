"""Half messages that are not decided, read from the two queues of transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.table import ConsumeQueueTable, is_safe_name
from pyrocketstore.consume_queue.units import PRE_BLANK
from pyrocketstore.display import logger
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    parse_java_int,
    real_queue,
)
from pyrocketstore.transaction.records import (
    PROPERTY_PUT_BACK,
    REMOVE_TAG,
    check_times_of,
    content_of,
    half_offset_of,
    immunity_ms_of,
    was_put_back,
)

if TYPE_CHECKING:
    from pyrocketstore.commit_log._puts import PutMessageResult
    from pyrocketstore.consume_queue.queue import ConsumeQueue

LOG = logger(__name__)

#: Units that are read together.
_CHUNK = 4096
#: A log line names at most so many.
_NAMED = 10

PREPARED, COMMITTED, ROLLED_BACK = "prepared", "committed", "rolled back"
DISCARDED, EXPIRED = "discarded", "expired"


class PutHalf(NamedTuple):
    """A half message that this process has put; it has a UNIQ_KEY."""

    properties: Mapping[str, str]
    queue_offset: int
    phy_offset: int
    size: int
    born_timestamp: int
    msg_id: str = ""


class PreparedMessage:
    """A half message, and what became of it.

    Attributes
    ----------
    key : int, the physical offset of its first half message: no other transaction has it
    transaction_id : str, the UNIQ_KEY; the offset message id of a half message without one. Two
        transactions have one UNIQ_KEY if a Java producer has sent one `Message` in both
    has_unique_id : bool
    group : str, the producer group
    topic, queue_id : the real queue
    half_offset : int, queue offset of the half message, or of the last one that was put back
    phy_offset, size : int, bytes: its record
    born_timestamp : int, Unix ms
    check_times : int, how often it was put back after a check
    immunity_ms : int, it is not checked for so long after its birth
    older : list of (half_offset, phy_offset), half messages of this transaction before this one
    open_offsets : list of half_offset, those of all of them that no op message names
    status : "prepared", "committed", "rolled back", "discarded" or "expired"
    result : PutMessageResult of the commit record, None without one that this process has put
    may_be_committed : True after a put of the commit record whose outcome is not known
    is_in_block : True inside of a `with` block: no check asks about it
    lock : held while it is decided or put back
    decided_by : int, the identifier of the thread that holds it, 0 without
    """

    __slots__ = (
        "born_timestamp", "check_times", "decided_by", "group", "half_offset", "has_unique_id",
        "immunity_ms", "is_in_block", "key", "lock", "may_be_committed", "older", "open_offsets",
        "phy_offset", "queue_id", "result", "size", "status", "topic",
        "transaction_id",
    )  # fmt: skip

    def __init__(self, half: MessageExt | PutHalf, time_out_ms: int) -> None:
        real = real_queue(half.properties)
        assert real is not None
        self.topic, self.queue_id = real
        self.key = half.phy_offset
        self.transaction_id = _id_of(half)
        self.has_unique_id = PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX in half.properties
        self.group = half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        self.older: list[tuple[int, int]] = []
        self.open_offsets: list[int] = []
        self.status = PREPARED
        self.result: PutMessageResult | None = None
        self.may_be_committed = self.is_in_block = False
        self.lock = threading.Lock()
        self.decided_by = 0
        self._take(half, time_out_ms)

    def _take(self, half: MessageExt | PutHalf, time_out_ms: int) -> None:
        self.half_offset, self.phy_offset, self.size = half.queue_offset, half.phy_offset, half.size
        self.open_offsets.append(self.half_offset)
        self.born_timestamp = half.born_timestamp
        self.check_times = check_times_of(half.properties)
        self.immunity_ms = immunity_ms_of(half.properties, time_out_ms)

    def follow(self, half: MessageExt | PutHalf, time_out_ms: int) -> None:
        """Continue with a later half message of this transaction."""
        self.older.append((self.half_offset, self.phy_offset))
        self._take(half, time_out_ms)

    def phy_offsets(self) -> set[int]:
        """Return the physical offsets of all half messages of the transaction."""
        return {self.phy_offset, *(phy_offset for _, phy_offset in self.older)}

    def half_offsets(self) -> list[int]:
        """Return the queue offsets of all half messages of the transaction."""
        return [*(offset for offset, _ in self.older), self.half_offset]


class Op(NamedTuple):
    """An op message: its queue offset and physical offset, the half message that it names, and
    whether that was put back."""

    queue_offset: int
    phy_offset: int
    half_offset: int
    put_back: bool


class Found(NamedTuple):
    """The transactions that the two queues have from given positions on.

    prepared : undecided, in the order of the half queue
    half_start, half_end : int, the queue offsets that were read, [start, end)
    decided : set of int, the others between them
    op_start, op_end : int, likewise
    ops : {queue offset: queue offset of the half message, -1 for an op message that names none}
    leftover : half messages of decided transactions that no op message names
    """

    prepared: list[PreparedMessage]
    half_start: int
    half_end: int
    decided: set[int]
    op_start: int
    op_end: int
    ops: dict[int, int]
    leftover: list[int]


def read_prepared(
    log: CommitLog, table: ConsumeQueueTable, half_offset: int, op_offset: int, time_out_ms: int
) -> Found:
    """Read the half and op messages from two positions on; -1: from the first ones.

    A half message is decided if an op message behind it names it, or a copy of it; one that was put
    back within its immunity, also if an op message names the original. Copies are one transaction.

    Raises StoreIOError.
    """
    half_queue, op_queue = table.find(TRANS_HALF_TOPIC, 0), table.find(TRANS_OP_HALF_TOPIC, 0)
    half_start, half_end = _range(log, half_queue, half_offset)
    op_start, op_end = _range(log, op_queue, op_offset)
    if half_start < half_end:
        # A position that was written by hand, or of a queue that was removed, passes no op message
        # of these half messages.
        first = half_queue.reader.unit(half_start)
        behind = 0 if first is None else op_queue.units_before(first[0])
        op_start = min(op_start, max(behind, _range(log, op_queue, -1)[0]))
    ops = [_op_of(message) for message in _messages(log, op_queue, op_start, op_end)]
    known = [op for op in ops if op is not None]
    named_at = {op.half_offset: op.phy_offset for op in known if not op.put_back}  # the last ops
    put_back_at = {op.half_offset: op.phy_offset for op in known if op.put_back}
    copies = _Copies()
    for half in _messages(log, half_queue, half_start, half_end):
        if _is_decided(half, named_at):
            copies.group_of(half).is_decided = True
        elif not _is_usable(half):
            continue
        elif put_back_at.get(half.queue_offset, -1) > half.phy_offset:
            copies.group_of(half).put_back = half
        else:
            copies.group_of(half).undecided.append(half)
    prepared = [
        one for group in copies.groups if (one := _prepared_of(group, time_out_ms)) is not None
    ]
    prepared.sort(key=lambda one: one.half_offset)
    _log_merged(prepared)
    waiting = {offset for one in prepared for offset in one.half_offsets()}
    return Found(
        prepared,
        half_start,
        half_end,
        set(range(half_start, half_end)) - waiting,
        op_start,
        op_end,
        dict.fromkeys(range(op_start, op_end), -1)
        | {op.queue_offset: op.half_offset for op in known},
        sorted(half.queue_offset for group in copies.groups for half in group.leftover()),
    )


class _Group:
    """The half messages of one transaction that were read: whether one of them is decided, those
    that no op message names, and the last one of which an op message says that it was put back."""

    __slots__ = ("is_decided", "put_back", "undecided")

    def __init__(self) -> None:
        self.is_decided = False
        self.put_back: MessageExt | None = None
        self.undecided: list[MessageExt] = []

    def leftover(self) -> list[MessageExt]:
        """Return the copies without an op message of a transaction that is decided."""
        return self.undecided if self.is_decided else []


class _Copies:
    """Half messages, grouped by transaction.

    A half message joins the copies with its content. Without a UNIQ_KEY, equal content proves
    nothing: only one that was put back joins then.
    """

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self._by_content: dict[bytes, _Group] = {}

    def group_of(self, half: MessageExt) -> _Group:
        """Return the group of the next half message of the queue."""
        content = content_of(half)
        group = self._by_content.get(content)
        if group is None or not (half.uniq_key or was_put_back(half.properties)):
            group = self._by_content[content] = _Group()
            self.groups.append(group)
        return group


def _prepared_of(group: _Group, time_out_ms: int) -> PreparedMessage | None:
    """Return the transaction of a group, None for one that is decided; log what it leaves out."""
    if leftover := group.leftover():
        LOG.warning(
            "%s, queue offsets %s: copies of the decided half message of transaction %s; they are"
            " left out", TRANS_HALF_TOPIC, _offsets_text(leftover), _id_of(leftover[0]),
        )  # fmt: skip
    if group.is_decided:
        return None
    halves = group.undecided
    if not halves and group.put_back is not None:
        halves = [group.put_back]  # the last half message is lost: that before counts again
    one: PreparedMessage | None = None
    for half in halves:
        if one is None:
            one = PreparedMessage(half, time_out_ms)
        else:
            one.follow(half, time_out_ms)
    return one


def _log_merged(prepared: list[PreparedMessage]) -> None:
    merged = [one for one in prepared if one.older]
    if merged:
        LOG.warning(
            "%s: %d half messages are copies of %d undecided transactions, and count once for each:"
            " %s", TRANS_HALF_TOPIC, sum(len(one.older) for one in merged), len(merged),
            ", ".join(one.transaction_id for one in merged[:_NAMED])
            + (", ..." if len(merged) > _NAMED else ""),
        )  # fmt: skip


def _offsets_text(halves: list[MessageExt]) -> str:
    text = ", ".join(str(half.queue_offset) for half in halves[:_NAMED])
    return text + (", ..." if len(halves) > _NAMED else "")


def _is_decided(half: MessageExt, named_at: dict[int, int]) -> bool:
    # An op before the half message is of a queue that was removed since.
    if named_at.get(half.queue_offset, -1) > half.phy_offset:
        return True
    text = half.properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, "")
    return parse_java_int(text, 64) in named_at


def _id_of(half: MessageExt | PutHalf) -> str:
    return half.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or half.msg_id


def _range(log: CommitLog, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
    """Return the queue offsets to read from a position on.

    A position behind the end is of a queue that was removed: the queue is read from its beginning.
    """
    end = queue.get_max_offset_in_queue()
    low = queue.first_readable_offset(max(0, log.get_min_offset()))
    return (low if offset > end else max(offset, low)), end


def _messages(log: CommitLog, queue: ConsumeQueue, start: int, end: int) -> Iterator[MessageExt]:
    """Yield the messages of the queue offsets [start, end); log those that cannot be read."""
    at = start
    while at < end:
        units = queue.reader.columns(at, min(_CHUNK, end - at))
        if not len(units.size):
            return
        for unit in zip(*(column.tolist() for column in units), strict=True):
            message = None if unit == PRE_BLANK else log.look_message(unit[0], unit[1])
            # After damage a unit may name the bytes of a lost message, which another one has now.
            here = None
            if message is not None:
                here = (message.topic, message.queue_id, message.queue_offset)
            if message is not None and here == (queue.topic, queue.queue_id, at):
                yield message
            elif unit != PRE_BLANK and unit[0] >= log.get_min_offset():
                text = "%s, queue offset %d, byte %d of the log: no such message; it is left out"
                LOG.error(text, queue.topic, at, unit[0])
            at += 1


def _op_of(message: MessageExt) -> Op | None:
    half_offset = half_offset_of(message.stored_body)
    if half_offset is None or message.tags != REMOVE_TAG or not message.is_crc_valid:
        LOG.error(
            "%s, queue offset %d: not an op message, by its body or tag; it is left out",
            message.topic, message.queue_offset,
        )  # fmt: skip
        return None
    put_back = PROPERTY_PUT_BACK in message.properties
    return Op(message.queue_offset, message.phy_offset, half_offset, put_back)


def _is_usable(half: MessageExt) -> bool:
    """Return whether a half message can be committed; log why not."""
    real = real_queue(half.properties)
    if real is None or not is_safe_name(real[0]) or real[0] == TRANS_HALF_TOPIC:
        why = "it names no topic to commit to"
    elif not half.is_crc_valid:
        why = "its body is damaged"
    else:
        return True
    LOG.error("%s, queue offset %d: %s; it is left out", half.topic, half.queue_offset, why)
    return False
