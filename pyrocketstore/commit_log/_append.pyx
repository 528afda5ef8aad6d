"""Appending to the commit log: the put lock, topicQueueTable and the group commit.

Everything under the put lock is C on pointers and runs with or without the GIL. A thread tries the
lock first; one that must wait lets the GIL go before it waits, so nobody ever waits for the GIL
while it holds the lock.
"""
from functools import partial

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDWR

from pyrocketstore._rocketstore cimport (
    RS_BAD_MAGIC,
    RS_BAD_SIZE,
    RS_BLANK_MAGIC_CODE,
    RS_BUSY,
    RS_END_FILE_MIN_BLANK_LENGTH,
    RS_END_OF_FILE,
    RS_FILL_PAGES,
    RS_IO_ERROR,
    RS_MESSAGE_MAGIC_CODE,
    RS_MESSAGE_MIN_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_NO_MEMORY,
    RS_OK,
    RS_RETRY,
    check_io,
    rs_compare_and_swap,
    rs_event,
    rs_event_signal,
    rs_fetch_add,
    rs_load_acquire,
    rs_load_be32,
    rs_lock,
    rs_lock_free,
    rs_lock_new,
    rs_lock_release,
    rs_lock_take,
    rs_lock_take_for,
    rs_lock_try,
    rs_mapped_file,
    rs_msync,
    rs_record,
    rs_store_be32,
    rs_store_release,
)
from pyrocketstore.arguments._numbers_and_bodies cimport hold_body
from pyrocketstore.files._mapped_file cimport FileSequence, MappedFile, file_with
from pyrocketstore.files._writes cimport store_records, write_records
from pyrocketstore.record._record cimport (
    HEADER_BYTES,
    check_record,
    largest_record,
    patch_record,
    store_time_in,
)
from pyrocketstore.system._allocation cimport append_position, confirm, page_down
from pyrocketstore.system._env cimport EnvTable, Event

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.system.signal_shield import shielded

# The count and the bytes of the puts that hold room: exact whatever a signal handler raises.

@cython.final
@cython.auto_pickle(False)
cdef class Reservations:
    """The number of reservations that are taken, and the sum of their sizes (bytes).

    Threads: any; under the GIL, and no signal handler runs between two changes.
    """

    cdef readonly Py_ssize_t count
    cdef readonly int64_t size


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Reservation:
    """One reservation: counted once, from `take` to `drop` or to the end of this object."""

    cdef Reservations total
    cdef readonly int64_t size
    cdef readonly bint taken

    def __cinit__(self, Reservations total not None, int64_t size):
        self.total = total
        self.size = size

    def __dealloc__(self):
        if self.taken:
            self.total.count -= 1
            self.total.size -= self.size

    def take(self):
        """Count the reservation; a repeated call does nothing."""
        if not self.taken:
            self.taken = True
            self.total.count += 1
            self.total.size += self.size

    def drop(self):
        """Stop counting the reservation; a repeated call does nothing."""
        if self.taken:
            self.taken = False
            self.total.count -= 1
            self.total.size -= self.size


# Above this many bytes, encoding and copying run without the GIL: letting it go and taking it back
# costs about as much as the CRC of 5 KiB.
cdef int64_t NOGIL_MIN_BYTES = 8192

# A larger buffer is not kept for the next put.
cdef int64_t KEPT_BUFFER_BYTES = 8388608

# Upper bounds of a put's time, ms, but for the last; the first means: none that was seen.
cdef int64_t[PUT_TIME_BUCKETS - 1] PUT_TIME_BOUNDS = [
    0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000
]

# Copied bytes of another log are stored so many at a time (and one record), for one hold each.
cdef int64_t COPY_BYTES = 1048576

# Where a record goes that is not stored into a mapping.
cdef enum:
    BUFFERED = 1    # the file's buffer: it is in the log for readers when that is committed
    WRITTEN = 2     # the file, by pwrite

# A put that waits for the lock looks so often whether its holder hangs; longer than the last is not
# believed, as in 4.9.3.
cdef enum:
    LOCK_SLICE_MS = 50
    BUSY_END_MS = 10000000
    # Of the word that says which hold was seen since when: 44 bits of ms, and the hold's last bits.
    HOLD_BITS = 20
    HOLD_MASK = 0xFFFFF


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class QueueSlot:
    """One entry of topicQueueTable: the offset that the queue's next message gets.

    Source: RocketMQ 4.9.3 CommitLog#topicQueueTable.
    """

    @property
    def offset(self):
        """The next queue offset. Changed under the put lock only."""
        return rs_load_acquire(&self.slot.next_offset)

    @offset.setter
    def offset(self, int64_t value):
        rs_store_release(&self.slot.next_offset, value)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class TopicEntry:
    """A topic that was put to: its UTF-8 bytes and its queues' slots."""

    def __cinit__(self, str topic):
        self.topic = topic
        self.utf8 = topic.encode("utf-8")
        self.data = <const uint8_t *>PyBytes_AS_STRING(self.utf8)
        self.size = <int32_t>PyBytes_GET_SIZE(self.utf8)
        self.slots = {}
        memset(self.nearest, 0, sizeof(self.nearest))

    cdef QueueSlot near(self, int64_t queue_id):
        # The slot of a queue that was put to before, or None.
        if 0 <= queue_id < NEAR_QUEUES and self.nearest[queue_id] != NULL:
            return <QueueSlot>self.nearest[queue_id]
        return <QueueSlot>self.slots.get(queue_id)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordBuffer:
    """A growing buffer that records are encoded into before the put lock is taken."""

    def __dealloc__(self):
        free(self.data)

    cdef int ensure(self, int64_t size) except -1:
        if size > self.capacity and not self.grow(size):
            raise MemoryError()
        return 0

    cdef bint grow(self, int64_t size) noexcept nogil:
        # False without memory for `size` bytes; what is in the buffer stays.
        cdef uint8_t *grown
        if size <= self.capacity:
            return True
        size = size + (size >> 1) + 4096
        grown = <uint8_t *>realloc(self.data, <size_t>size)
        if grown == NULL:
            return False
        self.data = grown
        self.capacity = size
        return True


