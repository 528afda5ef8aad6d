"""Whether a record is the message that a unit of a queue should name.

A damaged unit may name any record of the log. The record says of which queue it is: by its topic,
queue id and queue offset, or, for the further queues of multi-dispatch, by two properties.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from pyrocketstore.record._record cimport check_record, java_digit, scan_properties
from pyrocketstore._rocketstore cimport (
    RS_OK, rs_properties, rs_record, rs_span, rs_utf8_next,
)

cdef enum:
    COMMA = 44
    PLUS = 43
    MINUS = 45
    LIGHT_PREFIX_SIZE = 5

cdef const uint8_t *LIGHT_PREFIX = b"%LMQ%"


cdef bint is_java_text(
    const uint8_t *p, int64_t size, const uint8_t *topic, int64_t topic_size
) noexcept nogil:
    cdef int64_t at = 0
    cdef int64_t topic_at = 0
    cdef uint32_t code, topic_code
    if size == topic_size and memcmp(p, topic, size) == 0:
        return True
    while at < size and topic_at < topic_size:
        at += rs_utf8_next(p + at, size - at, &code)
        topic_at += rs_utf8_next(topic + topic_at, topic_size - topic_at, &topic_code)
        if code != topic_code:
            return False
    return at >= size and topic_at == topic_size


cdef int64_t _count_parts(const uint8_t *p, int64_t size) noexcept nogil:
    """How many parts Java's String.split(",") gives: empty ones at the end are dropped."""
    cdef int64_t count = 1
    cdef int64_t i
    if size == 0:
        return 1
    while size > 0 and p[size - 1] == COMMA:
        size -= 1
    if size == 0:
        return 0
    for i in range(size):
        count += p[i] == COMMA
    return count


cdef const uint8_t *_part_end(const uint8_t *p, const uint8_t *stop) noexcept nogil:
    cdef const uint8_t *end = <const uint8_t *>memchr(p, COMMA, stop - p) if p < stop else NULL
    return stop if end == NULL else end


cdef bint _is_number(const uint8_t *p, const uint8_t *stop, int64_t wanted) noexcept nogil:
    """Whether Java's Long.parseLong makes `wanted` of text; a queue offset is not negative."""
    cdef int64_t value = 0
    cdef int64_t used = 0
    cdef int32_t digit
    if p < stop and (p[0] == PLUS or (p[0] == MINUS and wanted == 0)):  # "-0" is 0
        p += 1
    if p >= stop:
        return False
    while p < stop:
        digit = java_digit(p, stop - p, &used)
        if digit < 0 or value > (INT64_MAX - digit) // 10:
            return False
        value = 10 * value + digit
        p += used
    return value == wanted


cdef bint _dispatches_to(
    const queue_name *queue, const uint8_t *text, rs_span names, rs_span offsets,
    int64_t queue_offset
) noexcept nogil:
    """Whether one of the names is the queue and the number in its place is `queue_offset`."""
    cdef const uint8_t *name = text + names.position
    cdef const uint8_t *name_stop = name + names.size
    cdef const uint8_t *number = text + offsets.position
    cdef const uint8_t *number_stop = number + offsets.size
    cdef const uint8_t *name_end
    cdef const uint8_t *number_end
    if _count_parts(name, names.size) != _count_parts(number, offsets.size):
        return False  # no dispatcher takes such a record
    while name < name_stop and number < number_stop:
        name_end = _part_end(name, name_stop)
        number_end = _part_end(number, number_stop)
        if is_java_text(name, name_end - name, queue.topic, queue.topic_size) and (
            _is_number(number, number_end, queue_offset)
        ):
            return True
        name = name_end + 1
        number = number_end + 1
    return False


cdef bint is_named_otherwise(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil:
    cdef rs_properties found
    cdef const uint8_t *text = p + record.properties_position
    if record.queue_offset == queue_offset and record.queue_id == queue.queue_id and is_java_text(
        p + record.topic_position, record.topic_size, queue.topic, queue.topic_size
    ):
        return True
    # A light queue has the id 0 where light queues are enabled, else the record's.
    if record.queue_id != queue.queue_id and not (queue.is_light and queue.queue_id == 0):
        return False
    scan_properties(text, record.properties_size, &found)
    if found.multi_dispatch.size <= 0 or found.multi_queue_offset.size <= 0:
        return False
    return _dispatches_to(
        queue, text, found.multi_dispatch, found.multi_queue_offset, queue_offset
    )


@cython.final
@cython.auto_pickle(False)
cdef class QueueName:
    """A queue, for the compiled readers that compare each record with it.

    Parameters
    ----------
    topic : str
    queue_id : int, an int32

    Threads: any; it never changes.
    """

    def __cinit__(self, str topic not None, int32_t queue_id):
        try:
            self.topic_bytes = topic.encode("utf-8")
            self.name.topic_size = <int32_t>PyBytes_GET_SIZE(self.topic_bytes)
        except UnicodeEncodeError:  # a lone surrogate: no text of a record has any
            self.topic_bytes = b""
            self.name.topic_size = -1
        self.name.topic = <const uint8_t *>PyBytes_AS_STRING(self.topic_bytes)
        self.name.queue_id = queue_id
        self.name.is_light = self.name.topic_size >= LIGHT_PREFIX_SIZE and (
            memcmp(self.name.topic, LIGHT_PREFIX, LIGHT_PREFIX_SIZE) == 0
        )

    def has(self, data, int64_t queue_offset) -> bool:
        """Whether `data` starts with a whole record that is the queue's message at that offset."""
        cdef Py_buffer view
        cdef rs_record record
        cdef bint found = False
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        if check_record(<const uint8_t *>view.buf, view.len, -1, False, &record) == RS_OK:
            found = is_of_queue(&self.name, <const uint8_t *>view.buf, &record, queue_offset)
        PyBuffer_Release(&view)
        return found
