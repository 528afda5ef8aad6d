"""The append end of the commit log, for the modules that write through it."""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_event, rs_lock, rs_mapped_file
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.system._env cimport EnvTable

cdef enum:
    NEAR_QUEUES = 32
    PUT_TIME_BUCKETS = 13


cdef struct rs_append:
    int64_t phy_offset
    int64_t queue_offset
    int64_t store_timestamp
    int64_t size
    int32_t count
    int32_t error          # negated errno with RS_IO_ERROR
    int32_t status         # set by `append_all`
    int64_t took_ms        # of an append that had to wait, by the monotonic clock


cdef struct rs_queue_slot:
    int64_t next_offset    # that the queue's next message gets
    int64_t put_count      # messages, and their bytes, since the log was opened
    int64_t put_bytes


cdef struct rs_run_row:
    # One of many records that are encoded back to back.
    int64_t position       # in the buffer, bytes
    rs_queue_slot *slot    # of its queue
    int32_t size
    int32_t queue_id


cdef struct rs_put:
    # The records that one call appends: a block for one queue, or single records of any queues.
    uint8_t *records       # encoded, back to back
    int64_t size           # of the block, its number of records, and its QueueSlot, which the
    int32_t count          # caller owns
    PyObject *slot
    bint queued            # a queue offset is used up by each
    rs_run_row *rows       # NULL: a block
    Py_ssize_t row_count
    Py_ssize_t done        # rows that are in the log
    int64_t *queue_offsets     # of each row, filled
    int64_t *phy_offsets


cdef class QueueSlot:
    """One entry of topicQueueTable: the offset that the queue's next message gets."""
    cdef rs_queue_slot slot
    cdef readonly str topic
    cdef readonly int32_t queue_id


cdef class TopicEntry:
    cdef readonly str topic
    cdef bytes utf8
    cdef const uint8_t *data
    cdef int32_t size
    cdef dict slots
    cdef PyObject *nearest[NEAR_QUEUES]   # the slots of the first queue ids, borrowed from `slots`
    cdef QueueSlot near(self, int64_t queue_id)


cdef class RecordBuffer:
    cdef uint8_t *data
    cdef int64_t capacity
    cdef int ensure(self, int64_t size) except -1
    cdef bint grow(self, int64_t size) noexcept nogil


cdef class CommitLogCore:
    cdef readonly EnvTable env
    cdef rs_lock *lock
    cdef bint lent                # a caller in Python took the put lock
    cdef rs_mapped_file *file
    cdef int indirect             # 0: a record is stored into the file's mapping
    cdef int fd                   # WRITTEN: the file
    cdef bint unclean             # WRITTEN: bytes lie behind the end that could not be undone
    cdef readonly MappedFile mapped_file
    cdef rs_event *appended
    cdef rs_event *ahead
    cdef object _ahead_owner
    cdef int64_t ahead_size
    cdef int64_t ahead_asked
    cdef rs_event *flush_event      # of who wants to hear of each append
    cdef rs_event *buffer_event     # of who commits buffers
    cdef int64_t buffer_least       # bytes that make it worth while
    cdef int64_t buffer_asked
    cdef int64_t dispatcher_idle
    cdef int64_t hold             # the number of the put lock's present hold, 0 when free
    cdef int64_t holds
    cdef int64_t seen_hold        # which hold was last seen, and since when
    cdef int64_t end_offset
    cdef int64_t buffered_end     # behind the last record in a buffer
    cdef public int64_t busy_ms
    cdef readonly int64_t max_message_size
    cdef int64_t last_timestamp
    cdef public int64_t floor_ms  # the first record of a file is not stored before it
    cdef readonly int64_t put_count        # messages, and their bytes, since the log was opened
    cdef readonly int64_t put_bytes
    cdef bint write_failed                # the last RS_IO_ERROR: pwrite's, not fallocate's
    cdef dict topics
    cdef TopicEntry last_entry
    cdef dict recovered
    cdef RecordBuffer spare
    cdef readonly object on_new_queue
    cdef object roll              # attaches the next file of the log
    cdef const uint8_t *bare      # the properties text of a message without properties
    cdef int32_t bare_size
    cdef bytes _bare_text
    cdef int64_t slow_puts[PUT_TIME_BUCKETS]
    cdef int64_t slow_put_max_ms
    cdef int64_t lock_waited_ms
    # of bytes that are copied from another log: `file` is NULL meanwhile, so that a put looks first
    cdef readonly bint is_copying
    cdef RecordBuffer partial           # the begin of a record that is not whole yet, or of a BLANK
    cdef readonly int64_t partial_size  # its bytes so far, with the bytes behind a BLANK
    cdef bint partial_waits             # it is whole, and waits for `begin_copied_file`
    cdef int64_t begun_file             # first byte of the file of which that was called
    cdef readonly int64_t waiting_timestamp     # store time of the record that waits, ms

    cdef void take_lock(self) noexcept
    cdef QueueSlot new_slot(self, TopicEntry entry, str topic, int64_t queue_id)
    cdef TopicEntry topic_entry(self, str topic)
    cdef QueueSlot slot_of(self, str topic, int64_t queue_id)
    cdef int append_locked(self, uint8_t *records, int64_t size, int32_t count,
                           rs_queue_slot *slot, bint queued, int64_t now,
                           rs_append *out) noexcept nogil
    cdef int append(self, uint8_t *records, int64_t size, int32_t count, QueueSlot slot,
                    bint queued, int64_t now, rs_append *out)
    cdef int append_run(self, rs_put *put, rs_append *out) noexcept nogil
    cdef int run_locked(self, rs_put *put, rs_append *out) noexcept nogil
    cdef object append_all(self, rs_put *put, list expected, rs_append *out)
    cdef int append_expected(self, rs_put *put, list expected, rs_append *out) except -1
    cdef void note_put_time(self, int64_t took_ms) noexcept
    cdef RecordBuffer take_buffer(self)
    cdef void give_buffer(self, RecordBuffer buffer)
    cdef int open_for_writing(self, MappedFile mapped_file) except -2
    cdef int let_go(self, MappedFile old, int fd) except -1
    cdef void ask_commit(self, rs_mapped_file *file, int64_t position) noexcept nogil
    cdef bint take_in_time(self) noexcept nogil
    cdef bint held_too_long(self) noexcept nogil
    cdef int64_t held_ns(self) noexcept nogil
    cdef void begin_hold(self) noexcept nogil
    cdef bint is_quick(self, int64_t size) noexcept nogil
    cdef void signal_appended(self) noexcept nogil
    cdef int store_and_publish(self, rs_mapped_file *file, int64_t position, const uint8_t *data,
                               int64_t size, int64_t end, int64_t timestamp) noexcept nogil
    cdef void ask_ahead(self, rs_mapped_file *file, int64_t position) noexcept nogil
    cdef int copy_locked(self, const uint8_t *data, int64_t size, int64_t *at,
                         int32_t *error) noexcept nogil
    cdef int copy_records(self, const uint8_t *data, int64_t size, int64_t *at,
                          int32_t *error) noexcept nogil
    cdef int copy_partial(self, const uint8_t *data, int64_t size, int64_t *at,
                          int32_t *error) noexcept nogil
    cdef int take_partial(self, const uint8_t *data, int64_t size, int64_t *at,
                          int64_t room) noexcept nogil
    cdef int store_up_to(self, rs_mapped_file *file, int64_t position, const uint8_t *data,
                         int64_t size, int64_t end, int64_t timestamp) noexcept nogil
    cdef int detach(self) except -1