cdef Py_ssize_t rows_within(rs_run_row *rows, Py_ssize_t first, Py_ssize_t count,
                            int64_t room) noexcept nogil:
    # The end of the rows from `first` on that fit into `room` bytes.
    cdef int64_t base = rows[first].position
    while count > first and rows[count - 1].position + rows[count - 1].size - base > room:
        count -= 1
    return count


cdef int64_t copied_size(const uint8_t *p, int64_t room) noexcept nogil:
    # The bytes of the record or the BLANK that begins at `p`, where at least 8 bytes are there and
    # `room` bytes are left in the file; a negated status where neither may begin.
    cdef int64_t size = rs_load_be32(p)
    if is_blank(p):
        # Another size is that of a log with other files: what follows would be taken for the rest.
        return room if size == room else -RS_BAD_SIZE
    if rs_load_be32(p + 4) != RS_MESSAGE_MAGIC_CODE:
        return -RS_BAD_MAGIC
    if (size < RS_MESSAGE_MIN_SIZE or size > largest_record()
            or size + RS_END_FILE_MIN_BLANK_LENGTH > room):
        return -RS_BAD_SIZE
    return size


cdef inline bint is_blank(const uint8_t *p) noexcept nogil:
    return rs_load_be32(p + 4) == RS_BLANK_MAGIC_CODE


