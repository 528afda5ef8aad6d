"""Prefault pages of queue and index files before a known number of units or keys is put.

Best effort: the writer repeats and reports what fails here. Threads: the file's one writer.
"""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_index_file, rs_queue

# Allocates and fills the space of `count` units after the queue's end, in the attached file.
cdef void prefault_queue(rs_queue *q, int64_t count) noexcept nogil

# Allocates and fills the entries of `count` keys; also all slots, if so many keys touch most of
# their pages and the file is `fresh`: made by this process, so that unallocated slots are unused.
cdef void prefault_index(rs_index_file *x, int64_t count, bint fresh) noexcept nogil

# The slots alone. prefault_entries fills other chunks of the file.
cdef void prefault_slots(rs_index_file *x, int64_t count, bint fresh) noexcept nogil

# The entries of `count` keys alone, from entry `number` on; False if the device has no room. May
# run beside the writer while the writer puts only entries below `number`, which are allocated.
cdef bint prefault_entries(rs_index_file *x, int64_t number, int64_t count) noexcept nogil
