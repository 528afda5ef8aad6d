"""Compiled methods with the signatures of Store's puts that do nothing, or little: their cost.

run.py builds this module into build/bench; it is not part of the package.
"""
from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cdef extern from "rocketstore.h":
    uint32_t rs_crc32(uint32_t crc, const uint8_t *p, size_t size) noexcept

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    HEADER_SIZE = 88        # the fields of fixed size, and the length of the topic
    UNIQUE_ID_SIZE = 32
    BUFFER_SIZE = 1048576   # stays in the processor's cache
    RECORD_SIZE_MAX = 65536

cdef array LONGS = array("q")
cdef bytes UNIQUE_ID = b"0" * UNIQUE_ID_SIZE


cdef class EmptyStore:
    """Stand-in for a Store."""

    cdef readonly int64_t calls

    def put(self, str topic not None, body, *, queue_id=0, tags=None, keys=None, properties=None,
            int delay_level=0, flag=0, born_timestamp=None, born_host=None):
        """Count the message."""
        self.calls += 1

    def put_many(self, str topic not None, bodies, *, queue_ids=None, tags=None, keys=None,
                 properties=None, born_host=None):
        """Count the messages."""
        self.calls += len(bodies)

    def put_batch(self, str topic not None, messages, queue_id=0, *, tags=None, keys=None,
                  properties=None):
        """Count the messages."""
        self.calls += len(messages)


cdef class Result:
    """Stand-in for the result of a put."""

    cdef readonly int64_t phy_offset
    cdef readonly int64_t size


cdef class EncodingStore:
    """Stand-in for a Store that copies a record's bytes into memory and computes the CRC.

    No text is checked, and the properties are in the order of the dictionary. There is no log, lock
    or second thread. The record has the fields and the size of one of `Store.put` with UNIQ_KEY.
    """

    cdef readonly int64_t calls
    cdef int64_t phy_offset
    cdef uint8_t[HEADER_SIZE] header
    cdef uint8_t[BUFFER_SIZE] buffer

    cdef int64_t write_text(self, uint8_t *out, str text, uint8_t end) except -1:
        cdef Py_ssize_t size
        cdef const char *utf8 = PyUnicode_AsUTF8AndSize(text, &size)
        memcpy(out, utf8, size)
        out[size] = end
        return size + 1

    cdef int64_t write_record(self, str topic, bytes body, str tags, str keys,
                              dict properties) except -1:
        cdef uint8_t *record = self.buffer + self.phy_offset % (BUFFER_SIZE - RECORD_SIZE_MAX)
        cdef uint8_t *out = record + HEADER_SIZE
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body)
        cdef PyObject *name = NULL
        cdef PyObject *value = NULL
        cdef timespec now
        clock_gettime(CLOCK_REALTIME, &now)
        memcpy(self.header + 56, &now, 8)
        memcpy(out, PyBytes_AS_STRING(body), body_size)
        (<uint32_t *>(self.header + 8))[0] = rs_crc32(0, out, body_size)
        out += body_size
        out += self.write_text(out, topic, 0)
        out += self.write_text(out, "TAGS", 1)
        out += self.write_text(out, tags, 2)
        out += self.write_text(out, "KEYS", 1)
        out += self.write_text(out, keys, 2)
        out += self.write_text(out, "UNIQ_KEY", 1)
        memcpy(out, PyBytes_AS_STRING(UNIQUE_ID), UNIQUE_ID_SIZE)
        out[UNIQUE_ID_SIZE] = 2
        out += UNIQUE_ID_SIZE + 1
        while PyDict_Next(properties, &at, &name, &value):
            out += self.write_text(out, <str><object>name, 1)
            out += self.write_text(out, <str><object>value, 2)
        memcpy(record, self.header, HEADER_SIZE)
        self.phy_offset += out - record
        self.calls += 1
        return out - record

    def put(self, str topic not None, body, *, queue_id=0, tags=None, keys=None, properties=None,
            int delay_level=0, flag=0, born_timestamp=None, born_host=None):
        """Write the record."""
        cdef Result result = Result.__new__(Result)
        result.phy_offset = self.phy_offset
        result.size = self.write_record(topic, body, tags, keys, properties)
        return result

    def put_many(self, str topic not None, bodies, *, queue_ids=None, tags=None, keys=None,
                 properties=None, born_host=None):
        """Write the records."""
        cdef list all_bodies = bodies
        cdef list all_tags = tags
        cdef list all_keys = keys
        cdef list all_properties = properties
        cdef Py_ssize_t i
        cdef array positions = clone(LONGS, len(all_bodies), False)
        for i in range(len(all_bodies)):
            positions.data.as_longlongs[i] = self.phy_offset
            self.write_record(topic, all_bodies[i], all_tags[i], all_keys[i], all_properties[i])
        return positions
