"""The operating system as one table, and the event that threads sleep on."""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_env, rs_event


cdef class EnvTable:
    cdef rs_env table
    cdef object fsync_failed              # the StoreFsyncError; None until Python knows it
    cdef list fsync_watchers
    cdef readonly set new_directories     # paths: made, and perhaps not on the device yet

    # Raise when a call of the table failed. `operation` names it where the result does not.
    cdef int check(self, int result, str operation, object path, int64_t position) except -1
    cdef int forget_fsyncs(self) except -1
    cdef object error_of(self, int result, str operation, object path, int64_t position)


cdef class Event:
    cdef rs_event *event


# The path as the file system's bytes: owned by the caller, without NUL bytes inside.
cdef bytes path_bytes(object path)

# Such bytes as Python shows them: `path_bytes` of this gives them back.
cdef str path_text(bytes path)
