"""`put`, `query` and `read` of a Store, compiled: Python frames would be a tenth of the time of a
put, and half of that of a read of one message."""
cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t

from pyrocketstore.reading._by_key cimport KeySearch
from pyrocketstore.reading._queue_runs cimport RangeFields, end_of_queue, first_byte
from pyrocketstore.store._put_path cimport PutPath
from pyrocketstore.system._open_state cimport StoreState

from pyrocketstore.arguments.read_arguments import queue_id_of
from pyrocketstore.arguments.scalars import (
    check_times,
    exact_flag,
    exact_text,
    time_of,
    whole_number,
)
from pyrocketstore.errors import OffsetOutOfRange, StoreCorruptionError, StoreStateError
from pyrocketstore.reading._messages import messages_between
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import QueueDamage, SkippedMessages
from pyrocketstore.record.tags import tags_filter


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
        engine = self.message_store
        if not (type(queue_id) is int and 0 <= queue_id <= INT32_MAX):
            queue_id = queue_id_of(queue_id)
        wanted, on_corrupt, check_crc, skipped = options
        damage = QueueDamage(name, queue_id, on_corrupt, skipped)
        engine.wait_dispatched()
        reads = engine.reads  # once: `refresh` may replace it
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
