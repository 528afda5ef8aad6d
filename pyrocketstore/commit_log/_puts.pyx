# Special methods of a row may change a list while it is walked.
# cython: boundscheck=True
"""Results of puts; puts of many messages at once, whose rows are written together."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_END_OF_FILE,
    RS_HOST_V6_SIZE,
    RS_MAX_PROPERTIES_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_TOO_LARGE,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    rs_copy_short,
    rs_has_separator,
    rs_outgoing,
    rs_properties,
)
from pyrocketstore.arguments._numbers_and_bodies cimport bytes_of, int_in
from pyrocketstore.commit_log._append cimport (
    CommitLogCore,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_append,
    rs_put,
    rs_run_row,
)
from pyrocketstore.record._record cimport encode_record, encoded_size, scan_properties
from pyrocketstore.record._text cimport (
    MAX_UNIQUE_ID_SIZE,
    UniqueIds,
    build_properties,
    end_of_text,
    fill_outgoing_host,
    joined_keys,
    plain_properties,
    utf8_of,
)

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX as _QUEUE_ID_MAX, exact_text
from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.record._text import put_properties
from pyrocketstore.record.message import (
    MessageRefused,
    PROPERTIES_TOO_LONG as _TOO_LONG,
    check_tags,
    join_keys,
    record_too_large,
)
from pyrocketstore.results import AppendMessageStatus, PutMessageStatus

cdef object PUT_STATUS = tuple(PutMessageStatus)
cdef object APPEND_STATUS = tuple(AppendMessageStatus)


@cython.no_gc  # it is made for each put, and holds nothing that leads back to it
@cython.auto_pickle(False)
cdef class PutMessageResult:
    """The result of a put.

    `phy_offset` (bytes), `queue_offset`, `wrote_bytes`, `store_timestamp` (ms) and `message_count`
    are those of the append; `error` is the exception behind a status that has one.

    Source: RocketMQ 4.9.3 PutMessageResult, AppendMessageResult.
    """

    @property
    def status(self):
        """The PutMessageStatus."""
        return PUT_STATUS[self.status_code]

    @property
    def put_message_status(self):
        """The PutMessageStatus, under Java's name."""
        return PUT_STATUS[self.status_code]

    @property
    def append_message_status(self):
        """The AppendMessageStatus, or None when nothing was tried."""
        return None if self.append_status_code < 0 else APPEND_STATUS[self.append_status_code]

    @property
    def error(self):
        """The exception that caused the status, or None."""
        return None

    def is_ok(self):
        """True when the append was PUT_OK, whatever the flush said, as in Java."""
        return self.append_status_code == 0

    @property
    def msg_id(self):
        """The offset message id; of a batch, all of them joined by commas.

        Source: RocketMQ 4.9.3 MessageDecoder#createMessageId.
        """
        cdef bytes host = (<char *>self.host)[:self.host_size]
        offsets = [self.phy_offset] if self.positions is None else self.positions
        return ",".join((host + int(at).to_bytes(8, "big")).hex().upper() for at in offsets)

    def __reduce__(self):
        cdef bytes host = (<char *>self.host)[:self.host_size]
        numbers = (self.status_code, self.append_status_code, self.phy_offset, self.queue_offset,
                   self.wrote_bytes, self.store_timestamp, self.message_count)
        return _restored, (numbers, self.positions, host, self.error)

    def __repr__(self):
        return (f"PutMessageResult(status={self.status.name}, queue_offset={self.queue_offset}, "
                f"phy_offset={self.phy_offset})")


@cython.auto_pickle(False)
cdef class _PutMessageFailure(PutMessageResult):
    # An exception leads to its frames, and those to the result: only this one needs the collector.
    cdef object cause

    @property
    def error(self):
        """The exception."""
        return self.cause


cdef PutMessageResult new_result(object error):
    cdef _PutMessageFailure failure
    if error is None:
        return PutMessageResult.__new__(PutMessageResult)
    failure = _PutMessageFailure.__new__(_PutMessageFailure)
    failure.cause = error
    return failure


cdef int check_codes(int status, int append_status) except -1:
    if not 0 <= status < len(PUT_STATUS):
        raise ValueError(f"{status} is not a valid PutMessageStatus")
    if not -1 <= append_status < len(APPEND_STATUS):
        raise ValueError(f"{append_status} is not a valid AppendMessageStatus")
    return 0


