"""Make new files, which appear with their full length."""
from libc.stdint cimport int64_t

from pyrocketstore.system._env cimport EnvTable


# Makes a file of `size` bytes without blocks; `is_there`: it exists and is empty. `durable`: the
# file and its name are durable on return. A failure leaves no file; no other file is ever replaced.
# Raises StoreIOError or StoreFsyncError naming `shown`.
cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown) except -1
