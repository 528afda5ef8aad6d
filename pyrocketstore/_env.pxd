"""The operating system as one table, and the event that threads sleep on."""
from pyrocketstore._rocketstore cimport rs_env, rs_event


cdef class EnvTable:
    cdef rs_env table


cdef class Event:
    cdef rs_event *event


# The path as the file system's bytes: owned by the caller, without NUL bytes inside.
cdef bytes path_bytes(object path)

# Such bytes as Python shows them: `path_bytes` of this gives them back.
cdef str path_text(bytes path)
