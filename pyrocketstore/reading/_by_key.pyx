"""Messages by key: from the index to the records in one call.

The rules of `Store.query`: the newest hits first, each once; keys are compared exactly unless the
caller disables it; a record counts only at its own physical offset.
"""
cimport cython
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.errno cimport ENOENT
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

import numpy as np

from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.index._file cimport IndexFile, close_reader, open_reader
from pyrocketstore.index._entries cimport (
    entry_position,
    index_key_hash,
    index_key_prefix,
    index_order,
    index_reader,
    index_walk,
    load_next,
    newest_entry,
    number_of_key,
    numbers_in_window,
    phy_offset_of,
    prefetch_hash_of,
    start_walk,
    walk_chain,
)
from pyrocketstore.files._mapped_file cimport FileSequence, MappedFile
from pyrocketstore.record._message cimport MessageExt, message_from_record
from pyrocketstore.record._record cimport (
    HEADER_BYTES,
    check_record,
    is_java_text,
    largest_record,
    parse_record,
    scan_properties,
    store_time_in,
)
from pyrocketstore.reading._messages cimport RecordBytes
from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE, RS_OK, rs_index_file, rs_load_acquire, rs_load_acquire32, rs_load_be32,
    rs_load_be64, rs_mapped_file, rs_prefetch_read, rs_properties, rs_record, rs_span,
    rs_store_release,
)
from pyrocketstore.record._text cimport utf8_bytes

from pyrocketstore.errors import StoreCorruptionError, StoreIOError, without_frames

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)

cdef extern from "<string.h>" nogil:
    void *memmem(const void *p, size_t size, const void *part, size_t part_size) noexcept

cdef enum:
    FIRST_ROOM = 32          # hits of the first step of a walk, and of its largest
    MAX_ROOM = 256
    CHUNK = 64               # keys whose memory is prefetched
    WARM_FILES = 2           # of the newest index files
    CACHE_LINE = 64
    COPIED_BYTES = 1152      # prefetched of a record that will be copied, of unknown size
    READ_BYTES = 2048        # of the first read of a record of unknown size, before any is known
    MIN_READ_BYTES = 256
    MAX_READ_BYTES = 8192
    FADING = 32              # a larger size than the last one is forgotten by such a part
    NEAR_BYTES = 2048        # between records that are read together
    MAX_HELD_GIL = 64        # hits; a search for more releases the GIL
    # Of a search in a window of time, entries: steps along a chain before the times of the file are
    # looked at, in files of few entries and of many, and where the times are known; records looked
    # at in one search; entries that are looked at in place of the next steps.
    MIN_STEPS = 1024
    ENTRIES_A_STEP = 64
    KNOWN_STEPS = 64
    MAX_ZEROS = 262144
    FIRST_LOOK = 4096
    AHEAD_BYTES = 65536      # read with the header of a record
    AHEAD = 8                # messages whose memory is prefetched while one is made
    FEW_HITS = 8             # hits that need no memory of their own
    FEW_WORDS = 64
    MAX_UNREADABLE = 65536   # physical offsets that a call reports

cdef int64_t MAX_COUNT = <int64_t>1 << 62
cdef const uint8_t *REPLACEMENT = <const uint8_t *>b"\xef\xbf\xbd"


# A matching record; `record` is its mapped address, or NULL.
cdef struct key_hit:
    const uint8_t *record
    int64_t phy_offset
    int64_t queue_offset
    int32_t queue_id
    int32_t size


# The wanted text, UTF-8. `loose`: it contains U+FFFD, which replaces malformed bytes of a record.
cdef struct wanted_key:
    const uint8_t *topic
    const uint8_t *key
    int64_t topic_size
    int64_t key_size
    int32_t prefix
    int32_t key_hash
    bint loose
    bint never


cdef int by_phy_offset(const void *a, const void *b) noexcept nogil:
    cdef int64_t left = (<const key_hit *>a).phy_offset
    cdef int64_t right = (<const key_hit *>b).phy_offset
    return (left > right) - (left < right)


# ---- comparison with the key -------------------------------------------------------------------

cdef inline bint same_text(
    const uint8_t *p, int64_t size, const uint8_t *text, int64_t text_size, bint loose
) noexcept nogil:
    """Return True if bytes of a record are that text after Java's decoding."""
    if loose:
        return is_java_text(p, size, text, text_size)
    return size == text_size and memcmp(p, text, size) == 0


cdef bint has_key(
    const uint8_t *text, rs_span keys, const wanted_key *w
) noexcept nogil:
    """Return True if one of the blank-separated keys matches. Without KEYS the key is ""."""
    cdef const uint8_t *at = text + keys.position
    cdef const uint8_t *stop
    cdef const uint8_t *end
    if keys.size < 0:
        return w.key_size == 0
    stop = at + keys.size
    while True:
        end = <const uint8_t *>memchr(at, 32, stop - at)
        if end == NULL:
            end = stop
        if same_text(at, end - at, w.key, w.key_size, w.loose):
            return True
        if end == stop:
            return False
        at = end + 1


