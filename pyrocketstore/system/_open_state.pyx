"""The state of a store, which all parts of a `Store` share: open, closed or dead.

The object refers to no other part, so the engine may refer to it.
"""
cimport cython

from pyrocketstore.errors import StoreCorruptionError, StoreStateError


@cython.final
@cython.auto_pickle(False)
cdef class StoreState:
    """The state of a store, and whether the compiled path may put.

    As a context manager it guards a read: `with state:` raises StoreStateError if the store is
    closed before or meanwhile. Files that a close has released look damaged, empty or removed, so a
    StoreCorruptionError and a LookupError that a close may have caused become a StoreStateError.

    Parameters
    ----------
    path : str, the store's directory
    read_only : bool

    Threads: any.
    """

    def __cinit__(self, str path not None, bint read_only):
        self.path = path
        self.read_only = read_only
        self.name = "closed"

    def open(self):
        """Allow reads: the store is loaded."""
        self.name, self.is_open = "open", True

    def close(self):
        """Refuse all calls: the store is being closed."""
        self.fast_puts = self.is_open = False
        self.name = "closed"

    def allow_fast_puts(self):
        """Let the compiled path make ordinary puts, until `stop_puts`."""
        self.may_put_fast = self.fast_puts = True

    def stop_puts(self, str dead=None):
        """Let SlowPuts check each put first; `dead`: also refuse all calls, for this reason."""
        self.fast_puts = False
        if dead is not None:
            self.name, self.is_open = dead, False

    def resume_puts(self):
        """Undo `stop_puts`: the disk is no longer full."""
        self.fast_puts = self.may_put_fast and self.is_open

    def check(self):
        """Raise StoreStateError if the store is not open."""
        if not self.is_open:
            raise StoreStateError(f"{self.path}: the store is {self.name}")

    def check_writable(self):
        """Raise StoreStateError if the store is not open, or is open read-only."""
        self.check()
        if self.read_only:
            raise StoreStateError(f"{self.path}: the store is open read-only")

    def __enter__(self):
        if not self.is_open:
            self.check()

    def __exit__(self, kind, error, trace):
        if not self.is_open and (
                error is None or isinstance(error, (StoreCorruptionError, LookupError))):
            self.check()
