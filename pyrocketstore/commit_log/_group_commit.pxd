"""Group commit, for the put path."""
from libc.stdint cimport int64_t

from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.files._mapped_file cimport MappedFile


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
