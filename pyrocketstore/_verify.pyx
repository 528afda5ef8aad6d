"""Walks of `verify`: records of the log as columns, chains of the index, ext units by address."""
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memchr

import numpy as np

from pyrocketstore._index_file cimport index_key_hash, index_key_prefix
from pyrocketstore._log_piece cimport delay_table, set_delays, tags_code_of_record
from pyrocketstore._record cimport check_record, largest_record, scan_properties
from pyrocketstore._rocketstore cimport (
    RS_CQ_EXT_MIN_UNIT_SIZE,
    RS_CQ_STORE_UNIT_SIZE,
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_NO_MEMORY,
    RS_OK,
    RS_TORN,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_load_be16,
    rs_load_be32,
    rs_load_be64,
    rs_properties,
    rs_record,
)
from pyrocketstore._scan cimport WINDOW_BYTES, FileWindow, TopicQueueMap, check_range, map_entry
from pyrocketstore._text cimport java_text

from pyrocketstore.errors import StoreIOError, StoreStateError

cdef enum:
    ROW_COUNT = 262144         # records in one piece
    KEY_COUNT = 1048576        # keys in one piece
    RECORD_SIZE_MIN = 91       # of a record without topic, body and properties


cdef bint properties_valid(const uint8_t *p, int64_t size) noexcept nogil:
    """Whether each property is a name, U+0001 and a value, with U+0002 between them.

    Java's parser accepts an area that does not end in U+0002, further U+0001 in a value, and text
    that is not UTF-8; its writer leaves an empty value, which the parser drops. What ends in zeros
    was never written to its end."""
    cdef const uint8_t *at = p
    cdef const uint8_t *stop = p + size
    cdef const uint8_t *end
    cdef const uint8_t *value
    if size <= 0:
        return True
    if p[size - 1] == 0:
        return False
    while at < stop:
        end = <const uint8_t *>memchr(at, 2, stop - at)
        if end == NULL:
            end = stop
        value = <const uint8_t *>memchr(at, 1, end - at)
        if value == NULL or value == at:
            return False
        at = end + 1
    return True


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordWalk:
    """Goes over commit log files and keeps what their records ask of queues and index.

    After each `walk` the columns hold one piece of the log. `queues` numbers the queues as they
    are met; a record that belongs into none has number -1. `bad_properties` has the rows of the
    piece whose properties are no properties. Without `check_crc` a record whose body
    has changed counts as whole, as it does where recovery does not look.

    Parameters
    ----------
    size : int, bytes of the log that will be walked; the columns have room for no more than that
    """
    cdef readonly TopicQueueMap queues
    cdef readonly list multi
    cdef readonly list bad_properties
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t key_count
    cdef object _columns
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
        # A key has at least one byte and a blank behind it; a unique key has more.
        self.key_room = min(KEY_COUNT, max(size, 0) // 2 + 2)
        self.queues = TopicQueueMap()
        self.multi = []
        self.bad_properties = []
        set_delays(&self.delays, delay_levels)
        self._columns = {
            "phy_offset": np.empty(self.row_room, np.int64),
            "size": np.empty(self.row_room, np.int32),
            "queue": np.empty(self.row_room, np.int32),
            "queue_offset": np.empty(self.row_room, np.int64),
            "tags_code": np.empty(self.row_room, np.int64),
            "store_timestamp": np.empty(self.row_room, np.int64),
            "key_row": np.empty(self.key_room, np.int32),
            "key_hash": np.empty(self.key_room, np.int32),
        }
        self.phy_offset = self._columns["phy_offset"]
        self.size = self._columns["size"]
        self.queue = self._columns["queue"]
        self.queue_offset = self._columns["queue_offset"]
        self.tags_code = self._columns["tags_code"]
        self.store_timestamp = self._columns["store_timestamp"]
        self.key_row = self._columns["key_row"]
        self.key_hash = self._columns["key_hash"]

    def column(self, str name):
        """A column of the piece; a view that the next walk overwrites."""
        full = self._columns[name]
        return full[: self.key_count if name.startswith("key_") else self.count]

    def walk(self, FileWindow window not None, str path, int64_t file_from_offset,
             int64_t position, int64_t stop):
        """Take in one piece of a file, from `position` to `stop` at most.

        Parameters
        ----------
        position, stop : int, bytes into the file; no record goes on past `stop`

        Returns
        -------
        (status, position): RS_OK when the columns are full or `stop` was reached; else the verdict
        on what lies at `position`

        Raises
        ------
        StoreIOError with path and position
        """
        cdef int64_t at = position
        cdef int64_t error = 0
        cdef int status
        check_range(file_from_offset, position, stop)
        if self.walking:
            raise StoreStateError("another thread is in this walk")
        window.begin_use()
        self.walking = True
        try:
            self.count = 0
            self.key_count = 0
            self.multi = []
            self.bad_properties = []
            with nogil:
                status = self.take(window, file_from_offset, &at, stop, &error)
        finally:
            self.walking = False
            window.end_use()
        if error < 0:
            raise StoreIOError(<int>-error, "pread", path, at)
        if status == RS_NO_MEMORY:
            raise MemoryError()
        if status == RS_OK and at == position and position < stop:
            raise StoreStateError("the walk was made for less than the record that lies here")
        return status, at

    cdef int take(self, FileWindow window, int64_t file_from_offset, int64_t *position,
                  int64_t stop, int64_t *error) noexcept nogil:
        cdef rs_record record
        cdef const uint8_t *p
        cdef int64_t left, got, wanted
        cdef int64_t at = position[0]
        cdef int status = RS_OK
        while at < stop and self.count < self.row_room:
            left = window.start + window.size - at
            if at < window.start or left <= 0:
                left = 0
            p = window.buffer + (at - window.start)
            status = RS_TORN
            if left > 0:
                status = check_record(p, left, file_from_offset + at, self.check_crc,
                                      &record)
            if status == RS_TORN and at + left < stop:
                wanted = WINDOW_BYTES
                if left >= 8 and wanted < rs_load_be32(p) <= largest_record():
                    wanted = rs_load_be32(p)
                if wanted > stop - at:
                    wanted = stop - at
                got = window.fill(at, wanted)
                if got < 0:
                    error[0] = got
                    break
                if got < wanted:
                    stop = at + got      # the file is shorter than it should be
                continue
            if status == RS_OK and at + record.total_size > stop:
                status = RS_TORN
            if status != RS_OK:
                break
            status = self.add(p, &record)
            if status != RS_OK:
                break
            at += record.total_size
        position[0] = at
        # Columns without room end the piece: the next one goes on with this record.
        return RS_OK if status == -1 else status

    cdef int add(self, const uint8_t *p, const rs_record *record) noexcept nogil:
        # RS_OK; -1: the keys do not fit any more; RS_NO_MEMORY.
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
            if properties.multi_dispatch.size > 0 and properties.multi_queue_offset.size > 0:
                with gil:
                    self.multi.append((
                        row, record.queue_id,
                        java_text(text + properties.multi_dispatch.position,
                                  properties.multi_dispatch.size),
                        java_text(text + properties.multi_queue_offset.position,
                                  properties.multi_queue_offset.size)))
        if not properties_valid(text, record.properties_size):
            with gil:
                self.bad_properties.append(row)
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
        cdef const uint8_t *text = p + record.properties_position
        cdef const uint8_t *key = text + properties.keys.position
        cdef int32_t left = properties.keys.size
        cdef int32_t size
        cdef int32_t prefix = index_key_prefix(p + record.topic_position, record.topic_size)
        if properties.uniq_key.size > 0:
            self.add_key(index_key_hash(prefix, text + properties.uniq_key.position,
                                        properties.uniq_key.size))
        while left > 0:
            size = 0
            while size < left and key[size] != 32:
                size += 1
            if size > 0:
                self.add_key(index_key_hash(prefix, key, size))
            key += size + 1
            left -= size + 1

    cdef inline void add_key(self, int32_t hashed) noexcept nogil:
        self.key_row[self.key_count] = <int32_t>self.count
        self.key_hash[self.key_count] = hashed
        self.key_count += 1

    def queue_names(self):
        """The queues by their numbers: a list of (topic, queue_id)."""
        cdef list names = [None] * self.queues.count
        cdef map_entry *entry
        cdef int64_t i
        for i in range(self.queues.capacity):
            entry = &self.queues.entries[i]
            if entry.hash != 0 and entry.count:
                names[entry.count - 1] = (java_text(entry.topic, entry.topic_size), entry.queue_id)
        return names


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ChainWalk:
    """Follows what the slots of one index file must have held as its entries were put.

    Entries marked as bad already are passed over, and may be named by anyone.
    """
    cdef int32_t[::1] newest        # by slot: the last sound entry
    cdef uint8_t[::1] bad           # one bit an entry
    cdef int64_t slots
    cdef int64_t limit

    def __cinit__(self, int64_t hash_slot_num, int64_t index_count):
        if not (1 <= hash_slot_num <= 0x7FFFFFFF and 0 <= index_count <= 0x7FFFFFFF):
            raise ValueError(f"{hash_slot_num} slots and {index_count} entries: impossible")
        self.slots = hash_slot_num
        self.limit = index_count
        self.newest = np.zeros(hash_slot_num, np.int32)
        self.bad = np.zeros(index_count // 8 + 1, np.uint8)

    cdef inline bint is_bad(self, int64_t number) noexcept nogil:
        return (self.bad[number >> 3] >> (number & 7)) & 1

    cdef inline void mark_one(self, int64_t number) noexcept nogil:
        self.bad[number >> 3] |= <uint8_t>(1 << (number & 7))

    def mark(self, const int64_t[::1] numbers not None):
        """Say that these entries are known to be wrong."""
        cdef Py_ssize_t i
        for i in range(numbers.shape[0]):
            if 0 <= numbers[i] < self.limit:
                self.mark_one(numbers[i])

    def entries(self, const uint8_t[::1] raw not None, int64_t first):
        """Check a run of entries, of which `first` is the first one's number.

        Returns int64[n]: numbers of entries that name another predecessor than they must.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_ENTRY_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t hashed, previous
        cdef const uint8_t *p
        if count == 0:
            return np.empty(0, np.int64)
        if not 0 <= first <= self.limit - count:
            raise ValueError(f"entries {first} to {first + count} of {self.limit}")
        with nogil:
            for i in range(count):
                p = &raw[i * RS_INDEX_ENTRY_SIZE]
                if self.is_bad(first + i):
                    continue
                hashed = rs_load_be32(p)
                previous = rs_load_be32(p + 16)
                if hashed < 0 or not self.follows(hashed % self.slots, previous, first + i):
                    self.mark_one(first + i)
                    found[n] = first + i
                    n += 1
                    continue
                self.newest[hashed % self.slots] = <int32_t>(first + i)
        return np.asarray(found)[:n].copy()

    cdef inline bint follows(self, int64_t slot, int32_t named, int64_t before) noexcept nogil:
        if named == self.newest[slot]:
            return True
        return 0 < named < min(before, self.limit) and self.is_bad(named)

    def slots_used(self):
        """How many slots have an entry."""
        return int(np.count_nonzero(np.asarray(self.newest)))

    def check_slots(self, const uint8_t[::1] raw not None, int64_t first, bint live):
        """Compare a run of slots, of which `first` is the first one's number.

        `live`: slots may name entries that are newer than what was looked at.

        Returns int64[n]: numbers of slots that do not name their newest entry.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_HASH_SLOT_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t named
        if not 0 <= first <= self.slots - count:
            raise ValueError(f"slots {first} to {first + count} of {self.slots}")
        with nogil:
            for i in range(count):
                named = rs_load_be32(&raw[i * RS_INDEX_HASH_SLOT_SIZE])
                if named >= self.limit and live:
                    continue
                if not self.follows(first + i, named, self.limit):
                    found[n] = first + i
                    n += 1
        return np.asarray(found)[:n].copy()


def read_ext_units(const uint8_t[::1] data not None, const int64_t[::1] positions not None,
                   int64_t[::1] tags_code not None, int64_t[::1] store_timestamp not None,
                   uint8_t[::1] whole not None):
    """Ext units at `positions` of `data`; `whole` becomes 0 where there is none."""
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


def differing_units(const uint8_t[::1] one not None, const uint8_t[::1] other not None):
    """Numbers of the 20-byte units in which two buffers differ, int64[n]; the shorter one counts
    as zeros behind its end."""
    cdef int64_t size = max(one.shape[0], other.shape[0])
    a = np.zeros(size - size % RS_CQ_STORE_UNIT_SIZE, np.uint8)
    b = np.zeros_like(a)
    a[: one.shape[0]] = one[: a.shape[0]]
    b[: other.shape[0]] = other[: b.shape[0]]
    rows = (a != b).reshape(-1, RS_CQ_STORE_UNIT_SIZE).any(axis=1)
    return np.flatnonzero(rows).astype(np.int64)
