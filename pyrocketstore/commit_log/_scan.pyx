"""Scans of the commit log: the verdicts of recovery, and the search for the next valid record.

The walks run without the GIL over a `FileWindow`, one buffer that pread refills, or over a buffer
of the caller.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_BAD_MAGIC,
    RS_BAD_SIZE,
    RS_BLANK,
    RS_BLANK_MAGIC_CODE,
    RS_END,
    RS_END_FILE_MIN_BLANK_LENGTH,
    RS_IO_ERROR,
    RS_MESSAGE_MIN_SIZE,
    RS_MESSAGE_POSITION_MAGIC,
    RS_MESSAGE_POSITION_PHYSICAL_OFFSET,
    RS_NO_MEMORY,
    RS_OK,
    RS_TORN,
    rs_load_be32,
    rs_load_be64,
    rs_record,
    rs_status_name,
)
from pyrocketstore.record._record cimport check_record, largest_record
from pyrocketstore.record._text cimport java_text
from pyrocketstore.system._env cimport EnvTable

from pyrocketstore.errors import StoreFormatError, StoreIOError, StoreStateError

cdef enum:
    FIRST_BYTES = 4096       # of a window, that grows with what is asked of it
    READ_ON = 4096
    SEARCH_REPEATS = 64
    SEARCH_EARNED_MAX = 67108864
    SEARCH_FREE_SIZE = 2048  # bytes; these are few enough that they need not be earned


cdef inline uint64_t load64(const uint8_t *p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return word


cdef inline uint64_t mixed(uint64_t h, uint64_t word) noexcept nogil:
    # Only the high half of a product depends on all of its factors' bits.
    h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15ULL
    return h ^ h >> 32


@cython.auto_pickle(False)
cdef class TopicQueueMap:
    """A map from (topic, queue id) to the state of the queue; it is used without the GIL."""
    def __cinit__(self):
        self.capacity = 64
        self.entries = <map_entry *>calloc(self.capacity, sizeof(map_entry))
        if self.entries == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int64_t i
        if self.entries != NULL:
            for i in range(self.capacity):
                free(self.entries[i].topic)
            free(self.entries)

    cdef uint64_t hash_of(self, const uint8_t *topic, int32_t size,
                          int32_t queue_id) noexcept nogil:
        # Eight bytes a step; the last step takes the last eight again, or what there is.
        cdef uint64_t h = <uint32_t>queue_id
        cdef uint64_t word = <uint32_t>size
        cdef int32_t at = 0
        while size - at > 8:
            h = mixed(h, load64(topic + at))
            at += 8
        if size >= 8:
            return mixed(h, load64(topic + size - 8)) | 1
        for at in range(size):
            word = word << 8 | topic[at]
        return mixed(h, word) | 1

    cdef map_entry *slot(self, uint64_t h, const uint8_t *topic, int32_t size,
                         int32_t queue_id) noexcept nogil:
        cdef uint64_t at = h & <uint64_t>(self.capacity - 1)
        cdef map_entry *entry
        while True:
            entry = &self.entries[at]
            if entry.hash == 0:
                return entry
            if (entry.hash == h and entry.queue_id == queue_id and entry.topic_size == size
                    and memcmp(entry.topic, topic, <size_t>size) == 0):
                return entry
            at = (at + 1) & <uint64_t>(self.capacity - 1)

    cdef map_entry *find(self, const uint8_t *topic, int32_t size, int32_t queue_id) noexcept nogil:
        cdef map_entry *entry = self.slot(self.hash_of(topic, size, queue_id), topic, size,
                                          queue_id)
        return NULL if entry.hash == 0 else entry

    cdef map_entry *insert(self, const uint8_t *topic, int32_t size,
                           int32_t queue_id) noexcept nogil:
        # Finds or inserts the entry; NULL without memory.
        cdef map_entry **recent = &self.recent[queue_id & RECENT_ENTRIES - 1]
        cdef map_entry *entry = recent[0]
        cdef uint64_t h
        if (entry != NULL and entry.queue_id == queue_id and entry.topic_size == size
                and memcmp(entry.topic, topic, <size_t>size) == 0):
            return entry
        h = self.hash_of(topic, size, queue_id)
        entry = self.slot(h, topic, size, queue_id)
        if entry.hash != 0:
            recent[0] = entry
            return entry
        if self.count * 2 >= self.capacity:
            if not self.grow():
                return NULL
            entry = self.slot(h, topic, size, queue_id)
        entry.topic = <uint8_t *>malloc(<size_t>(size + 1))
        if entry.topic == NULL:
            return NULL
        memcpy(entry.topic, topic, <size_t>size)
        entry.hash = h
        entry.topic_size = size
        entry.queue_id = queue_id
        entry.number = <int32_t>self.count
        self.count += 1
        recent[0] = entry
        return entry

    cdef bint grow(self) noexcept nogil:
        cdef map_entry *old = self.entries
        cdef int64_t old_capacity = self.capacity
        cdef int64_t i
        cdef map_entry *grown = <map_entry *>calloc(old_capacity * 4, sizeof(map_entry))
        if grown == NULL:
            return False
        self.entries = grown
        self.capacity = old_capacity * 4
        memset(self.recent, 0, sizeof(self.recent))
        for i in range(old_capacity):
            if old[i].hash != 0:
                self.slot(old[i].hash, old[i].topic, old[i].topic_size, old[i].queue_id)[0] = old[i]
        free(old)
        return True

    cdef map_entry *note(self, const uint8_t *p, const rs_record *record) noexcept nogil:
        # Adds a record to the entry of its queue. NULL without memory.
        cdef map_entry *entry = self.insert(p + record.topic_position, record.topic_size,
                                            record.queue_id)
        if entry == NULL:
            return NULL
        if entry.count == 0:
            entry.first_queue_offset = record.queue_offset
            entry.first_phy_offset = record.phy_offset
        entry.next_queue_offset = <int64_t>(<uint64_t>record.queue_offset + 1)
        entry.last_end = record.phy_offset + record.total_size
        entry.count += 1
        return entry

    def add(self, TopicQueueMap later not None):
        """Add the queues that were seen in the part of the log that follows."""
        cdef int64_t i
        cdef map_entry *source
        cdef map_entry *entry
        for i in range(later.capacity):
            source = &later.entries[i]
            if source.hash == 0 or source.count == 0:
                continue
            entry = self.insert(source.topic, source.topic_size, source.queue_id)
            if entry == NULL:
                raise MemoryError()
            if entry.count == 0:
                entry.first_queue_offset = source.first_queue_offset
                entry.first_phy_offset = source.first_phy_offset
            entry.next_queue_offset = source.next_queue_offset
            entry.last_end = source.last_end
            entry.count += source.count

    def seen(self):
        """{(topic, queue_id): (first queue offset, its phy offset, next queue offset, count)}."""
        cdef int64_t i
        cdef dict result = {}
        cdef map_entry *entry
        for i in range(self.capacity):
            entry = &self.entries[i]
            if entry.hash != 0 and entry.count:
                topic = java_text(entry.topic, entry.topic_size)
                result[topic, entry.queue_id] = (entry.first_queue_offset, entry.first_phy_offset,
                                                 entry.next_queue_offset, entry.count)
        return result

    def ends(self):
        """{(topic, queue_id): end of the last record, bytes of the log}."""
        cdef int64_t i
        cdef map_entry *entry
        cdef dict result = {}
        for i in range(self.capacity):
            entry = &self.entries[i]
            if entry.hash != 0 and entry.count:
                topic = java_text(entry.topic, entry.topic_size)
                result[topic, entry.queue_id] = entry.last_end
        return result


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class FileWindow:
    """A range of a file, read with pread into one buffer that is reused.

    A device error, or a file that is truncated while it is read, is a StoreIOError, never a signal.
    """
    def __cinit__(self, EnvTable env, str path):
        self.fd = -1
        self.env = env
        self.capacity = FIRST_BYTES
        self.buffer = <uint8_t *>malloc(self.capacity)
        if self.buffer == NULL:
            raise MemoryError()
        self.open(path)

    def open(self, str path):
        """Read from another file from now on, into the same memory.

        Raises StoreIOError; StoreStateError, another thread reads through this window.
        """
        self.close()
        self.path = path
        self.start = self.size = 0
        self.fd = self.env.open(path, 0)

    def close(self):
        """Close the descriptor. Raises StoreStateError if another thread reads through it."""
        cdef int fd = self.fd
        if self.in_use:
            raise StoreStateError(f"{self.path}: the window is in use")
        if fd >= 0:
            self.fd = -1
            self.env.close(fd)

    def find_record(self, int64_t file_from_offset, int64_t position, int64_t stop, *,
                    bint check_crc):
        """Find the next record after damage, as every walk over the log does.

        The magic code and the stored physicalOffset of the record must be right, its lengths must
        add up, and it must end by `stop`. With `check_crc` its body must match its CRC. Without
        `check_crc` the CRC is required only if the record is followed by damage: neither by a
        record header, a BLANK nor zeros, nor by `stop`.

        Parameters
        ----------
        position, stop : int, bytes into the file; `stop` is where the file, or the part that is
            read, ends
        check_crc : bool, as of the walk that steps over the damage

        Returns
        -------
        int, bytes into the file, at least `position`; -1 where no record begins.

        Raises
        ------
        StoreIOError. StoreStateError: another thread reads through this window.

        Threads: without the GIL. Time grows with the bytes, whatever they are.
        """
        cdef int64_t error = 0
        cdef int64_t found
        check_range(file_from_offset, position, stop)
        self.begin_use()
        try:
            with nogil:
                found = find_record(self, file_from_offset, position, stop, stop, check_crc,
                                    &error)
        finally:
            self.end_use()
        if error < 0:
            raise StoreIOError(<int>-error, "pread", self.path, position)
        return found

    cdef int begin_use(self) except -1:
        # While the GIL is let go, nobody else may move the buffer or close the descriptor.
        if self.in_use:
            raise StoreStateError(f"{self.path}: the window is in use")
        self.in_use = True
        return 0

    cdef void end_use(self) noexcept:
        self.in_use = False

    def __dealloc__(self):
        # Where __cinit__ refused its arguments, every field is zero: the descriptor, too.
        if self.buffer != NULL and self.fd >= 0:
            self.env.table.close(self.fd)
        free(self.buffer)

    cdef int64_t fill(self, int64_t position, int64_t wanted) noexcept nogil:
        # Moves the window to `position`, with up to `wanted` bytes. Returns the count or -errno.
        cdef uint8_t *grown
        cdef int64_t kept = 0
        cdef int64_t got
        if wanted > self.capacity:
            grown = <uint8_t *>realloc(self.buffer, <size_t>wanted)
            if grown == NULL:
                return -12
            self.buffer = grown
            self.capacity = wanted
        if self.start <= position < self.start + self.size:
            kept = self.start + self.size - position
            if kept > wanted:
                kept = wanted
            memcpy_forward(self.buffer, self.buffer + (position - self.start), kept)
        got = self.env.table.pread(self.fd, self.buffer + kept, wanted - kept, position + kept)
        self.start = position
        self.size = kept
        if got < 0:
            return got
        self.size = kept + got
        return self.size


cdef int check_range(int64_t file_from_offset, int64_t position, int64_t stop) except -1:
    # A negative begin is a file of another log; no sum of these numbers may overflow.
    if position < 0 or stop < 0 or file_from_offset < -INT64_MAX // 2 or (
            file_from_offset > 0 and max(position, stop) > INT64_MAX - file_from_offset):
        raise ValueError(
            f"bytes {position} to {stop} of a file at {file_from_offset}: not a valid range")
    return 0


cdef inline void memcpy_forward(uint8_t *target, const uint8_t *source,
                                int64_t size) noexcept nogil:
    cdef int64_t at = 0
    cdef int64_t step = source - target
    cdef int64_t chunk
    if step <= 0:
        return
    while at < size:          # the chunks never overlap: each is at most `step` long
        chunk = step if size - at > step else size - at
        memcpy(target + at, source + at, <size_t>chunk)
        at += chunk


cdef int next_record(FileWindow window, int64_t file_from_offset, bint check_crc,
                     scan_state *state, rs_record *record) noexcept nogil:
    # Checks the record at state.position; its bytes are at `at_position(window, state.position)`.
    cdef int status = checked_record(window, file_from_offset, check_crc, state, record)
    cdef int64_t size
    state.header = 0
    if status == RS_BAD_MAGIC and at_entry(window, file_from_offset, state, &status):
        size = entry_body_size(at_position(window, state.position))
        state.position += ENTRY_HEADER
        if state.position >= state.stop:
            return RS_END       # its record is not in this range
        status = checked_record(window, file_from_offset, check_crc, state, record)
        status = entry_status(status, record.total_size, size)
        if status == RS_OK:
            state.header = ENTRY_HEADER
        else:
            state.position -= ENTRY_HEADER      # nothing of the entry counts
    return status


cdef bint at_entry(FileWindow window, int64_t file_from_offset, scan_state *state,
                   int *status) noexcept nogil:
    # Whether the header of a DLedger entry is at state.position; sets a verdict where none is.
    cdef int64_t left = window.start + window.size - state.position
    cdef int64_t file_left = state.stop - state.position
    cdef int64_t got
    cdef int found = entry_header(at_position(window, state.position), left,
                                  file_from_offset + state.position, file_left)
    if found == ENTRY_TORN and left < file_left:
        got = window.fill(state.position, min(file_left, <int64_t>WINDOW_BYTES))
        if got < 0:
            state.error = got
            status[0] = RS_IO_ERROR
            return False
        found = entry_header(at_position(window, state.position), got,
                             file_from_offset + state.position, file_left)
    if found == ENTRY_END:
        status[0] = RS_BLANK
    return found == ENTRY_HEADER


cdef int checked_record(FileWindow window, int64_t file_from_offset, bint check_crc,
                        scan_state *state, rs_record *record) noexcept nogil:
    cdef const uint8_t *p
    cdef int64_t left, got, wanted
    cdef int status
    while state.position < state.stop:
        left = window.start + window.size - state.position
        if state.position < window.start or left <= 0:
            left = 0
        p = at_position(window, state.position)
        status = RS_TORN
        if left > 0:
            status = check_record(p, left, file_from_offset + state.position, check_crc, record)
        if status != RS_TORN or state.position + left >= state.stop:
            return status
        wanted = WINDOW_BYTES
        if wanted > state.until - state.position:
            # After `until` only the bytes that complete the record there are read.
            wanted = max(state.until - state.position, left + READ_ON)
        if left >= 4 and wanted < rs_load_be32(p) <= largest_record():
            wanted = rs_load_be32(p)
        if wanted > state.stop - state.position:
            wanted = state.stop - state.position
        # More than there is: a torn record is longer than `left`, or its head is.
        got = window.fill(state.position, wanted)
        if got < 0:
            state.error = got
            return RS_IO_ERROR
        if got < wanted:
            state.stop = state.position + got    # the file is shorter than it should be
    return RS_END


cdef void scan_window(FileWindow window, int64_t file_from_offset, bint check_crc,
                      scan_state *state) noexcept nogil:
    # Goes from state.position to the first record that fails, a BLANK, or state.stop.
    cdef rs_record record
    while True:
        state.status = next_record(window, file_from_offset, check_crc, state, &record)
        if state.status != RS_OK:
            return
        state.last_store_timestamp = record.store_timestamp
        state.count += 1
        state.position += record.total_size


def scan_file(EnvTable env, str path, int64_t file_from_offset, int64_t position, int64_t stop,
              bint check_crc):
    """Check the records of one commit log file from `position` up to `stop`.

    Parameters
    ----------
    position, stop : int, bytes into the file
    check_crc : bool, compare each body with its CRC

    Returns
    -------
    (status, position, count, last_store_timestamp): the verdict that ended the scan (an rs_status),
    where, how many records passed, and the store time of the last (ms)

    Raises
    ------
    StoreIOError with path and position

    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #checkMessageAndReturnSize.
    """
    cdef FileWindow window = FileWindow(env, path)
    cdef scan_state state
    check_range(file_from_offset, position, stop)
    memset(&state, 0, sizeof(state))
    state.position = position
    state.until = state.stop = stop
    with nogil:
        scan_window(window, file_from_offset, check_crc, &state)
    window.close()
    if state.error < 0:
        raise StoreIOError(<int>-state.error, "pread", path, state.position)
    return state.status, state.position, state.count, state.last_store_timestamp


def status_name(int status):
    """The English name of a verdict."""
    return rs_status_name(status).decode("ascii")


def verdict_of(int status, bint is_full):
    """The text of a verdict on a record; `is_full`: its file has its whole length, so that a record
    past the file's end has an invalid size."""
    if status == RS_TORN and is_full:
        return "invalid size: the record would continue past the end of the file"
    return status_name(status)


