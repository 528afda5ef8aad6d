"""Which records are messages of given ranges of queues: each unit of a range is answered for once.

Most records have the queue of the one before.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import numpy as np

from pyrocketstore._record cimport check_record
from pyrocketstore._rocketstore cimport RS_OK, RS_TORN, rs_record, rs_status_name
from pyrocketstore._scan cimport TopicQueueMap, map_entry
from pyrocketstore._values cimport add_text, reserve, var_column

from pyrocketstore.errors import StoreCorruptionError, StoreFormatError

cdef enum:
    NOT_QUEUED = 0x4  # of the transaction type: prepared and rolled back, not committed and none
    TEXT_ROOM = 765   # bytes that a topic may have as text, U+FFFD for each of its 255

ctypedef struct queue_range:
    int64_t low   # queue offsets
    int64_t high
    int64_t base  # where the units begin


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class QueueRows:
    """Ranges of queues, their units, and which of these were answered.

    Parameters
    ----------
    queues : sequence of (topic: str, queue_id: int, low: int, high: int): queue offsets [low,
        high), each queue once
    phy_offsets : int64[m], bytes: what the units name, of all ranges one behind the other
    sizes : int32[m], bytes
    answered : bool[m]: units that no record is to answer to; others are set as they are answered.
        It is the caller's array

    Raises
    ------
    StoreFormatError: arrays of other lengths than the ranges have, an id that is no int32, a queue
    that comes twice.

    Threads: one at a time.
    """

    cdef TopicQueueMap numbers
    cdef queue_range *ranges  # by the numbers of their queues
    cdef const int64_t[::1] phy_offsets
    cdef const int32_t[::1] sizes
    cdef uint8_t[::1] answered
    cdef var_column text

    def __cinit__(self, queues, const int64_t[::1] phy_offsets not None,
                  const int32_t[::1] sizes not None, answered not None):
        cdef int64_t total = 0
        cdef int64_t low, high
        cdef bytes text
        cdef map_entry *entry
        self.numbers = TopicQueueMap()
        self.ranges = <queue_range *>calloc(len(queues) + 1, sizeof(queue_range))
        if self.ranges == NULL or reserve(&self.text, TEXT_ROOM) < 0:
            raise MemoryError
        for i, (topic, queue_id, low, high) in enumerate(queues):
            if not (0 <= low <= high and -(1 << 31) <= queue_id < 1 << 31):
                raise StoreFormatError(f"no range of a queue: {topic}/{queue_id}, {low} to {high}")
            # A name that is no text is no record's: theirs are texts.
            text = topic.encode("utf-8", "surrogateescape")
            entry = self.numbers.insert(text, <int32_t>len(text), queue_id)
            if entry == NULL:
                raise MemoryError
            if entry.number != i:
                raise StoreFormatError(f"two ranges of a queue: {topic}/{queue_id}")
            self.ranges[i].low = low
            self.ranges[i].high = high
            self.ranges[i].base = total
            total += high - low
        if not phy_offsets.shape[0] == sizes.shape[0] == len(answered) == total:
            raise StoreFormatError(f"{total} units are in the ranges, and others were given")
        self.phy_offsets = phy_offsets
        self.sizes = sizes
        self.answered = answered.view(np.uint8)

    def __dealloc__(self):
        free(self.ranges)
        free(self.text.data)

    cdef map_entry *_queue_of(
        self, const uint8_t *topic, const rs_record *record, map_entry *before
    ) noexcept nogil:
        """The record's queue, most often that of the one before; NULL: no range is of it."""
        if before != NULL and before.queue_id == record.queue_id and (
            before.topic_size == record.topic_size
            and memcmp(before.topic, topic, record.topic_size) == 0
        ):
            return before
        # As text, since that is what a queue is called by; there is room.
        self.text.size = 0
        add_text(&self.text, topic, record.topic_size)
        return self.numbers.find(self.text.data, <int32_t>self.text.size, record.queue_id)

    cdef bint _answers(
        self, const queue_range *one, const rs_record *record, int64_t phy_offset, int32_t size
    ) noexcept nogil:
        cdef int64_t place
        if record.sys_flag & NOT_QUEUED or not one.low <= record.queue_offset < one.high:
            return False
        place = one.base + (record.queue_offset - one.low)
        if self.answered[place] or self.phy_offsets[place] != phy_offset or (
            self.sizes[place] != size
        ):
            return False
        self.answered[place] = 1
        return True

    cdef int _walk(
        self, const uint8_t *data, const int64_t[::1] positions, const int32_t[::1] sizes,
        const int64_t[::1] phy_offsets, int64_t length, uint8_t[::1] wanted, Py_ssize_t *row
    ) noexcept nogil:
        """RS_OK, or why it stopped at `row`."""
        cdef rs_record record
        cdef Py_ssize_t i
        cdef int status
        cdef map_entry *queue = NULL
        for i in range(positions.shape[0]):
            row[0] = i
            if not (0 <= sizes[i] <= length and 0 <= positions[i] <= length - sizes[i]):
                return RS_TORN
            status = check_record(data + positions[i], sizes[i], phy_offsets[i], False, &record)
            if status != RS_OK:
                return status
            queue = self._queue_of(data + positions[i] + record.topic_position, &record, queue)
            if queue != NULL and self._answers(
                &self.ranges[queue.number], &record, phy_offsets[i], sizes[i]
            ):
                wanted[i] = 1
        return RS_OK

    def rows(self, data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None,
             const int64_t[::1] phy_offsets not None, *, str path="commit log"):
        """The records that answer to a unit of the ranges, which counts as answered from here on.

        Parameters
        ----------
        data : bytes-like
        positions : int64[n], bytes into `data`
        sizes : int32[n], bytes: of each record
        phy_offsets : int64[n], bytes: where each lies in the log, and must have stored that it does
        path : str, what an error calls `data`; its position is the record's in `data`

        Returns
        -------
        bool[n]. A record answers to the unit of its queue and queue offset that names its place and
        size, if it is queued at all: prepared and rolled back messages are not.

        Raises
        ------
        StoreCorruptionError: no whole record there. StoreFormatError: arrays of different lengths.

        Threads: one at a time; the GIL is let go.
        """
        cdef Py_buffer view
        cdef Py_ssize_t count = positions.shape[0]
        cdef Py_ssize_t row = 0
        cdef uint8_t[::1] wanted
        cdef int status
        if sizes.shape[0] != count or phy_offsets.shape[0] != count:
            raise StoreFormatError("positions, sizes and phy_offsets must have one entry a record")
        result = np.zeros(count, np.bool_)
        wanted = result.view(np.uint8)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                status = self._walk(
                    <const uint8_t *>view.buf, positions, sizes, phy_offsets, view.len, wanted, &row
                )
        finally:
            PyBuffer_Release(&view)
        if status != RS_OK:
            raise StoreCorruptionError(
                path, positions[row], rs_status_name(status).decode("ascii")
            )
        return result
