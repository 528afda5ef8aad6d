"""Files that stay open for reading between calls: see the module.

Call every function with the GIL; each releases it during its system calls.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from pyrocketstore.system._env cimport EnvTable


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
