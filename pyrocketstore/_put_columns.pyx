# Special methods of a row may change a list while it is walked.
# cython: boundscheck=True
"""Many messages at once: checked columns, and the rows of them that are written together."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyrocketstore._commit_log cimport (
    CommitLogCore,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_run_row,
)
from pyrocketstore._record cimport encode_record, encoded_size
from pyrocketstore._rocketstore cimport RS_MAX_PROPERTIES_SIZE, rs_outgoing
from pyrocketstore._text cimport build_properties, utf8_of

from pyrocketstore._text import put_properties
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.message import check_text, join_keys

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const uint8_t *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

# In the order of Java's HashMap one of the two names always comes first.
cdef bint KEYS_FIRST = put_properties("t", "k", None).startswith(b"KEYS")


cdef inline Py_ssize_t copy_plain(object text, uint8_t *out, int64_t room):
    # The UTF-8 of a str that reads back equal: not empty, without the two separators. Else -1.
    cdef Py_ssize_t size
    cdef const uint8_t *p
    cdef Py_ssize_t i
    cdef uint8_t bad = 0
    if type(text) is not str:
        return -1
    if PyUnicode_IS_COMPACT_ASCII(text):
        p = PyUnicode_1BYTE_DATA(text)
        size = PyUnicode_GET_LENGTH(text)
    else:
        try:
            p = <const uint8_t *>utf8_of(text, &size)
        except StoreFormatError:
            return -1
    if size == 0 or size > room:
        return -1
    for i in range(size):
        out[i] = p[i]
        bad |= (p[i] == 1) | (p[i] == 2)
    return -1 if bad else size


cdef int64_t tags_and_keys(object tags, object keys, uint8_t *out, int64_t capacity):
    cdef int64_t at = 0
    cdef Py_ssize_t size
    cdef bint keys_turn = KEYS_FIRST
    cdef int turn
    for turn in range(2):
        value = keys if keys_turn else tags
        if value is not None:
            if capacity - at < 7:
                return -1
            if at:
                out[at] = 2
                at += 1
            memcpy(out + at, b"KEYS\x01" if keys_turn else b"TAGS\x01", 5)
            size = copy_plain(value, out + at + 5, capacity - at - 5)
            if size < 0:
                return -1
            at += 5 + size
        keys_turn = not keys_turn
    return at


cdef inline object value_of(dict item, str name, int *known):
    # A reference of its own at once: comparing the next name may run Python that changes the dict.
    cdef PyObject *value = PyDict_GetItem(item, name)
    if value == NULL:
        return None
    known[0] += 1
    return <object>value


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Columns:
    """The columns of put_many or put_batch, checked; their properties texts stand in one arena.

    Raises StoreFormatError for tags or keys that would not read back equal.
    """

    def __cinit__(self, str topic not None, list bodies not None, queue_ids, list tags or None,
                  list keys or None, list texts or None, list flags=None):
        # `queue_ids` is a list or one int; `texts`, where it has bytes, stands for tags and keys.
        cdef Py_ssize_t i
        self.topic = topic
        self.bodies = bodies[:]
        if type(queue_ids) is list:
            self.queue_ids = (<list>queue_ids)[:]
        else:
            self.queue_id = queue_ids
        self.flags = None if flags is None else flags[:]
        for column in (self.queue_ids, tags, keys, texts, self.flags):
            if column is not None and len(column) != len(self.bodies):
                raise StoreFormatError("the columns differ in length")
        self.start(len(self.bodies))
        for i in range(self.rows):
            self.add_text(i, None if tags is None else tags[i], None if keys is None else keys[i],
                          None if texts is None else texts[i])

    def __dealloc__(self):
        free(self.text_ends)

    def __len__(self):
        return self.rows

    @staticmethod
    def of_items(str topic not None, list items not None, int64_t queue_id):
        """The columns of put_batch from bytes and from dicts with `body`, `tags`, `keys`, `flag`.

        None where an item is anything else: then Python looks at them one by one.
        Raises StoreFormatError for tags or keys that would not read back equal.
        """
        cdef Columns self = Columns.__new__(Columns, topic, [], queue_id, None, None, None)
        cdef Py_ssize_t i
        self.start(len(items))
        for i in range(self.rows):
            item = items[i]
            if type(item) is bytes:
                self.bodies.append(item)
                self.add_text(i, None, None, None)
                if self.flags is not None:
                    self.flags.append(0)
            elif type(item) is not dict or not self.add_item(i, <dict>item):
                return None
        return self

    cdef int start(self, Py_ssize_t rows) except -1:
        free(self.text_ends)
        self.rows = 0
        self.texts = RecordBuffer()
        self.text_ends = <int64_t *>malloc((rows + 1) * sizeof(int64_t))
        if self.text_ends == NULL:
            raise MemoryError()
        self.text_ends[0] = 0
        self.rows = rows
        return 0

    cdef int add_text(self, Py_ssize_t i, object tags, object keys, object text) except -1:
        # The properties of row i, behind those of the rows before it.
        cdef int64_t at = self.text_ends[i]
        cdef int64_t size
        if tags is None and keys is None and text is None:
            self.text_ends[i + 1] = at
            return 0
        self.texts.ensure(at + RS_MAX_PROPERTIES_SIZE)
        if text is not None:
            if type(text) is not bytes:
                raise TypeError(f"message {i}: a properties text is {type(text).__name__}")
            size = PyBytes_GET_SIZE(text)
            if size <= RS_MAX_PROPERTIES_SIZE:
                memcpy(self.texts.data + at, PyBytes_AS_STRING(text), <size_t>size)
        else:
            size = tags_and_keys(tags, keys, self.texts.data + at, RS_MAX_PROPERTIES_SIZE)
            if size < 0:
                if tags is not None:
                    check_text("tags", tags)
                size = build_properties(tags, join_keys(keys), None, self.texts.data + at,
                                        RS_MAX_PROPERTIES_SIZE)
        if size < 0 or size > RS_MAX_PROPERTIES_SIZE:
            raise StoreFormatError(f"message {i}: the properties have more than 32767 bytes")
        self.text_ends[i + 1] = at + size
        return 0

    cdef bint add_item(self, Py_ssize_t i, dict item) except -1:
        # False where the dict has more than the four ordinary entries.
        cdef int known = 0
        cdef int before
        cdef bint has_flag
        body = value_of(item, "body", &known)
        if known == 0:
            return False
        tags = value_of(item, "tags", &known)
        keys = value_of(item, "keys", &known)
        before = known
        flag = value_of(item, "flag", &known)
        has_flag = known > before
        if known != PyDict_Size(item):
            return False
        self.bodies.append(body)
        self.add_text(i, tags, keys, None)
        if has_flag and self.flags is None:
            self.flags = [0] * i
        if self.flags is not None:
            self.flags.append(flag if has_flag else 0)
        return True


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Chunk:
    """Rows that are encoded and written together: their buffers are pinned while it lives."""

    def __dealloc__(self):
        self.unpin()
        free(self.rows)
        free(self.parts)
        free(self.views)

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        if capacity <= self.capacity:
            return 0
        self.clear()
        free(self.rows)
        free(self.parts)
        free(self.views)
        self.capacity = 0
        self.rows = <rs_run_row *>malloc(capacity * sizeof(rs_run_row))
        self.parts = <encoded_row *>malloc(capacity * sizeof(encoded_row))
        self.views = <Py_buffer *>malloc(capacity * sizeof(Py_buffer))
        if self.rows == NULL or self.parts == NULL or self.views == NULL:
            raise MemoryError()
        self.capacity = capacity
        return 0

    cdef void clear(self) noexcept:
        self.count = 0
        self.unpin()
        self.owner = None

    cdef void unpin(self) noexcept:
        while self.view_count > 0:
            self.view_count -= 1
            PyBuffer_Release(&self.views[self.view_count])

    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, RecordBuffer buffer, int64_t bytes_max) except -2:
        # Takes rows until so many bytes are full; -1: the first row is larger than a record may be.
        cdef int64_t bytes_total = 0
        cdef int64_t size, text_position
        cdef int64_t fixed
        cdef Py_ssize_t i
        cdef TopicEntry entry = core.topic_entry(columns.topic)
        cdef QueueSlot slot = None
        cdef encoded_row *part
        cdef rs_run_row *row
        self.clear()
        self.owner = entry
        template.topic = entry.data
        template.topic_size = entry.size
        template.body_size = 0
        template.properties_size = 0
        template.born_timestamp = core.env.table.now_ms()
        fixed = encoded_size(template)
        while first + self.count < columns.rows and self.count < self.capacity:
            i = first + self.count
            part = &self.parts[self.count]
            row = &self.rows[self.count]
            slot = self.slot_at(core, columns, i, slot)
            part.flag = 0 if columns.flags is None else columns.flags[i]
            text_position = columns.text_ends[i]
            part.text_position = text_position
            part.text_size = <int32_t>(columns.text_ends[i + 1] - text_position)
            if part.text_size == 0:
                part.text_position = -1
                part.text_size = core.bare_size
            self.pin(columns.bodies[i], part)
            size = fixed + part.body_size + part.text_size
            if part.body_size > 0x7FFFFFFF or size > core.max_message_size:
                if self.count == 0:
                    return -1
                break
            if self.count and bytes_total + size > bytes_max:
                break
            row.position = bytes_total
            row.size = <int32_t>size
            row.queue_id = slot.queue_id
            row.next_offset = &slot.next_offset
            bytes_total += size
            self.count += 1
        buffer.ensure(bytes_total)
        self.texts = columns.texts.data
        self.bare = core.bare
        self.size = bytes_total
        self.slot = slot
        return self.count

    cdef int pin(self, object body, encoded_row *part) except -1:
        # The columns keep a bytes object alive, and nobody changes it; anything else is held.
        cdef Py_buffer *view
        if type(body) is bytes:
            part.body = <const uint8_t *>PyBytes_AS_STRING(body)
            part.body_size = PyBytes_GET_SIZE(body)
            return 0
        view = &self.views[self.view_count]
        PyObject_GetBuffer(body, view, PyBUF_SIMPLE)
        self.view_count += 1
        part.body = <const uint8_t *>view.buf
        part.body_size = view.len
        return 0

    cdef QueueSlot slot_at(self, CommitLogCore core, Columns columns, Py_ssize_t i,
                           QueueSlot last):
        cdef int64_t queue_id = columns.queue_id
        cdef QueueSlot slot
        if columns.queue_ids is not None:
            wanted = columns.queue_ids[i]
            queue_id = 0 if wanted is None else wanted
        if last is not None and last.queue_id == queue_id:
            return last
        # The entry's table keeps the slot for as long as the entry lives.
        slot = self.owner.near(queue_id)
        if slot is None:
            slot = core.slot_of(columns.topic, queue_id)
        return slot

    cdef void encode(self, rs_outgoing *template, uint8_t *buffer) noexcept nogil:
        cdef rs_outgoing message
        cdef encoded_row *part
        cdef Py_ssize_t i
        memcpy(&message, template, sizeof(message))
        for i in range(self.count):
            part = &self.parts[i]
            message.body = part.body
            message.body_size = part.body_size
            message.properties = (
                self.bare if part.text_position < 0 else self.texts + part.text_position)
            message.properties_size = part.text_size
            message.flag = part.flag
            message.queue_id = self.rows[i].queue_id
            encode_record(&message, buffer + self.rows[i].position)
