"""Files that appear under their names with their full length."""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_env


# Makes a file of `size` bytes without blocks; `is_there`: it exists and has no length. `durable`:
# it and its name are on the device on return. Nothing is left when it fails; no other file is ever
# replaced. Raises StoreIOError naming `shown`.
cdef int make_file(const rs_env *env, bytes path, int64_t size, bint durable, bint is_there,
                   object shown) except -1
