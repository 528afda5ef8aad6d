"""A piece of the log as a scan leaves it: what its records ask of queues and index."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from pyrocketstore._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_properties, rs_queue, rs_record
from pyrocketstore._scan cimport FileWindow, TopicQueueMap, map_entry

cdef enum:
    MAX_DELAY_LEVELS = 64
    # what is special about a record
    KIND_ROLLBACK = 1           # it asks nothing of the index
    KIND_MULTI = 2              # it names further queues
    KIND_DELAYED = 4            # its tags code counts from its store time
    KIND_UNCOMMON = 8           # a number that does not fit here: only the log says all of it
    KIND_BITS = 4


cdef struct delay_table:
    int64_t delays[65]          # ms, by level
    int32_t max_level


# Fills the table from {level: ms}.
cdef int set_delays(delay_table *table, object delay_levels) except -1

# The tags code of a record's queue unit: the hash of its tags, or when it is to be delivered.
cdef int64_t tags_code_of_record(const uint8_t *p, const rs_record *record,
                                 const rs_properties *properties,
                                 const delay_table *table) noexcept nogil

# Whether a record names further queues, and its place in each.
cdef bint is_multi(const rs_properties *properties) noexcept nogil


# Small, since a scan keeps one of each record: numbers count from what the piece or its queue
# begins with. Where one does not fit, the kind says so.
cdef struct piece_record:
    int32_t position            # from the piece's begin; it ends where the next one lies
    int32_t first_key           # its place in `keys`; they end where the next one's begin
    int32_t queue_offset        # from the first one of its queue in the piece
    int32_t tags_code
    int32_t store_timestamp     # from the piece's first, ms
    int32_t kind                # and above the KIND_BITS the number of its queue + 1; 0: none


cdef class RecordMemory:
    cdef EnvTable env
    cdef uint8_t *base
    cdef int64_t size
    cdef int64_t used

    cdef void *take(self, int64_t size)


cdef class LogPiece:
    cdef readonly str path
    cdef readonly int64_t file_from_offset
    cdef readonly int64_t begin
    cdef readonly int64_t end
    cdef readonly int64_t count
    cdef readonly int32_t status
    cdef readonly TopicQueueMap queues
    cdef int64_t base_timestamp         # of the first record, ms
    cdef RecordMemory memory            # that holds the next two, unless they are this piece's own
    cdef bint is_own
    cdef piece_record *records          # count of them, and one that ends the last; or NULL
    cdef int32_t *keys                  # the hashes of the index keys
    cdef map_entry **entries            # of `queues`, by number
    cdef rs_queue **found               # the same queues' writing ends, for the dispatcher

    cdef int keep(self, RecordBuffer buffer, RecordMemory memory) except -1
    cdef int number_queues(self) except -1


cdef class RecordBuffer:
    cdef FileWindow window
    cdef piece_record *records
    cdef int32_t *keys
    cdef int64_t count
    cdef int64_t base_timestamp
    cdef int64_t record_room
    cdef int64_t key_room

    cdef int note(self, TopicQueueMap queues, const uint8_t *p, const rs_record *record,
                  const delay_table *delays) noexcept nogil
    cdef int note_keys(self, const uint8_t *p, const rs_record *record,
                       const rs_properties *properties, int32_t *count) noexcept nogil
    cdef int more_records(self) noexcept nogil
    cdef int more_keys(self, int64_t count) noexcept nogil


cdef class LogScanner:
    cdef EnvTable env
    cdef bint check_crc
    cdef bint keep
    cdef RecordMemory memory
    cdef delay_table delays
    cdef list buffers
    cdef int32_t cancelled

    cdef int walk(self, FileWindow window, RecordBuffer buffer, LogPiece piece,
                  const delay_table *delays, int64_t until, int64_t stop, bint search,
                  int64_t *error) noexcept nogil


# ---- of a record of a piece --------------------------------------------------------------------

# Of any two numbers that a damaged record may hold.
cdef inline int64_t plus(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef inline int64_t minus(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a - <uint64_t>b)


cdef inline int32_t queue_number_of(const piece_record *row) noexcept nogil:
    return (row.kind >> KIND_BITS) - 1


cdef inline int64_t phy_offset_of(LogPiece piece, int64_t number) noexcept nogil:
    return piece.file_from_offset + piece.begin + piece.records[number].position


cdef inline int64_t store_timestamp_of(LogPiece piece, int64_t number) noexcept nogil:
    return plus(piece.base_timestamp, piece.records[number].store_timestamp)


cdef inline int64_t queue_offset_of(LogPiece piece, int64_t number) noexcept nogil:
    cdef const piece_record *row = &piece.records[number]
    return plus(piece.entries[queue_number_of(row)].first_queue_offset, row.queue_offset)


cdef inline int64_t tags_code_of_row(LogPiece piece, int64_t number) noexcept nogil:
    if piece.records[number].kind & KIND_DELAYED:
        return plus(store_timestamp_of(piece, number), piece.records[number].tags_code)
    return piece.records[number].tags_code
