"""Files that appear under their names with their full length."""
from libc.stdint cimport int64_t

from pyrocketstore._env cimport EnvTable


# Makes a file of `size` bytes without blocks; `is_there`: it exists and has no length. `durable`:
# it and its name are on the device on return. Nothing is left when it fails; no other file is ever
# replaced. Raises StoreIOError or StoreFsyncError naming `shown`.
cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown) except -1
