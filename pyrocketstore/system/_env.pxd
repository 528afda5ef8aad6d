"""The table of operating system calls, and the event that threads sleep on."""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_env, rs_event


cdef class EnvTable:
    cdef rs_env table
    cdef object fsync_failed              # the StoreFsyncError; None until Python has raised it
    cdef list fsync_watchers
    cdef readonly dict made_names         # directory: number of the newest name made in it
    cdef readonly dict flushed_names      # directory: number up to which its names are durable

    # Raises if a call of the table failed. `operation` names the call where the result does not.
    cdef int check(self, int result, str operation, object path, int64_t position) except -1
    cdef int forget_fsyncs(self) except -1
    cdef object error_of(self, int result, str operation, object path, int64_t position)


cdef class Event:
    cdef rs_event *event


# The path in the encoding of the file system, without NUL bytes. The caller owns the result.
cdef bytes path_bytes(object path)

# The inverse of `path_bytes`: the path as a Python str.
cdef str path_text(bytes path)
