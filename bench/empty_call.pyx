"""What calling a compiled method costs by itself: Store.put's arguments, and nothing done with them.

Built by run.py into build/bench; no part of the package.
"""


from libc.stdint cimport int64_t


cdef class EmptyStore:
    """Stands where a Store would stand."""

    cdef readonly int64_t calls

    def put(self, str topic not None, body, *, queue_id=0, tags=None, keys=None, properties=None,
            int delay_level=0, flag=0, born_timestamp=None, born_host=None):
        """Count the call, which proves that it was made."""
        self.calls += 1
