"""The compiled calls of a Store: `put`, `query`, `read`, and puts of whole messages.

Python frames would be a tenth of the time of a put, and half of that of a read of one message.
"""
from array import array as new_array

cimport cython
from cpython.array cimport array, clone
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_END_OF_FILE,
    RS_MAX_PROPERTIES_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_TOO_LARGE,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    rs_outgoing,
)
from pyrocketstore.arguments._numbers_and_bodies cimport hold_body, int_in
from pyrocketstore.commit_log._append cimport (
    CommitLogCore,
    GroupCommit,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_append,
    rs_put,
)
from pyrocketstore.commit_log._puts cimport (
    Chunk,
    ColumnAppends,
    Columns,
    PutMessageResult,
    tags_and_keys,
)
from pyrocketstore.reading._by_key cimport KeySearch
from pyrocketstore.reading._queue_runs cimport RangeFields, end_of_queue, first_byte
from pyrocketstore.record._message cimport fill_outgoing
from pyrocketstore.record._record cimport encode_record, encoded_size
from pyrocketstore.record._text cimport (
    MAX_UNIQUE_ID_SIZE,
    UniqueIds,
    fill_outgoing_host,
    plain_properties,
)
from pyrocketstore.system._open_state cimport StoreState

from pyrocketstore.arguments.read_arguments import queue_id_of
from pyrocketstore.arguments.scalars import (
    QUEUE_ID_MAX as _QUEUE_ID_MAX,
    check_times,
    exact_flag,
    exact_text,
    time_of,
    whole_number,
)
from pyrocketstore.commit_log._puts import with_status
from pyrocketstore.errors import OffsetOutOfRange, StoreCorruptionError, StoreError, StoreStateError
from pyrocketstore.reading._messages import messages_between
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import QueueDamage, SkippedMessages
from pyrocketstore.record.message import (
    MessageRefused,
    PROPERTY_DELAY_TIME_LEVEL as _DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH as _INNER_MULTI_DISPATCH,
)
from pyrocketstore.record.tags import tags_filter
from pyrocketstore.results import PutMessageStatus

# The compiled way of a put, from the arguments to the log: one message, or columns of many.

cdef int64_t QUEUE_ID_MAX = _QUEUE_ID_MAX
cdef object ZERO = 0  # CPython has one object for it: a default is recognised by its address

# Above this many bytes, encoding runs without the GIL.
cdef int64_t NOGIL_MIN_BYTES = 8192
cdef array LONGS = new_array("q")  # what the positions of a batch are made like


cdef inline int64_t queue_number(object queue_id) except? -1:
    return 0 if queue_id is ZERO else int_in(queue_id, 0, QUEUE_ID_MAX, "queue_id")


cdef int fill_numbers(rs_outgoing *message, object flag, object born_timestamp) except -1:
    # The template's flag is 0.
    message.flag = <int32_t>int_in(flag, INT32_MIN, INT32_MAX, "flag")
    if born_timestamp is not None:
        message.born_timestamp = int_in(born_timestamp, INT64_MIN, INT64_MAX, "born_timestamp")
    return 0