cdef extern from "group_commit.h" nogil:
    enum:
        RS_GROUP_WAITS
        RS_GROUP_LEADS
        RS_GROUP_FORCED
        RS_GROUP_FAILED
    const int64_t RS_GROUP_LEAD_ONLY

    ctypedef struct rs_group:
        pass
    ctypedef struct rs_waiter:
        int64_t end
    rs_group *rs_group_new(int64_t forced, int served) noexcept
    void rs_group_free(rs_group *group) noexcept
    int64_t rs_group_forced(const rs_group *group) noexcept
    int rs_group_is_quick(rs_group *group) noexcept
    int rs_group_join(rs_group *group, rs_waiter *waiter, int64_t end) noexcept
    int rs_group_sleep(rs_group *group, rs_waiter *waiter, int64_t timeout_ms) noexcept
    int rs_group_leave(rs_group *group, rs_waiter *waiter) noexcept
    void rs_group_finish(rs_group *group, int64_t forced, int failed) noexcept
    void rs_group_hand_over(rs_group *group) noexcept
    int rs_group_serve(rs_group *group, int64_t timeout_ms) noexcept
    void rs_group_ask(rs_group *group) noexcept
    void rs_group_close(rs_group *group) noexcept


cdef class GroupCommit:
    cdef rs_group *group
    cdef CommitLogCore core
    cdef object flush
    cdef int64_t timeout_ns
    cdef int64_t force_began_ns            # 0: nobody forces
    cdef int64_t force_longest_ns
    cdef int64_t forces
    cdef int64_t forces_ns
    cdef MappedFile file          # held by the serving thread
    cdef int64_t ending
    cdef int64_t expecting        # somebody in Python wants to hear of each force

    cdef bint wait_for(self, int64_t end) except -1
    cdef int wait_once(self, int64_t end, int64_t deadline) except -2
    cdef void note_force(self, int64_t took_ns) noexcept nogil
    cdef int64_t slice_ms(self, int64_t deadline) noexcept nogil
    cdef int sleep(self, rs_waiter *waiter, int64_t deadline) except -1
    cdef int leave(self, rs_waiter *waiter) noexcept
    cdef int serve_some(self, int64_t timeout_ms, int64_t *forced,
                        int64_t *timestamp) noexcept nogil
    cdef int force(self, MappedFile file, int64_t *forced, int64_t *timestamp) noexcept nogil
    cdef int settle(self, int state, MappedFile file, int64_t forced, int64_t timestamp) except -1
    cdef int force_slowly(self) except -1
    cdef int hold_last(self) except -1
    cdef int let_go(self) except -1