cdef bint _may_follow(const uint8_t *p, int64_t left, int64_t end) noexcept nogil:
    # True if the bytes after a record may be valid log; the log ends after `end` bytes.
    cdef int32_t magic
    if end == 0 or left < RS_END_FILE_MIN_BLANK_LENGTH:
        return True  # or they are not there to be looked at
    magic = rs_load_be32(p + RS_MESSAGE_POSITION_MAGIC)
    return (is_message_magic(magic) or magic == RS_BLANK_MAGIC_CODE
            or rs_load_be64(p) == 0)


cdef int64_t find_record(FileWindow window, int64_t file_from_offset, int64_t position,
                         int64_t limit, int64_t stop, bint check_crc,
                         int64_t *error) noexcept nogil:
    # Records do not overlap, but bytes that were made to look like many of them may: loading or
    # checksumming a large record costs its size, and each byte that the search passes earns
    # SEARCH_REPEATS bytes, so that time grows with the bytes.
    cdef rs_record record
    cdef int64_t got, at, size, needed
    cdef int64_t earned = SEARCH_EARNED_MAX
    cdef int64_t last = position
    cdef bint is_paid
    while position < limit:
        got = window.fill(position, min(stop - position, <int64_t>WINDOW_BYTES))
        if got < 0:
            error[0] = got
            return -1
        if got < RS_MESSAGE_MIN_SIZE:
            return -1
        at = find_magic(window.buffer, RS_MESSAGE_POSITION_MAGIC, got)
        while at >= 0:
            at -= RS_MESSAGE_POSITION_MAGIC
            if stop - (position + at) < RS_MESSAGE_MIN_SIZE:
                return -1
            size = rs_load_be32(window.buffer + at)
            if RS_MESSAGE_MIN_SIZE <= size <= min(stop - (position + at), largest_record()):
                if at + RS_MESSAGE_MIN_SIZE > got:
                    break  # its header continues after the window
                earned = min(earned + SEARCH_REPEATS * (position + at - last),
                             <int64_t>SEARCH_EARNED_MAX)
                last = position + at
                is_paid = size <= SEARCH_FREE_SIZE
                if (rs_load_be64(window.buffer + at + RS_MESSAGE_POSITION_PHYSICAL_OFFSET)
                        == file_from_offset + position + at):
                    needed = size
                    if not check_crc:
                        needed = min(size + RS_END_FILE_MIN_BLANK_LENGTH, stop - (position + at))
                    if at + needed > got and (is_paid or earned > 0):
                        # Look at it whole, and go on from there.
                        if not is_paid:
                            earned -= size
                            is_paid = True
                        position += at
                        at = 0
                        got = window.fill(position, min(stop - position,
                                                        max(needed, <int64_t>WINDOW_BYTES)))
                        if got < 0:
                            error[0] = got
                            return -1
                    if not check_crc and at + size <= got and check_record(
                            window.buffer + at, size, -1, False, &record) == RS_OK and (
                            _may_follow(window.buffer + at + size, got - at - size,
                                        stop - (position + at + size))):
                        return position + at
                    if not is_paid and earned > 0:
                        earned -= size
                        is_paid = True
                    if is_paid and check_record(window.buffer + at, got - at, -1, True,
                                                &record) == RS_OK:
                        return position + at
            at = find_magic(window.buffer, at + RS_MESSAGE_POSITION_MAGIC + 1, got)
        if at < 0:  # the last bytes may begin a record or its magic code
            at = got - (RS_MESSAGE_POSITION_MAGIC + 3)
        position += at
        if got < WINDOW_BYTES and position + RS_MESSAGE_MIN_SIZE > stop:
            return -1
    return -1