cdef inline bint fill_body(rs_outgoing *message, object body, Py_buffer *view) except -1:
    # True: the body is the view's, which the caller releases.
    if type(body) is bytes:
        message.body = <const uint8_t *>PyBytes_AS_STRING(body)
        message.body_size = PyBytes_GET_SIZE(body)
        return False
    hold_body(body, view, "a body", -1)
    message.body = <const uint8_t *>view.buf
    message.body_size = view.len
    return True


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class PutPath:
    """The way of puts into a commit log: an ordinary put is one call.

    Parameters
    ----------
    core : CommitLogCore
    store_host : "ip:port", the store host, and the born host of messages without one
    state : StoreState
    slow : SlowPuts, which handles every put that is not ordinary
    ids : UniqueIds or None, makes the UNIQ_KEY of each message
    """

    def __cinit__(self, CommitLogCore core not None, store_host, StoreState state not None, slow,
                  UniqueIds ids=None):
        self.core = core
        self.state = state
        self.slow = slow
        self.ids = ids
        self.appends = ColumnAppends(core, store_host)
        memset(&self.template, 0, sizeof(self.template))
        self.template.store_host_size = fill_outgoing_host(
            store_host, self.template.store_host, "store_host")
        self.template.born_host_size = fill_outgoing_host(
            store_host, self.template.born_host, "store_host")

    def wait_in(self, GroupCommit group not None):
        """Let each `put` wait in `group` until it is on the device."""
        self.group = group

    cpdef PutMessageResult put(self, topic, body, queue_id, tags, keys, properties, delay_level,
                               flag, born_timestamp, born_host):
        """Append one message; the arguments are those of `Store.put`."""
        cdef Py_buffer view
        cdef rs_outgoing message
        cdef rs_append out
        cdef uint8_t text[2048]
        cdef CommitLogCore core = self.core
        cdef QueueSlot slot = None
        cdef TopicEntry entry
        cdef RecordBuffer buffer
        cdef RecordBuffer named = None
        cdef int64_t size = -1, now = 0
        cdef int status
        cdef bint viewed
        if (self.state.fast_puts and delay_level is ZERO and born_host is None
                and type(topic) is str and type(queue_id) is int):
            entry = core.last_entry
            if entry is None or entry.topic is not topic:
                entry = <TopicEntry>core.topics.get(topic)
                core.last_entry = entry
            if entry is not None:
                slot = entry.near(queue_number(queue_id))
            if slot is not None:
                if properties is None and self.ids is None:
                    size = tags_and_keys(tags, keys, text, sizeof(text))
                else:
                    named = self.named_text(tags, keys, properties, &size, &now)
        if size < 0:
            return self.slow.put(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                 born_timestamp, born_host)
        memcpy(&message, &self.template, sizeof(message))
        message.properties, message.properties_size = text, <int32_t>size
        if named is not None:
            message.properties = named.data
        if size == 0:
            message.properties, message.properties_size = core.bare, core.bare_size
        message.topic, message.topic_size = entry.data, entry.size
        message.queue_id = slot.queue_id
        now = now or core.env.table.now_ms()
        message.born_timestamp = now
        if flag is not ZERO or born_timestamp is not None:
            fill_numbers(&message, flag, born_timestamp)
        viewed = fill_body(&message, body, &view)
        try:
            size = encoded_size(&message)
            if message.body_size > 0x7FFFFFFF or size > core.max_message_size:
                status = RS_TOO_LARGE
            else:
                buffer = core.take_buffer()
                buffer.ensure(size)
                if size < NOGIL_MIN_BYTES:
                    encode_record(&message, buffer.data)
                else:
                    with nogil:
                        encode_record(&message, buffer.data)
                if named is not None:
                    self.spare_text = named
                status = core.append(buffer.data, size, 1, slot, True, now, &out)
                core.give_buffer(buffer)
        finally:
            if viewed:
                PyBuffer_Release(&view)
        if status != RS_OK:
            return self.slow.put(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                                 message.born_timestamp, born_host)
        if self.group is not None:
            return self.wait_durable(&out)
        if out.took_ms > 0:
            core.note_put_time(out.took_ms)
        return self.result_of(&out)

    cdef RecordBuffer named_text(self, tags, keys, properties, int64_t *size, int64_t *now):
        # The properties text of a message with properties or UNIQ_KEY; a size of -1 where SlowPuts
        # decides. Sets the time of its UNIQ_KEY if it is now, and not 0. One buffer is kept for the
        # next put; a second thread makes its own.
        cdef uint8_t[MAX_UNIQUE_ID_SIZE] unique
        cdef int unique_size = 0
        cdef int64_t time
        cdef RecordBuffer text = self.spare_text
        self.spare_text = None
        if text is None:
            text = RecordBuffer()
            text.ensure(RS_MAX_PROPERTIES_SIZE)
        if self.ids is not None:
            time = self.core.env.table.now_ms()
            if self.ids.knows(time):
                now[0] = time
            else:
                self.ids.learn(time)  # runs Python
            unique_size = self.ids.write(time, unique)
        size[0] = plain_properties(tags, keys, properties, unique, unique_size, text.data,
                                   RS_MAX_PROPERTIES_SIZE)
        if size[0] < 0:
            self.spare_text = text
            return None
        return text

    cdef PutMessageResult wait_durable(self, rs_append *out):
        # The result of a put once it is on the device. Its append took `took_ms`.
        cdef CommitLogCore core = self.core
        cdef int64_t began_ns = core.env.table.monotonic_ns()
        cdef bint on_device = self.group.wait_for(out.phy_offset + out.size)
        cdef int64_t ended_ns = core.env.table.monotonic_ns()
        cdef int64_t took_ms = out.took_ms + (ended_ns - began_ns) // 1000000
        if took_ms > 0:
            core.note_put_time(took_ms)
        if on_device:
            return self.result_of(out)
        return self.slow.timed_out(
            with_status(self.result_of(out), PutMessageStatus.FLUSH_DISK_TIMEOUT))

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

    def append_columns(self, Columns columns not None, queue_offsets, phy_offsets,
                       born_host=None):
        """Append checked columns in the given order, for `put_many`.

        Parameters
        ----------
        queue_offsets, phy_offsets : int64[n], filled
        born_host : "ip:port" or None

        Returns
        -------
        (done, status, cause): as `ColumnAppends.append`. Where nothing is in the log yet, the
        exception of a row is raised.
        """
        self.appends.check(columns, 0, born_host)
        done, status, cause = self.appends.append(columns, 0, columns.rows, queue_offsets,
                                                  phy_offsets, born_host)
        if status == RS_NEED_PYTHON and done == 0:
            raise cause
        return done, status, cause

    def check_columns(self, Columns columns not None, Py_ssize_t first=0, born_host=None):
        """As `ColumnAppends.check`."""
        self.appends.check(columns, first, born_host)

    def append_batch(self, Columns columns not None):
        """Append checked columns as one batch: one queue, one file, all or nothing.

        Returns (PutMessageResult or None, status, cause): the result with RS_OK; RS_TOO_LARGE when
        the records have more bytes than maxMessageSize or a file; the cause of another status as
        that of `ColumnAppends.append`.
        """
        cdef Py_ssize_t total = columns.rows
        cdef Py_ssize_t i
        cdef CommitLogCore core = self.core
        cdef RecordBuffer buffer = core.take_buffer()
        cdef rs_outgoing template = self.template
        cdef Chunk chunk = self.appends.take_chunk()
        cdef rs_append out
        cdef PutMessageResult result
        cdef array positions
        cdef rs_put put
        memset(&out, 0, sizeof(out))
        memset(&put, 0, sizeof(put))
        try:
            self.appends.check_sizes(&template, columns)
            chunk.reserve(total + 1)
            if chunk.fill(core, &template, columns, 0, total, buffer,
                          core.max_message_size) < total:
                return None, RS_TOO_LARGE, 0
            with nogil:
                chunk.encode(&template, buffer.data)
            put.records, put.size, put.count = buffer.data, chunk.size, <int32_t>total
            put.slot, put.queued = <PyObject *>chunk.slot, True
            error = core.append_all(&put, None, &out)
            if out.status != RS_OK:
                return None, out.status, -out.error if error is None else error
            result = self.result_of(&out)
            positions = clone(LONGS, total, False)
            for i in range(total):
                positions.data.as_longlongs[i] = out.phy_offset + chunk.rows[i].position
            result.positions = positions
            return result, RS_OK, 0
        finally:
            self.appends.give_chunk(chunk)
            core.give_buffer(buffer)

    def append_ordinary_batch(self, topic, messages, queue_id, tags, keys):
        """Append a batch as `append_batch` does, from arguments of `Store.put_batch`.

        Returns None, and appends nothing, unless the arguments are lists, for a topic that was put
        to, and a put need not wait for the device.
        """
        cdef Columns columns
        if (not self.state.fast_puts or self.group is not None or type(topic) is not str
                or type(messages) is not list or not messages or type(queue_id) is not int
                or not 0 <= queue_id <= QUEUE_ID_MAX or topic not in self.core.topics):
            return None
        if tags is None and keys is None:
            columns = Columns.of_items(topic, messages.copy(), queue_id)
            return None if columns is None else self.append_batch(columns)
        for column in (tags, keys):
            if column is not None and (
                    type(column) is not list or len(column) != len(messages)):
                return None
        return self.append_batch(Columns(topic, messages, queue_id,
                                         None if tags is None else tags.copy(),
                                         None if keys is None else keys.copy(), None))


