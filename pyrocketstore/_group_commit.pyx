"""Group commit: a put under SYNC_FLUSH waits here, without the GIL, until it is on the device."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

from pyrocketstore._allocation cimport page_down
from pyrocketstore._commit_log cimport CommitLogCore
from pyrocketstore._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport (
    rs_compare_and_swap,
    rs_load_acquire,
    rs_mapped_file,
    rs_store_release,
)

from pyrocketstore.errors import StoreError, StoreIOError

cdef enum:
    NEEDS_PYTHON = 1             # of `force`: the bytes are not all in the file that is held

# How long Ctrl-C may wait for a sleeping main thread, and the longest that one who is served may
# sleep on when those before it do not come back.
cdef int64_t SLICE_MS = 50


@cython.final
@cython.auto_pickle(False)
cdef class GroupCommit:
    """Who waits for the log to be on the device, and which of them forces it.

    The first that waits leads: it forces all that is in the log, for itself and for those that came
    meanwhile; then the first that it did not reach leads. As a context manager: the lead, for one
    who forces by `flush` itself.

    Parameters
    ----------
    core : CommitLogCore
    flush : CommitLogFlush; `flush_to`, `note_forced` and `failed` are called by the leader
    timeout_ms : int, after which a wait behind a leader is given up

    Threads: any. A waiting main thread runs signal handlers.
    Source: RocketMQ 4.9.3 CommitLog#GroupCommitService.
    """

    def __cinit__(self, CommitLogCore core not None, flush, int64_t timeout_ms):
        self.core = core
        self.flush = flush
        self.timeout_ns = timeout_ms * 1000000
        self.group = rs_group_new(flush.flushed_where)
        if self.group == NULL:
            raise MemoryError

    def __dealloc__(self):
        rs_group_free(self.group)

    @property
    def forced(self):
        """Everything before this physical offset is on the device."""
        return rs_group_forced(self.group)

    def wait(self, int64_t end):
        """Wait until everything before `end` is on the device; False when it will not be.

        That is after the time-out behind another's force, and when a force has failed.
        """
        return self.wait_for(end)

    def __enter__(self):
        cdef rs_waiter waiter
        cdef int state = rs_group_join(self.group, &waiter, RS_GROUP_LEAD_ONLY)
        if state == RS_GROUP_WAITS:
            state = self.sleep(&waiter, -1)
        if state != RS_GROUP_LEADS:
            raise MemoryError
        return self

    def __exit__(self, *exc):
        rs_group_finish(self.group, self.flush.flushed_where, self.flush.error is not None)

    cdef bint wait_for(self, int64_t end) except -1:
        cdef rs_waiter waiter
        cdef MappedFile file = self.core.mapped_file
        cdef int64_t deadline = self.core.env.table.monotonic_ns() + self.timeout_ns
        cdef int64_t slice_ms = self.slice_ms(deadline)
        cdef int64_t forced = 0
        cdef int64_t timestamp = 0
        cdef int error = NEEDS_PYTHON
        cdef bint held = file is not None and file.hold()
        cdef int state
        # Held by each that waits: it may come to lead, and forces before it has the GIL again.
        try:
            with nogil:
                state = rs_group_join(self.group, &waiter, end)
                if state == RS_GROUP_WAITS:
                    state = rs_group_sleep(self.group, &waiter, slice_ms)
                if state == RS_GROUP_LEADS and held:
                    error = self.force(file, &forced, &timestamp)
            if state == RS_GROUP_WAITS:
                state = self.sleep(&waiter, deadline)
                if state == RS_GROUP_LEADS and held:
                    with nogil:
                        error = self.force(file, &forced, &timestamp)
        finally:
            if held:
                file.release()
        if state != RS_GROUP_LEADS:
            return state == RS_GROUP_FORCED
        if error == NEEDS_PYTHON:
            return self.force_slowly(end)
        if error < 0:
            self.failed(StoreIOError(-error, "msync", file.path, forced - file.file_from_offset))
            return False
        self.flush.note_forced(forced, timestamp)
        # The log may have rolled to the next file after the one that was held.
        return forced >= end or self.wait_for(end)

    def take_force_times(self):
        """(longest, running), ns: of the leaders' forces since the last call, and of one that has
        not ended (0: none)."""
        cdef int64_t longest = self.force_longest_ns
        cdef int64_t began = rs_load_acquire(&self.force_began_ns)
        self.force_longest_ns = 0
        return longest, self.core.env.table.monotonic_ns() - began if began else 0

    cdef void note_force(self, int64_t took_ns) noexcept nogil:
        # By the leader alone.
        self.force_count += 1
        self.force_total_ns += took_ns
        self.force_longest_ns = max(self.force_longest_ns, took_ns)
        rs_store_release(&self.force_began_ns, 0)

    cdef int64_t slice_ms(self, int64_t deadline) noexcept nogil:
        cdef int64_t left_ms
        if deadline < 0:
            return SLICE_MS
        left_ms = (deadline - self.core.env.table.monotonic_ns() + 999999) // 1000000
        return max(<int64_t>0, min(left_ms, SLICE_MS))

    cdef int sleep(self, rs_waiter *waiter, int64_t deadline) except -1:
        # Goes on sleeping, until the state is final or the deadline (-1: none) has passed.
        cdef int64_t slice_ms
        cdef int state = RS_GROUP_WAITS
        cdef bint interrupted
        while state == RS_GROUP_WAITS:
            interrupted = True
            try:
                PyErr_CheckSignals()
                interrupted = False
            finally:
                if interrupted:
                    self.leave(waiter)
            slice_ms = self.slice_ms(deadline)
            if slice_ms == 0:
                return self.leave(waiter)
            with nogil:
                state = rs_group_sleep(self.group, waiter, slice_ms)
        return state

    cdef int leave(self, rs_waiter *waiter) noexcept:
        cdef int state = rs_group_leave(self.group, waiter)
        if state == RS_GROUP_LEADS:          # too late: the next one leads
            rs_group_finish(self.group, 0, 0)
            return RS_GROUP_WAITS
        return state

    cdef int force(self, MappedFile file, int64_t *forced, int64_t *timestamp) noexcept nogil:
        # The leader's work where all that is not forced lies in the file that it holds.
        cdef rs_mapped_file *f = &file.file
        cdef int64_t start = rs_group_forced(self.group) - f.file_from_offset
        cdef int64_t end, seen
        cdef int error
        timestamp[0] = rs_load_acquire(&f.store_timestamp)
        end = rs_load_acquire(&f.wrote)
        if start < 0 or end <= start:
            return NEEDS_PYTHON
        forced[0] = f.file_from_offset + start
        start = page_down(start)
        rs_store_release(&self.force_began_ns, f.env.monotonic_ns())
        error = f.env.msync(f.base + start, end - start)
        self.note_force(f.env.monotonic_ns() - self.force_began_ns)
        if error < 0:
            return error
        while True:
            seen = rs_load_acquire(&f.flushed)
            if seen >= end or rs_compare_and_swap(&f.flushed, seen, end):
                break
        forced[0] = f.file_from_offset + end
        rs_group_finish(self.group, forced[0], 0)
        return 0

    cdef bint force_slowly(self, int64_t end) except -1:
        # The leader's work over several files.
        try:
            self.flush.flush_to(self.core.end)
        except StoreError:
            return False
        finally:
            self.__exit__()
        return rs_group_forced(self.group) >= end

    cdef int failed(self, error) except -1:
        try:
            self.flush.failed(error)
        finally:
            rs_group_finish(self.group, 0, 1)
        return 0