cdef int check_rows(const uint8_t *records, int64_t size, int32_t count) except -1:
    # Each of `count` records has the fields that an append patches, and they fill `size` bytes.
    cdef int64_t at = 0
    cdef int32_t i
    for i in range(count):
        if size - at < RS_MESSAGE_MIN_SIZE or not (
                RS_MESSAGE_MIN_SIZE <= rs_load_be32(records + at) <= size - at):
            raise StoreFormatError(f"record {i} of {count}: its size does not fit {size} bytes")
        at += rs_load_be32(records + at)
    if count < 0 or at != size:
        raise StoreFormatError(f"{count} records end at byte {at} of {size}")
    return 0


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class CommitLogCore:
    """The state that an append touches.

    Parameters
    ----------
    env : EnvTable
    max_message_size : int, bytes of a whole record
    on_new_queue : callable(topic, queue_id) or None, called before the first put to a queue

    Attribute: `busy_ms`, how long the put lock may be held before others give up.

    Threads: any. The put lock guards the file, the slots' values and the end offset.
    Source: RocketMQ 4.9.3 CommitLog#asyncPutMessage, DefaultAppendMessageCallback#doAppend.
    """

    def __cinit__(self, EnvTable env, int64_t max_message_size, Event appended, on_new_queue=None):
        self.env = env
        self.max_message_size = max_message_size
        self.topics = {}
        self.busy_ms = 1000
        self.fd = -1
        self.recovered = {}     # (topic, queue id): next offset, until the queue is put to
        self.on_new_queue = on_new_queue
        self.partial = RecordBuffer()
        self.begun_file = -1
        self._ahead_owner = [appended]
        self.appended = appended.event
        self.lock = rs_lock_new()
        if self.lock == NULL:
            raise MemoryError()

    def __dealloc__(self):
        # Where __cinit__ refused its arguments, every field is zero: the descriptor, too.
        if self.lock != NULL and self.fd >= 0:
            self.env.table.close(self.fd)
        rs_lock_free(self.lock)

    # ---- topicQueueTable ---------------------------------------------------------------------

    cdef TopicEntry topic_entry(self, str topic):
        entry = self.topics.get(topic)
        if entry is None:
            entry = self.topics.setdefault(topic, TopicEntry(topic))
        return <TopicEntry>entry

    cdef QueueSlot slot_of(self, str topic, int64_t queue_id):
        cdef TopicEntry entry = self.topic_entry(topic)
        slot = entry.slots.get(queue_id)
        if slot is None:
            slot = self.new_slot(entry, topic, queue_id)
        return <QueueSlot>slot

    cdef QueueSlot new_slot(self, TopicEntry entry, str topic, int64_t queue_id):
        cdef QueueSlot slot
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise StoreFormatError(f"queue_id {queue_id}: must be 0 to 2147483647")
        if self.on_new_queue is not None:
            self.on_new_queue(topic, queue_id)
        slot = QueueSlot.__new__(QueueSlot)
        slot.topic = topic
        slot.queue_id = queue_id
        slot.slot.next_offset = self.recovered.get((topic, queue_id), 0)
        slot = entry.slots.setdefault(queue_id, slot)
        if queue_id < NEAR_QUEUES:
            entry.nearest[queue_id] = <PyObject *>slot
        return slot

    def slot(self, str topic, int64_t queue_id):
        """The QueueSlot of a queue, made at offset 0 when it is new."""
        return self.slot_of(topic, queue_id)

    def set_next_offset(self, str topic, int64_t queue_id, int64_t next_offset):
        """Install what recovery found. Source: RocketMQ 4.9.3 recoverTopicQueueTable."""
        cdef TopicEntry entry
        self.recovered[topic, queue_id] = next_offset
        entry = self.topics.get(topic)
        slot = None if entry is None else entry.slots.get(queue_id)
        if slot is not None:
            self.take_lock()
            (<QueueSlot>slot).slot.next_offset = next_offset
            rs_lock_release(self.lock)

    def table(self):
        """topicQueueTable as {(topic, queue_id): next offset}."""
        return self.recovered | {
            (entry.topic, queue_id): (<QueueSlot>slot).offset
            for entry in list(self.topics.values())
            for queue_id, slot in list((<TopicEntry>entry).slots.items())
        }

    def put_totals(self, str topic):
        """The messages that were put to a topic since the log was opened, and their bytes."""
        cdef TopicEntry entry = self.topics.get(topic)
        cdef int64_t count = 0
        cdef int64_t size = 0
        for slot in () if entry is None else list(entry.slots.values()):
            count += (<QueueSlot>slot).slot.put_count
            size += (<QueueSlot>slot).slot.put_bytes
        return count, size

    def queue_put_totals(self):
        """(topic, queue id, messages, bytes) of each queue that was put to."""
        cdef QueueSlot slot
        found = []
        for entry in list(self.topics.values()):
            for value in list((<TopicEntry>entry).slots.values()):
                slot = value
                if slot.slot.put_count > 0:
                    found.append((slot.topic, slot.queue_id, slot.slot.put_count,
                                  slot.slot.put_bytes))
        return found

    def forget(self, str topic, queue_id):
        """Let a destroyed queue start at 0 again; the caller has the put lock, or is alone.

        The slot stays: a put that found it before goes on with it.
        """
        self.recovered.pop((topic, queue_id), None)
        entry = self.topics.get(topic)
        slot = None if entry is None else (<TopicEntry>entry).slots.get(queue_id)
        if slot is not None:
            rs_store_release(&(<QueueSlot>slot).slot.next_offset, 0)

    # ---- the file that is written to -----------------------------------------------------------

    def take(self):
        """Take the put lock; the GIL is let go while waiting."""
        self.take_lock()
        self.lent = True

    cdef void take_lock(self) noexcept:
        if not rs_lock_try(self.lock):
            with nogil:
                rs_lock_take(self.lock)

    cdef bint take_in_time(self) noexcept nogil:
        # Takes the lock, but for one whose holder hangs: False then.
        while not rs_lock_take_for(self.lock, LOCK_SLICE_MS):
            if self.held_too_long():
                return False
        return True

    cdef inline void begin_hold(self) noexcept nogil:
        self.holds += 1
        rs_store_release(&self.hold, self.holds)

    cdef bint held_too_long(self) noexcept nogil:
        cdef int64_t held_ms = self.held_ns() // 1000000
        return self.busy_ms < held_ms < BUSY_END_MS

    cdef int64_t held_ns(self) noexcept nogil:
        # How long the present hold of the put lock has lasted since somebody first looked at it. An
        # append would pay a tenth of its time for reading a second clock, so it only numbers its
        # hold, and the reader notes when that number was new: one word, read and written whole.
        cdef int64_t hold = rs_load_acquire(&self.hold)
        cdef int64_t now_ms, seen
        if hold == 0:
            return 0
        now_ms = self.env.table.monotonic_ns() // 1000000
        seen = rs_load_acquire(&self.seen_hold)
        if seen & HOLD_MASK != hold & HOLD_MASK or seen >> HOLD_BITS > now_ms:
            rs_store_release(&self.seen_hold, now_ms << HOLD_BITS | (hold & HOLD_MASK))
            return 0
        return (now_ms - (seen >> HOLD_BITS)) * 1000000

    def is_busy(self):
        """True when the put lock has been held for longer than `busy_ms`.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isOSPageCacheBusy.
        """
        return self.held_too_long()

    def release(self):
        """Let the put lock go. Raises StoreStateError: `take` was not called."""
        if not self.lent:
            raise StoreStateError("the put lock is released and was not taken")
        self.lent = False
        rs_lock_release(self.lock)

    def attach(self, MappedFile mapped_file or None):
        """Write to this file from now on; None: to none. The old one's hold is given back."""
        cdef MappedFile old
        cdef int fd = -1
        cdef int old_fd
        if mapped_file is not None:
            fd = self.open_for_writing(mapped_file)
        self.take_lock()
        old = self.mapped_file
        self.mapped_file = mapped_file
        self.file = NULL if mapped_file is None or self.is_copying else &mapped_file.file
        self.indirect = 0
        if mapped_file is not None:
            self.indirect = (BUFFERED if mapped_file.file.buffer != NULL else
                             WRITTEN if fd >= 0 else 0)
        old_fd = self.fd
        self.fd = fd
        self.ahead_asked = 0
        if mapped_file is not None and self.indirect != BUFFERED:
            rs_store_release(
                &self.end_offset,
                mapped_file.file.file_from_offset + rs_load_acquire(&mapped_file.file.wrote))
        rs_lock_release(self.lock)
        self.let_go(old, old_fd)

    cdef int let_go(self, MappedFile old, int fd) except -1:
        try:
            if fd >= 0:
                self.env.close(fd, old.path)
        finally:
            if old is not None:
                old.drop_hold()
        return 0

    cdef int open_for_writing(self, MappedFile mapped_file) except -2:
        # Holds it, and gives a descriptor, or -1 where none is needed.
        if not mapped_file.take_hold():
            raise StoreStateError(f"{mapped_file.path} is not available")
        if mapped_file.file.base == NULL:
            mapped_file.drop_hold()
            raise StoreStateError(f"{mapped_file.path} is open for reading only")
        if mapped_file.file.buffer != NULL or not (
                mapped_file.file.by_write or mapped_file.file.zero_fill == RS_FILL_PAGES):
            return -1
        try:
            return self.env.open(mapped_file.path, O_RDWR)
        except StoreIOError:
            mapped_file.drop_hold()
            raise

    def fill_bare(self, bytes text):
        """Let messages without properties be written with this text of properties."""
        self._bare_text = text
        self.bare = <const uint8_t *>PyBytes_AS_STRING(text)
        self.bare_size = <int32_t>PyBytes_GET_SIZE(text)

    def publish_end(self, int64_t end_offset):
        """What was appended to buffers is in the files up to there: readers may see it."""
        cdef int64_t seen = rs_load_acquire(&self.end_offset)
        while seen < end_offset:
            if rs_compare_and_swap(&self.end_offset, seen, end_offset):
                self.signal_appended()
                break
            seen = rs_load_acquire(&self.end_offset)

    def set_end_offset(self, int64_t end_offset):
        """Where the log ends while no file is attached."""
        rs_store_release(&self.end_offset, end_offset)

    def watch_ahead(self, Event event, int64_t size):
        """Signal `event` whenever fewer than `size` allocated bytes lie ahead of the writer."""
        self._ahead_owner.append(event)
        self.ahead = event.event
        self.ahead_size = size

    def watch_appends(self, Event event):
        """Signal `event` at each append."""
        self._ahead_owner.append(event)
        self.flush_event = event.event

    def watch_buffer(self, Event event, int64_t size):
        """Signal `event` when `size` bytes lie in a file's buffer, once until it is committed."""
        self._ahead_owner.append(event)
        self.buffer_event = event.event
        self.buffer_asked = -1
        self.buffer_least = size

    @property
    def appended_end(self):
        """End of the log, including buffered records that are not committed yet."""
        return max(rs_load_acquire(&self.end_offset), rs_load_acquire(&self.buffered_end))

    @property
    def end(self):
        """Physical offset after the last record. Safe from any thread."""
        return rs_load_acquire(&self.end_offset)

    def fits(self, int64_t size):
        """True when the attached file takes a record of `size` bytes."""
        cdef bint room
        self.take_lock()
        room = (self.file != NULL and size + RS_END_FILE_MIN_BLANK_LENGTH
                <= self.file.file_size - append_position(self.file))
        rs_lock_release(self.lock)
        return room

    def seal(self, int64_t size):
        """End the file with a BLANK when a record of `size` bytes does not fit.

        Returns the bytes that the BLANK covers (0: the record fits or no file is attached), and
        detaches the file. Source: RocketMQ 4.9.3 doAppend, END_OF_FILE.
        """
        cdef int64_t blank = 0
        cdef int64_t position
        cdef int error = 0
        cdef MappedFile old = None
        cdef uint8_t mark[RS_END_FILE_MIN_BLANK_LENGTH]
        cdef int fd = -1
        self.take_lock()
        if self.file != NULL:
            position = append_position(self.file)
            blank = self.file.file_size - position
            if size + RS_END_FILE_MIN_BLANK_LENGTH <= blank:
                blank = 0
            else:
                rs_store_be32(mark, <int32_t>blank)
                rs_store_be32(mark + 4, RS_BLANK_MAGIC_CODE)
                error = self.store_up_to(
                    self.file, position, mark,
                    sizeof(mark) if blank >= RS_END_FILE_MIN_BLANK_LENGTH else 0,
                    self.file.file_size, self.env.table.now_ms())
                if error == 0:
                    old = self.mapped_file
                    fd = self.fd
                    self.fd = -1
                    self.mapped_file = None
                    self.file = NULL
            rs_store_release(&self.hold, 0)
        rs_lock_release(self.lock)
        if error < 0:
            raise StoreIOError(-error, self.failed_operation, self.mapped_file.path, position)
        if old is not None:
            self.let_go(old, fd)
            self.signal_appended()
        return blank

    def lock_time_ms(self):
        """How long the put lock has been held, ms; 0 when free.

        Source: RocketMQ 4.9.3 CommitLog#lockTimeMills.
        """
        return self.held_ns() // 1000000

    def lock_hold(self):
        """(number of the lock's present hold, 0 when free; ns since somebody first saw it)."""
        return rs_load_acquire(&self.hold), self.held_ns()

    def slow_put_times(self):
        """(counts, longest): puts that took a millisecond or more, by 4.9.3's 13 buckets, and ms.

        Source: RocketMQ 4.9.3 StoreStatsService#setPutMessageEntireTimeMax.
        """
        return [self.slow_puts[i] for i in range(PUT_TIME_BUCKETS)], self.slow_put_max_ms

    def take_lock_waited_ms(self):
        """The longest that a put has waited for the put lock since the last call, ms."""
        cdef int64_t waited = self.lock_waited_ms
        self.lock_waited_ms = 0
        return waited

    cdef void note_put_time(self, int64_t took_ms) noexcept:
        # With the GIL, and only for puts that took a millisecond.
        cdef int i = 0
        while i < PUT_TIME_BUCKETS - 1 and took_ms >= PUT_TIME_BOUNDS[i]:
            i += 1
        self.slow_puts[i] += 1
        self.slow_put_max_ms = max(self.slow_put_max_ms, took_ms)

    @property
    def failed_operation(self):
        """The system call that failed in the last append with RS_IO_ERROR."""
        return "pwrite" if self.write_failed else "fallocate"

    # ---- append --------------------------------------------------------------------------------

    cdef void signal_appended(self) noexcept nogil:
        # The dispatcher polls while messages flow and sleeps on the event only when idle, so that
        # a put does not pay for a wake-up.
        if rs_load_acquire(&self.dispatcher_idle) != 0:
            rs_event_signal(self.appended)
        if self.flush_event != NULL:
            rs_event_signal(self.flush_event)

    def set_dispatcher_idle(self, bint idle):
        """Said by the dispatcher before it sleeps: appends must wake it."""
        rs_store_release(&self.dispatcher_idle, idle)

    cdef int store_and_publish(self, rs_mapped_file *file, int64_t position, const uint8_t *data,
                               int64_t size, int64_t end, int64_t timestamp) noexcept nogil:
        # Makes confirmed bytes of the file records of the log: readers then see it up to `end`
        # (bytes into the file). Returns a negated errno. The caller holds the put lock.
        cdef int error
        self.write_failed = self.indirect != 0
        if self.indirect == BUFFERED:
            if file.buffer == NULL:
                return -EIO     # a caller committed a full file that it then shortened
            memcpy(file.buffer + position, data, <size_t>size)
        elif self.indirect == WRITTEN:
            if self.unclean:
                return -EIO
            error = write_records(file, self.fd, position, data, size, &self.unclean)
            if error < 0:
                return error
        else:
            store_records(file.base + position, data, size)
        if end == file.file_size:
            file.data_end = position + size
        # First the position, then the time: a flush reads them in the opposite order.
        if self.indirect == BUFFERED:
            rs_store_release(&file.appended, end)
            rs_store_release(&file.appended_timestamp, timestamp)
            rs_store_release(&self.buffered_end, file.file_from_offset + end)
            self.ask_commit(file, end)
        else:
            rs_store_release(&file.wrote, end)
            rs_store_release(&file.store_timestamp, timestamp)
            rs_store_release(&self.end_offset, file.file_from_offset + end)
        return 0

    cdef void ask_commit(self, rs_mapped_file *file, int64_t position) noexcept nogil:
        cdef int64_t committed = rs_load_acquire(&file.wrote)
        if (self.buffer_event != NULL and self.buffer_asked != file.file_from_offset + committed
                and (position - committed >= self.buffer_least or position == file.file_size)):
            self.buffer_asked = file.file_from_offset + committed
            rs_event_signal(self.buffer_event)

    cdef int append_locked(self, uint8_t *records, int64_t size, int32_t count,
                           rs_queue_slot *slot, bint queued, int64_t now,
                           rs_append *out) noexcept nogil:
        # The caller holds the put lock. `records` are `count` encoded records, back to back. `now`
        # is a time that the caller has just read, or 0.
        cdef rs_mapped_file *file = self.file
        cdef int64_t position
        cdef int64_t at = 0
        cdef int32_t i
        if file == NULL:
            return RS_NEED_FILE
        position = append_position(file) if self.indirect else file.wrote
        if size + RS_END_FILE_MIN_BLANK_LENGTH > file.file_size - position:
            return RS_END_OF_FILE
        if position + size > rs_load_acquire(&file.confirmed):
            self.begin_hold()
            out.error = confirm(file, position + size)
            self.write_failed = False
            if out.error < 0:
                rs_store_release(&self.hold, 0)
                return RS_IO_ERROR
        # Store times do not go back between records: another put may have been between.
        out.store_timestamp = now if now and now >= self.last_timestamp else (
            self.env.table.now_ms())
        if position == 0 and out.store_timestamp < self.floor_ms:
            out.store_timestamp = self.floor_ms     # the clock went back since the file was begun
        self.last_timestamp = out.store_timestamp
        self.begin_hold()
        out.phy_offset = file.file_from_offset + position
        out.queue_offset = slot.next_offset if queued else 0
        out.size = size
        out.count = count
        for i in range(count):
            patch_record(records + at, out.queue_offset + i if queued else 0,
                         out.phy_offset + at, out.store_timestamp)
            at += rs_load_be32(records + at)
        if queued:
            rs_store_release(&slot.next_offset, out.queue_offset + count)
        out.error = self.store_and_publish(file, position, records, size, position + size,
                                           out.store_timestamp)
        if out.error < 0:
            if queued:
                rs_store_release(&slot.next_offset, out.queue_offset)
            rs_store_release(&self.hold, 0)
            return RS_IO_ERROR
        slot.put_count += count
        slot.put_bytes += size
        self.put_count += count
        self.put_bytes += size
        rs_store_release(&self.hold, 0)
        self.ask_ahead(file, position + size)
        return RS_OK

    cdef void ask_ahead(self, rs_mapped_file *file, int64_t position) noexcept nogil:
        cdef int64_t confirmed
        if self.ahead == NULL:
            return
        confirmed = rs_load_acquire(&file.confirmed)
        if (confirmed - position < self.ahead_size and confirmed < file.file_size
                and self.ahead_asked != confirmed):
            self.ahead_asked = confirmed
            rs_event_signal(self.ahead)

    cdef int append_run(self, rs_put *put, rs_append *out) noexcept nogil:
        # Single records of any queues, from rows[done] on: as many as the file takes, under one
        # hold of the put lock. RS_OK: all are in the log.
        cdef int status
        out.error = 0
        if not self.take_in_time():
            return RS_BUSY
        status = self.run_locked(put, out)
        rs_lock_release(self.lock)
        self.signal_appended()
        return status

    cdef int run_locked(self, rs_put *put, rs_append *out) noexcept nogil:
        cdef rs_mapped_file *file = self.file
        cdef uint8_t *records = put.records
        cdef rs_run_row *rows = put.rows
        cdef int64_t *queue_offsets = put.queue_offsets
        cdef int64_t *phy_offsets = put.phy_offsets
        cdef Py_ssize_t i = put.done
        cdef Py_ssize_t stop
        cdef int64_t first, position, size, now
        cdef int full = 0
        if file == NULL:
            return RS_NEED_FILE
        position = append_position(file) if self.indirect else file.wrote
        first = rows[i].position
        stop = rows_within(rows, i, put.row_count,
                           file.file_size - RS_END_FILE_MIN_BLANK_LENGTH - position)
        if stop == i:
            return RS_END_OF_FILE
        size = rows[stop - 1].position + rows[stop - 1].size - first
        now = self.env.table.now_ms()
        if position == 0 and now < self.floor_ms:
            now = self.floor_ms
        self.begin_hold()
        if position + size > rs_load_acquire(&file.confirmed):
            out.error = confirm(file, position + size)
            self.write_failed = False
            if out.error < 0:
                # What there was room for before still fits.
                full = out.error
                stop = rows_within(rows, i, stop, rs_load_acquire(&file.confirmed) - position)
                if stop == i:
                    rs_store_release(&self.hold, 0)
                    return RS_IO_ERROR
                size = rows[stop - 1].position + rows[stop - 1].size - first
        self.last_timestamp = now
        for i in range(put.done, stop):
            queue_offsets[i] = rows[i].slot.next_offset
            phy_offsets[i] = file.file_from_offset + position + rows[i].position - first
            patch_record(records + rows[i].position, queue_offsets[i], phy_offsets[i], now)
            rs_store_release(&rows[i].slot.next_offset, queue_offsets[i] + 1)
            rows[i].slot.put_count += 1
            rows[i].slot.put_bytes += rows[i].size
        out.error = self.store_and_publish(file, position, records + first, size,
                                           position + size, now)
        if out.error < 0:
            for i in range(stop - 1, put.done - 1, -1):
                rs_store_release(&rows[i].slot.next_offset, queue_offsets[i])
                rows[i].slot.put_count -= 1
                rows[i].slot.put_bytes -= rows[i].size
            rs_store_release(&self.hold, 0)
            return RS_IO_ERROR
        self.put_count += stop - put.done
        self.put_bytes += size
        put.done = stop
        rs_store_release(&self.hold, 0)
        self.ask_ahead(file, position + size)
        out.error = full
        if stop == put.row_count:
            return RS_OK
        return RS_IO_ERROR if full < 0 else RS_END_OF_FILE

    cdef RecordBuffer take_buffer(self):
        # One is kept for the next put; a second thread makes its own.
        cdef RecordBuffer buffer = self.spare
        self.spare = None
        return RecordBuffer() if buffer is None else buffer

    cdef void give_buffer(self, RecordBuffer buffer):
        if buffer.capacity <= KEPT_BUFFER_BYTES:
            self.spare = buffer

    cdef bint is_quick(self, int64_t size) noexcept nogil:
        # An append stays in memory, so that it may keep the GIL: to let it go costs more than to
        # write a small record. With `by_write` a device that stalls must not stop everybody.
        cdef rs_mapped_file *file = self.file
        return file == NULL or (not file.by_write and append_position(file) + size
                                <= rs_load_acquire(&file.confirmed))

    cdef int append(self, uint8_t *records, int64_t size, int32_t count, QueueSlot slot,
                    bint queued, int64_t now, rs_append *out):
        # The GIL is held on entry and on return; it is let go to wait or to copy much.
        cdef int status = RS_BUSY
        cdef int64_t began_ns, ended_ns
        out.error = 0
        out.took_ms = 0
        if size < NOGIL_MIN_BYTES and rs_lock_try(self.lock):
            if self.is_quick(size):
                status = self.append_locked(records, size, count, &slot.slot, queued, now,
                                            out)
            rs_lock_release(self.lock)
        if status == RS_BUSY:
            began_ns = ended_ns = self.env.table.monotonic_ns()
            with nogil:
                if self.take_in_time():
                    status = self.append_locked(records, size, count, &slot.slot, queued, 0,
                                                out)
                    rs_lock_release(self.lock)
                ended_ns = self.env.table.monotonic_ns()
            out.took_ms = (ended_ns - began_ns) // 1000000
            if now and status == RS_OK and out.took_ms > self.lock_waited_ms:
                self.lock_waited_ms = out.took_ms
        if status == RS_OK:
            self.signal_appended()
        return status

    def roll_by(self, roll):
        """Let `roll`, a callable(size), attach the next file of the log where one is full.

        It raises a StoreError where that is not possible.
        """
        self.roll = roll

    cdef object append_all(self, rs_put *put, list expected, rs_append *out):
        # Appends everything, in as many files as it takes; a block of records goes into one.
        # `out.status` is not RS_OK where something is left. Returns the StoreError of `roll`.
        cdef bint has_rolled = False
        while True:
            if put.rows != NULL:
                with nogil:
                    out.status = self.append_run(put, out)
            elif expected is None:
                out.status = self.append(put.records, put.size, put.count, <QueueSlot>put.slot,
                                         put.queued, 0, out)
            else:
                out.status = self.append_expected(put, expected, out)
            if out.status != RS_END_OF_FILE and out.status != RS_NEED_FILE:
                return None
            has_rolled = has_rolled or out.status == RS_END_OF_FILE
            try:
                self.roll(put.size if put.rows == NULL else put.rows[put.done].size)
            except StoreError as error:
                if has_rolled:
                    out.status = RS_END_OF_FILE
                return error

    cdef int append_expected(self, rs_put *put, list expected, rs_append *out) except -1:
        # As `append`, if each QueueSlot of `expected` has the queue offset that is given with it:
        # else RS_RETRY.
        cdef QueueSlot slot = <QueueSlot>put.slot
        cdef list slots = []
        cdef int status = RS_OK
        for other, value in expected:
            if type(other) is not QueueSlot:
                raise StoreTypeError(f"expected: {type(other).__name__} instead of QueueSlot")
            slots.append((other, <int64_t>value))
        out.error = 0
        self.take_lock()
        for item in slots:
            if (<QueueSlot>(<tuple>item)[0]).slot.next_offset != <int64_t>(<tuple>item)[1]:
                status = RS_RETRY
        if status == RS_OK:
            status = self.append_locked(put.records, put.size, put.count, &slot.slot, put.queued, 0,
                                        out)
            if status == RS_OK and put.queued:
                for item in slots:
                    rs_store_release(&(<QueueSlot>(<tuple>item)[0]).slot.next_offset,
                                     <int64_t>(<tuple>item)[1] + 1)
        rs_lock_release(self.lock)
        if status == RS_OK:
            self.signal_appended()
        return status

    def append_encoded(self, bytes records, int32_t count, QueueSlot slot not None, bint queued,
                       list expected=None):
        """Append encoded records, which are all for one queue and go into one file.

        Parameters
        ----------
        records : bytes, back to back, offsets and store time still zero
        count : int, how many
        queued : bool, False for prepared and rollback records: queue offset 0, none used up
        expected : list of (QueueSlot, int) or None; when a slot has moved on, nothing is written
            and RS_RETRY is given; else each becomes that value + 1 together with the append

        Returns
        -------
        (status, phy_offset, queue_offset, store_timestamp, cause): as `ColumnAppends.append`
        """
        cdef RecordBuffer buffer = self.take_buffer()
        cdef rs_append out
        cdef rs_put put
        memset(&out, 0, sizeof(out))
        memset(&put, 0, sizeof(put))
        put.size, put.count = PyBytes_GET_SIZE(records), count
        put.slot, put.queued = <PyObject *>slot, queued
        buffer.ensure(put.size)
        put.records = buffer.data
        memcpy(buffer.data, PyBytes_AS_STRING(records), <size_t>put.size)
        check_rows(buffer.data, put.size, count)
        error = self.append_all(&put, expected, &out)
        self.give_buffer(buffer)
        return (out.status, out.phy_offset, out.queue_offset, out.store_timestamp,
                -out.error if error is None else error)

    # ---- bytes of another log ------------------------------------------------------------------

    @property
    def copied_end(self):
        """The physical offset of the next copied byte: the log's end, and a partial record."""
        return self.appended_end + self.partial_size

    def begin_copy(self):
        """Let only `append_copied` write: a put gets RS_NEED_FILE, until `end_copy`."""
        self.take_lock()
        self.is_copying = True
        self.file = NULL
        rs_lock_release(self.lock)

    def end_copy(self):
        """Let puts write again. Raises StoreStateError within a record."""
        if self.partial_size:
            raise StoreStateError(f"the log ends within a record, after {self.partial_size} bytes")
        self.take_lock()
        self.is_copying = False
        self.file = NULL if self.mapped_file is None else &self.mapped_file.file
        rs_lock_release(self.lock)

    def drop_partial(self):
        """Forget the bytes of a record that is not whole; returns how many."""
        cdef int64_t size
        self.take_lock()
        size = self.partial_size
        self.partial_size = 0
        self.partial_waits = False
        rs_lock_release(self.lock)
        return size

    def begin_copied_file(self, int64_t file_from_offset):
        """Let the first record of this file be stored: the checkpoint has `waiting_timestamp`."""
        self.begun_file = file_from_offset

    def append_copied(self, data, Py_ssize_t begin=0):
        """Append bytes of another log from `data[begin]` on, after `begin_copy`.

        Whole records are stored as they are; the begin of the last one is kept until the rest
        comes. The bytes behind a BLANK are not stored.

        Parameters
        ----------
        data : bytes-like; it does not change meanwhile

        Returns
        -------
        (status, end, errno): everything before data[end] is taken. RS_OK; RS_NEED_FILE: attach the
        next file; RS_NEED_PYTHON: call `begin_copied_file`; RS_IO_ERROR; another verdict: the bytes
        from the partial record, or from `end` on, are no record of this position of the log.

        Threads: one at a time; without the GIL. Source: RocketMQ 4.9.3 CommitLog#appendData.
        """
        cdef Py_buffer view
        cdef int64_t at = begin
        cdef int32_t error = 0
        cdef int status = RS_END_OF_FILE
        if not self.is_copying:
            raise StoreStateError("begin_copy was not called")
        hold_body(data, &view, "data", -1)
        try:
            if not 0 <= begin <= view.len:
                raise ValueError(f"begin {begin}: must be 0 to {view.len}")
            while status == RS_END_OF_FILE:
                with nogil:
                    rs_lock_take(self.lock)
                    status = self.copy_locked(<const uint8_t *>view.buf, view.len, &at, &error)
                    rs_store_release(&self.hold, 0)
                    rs_lock_release(self.lock)
                if status == RS_END_OF_FILE:
                    self.detach()
        finally:
            PyBuffer_Release(&view)
        self.signal_appended()
        return status, at, -error

    cdef int detach(self) except -1:
        # From a file that is full; no put knows it any more.
        cdef MappedFile old = self.mapped_file
        cdef int fd = self.fd
        self.take_lock()
        self.mapped_file = None
        self.fd = -1
        rs_lock_release(self.lock)
        return self.let_go(old, fd)

    cdef int copy_locked(self, const uint8_t *data, int64_t size, int64_t *at,
                         int32_t *error) noexcept nogil:
        # The caller holds the put lock. RS_END_OF_FILE: the file is full, and data may be left.
        cdef int64_t before
        cdef int status = RS_OK
        while status == RS_OK and (at[0] < size or self.partial_waits):
            if self.mapped_file is None:
                return RS_NEED_FILE
            before = at[0]
            if self.partial_size == 0:
                status = self.copy_records(data, size, at, error)
            if status == RS_OK and at[0] == before:
                status = self.copy_partial(data, size, at, error)
        return status

    cdef int copy_records(self, const uint8_t *data, int64_t size, int64_t *at,
                          int32_t *error) noexcept nogil:
        # The next whole records, as many as are stored at once.
        cdef rs_mapped_file *file = &self.mapped_file.file
        cdef int64_t position = append_position(file)
        cdef int64_t begin = at[0]
        cdef int64_t end = begin
        cdef int64_t timestamp = 0
        cdef int64_t record_bytes
        cdef rs_record record
        cdef int status = RS_OK
        while size - end >= RS_END_FILE_MIN_BLANK_LENGTH and end - begin < COPY_BYTES:
            record_bytes = copied_size(data + end, file.file_size - position - (end - begin))
            if record_bytes < 0:
                status = <int>-record_bytes
                break
            if record_bytes > size - end or is_blank(data + end):
                break
            # Recovery would end the log before a body with another CRC.
            status = check_record(data + end, record_bytes,
                                  file.file_from_offset + position + end - begin, True, &record)
            if status != RS_OK:
                break
            timestamp = record.store_timestamp
            if position == 0 and end == begin and self.begun_file != file.file_from_offset:
                self.waiting_timestamp = timestamp
                return RS_NEED_PYTHON
            end += record_bytes
        if end > begin:
            error[0] = self.store_up_to(file, position, data + begin, end - begin,
                                        position + end - begin, timestamp)
            if error[0] < 0:
                return RS_IO_ERROR
            at[0] = end
        return status

    cdef int copy_partial(self, const uint8_t *data, int64_t size, int64_t *at,
                          int32_t *error) noexcept nogil:
        # Completes the partial record, or begins one, and stores it once it is whole.
        cdef rs_mapped_file *file = &self.mapped_file.file
        cdef int64_t position = append_position(file)
        cdef int64_t room = file.file_size - position
        cdef int64_t stored = RS_END_FILE_MIN_BLANK_LENGTH      # of a BLANK
        cdef int64_t timestamp
        cdef rs_record record
        cdef bint ends_file
        cdef int status
        if not self.partial_waits:
            status = self.take_partial(data, size, at, room)
            if status != RS_OK or not self.partial_waits:
                return status
        ends_file = is_blank(self.partial.data)
        if ends_file:
            timestamp = rs_load_acquire(&file.appended_timestamp if self.indirect == BUFFERED
                                        else &file.store_timestamp)
        else:
            stored = self.partial_size
            status = check_record(self.partial.data, stored, file.file_from_offset + position,
                                  True, &record)
            if status != RS_OK:
                self.partial_waits = False
                return status
            timestamp = record.store_timestamp
            if position == 0 and self.begun_file != file.file_from_offset:
                self.waiting_timestamp = timestamp
                return RS_NEED_PYTHON
        error[0] = self.store_up_to(file, position, self.partial.data, stored,
                                    file.file_size if ends_file else position + stored, timestamp)
        if error[0] < 0:
            return RS_IO_ERROR      # it is whole, and the next call tries again, also without data
        self.partial_waits = False
        self.partial_size = 0
        return RS_END_OF_FILE if ends_file else RS_OK

    cdef int take_partial(self, const uint8_t *data, int64_t size, int64_t *at,
                          int64_t room) noexcept nogil:
        # Takes bytes until the record is whole, and sets `partial_waits` then. Its size is believed
        # only as far as bytes come.
        cdef int64_t wanted = RS_END_FILE_MIN_BLANK_LENGTH
        cdef int64_t taken
        while True:
            if self.partial_size >= RS_END_FILE_MIN_BLANK_LENGTH:
                wanted = copied_size(self.partial.data, room)
                if wanted < 0:
                    return <int>-wanted
                if self.partial_size == wanted:
                    self.partial_waits = True
                    return RS_OK
            taken = min(wanted - self.partial_size, size - at[0])
            if taken == 0:
                return RS_OK
            if self.partial_size < RS_END_FILE_MIN_BLANK_LENGTH or not is_blank(self.partial.data):
                if not self.partial.grow(self.partial_size + taken):
                    return RS_NO_MEMORY
                memcpy(self.partial.data + self.partial_size, data + at[0], <size_t>taken)
            self.partial_size += taken
            at[0] += taken

    cdef int store_up_to(self, rs_mapped_file *file, int64_t position, const uint8_t *data,
                         int64_t size, int64_t end, int64_t timestamp) noexcept nogil:
        # For bytes that need not be quick. `end`, bytes into the file, is the next position; up to
        # the end of the file nothing is stored. The caller ends the hold of the put lock.
        cdef int error
        self.begin_hold()
        error = confirm(file, position + size)
        self.write_failed = False
        if error >= 0:
            error = self.store_and_publish(file, position, data, size, end, timestamp)
        if error < 0:
            return error
        if end < file.file_size:
            self.ask_ahead(file, end)
        return 0


