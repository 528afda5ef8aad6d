"""The compiled put of a whole message, such as the records of a transaction."""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pyrocketstore.arguments._numbers_and_bodies cimport int_in
from pyrocketstore.commit_log._append cimport (
    CommitLogCore,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_append,
)
from pyrocketstore.commit_log._put_result cimport PutMessageResult
from pyrocketstore.record._message cimport fill_outgoing
from pyrocketstore.record._record cimport encode_record, encoded_size
from pyrocketstore.system._open_state cimport StoreState
from pyrocketstore._rocketstore cimport (
    RS_OK,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    rs_outgoing,
)

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX as _QUEUE_ID_MAX
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL as _DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH as _INNER_MULTI_DISPATCH,
    MessageRefused,
)

cdef int64_t QUEUE_ID_MAX = _QUEUE_ID_MAX

# Above this many bytes, encoding runs without the GIL.
cdef int64_t NOGIL_MIN_BYTES = 8192


@cython.final
@cython.auto_pickle(False)
cdef class MessagePuts:
    """Puts of whole messages that need not wait until they are durable.

    Parameters
    ----------
    core : CommitLogCore
    state : StoreState
    slow : SlowPuts, which puts every message that is not ordinary
    """

    cdef CommitLogCore core
    cdef StoreState state
    cdef object slow

    def __cinit__(self, CommitLogCore core not None, StoreState state not None, slow):
        self.core = core
        self.state = state
        self.slow = slow

    def put_message(self, message not None):
        """Append a MessageExtBrokerInner whose fields have their exact types; return the result,
        whatever its status."""
        cdef PutMessageResult result = None
        if self.state.fast_puts:
            result = self.append(message)
        return self.slow.put_result(message) if result is None else result

    cdef PutMessageResult append(self, inner):
        # None, and nothing is appended, if the message is not ordinary.
        cdef rs_outgoing message
        cdef rs_append out
        cdef CommitLogCore core = self.core
        cdef TopicEntry entry = <TopicEntry>core.topics.get(inner.topic)
        cdef QueueSlot slot = None
        cdef RecordBuffer buffer
        cdef PutMessageResult result
        cdef dict named = inner.properties
        cdef list keep = []
        cdef int64_t size, now
        cdef int32_t kind
        cdef int status
        if entry is not None:
            slot = entry.near(int_in(inner.queue_id, 0, QUEUE_ID_MAX, "queue_id"))
        if slot is None or _DELAY_TIME_LEVEL in named or _INNER_MULTI_DISPATCH in named:
            return None
        try:
            fill_outgoing(inner, &message, keep, core.max_message_size)
        except MessageRefused:
            return None
        kind = message.sys_flag & RS_TRANSACTION_MASK
        if ((kind != RS_TRANSACTION_NOT_TYPE and kind != RS_TRANSACTION_COMMIT_TYPE)
                or (message.properties_size == 0 and core.bare_size != 0)):
            return None
        size = encoded_size(&message)
        buffer = core.take_buffer()
        buffer.ensure(size)
        if size < NOGIL_MIN_BYTES:
            encode_record(&message, buffer.data)
        else:
            with nogil:
                encode_record(&message, buffer.data)
        now = core.env.table.now_ms()
        status = core.append(buffer.data, size, 1, slot, True, now, &out)
        core.give_buffer(buffer)
        if status != RS_OK:
            return None
        if out.took_ms > 0:
            core.note_put_time(out.took_ms)
        result = PutMessageResult.__new__(PutMessageResult)
        result.phy_offset = out.phy_offset
        result.queue_offset = out.queue_offset
        result.wrote_bytes = out.size
        result.store_timestamp = out.store_timestamp
        result.message_count = out.count
        result.host_size = message.store_host_size
        memcpy(result.host, message.store_host, sizeof(result.host))
        return result
