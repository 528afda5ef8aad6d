"""The compiled part of the face that reads: what costs less than a call from Python into it."""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from pyrocketstore._key_search cimport KeySearch
from pyrocketstore._put_path cimport PutPath

from pyrocketstore.exact import exact_int64
from pyrocketstore.errors import StoreStateError


cdef int64_t _time_of(str name, object value) except? -1:
    if type(value) is int:
        try:
            return value
        except OverflowError:
            pass  # said below
    return exact_int64(name, value)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Face(PutPath):
    """`query` as one call.

    A subclass in Python sets `_key_search`, then `_state`, and gives `_check_open`, which raises
    StoreStateError where that is not "open".
    """

    cdef public KeySearch _key_search
    cdef public str _state

    def query(self, str topic not None, str key not None, *, begin=0, end=None,
              max_num=32, bint exact=True):
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
        names what was not searched because of `max_key_search_bytes`.

        Raises: StoreCorruptionError, StoreIOError; StoreStateError, closed before or meanwhile;
        TypeError, StoreFormatError: no time in Unix ms.
        Threads: any.
        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        cdef KeySearch search
        cdef int64_t since = _time_of("begin", begin)
        cdef int64_t until = INT64_MAX if end is None else _time_of("end", end)
        if self._state != "open":
            self._check_open()
        search = self._key_search
        if search is None:
            raise StoreStateError("the store is not open")
        try:
            return search.query(topic, key, since, until, max_num, exact)
        finally:
            if self._state != "open":
                self._check_open()