def find_valid_record(EnvTable env, str path, int64_t file_from_offset, int64_t position,
                      int64_t stop, *, bint check_crc):
    """`FileWindow.find_record` of a file that is opened for this search alone."""
    cdef FileWindow window = FileWindow(env, path)
    try:
        return window.find_record(file_from_offset, position, stop, check_crc=check_crc)
    finally:
        window.close()


# The minimum of each topic of which a part was removed, for the loops over records.

@cython.final
@cython.auto_pickle(False)
cdef class TopicMinOffsets:
    """The physical offsets before which messages of a topic are removed.

    Parameters
    ----------
    table : {topic: physical offset (bytes in the log), > 0}

    Threads: any. It never changes: a removal makes another one.
    """
    def __cinit__(self, table):
        cdef bytes name
        cdef int64_t offset
        cdef map_entry *entry
        self.topics = TopicQueueMap()
        self.table = dict(table)
        for topic, offset in self.table.items():
            if offset <= 0:
                raise ValueError(f"{topic!r}: the minimum {offset} is not positive")
            name = topic.encode()
            entry = self.topics.insert(<const uint8_t *><char *>name, <int32_t>len(name), 0)
            if entry == NULL:
                raise MemoryError()
            entry.first_phy_offset = offset
            self.highest = max(self.highest, offset)

    cdef bint removes_known(self, const uint8_t *topic, int32_t size,
                            int64_t phy_offset) noexcept nogil:
        cdef const map_entry *entry = self.topics.find(topic, size, 0)
        return entry != NULL and phy_offset < entry.first_phy_offset

    def of(self, topic):
        """Return the minimum of a topic, bytes of the log; 0 without one."""
        return self.table.get(topic, 0)

    def by_topic(self):
        """Return {topic: minimum} of the topics that have one."""
        return self.table.copy()

    def __bool__(self):
        return self.highest > 0