# The compiled put of a whole message, such as the records of a transaction.


@cython.final
@cython.auto_pickle(False)
cdef class MessagePuts:
    """Puts of whole messages that need not wait until they are durable.

    Parameters
    ----------
    core : CommitLogCore
    state : StoreState
    slow : SlowPuts, which puts every message that is not ordinary
    """

    cdef CommitLogCore core
    cdef StoreState state
    cdef object slow

    def __cinit__(self, CommitLogCore core not None, StoreState state not None, slow):
        self.core = core
        self.state = state
        self.slow = slow

    def put_message(self, message not None):
        """Append a MessageExtBrokerInner whose fields have their exact types; return the result,
        whatever its status."""
        cdef PutMessageResult result = None
        if self.state.fast_puts:
            result = self.append(message)
        return self.slow.put_result(message) if result is None else result

    cdef PutMessageResult append(self, inner):
        # None, and nothing is appended, if the message is not ordinary.
        cdef rs_outgoing message
        cdef rs_append out
        cdef CommitLogCore core = self.core
        cdef TopicEntry entry = <TopicEntry>core.topics.get(inner.topic)
        cdef QueueSlot slot = None
        cdef RecordBuffer buffer
        cdef PutMessageResult result
        cdef dict named = inner.properties
        cdef list keep = []
        cdef int64_t size, now
        cdef int32_t kind
        cdef int status
        if entry is not None:
            slot = entry.near(int_in(inner.queue_id, 0, QUEUE_ID_MAX, "queue_id"))
        if slot is None or _DELAY_TIME_LEVEL in named or _INNER_MULTI_DISPATCH in named:
            return None
        try:
            fill_outgoing(inner, &message, keep, core.max_message_size)
        except MessageRefused:
            return None
        kind = message.sys_flag & RS_TRANSACTION_MASK
        if ((kind != RS_TRANSACTION_NOT_TYPE and kind != RS_TRANSACTION_COMMIT_TYPE)
                or (message.properties_size == 0 and core.bare_size != 0)):
            return None
        size = encoded_size(&message)
        buffer = core.take_buffer()
        buffer.ensure(size)
        if size < NOGIL_MIN_BYTES:
            encode_record(&message, buffer.data)
        else:
            with nogil:
                encode_record(&message, buffer.data)
        now = core.env.table.now_ms()
        status = core.append(buffer.data, size, 1, slot, True, now, &out)
        core.give_buffer(buffer)
        if status != RS_OK:
            return None
        if out.took_ms > 0:
            core.note_put_time(out.took_ms)
        result = PutMessageResult.__new__(PutMessageResult)
        result.phy_offset = out.phy_offset
        result.queue_offset = out.queue_offset
        result.wrote_bytes = out.size
        result.store_timestamp = out.store_timestamp
        result.message_count = out.count
        result.host_size = message.store_host_size
        memcpy(result.host, message.store_host, sizeof(result.host))
        return result


