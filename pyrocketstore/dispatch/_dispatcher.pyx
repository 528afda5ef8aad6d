"""The dispatch loop: from a range of the log into consume queues and index, without the GIL.

`put_unit` and `begin_index_file` are the core. Two feeders use it: `dispatch_record` takes records
from the bytes of the log, `dispatch_chunk` and its parts take what a scan kept of them
(`LogChunk`), which a batch puts faster. The GIL is taken for the uncommon: a queue seen for the
first time, a full file, a record that feeds several queues, an error.

`dispatch_record` puts units at once and only notes the keys. `settle` puts the keys of some records
together, and then publishes these records. It runs before Python does, so that callbacks find all
earlier records dispatched.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t, uint8_t
from libc.string cimport memcmp, memset

from pyrocketstore._rocketstore cimport (
    RS_CQ_STORE_UNIT_SIZE,
    RS_END,
    RS_FULL,
    RS_INDEX_CHUNK,
    RS_INDEX_ENTRY_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_REPEAT,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_compare_and_swap,
    rs_event_sequence,
    rs_event_signal,
    rs_event_wait,
    rs_index_file,
    rs_load_acquire,
    rs_mapped_file,
    rs_open_for_writing,
    rs_prefetch_read,
    rs_properties,
    rs_queue,
    rs_record,
    rs_store_release,
)
from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.commit_log._chunk_scan cimport (
    KIND_MULTI,
    KIND_REMOVED,
    KIND_ROLLBACK,
    KIND_UNCOMMON,
    LogChunk,
    chunk_record,
    delay_table,
    is_multi,
    minus,
    phy_offset_of,
    queue_number_of,
    queue_offset_of,
    set_delays,
    size_of_row,
    store_timestamp_of,
    tags_code_of_record,
    tags_code_of_row,
)
from pyrocketstore.commit_log._scan cimport (
    FileWindow,
    TopicMinOffsets,
    TopicQueueMap,
    at_position,
    check_range,
    map_entry,
    next_record,
    scan_state,
)
from pyrocketstore.consume_queue._units cimport ConsumeQueueCore, put_position_info
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.index._entries cimport (
    entry_position,
    index_key_hash,
    index_key_prefix,
    index_keys,
    keys_of_record,
    next_index_key,
    put_hashes,
)
from pyrocketstore.index._file cimport IndexFile
from pyrocketstore.record._record cimport check_record, parse_record, scan_properties
from pyrocketstore.record._text cimport java_text
from pyrocketstore.system._allocation cimport (
    HUGE_PAGE,
    confirm_range,
    confirm_room,
    populate_filled,
    write_zeros,
)
from pyrocketstore.system._env cimport EnvTable, Event

from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.results import DispatchRequest

# Prefault pages of queue and index files in bulk.
#
# A store to a mapped page that is not in memory takes a page fault, some 4 us for each 4 KiB. A
# long write of zeros creates large folios at a tenth of that cost, and mapping those costs little.

cdef enum:
    COUNT_MIN = 256             # units or keys that are worth the system calls
    PAGES_A_KEY = 4             # slots are filled if they have at most so many pages for each key
    QUEUE_AHEAD = 1048576       # bytes that are filled beyond the known need
    INDEX_AHEAD = 4194304


cdef void fill(rs_mapped_file *f, int64_t position, int64_t end) noexcept nogil:
    # The range is allocated, and nothing in it is valid data.
    cdef int fd = rs_open_for_writing(f)
    if fd < 0:
        return
    end = write_zeros(f.env, fd, position, end, HUGE_PAGE)
    f.env.close(fd)
    # A slot is read before it is written: without this, that maps its page read-only.
    populate_filled(f, position, end)


cdef void prefault_queue(rs_queue *q, int64_t count) noexcept nogil:
    cdef rs_mapped_file *f = q.file
    cdef int64_t wrote, start, end
    if count < COUNT_MIN or f == NULL or f.base == NULL or f.path == NULL:
        return
    wrote = f.wrote
    start = max(wrote, rs_load_acquire(&f.confirmed))
    end = min(f.file_size, wrote + count * RS_CQ_STORE_UNIT_SIZE)
    if start >= end or f.file_from_offset + wrote != q.unit_count * RS_CQ_STORE_UNIT_SIZE:
        return
    # At most double the file's data, so that a small file stays small.
    end = min(f.file_size, max(end, start + min(wrote, <int64_t>QUEUE_AHEAD)))
    if confirm_room(f, end, False) == 0:
        fill(f, start, min(f.file_size, rs_load_acquire(&f.confirmed)))


cdef bint prefault_chunks(rs_index_file *x, int64_t position, int64_t end) noexcept nogil:
    # [position, end), as far as its chunks are not allocated yet; False where there is no room.
    cdef int64_t chunk = position // RS_INDEX_CHUNK
    cdef int64_t last = (end - 1) // RS_INDEX_CHUNK
    cdef int64_t first, start, stop
    while chunk <= last:
        if x.confirmed_chunks[chunk]:
            chunk += 1
            continue
        first = chunk
        while chunk <= last and not x.confirmed_chunks[chunk]:
            chunk += 1
        start = first * RS_INDEX_CHUNK
        stop = min(chunk * RS_INDEX_CHUNK, entry_position(x.hash_slot_num, x.index_num))
        if confirm_range(x.file, start, stop - start, False) != 0:
            return False
        memset(x.confirmed_chunks + first, 1, <size_t>(chunk - first))
        fill(x.file, max(position, start), stop)
    return True


cdef void prefault_index(rs_index_file *x, int64_t count, bint fresh) noexcept nogil:
    if count < COUNT_MIN:
        return
    prefault_slots(x, count, fresh)
    prefault_entries(x, x.index_count, count)


cdef void prefault_slots(rs_index_file *x, int64_t count, bint fresh) noexcept nogil:
    cdef int64_t slots_end = entry_position(x.hash_slot_num, 0)
    if x.base == NULL or x.file.path == NULL or not fresh:
        return
    if count * PAGES_A_KEY >= slots_end // 4096:
        # Their last chunk is the entries' first.
        prefault_chunks(x, 0, slots_end // RS_INDEX_CHUNK * RS_INDEX_CHUNK)


cdef bint prefault_entries(rs_index_file *x, int64_t number, int64_t count) noexcept nogil:
    cdef int64_t slots_end = entry_position(x.hash_slot_num, 0)
    cdef int64_t file_end = entry_position(x.hash_slot_num, x.index_num)
    cdef int64_t start = entry_position(x.hash_slot_num, number)
    cdef int64_t end = min(file_end, start + count * RS_INDEX_ENTRY_SIZE)
    if (start >= end or x.base == NULL or x.file.path == NULL
            or x.confirmed_chunks[(end - 1) // RS_INDEX_CHUNK]):
        return True
    end = max(end, start + min(start - slots_end, <int64_t>INDEX_AHEAD))
    return prefault_chunks(x, start, min(end, file_end))


cdef enum:
    SIGNAL_EVERY = 1024
    KEY_BATCH = 1024
    PREFETCH_RECORDS = 4    # some 0.1 us of work each: as long as another core's cache takes
    CACHE_LINE = 64
    KEYS_TOGETHER = 32      # keys or records that wait until they are put or published together
    KEYS_NOTED_MAX = 64


cdef inline void prefetch_ahead(const uint8_t *base, int64_t position, int64_t size,
                                int64_t wrote) noexcept nogil:
    # The lines around the start of a later record, if all are as long as this one: the properties
    # of the record before it, and its header. The writer's core has them, and a miss costs more
    # than everything else that is done with a record. Nothing behind `wrote`: the writer is there.
    cdef int64_t at = position + PREFETCH_RECORDS * size
    if at + 2 * CACHE_LINE <= wrote:
        rs_prefetch_read(base + at - CACHE_LINE)
        rs_prefetch_read(base + at)
        rs_prefetch_read(base + at + CACHE_LINE)


cdef int require_hashes(LogChunk chunk) except -1:
    if chunk.records != NULL and not chunk.has_hashes:
        raise ValueError("a chunk of a scan that has not hashed the keys")
    return 0


cdef inline int64_t readable_end(CommitLogCore log, const rs_mapped_file *file) noexcept nogil:
    # The end of what readers of the log may see of a file, bytes into it. A commit moves the file's
    # position before the log's end.
    cdef int64_t end = rs_load_acquire(&log.end_offset) - file.file_from_offset
    return min(rs_load_acquire(&file.wrote), end)


cdef struct record_bytes:
    const uint8_t *p
    int32_t size


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Dispatcher:
    """Dispatch ranges of the log into consume queues and index.

    Parameters
    ----------
    on_new_queue : callable(topic, queue_id) -> ConsumeQueue; None: the records of these names get
        no unit
    on_queue_record : callable(DispatchRequest, multi: bool), puts one record the slow way
    on_index_file : callable() -> IndexFile or None (index given up)
    on_index_record : callable(DispatchRequest), indexes one record the slow way
    on_error : callable(kind: str, topic, queue_id, errno)
    delay_levels : {level: ms}
    index_enabled, multi_dispatch : bool
    moved : Event, signalled when `position` has changed
    min_offsets : TopicMinOffsets; None: no messages are removed. A removed record gets no unit in
        its own queue, but is indexed, and `on_queue_record` puts it into the further queues that
        it names

    Attributes: `delayed`, Event or None, signalled once units of SCHEDULE_TOPIC_XXXX can be read.
    `on_dispatched`, callable(DispatchRequest) or None: `dispatch_mapped` calls it for each record
    whose unit and keys are put, before `position` passes the record.

    Threads: one at a time dispatches; `position` may be read from any.
    Source: RocketMQ 4.9.3 DefaultMessageStore#ReputMessageService, CommitLogDispatcherBuild*.
    """
    cdef TopicQueueMap queues
    cdef rs_queue no_queue  # in place of the queue of names whose records get no unit
    cdef dict owners
    cdef dict cores         # the ConsumeQueueCore of each queue: the table points into it
    cdef dict names         # the table's topics, bytes, of each queue: invalid UTF-8 has many
    cdef bint busy          # a thread dispatches into queues
    cdef bint indexing      # a thread puts the keys of a chunk
    cdef rs_index_file *index
    cdef IndexFile index_owner
    cdef bint index_enabled
    cdef int64_t unsignalled    # records since `moved` was signalled
    cdef bint multi_dispatch
    cdef TopicMinOffsets min_offsets
    cdef delay_table delays
    cdef int64_t at
    cdef int64_t last           # physical offset of the last record that was dispatched; -1: none
    cdef int64_t logics
    cdef Event moved
    cdef Event reached          # signalled once `at` is at least `awaited`
    cdef int64_t awaited        # the lowest position that a thread waits for; INT64_MAX: none
    cdef public Event delayed
    cdef bint has_delayed       # units of delayed messages were put since the last signal
    cdef object on_new_queue
    cdef object on_queue_record
    cdef object on_index_file
    cdef object on_index_record
    cdef object on_error
    cdef readonly object on_dispatched
    cdef bint observed          # `on_dispatched` is called for each record
    cdef rs_record record
    cdef rs_properties properties
    # of records whose units are in their queues: `settle` puts the keys and publishes the records
    cdef int32_t key_count
    cdef int32_t record_count
    cdef int64_t settled_last       # `last` and `at` once the records are published
    cdef int64_t settled_at
    cdef int32_t[KEYS_NOTED_MAX] key_hashes
    cdef int64_t[KEYS_NOTED_MAX] phy_offsets
    cdef int64_t[KEYS_NOTED_MAX] store_timestamps
    cdef record_bytes[KEYS_NOTED_MAX] key_records   # of each key
    # of the chunks whose keys another thread puts
    cdef int64_t keys_until         # the index count once all their keys are put
    cdef bint stalled               # one of them could not be indexed completely

    def __cinit__(self, *, on_new_queue, on_queue_record, on_index_file, on_index_record, on_error,
                 delay_levels, bint index_enabled, bint multi_dispatch, Event moved,
                 TopicMinOffsets min_offsets=None):
        self.queues = TopicQueueMap()
        self.remove_before(min_offsets)
        self.owners = {}
        self.cores = {}
        self.names = {}
        self.on_new_queue = on_new_queue
        self.on_queue_record = on_queue_record
        self.on_index_file = on_index_file
        self.on_index_record = on_index_record
        self.on_error = on_error
        self.index_enabled = index_enabled
        self.multi_dispatch = multi_dispatch
        self.moved = moved
        self.reached = Event()
        self.awaited = INT64_MAX
        self.last = -1
        self.logics = 0
        set_delays(&self.delays, delay_levels)

    @property
    def position(self):
        """Physical offset up to which records have been dispatched."""
        return rs_load_acquire(&self.at)

    @position.setter
    def position(self, int64_t value):
        rs_store_release(&self.at, value)
        self.signal()

    def wait_for(self, int64_t phy_offset, int64_t timeout_ms):
        """Sleep until `position` is at least `phy_offset`; return whether it is.

        Also returns after `wake`, after `timeout_ms`, and now and then: the caller checks what else
        it waits for, and calls again. Threads: any, without the GIL.
        """
        cdef uint64_t seen
        cdef int64_t lowest
        with nogil:
            seen = rs_event_sequence(self.reached.event)
            while True:
                lowest = rs_load_acquire(&self.awaited)
                if lowest <= phy_offset or rs_compare_and_swap(&self.awaited, lowest, phy_offset):
                    break
            if rs_load_acquire(&self.at) < phy_offset:
                rs_event_wait(self.reached.event, seen, timeout_ms)
        return rs_load_acquire(&self.at) >= phy_offset

    def wake(self):
        """Wake every thread that sleeps in `wait_for` or on `moved`."""
        rs_event_signal(self.moved.event)
        rs_event_signal(self.reached.event)

    cdef inline void signal(self) noexcept nogil:
        # After a change of the position. A thread that waits for a later one sleeps on.
        cdef int64_t lowest
        rs_event_signal(self.moved.event)
        lowest = rs_load_acquire(&self.awaited)
        if rs_load_acquire(&self.at) >= lowest:
            rs_compare_and_swap(&self.awaited, lowest, INT64_MAX)
            rs_event_signal(self.reached.event)

    @property
    def last_phy_offset(self):
        """Physical offset of the last record that is in its queue and in the index; -1: unknown.

        Records after a failure of the index count too: ask RunningFlags first.
        """
        return rs_load_acquire(&self.last)

    @last_phy_offset.setter
    def last_phy_offset(self, int64_t value):
        rs_store_release(&self.last, value)

    @property
    def logics_timestamp(self):
        """Store time of the last record that went into a queue, ms."""
        return rs_load_acquire(&self.logics)

    @logics_timestamp.setter
    def logics_timestamp(self, int64_t value):
        rs_store_release(&self.logics, value)

    def set_index_file(self, IndexFile index_file or None):
        """Index into this file from now on; None: `on_index_file` provides the next one.

        Raises StoreStateError: another thread is in `index_chunk`.
        """
        if self.indexing:
            raise StoreStateError("another thread puts keys into the index")
        if index_file is not None:
            index_file.open_for_writing()
        self.index_owner = index_file
        self.index = NULL if index_file is None else &index_file.index

    def call_after(self, on_dispatched):
        """Have `on_dispatched` called, None: nothing; only while nothing is dispatched."""
        self.on_dispatched = on_dispatched

    def remove_before(self, TopicMinOffsets min_offsets):
        """Replace the minimums of the topics, None: there are none; only while nothing is
        dispatched."""
        self.min_offsets = TopicMinOffsets({}) if min_offsets is None else min_offsets

    def resume_index(self):
        """Resume indexing after an error; only while nothing is dispatched."""
        self.index_enabled = True
        self.set_index_file(None)

    def forget(self, str topic, int32_t queue_id):
        """Remove a destroyed queue from the table; only while nothing is dispatched."""
        # Topics that are not UTF-8 may differ in bytes and have one name.
        cdef bytes name
        cdef map_entry *entry
        key = (topic, queue_id)
        for name in self.names.pop(key, ()):
            entry = self.queues.find(<const uint8_t *><char *>name, <int32_t>len(name), queue_id)
            if entry != NULL:
                entry.queue = NULL
        self.owners.pop(key, None)
        self.cores.pop(key, None)

    cdef int begin(self) except -1:
        # One thread at a time, and not from a callback of the dispatcher itself.
        if self.busy:
            raise StoreStateError("the dispatcher is at work already")
        self.busy = True
        # After an exception: these records were not published, and come again.
        self.key_count = self.record_count = 0
        self.observed = False
        return 0

    # ---- the core: one unit into its queue, an index file with room ---------------------------

    cdef inline int put_unit(self, rs_queue **found, const map_entry *seen, int64_t phy_offset,
                             int32_t size, int64_t tags_code,
                             int64_t queue_offset) except -1 nogil:
        # `found` caches the queue; `seen` has its name and the units that are to come. RS_OK: the
        # queue has the unit; RS_END: it gets none; RS_NEED_PYTHON: only `queue_slowly` can put it.
        cdef rs_queue *queue
        cdef int result
        while True:
            queue = found[0]
            if queue == NULL:
                queue = found[0] = self.queue_of(seen)
                if queue == NULL:
                    return RS_END
                if seen.count > 1 and not queue.needs_python:
                    prefault_queue(
                        queue, min(seen.count, minus(seen.next_queue_offset, queue.unit_count)))
            if queue.needs_python:
                return RS_NEED_PYTHON
            result = put_position_info(queue, phy_offset, size, tags_code, queue_offset)
            if result == RS_OK or result == RS_REPEAT:
                return RS_OK
            if result != RS_NEED_FILE:
                return RS_NEED_PYTHON       # Python also tries again after an error
            found[0] = NULL
            if not self.provide_file(seen, queue_offset):
                return RS_END

    cdef inline rs_queue *queue_of(self, const map_entry *seen) except? NULL nogil:
        # NULL: its records get no unit.
        cdef map_entry *entry = self.queues.find(seen.topic, seen.topic_size, seen.queue_id)
        if entry == NULL or entry.queue == NULL:
            return self.register_queue(seen)
        return NULL if entry.queue == &self.no_queue else entry.queue

    cdef rs_queue *register_queue(self, const map_entry *seen) except? NULL with gil:
        cdef map_entry *entry
        cdef ConsumeQueueCore core
        cdef str topic = java_text(seen.topic, seen.topic_size)
        cdef tuple key = (topic, seen.queue_id)
        self.settle()
        queue = self.on_new_queue(topic, seen.queue_id)
        core = None if queue is None else queue.core
        if core is None and queue is not None:
            raise TypeError("the queue has no core")
        if core is not None and self.cores.get(key, core) is not core:
            raise StoreStateError(f"two queues for {topic}/{seen.queue_id}")
        entry = self.queues.insert(seen.topic, seen.topic_size, seen.queue_id)
        if entry == NULL:
            raise MemoryError()
        if core is None:
            entry.queue = &self.no_queue
            return NULL
        name = seen.topic[:seen.topic_size]
        names = self.names.get(key, ())
        self.names[key] = names if name in names else (*names, name)
        self.owners[key] = queue
        self.cores[key] = core
        entry.queue = &core.queue
        return entry.queue

    cdef bint provide_file(self, const map_entry *seen, int64_t queue_offset) except -1 with gil:
        cdef str topic = java_text(seen.topic, seen.topic_size)
        cdef tuple key = (topic, seen.queue_id)
        owner = self.owners.get(key)
        if owner is None:
            raise StoreStateError(f"the queue {topic}/{seen.queue_id} is gone")
        self.settle()
        self.signal()
        if owner.provide_file(queue_offset):
            return True
        self.on_error("queue", topic, seen.queue_id, 0)
        return False

    cdef inline int64_t index_room(self) noexcept nogil:
        return self.index.index_num - self.index.index_count

    cdef inline bint needs_index_file(self) noexcept nogil:
        return self.index_enabled and (self.index == NULL or self.index_room() <= 0)

    cdef int begin_index_file(self) except -1 with gil:
        self.signal()
        self.set_index_file(self.on_index_file())
        if self.index == NULL:
            self.index_enabled = False
        return 0

    # ---- feeder: the bytes of the log ---------------------------------------------------------

    def dispatch_mapped(self, CommitLogCore log not None, MappedFile mapped_file not None,
                        int64_t position, int64_t stop):
        """Dispatch the records of a mapped file of `log` that begin in [position, stop).

        No record from the end of the log on is dispatched: its bytes may be in the file already,
        but who looks for the message of its unit would not find it yet.

        The caller holds the file. Returns (status, position reached).
        """
        cdef rs_mapped_file *file = &mapped_file.file
        cdef int64_t wrote
        cdef int status = RS_OK
        if position < 0:
            raise ValueError(f"position {position} is negative")
        self.begin()
        try:
            if not mapped_file.take_hold():
                raise StoreStateError(f"{mapped_file.path} is not available")
            try:
                if file.base == NULL:
                    raise StoreStateError(f"{mapped_file.path} is not mapped")
                self.observed = self.on_dispatched is not None
                with nogil:
                    wrote = readable_end(log, file)
                    while position < wrote and position < stop:
                        status = check_record(file.base + position, wrote - position,
                                              file.file_from_offset + position, False,
                                              &self.record)
                        if status != RS_OK:
                            break
                        prefetch_ahead(file.base, position, self.record.total_size, wrote)
                        self.dispatch_record(file.base + position)
                        position += self.record.total_size
                        if position >= wrote:
                            self.settle()
                            wrote = readable_end(log, file)
                    self.settle()
            finally:
                mapped_file.drop_hold()
        finally:
            self.busy = False
            self.signal()
        return status, position

    def dispatch_file(self, EnvTable env, str path, int64_t file_from_offset, int64_t position,
                      int64_t stop, bint observed=False):
        """Dispatch a range of a commit log file that is read with pread.

        `observed`: `on_dispatched` is called for each record. Returns (status, position reached):
        RS_OK at `stop`, RS_BLANK, or the verdict on the bytes there. Raises StoreIOError.
        """
        cdef FileWindow window
        cdef scan_state state
        cdef int status
        check_range(file_from_offset, position, stop)
        if file_from_offset + position < 0:
            raise ValueError(f"byte {position} of {path}: physical offset is negative")
        memset(&state, 0, sizeof(state))
        state.position = position
        state.until = state.stop = stop
        self.begin()
        self.observed = observed and self.on_dispatched is not None
        try:
            window = FileWindow(env, path)
            with nogil:
                while True:
                    status = next_record(window, file_from_offset, False, &state, &self.record)
                    if status != RS_OK:
                        break
                    self.dispatch_record(at_position(window, state.position))
                    self.settle()       # the window moves on
                    state.position += self.record.total_size
            window.close()
        finally:
            self.busy = False
            self.signal()
        if state.error < 0:
            raise StoreIOError(<int>-state.error, "pread", path, state.position)
        return RS_OK if state.position >= stop else status, state.position

    cdef int dispatch_record(self, const uint8_t *p) except -1 nogil:
        scan_properties(p + self.record.properties_position, self.record.properties_size,
                        &self.properties)
        self.queue_record(p)
        if self.index_enabled:
            if self.index == NULL or self.index_room() <= self.key_count:
                self.settle()
                if self.needs_index_file():
                    self.begin_index_file()
            if self.index_enabled:
                self.note_keys(p)
        self.settled_last = self.record.phy_offset
        self.settled_at = self.record.phy_offset + self.record.total_size
        self.record_count += 1
        if self.observed and not self.min_offsets.removes(
                p + self.record.topic_position, self.record.topic_size, self.record.phy_offset):
            self.report(p)
        if self.record_count >= KEYS_TOGETHER or self.key_count >= KEYS_TOGETHER:
            self.settle()
        return 0

    cdef int settle(self) except -1 nogil:
        # The slots of keys are random memory: the misses of many keys overlap.
        if self.key_count > 0:
            self.put_noted_keys()
        if self.record_count == 0:
            return 0
        rs_store_release(&self.last, self.settled_last)
        rs_store_release(&self.at, self.settled_at)
        self.unsignalled += self.record_count
        self.record_count = 0
        if self.has_delayed:
            self.has_delayed = False
            if self.delayed is not None:
                rs_event_signal(self.delayed.event)
        if self.unsignalled >= SIGNAL_EVERY:
            self.unsignalled = 0
            self.signal()
        return 0

    cdef int report(self, const uint8_t *p) except -1 with gil:
        # The callback finds the record's unit and keys. The record is published after it, so that
        # a waiter for `position` finds the callback done.
        if self.key_count > 0:
            self.put_noted_keys()
        self.on_dispatched(self.request(p))
        self.settle()
        self.signal()
        return 0

    cdef int queue_record(self, const uint8_t *p) except -1 nogil:
        cdef int32_t kind = self.record.sys_flag & RS_TRANSACTION_MASK
        cdef int result = RS_NEED_PYTHON
        cdef rs_queue *queue = NULL
        cdef map_entry seen
        if kind != RS_TRANSACTION_NOT_TYPE and kind != RS_TRANSACTION_COMMIT_TYPE:
            return 0
        seen.topic = <uint8_t *>p + self.record.topic_position
        seen.topic_size = self.record.topic_size
        if self.min_offsets.removes(seen.topic, seen.topic_size, self.record.phy_offset):
            if self.multi_dispatch and is_multi(&self.properties):
                self.queue_slowly(p)
            return 0
        seen.queue_id = self.record.queue_id
        seen.count = 1
        seen.next_queue_offset = self.record.queue_offset
        if self.multi_dispatch and is_multi(&self.properties):
            # A record that names further queues gets its own queue first.
            if self.queue_of(&seen) == NULL:
                return 0
        else:
            result = self.put_unit(&queue, &seen, self.record.phy_offset, self.record.total_size,
                                   self.tags_code(p), self.record.queue_offset)
        if result == RS_NEED_PYTHON:
            self.queue_slowly(p)
        if seen.topic_size == 19 and memcmp(seen.topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
            self.has_delayed = True
        if result != RS_END:
            rs_store_release(&self.logics, self.record.store_timestamp)
        return 0

    cdef int note_keys(self, const uint8_t *p) except -1 nogil:
        cdef index_keys keys
        cdef int32_t prefix
        # Records ascend: where keys of earlier ones are still to be put, neither is true.
        if (self.record.phy_offset < self.index.end_phy_offset
                or (self.record.sys_flag & RS_TRANSACTION_MASK) == RS_TRANSACTION_ROLLBACK_TYPE):
            return 0
        if self.record.phy_offset == self.index.end_phy_offset:
            return self.index_slowly(p)
        keys = keys_of_record(p, &self.record, &self.properties)
        prefix = index_key_prefix(p + self.record.topic_position, self.record.topic_size)
        while next_index_key(&keys):
            if self.key_count == KEYS_NOTED_MAX:
                self.put_noted_keys()
                if not self.index_enabled:
                    return 0
            self.key_hashes[self.key_count] = index_key_hash(prefix, keys.key, keys.size)
            self.phy_offsets[self.key_count] = self.record.phy_offset
            self.store_timestamps[self.key_count] = self.record.store_timestamp
            self.key_records[self.key_count] = record_bytes(p, self.record.total_size)
            self.key_count += 1
        return 0

    cdef int put_noted_keys(self) except -1 nogil:
        cdef int64_t count = self.key_count
        cdef int64_t done = 0
        cdef int status
        self.key_count = 0
        while self.index != NULL:
            done += put_hashes(self.index, self.key_hashes + done, self.phy_offsets + done,
                               self.store_timestamps + done, count - done, &status)
            if status < 0:
                self.give_up_index(&self.key_records[done], -status)
            if status != RS_FULL:
                break
            self.begin_index_file()
        return 0

    cdef int64_t tags_code(self, const uint8_t *p) noexcept nogil:
        return tags_code_of_record(p, &self.record, &self.properties, &self.delays)

    cdef int queue_slowly(self, const uint8_t *p) except -1 with gil:
        # Ext units, a gap in the queue, further queues, and errors, after which Python tries again.
        self.settle()
        self.signal()
        self.on_queue_record(self.request(p), bool(self.multi_dispatch
                                                   and is_multi(&self.properties)))
        return 0

    cdef int index_slowly(self, const uint8_t *p) except -1 with gil:
        # The record at which indexing continues after a restart: the index may have some keys.
        self.settle()
        self.set_index_file(self.on_index_record(self.request(p)))
        return 0

    cdef int give_up_index(self, const record_bytes *at, int errno_) except -1 with gil:
        # The index ends before this record, where recovery continues.
        cdef rs_record record
        cdef str topic = ""
        record.queue_id = -1
        if parse_record(at.p, at.size, &record) == RS_OK:   # as when its keys were noted
            topic = java_text(at.p + record.topic_position, record.topic_size)
        self.on_error("index", topic, record.queue_id, errno_)
        self.index_enabled = False
        return 0

    cdef str topic_of(self, const uint8_t *p):
        return java_text(p + self.record.topic_position, self.record.topic_size)

    cdef object request(self, const uint8_t *p):
        cdef const uint8_t *text = p + self.record.properties_position
        cdef int32_t size = self.record.properties_size
        properties = None
        keys = ""
        if size > 0:
            properties = string_to_properties(java_text(text, size))
            keys = properties.get("KEYS")
        return DispatchRequest(
            topic=self.topic_of(p), queue_id=self.record.queue_id,
            commit_log_offset=self.record.phy_offset, msg_size=self.record.total_size,
            tags_code=self.tags_code(p), store_timestamp=self.record.store_timestamp,
            consume_queue_offset=self.record.queue_offset, keys=keys,
            uniq_key=None if properties is None else properties.get("UNIQ_KEY"),
            sys_flag=self.record.sys_flag,
            prepared_transaction_offset=self.record.prepared_transaction_offset,
            properties_map=properties,
        )

    # ---- chunks of the log that a scan has taken apart ----------------------------------------

    def dispatch_chunk(self, LogChunk chunk not None, int64_t first):
        """Dispatch the records of a chunk from number `first` on.

        Parameters
        ----------
        chunk : LogChunk with records; it begins where the dispatch before it ended
        first : int, number of a record

        Returns
        -------
        int, number of the first record that is not dispatched: one that needs what only
        `dispatch_file` does, or chunk.count
        """
        cdef int64_t queued
        cdef int64_t done = first
        if not 0 <= first <= chunk.count or chunk.records == NULL:
            if first == chunk.count == 0:
                return 0
            raise ValueError(f"record {first} of {chunk.count}, or a chunk without records")
        require_hashes(chunk)
        self.begin()
        try:
            queued = self.queue_rows(chunk, first)
            while self.index_enabled and done < queued:
                if self.needs_index_file():
                    self.begin_index_file()
                    continue
                done = self.keys_of_chunk(chunk, done, queued)
                if self.index.index_count < self.index.index_num:
                    break
            if not self.index_enabled:
                done = queued
            self.pass_to(chunk, first, done)
        finally:
            self.busy = False
        self.signal()
        return done

    cdef int64_t keys_of_chunk(self, LogChunk chunk, int64_t done, int64_t queued) except -1:
        # As chunk_into_index; `owner` keeps the file alive until it returns.
        cdef IndexFile owner = self.index_owner
        if self.indexing:
            raise StoreStateError("another thread puts keys into the index")
        self.indexing = True
        with nogil:
            done = self.chunk_into_index(chunk, done, queued, owner.mapped_file.created)
        self.indexing = False
        return done

    def queue_chunk(self, LogChunk chunk not None, bint alone):
        """Put the units of a chunk into the queues, and make room for its keys in the index.

        Parameters
        ----------
        chunk : LogChunk, as for `dispatch_chunk`
        alone : bool, no other chunk waits for `index_chunk`

        Returns
        -------
        bool, True: `index_chunk` must follow; False: `dispatch_chunk` must dispatch the whole
        chunk, once no other chunk waits
        """
        require_hashes(chunk)
        self.begin()
        try:
            return self.make_room(chunk, alone)
        finally:
            self.busy = False

    cdef bint make_room(self, LogChunk chunk, bint alone) except -1:
        cdef rs_index_file *x
        cdef int64_t keys
        cdef bint has_room
        if chunk.records == NULL or not self.index_enabled:
            return False
        if self.index == NULL:
            self.begin_index_file()
        x = self.index
        if x == NULL:
            return False
        if alone:
            # An empty index ends at 0.
            if phy_offset_of(chunk, 0) <= x.end_phy_offset and (
                    x.end_phy_offset > 0 or x.index_count > 1):
                return False        # the index may have some of its keys
            self.keys_until = x.index_count
            self.stalled = False
        keys = chunk.records[chunk.count].first_key
        if keys > x.index_num - self.keys_until or self.queue_rows(chunk, 0) < chunk.count:
            return False
        with nogil:
            has_room = prefault_entries(x, self.keys_until, keys)
        self.keys_until += keys
        return has_room

    def index_chunk(self, LogChunk chunk not None):
        """Put the keys of a chunk into the index, after `queue_chunk` returned True for it.

        Returns
        -------
        bool, False: `dispatch_chunk` must dispatch the whole chunk, because a record of this chunk
        or of an earlier waiting one is uncommon

        Threads: one at a time, in the order of the chunks; `queue_chunk` may run beside it.
        """
        cdef int64_t done = 0
        cdef IndexFile owner = self.index_owner
        if chunk.records == NULL or owner is None or self.index == NULL or self.indexing:
            raise StoreStateError("index_chunk: queue_chunk has not returned True for this chunk")
        if not self.stalled:
            self.indexing = True
            with nogil:
                prefault_slots(self.index, chunk.records[chunk.count].first_key,
                              owner.mapped_file.created)
                done = self.put_common_keys(chunk, 0, chunk.count)
            self.indexing = False
            self.stalled = done < chunk.count
        return not self.stalled

    def pass_chunk(self, LogChunk chunk not None):
        """Move `position` to the end of a chunk that is in queues and index."""
        if chunk.records == NULL:
            raise ValueError("a chunk without records")
        self.pass_to(chunk, 0, chunk.count)
        self.signal()

    cdef int64_t queue_rows(self, LogChunk chunk, int64_t first) except -1:
        # Number of the first record from `first` on that only dispatch_file can put.
        cdef const chunk_record *row
        cdef int64_t i
        cdef int32_t number
        # Queues that an earlier call cached may have been destroyed.
        memset(chunk.found, 0, <size_t>(chunk.queues.count + 1) * sizeof(rs_queue *))
        with nogil:
            for i in range(first, chunk.count):
                row = &chunk.records[i]
                number = queue_number_of(row)
                if number < 0 and not row.kind & KIND_REMOVED:
                    continue
                if row.kind & KIND_MULTI and self.multi_dispatch:
                    return i
                if number < 0:
                    continue
                if row.kind & KIND_UNCOMMON:
                    return i
                if self.put_unit(&chunk.found[number], chunk.entries[number],
                                 phy_offset_of(chunk, i), size_of_row(chunk, row),
                                 tags_code_of_row(chunk, i),
                                 queue_offset_of(chunk, i)) == RS_NEED_PYTHON:
                    return i
        return chunk.count

    cdef void pass_to(self, LogChunk chunk, int64_t first, int64_t done) noexcept nogil:
        # Everything before record `done` is dispatched.
        cdef int64_t i
        for i in range(done - 1, first - 1, -1):
            if queue_number_of(&chunk.records[i]) >= 0:
                rs_store_release(&self.logics, store_timestamp_of(chunk, i))
                break
        if done > first:
            rs_store_release(&self.last, phy_offset_of(chunk, done - 1))
            rs_store_release(&self.at, phy_offset_of(chunk, done) if done < chunk.count
                             else chunk.file_from_offset + chunk.end)

    cdef int64_t chunk_into_index(self, LogChunk chunk, int64_t first, int64_t stop,
                                  bint fresh) noexcept nogil:
        # Number of the first record, at most `stop`, whose keys are not all in the index.
        cdef rs_index_file *x = self.index
        cdef int64_t i = first
        if x == NULL or x.index_count >= x.index_num:
            return first
        while i < stop and phy_offset_of(chunk, i) < x.end_phy_offset:
            i += 1
        prefault_index(x, chunk.records[stop].first_key - chunk.records[i].first_key, fresh)
        if i < stop and phy_offset_of(chunk, i) == x.end_phy_offset and not (
                chunk.records[i].kind & KIND_ROLLBACK):
            return i        # may be in the index in part
        return self.put_common_keys(chunk, i, stop)

    cdef int64_t put_common_keys(self, LogChunk chunk, int64_t first,
                                 int64_t stop) noexcept nogil:
        # As chunk_into_index, of records that are not in the index.
        cdef rs_index_file *x = self.index
        cdef int64_t i = first
        cdef int64_t room
        # Only whole records, as many as the file has room for.
        room = chunk.records[i].first_key + (x.index_num - x.index_count)
        while (i < stop and chunk.records[i].first_key < room
               and chunk.records[i + 1].first_key <= room
               and not chunk.records[i].kind & KIND_UNCOMMON):
            i += 1
        return self.put_chunk_keys(chunk, first, i)

    cdef int64_t put_chunk_keys(self, LogChunk chunk, int64_t first,
                                int64_t stop) noexcept nogil:
        # Number of the first record of [first, stop) that the index could not take; or `stop`.
        cdef int64_t[KEY_BATCH] phy_offsets
        cdef int64_t[KEY_BATCH] store_timestamps
        cdef int64_t key = chunk.records[first].first_key
        cdef int64_t begin = key
        cdef int64_t i = first
        cdef int64_t done
        cdef int status
        while i < stop:
            # A record with more keys than a batch continues in the next batch.
            while i < stop and key - begin < KEY_BATCH:
                if key == chunk.records[i + 1].first_key:
                    i += 1
                    continue
                phy_offsets[key - begin] = phy_offset_of(chunk, i)
                store_timestamps[key - begin] = store_timestamp_of(chunk, i)
                key += 1
            done = put_hashes(self.index, chunk.keys + begin, phy_offsets, store_timestamps,
                              key - begin, &status)
            if done < key - begin:
                i = first
                while chunk.records[i + 1].first_key <= begin + done:
                    i += 1
                return i
            begin = key
        return stop
