"""Whether a record is the message of one queue at one queue offset."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from pyrocketstore._rocketstore cimport rs_record

cdef enum:
    NOT_QUEUED = 0x4  # of the transaction type: prepared and rolled back messages have no unit


# A queue as its records name it.
ctypedef struct queue_name:
    const uint8_t *topic  # valid UTF-8
    int32_t topic_size    # -1: a topic that no record can have
    int32_t queue_id
    bint is_light         # the name begins with %LMQ%


# True if Java decodes the bytes of a record to that text: malformed UTF-8 becomes U+FFFD.
cdef bint is_java_text(
    const uint8_t *p, int64_t size, const uint8_t *topic, int64_t topic_size
) noexcept nogil

# The uncommon cases of is_of_queue: a topic that is malformed UTF-8, and a record that names the
# queue in INNER_MULTI_DISPATCH.
cdef bint is_named_otherwise(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil


cdef inline bint is_of_queue(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil:
    """Return True if the checked record at `p` is the queue's message at `queue_offset`."""
    if record.sys_flag & NOT_QUEUED:
        return False
    return (
        record.queue_offset == queue_offset
        and record.queue_id == queue.queue_id
        and record.topic_size == queue.topic_size
        and memcmp(p + record.topic_position, queue.topic, record.topic_size) == 0
    ) or is_named_otherwise(queue, p, record, queue_offset)


@cython.final
cdef class QueueName:
    """The queue that records are checked against."""
    cdef queue_name name
    cdef bytes topic_bytes