def make_result(int status, int append_status=-1, int64_t phy_offset=0, int64_t queue_offset=0,
                int64_t wrote_bytes=0, int64_t store_timestamp=0, int32_t message_count=0,
                object positions=None, object store_host=None, object error=None):
    """A PutMessageResult for the paths that Python decides; `store_host` is "ip:port"."""
    cdef PutMessageResult result
    check_codes(status, append_status)
    result = new_result(error)
    result.status_code = status
    result.append_status_code = append_status
    result.phy_offset = phy_offset
    result.queue_offset = queue_offset
    result.wrote_bytes = wrote_bytes
    result.store_timestamp = store_timestamp
    result.message_count = message_count
    result.positions = positions
    if store_host is not None:
        result.host_size = fill_outgoing_host(store_host, result.host, "store_host")
    return result


def _restored(tuple numbers not None, object positions, bytes host not None, object error):
    # For pickle and copy.
    cdef PutMessageResult result = make_result(*numbers, positions, None, error)
    if len(host) > <Py_ssize_t>sizeof(result.host):
        raise ValueError(f"{len(host)} bytes: more than a host has")
    result.host_size = <int32_t>len(host)
    memcpy(result.host, PyBytes_AS_STRING(host), len(host))
    return result


def with_status(PutMessageResult base not None, int status, object error=None):
    """A copy of `base` with another put status, after a flush or a replica has answered."""
    cdef PutMessageResult result
    check_codes(status, base.append_status_code)
    result = new_result(error)
    result.status_code = status
    result.append_status_code = base.append_status_code
    result.phy_offset = base.phy_offset
    result.queue_offset = base.queue_offset
    result.wrote_bytes = base.wrote_bytes
    result.store_timestamp = base.store_timestamp
    result.message_count = base.message_count
    result.positions = base.positions
    result.host_size = base.host_size
    memcpy(result.host, base.host, sizeof(result.host))
    return result


# Many messages at once: checked columns, and the rows of them that are written together.

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const uint8_t *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef int64_t QUEUE_ID_MAX = _QUEUE_ID_MAX

# So many bytes are encoded and appended at a time: they stay in the cache from one to the other,
# and the put lock is held for as long as copying them takes.
cdef int64_t CHUNK_BYTES = 262144
cdef Py_ssize_t CHUNK_ROWS = 1024
# A row raises one of these. The caller receives any other exception, a signal handler's for one.
cdef object ROW_ERRORS = (ArithmeticError, BufferError, StoreError, TypeError, ValueError)

cdef Py_ssize_t MAX_ROWS = <Py_ssize_t>1 << 48

cdef enum:
    STAR = 42
    BAR = 124

# In the order of Java's HashMap one of the two names always comes first.
cdef bint KEYS_FIRST = put_properties("t", "k", None).startswith(b"KEYS")


cdef inline Py_ssize_t copy_plain(object text, uint8_t *out, int64_t room, uint8_t mark):
    # The UTF-8 of a str that reads back equal: not empty, without the two separators. Else -1.
    # Nor may it hold `mark` (1: none), which is looked at closely elsewhere.
    cdef Py_ssize_t size
    cdef const uint8_t *p
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
    if size <= 0 or size > room or rs_has_separator(p, size, mark):
        return -1
    rs_copy_short(out, p, size)
    return size


cdef inline bint hides_tag(const uint8_t *tag, Py_ssize_t size) noexcept:
    # Whether message.check_tags would refuse the tag, which has no bar.
    return tag[0] <= 32 or tag[size - 1] <= 32 or (size == 1 and tag[0] == STAR)


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
            if keys_turn and type(value) is not str:
                value = joined_keys(value)
            memcpy(out + at, b"KEYS\x01" if keys_turn else b"TAGS\x01", 5)
            size = copy_plain(value, out + at + 5, capacity - at - 5, 1 if keys_turn else BAR)
            if size < 0 or (not keys_turn and hides_tag(out + at + 5, size)):
                return -1
            at += 5 + size
        keys_turn = not keys_turn
    return end_of_text(out, at, capacity)


cdef inline object value_of(dict item, str name, int *known):
    # A reference of its own at once: comparing the next name may run Python that changes the dict.
    cdef PyObject *value = PyDict_GetItem(item, name)
    if value == NULL:
        return None
    known[0] += 1
    return <object>value