# Find the records of the log in a buffer: bytes of a file, or its mapping.
#
# The loop of `_scan.next_record` reads a file; here a torn record is the caller's to complete.

cdef enum:
    FIRST_ROOM = 1024  # records


# ---- the walk --------------------------------------------------------------------------------

ctypedef struct walk_state:
    int64_t *positions
    int32_t *sizes
    int64_t count
    int64_t room
    int64_t position  # of the next record


cdef int _more_room(walk_state *w) noexcept nogil:
    cdef int64_t room = 2 * w.room if w.room else FIRST_ROOM
    cdef void *positions = realloc(w.positions, room * sizeof(int64_t))
    cdef void *sizes
    if positions == NULL:
        return -1
    w.positions = <int64_t *>positions
    sizes = realloc(w.sizes, room * sizeof(int32_t))
    if sizes == NULL:
        return -1
    w.sizes = <int32_t *>sizes
    w.room = room
    return 0


cdef int _walk(
    walk_state *w,
    const uint8_t *p,
    int64_t size,
    int64_t stop,
    int64_t phy_offset,
    int64_t end,
    bint check_crc,
) noexcept nogil:
    """Walk to `stop`, or to the first bytes that are not a whole record; return the verdict."""
    cdef rs_record record
    cdef int status, header
    cdef int64_t at, body_size
    while w.position < stop:
        at = w.position
        status = check_record(p + at, size - at, phy_offset + at, check_crc, &record)
        if status == RS_BAD_MAGIC:
            header = entry_header(p + at, size - at, phy_offset + at, end - at)
            if header == ENTRY_END:
                return RS_BLANK
            if header == ENTRY_TORN:
                return RS_TORN
            if header == ENTRY_HEADER:
                at += ENTRY_HEADER
                if at >= stop:
                    w.position = at
                    return RS_OK  # the record begins in the next range
                status = check_record(p + at, size - at, phy_offset + at, check_crc, &record)
                body_size = entry_body_size(p + w.position)
                status = entry_status(status, record.total_size, body_size)
        if (status == RS_OK or status == RS_TORN) and record.total_size > end - at:
            return RS_BAD_SIZE
        if status != RS_OK:
            return status
        w.position = at
        if w.count == w.room and _more_room(w) < 0:
            return RS_NO_MEMORY
        w.positions[w.count] = w.position
        w.sizes[w.count] = record.total_size
        w.count += 1
        w.position += record.total_size
    return RS_OK