cdef bint is_wanted(
    const uint8_t *p, const rs_record *r, const wanted_key *w, rs_properties *properties
) noexcept nogil:
    """Return True if a record matches; `properties` then has the positions of its properties."""
    cdef const uint8_t *text = p + r.properties_position
    if w.never or not same_text(
        p + r.topic_position, r.topic_size, w.topic, w.topic_size, w.loose
    ):
        return False
    scan_properties(text, r.properties_size, properties)
    if properties.uniq_key.size >= 0 and same_text(
        text + properties.uniq_key.position, properties.uniq_key.size, w.key, w.key_size, w.loose
    ):
        return True
    return has_key(text, properties.keys, w)


# ---- the log's files ---------------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class LogTable:
    """Pointers to the files of the log, for one state of the file sequence."""

    def __cinit__(self, FileSequence files not None, int64_t file_size):
        cdef Py_ssize_t i
        if file_size < 1:
            raise ValueError(f"file_size {file_size}: must be positive")
        self.files = files
        self.file_size = file_size
        self.count = files.count
        self.read_bytes = READ_BYTES
        self.table = <rs_mapped_file **>calloc(max(self.count, 1), sizeof(rs_mapped_file *))
        if self.table == NULL:
            raise MemoryError
        for i in range(self.count):
            self.table[i] = &files.at(i).file

    def __dealloc__(self):
        free(self.table)

    cdef void note_size(self, int64_t size) noexcept nogil:
        """Have the next first read take a record of this size whole, also if it is a little larger.

        Most records of a store have nearly the same size. Sizes that alternate keep the largest.
        Threads: any; a note of another thread may be lost.
        """
        cdef int64_t before = rs_load_acquire(&self.read_bytes)
        cdef int64_t wanted = (size + 2 * CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
        wanted = max(wanted, <int64_t>MIN_READ_BYTES, before - before // FADING)
        wanted = min(wanted, <int64_t>MAX_READ_BYTES)
        if wanted != before:
            rs_store_release(&self.read_bytes, wanted)

    cdef Py_ssize_t find(self, int64_t phy_offset) noexcept nogil:
        """Return the index of the file with that byte, or -1."""
        cdef Py_ssize_t i
        if self.count == 0 or phy_offset < self.table[0].file_from_offset:
            return -1
        i = (phy_offset - self.table[0].file_from_offset) // self.file_size
        if i < self.count and (
            0 <= phy_offset - self.table[i].file_from_offset < self.file_size
        ):
            return i
        for i in range(self.count):  # a file is missing in between
            if 0 <= phy_offset - self.table[i].file_from_offset < self.file_size:
                return i
        return -1


cdef int no_memory() except -1 with gil:
    raise MemoryError


# ---- one search --------------------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
@cython.no_gc
@cython.freelist(8)
cdef class _Search:
    """One call: the files that it holds, and its hits. `close` releases everything."""

    cdef wanted_key wanted
    cdef int64_t begin
    cdef int64_t end
    cdef int64_t removed_before     # records of the topic before this byte are removed
    cdef int64_t max_num
    cdef bint exact
    cdef LogTable log
    cdef int64_t log_end
    cdef uint8_t *held            # one byte a log file: 1 for a held file
    cdef tuple index_files
    cdef Py_ssize_t index_count
    cdef index_reader *readers
    cdef rs_index_file **index
    cdef index_order **orders
    cdef uint8_t *opened          # one byte an index file: 0 not yet, 1 open, 2 gone
    cdef RecordBytes source
    cdef int64_t guess            # bytes of the first read of a record
    cdef int64_t next_offset      # physical offset after the last record
    cdef key_hit *hits
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef bint descending          # the hits so far have descending physical offsets
    cdef set seen
    cdef const int64_t *extra     # offsets with this key that the index lacks, ascending
    cdef int64_t extra_count
    cdef list unreadable          # physical offsets in the log without a record; None: none yet
    cdef key_hit[FEW_HITS] few_hits
    cdef int64_t[FEW_WORDS] few_words
    # The last record of `record_at`. A hit need not be parsed again: parsed_offset is its physical
    # offset then, and -1 otherwise.
    cdef int64_t parsed_offset
    cdef rs_record parsed
    cdef rs_properties spans

    def __cinit__(self):
        self.hits = self.few_hits
        self.capacity = FEW_HITS

    def __dealloc__(self):
        if self.hits != self.few_hits:
            free(self.hits)
        if <void *>self.readers != <void *>self.few_words:
            free(self.readers)

    cdef int open(self, LogTable log, int64_t log_end, tuple index_files) except -1:
        self.log = log
        self.log_end = log_end
        self.index_files = index_files
        self.index_count = PyTuple_GET_SIZE(index_files)
        # One allocation: readers, index, orders, opened, held.
        cdef Py_ssize_t each = sizeof(index_reader) + 2 * sizeof(void *) + 1
        cdef Py_ssize_t size = self.index_count * each + log.count
        self.readers = <index_reader *>self.few_words
        if size > <Py_ssize_t>sizeof(self.few_words):
            self.readers = <index_reader *>calloc(size, 1)
        if self.readers == NULL:
            raise MemoryError
        self.index = <rs_index_file **>(self.readers + self.index_count)
        self.orders = <index_order **>(self.index + self.index_count)
        self.opened = <uint8_t *>(self.orders + self.index_count)
        self.held = self.opened + self.index_count
        return 0

    cdef int close(self) except -1:
        """Release everything, whatever fails; raise the first failure."""
        cdef Py_ssize_t i
        cdef object failure = None
        if self.source is not None:
            self.source.let_go()
        for i in range(self.log.count):
            if self.held[i]:
                self.held[i] = 0
                self.log.files.at(i).drop_hold()
        for i in range(self.index_count):
            if self.opened[i] == 1:
                self.opened[i] = 2
                try:
                    close_reader(<IndexFile>self.index_files[i], &self.readers[i])
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return 0

    # ---- holding, with the GIL ----------------------------------------------------------------

    cdef int hold_log(self, Py_ssize_t i) except -1 with gil:
        if self.log.files.at(i).take_hold():
            self.held[i] = 1
            return 1
        return 0

    cdef int open_index(self, Py_ssize_t i) except -1 with gil:
        cdef IndexFile index_file = <IndexFile?>self.index_files[i]
        self.opened[i] = 2
        try:
            if open_reader(index_file, &self.readers[i]):
                self.index[i] = &index_file.index
                self.orders[i] = &index_file.order
                self.opened[i] = 1
        except StoreIOError as error:
            # Another process owns the store: its cleaner deletes a file whose records are gone.
            if error.errno != ENOENT or not self.has_expired(index_file):
                raise
        return 0

    cdef bint has_expired(self, IndexFile index_file) except -1:
        """Whether the log has lost the last record that an index file names.

        A damaged header may name a record after the log's end or between two files. The log loses
        its oldest files first, so the last file that begins before that record decides.
        """
        cdef int64_t last = index_file.end_phy_offset
        cdef Py_ssize_t i = self.log.count - 1
        while i >= 0 and self.log.table[i].file_from_offset > last:
            i -= 1
        if i < 0:
            return index_file.begin_phy_offset <= last
        try:
            self.log.files.at(i).read(0, 1)
        except StoreIOError as error:
            return error.errno == ENOENT
        return False

    cdef const uint8_t *read(
        self, Py_ssize_t i, int64_t position, int64_t size, int64_t stop
    ) except? NULL with gil:
        """Return bytes of a file of the log; NULL if its owner deleted it."""
        if self.source is None:
            self.source = RecordBytes.__new__(RecordBytes)
            self.source.keeps = True
        try:
            return self.source.at(self.log.files.at(i), position, size, stop)
        except StoreIOError as error:
            if error.errno != ENOENT:
                raise
            return NULL

    cdef bint was_seen(self, int64_t phy_offset) except -1 with gil:
        cdef Py_ssize_t i
        if self.descending:
            self.descending = False
            self.seen = {self.hits[i].phy_offset for i in range(self.count)}
        if phy_offset in self.seen:
            return True
        self.seen.add(phy_offset)
        return False

    # ---- one record ----------------------------------------------------------------------------

    cdef const uint8_t *record_at(self, int64_t phy_offset) except? NULL nogil:
        """Return the record at a physical offset, parsed into `parsed`; NULL without one."""
        cdef Py_ssize_t i
        cdef rs_mapped_file *file
        cdef int64_t position, wrote, size
        cdef const uint8_t *p
        self.parsed_offset = -1
        if phy_offset < 0 or phy_offset > self.log_end - 4:
            return NULL
        i = self.log.find(phy_offset)
        if i < 0 or (not self.held[i] and not self.hold_log(i)):
            return NULL
        file = self.log.table[i]
        position = phy_offset - file.file_from_offset
        wrote = rs_load_acquire(&file.wrote)
        if position > wrote - 4:
            return NULL
        p = file.base
        if p != NULL:
            p += position
        else:
            self.guess_size(phy_offset)
            p = self.read(i, position, 4, min(position + self.guess, wrote))
            if p == NULL:
                return NULL
        size = rs_load_be32(p)
        if size <= 0 or size > self.log_end - phy_offset or size > wrote - position:
            return NULL
        if size > largest_record():
            return NULL
        if file.base == NULL:
            self.next_offset = phy_offset + size
            p = self.read(i, position, size, position + size)
            if p == NULL:
                return NULL
        if check_record(p, size, phy_offset, False, &self.parsed) != RS_OK:
            return NULL
        if file.base == NULL:
            self.log.note_size(size)
        return p

    cdef void guess_size(self, int64_t phy_offset) noexcept nogil:
        """Set the bytes that a read of a record takes: more while records follow each other."""
        if 0 <= phy_offset - self.next_offset < NEAR_BYTES and self.guess > 0:
            self.guess = min(2 * self.guess, <int64_t>AHEAD_BYTES)
        else:
            self.guess = rs_load_acquire(&self.log.read_bytes)

    cdef bint is_repeat(self, int64_t phy_offset) except -1 nogil:
        """Return True if a hit with this physical offset exists.

        An index names the newest record first, unless it was rebuilt or is damaged.
        """
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.count
        cdef Py_ssize_t middle
        if self.descending:
            if phy_offset < self.hits[self.count - 1].phy_offset:
                return False
            while low < high:
                middle = (low + high) // 2
                if self.hits[middle].phy_offset > phy_offset:
                    low = middle + 1
                else:
                    high = middle
            if self.hits[low].phy_offset == phy_offset:
                return True
        return self.was_seen(phy_offset)

    cdef int consider(self, int64_t phy_offset) except -1 nogil:
        """Add the record at that offset if it matches."""
        cdef const rs_record *record = &self.parsed
        cdef const uint8_t *p
        if phy_offset < self.removed_before:
            return 0
        p = self.record_at(phy_offset)
        if p == NULL:
            return self.note_unreadable(phy_offset)
        if not self.begin <= record.store_timestamp <= self.end:
            return 0
        if self.exact and not is_wanted(p, record, &self.wanted, &self.spans):
            return 0
        if self.count > 0 and self.is_repeat(phy_offset):
            return 0
        if self.count == self.capacity:
            self.grow()
        self.hits[self.count].record = p if self.source is None else NULL
        self.hits[self.count].phy_offset = phy_offset
        self.hits[self.count].queue_offset = record.queue_offset
        self.hits[self.count].queue_id = record.queue_id
        self.hits[self.count].size = record.total_size
        self.count += 1
        self.parsed_offset = phy_offset
        return 0

    cdef int note_unreadable(self, int64_t phy_offset) except -1 nogil:
        """Note an offset without a record, unless it has expired or is after the log's end."""
        if (
            self.log.count > 0
            and self.log.table[0].file_from_offset <= phy_offset <= self.log_end - 4
        ):
            self.add_unreadable(phy_offset)
        return 0

    cdef int add_unreadable(self, int64_t phy_offset) except -1 with gil:
        if self.unreadable is None:
            self.unreadable = []
        if len(self.unreadable) < MAX_UNREADABLE:
            self.unreadable.append(phy_offset)
        return 0

    cdef MessageExt message(self, const key_hit *hit):
        """Return the message of a hit; None: the file has changed meanwhile."""
        cdef MessageExt message
        cdef const uint8_t *p = hit.record
        if p != NULL and hit.phy_offset == self.parsed_offset:
            message = message_from_record(p, &self.parsed)
            message._spans = self.spans
            message._scanned = self.exact
            return message
        if p == NULL:
            p = self.record_at(hit.phy_offset)
        else:
            self.parsed_offset = -1
            if parse_record(p, hit.size, &self.parsed) != RS_OK:
                return None
        return None if p == NULL else message_from_record(p, &self.parsed)

    cdef int grow(self) except -1 nogil:
        cdef key_hit *old = self.hits if self.hits != self.few_hits else NULL
        cdef size_t size = 2 * self.capacity * sizeof(key_hit)
        cdef key_hit *grown = <key_hit *>realloc(old, size)
        if grown == NULL:
            no_memory()
        if old == NULL:
            memcpy(grown, self.few_hits, sizeof(self.few_hits))
        self.hits = grown
        self.capacity *= 2
        return 0

    # ---- the index -----------------------------------------------------------------------------

    cdef int collect(self, bint copied) except -1 nogil:
        """Collect the newest `max_num` hits of the key, in ascending order.

        `copied`: the records will be copied, so more of each is prefetched.
        """
        cdef Py_ssize_t i = self.index_count - 1
        self.count = 0
        self.descending = True
        while i >= 0 and self.count < self.max_num:
            if self.opened[i] == 0 and not (self.has_window() and self.is_outside(i)):
                self.open_index(i)
            if self.opened[i] == 1:
                self.collect_file(i, copied)
            i -= 1
        if self.extra_count > 0 and self.max_num > 0:
            self.collect_extra()
        if self.count > 1:
            self.sort()
        if self.count > self.max_num > 0:  # the newest of both
            memmove(self.hits, self.hits + self.count - self.max_num,
                    self.max_num * sizeof(key_hit))
            self.count = self.max_num
        return 0

    cdef int collect_extra(self) except -1 nogil:
        """Add the newest `max_num` of `extra`."""
        cdef int64_t i
        cdef int64_t stop = self.max_num + self.count
        for i in range(self.extra_count - 1, -1, -1):
            if self.count >= stop:
                break
            self.consider(self.extra[i])
        return 0

    cdef void sort(self) noexcept nogil:
        cdef Py_ssize_t i, j
        cdef key_hit hit
        if not self.descending:
            qsort(self.hits, self.count, sizeof(key_hit), by_phy_offset)
            return
        for i in range(self.count // 2):
            j = self.count - 1 - i
            hit = self.hits[i]
            self.hits[i] = self.hits[j]
            self.hits[j] = hit

    cdef int collect_file(self, Py_ssize_t number, bint copied) except -1 nogil:
        cdef int64_t[MAX_ROOM] phy_offsets
        cdef int64_t[MAX_ROOM] times
        cdef index_reader *reader = &self.readers[number]
        cdef index_walk walk
        cdef int64_t room, found, i
        walk.key_hash = self.wanted.key_hash
        walk.begin = max(self.begin, -MAX_COUNT)
        walk.end = self.end
        walk.every = 1
        if start_walk(self.index[number], reader, &walk) != RS_OK:
            return self.raise_failed(number)
        room = FIRST_ROOM
        if self.has_window():
            walk.steps = self.steps_before_order(number)
        while walk.next_index > 0 and self.count < self.max_num:
            if walk.steps <= 0:
                walk.steps = MAX_COUNT
                self.skip_by_time(number, &walk)
                continue
            found = walk_chain(
                reader, &walk, min(room, self.max_num - self.count), phy_offsets, times
            )
            if found < 0:
                return self.raise_failed(number)
            for i in range(found):
                self.prefetch(phy_offsets[i], COPIED_BYTES if copied else CACHE_LINE)
            for i in range(found):
                self.consider(phy_offsets[i])
            room = min(4 * room, <int64_t>MAX_ROOM)
        return 0

    # ---- the index and time ------------------------------------------------------------------

    cdef inline bint has_window(self) noexcept nogil:
        return self.begin > 0 or self.end < INT64_MAX

    cdef bint is_outside(self, Py_ssize_t number) except -1 with gil:
        """Whether all entries of a full file are known to be outside of the window."""
        cdef IndexFile index_file = <IndexFile?>self.index_files[number]
        cdef rs_index_file *x = &index_file.index
        return (index_file.order.known >= x.index_num and not index_file.order.unordered
                and x.begin_timestamp > self.end)

    cdef int64_t steps_before_order(self, Py_ssize_t number) noexcept nogil:
        """How far a chain is followed before the times of the file are looked at.

        That costs about as much for each entry as a few hundredths of a step of the chain.
        """
        cdef int64_t left = rs_load_acquire32(&self.index[number].index_count)
        left -= self.orders[number].known
        if left <= 0:  # only a few entries have to be looked at
            return KNOWN_STEPS
        return max(<int64_t>MIN_STEPS, left // ENTRIES_A_STEP)

    cdef int skip_by_time(self, Py_ssize_t number, index_walk *walk) except -1 nogil:
        """Move a walk over a long chain to the next entry that may be in the window."""
        cdef const rs_index_file *x = self.index[number]
        cdef index_reader *reader = &self.readers[number]
        cdef int32_t low = 0, high = 0, found
        cdef int32_t known = self.learn_order(number, walk)
        if walk.next_index >= known:
            walk.steps = max(<int64_t>MIN_STEPS, <int64_t>(walk.next_index - known))
            return 0
        if numbers_in_window(x, reader, walk, known, &low, &high) != RS_OK:
            return self.raise_failed(number)
        walk.low = low if low > 2 else 1  # the first entry's time is in the header
        if walk.next_index <= high or walk.next_index == 1:
            return 0
        found = number_of_key(x, reader, walk, low, high, FIRST_LOOK + walk.next_index - high)
        if found == 0 and low == 2:
            found = number_of_key(x, reader, walk, 1, 1, FIRST_LOOK)
        if found == -1:
            return self.raise_failed(number)
        if found >= 0:
            walk.next_index = found
        return 0

    cdef int32_t learn_order(self, Py_ssize_t number, const index_walk *walk) except -1 nogil:
        """Look at the times of entries that are not known to ascend; return `known` of the order.

        A clock that was set back leaves entries of 0 seconds. Their records have the times.
        """
        cdef const rs_index_file *x = self.index[number]
        cdef index_order order
        cdef int32_t stop = rs_load_acquire32(&x.index_count)
        cdef int32_t zeros = 0
        cdef int32_t diff
        cdef const uint8_t *p
        stop = <int32_t>min(<int64_t>stop, x.index_num)
        self.get_order(number, &order)
        if order.unordered or order.known >= stop or walk.base_timestamp <= 0:
            return order.known
        while order.known < stop and zeros < MAX_ZEROS:
            p = load_next(
                &self.readers[number], entry_position(x.hash_slot_num, order.known),
                RS_INDEX_ENTRY_SIZE, entry_position(x.hash_slot_num, stop),
            )
            if p == NULL:
                return self.raise_failed(number)
            diff = rs_load_be32(p + 12)
            if diff == 0:
                zeros += 1
            if diff < order.diff or (
                diff == 0 and not self.is_stored_since(walk.base_timestamp, rs_load_be64(p + 4))
            ):
                order.unordered = 1
                break
            order.diff = diff
            order.known += 1
        self.note_order(number, &order)
        return order.known

    cdef int get_order(self, Py_ssize_t number, index_order *order) except -1 with gil:
        order[0] = self.orders[number][0]
        order.known = max(order.known, 2)
        return 0

    cdef int note_order(self, Py_ssize_t number, const index_order *order) except -1 with gil:
        if order.known >= self.orders[number].known:  # else another thread knows more
            self.orders[number][0] = order[0]
        return 0

    cdef bint is_stored_since(self, int64_t time, int64_t phy_offset) except -1 nogil:
        """Whether the record at an offset cannot be one of an earlier time."""
        cdef Py_ssize_t i = self.log.find(phy_offset)
        cdef rs_mapped_file *file
        cdef const uint8_t *p
        cdef int64_t position, size
        if i < 0 and self.log.count > 0 and phy_offset < self.log.table[0].file_from_offset:
            return True  # it has expired
        if i < 0 or (not self.held[i] and not self.hold_log(i)):
            return False
        file = self.log.table[i]
        position = phy_offset - file.file_from_offset
        size = min(rs_load_acquire(&file.wrote) - position, <int64_t>HEADER_BYTES)
        if size <= 0:
            return False
        if file.base != NULL:
            p = file.base + position
        else:
            p = self.try_read(i, position, size)
        return p != NULL and store_time_in(p, size) >= time

    cdef const uint8_t *try_read(
        self, Py_ssize_t i, int64_t position, int64_t size
    ) except? NULL with gil:
        """As `read`; NULL also for bytes that cannot be read."""
        cdef int64_t wrote = rs_load_acquire(&self.log.table[i].wrote)
        try:
            return self.read(i, position, size, min(position + AHEAD_BYTES, wrote))
        except (StoreCorruptionError, StoreIOError):
            return NULL

    cdef int raise_failed(self, Py_ssize_t number) except -1 with gil:
        """Raise the error of an index file."""
        self.opened[number] = 2
        close_reader(<IndexFile>self.index_files[number], &self.readers[number])
        raise AssertionError("a failed index reader has a reason")

    # ---- prefetching ---------------------------------------------------------------------------

    cdef const uint8_t *mapped_at(self, int64_t phy_offset, int64_t *left) except? NULL nogil:
        """Return the address of a mapped byte, and set `left` to the bytes from it on; or NULL."""
        cdef Py_ssize_t i
        cdef rs_mapped_file *file
        if not 0 <= phy_offset < self.log_end:
            return NULL
        i = self.log.find(phy_offset)
        if i < 0 or (not self.held[i] and not self.hold_log(i)):
            return NULL
        file = self.log.table[i]
        left[0] = rs_load_acquire(&file.wrote) - (phy_offset - file.file_from_offset)
        if file.base == NULL or left[0] <= 0:
            return NULL
        return file.base + (phy_offset - file.file_from_offset)

    cdef int prefetch(self, int64_t phy_offset, int64_t size) except -1 nogil:
        cdef int64_t left = 0, at = 0
        cdef const uint8_t *p = self.mapped_at(phy_offset, &left)
        if p != NULL:
            while at < min(size, left):
                rs_prefetch_read(p + at)
                at += CACHE_LINE
        return 0

    cdef int prefetch_end(self, int64_t phy_offset) except -1 nogil:
        """Prefetch the end of a record, where its properties are."""
        cdef int64_t left = 0, size
        cdef const uint8_t *p = self.mapped_at(phy_offset, &left)
        if p != NULL and left >= 4:
            size = rs_load_be32(p)
            if 2 * CACHE_LINE < size <= left:
                rs_prefetch_read(p + size - 1 - CACHE_LINE)
                rs_prefetch_read(p + size - 1)
        return 0

    cdef int warm(self, const wanted_key *keys, Py_ssize_t count) except -1 nogil:
        """Prefetch the memory that the searches for some keys will read.

        All slots are prefetched first, then all entries, then all records.
        """
        cdef int64_t[CHUNK] phy_offsets
        cdef int32_t[CHUNK] numbers
        cdef Py_ssize_t i, k
        for i in range(self.index_count - 1, max(-1, self.index_count - 1 - WARM_FILES), -1):
            if self.opened[i] == 0:
                self.open_index(i)
            if self.opened[i] != 1 or self.readers[i].base == NULL:
                continue
            for k in range(count):
                prefetch_hash_of(self.index[i], self.readers[i].base, keys[k].key_hash)
            for k in range(count):
                numbers[k] = newest_entry(self.index[i], self.readers[i].base, keys[k].key_hash)
            for k in range(count):
                phy_offsets[k] = phy_offset_of(self.index[i], self.readers[i].base, numbers[k])
                self.prefetch(phy_offsets[k], 2 * CACHE_LINE)
            for k in range(count):
                self.prefetch_end(phy_offsets[k])
        return 0


# ---- calls -------------------------------------------------------------------------------------

cdef int set_key(wanted_key *w, str key, list keep) except -1:
    """Set the key of `w`, whose topic is set; `keep` receives the owners of its memory."""
    cdef bint whole = True
    w.key = utf8_bytes(key, &w.key_size, &whole, keep)
    w.never = w.never or not whole
    w.key_hash = index_key_hash(w.prefix, w.key, w.key_size)
    if not PyUnicode_IS_ASCII(key) and memmem(w.key, w.key_size, REPLACEMENT, 3) != NULL:
        w.loose = True
    return 0


cdef int set_topic(wanted_key *w, str topic, list keep) except -1:
    cdef bint whole = True
    w.topic = utf8_bytes(topic, &w.topic_size, &whole, keep)
    w.prefix = index_key_prefix(w.topic, w.topic_size)
    w.never = not whole
    w.loose = (
        not PyUnicode_IS_ASCII(topic) and memmem(w.topic, w.topic_size, REPLACEMENT, 3) != NULL
    )
    return 0


cdef int begin_search(KeySearch self, _Search search, int64_t log_end, object max_num) except -1:
    cdef LogTable log = self.log_files()
    cdef tuple index_files = self.files_in_order()
    if not index_files and self.index_service.geometry_error is not None:
        raise without_frames(self.index_service.geometry_error)
    self.newest = <IndexFile?>index_files[len(index_files) - 1] if index_files else None
    try:
        search.max_num = max_num
    except OverflowError:
        search.max_num = MAX_COUNT if max_num > 0 else 0
    search.open(log, log_end, index_files)
    return 0


def _begin_of(IndexFile index_file not None):
    """Return the physical offset of a file's first key; a file without keys comes last."""
    return index_file.begin_phy_offset if index_file.index_count > 1 else INT64_MAX


cdef int warn_of_gaps(object gaps, _Search search) except -1:
    if gaps.unsearched:
        gaps.warn(search.hits[0].phy_offset if search.count else 0,
                  0 < search.count >= search.max_num)
    return 0


cdef tuple search_gaps_of(
    KeySearch self, object gaps, const wanted_key *wanted, Py_ssize_t count
):
    """Return the offsets of all keys that the index lacks, and the range of each wanted key."""
    cdef Py_ssize_t i
    hashes = np.empty(count, np.int32)
    cdef int32_t[::1] rows = hashes
    for i in range(count):
        rows[i] = wanted[i].key_hash
    gaps.search()
    if gaps.is_empty:
        self.gaps = None
    low = np.searchsorted(gaps.hashes, hashes, "left").astype(np.int64)
    high = np.searchsorted(gaps.hashes, hashes, "right").astype(np.int64)
    return gaps.phy_offsets, low, high


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class KeySearch:
    """The messages of a store by their keys.

    Parameters
    ----------
    core : CommitLogCore
    mapped_file_queue : MappedFileQueue, the log's
    index_service : IndexService
    dispatcher : Dispatcher, whose `position` is the end of the index; None: the index is complete
    wait : callable, waits until the index has all keys of the log

    `gaps` is a KeyGaps while the index does not cover the log, else None. `unreadable`, an
    UnreadableHits or None, receives hits whose record cannot be read; a call of `query` names its
    caller, one of `query_many` the caller of that. `min_offsets`, a TopicMinOffsets or None, has
    the topics of which messages are removed.

    Threads: any.
    """

    def __cinit__(
        self, CommitLogCore core not None, mapped_file_queue, index_service, dispatcher, wait
    ):
        self.core = core
        self.mapped_file_queue = mapped_file_queue
        self.index_service = index_service
        self.dispatcher = dispatcher
        self.wait = wait
        self.log = LogTable(FileSequence(), mapped_file_queue.mapped_file_size)
        self.gaps = None
        self.unreadable = None
        self.min_offsets = None

    cdef int64_t await_index(self) except -1:
        """Wait until all puts are in the index, and return the log's end."""
        cdef int64_t log_end = rs_load_acquire(&self.core.end_offset)
        cdef int64_t position
        if self.dispatcher is not None:
            position = self.dispatcher.position
            if position < log_end or rs_load_acquire(&self.core.buffered_end) > log_end:
                self.wait()
                log_end = rs_load_acquire(&self.core.end_offset)
        return log_end

    cdef LogTable log_files(self):
        """Return the log's present files."""
        cdef FileSequence files = self.mapped_file_queue.mapped_files
        if self.log.files is not files:
            self.log = LogTable(files, self.log.file_size)
        return self.log

    cdef tuple files_in_order(self):
        """Return the index files, oldest keys first.

        The names of a store's own files have that order. In a read-only store files may have been
        exchanged, so they are sorted by their keys.
        """
        cdef tuple files = <tuple?>self.index_service._files
        if self.dispatcher is not None:
            return files
        if files is not self.named_files:
            self.index_files = tuple(sorted(files, key=_begin_of))
            self.named_files = files
        return self.index_files

    cdef const uint8_t *newest_base(self) noexcept:
        return NULL if self.newest is None else self.newest.mapped_file.file.base

    cpdef list query(self, str topic, str key, int64_t begin, int64_t end, max_num, bint exact):
        """Return the newest `max_num` messages of a topic with a key, ascending by physical offset.

        Parameters
        ----------
        begin, end : int, Unix ms of the store time, both inclusive
        max_num : int
        exact : bool, drop messages that only share the key's hash

        Raises: StoreCorruptionError, StoreIOError; StoreFormatError: the index's geometry.
        """
        cdef _Search search = _Search.__new__(_Search)
        cdef list messages = []
        cdef list keep = None
        cdef MessageExt message
        cdef const int64_t[::1] extra
        cdef int64_t log_end
        cdef Py_ssize_t i
        if topic is None or key is None:
            raise TypeError("topic and key must be str, not None")
        if not (PyUnicode_IS_ASCII(topic) and PyUnicode_IS_ASCII(key)):
            keep = []
        search.begin = begin
        search.end = end
        search.exact = exact
        search.removed_before = self.min_offsets.of(topic) if self.min_offsets else 0
        set_topic(&search.wanted, topic, keep)
        set_key(&search.wanted, key, keep)
        # Slot and entry are random memory: prefetch each, and do other work meanwhile.
        if self.newest_base() != NULL:
            prefetch_hash_of(&self.newest.index, self.newest_base(), search.wanted.key_hash)
        log_end = self.await_index()
        if self.newest_base() != NULL:
            newest_entry(&self.newest.index, self.newest_base(), search.wanted.key_hash)
        gaps = self.gaps  # another thread may set it to None meanwhile
        if gaps is not None:
            extra = self.search_gaps(gaps, search.wanted.key_hash)
            search.extra_count = extra.shape[0]
            if search.extra_count > 0:
                search.extra = &extra[0]
        begin_search(self, search, log_end, max_num)
        try:
            if search.max_num <= MAX_HELD_GIL:  # releasing it takes longer than the search
                search.collect(True)
            else:
                with nogil:
                    search.collect(True)
            for i in range(search.count):
                message = search.message(&search.hits[i])
                if message is not None:
                    messages.append(message)
                else:
                    search.note_unreadable(search.hits[i].phy_offset)
            if gaps is not None:
                warn_of_gaps(gaps, search)
            if search.unreadable is not None and self.unreadable is not None:
                self.unreadable.warn(search.unreadable, 1)
        finally:
            search.close()
        return messages

    cdef const int64_t[::1] search_gaps(self, object gaps, int32_t key_hash):
        """Return the physical offsets with a key that the index lacks, ascending."""
        gaps.search()
        if gaps.is_empty:
            self.gaps = None
        return gaps.find(key_hash)

    def query_many(self, str topic not None, keys, int64_t begin, int64_t end, max_num):
        """`query` for many keys at once, exact hits only.

        Parameters
        ----------
        keys : sequence of str

        Returns
        -------
        (int64[n] index into `keys`, int64[n] physical offset in bytes, int32[n] queue id,
        int64[n] queue offset), by key, and ascending by physical offset for each

        Raises: as query. Threads: the GIL is released.
        """
        cdef _Search search = _Search.__new__(_Search)
        cdef _Rows rows = _Rows.__new__(_Rows)
        cdef list keep = []
        cdef tuple texts = tuple(keys)  # unchanged while pointers refer to them
        cdef Py_ssize_t count = len(texts)
        cdef Py_ssize_t i, j, first, chunk
        cdef wanted_key *wanted
        gaps = self.gaps
        cdef bint has_gaps = gaps is not None
        cdef const int64_t[::1] phy_offsets, low, high
        search.begin = begin
        search.end = end
        search.exact = True
        search.removed_before = self.min_offsets.of(topic) if self.min_offsets else 0
        begin_search(self, search, self.await_index(), max_num)
        wanted = <wanted_key *>calloc(max(count, 1), sizeof(wanted_key))
        try:
            if wanted == NULL:
                raise MemoryError
            set_topic(&search.wanted, topic, keep)
            for i in range(count):
                wanted[i] = search.wanted
                set_key(&wanted[i], <str?>texts[i], keep)
            if has_gaps:
                phy_offsets, low, high = search_gaps_of(self, gaps, wanted, count)
            with nogil:
                first = 0
                while first < count:
                    chunk = min(<Py_ssize_t>CHUNK, count - first)
                    search.warm(wanted + first, chunk)
                    for i in range(first, first + chunk):
                        search.wanted = wanted[i]
                        if has_gaps:
                            search.extra_count = high[i] - low[i]
                            if search.extra_count > 0:
                                search.extra = &phy_offsets[low[i]]
                        search.collect(False)
                        for j in range(search.count):
                            rows.add(i, &search.hits[j])
                    first += chunk
            if has_gaps:
                gaps.warn(0, False)
            if search.unreadable is not None and self.unreadable is not None:
                self.unreadable.warn(search.unreadable, 2)
        finally:
            free(wanted)
            search.close()
        return rows.columns()

    def message_at(self, int64_t phy_offset):
        """As `messages_at`, of one physical offset."""
        return self._messages_at(&phy_offset, 1)[0]

    def messages_at(self, const int64_t[::1] phy_offsets not None):
        """Return the messages at physical offsets, None where no message begins.

        Parameters
        ----------
        phy_offsets : int64[n], bytes in the log

        Raises: StoreCorruptionError, StoreIOError. Threads: the GIL is kept.
        """
        cdef Py_ssize_t count = phy_offsets.shape[0]
        return self._messages_at(&phy_offsets[0], count) if count else []

    cdef list _messages_at(self, const int64_t *phy_offsets, Py_ssize_t count):
        cdef _Search search = _Search.__new__(_Search)
        cdef list messages = []
        cdef const uint8_t *p
        cdef Py_ssize_t i
        search.open(self.log_files(), rs_load_acquire(&self.core.end_offset), ())
        try:
            for i in range(count):
                if i + AHEAD < count:
                    search.prefetch(phy_offsets[i + AHEAD], COPIED_BYTES)
                p = search.record_at(phy_offsets[i])
                messages.append(None if p == NULL else message_from_record(p, &search.parsed))
        finally:
            search.close()
        return messages


cdef struct found_row:
    int64_t key_index
    int64_t phy_offset
    int64_t queue_offset
    int32_t queue_id


@cython.final
@cython.auto_pickle(False)
cdef class _Rows:
    """Rows that are collected without the GIL, and then become columns."""

    cdef found_row *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.rows)

    cdef int add(self, int64_t key_index, const key_hit *hit) except -1 nogil:
        cdef found_row *grown
        cdef Py_ssize_t capacity
        if self.count == self.capacity:
            capacity = max(2 * self.capacity, 256)
            grown = <found_row *>realloc(self.rows, capacity * sizeof(found_row))
            if grown == NULL:
                no_memory()
            self.rows = grown
            self.capacity = capacity
        self.rows[self.count].key_index = key_index
        self.rows[self.count].phy_offset = hit.phy_offset
        self.rows[self.count].queue_offset = hit.queue_offset
        self.rows[self.count].queue_id = hit.queue_id
        self.count += 1
        return 0

    cdef tuple columns(self):
        cdef int64_t[::1] key_index, phy_offset, queue_offset
        cdef int32_t[::1] queue_id
        cdef Py_ssize_t i
        result = (
            np.empty(self.count, np.int64),
            np.empty(self.count, np.int64),
            np.empty(self.count, np.int32),
            np.empty(self.count, np.int64),
        )
        key_index, phy_offset, queue_id, queue_offset = result
        for i in range(self.count):
            key_index[i] = self.rows[i].key_index
            phy_offset[i] = self.rows[i].phy_offset
            queue_id[i] = self.rows[i].queue_id
            queue_offset[i] = self.rows[i].queue_offset
        return result
