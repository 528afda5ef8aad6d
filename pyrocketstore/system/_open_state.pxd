"""The state of a store, for its parts."""


cdef class StoreState:
    cdef readonly str path
    cdef readonly bint read_only
    cdef readonly str name        # "open", "closed" or "dead: ..."
    cdef readonly bint is_open
    cdef readonly bint fast_puts  # the compiled path makes ordinary puts
    cdef bint may_put_fast

    # Raises StoreStateError if the store is not open.
    cdef inline int need_open(self) except -1:
        if not self.is_open:
            self.check()
        return 0
