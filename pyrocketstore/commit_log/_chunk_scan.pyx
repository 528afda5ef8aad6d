"""Scan the log in chunks, and keep of each record what queues and index need.

Several threads may scan chunks of one file at once. Only a file's first chunk is known to begin
with a record; the scan of every other chunk begins with the first whole record that it finds. The
caller must compare the begin of each chunk with the end of the chunk before it.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pyrocketstore.system._env cimport EnvTable
from pyrocketstore.index._entries cimport (
    index_key_hash,
    index_key_prefix,
    index_keys,
    keys_of_record,
    next_index_key,
)
from pyrocketstore.record._record cimport parse_java_int, scan_properties
from pyrocketstore._rocketstore cimport (
    RS_CQ_STORE_UNIT_SIZE,
    RS_END,
    RS_MESSAGE_MAGIC_CODE_V2,
    RS_MESSAGE_POSITION_MAGIC,
    RS_NO_MEMORY,
    RS_OK,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_java_hash,
    rs_load_acquire32,
    rs_load_be32,
    rs_load_be64,
    rs_properties,
    rs_queue,
    rs_record,
    rs_store_release32,
)
from pyrocketstore.commit_log._scan cimport (
    FileWindow,
    TopicMinOffsets,
    TopicQueueMap,
    at_position,
    check_range,
    find_record,
    map_entry,
    next_record,
    scan_state,
)
from pyrocketstore.record._text cimport java_text

import numpy

from pyrocketstore.errors import StoreIOError

cdef enum:
    FIRST_ROOM = 4096           # records and keys that a new buffer has room for
    ADVICE_HUGEPAGE = 14        # MADV_HUGEPAGE
    ROW_POOL_SIZE = 32


ctypedef struct unit_check:
    const uint8_t *base     # units of a queue
    int64_t count
    int64_t begin           # queue offset of the first one
    int64_t agreeing
    int64_t end


cdef int set_delays(delay_table *table, object delay_levels) except -1:
    cdef int64_t level
    for level in range(MAX_DELAY_LEVELS + 1):
        table.delays[level] = delay_levels.get(level, 1000)
    table.max_level = min(MAX_DELAY_LEVELS, max(delay_levels, default=0))
    return 0


cdef inline int64_t wrapping_sum(int64_t a, int64_t b) noexcept nogil:
    # As in Java: a store time on disk may be any number.
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef int64_t tags_code_of_record(const uint8_t *p, const rs_record *record,
                                 const rs_properties *properties,
                                 const delay_table *table) noexcept nogil:
    cdef const uint8_t *text = p + record.properties_position
    cdef int32_t level
    if (properties.delay.size > 0 and record.topic_size == 19
            and memcmp(p + record.topic_position, b"SCHEDULE_TOPIC_XXXX", 19) == 0):
        if not parse_java_int(text + properties.delay.position, properties.delay.size, &level):
            level = 0
        if level > table.max_level:
            level = table.max_level
        if level > 0:
            return wrapping_sum(record.store_timestamp, table.delays[level])
    if properties.tags.size > 0:
        return rs_java_hash(0, text + properties.tags.position, properties.tags.size)
    return 0


cdef bint is_multi(const rs_properties *properties) noexcept nogil:
    return properties.multi_dispatch.size > 0 and properties.multi_queue_offset.size > 0


cdef bint has_keys(const uint8_t *p, const rs_record *record) noexcept nogil:
    cdef rs_properties properties
    if (record.properties_size <= 0
            or record.sys_flag & RS_TRANSACTION_MASK == RS_TRANSACTION_ROLLBACK_TYPE):
        return False
    scan_properties(p + record.properties_position, record.properties_size, &properties)
    return properties.uniq_key.size > 0 or properties.keys.size > 0


cdef inline int32_t fitting(int64_t value, int32_t *kind, int32_t otherwise) noexcept nogil:
    if <int32_t>value != value:
        kind[0] |= otherwise
    return <int32_t>value


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordMemory:
    """Memory for the record data of a scan: allocated by chunk, and freed as a whole."""
    def __cinit__(self, EnvTable env not None, int64_t size):
        cdef void *base = NULL
        self.env = env
        if size <= 0:
            raise ValueError(f"{size} bytes of memory")
        # Without this memory nothing is kept, and the log is read again.
        if env.table.mmap(-1, size, 1, &base) >= 0:
            self.base = <uint8_t *>base
            self.size = size
            # Huge pages only make it faster: a failure does not matter.
            env.table.madvise(base, size, ADVICE_HUGEPAGE)

    def __dealloc__(self):
        if self.base != NULL:
            self.env.table.munmap(self.base, self.size)

    cdef void *take(self, int64_t size):
        # With the GIL. NULL when it does not fit.
        cdef int64_t at = (self.used + 63) // 64 * 64
        if size > self.size - at:
            self.used = self.size
            return NULL
        self.used = at + size
        return self.base + at


@cython.final
@cython.auto_pickle(False)
cdef class RowPool:
    """Memory of chunks that are gone, for the next ones of a scan: fresh memory costs page faults.

    Threads: any, with the GIL.
    """
    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            free(self.blocks[i])

    cdef void *take(self, size_t size, size_t *taken) noexcept:
        # NULL without memory. `taken` is at least `size`.
        cdef void *block
        cdef int i
        for i in range(self.count - 1, -1, -1):
            if self.sizes[i] >= size:
                block, taken[0] = self.blocks[i], self.sizes[i]
                self.count -= 1
                self.blocks[i], self.sizes[i] = self.blocks[self.count], self.sizes[self.count]
                return block
        # Chunks differ by a few records.
        taken[0] = size + (size >> 3) + 64
        return malloc(taken[0])

    cdef void give_back(self, void *block, size_t size) noexcept:
        if block == NULL:
            return
        if self.count == ROW_POOL_SIZE:
            free(block)
            return
        self.blocks[self.count], self.sizes[self.count] = block, size
        self.count += 1


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class LogChunk:
    """The records of one chunk of a log file, from `begin` to `end` (bytes into the file).

    `begin` is -1 if no record was found. `status` is RS_OK if the log continues after the chunk,
    else the verdict on the bytes at `end`. `queues` maps the queues of the records.
    """
    def __dealloc__(self):
        if self.is_own:     # no_gc_clear: the pool is there
            self.pool.give_back(self.records, self.own_size)
        free(self.entries)
        free(self.found)

    @property
    def has_own_memory(self):
        """True if the records are in memory that this chunk allocated for itself."""
        return self.is_own

    def position(self, int64_t number):
        """Return the position of record `number`, bytes into the file; for `count`, the end."""
        if self.records == NULL or not 0 <= number <= self.count:
            raise IndexError(f"record {number} of {self.count}")
        if number == self.count:
            return self.end
        return self.base + self.records[number].position

    def rows(self):
        """Return the queue units that the records require, as columns of one length.

        Records of no queue, and records whose unit does not fit a `chunk_record`, are left out.

        Returns
        -------
        (number int32, queue_offset int64, phy_offset int64, size int32, tags_code int64,
        delayed_from int64): the queue's number in `queue_keys`; for a delayed record, whose
        tags code is its delivery time, the store time (ms), else -1
        """
        cdef int64_t i, at
        cdef int64_t found = 0
        cdef const chunk_record *row
        cdef int64_t room = self.count if self.records != NULL else 0
        number = numpy.empty(room, numpy.int32)
        longs = numpy.empty((4, room), numpy.int64)
        size = numpy.empty(room, numpy.int32)
        cdef int32_t[::1] numbers = number
        cdef int32_t[::1] sizes = size
        cdef int64_t[:, ::1] columns = longs
        for i in range(room):
            row = &self.records[i]
            if queue_number_of(row) < 0 or row.kind & KIND_NO_UNIT:
                continue
            at = found
            numbers[at] = queue_number_of(row)
            columns[0, at] = queue_offset_of(self, i)
            columns[1, at] = phy_offset_of(self, i)
            sizes[at] = size_of_row(self, row)
            columns[2, at] = tags_code_of_row(self, i)
            columns[3, at] = store_timestamp_of(self, i) if row.kind & KIND_DELAYED else -1
            found += 1
        return (number[:found], longs[0, :found], longs[1, :found], size[:found],
                longs[2, :found], longs[3, :found])

    def check_units(self, list units not None, list begins not None):
        """Compare the units that the records require with those that queues have.

        Parameters
        ----------
        units : by number in `queue_keys` the bytes of units on disk; None: the queue is left out
        begins : by number the queue offset of the first of these units

        Records that `rows` leaves out are not compared.

        Returns
        -------
        [(agreeing, end)] by number: how many records have such a unit, which agrees with them; one
        past the record that the last of the units names, bytes of the log, -1 unless it agrees
        """
        cdef int64_t count = self.queues.count if self.entries != NULL else 0
        cdef int64_t room = self.count if self.records != NULL else 0
        cdef const uint8_t *p
        cdef const uint8_t[::1] memory
        cdef const chunk_record *row
        cdef int64_t i, at, number
        cdef unit_check *found
        cdef unit_check *checks
        if len(units) != count or len(begins) != count:
            raise ValueError(f"{len(units)} and {len(begins)} entries for {count} queues")
        checks = <unit_check *>calloc(<size_t>count + 1, sizeof(unit_check))
        if checks == NULL:
            raise MemoryError()
        try:
            for i in range(count):
                checks[i].end = -1
                if units[i]:
                    memory = units[i]    # `units` keeps the bytes
                    checks[i].base = &memory[0]
                    checks[i].count = memory.shape[0] // RS_CQ_STORE_UNIT_SIZE
                    checks[i].begin = begins[i]
            with nogil:
                for i in range(room):
                    row = &self.records[i]
                    number = queue_number_of(row)
                    if number < 0 or row.kind & KIND_NO_UNIT:
                        continue
                    found = &checks[number]
                    at = minus(queue_offset_of(self, i), found.begin)
                    if at < 0 or at >= found.count:
                        continue
                    p = found.base + at * RS_CQ_STORE_UNIT_SIZE
                    if (rs_load_be64(p) != phy_offset_of(self, i)
                            or rs_load_be32(p + 8) != size_of_row(self, row)
                            or rs_load_be64(p + 12) != tags_code_of_row(self, i)):
                        continue
                    found.agreeing += 1
                    if at == found.count - 1:
                        found.end = phy_offset_of(self, i) + size_of_row(self, row)
            return [(checks[i].agreeing, checks[i].end) for i in range(count)]
        finally:
            free(checks)

    def key_columns(self):
        """Return the index keys of the records, as columns of one length.

        Returns
        -------
        (phy_offset int64, key_hash int32, store_timestamp int64): the physical offset and the
        store time (Unix ms) of the key's record; -1 for a time that must be read from the log
        """
        cdef int64_t i, k
        cdef int64_t room = self.count if self.records != NULL else 0
        cdef int64_t found = self.records[room].first_key if room else 0
        phy_offset, store_timestamp = numpy.empty((2, found), numpy.int64)
        key_hash = numpy.empty(found, numpy.int32)
        cdef int64_t[::1] places = phy_offset
        cdef int64_t[::1] times = store_timestamp
        cdef int32_t[::1] hashes = key_hash
        if found and not self.has_hashes:
            raise ValueError("a chunk of a scan that has not hashed the keys")
        for i in range(room):
            for k in range(self.records[i].first_key, self.records[i + 1].first_key):
                places[k] = phy_offset_of(self, i)
                hashes[k] = self.keys[k]
                times[k] = -1
                if not self.records[i].kind & KIND_UNCOMMON:
                    times[k] = store_timestamp_of(self, i)
        return phy_offset, key_hash, store_timestamp

    @property
    def keyed_end(self):
        """The end of the last record that has keys, bytes of the log; -1 without one. See
        `hash_keys` and `keys_from` of LogScanner."""
        cdef int64_t i = self.count if self.records != NULL else 0
        if self.records == NULL:
            return self.last_keyed
        if i == 0 or self.records[i].first_key == 0:
            return -1
        while i > 0 and self.records[i - 1].first_key == self.records[i].first_key:
            i -= 1
        return phy_offset_of(self, i - 1) + size_of_row(self, &self.records[i - 1])

    def queue_keys(self):
        """Return [(topic, queue id)] of the queues of the records, by number."""
        cdef int64_t i
        cdef int64_t count = self.queues.count if self.entries != NULL else 0
        return [(java_text(self.entries[i].topic, self.entries[i].topic_size),
                 self.entries[i].queue_id) for i in range(count)]

    def queue_ranges(self):
        """Return [(first, stop, count)] by number in `queue_keys`: the queue offset of the queue's
        first record, one past that of its last record, and how many records it has."""
        cdef int64_t i
        cdef int64_t count = self.queues.count if self.entries != NULL else 0
        return [(self.entries[i].first_queue_offset, self.entries[i].next_queue_offset,
                 self.entries[i].count) for i in range(count)]

    def multi_rows(self):
        """Return [(phy_offset, size, tags_code)] of the records that name further queues.

        The tags code is None if it does not fit a `chunk_record`.
        """
        cdef int64_t i
        cdef int64_t room = self.count if self.records != NULL else 0
        return [(phy_offset_of(self, i), size_of_row(self, &self.records[i]),
                 None if self.records[i].kind & KIND_NO_UNIT else tags_code_of_row(self, i))
                for i in range(room)
                if self.records[i].kind & KIND_MULTI and (
                    self.records[i].kind & KIND_REMOVED or queue_number_of(&self.records[i]) >= 0)]

    cdef int keep(self, RecordBuffer buffer, RecordMemory memory, RowPool pool) except -1:
        # Copies the records of a scan to `memory`, or to memory of its own without room there.
        # Without `memory` and hashes it takes the memory of the buffer.
        cdef size_t size = <size_t>(buffer.count + 1) * sizeof(chunk_record)
        cdef size_t key_size = 0
        cdef void *room
        self.has_hashes = buffer.has_hashes
        self.base_timestamp = buffer.base_timestamp
        if memory is None and not self.has_hashes:
            self.records, self.keys = buffer.records, NULL
            self.is_own, self.pool = True, pool
            self.own_size = <size_t>buffer.record_room * sizeof(chunk_record)
            buffer.records, buffer.record_room = NULL, 0
            return 0
        if self.has_hashes:
            key_size = <size_t>buffer.records[buffer.count].first_key * sizeof(int32_t)
        room = NULL if memory is None else memory.take(size + key_size)
        if room == NULL:
            room = pool.take(size + key_size, &self.own_size)
            if room == NULL:
                raise MemoryError()
            self.is_own = True
            self.pool = pool
        else:
            self.memory = memory
        self.records = <chunk_record *>room
        self.keys = <int32_t *>(<uint8_t *>room + size)
        memcpy(self.records, buffer.records, size)
        if key_size > 0:
            memcpy(self.keys, buffer.keys, key_size)
        return 0

    cdef int number_queues(self) except -1:
        # The map no longer changes, so that pointers to its entries stay valid.
        cdef int64_t i
        cdef size_t count = <size_t>self.queues.count + 1
        self.entries = <map_entry **>calloc(count, sizeof(map_entry *))
        self.found = <rs_queue **>calloc(count, sizeof(rs_queue *))
        if self.entries == NULL or self.found == NULL:
            raise MemoryError()
        for i in range(self.queues.capacity):
            if self.queues.entries[i].hash != 0:
                self.entries[self.queues.entries[i].number] = &self.queues.entries[i]
        return 0


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordBuffer:
    """The buffers of one scan, reused by the next scan."""
    def __dealloc__(self):
        free(self.records)
        free(self.keys)

    cdef void take_records(self, RowPool pool) noexcept:
        # Without memory the walk tries again, and reports it.
        cdef size_t size
        self.records = <chunk_record *>pool.take(FIRST_ROOM * sizeof(chunk_record), &size)
        if self.records != NULL:
            self.record_room = <int64_t>(size // sizeof(chunk_record))

    cdef int more_records(self) noexcept nogil:
        cdef int64_t room = self.record_room * 2 if self.record_room else FIRST_ROOM
        cdef void *grown = realloc(self.records, <size_t>room * sizeof(chunk_record))
        if grown == NULL:
            return RS_NO_MEMORY
        self.records = <chunk_record *>grown
        self.record_room = room
        return RS_OK

    cdef int more_keys(self, int64_t count) noexcept nogil:
        cdef int64_t room = self.key_room * 2 if self.key_room else FIRST_ROOM
        cdef void *grown
        while room < count:
            room *= 2
        grown = realloc(self.keys, <size_t>room * sizeof(int32_t))
        if grown == NULL:
            return RS_NO_MEMORY
        self.keys = <int32_t *>grown
        self.key_room = room
        return RS_OK

    cdef int note(self, TopicQueueMap queues, const uint8_t *p, int64_t position,
                  const rs_record *record, const delay_table *delays) noexcept nogil:
        # Adds one checked record, `position` bytes behind the first; with `delays` NULL only to the
        # map of the queues.
        cdef rs_properties properties
        cdef chunk_record *row
        cdef map_entry *entry
        cdef int32_t type_ = record.sys_flag & RS_TRANSACTION_MASK
        cdef int32_t kind = 0
        cdef int32_t key_count = 0
        cdef int64_t tags_code = 0
        cdef int64_t queue_offset = 0
        if type_ != RS_TRANSACTION_NOT_TYPE and type_ != RS_TRANSACTION_COMMIT_TYPE:
            pass
        elif self.min_offsets.removes(p + record.topic_position, record.topic_size,
                                      record.phy_offset):
            kind = KIND_REMOVED
        else:
            entry = queues.note(p, record)
            if entry == NULL:
                return RS_NO_MEMORY
            kind = entry.number + 1 << KIND_BITS
            queue_offset = minus(record.queue_offset, entry.first_queue_offset)
        if delays == NULL:
            return RS_OK
        if self.count + 1 >= self.record_room and self.more_records() != RS_OK:
            return RS_NO_MEMORY
        row = &self.records[self.count]
        row.position = <int32_t>position
        if self.count == 0:
            row.first_key = 0
            self.base_timestamp = record.store_timestamp
        if record.properties_size > 0:
            scan_properties(p + record.properties_position, record.properties_size, &properties)
            if is_multi(&properties):
                kind |= KIND_MULTI
            tags_code = tags_code_of_record(p, record, &properties, delays)
            if <int32_t>tags_code != tags_code:
                tags_code = minus(tags_code, record.store_timestamp)
                kind |= KIND_DELAYED
        row.queue_offset = fitting(queue_offset, &kind, KIND_UNCOMMON | KIND_NO_UNIT)
        row.tags_code = fitting(tags_code, &kind, KIND_UNCOMMON | KIND_NO_UNIT)
        row.store_timestamp = fitting(
            minus(record.store_timestamp, self.base_timestamp), &kind,
            KIND_UNCOMMON | (KIND_NO_UNIT if kind & KIND_DELAYED else 0))
        if type_ == RS_TRANSACTION_ROLLBACK_TYPE:
            kind |= KIND_ROLLBACK
        elif record.properties_size <= 0:
            pass
        elif not self.has_hashes:
            key_count = properties.uniq_key.size > 0 or properties.keys.size > 0
        elif self.note_keys(p, record, &properties, &key_count) != RS_OK:
            return RS_NO_MEMORY
        row.kind = kind
        row[1].position = row.position + record.total_size
        row[1].first_key = row.first_key + key_count
        self.count += 1
        return RS_OK

    cdef int note_keys(self, const uint8_t *p, const rs_record *record,
                       const rs_properties *properties, int32_t *count) noexcept nogil:
        # The index hashes of the record: of its unique key, then of its keys.
        cdef index_keys keys = keys_of_record(p, record, properties)
        cdef int64_t at = self.records[self.count].first_key
        cdef int32_t size = properties.keys.size
        cdef int32_t prefix
        if properties.uniq_key.size <= 0 and size <= 0:
            return RS_OK
        # A key has at least one byte and is followed by a blank.
        if at + 2 + size > self.key_room and self.more_keys(at + 2 + size) != RS_OK:
            return RS_NO_MEMORY
        prefix = index_key_prefix(p + record.topic_position, record.topic_size)
        while next_index_key(&keys):
            self.keys[at + count[0]] = index_key_hash(prefix, keys.key, keys.size)
            count[0] += 1
        return RS_OK


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class LogScanner:
    """Scan chunks of log files.

    Parameters
    ----------
    env : Env
    delay_levels : {level: ms}
    check_crc : bool, compare each body with its CRC
    records_max : int, bytes of memory for the records of all chunks; a chunk that does not fit
        keeps its records in memory of its own, as each chunk does with None; 0 keeps no records
    min_offsets : TopicMinOffsets; None: no messages are removed. A removed record counts for no
        queue of its own topic, but has its keys
    hash_keys : bool; False: the chunks are not to be dispatched. Which records have keys is noted,
        and one without a key counts, too, if its KEYS are blanks
    keys_from : int, physical offset from which on `keyed_end` looks for keys if no records are
        kept. KEYS that are blanks count

    Threads: any number at a time.
    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #checkMessageAndReturnSize.
    """
    def __cinit__(self, EnvTable env not None, delay_levels, bint check_crc, *,
                  records_max=None, TopicMinOffsets min_offsets=None, bint hash_keys=True,
                  int64_t keys_from=INT64_MAX):
        self.env = env
        self.keys_from = keys_from
        self.hash_keys = hash_keys
        self.min_offsets = TopicMinOffsets({}) if min_offsets is None else min_offsets
        self.check_crc = check_crc
        self.keep = records_max is None or records_max > 0
        self.memory = None
        if records_max is not None and records_max > 0:
            self.memory = RecordMemory(env, records_max)
        self.pool = RowPool()
        self.buffers = []
        set_delays(&self.delays, delay_levels)

    def scan(self, str path not None, int64_t file_from_offset, int64_t position, int64_t until,
             int64_t stop, *, bint search=False):
        """Scan one chunk: from `position` to the first end of a record at or after `until`.

        Parameters
        ----------
        position, until, stop : int, bytes into the file, which ends at `stop`
        search : bool, begin with the first whole record at or after `position`

        Returns
        -------
        LogChunk

        Raises
        ------
        StoreIOError with path and position
        """
        cdef RecordBuffer buffer
        cdef FileWindow window
        cdef LogChunk chunk = LogChunk.__new__(LogChunk)
        cdef int64_t error = 0
        # Read with the GIL: another thread may change it.
        cdef const delay_table *delays = &self.delays if self.keep else NULL
        check_range(file_from_offset, position, max(until, stop))
        chunk.path = path
        chunk.file_from_offset = file_from_offset
        chunk.begin = chunk.end = position
        chunk.queues = TopicQueueMap()
        chunk.first_v2 = chunk.last_begin = chunk.last_keyed = -1
        try:
            buffer = self.buffers.pop()
            buffer.window.open(path)
        except IndexError:
            buffer = RecordBuffer()
            buffer.window = FileWindow(self.env, path)
        window = buffer.window
        buffer.min_offsets = self.min_offsets
        buffer.has_hashes = self.hash_keys
        buffer.count = 0
        if self.keep and buffer.records == NULL:
            buffer.take_records(self.pool)
        with nogil:
            chunk.status = self.walk(window, buffer, chunk, delays, until, stop, search,
                                     &error)
        window.close()
        if error < 0:
            raise StoreIOError(<int>-error, "pread", path, chunk.end)
        if chunk.status == RS_NO_MEMORY:
            raise MemoryError()
        chunk.number_queues()
        if buffer.count > 0:
            chunk.keep(buffer, self.memory, self.pool)
        self.buffers.append(buffer)
        return chunk

    def cancel(self):
        """End the scans that are running; their results are meaningless."""
        rs_store_release32(&self.cancelled, 1)

    cdef int walk(self, FileWindow window, RecordBuffer buffer, LogChunk chunk,
                  const delay_table *delays, int64_t until, int64_t stop, bint search,
                  int64_t *error) noexcept nogil:
        cdef rs_record record
        cdef scan_state state
        cdef int status = RS_OK
        memset(&state, 0, sizeof(state))
        state.position = chunk.begin
        state.until = until
        state.stop = stop
        if search:
            state.position = find_record(window, chunk.file_from_offset, chunk.begin, until, stop,
                                         self.check_crc, error)
            if state.position < 0 or state.position >= until:
                chunk.begin = -1
                return RS_END
        chunk.begin = state.position
        while status == RS_OK and state.position < until and state.position < state.stop:
            if rs_load_acquire32(&self.cancelled):
                break
            status = next_record(window, chunk.file_from_offset, self.check_crc, &state, &record)
            if status == RS_OK and state.header > 0 and state.position >= until:
                break               # the record behind this entry's header is the next chunk's
            if status == RS_OK:
                if chunk.first_v2 < 0 and rs_load_be32(
                        at_position(window, state.position) + RS_MESSAGE_POSITION_MAGIC
                        ) == RS_MESSAGE_MAGIC_CODE_V2:
                    chunk.first_v2 = state.position
                if chunk.count == 0:
                    chunk.base = state.position
                if state.header > chunk.header:
                    chunk.header = <int32_t>state.header
                status = buffer.note(chunk.queues, at_position(window, state.position),
                                     state.position - chunk.base, &record, delays)
                if (delays == NULL and record.phy_offset >= self.keys_from
                        and has_keys(at_position(window, state.position), &record)):
                    chunk.last_keyed = record.phy_offset + record.total_size
                chunk.last_begin = state.position
                chunk.count += 1
                state.position += record.total_size
        if chunk.header and buffer.count > 0:
            buffer.records[buffer.count].position += chunk.header    # see `size_of_row`
        chunk.end = state.position
        error[0] = state.error
        # A file that is full without a BLANK ends the log.
        return RS_END if status == RS_OK and state.position >= state.stop else status
