"""Messages and columns of the records at given physical offsets of commit log files."""
cimport cython
from libc.errno cimport ENOENT
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyrocketstore._rocketstore cimport (
    RS_BAD_SIZE,
    RS_OK,
    RS_OTHER_QUEUE,
    RS_TORN,
    check_io,
    rs_env,
    rs_load_acquire,
    rs_prefetch_far,
    rs_properties,
    rs_record,
    rs_status_name,
)
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.reading._queue_runs cimport QueueChunks, RangeFields, ReadCounts, RecordRun
from pyrocketstore.record._message cimport MessageExt, known_text, message_from_record
from pyrocketstore.record._record cimport (
    QueueName,
    check_record,
    is_of_queue,
    largest_record,
    scan_properties,
)
from pyrocketstore.system._env cimport kept_file, release_kept
from pyrocketstore.system._open_state cimport StoreState

from pyrocketstore.display import shown
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)

# Fields of the objects that each read makes for the messages that it cannot read.

#: So many ranges are kept; later messages are only counted.
MAX_RANGES = 4096


@cython.auto_pickle(False)
cdef class SkippedFields:
    """The fields of a skipped.SkippedMessages.

    Parameters
    ----------
    max_ranges : int, how many ranges are kept; None: all
    """

    def __cinit__(self, max_ranges=MAX_RANGES):
        self._max_ranges = max_ranges
        self._ranges = []


@cython.auto_pickle(False)
cdef class DamageFields:
    """The fields of a skipped.QueueDamage. Raises StoreFormatError for an unknown `on_corrupt`."""

    def __cinit__(self, str topic not None, int64_t queue_id, on_corrupt,
                  SkippedFields skipped not None):
        if not isinstance(on_corrupt, str) or on_corrupt not in ("raise", "skip"):
            raise StoreFormatError(f"on_corrupt is {shown(on_corrupt)}: must be 'raise' or 'skip'")
        self.topic = topic
        self.queue_id = queue_id
        self.skips = on_corrupt == "skip"
        self.skipped = skipped


# In a file that is not mapped, records this far apart are read one by one.
cdef int64_t GAP_BYTES = 65536
# Bytes of one read: they stay in the cache until they are decoded.
cdef int64_t CHUNK_BYTES = 524288
cdef enum:
    PREFETCH_AHEAD = 4       # records
    PREFETCH_BYTES = 2048    # of each
    CACHE_LINE = 64

