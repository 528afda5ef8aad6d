"""The table of operating system calls, the event that threads sleep on, and files kept open."""
from cpython.ref cimport PyObject
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


# Files that stay open for reading between calls: see the module.
#
# Call every function with the GIL; each releases it during its system calls.

# An open file. Its owner's pointer refers to it while it is kept; `users` counts reads in progress.
cdef struct kept_file:
    int fd
    int users
    bint recent             # used since the pool last looked for one to close
    PyObject *env           # EnvTable, referred to
    kept_file **owner       # NULL: the last user closes the file


# Reads from a file as pread does, and keeps it open for the next call. The file is opened by its
# path, again if it was deleted or replaced since; `is_own`: only this process deletes it, and calls
# `close_kept` then. Returns the bytes read, fewer only at the end of the file, or a negated errno.
cdef int64_t read_kept(kept_file **owner, EnvTable owner_env, const char *path, bint is_own,
                       void *target, int64_t size, int64_t position) noexcept

# Returns a file for several reads, until `release_kept`; NULL with a negated errno in `error`.
cdef kept_file *take_kept(kept_file **owner, EnvTable owner_env, const char *path,
                          int *error) noexcept
cdef void release_kept(kept_file *file) noexcept

# True if the file is open and still has a name; False also says that it must be opened to tell.
cdef bint kept_has_name(kept_file **owner) noexcept

# Closes the owner's file, or has its last user close it.
cdef void close_kept(kept_file **owner) noexcept
