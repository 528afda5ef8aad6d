"""Columns of the queue units and index entries that log records require; ext units by address.

Also the selection of the records that are messages of given ranges of queues.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from pyrocketstore._rocketstore cimport (
    RS_BLANK,
    RS_CQ_EXT_MIN_UNIT_SIZE,
    RS_END,
    RS_NO_MEMORY,
    RS_OK,
    RS_TORN,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_load_be16,
    rs_load_be64,
    rs_properties,
    rs_record,
    rs_status_name,
)
from pyrocketstore.columns._builder cimport add_text, reserve, var_column
from pyrocketstore.commit_log._chunk_scan cimport (
    delay_table,
    is_multi,
    set_delays,
    tags_code_of_record,
)
from pyrocketstore.commit_log._scan cimport (
    FileWindow,
    TopicQueueMap,
    at_position,
    check_range,
    map_entry,
    next_record,
    scan_state,
)
from pyrocketstore.index._entries cimport (
    index_key_hash,
    index_key_prefix,
    index_keys,
    keys_of_record,
    next_index_key,
)
from pyrocketstore.record._record cimport (
    check_record,
    is_pair,
    next_property,
    properties_torn,
    property_text,
    scan_properties,
)
from pyrocketstore.record._text cimport java_text
from pyrocketstore.system._env cimport EnvTable

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)

# Selection of the records that are messages of given ranges of queues.
#
# A record matches at most one unit, and a unit is matched by at most one record.

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


BAD_PROPERTIES = (
    "the text of the record's properties is not complete: it ends in zeros, which no writer stores"
)

cdef enum:
    ROW_COUNT = 262144         # records of one chunk
    KEY_COUNT = 1048576        # keys of one chunk
    RECORD_SIZE_MIN = 91       # a record without topic, body and properties


cdef bint has_skipped_item(const uint8_t *p, int64_t size) noexcept nogil:
    """Return True if an item of the text is no property: readers skip it, as 4.9.3 does.

    Such an item has no U+0001, no name or no value, as between two separators in a row.
    """
    cdef property_text text
    text.at = p
    text.stop = p + size
    while next_property(&text):
        if not is_pair(&text):
            return True
    return False


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordWalk:
    """A walk over commit log files that collects the queue units and index entries of the records.

    After each `walk` the columns contain one chunk of the log. `queues` numbers the queues in the
    order of their first records; a record of no queue has number -1. `bad_properties` has the rows
    of the chunk whose properties were not written completely, and `skipped_properties` counts the
    other rows with an item that is no property. Without `check_crc` a record with a
    changed body counts as valid, as in a file that recovery does not read.

    Parameters
    ----------
    size : int, bytes of the log to walk; the columns have room for its records only
    """
    cdef readonly TopicQueueMap queues
    cdef readonly list multi
    cdef readonly list bad_properties
    cdef readonly Py_ssize_t skipped_properties
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t key_count
    cdef dict _columns
    cdef int64_t[::1] phy_offset
    cdef int32_t[::1] size
    cdef int32_t[::1] queue
    cdef int64_t[::1] queue_offset
    cdef int64_t[::1] tags_code
    cdef int64_t[::1] store_timestamp
    cdef int32_t[::1] key_row
    cdef int32_t[::1] key_hash
    cdef delay_table delays
    cdef Py_ssize_t row_room
    cdef Py_ssize_t key_room
    cdef bint check_crc
    cdef bint walking

    def __cinit__(self, delay_levels, int64_t size, bint check_crc=True):
        self.check_crc = check_crc
        self.row_room = min(ROW_COUNT, max(size, 0) // RECORD_SIZE_MIN + 1)
        # A key has at least one byte and is followed by a blank; a unique key is longer.
        self.key_room = min(KEY_COUNT, max(size, 0) // 2 + 2)
        self.queues = TopicQueueMap()
        self.multi = []
        self.bad_properties = []
        set_delays(&self.delays, delay_levels)
        self._columns = {}
        self._columns["phy_offset"] = self.phy_offset = np.empty(self.row_room, np.int64)
        self._columns["size"] = self.size = np.empty(self.row_room, np.int32)
        self._columns["queue"] = self.queue = np.empty(self.row_room, np.int32)
        self._columns["queue_offset"] = self.queue_offset = np.empty(self.row_room, np.int64)
        self._columns["tags_code"] = self.tags_code = np.empty(self.row_room, np.int64)
        self._columns["store_timestamp"] = self.store_timestamp = np.empty(self.row_room, np.int64)
        self._columns["key_row"] = self.key_row = np.empty(self.key_room, np.int32)
        self._columns["key_hash"] = self.key_hash = np.empty(self.key_room, np.int32)

    def column(self, str name):
        """Return a column of the chunk, a view that the next walk overwrites."""
        full = self._columns[name]
        return full[: self.key_count if name.startswith("key_") else self.count]

    def walk(self, FileWindow window not None, str path, int64_t file_from_offset,
             int64_t position, int64_t stop):
        """Read one chunk of a file, from `position` to `stop` at most.

        Parameters
        ----------
        position, stop : int, bytes into the file; no record extends past `stop`

        Returns
        -------
        (status, position): RS_OK if the columns are full or `stop` was reached; else the status of
        the bytes at `position`

        Raises
        ------
        StoreIOError with path and position
        """
        cdef scan_state state
        cdef int status
        check_range(file_from_offset, position, stop)
        memset(&state, 0, sizeof(state))
        state.position = position
        state.until = state.stop = stop
        if self.walking:
            raise StoreStateError("another thread uses this walk")
        window.begin_use()
        self.walking = True
        try:
            self.count = 0
            self.key_count = 0
            self.multi = []
            self.bad_properties = []
            self.skipped_properties = 0
            with nogil:
                status = self.take(window, file_from_offset, &state)
        finally:
            self.walking = False
            window.end_use()
        if state.error < 0:
            raise StoreIOError(<int>-state.error, "pread", path, state.position)
        if status == RS_NO_MEMORY:
            raise MemoryError()
        if status == RS_OK and state.position == position and position < stop:
            raise StoreStateError(
                f"the record at {position} does not fit into a walk over {self.row_room} rows and"
                f" {self.key_room} keys"
            )
        return status, state.position

    def ranges(self, EnvTable env, str path, int64_t file_from_offset, int64_t stop):
        """Walk over one log file, and step over damage as every walk over the log does.

        Yields
        ------
        (begin, end, status), bytes into the file, in order up to `stop`. RS_OK: the records there
        are in the columns; RS_BLANK: the file ends with it; else the verdict on damage, behind
        which the next valid record begins. Raises StoreIOError.
        """
        cdef FileWindow window = FileWindow(env, path)
        cdef int64_t position = 0
        cdef int64_t end
        cdef int status
        try:
            while position < stop:
                status, end = self.walk(window, path, file_from_offset, position, stop)
                yield position, end, RS_OK
                position = end
                if status == RS_OK:
                    continue
                end = stop
                if status != RS_BLANK:
                    end = window.find_record(file_from_offset, position + 1, stop,
                                             check_crc=self.check_crc)
                    if end < 0:
                        end = stop
                yield position, end, status
                position = end
        finally:
            window.close()

    cdef int take(self, FileWindow window, int64_t file_from_offset, scan_state *state
                  ) noexcept nogil:
        cdef rs_record record
        cdef int status = RS_OK
        while state.position < state.stop and self.count < self.row_room:
            status = next_record(window, file_from_offset, self.check_crc, state, &record)
            if status == RS_END and state.position >= state.stop:
                return RS_TORN      # the file is shorter than expected
            if status != RS_OK:
                break
            if state.position + record.total_size > state.stop:
                state.position -= state.header
                return RS_TORN      # the window may hold more than this range
            status = self.add(at_position(window, state.position), &record)
            if status != RS_OK:
                state.position -= state.header
                break
            state.position += record.total_size
        # Full columns end the chunk: the next one begins with this record.
        return RS_OK if status == -1 else status

    cdef int add(self, const uint8_t *p, const rs_record *record) noexcept nogil:
        # RS_OK; -1: no room for the keys; RS_NO_MEMORY.
        cdef rs_properties properties
        cdef const uint8_t *text = p + record.properties_position
        cdef int32_t kind = record.sys_flag & RS_TRANSACTION_MASK
        cdef map_entry *entry
        cdef Py_ssize_t row = self.count
        scan_properties(text, record.properties_size, &properties)
        if self.key_count + properties.keys.size // 2 + 2 > self.key_room:
            return -1
        self.queue[row] = -1
        if kind == RS_TRANSACTION_NOT_TYPE or kind == RS_TRANSACTION_COMMIT_TYPE:
            entry = self.queues.insert(p + record.topic_position, record.topic_size,
                                       record.queue_id)
            if entry == NULL:
                return RS_NO_MEMORY
            if entry.count == 0:
                entry.count = self.queues.count
            self.queue[row] = <int32_t>(entry.count - 1)
            if is_multi(&properties):
                with gil:
                    self.multi.append((
                        row,
                        java_text(text + properties.multi_dispatch.position,
                                  properties.multi_dispatch.size),
                        java_text(text + properties.multi_queue_offset.position,
                                  properties.multi_queue_offset.size),
                        record.queue_id))
        if properties_torn(text, record.properties_size):
            with gil:
                self.bad_properties.append(row)
        elif has_skipped_item(text, record.properties_size):
            self.skipped_properties += 1
        self.phy_offset[row] = record.phy_offset
        self.size[row] = record.total_size
        self.queue_offset[row] = record.queue_offset
        self.store_timestamp[row] = record.store_timestamp
        self.tags_code[row] = tags_code_of_record(p, record, &properties, &self.delays)
        if kind != RS_TRANSACTION_ROLLBACK_TYPE:
            self.add_keys(p, record, &properties)
        self.count += 1
        return RS_OK

    cdef void add_keys(self, const uint8_t *p, const rs_record *record,
                       const rs_properties *properties) noexcept nogil:
        cdef index_keys keys = keys_of_record(p, record, properties)
        cdef int32_t prefix = index_key_prefix(p + record.topic_position, record.topic_size)
        while next_index_key(&keys):
            self.key_row[self.key_count] = <int32_t>self.count
            self.key_hash[self.key_count] = index_key_hash(prefix, keys.key, keys.size)
            self.key_count += 1

    def queue_names(self):
        """Return the queues in the order of their numbers: a list of (topic, queue_id)."""
        cdef list names = [None] * self.queues.count
        cdef map_entry *entry
        cdef int64_t i
        for i in range(self.queues.capacity):
            entry = &self.queues.entries[i]
            if entry.hash != 0 and entry.count:
                names[entry.count - 1] = (java_text(entry.topic, entry.topic_size), entry.queue_id)
        return names


def read_ext_units(const uint8_t[::1] data not None, const int64_t[::1] positions not None,
                   int64_t[::1] tags_code not None, int64_t[::1] store_timestamp not None,
                   uint8_t[::1] whole not None):
    """Read ext units at `positions` of `data`; `whole` is set to 1 for each valid unit, else 0."""
    cdef Py_ssize_t i
    cdef int64_t left
    cdef int16_t size, bits
    cdef const uint8_t *p
    if not (tags_code.shape[0] == store_timestamp.shape[0] == whole.shape[0]
            == positions.shape[0]):
        raise ValueError("the columns differ in length")
    for i in range(positions.shape[0]):
        whole[i] = 0
        left = data.shape[0] - positions[i]
        if positions[i] < 0 or left < RS_CQ_EXT_MIN_UNIT_SIZE:
            continue
        p = &data[positions[i]]
        size = rs_load_be16(p)
        bits = rs_load_be16(p + 18)
        if size < RS_CQ_EXT_MIN_UNIT_SIZE or size > left or bits > size - RS_CQ_EXT_MIN_UNIT_SIZE:
            continue
        tags_code[i] = rs_load_be64(p + 2)
        store_timestamp[i] = rs_load_be64(p + 10)
        whole[i] = 1