cdef str NOT_HELD = "a queue names bytes that the log does not hold"


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordBytes:
    """Bytes of commit log files, for compiled readers. Threads: one at a time."""

    def __cinit__(self):
        self.kept_of = []

    def __dealloc__(self):
        cdef int i
        for i in range(FILES_A_CALL):
            if self.kept[i] != NULL:
                release_kept(self.kept[i])
        free(self.buffer)

    cdef int let_go(self) except -1:
        cdef kept_file *kept
        cdef int i
        self.kept_of.clear()
        self.last_kept = self.next_kept = 0
        for i in range(FILES_A_CALL):
            kept = self.kept[i]
            self.kept[i] = NULL
            if kept != NULL:
                release_kept(kept)
        return 0

    cdef int descriptor(self, MappedFile mapped_file) except -1:
        cdef list files = self.kept_of
        cdef int count = <int>len(files)
        cdef kept_file *before
        cdef kept_file *kept
        cdef int i
        if self.last_kept < count and files[self.last_kept] is mapped_file:
            return self.kept[self.last_kept].fd
        for i in range(count):
            if files[i] is mapped_file:
                self.last_kept = i
                return self.kept[i].fd
        kept = mapped_file.take_descriptor()
        i = self.next_kept
        self.next_kept = (i + 1) % FILES_A_CALL
        before = self.kept[i]
        self.kept[i] = kept
        self.last_kept = i
        if i < count:
            files[i] = mapped_file
        else:
            files.append(mapped_file)
        if before != NULL:
            release_kept(before)
        return kept.fd

    cdef int64_t read(
        self, MappedFile mapped_file, void *target, int64_t size, int64_t position
    ) except? -1:
        cdef const rs_env *env = mapped_file.file.env
        cdef int64_t got
        cdef int fd
        if not self.keeps:
            return mapped_file.read_into(target, size, position)
        fd = self.descriptor(mapped_file)
        with nogil:
            got = env.pread(fd, target, size, position)
        return got

    cdef const uint8_t *at(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except NULL:
        if mapped_file.file.base != NULL:
            return mapped_file.file.base + position
        if not self.has(mapped_file, position, size):
            self.fill(mapped_file, position, size, stop)
        return self.buffer + (position - self.start)

    cdef bint has(self, MappedFile mapped_file, int64_t position, int64_t size) noexcept:
        return (mapped_file is self.mapped_file and self.start <= position
                and position + size <= self.end)

    cdef int fill(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except -1:
        cdef int64_t wanted = max(size, stop - position)
        cdef int64_t got
        cdef uint8_t *grown
        self.mapped_file = None
        if size > largest_record():  # a block of several records is much smaller
            raise StoreCorruptionError(
                mapped_file.path, position,
                f"a record of {size} bytes; none has more than {largest_record()}",
            )
        if wanted > self.capacity:
            grown = <uint8_t *>realloc(self.buffer, wanted)
            if grown == NULL:
                raise MemoryError
            self.buffer = grown
            self.capacity = wanted
        got = self.read(mapped_file, self.buffer, wanted, position)
        if got < size and size < wanted:  # the wanted bytes may be valid
            wanted = size
            got = self.read(mapped_file, self.buffer, wanted, position)
        _check_read(mapped_file, got, size, position)
        self.mapped_file = mapped_file
        self.start = position
        self.end = position + got
        return 0


cdef int _check_read(MappedFile mapped_file, int64_t got, int64_t size, int64_t position) except -1:
    check_io(got, "pread", mapped_file.path, position)
    if got < size:
        raise StoreCorruptionError(
            mapped_file.path, position, f"the file ends after {got} of {size} bytes"
        )
    return 0


cdef int64_t block_stop(
    const int64_t *phy_offsets, const int32_t *sizes, Py_ssize_t n, Py_ssize_t first,
    int64_t limit, Py_ssize_t *end
) noexcept:
    cdef int64_t start = phy_offsets[first]
    cdef int64_t stop
    cdef Py_ssize_t i = first + 1
    if start < 0 or start > INT64_MAX - INT32_MAX:
        end[0] = i
        return INT64_MAX
    stop = start + sizes[first]
    while (i < n and sizes[i] > 0 and phy_offsets[i] >= stop and phy_offsets[i] - stop < GAP_BYTES
           and sizes[i] <= limit - (phy_offsets[i] - start)):
        stop = phy_offsets[i] + sizes[i]
        i += 1
    end[0] = i
    return stop


# ---- one queue ---------------------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class MessageIterator:
    """An iterator of messages, each with its own copy of its bytes.

    Parameters
    ----------
    chunks : iterable of RecordRun, or of (MappedFile, int64[n] physical offsets, int32[n] sizes in
        bytes), the records to read in one file; with `queue` also int64[n] queue offsets
    tags : frozenset of str, to skip messages without one of these tags; None: all
    file_gone : callable(MappedFile, start, stop), called when a file was deleted, with the queue
        offsets [start, stop) of its remaining messages, or -1 and 0. These are skipped, after the
        error that it returns is raised, if any. It raises if the store is closed
    queue : QueueName: each record must have exactly its size, and be this queue's message at its
        queue offset; None: not compared
    damage : QueueDamage, the treatment of a message that cannot be read; None: an error
    check_crc : bool, compare each stored body with its CRC

    Raises
    ------
    StoreCorruptionError with file and position: the bytes there are not that record. The next call
    continues with the message after it.
    StoreIOError, after which the next call continues, too.

    Threads: one at a time. A record is read by the call that returns its message.
    """

    cdef object chunks
    cdef object tags
    cdef object file_gone
    cdef object damage
    cdef readonly object skipped
    cdef QueueName queue
    cdef bint check_crc
    cdef MappedFile mapped_file
    cdef object columns             # has the memory of the next three
    cdef const int64_t *phy_offsets
    cdef const int32_t *sizes
    cdef const int64_t *queue_offsets   # NULL: not given
    cdef Py_ssize_t at
    cdef Py_ssize_t count
    cdef RecordBytes source         # None: no file without a mapping was read
    cdef bint busy

    def __init__(self, chunks, tags, file_gone, *, QueueName queue=None, damage=None,
                 bint check_crc=False):
        self.set(chunks, tags, file_gone, queue, damage, check_crc)

    cdef int set(self, object chunks, object tags, object file_gone, QueueName queue,
                 object damage, bint check_crc) except -1:
        self.chunks = iter(chunks)
        self.tags = tags
        self.file_gone = file_gone
        self.queue = queue
        self.damage = damage
        self.skipped = None if damage is None else damage.skipped
        self.check_crc = check_crc
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageExt message = None
        if self.busy:
            raise StoreStateError("the iterator is used by another thread")
        self.busy = True
        try:
            while message is None:
                if self.at < self.count:
                    message = self.take()
                else:
                    self.begin(next(self.chunks))
        finally:
            self.busy = False
        return message

    cdef int begin(self, object chunk) except -1:
        cdef RecordRun run
        cdef tuple given
        cdef const int64_t[::1] phy_offsets
        cdef const int32_t[::1] sizes
        cdef const int64_t[::1] queue_offsets = None
        self.count = self.at = 0
        self.queue_offsets = NULL
        if type(chunk) is RecordRun:
            run = <RecordRun>chunk
            if run.mapped_file is None:
                raise ValueError("a run of records must have a file")
            self.mapped_file, self.columns = run.mapped_file, run
            self.phy_offsets, self.sizes = run.phy_offset, run.size
            self.queue_offsets, self.count = run.queue_offset, run.count
            return 0
        given = <tuple?>chunk
        if len(given) == 4:
            self.mapped_file, phy_offsets, sizes, queue_offsets = given
            if queue_offsets.shape[0] < phy_offsets.shape[0]:
                raise ValueError("queue_offsets must have one entry a record")
        elif self.queue is None:
            self.mapped_file, phy_offsets, sizes = given
        else:
            raise ValueError("queue_offsets are required with a queue")
        if min(phy_offsets.shape[0], sizes.shape[0]) > 0:
            self.columns = (phy_offsets, sizes, queue_offsets)
            self.phy_offsets, self.sizes = &phy_offsets[0], &sizes[0]
            if queue_offsets is not None:
                self.queue_offsets = &queue_offsets[0]
            self.count = min(phy_offsets.shape[0], sizes.shape[0])
        return 0

    cdef int64_t queue_offset(self, Py_ssize_t i):
        return -1 if self.queue_offsets == NULL else self.queue_offsets[i]

    cdef MessageExt take(self):
        """Return the next message; None if it is skipped."""
        cdef Py_ssize_t i = self.at
        cdef MessageExt message = None
        cdef object failed = None
        if not self.mapped_file.take_hold():
            self.pass_file(i)
            return None
        self.at = i + 1
        try:
            if self.mapped_file.file.base != NULL and i + PREFETCH_AHEAD < self.count:
                self.prefetch(i + PREFETCH_AHEAD)
            message = self.decode(i)
        except (StoreCorruptionError, StoreIOError) as error:
            failed = error
        finally:
            self.mapped_file.drop_hold()
        if failed is not None:
            self.fail(failed, i)
        return message

    cdef int fail(self, object error, Py_ssize_t i) except -1:
        """Note a message that could not be read, and raise its error unless it is skipped."""
        if self.damage is None:
            raise error
        if isinstance(error, StoreIOError) and error.errno == ENOENT:
            return self.pass_file(i)
        error = self.damage.failed(error, self.queue_offset(i))
        if error is not None:
            raise error
        return 0

    cdef int pass_file(self, Py_ssize_t i) except -1:
        """Skip the messages from `i` on, whose file was deleted; raise their error, if any."""
        cdef object error = self.file_gone(
            self.mapped_file, self.queue_offset(i), self.queue_offset(self.count - 1) + 1
        )
        self.at = self.count
        if error is not None:
            raise error
        return 0

    cdef void prefetch(self, Py_ssize_t i) noexcept:
        cdef int64_t position = self.phy_offsets[i] - self.mapped_file.file.file_from_offset
        cdef int64_t size = min(self.sizes[i], <int64_t>PREFETCH_BYTES)
        cdef int64_t at = 0
        if 0 <= position < self.mapped_file.file.file_size - size:
            while at < size:
                rs_prefetch_far(self.mapped_file.file.base + position + at)
                at += CACHE_LINE

    cdef MessageExt decode(self, Py_ssize_t i):
        # The file is held: a mapping stays.
        cdef const uint8_t *base = self.mapped_file.file.base
        cdef int64_t start = self.mapped_file.file.file_from_offset
        cdef int64_t position = self.phy_offsets[i] - start
        cdef int64_t size = self.sizes[i]
        cdef int64_t wrote = rs_load_acquire(&self.mapped_file.file.wrote)
        cdef int64_t stop = position + size
        cdef Py_ssize_t end = 0
        cdef const uint8_t *p
        cdef rs_record record
        cdef rs_properties spans
        cdef MessageExt message
        cdef int status
        if position < 0 or size < 0 or size > wrote - position:
            raise StoreCorruptionError(self.mapped_file.path, position, NOT_HELD)
        if base == NULL:
            if self.source is None:
                self.source = RecordBytes.__new__(RecordBytes)
            if not self.source.has(self.mapped_file, position, size):
                stop = block_stop(
                    self.phy_offsets, self.sizes, self.count, i, CHUNK_BYTES, &end
                ) - start
                stop = min(stop, wrote)
        p = NULL
        status = RS_TORN
        if size > 0:
            if base != NULL:
                p = base + position
            else:
                p = self.source.at(self.mapped_file, position, size, stop)
            status = check_record(p, size, self.phy_offsets[i], self.check_crc, &record)
        if status == RS_OK and self.queue is not None:
            if record.total_size != size:
                status = RS_BAD_SIZE
            elif not is_of_queue(&self.queue.name, p, &record, self.queue_offsets[i]):
                status = RS_OTHER_QUEUE
        if status != RS_OK:
            raise StoreCorruptionError(
                self.mapped_file.path, position, self.reason(status, p, size, &record)
            )
        if self.tags is None:
            return message_from_record(p, &record)
        scan_properties(p + record.properties_position, record.properties_size, &spans)
        if spans.tags.size < 0 or known_text(
            p + record.properties_position + spans.tags.position, spans.tags.size
        ) not in self.tags:
            return None
        message = message_from_record(p, &record)
        message._spans = spans
        message._scanned = True
        return message

    cdef str reason(self, int status, const uint8_t *p, int64_t size, const rs_record *record):
        """Return the text of a record's damage."""
        if status == RS_OTHER_QUEUE:
            topic = known_text(p + record.topic_position, record.topic_size)
            return (
                "the queue's unit names a record of another message: "
                f"{topic}/{record.queue_id}, queue offset {record.queue_offset}"
            )
        if status == RS_BAD_SIZE and self.queue is not None and record.total_size != size:
            return f"the record has {record.total_size} bytes, the queue's unit has {size}"
        if status == RS_TORN and self.queue is not None and size >= 4:
            # All bytes that the unit names are there: the record's size is wrong, or the unit's.
            stated = int.from_bytes(p[:4], "big", signed=True)
            return f"the record has {stated} bytes, the queue's unit has {size}"
        return rs_status_name(status).decode("ascii")


# ---- several queues ----------------------------------------------------------------------------

cdef struct first_message:
    int64_t store_timestamp
    int64_t phy_offset
    Py_ssize_t part


cdef inline bint _is_before(const first_message *a, const first_message *b) noexcept nogil:
    if a.store_timestamp != b.store_timestamp:
        return a.store_timestamp < b.store_timestamp
    return a.phy_offset < b.phy_offset


def messages_between(
    RangeFields part not None, int64_t start, int64_t stop, StoreState state not None, owner,
    ReadCounts counts not None
):
    """Iterate over the messages of the queue offsets [start, stop).

    Parameters
    ----------
    part : QueueRange
    state, owner, counts : as of QueueChunks

    Returns
    -------
    MessageIterator; each message is compared with the queue and its queue offset
    """
    cdef MessageIterator found = MessageIterator.__new__(MessageIterator)
    cdef object chunks = QueueChunks.__new__(QueueChunks, part, start, stop, state, owner,
                                              counts)
    cdef object queue = part.queue
    cdef object tags = None if part.wanted is None else part.wanted.tags
    found.set(chunks, tags, chunks.file_gone, QueueName(queue.topic, queue.queue_id), part.damage,
              part.check_crc)
    return found


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class MergedMessages:
    """The messages of several queues by store time, then by physical offset.

    After an error of one queue the next call continues with the message after it.

    Parameters
    ----------
    parts : sequence of iterators of MessageExt
    skipped : SkippedMessages, the messages that they skip

    Threads: one at a time.
    """

    cdef readonly object skipped
    cdef list parts
    cdef list messages          # the next one of each part; None: not read yet
    cdef first_message *heap    # of these messages
    cdef Py_ssize_t *behind     # parts whose next message was not read yet
    cdef Py_ssize_t heap_count
    cdef Py_ssize_t behind_count
    cdef bint busy

    def __cinit__(self, parts, skipped):
        cdef Py_ssize_t i, count
        self.parts = list(parts)
        self.skipped = skipped
        count = len(self.parts)
        self.messages = [None] * count
        self.heap = <first_message *>realloc(NULL, (count + 1) * sizeof(first_message))
        self.behind = <Py_ssize_t *>realloc(NULL, (count + 1) * sizeof(Py_ssize_t))
        if self.heap == NULL or self.behind == NULL:
            raise MemoryError
        for i in range(count):
            self.behind[i] = count - 1 - i
        self.behind_count = count

    def __dealloc__(self):
        free(self.heap)
        free(self.behind)

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageExt message
        cdef Py_ssize_t part
        if self.busy:
            raise StoreStateError("the iterator is used by another thread")
        self.busy = True
        try:
            while self.behind_count > 0:
                part = self.behind[self.behind_count - 1]
                message = next(self.parts[part], None)
                self.behind_count -= 1
                if message is not None:
                    self.push(part, message)
        finally:
            self.busy = False
        if self.heap_count == 0:
            raise StopIteration
        part = self.pop()
        message = self.messages[part]
        self.messages[part] = None
        self.behind[self.behind_count] = part
        self.behind_count += 1
        return message

    cdef int push(self, Py_ssize_t part, MessageExt message) except -1:
        cdef Py_ssize_t at = self.heap_count
        cdef Py_ssize_t above
        cdef first_message new
        self.messages[part] = message
        new.store_timestamp = message.fields.store_timestamp
        new.phy_offset = message.fields.phy_offset
        new.part = part
        while at > 0:
            above = (at - 1) // 2
            if not _is_before(&new, &self.heap[above]):
                break
            self.heap[at] = self.heap[above]
            at = above
        self.heap[at] = new
        self.heap_count += 1
        return 0

    cdef Py_ssize_t pop(self) noexcept:
        """Return the part whose message comes first; the heap is not empty."""
        cdef Py_ssize_t found = self.heap[0].part
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t below
        cdef first_message last
        self.heap_count -= 1
        last = self.heap[self.heap_count]
        while True:
            below = 2 * at + 1
            if below >= self.heap_count:
                break
            if below + 1 < self.heap_count and _is_before(
                &self.heap[below + 1], &self.heap[below]
            ):
                below += 1
            if not _is_before(&self.heap[below], &last):
                break
            self.heap[at] = self.heap[below]
            at = below
        self.heap[at] = last
        return found


# ---- copies of records -------------------------------------------------------------------------

def gather_records(MappedFile mapped_file not None, const int64_t[::1] phy_offsets not None,
                   const int32_t[::1] sizes not None, uint8_t[::1] out not None, int64_t position,
                   *, bint check=True, int64_t[::1] positions=None):
    """Copy records of one commit log file into `out`, without gaps.

    Parameters
    ----------
    phy_offsets : int64[n], bytes, ascending for speed
    sizes : int32[n], bytes
    out : uint8[m], with room for all of them from `position` on
    check : bool; False: the bytes are not checked
    positions : int64[n], receives the position of each record in `out`, bytes. With it, records
        with small gaps may be read together with the gaps, while `out` has room; None: no gaps

    Raises
    ------
    StoreCorruptionError with file and position: the bytes there are not that record, or the file
    ends before it does
    StoreIOError; IndexError when `out` is too small, or `positions`.
    """
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef int64_t wrote = rs_load_acquire(&mapped_file.file.wrote)
    cdef Py_ssize_t count = min(phy_offsets.shape[0], sizes.shape[0])
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j = 0
    cdef int64_t stop
    cdef int64_t room = out.shape[0] - position
    cdef int64_t first, span, between
    cdef int status = RS_OK
    cdef bint in_place
    cdef rs_record record
    cdef const uint8_t *source
    cdef RecordBytes records = RecordBytes()
    if position < 0 or (positions is not None and positions.shape[0] < count):
        raise IndexError("the buffer is too small")
    for i in range(count):
        room -= max(sizes[i], 0)
    i = 0
    if not mapped_file.take_hold():
        raise StoreCorruptionError(mapped_file.path, -1, NOT_HELD)
    try:
        while i < count:
            first = phy_offsets[i]
            stop = block_stop(&phy_offsets[0], &sizes[0], count, i, CHUNK_BYTES, &j) - start
            if first < start or sizes[i] <= 0 or stop > wrote:
                raise StoreCorruptionError(mapped_file.path, first - start, NOT_HELD)
            span = stop - (first - start)
            between = span - _sum(sizes, i, j)
            in_place = (positions is not None and mapped_file.file.base == NULL
                        and between <= room and span <= out.shape[0] - position)
            if in_place:
                room -= between
                source = &out[position] - first
                _check_read(mapped_file,
                            mapped_file.read_into(&out[position], span, first - start),
                            span, first - start)
                position -= first
            else:
                source = records.at(mapped_file, first - start, span, stop) - first
            with nogil:
                while i < j:
                    if check:
                        status = check_record(
                            source + phy_offsets[i], sizes[i], phy_offsets[i], False, &record
                        )
                    if status != RS_OK:
                        break
                    if in_place:
                        positions[i] = position + phy_offsets[i]
                    elif sizes[i] > out.shape[0] - position:
                        break
                    else:
                        memcpy(&out[position], source + phy_offsets[i], <size_t>sizes[i])
                        if positions is not None:
                            positions[i] = position
                        position += sizes[i]
                    i += 1
            if status != RS_OK:
                raise StoreCorruptionError(mapped_file.path, phy_offsets[i] - start,
                                           rs_status_name(status).decode("ascii"))
            if i < j:
                raise IndexError("the buffer is too small")
            if in_place:
                position += stop + start
    finally:
        mapped_file.drop_hold()


cdef inline int64_t _sum(const int32_t[::1] sizes, Py_ssize_t first, Py_ssize_t end) noexcept:
    cdef int64_t total = 0
    for i in range(first, end):
        total += sizes[i]
    return total