def of_message(number, error):
    """Return a StoreFormatError, also of a subclass, whose text names the message of a call."""
    if isinstance(error, MessageRefused):
        return MessageRefused(error.status, f"message {number}: {error.reason}")
    return type(error)(f"message {number}: {error}")


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class PropertyTexts:
    """The properties texts of some messages, one behind the other.

    Parameters
    ----------
    rows : int, how many texts are to be added
    """

    def __cinit__(self, Py_ssize_t rows):
        if not 0 <= rows <= MAX_ROWS:
            raise ValueError(f"rows {rows}: must be 0 to {MAX_ROWS}")
        self.buffer = RecordBuffer()
        self.ends = <int64_t *>malloc((rows + 1) * sizeof(int64_t))
        if self.ends == NULL:
            raise MemoryError()
        self.ends[0] = 0
        self.capacity = rows

    def __dealloc__(self):
        free(self.ends)

    def __len__(self):
        return self.rows

    @staticmethod
    def of(list tags or None, list keys or None, list properties not None,
           UniqueIds ids or None, write not None):
        """The texts of messages with these tags, keys and properties.

        Parameters
        ----------
        ids : UniqueIds or None, makes the UNIQ_KEY of each message
        write : callable(tags, keys, properties) returning bytes, the text of a message whose values
            are not ordinary; it raises a StoreFormatError where a put refuses them
        """
        cdef PropertyTexts self = PropertyTexts.__new__(PropertyTexts, len(properties))
        cdef Py_ssize_t i
        for i in range(self.capacity):
            tag = None if tags is None else tags[i]
            key = None if keys is None else keys[i]
            if not self.add_plain(tag, key, properties[i], ids):
                try:
                    text = write(tag, key, properties[i])
                except StoreFormatError as error:
                    raise of_message(i, error) from error
                self.add(text)
        return self

    def add(self, bytes text not None):
        """Add a text. Raises MessageRefused: it is too long."""
        cdef int64_t size = PyBytes_GET_SIZE(text)
        if size > RS_MAX_PROPERTIES_SIZE:
            raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", f"message {self.rows}: {_TOO_LONG}")
        memcpy(self.room(), PyBytes_AS_STRING(text), <size_t>size)
        self.end_row(size)

    cdef bint add_plain(self, object tags, object keys, object properties, UniqueIds ids) except -1:
        # False where the values are not ordinary.
        cdef uint8_t[MAX_UNIQUE_ID_SIZE] unique
        cdef int unique_size = 0
        cdef int64_t size, now
        if ids is not None:
            now = ids.env.table.now_ms()
            if not ids.knows(now):
                ids.learn(now)
            unique_size = ids.write(now, unique)
        size = plain_properties(tags, keys, properties, unique, unique_size, self.room(),
                                RS_MAX_PROPERTIES_SIZE)
        if size < 0:
            return False
        self.end_row(size)
        return True

    cdef uint8_t *room(self) except NULL:
        # Where the next text goes: room for the longest.
        if self.rows == self.capacity:
            raise StoreFormatError(f"there are texts for {self.capacity} messages already")
        self.buffer.ensure(self.ends[self.rows] + RS_MAX_PROPERTIES_SIZE)
        return self.buffer.data + self.ends[self.rows]

    cdef int end_row(self, int64_t size) except -1:
        self.ends[self.rows + 1] = self.ends[self.rows] + size
        self.rows += 1
        return 0


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Columns:
    """The columns of put_many or put_batch, each value taken once, as the exact type that is
    stored; their properties texts are in one buffer.

    Raises StoreTypeError or StoreFormatError for a row that cannot be stored so that it reads back
    equal, and MessageRefused for properties that are too long.
    """

    def __cinit__(self, str topic not None, list bodies not None, queue_ids, list tags or None,
                  list keys or None, PropertyTexts texts or None, list flags=None):
        # `queue_ids` is a list or one int; `texts`, where given, stand for tags and keys.
        cdef Py_ssize_t i
        self.topic = topic
        self.bodies = bodies[:]  # a row's special methods may change the caller's
        for column in (queue_ids if type(queue_ids) is list else None, tags, keys, texts, flags):
            if column is not None and len(column) != len(self.bodies):
                raise StoreFormatError("the columns differ in length")
        if texts is not None and texts.rows < texts.capacity:
            raise StoreFormatError("texts are missing")  # to add one may move the others
        self.rows = len(self.bodies)
        for i in range(self.rows):
            self.take_body(i, self.bodies[i])
        self.take_queue_ids(queue_ids)
        if flags is not None:
            flags = flags[:]
            for i in range(self.rows):
                self.set_flag(i, flags[i])
        self.texts = texts
        if texts is not None:
            return
        self.texts = PropertyTexts(self.rows)
        for i in range(self.rows):
            self.add_text(i, None if tags is None else tags[i], None if keys is None else keys[i])

    def __dealloc__(self):
        free(self.queue_ids)
        free(self.flags)
        free(self.sys_flags)
        free(self.born_timestamps)
        free(self.alone)

    def __len__(self):
        return self.rows

    @staticmethod
    def of_items(str topic not None, list items not None, queue_id, UniqueIds ids=None):
        """The columns of put_batch from bytes and from dicts with `body`, `tags`, `keys`,
        `properties`, `flag`.

        `ids` makes their UNIQ_KEY. None where an item is anything else, or has values that are not
        ordinary: then Python looks at them one by one.
        Raises as the columns themselves.
        """
        cdef Columns self = Columns.__new__(Columns, topic, [], queue_id, None, None, None)
        cdef Py_ssize_t i
        self.rows = len(items)
        self.texts = PropertyTexts(self.rows)
        for i in range(self.rows):
            item = items[i]
            if type(item) is bytes:
                self.bodies.append(item)
                self.take_body(i, item)
                if ids is None:
                    self.texts.end_row(0)
                else:
                    self.texts.add_plain(None, None, None, ids)
            elif type(item) is not dict or not self.add_item(i, <dict>item, ids):
                return None
        return self

    cdef int take_body(self, Py_ssize_t i, object body) except -1:
        if type(body) is not bytes:
            body = bytes_of(body, "bodies", i)
            self.bodies[i] = body
        if PyBytes_GET_SIZE(body) > self.largest_body:
            self.largest_body = PyBytes_GET_SIZE(body)
        return 0

    cdef int take_queue_ids(self, object queue_ids) except -1:
        cdef Py_ssize_t i
        if type(queue_ids) is not list:
            self.queue_id = int_in(queue_ids, 0, QUEUE_ID_MAX, "queue_id")
            return 0
        ids = (<list>queue_ids)[:]  # an id's special method may change the caller's
        self.queue_ids = <int32_t *>calloc(self.rows + 1, sizeof(int32_t))
        if self.queue_ids == NULL:
            raise MemoryError()
        for i in range(self.rows):
            value = ids[i]
            if value is not None:
                self.queue_ids[i] = <int32_t>int_in(value, 0, QUEUE_ID_MAX, "queue_ids", i)
        return 0

    cdef int set_flag(self, Py_ssize_t i, object flag) except -1:
        cdef int64_t value = int_in(flag, INT32_MIN, INT32_MAX, "flags", i)
        if value == 0:
            return 0
        if self.flags == NULL:
            self.flags = <int32_t *>calloc(self.rows, sizeof(int32_t))
            if self.flags == NULL:
                raise MemoryError()
        self.flags[i] = <int32_t>value
        return 0

    cdef Py_ssize_t first_too_large(self, int64_t fixed, int64_t bare, int64_t limit,
                                    int64_t *size):
        cdef int64_t text
        cdef Py_ssize_t i
        if fixed + self.largest_body + max(bare, <int64_t>RS_MAX_PROPERTIES_SIZE) <= limit:
            return -1
        for i in range(self.rows):
            text = self.texts.ends[i + 1] - self.texts.ends[i]
            size[0] = fixed + PyBytes_GET_SIZE(<bytes>self.bodies[i]) + (text if text else bare)
            if size[0] > limit:
                return i
        return -1

    cdef int add_text(self, Py_ssize_t i, object tags, object keys) except -1:
        # The properties of row i, behind those of the rows before it.
        cdef int64_t size
        if tags is None and keys is None:
            return self.texts.end_row(0)
        size = tags_and_keys(tags, keys, self.texts.room(), RS_MAX_PROPERTIES_SIZE)
        if size < 0:
            if tags is not None:
                tags = check_tags(tags, f"tags[{i}]")
            keys = join_keys(keys, f"keys[{i}]")
            size = build_properties(tags, keys, None, self.texts.room(), RS_MAX_PROPERTIES_SIZE)
        if size < 0:
            raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", f"message {i}: {_TOO_LONG}")
        return self.texts.end_row(size)

    def rows_alone(self):
        """uint8[n] as bytes: 1 for a row that must be put as a single message, which may refuse it.
        """
        return bytes(self.rows) if self.alone == NULL else self.alone[:self.rows]

    cdef bint add_item(self, Py_ssize_t i, dict item, UniqueIds ids) except -1:
        # False where the dict has other entries than the ordinary ones, or odd properties.
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
        properties = None if known == PyDict_Size(item) else value_of(item, "properties", &known)
        if known != PyDict_Size(item):
            return False
        if properties is None and ids is None:
            self.add_text(i, tags, keys)
        elif not self.texts.add_plain(tags, keys, properties, ids):
            return False
        self.bodies.append(body)
        self.take_body(i, body)
        if has_flag:
            self.set_flag(i, flag)
        return True


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Chunk:
    """Rows that are encoded and written together; the columns keep their bodies."""

    def __dealloc__(self):
        free(self.rows)
        free(self.parts)

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        if capacity <= self.capacity:
            return 0
        self.clear()
        free(self.rows)
        free(self.parts)
        self.capacity = 0
        self.rows = <rs_run_row *>malloc(capacity * sizeof(rs_run_row))
        self.parts = <encoded_row *>malloc(capacity * sizeof(encoded_row))
        if self.rows == NULL or self.parts == NULL:
            raise MemoryError()
        self.capacity = capacity
        return 0

    cdef void clear(self) noexcept:
        self.count = 0
        self.owner = None

    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, Py_ssize_t stop, RecordBuffer buffer,
                         int64_t bytes_max) except -2:
        # Takes rows before `stop` until so many bytes are full; -1: the first row is larger than a
        # record may be.
        cdef int64_t bytes_total = 0
        cdef int64_t size, text_position, fixed, now
        cdef Py_ssize_t i
        cdef TopicEntry entry = None
        cdef QueueSlot slot = None
        cdef encoded_row *part
        cdef rs_run_row *row
        self.clear()
        self.owner = columns
        if columns.entries is None:
            entry = core.topic_entry(columns.topic)
        template.topic_size = 0
        template.body_size = 0
        template.properties_size = 0
        fixed = encoded_size(template)
        now = core.env.table.now_ms()
        while first + self.count < stop and self.count < self.capacity:
            i = first + self.count
            part = &self.parts[self.count]
            row = &self.rows[self.count]
            if columns.entries is not None:
                entry = <TopicEntry>columns.entries[i]
            slot = self.slot_at(core, entry, columns, i, slot)
            part.topic = entry.data
            part.topic_size = entry.size
            part.flag = 0 if columns.flags == NULL else columns.flags[i]
            part.sys_flag = 0 if columns.sys_flags == NULL else columns.sys_flags[i]
            part.born_timestamp = (
                now if columns.born_timestamps == NULL else columns.born_timestamps[i])
            text_position = columns.texts.ends[i]
            part.text_position = text_position
            part.text_size = <int32_t>(columns.texts.ends[i + 1] - text_position)
            if part.text_size == 0:
                part.text_position = -1
                part.text_size = core.bare_size
            body = columns.bodies[i]
            part.body = <const uint8_t *>PyBytes_AS_STRING(<bytes>body)
            part.body_size = PyBytes_GET_SIZE(<bytes>body)
            size = fixed + entry.size + part.body_size + part.text_size
            part.born_host = NULL
            if columns.born_hosts is not None:
                host = columns.born_hosts[i]
                part.born_host = <const uint8_t *>PyBytes_AS_STRING(<bytes>host)
                part.born_host_size = <int32_t>PyBytes_GET_SIZE(<bytes>host)
                size += part.born_host_size - template.born_host_size
            if part.body_size > 0x7FFFFFFF or size > core.max_message_size:
                if self.count == 0:
                    return -1
                break
            if self.count and bytes_total + size > bytes_max:
                break
            row.position = bytes_total
            row.size = <int32_t>size
            row.queue_id = slot.queue_id
            row.slot = &slot.slot
            bytes_total += size
            self.count += 1
        buffer.ensure(bytes_total)
        self.texts = columns.texts.buffer.data
        self.bare = core.bare
        self.size = bytes_total
        self.slot = slot
        return self.count

    cdef QueueSlot slot_at(self, CommitLogCore core, TopicEntry entry, Columns columns,
                           Py_ssize_t i, QueueSlot last):
        cdef int64_t queue_id = columns.queue_id
        cdef QueueSlot slot
        if columns.queue_ids != NULL:
            queue_id = columns.queue_ids[i]
        if last is not None and last.queue_id == queue_id and last.topic is entry.topic:
            return last
        # The entry's table keeps the slot for as long as the entry lives.
        slot = entry.near(queue_id)
        if slot is None:
            slot = core.slot_of(entry.topic, queue_id)
        return slot

    cdef void encode(self, rs_outgoing *template, uint8_t *buffer) noexcept nogil:
        cdef rs_outgoing message
        cdef encoded_row *part
        cdef Py_ssize_t i
        memcpy(&message, template, sizeof(message))
        for i in range(self.count):
            part = &self.parts[i]
            message.topic = part.topic
            message.topic_size = part.topic_size
            message.body = part.body
            message.body_size = part.body_size
            message.properties = (
                self.bare if part.text_position < 0 else self.texts + part.text_position)
            message.properties_size = part.text_size
            message.flag = part.flag
            message.sys_flag = part.sys_flag
            message.born_timestamp = part.born_timestamp
            if part.born_host != NULL:
                message.born_host_size = part.born_host_size
                memcpy(message.born_host, part.born_host, part.born_host_size)
            message.queue_id = self.rows[i].queue_id
            encode_record(&message, buffer + self.rows[i].position)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ColumnAppends:
    """Appends columns of messages to a commit log, chunk by chunk.

    Parameters
    ----------
    core : CommitLogCore
    store_host : "ip:port", the store host, and the born host of messages without one

    Attribute: `failed_row`, the row that raised the exception of the last RS_NEED_PYTHON.

    Threads: any.
    """

    def __cinit__(self, CommitLogCore core not None, store_host):
        self.core = core
        memset(&self.template, 0, sizeof(self.template))
        self.template.store_host_size = fill_outgoing_host(
            store_host, self.template.store_host, "store_host")
        self.template.born_host_size = fill_outgoing_host(
            store_host, self.template.born_host, "store_host")

    def append(self, Columns columns not None, Py_ssize_t first, Py_ssize_t stop, queue_offsets,
               phy_offsets, born_host=None):
        """Append the rows from `first` on and before `stop`, in order.

        Parameters
        ----------
        queue_offsets, phy_offsets : int64[n], filled at the numbers of the rows
        born_host : "ip:port" or None

        Returns
        -------
        (row, status, cause): rows before this one are in the log, and why it stopped (RS_OK: all
        are). The cause is an errno; with RS_NEED_PYTHON the exception of `failed_row`; with
        RS_END_OF_FILE and RS_NEED_FILE the StoreError for which no next file could be attached.
        """
        cdef Py_ssize_t count
        cdef int64_t[::1] queue_view = queue_offsets
        cdef int64_t[::1] phy_view = phy_offsets
        cdef CommitLogCore core = self.core
        cdef RecordBuffer buffer = core.take_buffer()
        cdef rs_append out
        cdef rs_put put
        cdef rs_outgoing template = self.template
        cdef Chunk chunk = self.take_chunk()
        memset(&out, 0, sizeof(out))
        memset(&put, 0, sizeof(put))
        if not 0 <= first <= stop <= columns.rows:
            raise ValueError(f"rows {first} to {stop} of {columns.rows}")
        if queue_view.shape[0] < stop or phy_view.shape[0] < stop:
            raise ValueError("the result columns are too short")
        try:
            if born_host is not None:
                template.born_host_size = fill_outgoing_host(
                    born_host, template.born_host, "born_host")
            chunk.reserve(CHUNK_ROWS)
            while first < stop:
                try:
                    count = chunk.fill(core, &template, columns, first, stop, buffer, CHUNK_BYTES)
                except ROW_ERRORS as problem:
                    self.failed_row = first + chunk.count
                    return first, RS_NEED_PYTHON, problem
                if count < 0:
                    return first, RS_TOO_LARGE, 0
                put.records, put.rows, put.row_count, put.done = buffer.data, chunk.rows, count, 0
                put.queue_offsets, put.phy_offsets = &queue_view[first], &phy_view[first]
                with nogil:
                    chunk.encode(&template, buffer.data)
                error = core.append_all(&put, None, &out)
                if out.status != RS_OK:
                    return (first + put.done, out.status, -out.error if error is None else error)
                first += count
        finally:
            self.give_chunk(chunk)
            core.give_buffer(buffer)
        return stop, RS_OK, 0

    def check(self, Columns columns not None, Py_ssize_t first=0, born_host=None):
        """Raise MessageRefused for a row that no put could store; StoreFormatError for a
        `born_host` that has no form on disk. The error counts the rows from `first`."""
        cdef rs_outgoing template = self.template
        if born_host is not None:
            template.born_host_size = fill_outgoing_host(
                born_host, template.born_host, "born_host")
        self.check_sizes(&template, columns, first)

    def encoded(self, list topics not None, list bodies not None, queue_ids, list texts or None,
                list flags or None, list sys_flags or None, list born_timestamps or None,
                list born_hosts or None, *, bint multi, is_ordinary not None):
        """The columns of messages whose properties are encoded already.

        Parameters
        ----------
        topics : list of str
        bodies, queue_ids, flags : as of Columns
        texts : list of str, bytes-like or None, the properties of each message; None: no properties
        sys_flags, born_timestamps : lists of int, or None: 0, and the time of the append
        born_hosts : list of hosts as of a message, or None: the store host
        multi : bool, a message that names further queues must be put alone
        is_ordinary : callable(topic), False for a topic whose puts may be refused

        Raises StoreTypeError, StoreFormatError: a value has the wrong type or is out of its range.
        The caller puts each row of `rows_alone` as a single message.
        """
        cdef Columns columns = Columns.__new__(Columns, "", bodies, queue_ids, None, None, None,
                                               flags)
        cdef Py_ssize_t rows = columns.rows
        cdef Py_ssize_t i
        cdef TopicEntry entry = None
        cdef dict known = {}
        cdef object last = self     # no topic
        for column in (topics, texts, sys_flags, born_timestamps, born_hosts):
            if column is not None and len(column) != rows:
                raise StoreFormatError("the columns differ in length")
        columns.texts = PropertyTexts(rows)
        columns.alone = <uint8_t *>calloc(rows + 1, 1)
        if sys_flags is not None:
            columns.sys_flags = <int32_t *>malloc((rows + 1) * sizeof(int32_t))
        if born_timestamps is not None:
            columns.born_timestamps = <int64_t *>malloc((rows + 1) * sizeof(int64_t))
        if columns.alone == NULL or (sys_flags is not None and columns.sys_flags == NULL) or (
                born_timestamps is not None and columns.born_timestamps == NULL):
            raise MemoryError()
        if born_hosts is not None:
            columns.born_hosts = host_column(born_hosts)
        columns.entries = []
        for i in range(rows):
            topic = topics[i]
            if topic is not last:
                entry = self.entry_of(topic, i, known, is_ordinary)
                last = topic
            columns.entries.append(entry)
            if sys_flags is not None:
                columns.sys_flags[i] = <int32_t>int_in(sys_flags[i], INT32_MIN, INT32_MAX,
                                                       "sys_flags", i)
            if born_timestamps is not None:
                columns.born_timestamps[i] = int_in(born_timestamps[i], INT64_MIN, INT64_MAX,
                                                    "born_timestamps", i)
            self.take_encoded(columns, i, None if texts is None else texts[i], multi)
        return columns

    cdef TopicEntry entry_of(self, object topic, Py_ssize_t i, dict known, object is_ordinary):
        # None: not ordinary.
        name = topic if type(topic) is str else exact_text(f"topics[{i}]", topic)
        if name not in known:
            known[name] = self.core.topic_entry(name) if is_ordinary(name) else None
        return <TopicEntry>known[name]

    cdef int take_encoded(self, Columns columns, Py_ssize_t i, object text, bint multi) except -1:
        # The properties of a row, and whether it must be put alone.
        cdef rs_properties properties
        cdef PropertyTexts texts = columns.texts
        cdef TopicEntry entry = <TopicEntry>columns.entries[i]
        cdef int64_t begin = texts.ends[i]
        cdef int64_t text_size, size
        cdef int32_t kind = 0
        columns.alone[i] = 1
        if not self.take_text(columns, i, text):
            return texts.end_row(0)
        text_size = texts.ends[i + 1] - begin
        if columns.sys_flags != NULL:
            kind = columns.sys_flags[i] & RS_TRANSACTION_MASK
        if entry is None or (
                kind != RS_TRANSACTION_NOT_TYPE and kind != RS_TRANSACTION_COMMIT_TYPE):
            return 0
        if text_size:
            scan_properties(texts.buffer.data + begin, text_size, &properties)
            if properties.delay.size >= 0 or (multi and properties.multi_dispatch.size >= 0):
                return 0
        size = encoded_size(&self.template) + entry.size + text_size
        size += PyBytes_GET_SIZE(<bytes>columns.bodies[i])
        if text_size == 0:
            size += self.core.bare_size
        if columns.born_hosts is not None:
            size += PyBytes_GET_SIZE(<bytes>columns.born_hosts[i]) - self.template.born_host_size
        columns.alone[i] = size > self.core.max_message_size
        return 0

    cdef bint take_text(self, Columns columns, Py_ssize_t i, object text) except -1:
        # False where the text is too long.
        cdef PropertyTexts texts = columns.texts
        cdef const uint8_t *p = NULL
        cdef uint8_t *out
        cdef Py_ssize_t size = 0
        if text is None:
            texts.end_row(0)
            return True
        if not isinstance(text, str):
            text = bytes_of(text, "properties", i)
            p, size = <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
            if not is_ascii(p, size):
                text = utf8_text(text, i)
        if not isinstance(text, bytes):
            text = exact_text(f"properties[{i}]", text)
            try:
                p = <const uint8_t *>utf8_of(text, &size)
            except StoreFormatError as error:
                raise StoreFormatError(f"properties[{i}]: {error}") from error
        if size > RS_MAX_PROPERTIES_SIZE:
            return False
        out = texts.room()
        memcpy(out, p, <size_t>size)
        texts.end_row(end_of_text(out, size, RS_MAX_PROPERTIES_SIZE))
        return True

    cdef int check_sizes(self, rs_outgoing *template, Columns columns,
                         Py_ssize_t first=0) except -1:
        # Raises MessageRefused for a row that no put could store, before any of them is.
        cdef CommitLogCore core = self.core
        cdef int64_t size = 0
        cdef Py_ssize_t row
        template.topic_size = <int32_t>PyBytes_GET_SIZE(columns.topic.encode("utf-8"))
        template.body_size = template.properties_size = 0
        row = columns.first_too_large(encoded_size(template), core.bare_size,
                                      core.max_message_size, &size)
        if row >= 0:
            refused = record_too_large(size, core.max_message_size)
            raise MessageRefused(refused.status, f"message {first + row}: {refused.reason}")
        return 0

    cdef Chunk take_chunk(self):
        # One is kept for the next call; a second thread makes its own.
        cdef Chunk chunk = self.spare_chunk
        self.spare_chunk = None
        return Chunk() if chunk is None else chunk

    cdef int give_chunk(self, Chunk chunk) except -1:
        chunk.clear()
        if chunk.capacity <= CHUNK_ROWS:
            self.spare_chunk = chunk
        return 0


cdef inline bint is_ascii(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef uint8_t seen = 0
    cdef Py_ssize_t i
    for i in range(size):
        seen |= p[i]
    return seen < 0x80


cdef str utf8_text(bytes data, Py_ssize_t i):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreFormatError(f"properties[{i}]: not UTF-8: {error.reason}") from error


cdef list host_column(list hosts):
    # Each host as on disk.
    cdef uint8_t[RS_HOST_V6_SIZE] raw
    cdef int32_t size
    cdef list column = []
    cdef object last = None
    cdef bytes found = None
    for i, host in enumerate(hosts):
        if host is not last or found is None:
            size = fill_outgoing_host(host, raw, f"born_hosts[{i}]")
            found = raw[:size]
            last = host
        column.append(found)
    return column
