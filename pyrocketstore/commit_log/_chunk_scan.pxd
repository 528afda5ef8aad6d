"""A scanned chunk of the log: the data of its records that queues and index need."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from pyrocketstore.system._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_properties, rs_queue, rs_record
from pyrocketstore.commit_log._scan cimport FileWindow, TopicMinOffsets, TopicQueueMap, map_entry

cdef enum:
    MAX_DELAY_LEVELS = 1000
    # kinds of a record
    KIND_ROLLBACK = 1           # rolled back: it has no index entries
    KIND_MULTI = 2              # it names further queues
    KIND_DELAYED = 4            # its tags code is relative to its store time
    KIND_UNCOMMON = 8           # a number does not fit here and must be read from the log
    KIND_NO_UNIT = 16           # the same of its queue unit, which the store time is no part of
    KIND_REMOVED = 32           # its topic's minimum is behind it: its own queue gets no unit
    KIND_BITS = 6


cdef struct delay_table:
    int64_t delays[1001]        # ms, by level
    int32_t max_level


# Fills the table from {level: ms}.
cdef int set_delays(delay_table *table, object delay_levels) except -1

# The tags code of a record's queue unit: the hash of its tags, or the delivery time (ms).
cdef int64_t tags_code_of_record(const uint8_t *p, const rs_record *record,
                                 const rs_properties *properties,
                                 const delay_table *table) noexcept nogil

# True if the record names further queues and its queue offset in each.
cdef bint is_multi(const rs_properties *properties) noexcept nogil


# Compact, since a scan keeps one for each record: numbers are relative to the first record of the
# chunk, or of its queue. KIND_UNCOMMON marks a record with a number that does not fit.
cdef struct chunk_record:
    int32_t position            # from the first record; see `size_of_row` for the next one's
    int32_t first_key           # index in `keys`; the next record's first key is the end
    int32_t queue_offset        # from the first one of its queue in the chunk
    int32_t tags_code
    int32_t store_timestamp     # from the chunk's first, ms
    int32_t kind                # above KIND_BITS: the number of its queue + 1; 0 without one


cdef class RecordMemory:
    cdef EnvTable env
    cdef uint8_t *base
    cdef int64_t size
    cdef int64_t used

    cdef void *take(self, int64_t size)


cdef class RowPool:
    cdef void *blocks[32]
    cdef size_t sizes[32]
    cdef int count

    cdef void *take(self, size_t size, size_t *taken) noexcept
    cdef void give_back(self, void *block, size_t size) noexcept


cdef class LogChunk:
    cdef readonly str path
    cdef readonly int64_t file_from_offset
    cdef readonly int64_t begin
    cdef readonly int64_t end
    cdef readonly int64_t count
    cdef readonly int32_t status
    cdef readonly int64_t first_v2      # of the first record of 5.x, bytes into the file; or -1
    cdef readonly int64_t last_begin    # of the last record, bytes into the file; or -1
    cdef int64_t last_keyed             # without records: the end of the last one with keys; or -1
    cdef readonly TopicQueueMap queues
    cdef int64_t base                   # of the first record, bytes into the file
    cdef int32_t header                 # bytes of an entry's header between two records, 0 or 48
    cdef int64_t base_timestamp         # of the first record, ms
    cdef RecordMemory memory            # owner of `records` and `keys`, unless `is_own`
    cdef bint is_own
    cdef RowPool pool                   # gets `own_size` bytes from `records` on back, if `is_own`
    cdef size_t own_size
    cdef bint has_hashes                # False: `first_key` counts records with keys, without keys
    cdef chunk_record *records          # `count` of them, and one that ends the last; or NULL
    cdef int32_t *keys                  # the hashes of the index keys
    cdef map_entry **entries            # of `queues`, by number
    cdef rs_queue **found               # the queues to write to, cached by the dispatcher

    cdef int keep(self, RecordBuffer buffer, RecordMemory memory, RowPool pool) except -1
    cdef int number_queues(self) except -1


cdef class RecordBuffer:
    cdef FileWindow window
    cdef chunk_record *records
    cdef int32_t *keys
    cdef int64_t count
    cdef int64_t base_timestamp
    cdef int64_t record_room
    cdef int64_t key_room
    cdef bint has_hashes
    cdef TopicMinOffsets min_offsets

    cdef int note(self, TopicQueueMap queues, const uint8_t *p, int64_t position,
                  const rs_record *record, const delay_table *delays) noexcept nogil
    cdef int note_keys(self, const uint8_t *p, const rs_record *record,
                       const rs_properties *properties, int32_t *count) noexcept nogil
    cdef void take_records(self, RowPool pool) noexcept
    cdef int more_records(self) noexcept nogil
    cdef int more_keys(self, int64_t count) noexcept nogil


cdef class LogScanner:
    cdef EnvTable env
    cdef bint check_crc
    cdef bint keep
    cdef bint hash_keys
    cdef int64_t keys_from
    cdef RecordMemory memory
    cdef RowPool pool
    cdef TopicMinOffsets min_offsets
    cdef delay_table delays
    cdef list buffers
    cdef int32_t cancelled

    cdef int walk(self, FileWindow window, RecordBuffer buffer, LogChunk chunk,
                  const delay_table *delays, int64_t until, int64_t stop, bint search,
                  int64_t *error) noexcept nogil


# ---- of a record of a chunk --------------------------------------------------------------------

# Wraps around: a damaged record may hold any number.
cdef inline int64_t plus(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef inline int64_t minus(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a - <uint64_t>b)


cdef inline int32_t queue_number_of(const chunk_record *row) noexcept nogil:
    return (row.kind >> KIND_BITS) - 1


cdef inline int64_t phy_offset_of(LogChunk chunk, int64_t number) noexcept nogil:
    return chunk.file_from_offset + chunk.base + chunk.records[number].position


cdef inline int32_t size_of_row(LogChunk chunk, const chunk_record *row) noexcept nogil:
    return row[1].position - row.position - chunk.header


cdef inline int64_t store_timestamp_of(LogChunk chunk, int64_t number) noexcept nogil:
    return plus(chunk.base_timestamp, chunk.records[number].store_timestamp)


cdef inline int64_t queue_offset_of(LogChunk chunk, int64_t number) noexcept nogil:
    cdef const chunk_record *row = &chunk.records[number]
    return plus(chunk.entries[queue_number_of(row)].first_queue_offset, row.queue_offset)


cdef inline int64_t tags_code_of_row(LogChunk chunk, int64_t number) noexcept nogil:
    if chunk.records[number].kind & KIND_DELAYED:
        return plus(store_timestamp_of(chunk, number), chunk.records[number].tags_code)
    return chunk.records[number].tags_code