cdef int64_t _time_of(str name, object value) except? -1:
    if type(value) is int and (value == 0 or 100000000000 <= value <= INT64_MAX):
        return value  # as nearly always; TIME_MIN_MS
    return time_of(name, value)


cdef inline str _text_of(str name, object value):
    return <str>value if type(value) is str else exact_text(name, value)


cdef inline object _number_of(str name, object value):
    return value if type(value) is int else whole_number(name, value)


cdef object not_open():
    return StoreStateError("the store is not open")


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class StoreCalls:
    """`put`, `query` and `read`, over the parts that `Store` sets."""

    cdef public PutPath _put_path
    cdef public KeySearch _key_search
    cdef public StoreState _state

    def put(self, topic, body, *, queue_id=0, tags=None, keys=None, properties=None,
            delay_level=0, flag=0, born_timestamp=None, born_host=None, light_queues=None):
        """Append one message.

        Parameters
        ----------
        topic : str, 1 to 127 characters of ``%|a-zA-Z0-9_-``
        body : bytes, bytearray or memoryview (one dimension, items of one byte)
        queue_id : int, 0 to 2147483646
        tags : str or None: one tag, without ``||``, without a blank at either end, and not ``*``
        keys : str (several keys are separated by blanks), a sequence of str, or None
        properties : mapping of str to str, or None; reserved names of RocketMQ are refused
        delay_level : int, from 1 in messageDelayLevel; a higher one than the last is the last. The
            message waits in SCHEDULE_TOPIC_XXXX, in whose queue the result has its offset. 0: none
        flag : int32, for the application
        born_timestamp : int64, Unix ms, default now
        born_host : "ip:port", default the store host
        light_queues : sequence of str, or None: the message is also read from the queue 0 of the
            topic ``%LMQ%NAME`` for each name. Needs `enable_lmq` and `enable_multi_dispatch`

        A number is an int or an object with ``__index__``, but not a bool. For a subclass of str or
        int, the plain characters or number are stored.

        Returns
        -------
        PutMessageResult

        Raises
        ------
        StoreTypeError, StoreFormatError: an argument cannot be stored unchanged
        PutError: any status except PUT_OK
        StoreStateError: closed or read-only

        Threads: any. Durability: with ASYNC_FLUSH the message survives a kill of this process at
        once, and a power cut after the next flush. With SYNC_FLUSH it is on the device on return.
        With a transient store pool it survives a kill after the next commit.
        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessage.
        """
        cdef PutPath path = self._put_path
        if path is None:
            raise not_open()
        if light_queues is not None:
            properties = path.slow.light_properties(light_queues, properties, delay_level)
        return path.put(topic, body, queue_id, tags, keys, properties, delay_level, flag,
                        born_timestamp, born_host)

    def query(self, topic, key, *, begin=0, end=None, max_num=32, exact=True):
        """Return the newest messages of a topic with a key, ascending by physical offset.

        Parameters
        ----------
        begin, end : store times, both inclusive: an int in Unix ms, a datetime with a zone, or ISO
            8601 text; None: no end
        max_num : int, maximum number of messages
        exact : bool, omit messages that only share the key's hash

        Returns
        -------
        list of MessageExt; a message with a damaged body is in it, with `is_crc_valid` False

        Raises
        ------
        StoreCorruptionError, StoreIOError
        StoreStateError: closed before or meanwhile
        StoreTypeError, StoreFormatError: an argument, or `begin` is after `end`

        If the index does not cover the log, the first query searches the log. A StoreWarning names
        the ranges that this search omitted because of `max_key_search_bytes`. Another StoreWarning
        counts messages that the index names but that cannot be read (their record is damaged, or a
        log file is missing), with the file and position of the first. Messages that have expired,
        or are behind the end of the log, are not counted.

        Threads: any.
        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        cdef KeySearch search = self._key_search
        cdef StoreState state = self._state
        cdef int64_t since = _time_of("begin", begin)
        cdef int64_t until = INT64_MAX if end is None else _time_of("end", end)
        if since > until:
            check_times(since, until)
        cdef str topic_text = _text_of("topic", topic)
        cdef str key_text = _text_of("key", key)
        cdef bint is_exact = exact if type(exact) is bool else exact_flag("exact", exact)
        if type(max_num) is not int:
            max_num = whole_number("max_num", max_num)
        if search is None or state is None:
            raise not_open()
        if not state.is_open:
            state.check()
        try:
            return search.query(topic_text, key_text, since, until, max_num, is_exact)
        finally:
            if not state.is_open:
                state.check()

    @cython.annotation_typing(False)
    def read(
        self, topic: str, queue_id: int | None = 0, *, start: int | None = None,
        stop: int | None = None, tags: str | None = "*",
        where: str | Sql92Filter | None = None, on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> MessageReader:
        """Return an iterator over the messages of a queue, in order.

        Parameters
        ----------
        queue_id : None merges all queues of the topic by store time; `start` and `stop` must then
            be None
        start, stop : queue offsets, the range [start, stop). Default: from the first readable
            message to the end of the queue at this call
        tags : "TagA || TagB", compared exactly; None, "*" or "" selects all
        where : an SQL92 filter of properties, such as "a > 5 AND region IN ('eu', 'us')", or a
            Sql92Filter, which is parsed only once; with `tags`, messages pass both
        on_corrupt : the treatment of a message that cannot be read, because its record or its unit
            in the queue is damaged, or its file of the log is missing.
            "raise": the iterator raises DamagedMessageError for the queue offsets [start, stop) of
            the error, and its next call continues at `stop`. A missing file may cause several
            errors, one after the other.
            "skip": the iterator omits the message
        check_crc : treat a body with a wrong CRC as damaged

        Returns
        -------
        MessageReader, an iterator of MessageExt. Its attribute `skipped` (SkippedMessages) has the
        count and the ranges of the messages that could not be read so far

        Raises
        ------
        This call: UnknownTopicError, OffsetOutOfRange, StoreTypeError, StoreFormatError
        The iterator: DamagedMessageError (a StoreCorruptionError), StoreIOError. After a
        StoreIOError for a record the iterator continues; for a file of the queue it ends

        If messages expire before the iterator reaches them, it continues with the first one left.
        A StoreWarning says where the units of later messages could not be written.
        """
        cdef object options
        skipped = SkippedMessages()
        is_checked = check_crc if type(check_crc) is bool else exact_flag("check_crc", check_crc)
        wanted = None if type(tags) is str and <str>tags == "*" else tags_filter(tags)
        options = (wanted, on_corrupt, is_checked, skipped)
        if where is None and queue_id is not None:
            return self._messages(topic, queue_id, start, stop, options)
        return self._read_otherwise(topic, queue_id, start, stop, where, options)

    def _messages(self, topic, queue_id, start, stop, tuple options not None):
        """Return an iterator over a range of one queue; arguments as of `read`."""
        cdef StoreState state = self._state
        cdef RangeFields part
        if state is None:
            raise not_open()
        state.need_open()
        try:
            part, first, end = self._part(topic, queue_id, start, stop, options)
        except (StoreCorruptionError, LookupError):
            state.need_open()  # files that a close has released look damaged, empty or removed
            raise
        state.need_open()
        return messages_between(part, first, end, state, self, self.message_store.read_counts)

    def _part(self, topic, queue_id, start, stop, tuple options not None):
        """Return the range of a queue to read, its first queue offset and its end."""
        cdef str name = _text_of("topic", topic)
        cdef int64_t floor
        engine = self._engine
        if not (type(queue_id) is int and 0 <= queue_id <= INT32_MAX):
            queue_id = queue_id_of(queue_id)
        wanted, on_corrupt, check_crc, skipped = options
        damage = QueueDamage(name, queue_id, on_corrupt, skipped)
        engine.wait_dispatched()
        reads = engine.files.reads  # once: `refresh` may replace it
        log = reads.commit_log
        queue = reads.queues.get(name, queue_id)
        if queue is None:
            self._check_topic(name)
            queue = reads.queues.find(name, queue_id)
        floor = max(<int64_t>0, first_byte(log))
        low = queue.first_readable_offset(floor)  # first: it may move while messages are put
        high = end_of_queue(queue)
        first = low if start is None else _number_of("start", start)
        end = high
        if stop is not None:
            stop = _number_of("stop", stop)
            if stop < high:
                end = max(0, stop)
        if not low <= first <= high:
            raise OffsetOutOfRange(low, high, first, name, queue_id)
        if queue.failed and end == high:
            self._warn_of_missing_units(queue)
        return QueueRange(log, queue, floor, wanted, damage, check_crc), first, end
