"""What became of a put."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pyrocketstore.record._text cimport fill_outgoing_host

from pyrocketstore.results import AppendMessageStatus, PutMessageStatus

cdef object PUT_STATUS = tuple(PutMessageStatus)
cdef object APPEND_STATUS = tuple(AppendMessageStatus)


@cython.no_gc  # it is made for each put, and holds nothing that leads back to it
@cython.auto_pickle(False)
cdef class PutMessageResult:
    """What became of a put.

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