# Store times of records, for searches by time.

@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class StoreTimes:
    """Callable(phy_offset, size): the store time (Unix ms) of the record there, -1 if unreadable.

    Only the header of the record is read, though all of its bytes must be in the log.

    Parameters
    ----------
    core : CommitLogCore, which has the log's end
    mapped_file_queue : MappedFileQueue, the log's

    Raises StoreIOError; StoreCorruptionError: a file is shorter than its records.
    Threads: any. Source: RocketMQ 4.9.3 CommitLog#pickupStoreTimestamp.
    """

    cdef CommitLogCore core
    cdef object files

    def __cinit__(self, CommitLogCore core not None, mapped_file_queue):
        self.core = core
        self.files = mapped_file_queue

    def __call__(self, int64_t phy_offset, int64_t size):
        cdef FileSequence files = <FileSequence?>self.files.mapped_files
        cdef int64_t file_size = self.files.mapped_file_size
        cdef int64_t end = rs_load_acquire(&self.core.end_offset)
        cdef MappedFile file
        cdef int64_t start, position
        if size <= 0 or phy_offset < 0 or size > end or phy_offset > end - size:
            return -1
        if files.count == 0 or file_size <= 0:
            return -1
        file = files.at(0)
        start = file.file.file_from_offset
        if not file.available:  # it is being deleted
            start += file_size - start % file_size
        if phy_offset < start:
            return -1
        file = file_with(files, phy_offset, file_size)
        if file is None:
            return -1
        position = phy_offset - file.file.file_from_offset
        if position > rs_load_acquire(&file.file.wrote) - size:
            return -1
        try:
            return self.time_at(file, position, min(size, <int64_t>HEADER_BYTES))
        except StoreIOError as error:
            if not self.files.changes.is_of_owner(error):
                raise
            return -1

    cdef int64_t time_at(self, MappedFile file, int64_t position, int64_t size) except? -1:
        cdef uint8_t[HEADER_BYTES] header
        cdef int64_t got
        if not file.take_hold():
            return -1
        try:
            if file.file.base != NULL:
                return store_time_in(file.file.base + position, size)
            got = file.read_into(header, size, position)
            check_io(got, "pread", file.path, position)
            if got < size:
                raise StoreCorruptionError(
                    file.path, position, f"the file ends after {got} of {size} bytes"
                )
            return store_time_in(header, size)
        finally:
            file.drop_hold()


# Group commit: a put under SYNC_FLUSH waits here, without the GIL, until it is on the device.

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
    """The threads that wait for the log to be on the device, one of which flushes it.

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
        """Time of these calls, ns."""
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
        # The last step of a leader, after `force`.
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
