"""Scans of the log, piece by piece, that leave what each record asks of queues and index.

Several threads may scan pieces of one file side by side. All but a file's first piece are scanned
from the first place where a whole record lies, before it is known that one begins there: whoever
puts the pieces together holds each one's begin against the end of the piece before it.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pyrocketstore._env cimport EnvTable
from pyrocketstore._index_walk cimport index_key_hash, index_key_prefix
from pyrocketstore._record cimport parse_java_int, scan_properties, tags_code_of
from pyrocketstore._rocketstore cimport (
    RS_END,
    RS_NO_MEMORY,
    RS_OK,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_load_acquire32,
    rs_properties,
    rs_queue,
    rs_record,
    rs_store_release32,
)
from pyrocketstore._scan cimport (
    FileWindow,
    TopicQueueMap,
    at_position,
    check_range,
    find_record,
    map_entry,
    next_record,
    scan_state,
)
from pyrocketstore._text cimport java_text

import numpy

from pyrocketstore.errors import StoreIOError

cdef enum:
    FIRST_ROOM = 4096           # records and keys that a piece has room for at first
    BLANK = 32                  # between keys
    ADVICE_HUGEPAGE = 14        # MADV_HUGEPAGE


cdef int set_delays(delay_table *table, object delay_levels) except -1:
    cdef int64_t level
    for level in range(MAX_DELAY_LEVELS + 1):
        table.delays[level] = delay_levels.get(level, 1000)
    table.max_level = min(MAX_DELAY_LEVELS, max(delay_levels, default=0))
    return 0


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
            return record.store_timestamp + table.delays[level]
    if properties.tags.size > 0:
        return tags_code_of(text + properties.tags.position, properties.tags.size)
    return 0


cdef bint is_multi(const rs_properties *properties) noexcept nogil:
    return properties.multi_dispatch.size > 0 and properties.multi_queue_offset.size > 0


cdef inline int32_t fitting(int64_t value, int32_t *kind) noexcept nogil:
    if <int32_t>value != value:
        kind[0] |= KIND_UNCOMMON
    return <int32_t>value


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordMemory:
    """Room for what a scan keeps of its records: taken piece by piece, given back as a whole."""
    def __cinit__(self, EnvTable env not None, int64_t size):
        cdef void *base = NULL
        self.env = env
        if size <= 0:
            raise ValueError(f"{size} bytes of memory")
        # Where there is no memory nothing is kept, and the log is read again.
        if env.table.mmap(-1, size, 1, &base) >= 0:
            self.base = <uint8_t *>base
            self.size = size
            # Without large pages it is as good, only slower.
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
@cython.no_gc_clear
cdef class LogPiece:
    """What a scan found in a piece of a log file, from `begin` to `end` (bytes into the file).

    `begin` is -1 where no record was found. `status` is RS_OK where the log goes on behind the
    piece, else the verdict on what lies at `end`. `queues` is a TopicQueueMap of what was seen.
    """
    def __dealloc__(self):
        if self.is_own:
            free(self.records)
            free(self.keys)
        free(self.entries)
        free(self.found)

    @property
    def has_own_memory(self):
        """bool, whether the records take memory of the piece's own."""
        return self.is_own

    @property
    def has_records(self):
        """bool, whether the records can be dispatched from here."""
        return self.records != NULL or self.count == 0

    def position(self, int64_t number):
        """Where a record lies, bytes into the file; the end for the number behind the last."""
        if self.records == NULL or not 0 <= number <= self.count:
            raise IndexError(f"record {number} of {self.count}")
        return self.begin + self.records[number].position

    def rows(self):
        """What each record asks of its queue's unit, as columns of one length.

        Records that go into no queue, or whose numbers do not fit here, are left out.

        Returns
        -------
        (number int32, queue_offset int64, phy_offset int64, size int32, tags_code int64,
        delayed_from int64): the queue's number in `queue_keys`; the store time (ms) of a record
        whose tags code is when it is to be delivered, else -1
        """
        cdef int64_t i, at
        cdef int64_t found = 0
        cdef const piece_record *row
        cdef int64_t room = self.count if self.records != NULL else 0
        number = numpy.empty(room, numpy.int32)
        longs = numpy.empty((4, room), numpy.int64)
        size = numpy.empty(room, numpy.int32)
        cdef int32_t[::1] numbers = number
        cdef int32_t[::1] sizes = size
        cdef int64_t[:, ::1] columns = longs
        for i in range(room):
            row = &self.records[i]
            if queue_number_of(row) < 0 or row.kind & KIND_UNCOMMON:
                continue
            at = found
            numbers[at] = queue_number_of(row)
            columns[0, at] = queue_offset_of(self, i)
            columns[1, at] = phy_offset_of(self, i)
            sizes[at] = row[1].position - row.position
            columns[2, at] = tags_code_of_row(self, i)
            columns[3, at] = store_timestamp_of(self, i) if row.kind & KIND_DELAYED else -1
            found += 1
        return (number[:found], longs[0, :found], longs[1, :found], size[:found],
                longs[2, :found], longs[3, :found])

    def key_columns(self):
        """The keys under which the records are indexed, as columns of one length.

        Returns
        -------
        (phy_offset int64, key_hash int32, store_timestamp int64): the place and the store time
        (Unix ms) of the key's record; -1 for a time that only the log says
        """
        cdef int64_t i, k
        cdef int64_t room = self.count if self.records != NULL else 0
        cdef int64_t found = self.records[room].first_key if room else 0
        phy_offset, store_timestamp = numpy.empty((2, found), numpy.int64)
        key_hash = numpy.empty(found, numpy.int32)
        cdef int64_t[::1] places = phy_offset
        cdef int64_t[::1] times = store_timestamp
        cdef int32_t[::1] hashes = key_hash
        for i in range(room):
            for k in range(self.records[i].first_key, self.records[i + 1].first_key):
                places[k] = phy_offset_of(self, i)
                hashes[k] = self.keys[k]
                times[k] = -1
                if not self.records[i].kind & KIND_UNCOMMON:
                    times[k] = store_timestamp_of(self, i)
        return phy_offset, key_hash, store_timestamp

    def queue_keys(self):
        """[(topic, queue id)] of the queues that the piece has records of, by number."""
        cdef int64_t i
        cdef int64_t count = self.queues.count if self.entries != NULL else 0
        return [(java_text(self.entries[i].topic, self.entries[i].topic_size),
                 self.entries[i].queue_id) for i in range(count)]

    def multi_rows(self):
        """[(phy_offset, size, tags_code)] of the records that go into further queues, too.

        The tags code is None where its number does not fit here.
        """
        cdef int64_t i
        cdef int64_t room = self.count if self.records != NULL else 0
        return [(phy_offset_of(self, i), self.records[i + 1].position - self.records[i].position,
                 None if self.records[i].kind & KIND_UNCOMMON else tags_code_of_row(self, i))
                for i in range(room)
                if self.records[i].kind & KIND_MULTI and queue_number_of(&self.records[i]) >= 0]

    cdef int keep(self, RecordBuffer buffer, RecordMemory memory) except -1:
        # Takes over what a scan gathered; without `memory`, or room there, in memory of its own.
        cdef size_t size = <size_t>(buffer.count + 1) * sizeof(piece_record)
        cdef size_t key_size = <size_t>buffer.records[buffer.count].first_key * sizeof(int32_t)
        cdef piece_record *records
        cdef int32_t *keys
        cdef void *room = NULL if memory is None else memory.take(size + key_size)
        if room == NULL:
            self.is_own = True
            self.records = records = <piece_record *>malloc(size)
            self.keys = keys = <int32_t *>malloc(key_size + 1)
            if records == NULL or keys == NULL:
                raise MemoryError()
        else:
            self.memory = memory
            records = <piece_record *>room
            keys = <int32_t *>(<uint8_t *>records + size)
        memcpy(records, buffer.records, size)
        if key_size > 0:
            memcpy(keys, buffer.keys, key_size)
        self.records = records
        self.keys = keys
        self.base_timestamp = buffer.base_timestamp
        return 0

    cdef int number_queues(self) except -1:
        # Nothing is inserted any more, so that the map's entries stay where they are.
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
    """What one scan at a time reads into and gathers in; used again by the next."""
    def __dealloc__(self):
        free(self.records)
        free(self.keys)

    cdef int more_records(self) noexcept nogil:
        cdef int64_t room = self.record_room * 2 if self.record_room else FIRST_ROOM
        cdef void *grown = realloc(self.records, <size_t>room * sizeof(piece_record))
        if grown == NULL:
            return RS_NO_MEMORY
        self.records = <piece_record *>grown
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

    cdef int note(self, TopicQueueMap queues, const uint8_t *p, const rs_record *record,
                  const delay_table *delays) noexcept nogil:
        # Takes in one checked record; `delays` NULL: only what its queue is to know.
        cdef rs_properties properties
        cdef piece_record *row
        cdef map_entry *entry
        cdef int32_t type_ = record.sys_flag & RS_TRANSACTION_MASK
        cdef int32_t kind = 0
        cdef int32_t key_count = 0
        cdef int64_t tags_code
        cdef int64_t queue_offset = 0
        if type_ == RS_TRANSACTION_NOT_TYPE or type_ == RS_TRANSACTION_COMMIT_TYPE:
            entry = queues.note(p, record)
            if entry == NULL:
                return RS_NO_MEMORY
            kind = entry.number + 1 << KIND_BITS
            queue_offset = minus(record.queue_offset, entry.first_queue_offset)
        if delays == NULL:
            return RS_OK
        if self.count + 1 >= self.record_room and self.more_records() != RS_OK:
            return RS_NO_MEMORY
        scan_properties(p + record.properties_position, record.properties_size, &properties)
        row = &self.records[self.count]
        if self.count == 0:
            row.position = 0
            row.first_key = 0
            self.base_timestamp = record.store_timestamp
        if is_multi(&properties):
            kind |= KIND_MULTI
        tags_code = tags_code_of_record(p, record, &properties, delays)
        if <int32_t>tags_code != tags_code:
            tags_code = minus(tags_code, record.store_timestamp)
            kind |= KIND_DELAYED
        row.queue_offset = fitting(queue_offset, &kind)
        row.tags_code = fitting(tags_code, &kind)
        row.store_timestamp = fitting(minus(record.store_timestamp, self.base_timestamp), &kind)
        if type_ == RS_TRANSACTION_ROLLBACK_TYPE:
            kind |= KIND_ROLLBACK
        elif self.note_keys(p, record, &properties, &key_count) != RS_OK:
            return RS_NO_MEMORY
        row.kind = kind
        row[1].position = row.position + record.total_size
        row[1].first_key = row.first_key + key_count
        self.count += 1
        return RS_OK

    cdef int note_keys(self, const uint8_t *p, const rs_record *record,
                       const rs_properties *properties, int32_t *count) noexcept nogil:
        # The hashes under which the record is indexed: of its unique key, then of its keys.
        cdef const uint8_t *text = p + record.properties_position
        cdef const uint8_t *key
        cdef int64_t at = self.records[self.count].first_key
        cdef int32_t left = properties.keys.size
        cdef int32_t prefix, size
        if properties.uniq_key.size <= 0 and left <= 0:
            return RS_OK
        # A key has a byte at least, and a blank behind it.
        if at + 2 + left > self.key_room and self.more_keys(at + 2 + left) != RS_OK:
            return RS_NO_MEMORY
        prefix = index_key_prefix(p + record.topic_position, record.topic_size)
        if properties.uniq_key.size > 0:
            self.keys[at] = index_key_hash(prefix, text + properties.uniq_key.position,
                                           properties.uniq_key.size)
            count[0] += 1
        key = text + properties.keys.position
        while left > 0:
            size = 0
            while size < left and key[size] != BLANK:
                size += 1
            if size > 0:
                self.keys[at + count[0]] = index_key_hash(prefix, key, size)
                count[0] += 1
            key += size + 1
            left -= size + 1
        return RS_OK


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class LogScanner:
    """Scans pieces of log files.

    Parameters
    ----------
    env : Env
    delay_levels : {level: ms}
    check_crc : bool, compare each body with its CRC
    records_max : int, bytes of memory for what is kept of the records of all pieces, and the
        pieces that come when it is full have none; None: each piece keeps all it has

    Threads: any number at a time.
    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #checkMessageAndReturnSize.
    """
    def __cinit__(self, EnvTable env not None, delay_levels, bint check_crc, *,
                  records_max=None):
        self.env = env
        self.check_crc = check_crc
        self.keep = records_max is None or records_max > 0
        self.memory = None
        if records_max is not None and records_max > 0:
            self.memory = RecordMemory(env, records_max)
        self.buffers = []
        set_delays(&self.delays, delay_levels)

    def scan(self, str path not None, int64_t file_from_offset, int64_t position, int64_t until,
             int64_t stop, *, bint search=False):
        """Scan one piece: from `position` to the first record's end at or behind `until`.

        Parameters
        ----------
        position, until, stop : int, bytes into the file, which ends at `stop`
        search : bool, begin at the first place from `position` on where a whole record lies

        Returns
        -------
        LogPiece

        Raises
        ------
        StoreIOError with path and position
        """
        cdef RecordBuffer buffer
        cdef FileWindow window
        cdef LogPiece piece = LogPiece.__new__(LogPiece)
        cdef int64_t error = 0
        # Read here: another thread may change it while this one has no GIL.
        cdef const delay_table *delays = &self.delays if self.keep else NULL
        check_range(file_from_offset, position, max(until, stop))
        piece.path = path
        piece.file_from_offset = file_from_offset
        piece.begin = piece.end = position
        piece.queues = TopicQueueMap()
        try:
            buffer = self.buffers.pop()
            buffer.window.open(path)
        except IndexError:
            buffer = RecordBuffer()
            buffer.window = FileWindow(self.env, path)
        window = buffer.window
        buffer.count = 0
        with nogil:
            piece.status = self.walk(window, buffer, piece, delays, until, stop, search,
                                     &error)
        window.close()
        if error < 0:
            raise StoreIOError(<int>-error, "pread", path, piece.end)
        if piece.status == RS_NO_MEMORY:
            raise MemoryError()
        piece.number_queues()
        if buffer.count > 0:
            piece.keep(buffer, self.memory)
        self.buffers.append(buffer)
        return piece

    def cancel(self):
        """End the scans that are under way; what they give says nothing."""
        rs_store_release32(&self.cancelled, 1)

    cdef int walk(self, FileWindow window, RecordBuffer buffer, LogPiece piece,
                  const delay_table *delays, int64_t until, int64_t stop, bint search,
                  int64_t *error) noexcept nogil:
        cdef rs_record record
        cdef scan_state state
        cdef int status = RS_OK
        memset(&state, 0, sizeof(state))
        state.position = piece.begin
        state.until = until
        state.stop = stop
        if search:
            state.position = find_record(window, piece.file_from_offset, piece.begin, until, stop,
                                         error)
            if state.position < 0 or state.position >= until:
                piece.begin = -1
                return RS_END
        piece.begin = state.position
        while status == RS_OK and state.position < until and state.position < state.stop:
            if rs_load_acquire32(&self.cancelled):
                break
            status = next_record(window, piece.file_from_offset, self.check_crc, &state, &record)
            if status == RS_OK:
                status = buffer.note(piece.queues, at_position(window, state.position), &record,
                                     delays)
                piece.count += 1
                state.position += record.total_size
        piece.end = state.position
        error[0] = state.error
        # The end of the file ends the log where nothing says that it goes on in the next one.
        return RS_END if status == RS_OK and state.position >= state.stop else status
