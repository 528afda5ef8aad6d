"""Make new files, which appear with their full length."""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_mapped_file
from pyrocketstore.system._env cimport EnvTable


# Makes a file of `size` bytes without blocks; `is_there`: it exists and is empty. `durable`: the
# file and its name are durable on return. A failure leaves no file; no other file is ever replaced.
# `mapped`: this file, which has that path, is mapped, and its first bytes are allocated; NULL: it
# is not. The result is 0 if a file of that name is there and `is_there` is not
# set, else 1. Raises StoreIOError or StoreFsyncError naming `shown`.
cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown, rs_mapped_file *mapped) except -1
