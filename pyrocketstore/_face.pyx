"""The compiled part of the face that reads: what costs less than a call from Python into it."""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from pyrocketstore._key_search cimport KeySearch
from pyrocketstore._put_path cimport PutPath

from pyrocketstore.exact import exact_flag, exact_int64, exact_text, whole_number
from pyrocketstore.errors import StoreStateError


cdef int64_t _time_of(str name, object value) except? -1:
    if type(value) is int:
        try:
            return value
        except OverflowError:
            pass  # said below
    return exact_int64(name, value)


cdef inline str _text_of(str name, object value):
    return <str>value if type(value) is str else exact_text(name, value)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Face(PutPath):
    """`query` as one call.

    A subclass in Python sets `_key_search`, then `_state`, and gives `_check_open`, which raises
    StoreStateError where that is not "open".
    """

    cdef public KeySearch _key_search
    cdef public str _state

    def query(self, topic, key, *, begin=0, end=None, max_num=32, exact=True):
        """The newest `max_num` messages of a topic with a key, ascending by physical offset.

        Parameters
        ----------
        begin, end : int, Unix ms of the store time, both inclusive; None: no end
        max_num : int
        exact : bool, drop messages that only share the key's hash

        Returns
        -------
        list of MessageExt, as RocketMQ gives them: `is_crc_valid` says whether a body is damaged

        Where the index does not cover the log, the first query searches the log, and a StoreWarning
        names what was not searched because of `max_key_search_bytes`. Where a message that the
        index names cannot be read, because its record is damaged or the file of the log is missing,
        a StoreWarning tells how many, and the file and position of the first. What has expired, or
        lies behind the log's end, is not told.

        Raises: StoreCorruptionError, StoreIOError; StoreStateError, closed before or meanwhile;
        StoreTypeError, StoreFormatError: an argument.
        Threads: any.
        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        cdef KeySearch search
        cdef int64_t since = _time_of("begin", begin)
        cdef int64_t until = INT64_MAX if end is None else _time_of("end", end)
        cdef str topic_text = _text_of("topic", topic)
        cdef str key_text = _text_of("key", key)
        cdef bint is_exact = exact if type(exact) is bool else exact_flag("exact", exact)
        if type(max_num) is not int:
            max_num = whole_number("max_num", max_num)
        if self._state != "open":
            self._check_open()
        search = self._key_search
        if search is None:
            raise StoreStateError("the store is not open")
        try:
            return search.query(topic_text, key_text, since, until, max_num, is_exact)
        finally:
            if self._state != "open":
                self._check_open()
