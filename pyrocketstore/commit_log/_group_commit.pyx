"""Group commit: a put under SYNC_FLUSH waits here, without the GIL, until it is on the device."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

from pyrocketstore.system._allocation cimport page_down
from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport (
    rs_compare_and_swap,
    rs_fetch_add,
    rs_load_acquire,
    rs_mapped_file,
    rs_msync,
    rs_store_release,
)

from functools import partial

from pyrocketstore.errors import StoreError
from pyrocketstore.system.signal_shield import shielded

cdef enum:
    IDLE = 1                     # of `serve_some`: nobody wanted anything for a time
    NEEDS_PYTHON = 2             # the bytes are not all in the file that is held
    SERVED = 3                   # Python wanted to hear of it

# How long Ctrl-C may wait for a sleeping main thread, and the longest that one who is served may
# sleep on when those before it do not come back.
cdef int64_t SLICE_MS = 50
# The serving thread tells Python how far it came when it has been idle for this long, or busy.
cdef int64_t NOTE_IDLE_MS = 2
cdef int64_t NOTE_BUSY_NS = 1000000000
# Between two tries to open a file (s).
cdef double RETRY_S = 0.01


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class GroupCommit:
    """Who waits for the log to be on the device, and which of them forces it.

    The first that waits leads: it forces all that is in the log, for itself and for those that came
    meanwhile; then the first that it did not reach leads. When the last force took long, or
    `served` says so, the thread that calls `serve` leads instead. As a context manager: the lead,
    for one who forces by `flush` itself.

    Parameters
    ----------
    core : CommitLogCore
    flush : CommitLogFlush; `flush_to`, `note_flushed` and `failed` are called by the leader
    timeout_ms : int, after which a wait is given up
    served : bool, waiters never flush themselves, and each has a timeout

    Threads: any. A waiting main thread runs signal handlers.
    Source: RocketMQ 4.9.3 CommitLog#GroupCommitService.
    """

    def __cinit__(self, CommitLogCore core not None, flush, int64_t timeout_ms, bint served=False):
        self.core = core
        self.flush = flush
        self.timeout_ns = timeout_ms * 1000000
        self.group = rs_group_new(flush.flushed_where, served)
        if self.group == NULL:
            raise MemoryError

    def __dealloc__(self):
        rs_group_free(self.group)

    @property
    def force_count(self):
        """Forces by leaders."""
        return rs_load_acquire(&self.forces)

    @property
    def force_total_ns(self):
        """What they took."""
        return rs_load_acquire(&self.forces_ns)

    @property
    def forced(self):
        """Everything before this physical offset is on the device."""
        return rs_group_forced(self.group)

    @property
    def is_quick(self):
        """True while flushes take less time than the wake-ups of two other threads.

        No thread flushes now, and the last 32 flushes took at most 0.3 ms each; False with
        `served`.
        """
        return rs_group_is_quick(self.group) != 0

    def wait(self, int64_t end):
        """Wait until everything before `end` is on the device; False when it will not be.

        That is after the time-out, when a force has failed, and when nobody serves any more.
        """
        return self.wait_for(end)

    def ask(self):
        """Let the log be forced once more, and do not wait for it."""
        rs_group_ask(self.group)

    def expect(self, bint whether):
        """Whether `serve` comes back after each force."""
        rs_store_release(&self.expecting, whether)

    def end(self):
        """Let `serve` come back soon. Any thread."""
        rs_store_release(&self.ending, 1)
        rs_group_ask(self.group)

    def note_failure(self, int result, path):
        """Tell `flush` that the fsync of the file at `path` gave `result`."""
        self.flush.failed(self.core.env.error_of(result, "msync", path, -1))

    def close(self):
        """End the service: present and later waiters return at once."""
        rs_group_close(self.group)
        self.let_go()

    def serve(self, int64_t timeout_ms):
        """Flush for the waiters, until none has waited for `timeout_ms`, or for one second.

        A failed flush is reported to `flush`, and not raised. Threads: the serving thread alone,
        which holds the file that is written to.
        """
        cdef int64_t forced = 0
        cdef int64_t timestamp = 0
        cdef int64_t idle_ms = timeout_ms
        cdef int state
        if self.flush.flushed_noted < rs_group_forced(self.group):
            idle_ms = min(idle_ms, NOTE_IDLE_MS)
        with nogil:
            state = self.serve_some(idle_ms, &forced, &timestamp)
        if state != IDLE:
            self.settle(state, self.file, forced, timestamp)
        self.hold_last()

    cdef int serve_some(self, int64_t timeout_ms, int64_t *forced,
                        int64_t *timestamp) noexcept nogil:
        cdef int64_t until = self.core.env.table.monotonic_ns() + NOTE_BUSY_NS
        cdef int error
        while rs_group_serve(self.group, timeout_ms):
            error = self.force(self.file, forced, timestamp)
            if error != 0:
                return error
            if (rs_load_acquire(&self.expecting) or rs_load_acquire(&self.ending)
                    or self.core.env.table.monotonic_ns() >= until):
                return SERVED
            timeout_ms = min(timeout_ms, NOTE_IDLE_MS)
        return IDLE if forced[0] == 0 else SERVED

    cdef int settle(self, int state, MappedFile file, int64_t forced,
                    int64_t timestamp) except -1:
        # What a leader owes after `force`.
        if state == NEEDS_PYTHON:
            return self.force_slowly()
        if state < 0:
            try:
                shielded(partial(self.note_failure, state, file.path))
            finally:
                rs_group_finish(self.group, 0, 1)
            return 0
        self.flush.note_flushed(forced, timestamp)
        return 0

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
        cdef int64_t deadline = self.core.env.table.monotonic_ns() + self.timeout_ns
        cdef int reached = self.wait_once(end, deadline)
        while reached < 0:
            # The bytes lie in several files, or a file could not be opened: that is tried again.
            if self.flush.error is not None or self.slice_ms(deadline) == 0:
                return False
            if self.flush.retried is not None:
                self.core.env.sleep(RETRY_S)
            reached = self.wait_once(end, deadline)
        return reached

    cdef int wait_once(self, int64_t end, int64_t deadline) except -2:
        # -1: this thread has led, and `end` was not reached.
        cdef rs_waiter waiter
        cdef MappedFile file = self.core.mapped_file
        cdef int64_t slice_ms = self.slice_ms(deadline)
        cdef int64_t forced = 0
        cdef int64_t timestamp = 0
        cdef int error = NEEDS_PYTHON
        cdef bint held = file is not None and file.take_hold()
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
                file.drop_hold()
        if state != RS_GROUP_LEADS:
            return state == RS_GROUP_FORCED
        if error == NEEDS_PYTHON:
            # Python may run a signal handler, which may raise, or wait for who leads: the serving
            # thread runs none.
            rs_group_hand_over(self.group)
            return -1
        self.settle(error, file, forced, timestamp)
        # The log may have rolled to the next file after the one that was held.
        return 1 if rs_group_forced(self.group) >= end else -1

    def take_flush_times(self):
        """(longest, running), ns: of the leaders' forces since the last call, and of one that has
        not ended (0: none)."""
        cdef int64_t began = rs_load_acquire(&self.force_began_ns)
        cdef int64_t longest = rs_load_acquire(&self.force_longest_ns)
        while not rs_compare_and_swap(&self.force_longest_ns, longest, 0):
            longest = rs_load_acquire(&self.force_longest_ns)
        return longest, self.core.env.table.monotonic_ns() - began if began else 0

    cdef void note_force(self, int64_t took_ns) noexcept nogil:
        # By the leader alone; the others only read, and take the longest.
        cdef int64_t longest = rs_load_acquire(&self.force_longest_ns)
        rs_fetch_add(&self.forces, 1)
        rs_fetch_add(&self.forces_ns, took_ns)
        while took_ns > longest:
            if rs_compare_and_swap(&self.force_longest_ns, longest, took_ns):
                break
            longest = rs_load_acquire(&self.force_longest_ns)
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
        cdef int state
        while True:
            # A signal handler may raise, put, flush or close: nobody may wait for it to force.
            state = self.leave(waiter)
            if state != RS_GROUP_WAITS:
                return state
            PyErr_CheckSignals()
            slice_ms = self.slice_ms(deadline)
            if slice_ms == 0:
                return state
            with nogil:
                state = rs_group_join(self.group, waiter, waiter.end)
                if state == RS_GROUP_WAITS:
                    state = rs_group_sleep(self.group, waiter, slice_ms)
            if state != RS_GROUP_WAITS:
                return state

    cdef int leave(self, rs_waiter *waiter) noexcept:
        cdef int state = rs_group_leave(self.group, waiter)
        if state == RS_GROUP_LEADS:          # too late: the next one leads
            rs_group_finish(self.group, 0, 0)
            return RS_GROUP_WAITS
        return state

    cdef int force(self, MappedFile file, int64_t *forced, int64_t *timestamp) noexcept nogil:
        # A leader's work where all that is not forced lies in the file that it holds.
        cdef rs_mapped_file *f
        cdef int64_t where = rs_group_forced(self.group)
        cdef int64_t start, end, target, seen
        cdef int error
        if file is None:
            return NEEDS_PYTHON
        f = &file.file
        # The writer moves `wrote`, then the time, then the log's end.
        target = rs_load_acquire(&self.core.end_offset)
        timestamp[0] = rs_load_acquire(&f.store_timestamp)
        end = rs_load_acquire(&f.wrote)
        start = where - f.file_from_offset
        if target <= where:
            timestamp[0] = 0
            forced[0] = where
            rs_group_finish(self.group, where, 0)
            return 0
        if start < 0 or target > f.file_from_offset + end:
            return NEEDS_PYTHON
        start = page_down(start)
        rs_store_release(&self.force_began_ns, f.env.monotonic_ns())
        error = rs_msync(f.env, f.base + start, end - start)
        self.note_force(f.env.monotonic_ns() - rs_load_acquire(&self.force_began_ns))
        if error < 0:
            return error
        while True:
            seen = rs_load_acquire(&f.flushed)
            if seen >= end or rs_compare_and_swap(&f.flushed, seen, end):
                break
        forced[0] = f.file_from_offset + end
        rs_group_finish(self.group, forced[0], 0)
        return 0

    cdef int force_slowly(self) except -1:
        # A leader's work over several files.
        try:
            self.flush.flush_to(self.core.end)
        except StoreError:
            pass  # `flush` knows it, and those who wait: it is final, or tried again
        finally:
            self.__exit__()
        return 0

    cdef int hold_last(self) except -1:
        cdef MappedFile file = self.core.mapped_file
        if file is self.file:
            return 0
        self.let_go()
        if file is not None and file.take_hold():
            self.file = file
        return 0

    cdef int let_go(self) except -1:
        cdef MappedFile file = self.file
        self.file = None
        if file is not None:
            file.drop_hold()
        return 0
