"""`Store.put` and `Store.query`, compiled: a Python frame would be a tenth of their time."""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from pyrocketstore.reading._by_key cimport KeySearch
from pyrocketstore.store._put_path cimport PutPath
from pyrocketstore.store._open_state cimport StoreState

from pyrocketstore.arguments.scalars import exact_flag, exact_int64, exact_text, whole_number
from pyrocketstore.errors import StoreStateError


cdef int64_t _time_of(str name, object value) except? -1:
    if type(value) is int:
        try:
            return value
        except OverflowError:
            pass  # refused by the next line
    return exact_int64(name, value)


cdef inline str _text_of(str name, object value):
    return <str>value if type(value) is str else exact_text(name, value)


cdef object not_open():
    return StoreStateError("the store is not open")


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class StoreCalls:
    """`put` and `query`, each a call into one of the parts that `Store` sets."""

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
        begin, end : int, Unix ms of the store time, both inclusive; None: no end
        max_num : int, maximum number of messages
        exact : bool, omit messages that only share the key's hash

        Returns
        -------
        list of MessageExt; a message with a damaged body is in it, with `is_crc_valid` False

        Raises
        ------
        StoreCorruptionError, StoreIOError
        StoreStateError: closed before or meanwhile
        StoreTypeError, StoreFormatError: an argument

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
