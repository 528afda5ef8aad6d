"""Pages of queue and index files made present in bulk, for who knows how much will be written."""
from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_index_file, rs_queue

# Both do their best: what fails here, the writer meets by itself. Only the file's one writer.

# Allocates and fills the room for `count` units behind the queue's end, in the attached file.
cdef void prefill_queue(rs_queue *q, int64_t count) noexcept nogil

# The same for `count` keys: their entries; and all slots, where that many touch most pages of them
# and the file is `fresh`: made by this process, so that what is not allocated was never stored to.
cdef void prefill_index(rs_index_file *x, int64_t count, bint fresh) noexcept nogil

# The slots alone; their chunks are none of those that prefill_entries fills.
cdef void prefill_slots(rs_index_file *x, int64_t count, bint fresh) noexcept nogil

# The entries of `count` keys alone, from entry `number` on; False where there is no room. Also
# beside the writer, as long as that stays below `number` and has all of its room by then.
cdef bint prefill_entries(rs_index_file *x, int64_t number, int64_t count) noexcept nogil