cdef object _taken(const void *values, int64_t count, object dtype):
    taken = np.empty(count, dtype)
    cdef uint8_t[::1] memory
    if count:
        memory = taken.view(np.uint8)
        memcpy(&memory[0], values, memory.shape[0])
    return taken


cdef int _check_place(int64_t position, int64_t phy_offset, int64_t size) except -1:
    if not 0 <= position <= size:
        raise StoreFormatError(f"position {position}: must be 0 to {size}, the bytes of the data")
    if not 0 <= phy_offset <= INT64_MAX - size:
        raise StoreFormatError(f"phy_offset {phy_offset}: must be 0 to 2**63 - 1 - {size}")
    return 0


def walk_records(
    data,
    int64_t position,
    int64_t stop,
    int64_t phy_offset,
    *,
    end=None,
    bint check_crc=False,
) -> "tuple[np.ndarray, np.ndarray, int, int]":
    """Return the records that begin in data[position:stop], up to the first bytes that are not one.

    Parameters
    ----------
    data : bytes-like, bytes of one log file; it may continue after `stop`, so that the last record
        is whole
    position, stop : int, bytes into `data`; a record begins at `position`
    phy_offset : int, physical offset of data[0]; each record must store its own physical offset
    end : int or None, bytes from data[0]: the end of the file, or of the part that is read; a
        record that ends after it has a bad size. None: no such limit
    check_crc : bool, compare each body with its CRC

    Returns
    -------
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes
    next_position : int, bytes into `data`: the end of the last record; at least `stop` with RS_OK
    status : int, rs_status (_scan.status_name has its text): RS_OK (0) at `stop` or at the end of
        the data, else the verdict on the bytes at next_position: RS_BLANK (1) at the end of the
        file's records, RS_END (2) at zeros, RS_TORN (3) at a record that continues after the data,
        RS_BAD_MAGIC (4), RS_BAD_CRC (5), RS_BAD_SIZE (6), RS_BAD_OFFSET (7)

    Raises
    ------
    StoreFormatError: `position` or `phy_offset` is out of range. Damaged data raises nothing.

    Threads: the GIL is released. Bytes that change during the walk change only the result.
    """
    cdef Py_buffer view
    cdef walk_state w = walk_state(NULL, NULL, 0, 0, position)
    cdef int64_t limit = INT64_MAX if end is None else end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_place(position, phy_offset, view.len)
        stop = min(stop, view.len, limit)
        with nogil:
            status = _walk(
                &w, <const uint8_t *>view.buf, view.len, stop, phy_offset, limit, check_crc
            )
        if status == RS_NO_MEMORY:
            raise MemoryError
        return (
            _taken(w.positions, w.count, np.int64), _taken(w.sizes, w.count, np.int32),
            w.position, status,
        )
    finally:
        free(w.positions)
        free(w.sizes)
        PyBuffer_Release(&view)
