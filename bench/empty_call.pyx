"""A compiled method with the signature of Store.put that does nothing: the cost of the call.

run.py builds this module into build/bench; it is not part of the package.
"""


from libc.stdint cimport int64_t


cdef class EmptyStore:
    """Stand-in for a Store."""

    cdef readonly int64_t calls

    def put(self, str topic not None, body, *, queue_id=0, tags=None, keys=None, properties=None,
            int delay_level=0, flag=0, born_timestamp=None, born_host=None):
        """Count the call."""
        self.calls += 1
