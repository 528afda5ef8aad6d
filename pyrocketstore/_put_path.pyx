"""The compiled part of the face: `put` and `put_many` as one call each."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from pyrocketstore._commit_log cimport (
    CommitLogCore,
    PutMessageResult,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_append,
)
from pyrocketstore._record cimport encode_record, encoded_size
from pyrocketstore._rocketstore cimport (
    RS_END_OF_FILE,
    RS_MAX_PROPERTIES_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_TOO_LARGE,
    rs_lock_release,
    rs_lock_take,
    rs_outgoing,
)
from pyrocketstore._text cimport build_properties, fill_outgoing_host, utf8_of

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.message import check_text, join_keys

# Above this many bytes, encoding runs without the GIL.
cdef int64_t NOGIL_MIN_BYTES = 8192
# put_many holds the put lock for at most this many bytes at a time.
cdef int64_t CHUNK_BYTES = 4194304


cdef struct pending_record:
    int64_t position
    int32_t size
    int64_t *next_offset
    rs_outgoing outgoing


cdef int append_pending(CommitLogCore core, uint8_t *buffer, pending_record *pending,
                        Py_ssize_t count, Py_ssize_t *done, int64_t *queue_offsets,
                        int64_t *phy_offsets, rs_append *out) noexcept nogil:
    # As many of the records as fit, under one hold of the put lock.
    cdef int status = RS_OK
    rs_lock_take(core.lock)
    while done[0] < count:
        status = core.append_locked(buffer + pending[done[0]].position, pending[done[0]].size, 1,
                                    pending[done[0]].next_offset, True, out)
        if status != RS_OK:
            break
        queue_offsets[done[0]] = out.queue_offset
        phy_offsets[done[0]] = out.phy_offset
        done[0] += 1
    rs_lock_release(core.lock)
    return status


cdef inline bint plain_text(const char *text, Py_ssize_t size) noexcept nogil:
    # A property value that reads back equal: not empty, without the two separators.
    return (size > 0 and memchr(text, 1, <size_t>size) == NULL
            and memchr(text, 2, <size_t>size) == NULL)


cdef bint plain(value) except -1:
    # None, or a str that reads back equal.
    cdef Py_ssize_t size
    cdef const char *text
    if value is None:
        return True
    if type(value) is not str:
        return False
    text = utf8_of(value, &size)
    return plain_text(text, size)


@cython.auto_pickle(False)
cdef class Columns:
    """The columns of put_many, checked: one entry a message, or None for a column without any."""
    cdef str topic
    cdef list bodies
    cdef list queue_ids
    cdef int64_t queue_id
    cdef list tags
    cdef list keys
    cdef list texts
    cdef list flags

    def __init__(self, str topic not None, list bodies not None, queue_ids, list tags, list keys,
                 list texts, list flags=None):
        """`queue_ids` is a list or one int; `texts`, where it has bytes, stands for tags and keys.

        Raises StoreFormatError for tags or keys that would not read back equal.
        """
        cdef Py_ssize_t i
        self.topic = topic
        self.bodies = bodies
        if type(queue_ids) is list:
            self.queue_ids = queue_ids
        else:
            self.queue_id = queue_ids
        self.tags = tags
        self.keys = keys
        self.texts = texts
        self.flags = flags
        for column in (queue_ids, tags, keys, texts, flags):
            if type(column) is list and len(column) != len(bodies):
                raise StoreFormatError("the columns differ in length")
        for i in range(len(bodies)):
            if tags is not None and not plain(tags[i]):
                check_text("tags", tags[i])
            if keys is not None and not plain(keys[i]):
                keys[i] = join_keys(keys[i])

    def __len__(self):
        return len(self.bodies)


@cython.auto_pickle(False)
cdef class Chunk:
    """Rows of put_many that are encoded together: their buffers are pinned while it lives."""
    cdef pending_record *pending
    cdef Py_buffer *views
    cdef int64_t *text_positions
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t size
    cdef QueueSlot slot
    cdef RecordBuffer texts
    cdef list owners

    def __cinit__(self, Py_ssize_t capacity=4096):
        self.capacity = capacity
        self.pending = <pending_record *>malloc(self.capacity * sizeof(pending_record))
        self.views = <Py_buffer *>malloc(self.capacity * sizeof(Py_buffer))
        self.text_positions = <int64_t *>malloc(self.capacity * sizeof(int64_t))
        self.texts = RecordBuffer()
        self.owners = []
        if self.pending == NULL or self.views == NULL or self.text_positions == NULL:
            raise MemoryError()

    def __dealloc__(self):
        self.clear()
        free(self.pending)
        free(self.views)
        free(self.text_positions)

    cdef void clear(self) noexcept:
        while self.count > 0:
            self.count -= 1
            PyBuffer_Release(&self.views[self.count])

    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, RecordBuffer buffer, int64_t bytes_max) except -2:
        # Takes rows until so many bytes are full; -1: the first row is larger than a record may be.
        cdef Py_ssize_t total = len(columns.bodies)
        cdef int64_t bytes_total = 0
        cdef int64_t texts_total = 0
        cdef int64_t size
        cdef Py_ssize_t i
        cdef TopicEntry entry = core.topic_entry(columns.topic)
        cdef QueueSlot slot = None
        cdef rs_outgoing *message
        cdef int64_t now = core.env.table.now_ms()
        self.clear()
        del self.owners[:]
        self.owners.append(entry)
        while first + self.count < total and self.count < self.capacity:
            i = first + self.count
            message = &self.pending[self.count].outgoing
            memcpy(message, template, sizeof(rs_outgoing))
            message.topic = entry.data
            message.topic_size = entry.size
            message.born_timestamp = now
            slot = self.slot_at(core, entry, columns, i, slot)
            message.queue_id = slot.queue_id
            if columns.flags is not None:
                message.flag = columns.flags[i]
            size = self.text_at(columns, i, texts_total)
            message.properties_size = <int32_t>size
            self.text_positions[self.count] = texts_total
            texts_total += size
            PyObject_GetBuffer(columns.bodies[i], &self.views[self.count], PyBUF_SIMPLE)
            message.body = <const uint8_t *>self.views[self.count].buf
            message.body_size = self.views[self.count].len
            size = encoded_size(message)
            if message.body_size > 0x7FFFFFFF or size > core.max_message_size:
                PyBuffer_Release(&self.views[self.count])
                if self.count == 0:
                    return -1
                break
            if self.count and bytes_total + size > bytes_max:
                PyBuffer_Release(&self.views[self.count])
                break
            self.pending[self.count].position = bytes_total
            self.pending[self.count].size = <int32_t>size
            self.pending[self.count].next_offset = &slot.next_offset
            bytes_total += size
            self.count += 1
        for i in range(self.count):      # now the texts do not move any more
            self.pending[i].outgoing.properties = self.texts.data + self.text_positions[i]
        buffer.ensure(bytes_total)
        self.size = bytes_total
        self.slot = slot
        return self.count

    cdef QueueSlot slot_at(self, CommitLogCore core, TopicEntry entry, Columns columns,
                           Py_ssize_t i, QueueSlot last):
        cdef int64_t queue_id
        if columns.queue_ids is None:
            queue_id = columns.queue_id
        else:
            wanted = columns.queue_ids[i]
            queue_id = 0 if wanted is None else wanted
        if last is not None and last.queue_id == queue_id:
            return last
        found = entry.slots.get(queue_id)
        if found is None:
            found = core.slot_of(columns.topic, queue_id)
        self.owners.append(found)
        return <QueueSlot>found

    cdef int64_t text_at(self, Columns columns, Py_ssize_t i, int64_t position) except -1:
        # Writes the properties of row i at `position` of the arena and gives their size.
        cdef int64_t size
        cdef bytes text
        self.texts.ensure(position + RS_MAX_PROPERTIES_SIZE)
        if columns.texts is not None and columns.texts[i] is not None:
            text = columns.texts[i]
            size = PyBytes_GET_SIZE(text)
            if size <= RS_MAX_PROPERTIES_SIZE:
                memcpy(self.texts.data + position, PyBytes_AS_STRING(text), <size_t>size)
        else:
            size = build_properties(None if columns.tags is None else columns.tags[i],
                                    None if columns.keys is None else columns.keys[i],
                                    None, self.texts.data + position, RS_MAX_PROPERTIES_SIZE)
        if size < 0 or size > RS_MAX_PROPERTIES_SIZE:
            raise StoreFormatError(f"message {i}: the properties have more than 32767 bytes")
        return size

    cdef void encode(self, uint8_t *buffer) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            encode_record(&self.pending[i].outgoing, buffer + self.pending[i].position)


@cython.auto_pickle(False)
cdef class PutPath:
    """The compiled part of the face: `put` and `put_many` as one call each.

    A subclass in Python gives `_put_slow`, `_roll` and `_after_put`, which deal with everything
    that is not an ordinary put.
    """

    cdef readonly CommitLogCore core
    cdef rs_outgoing template
    cdef public bint put_fast

    def bind_put_path(self, CommitLogCore core, store_host):
        """Write through `core`, with `store_host` ("ip:port") as store and born host."""
        self.core = core
        memset(&self.template, 0, sizeof(self.template))
        self.template.store_host_size = fill_outgoing_host(store_host, self.template.store_host)
        self.template.born_host_size = fill_outgoing_host(store_host, self.template.born_host)

    def put(self, str topic not None, body, *, queue_id=0, tags=None, keys=None, properties=None,
            int delay_level=0, flag=0, born_timestamp=None, born_host=None):
        """Append one message and give its PutMessageResult.

        Parameters
        ----------
        topic : str, 1 to 127 of ``%|a-zA-Z0-9_-``
        body : bytes-like
        queue_id : int
        tags : str or None
        keys : str (several keys are separated by blanks), a sequence of str, or None
        properties : mapping of str to str, or None; not RocketMQ's reserved names
        delay_level : int, 0: none
        flag : int32, the user's own
        born_timestamp : int, Unix ms, default now
        born_host : "ip:port", default the store host

        Raises
        ------
        StoreFormatError, the message could not be kept so that it reads back equal
        PutError, any outcome but PUT_OK
        StoreStateError, closed or read-only

        Threads: any. Durability: with ASYNC_FLUSH it survives this process at once and the machine
        after the next flush; with SYNC_FLUSH it is on the device on return.
        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessage.
        """
        cdef Py_buffer view
        cdef rs_outgoing message
        cdef rs_append out
        cdef uint8_t text[2048]
        cdef QueueSlot slot
        cdef TopicEntry entry
        cdef RecordBuffer buffer
        cdef int64_t size
        cdef int status
        if (not self.put_fast or properties is not None or delay_level != 0
                or born_host is not None or not (keys is None or type(keys) is str)):
            return self._put_slow(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                  born_timestamp, born_host)
        found = self.core.topics.get(topic)
        slot_found = None if found is None else (<TopicEntry>found).slots.get(queue_id)
        if slot_found is None or not plain(tags) or not plain(keys):
            return self._put_slow(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                  born_timestamp, born_host)
        entry = <TopicEntry>found
        slot = <QueueSlot>slot_found
        size = build_properties(tags, keys, None, text, sizeof(text))
        if size < 0:
            return self._put_slow(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                  born_timestamp, born_host)
        memcpy(&message, &self.template, sizeof(message))
        message.properties = text
        message.properties_size = <int32_t>size
        message.topic = entry.data
        message.topic_size = entry.size
        message.queue_id = slot.queue_id
        message.flag = flag
        message.born_timestamp = (self.core.env.table.now_ms() if born_timestamp is None
                                  else born_timestamp)
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        buffer = None
        try:
            message.body = <const uint8_t *>view.buf
            message.body_size = view.len
            size = encoded_size(&message)
            if view.len > 0x7FFFFFFF or size > self.core.max_message_size:
                status = RS_TOO_LARGE
            else:
                buffer = self.core.buffers.pop() if self.core.buffers else RecordBuffer()
                buffer.ensure(size)
                if size < NOGIL_MIN_BYTES:
                    encode_record(&message, buffer.data)
                else:
                    with nogil:
                        encode_record(&message, buffer.data)
                status = self.core.append(buffer.data, size, 1, slot, True, &out)
        finally:
            PyBuffer_Release(&view)
            if buffer is not None:
                self.core.buffers.append(buffer)
        if status != RS_OK:
            return self._put_slow(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                  message.born_timestamp, born_host)
        return self.result_of(&out)

    cdef PutMessageResult result_of(self, rs_append *out):
        cdef PutMessageResult result = PutMessageResult.__new__(PutMessageResult)
        result.phy_offset = out.phy_offset
        result.queue_offset = out.queue_offset
        result.wrote_bytes = out.size
        result.store_timestamp = out.store_timestamp
        result.message_count = out.count
        result.host_size = self.template.store_host_size
        memcpy(result.host, self.template.store_host, sizeof(result.host))
        return result

    def _append_columns(self, Columns columns not None, queue_offsets, phy_offsets,
                        born_host=None):
        """Append checked columns in the given order; the engine of put_many.

        Parameters
        ----------
        queue_offsets, phy_offsets : int64[n], filled
        born_host : "ip:port" or None

        Returns
        -------
        (done, status, cause): how many are in the log, and why it stopped (RS_OK: all are); the
        cause is an errno, or with RS_NEED_PYTHON the exception that a later row raised. Where
        nothing is in the log yet, that exception is raised.
        """
        cdef Py_ssize_t total = len(columns.bodies)
        cdef Py_ssize_t first = 0
        cdef Py_ssize_t done = 0
        cdef Py_ssize_t count
        cdef int64_t[::1] queue_view = queue_offsets
        cdef int64_t[::1] phy_view = phy_offsets
        cdef RecordBuffer buffer = self.core.buffers.pop() if self.core.buffers else RecordBuffer()
        cdef rs_append out
        cdef rs_outgoing template = self.template
        cdef int status = RS_OK
        cdef Chunk chunk = Chunk()
        memset(&out, 0, sizeof(out))
        if born_host is not None:
            template.born_host_size = fill_outgoing_host(born_host, template.born_host)
        try:
            while first < total:
                count = chunk.fill(self.core, &template, columns, first, buffer,
                                   CHUNK_BYTES)
                if count < 0:
                    return first, RS_TOO_LARGE, 0
                with nogil:
                    chunk.encode(buffer.data)
                while done < count:
                    with nogil:
                        status = append_pending(self.core, buffer.data, chunk.pending, count, &done,
                                                &queue_view[first], &phy_view[first], &out)
                    if done:
                        self.core.signal_appended()
                    if status == RS_END_OF_FILE or status == RS_NEED_FILE:
                        errno = self._roll(chunk.pending[done].size)
                        if errno:
                            return first + done, status, errno
                    elif status != RS_OK:
                        return first + done, status, -out.error
                first += count
                done = 0
        except Exception as problem:
            if first + done == 0:
                raise
            return first + done, RS_NEED_PYTHON, problem
        finally:
            chunk.clear()
            self.core.buffers.append(buffer)
        return total, RS_OK, 0

    def _append_batch(self, Columns columns not None):
        """Append checked columns as one batch: one queue, one file, all or nothing.

        Returns (PutMessageResult or None, status, errno): the result with RS_OK; RS_TOO_LARGE when
        the records have more bytes than maxMessageSize or a file.
        """
        cdef Py_ssize_t total = len(columns.bodies)
        cdef Py_ssize_t i
        cdef RecordBuffer buffer = self.core.buffers.pop() if self.core.buffers else RecordBuffer()
        cdef Chunk chunk = Chunk(total + 1)
        cdef rs_append out
        cdef PutMessageResult result
        cdef int status = RS_TOO_LARGE
        memset(&out, 0, sizeof(out))
        try:
            if chunk.fill(self.core, &self.template, columns, 0, buffer,
                          self.core.max_message_size) < total:
                return None, RS_TOO_LARGE, 0
            with nogil:
                chunk.encode(buffer.data)
            while True:
                status = self.core.append(buffer.data, chunk.size, <int32_t>total, chunk.slot, True,
                                          &out)
                if status != RS_END_OF_FILE and status != RS_NEED_FILE:
                    break
                errno = self._roll(chunk.size)
                if errno:
                    return None, status, errno
            if status != RS_OK:
                return None, status, -out.error
            result = self.result_of(&out)
            result.positions = [out.phy_offset + chunk.pending[i].position for i in range(total)]
            return result, RS_OK, 0
        finally:
            chunk.clear()
            self.core.buffers.append(buffer)
