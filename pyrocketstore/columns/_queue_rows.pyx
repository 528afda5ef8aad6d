"""Selection of the records that are messages of given ranges of queues.

A record matches at most one unit, and a unit is matched by at most one record.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import numpy as np

from pyrocketstore.record._record cimport check_record
from pyrocketstore._rocketstore cimport RS_OK, RS_TORN, rs_record, rs_status_name
from pyrocketstore.commit_log._scan cimport TopicQueueMap, map_entry
from pyrocketstore.columns._builder cimport add_text, reserve, var_column

from pyrocketstore.errors import StoreCorruptionError, StoreFormatError

cdef enum:
    NOT_QUEUED = 0x4  # the bit that the transaction types prepared and rolled back have in common
    TEXT_ROOM = 765   # bytes of the longest topic as text: 255 times U+FFFD

ctypedef struct queue_range:
    int64_t low   # queue offsets
    int64_t high
    int64_t base  # index of the first unit of the range


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class QueueRows:
    """Ranges of queues, their units, and the units that records have matched.

    Parameters
    ----------
    queues : sequence of (topic: str, queue_id: int, low: int, high: int): queue offsets [low,
        high), each queue once
    phy_offsets : int64[m], bytes: physical offsets of the units of all ranges, concatenated
    sizes : int32[m], bytes: record sizes of the units
    answered : bool[m]: True for units that no record may match. `rows` sets further entries of this
        array as records match units

    Raises
    ------
    StoreFormatError: lengths of arrays that differ from the ranges, an id outside of int32, a queue
    that occurs twice.

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
                raise StoreFormatError(
                    f"{topic}/{queue_id}, {low} to {high}: must be a range of queue offsets,"
                    " 0 <= low <= high, of an int32 queue id"
                )
            # A name with lone surrogates matches no record: topics of records are valid text.
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
            raise StoreFormatError(
                f"the ranges have {total} units: phy_offsets, sizes and answered must have {total}"
                f" entries each, not {phy_offsets.shape[0]}, {sizes.shape[0]} and {len(answered)}"
            )
        self.phy_offsets = phy_offsets
        self.sizes = sizes
        self.answered = answered.view(np.uint8)

    def __dealloc__(self):
        free(self.ranges)
        free(self.text.data)

    cdef map_entry *_queue_of(
        self, const uint8_t *topic, const rs_record *record, map_entry *before
    ) noexcept nogil:
        """Return the queue of a record, most often that of the previous one; NULL: no range."""
        if before != NULL and before.queue_id == record.queue_id and (
            before.topic_size == record.topic_size
            and memcmp(before.topic, topic, record.topic_size) == 0
        ):
            return before
        # Look the topic up as text, the form of queue names; TEXT_ROOM suffices for it.
        self.text.size = 0
        add_text(&self.text, topic, record.topic_size)
        return self.numbers.find(self.text.data, <int32_t>self.text.size, record.queue_id)

    cdef bint _has_unit(
        self, const queue_range *one, const rs_record *record, int64_t phy_offset, int32_t size
    ) noexcept nogil:
        cdef int64_t index
        if record.sys_flag & NOT_QUEUED or not one.low <= record.queue_offset < one.high:
            return False
        index = one.base + (record.queue_offset - one.low)
        if self.answered[index] or self.phy_offsets[index] != phy_offset or (
            self.sizes[index] != size
        ):
            return False
        self.answered[index] = 1
        return True

    cdef int _walk(
        self, const uint8_t *data, const int64_t[::1] positions, const int32_t[::1] sizes,
        const int64_t[::1] phy_offsets, int64_t length, uint8_t[::1] wanted, Py_ssize_t *row
    ) noexcept nogil:
        """Return RS_OK, or the status of the record `row` that ended the walk."""
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
            if queue != NULL and self._has_unit(
                &self.ranges[queue.number], &record, phy_offsets[i], sizes[i]
            ):
                wanted[i] = 1
        return RS_OK

    def rows(self, data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None,
             const int64_t[::1] phy_offsets not None, *, str path="commit log"):
        """Select the records that match a unit of the ranges, and mark these units as matched.

        A record matches the unit of its queue and queue offset if the unit has the record's
        physical offset and size. Prepared and rolled back messages match no unit.

        Parameters
        ----------
        data : bytes-like
        positions : int64[n], bytes into `data`
        sizes : int32[n], bytes: size of each record
        phy_offsets : int64[n], bytes: the physical offset that each record must have stored
        path : str, the name of `data` in errors; their position is that of the record in `data`

        Returns
        -------
        bool[n]: True for each record that matches a unit.

        Raises
        ------
        StoreCorruptionError: a record is not valid. StoreFormatError: arrays of different lengths.

        Threads: one at a time; the GIL is released.
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
