"""Fields of the objects that each read makes for the messages that it cannot read."""
cimport cython

from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError

#: So many ranges are kept; later messages are only counted.
MAX_RANGES = 4096


@cython.auto_pickle(False)
cdef class SkippedFields:
    """The fields of a skipped.SkippedMessages.

    Parameters
    ----------
    max_ranges : int, how many ranges are kept; None: all
    """

    def __cinit__(self, max_ranges=MAX_RANGES):
        self._max_ranges = max_ranges
        self._ranges = []


@cython.auto_pickle(False)
cdef class DamageFields:
    """The fields of a skipped.QueueDamage. Raises StoreFormatError for an unknown `on_corrupt`."""

    def __cinit__(self, str topic not None, int64_t queue_id, on_corrupt,
                  SkippedFields skipped not None):
        if not isinstance(on_corrupt, str) or on_corrupt not in ("raise", "skip"):
            raise StoreFormatError(f"on_corrupt is {shown(on_corrupt)}: must be 'raise' or 'skip'")
        self.topic = topic
        self.queue_id = queue_id
        self.skips = on_corrupt == "skip"
        self.skipped = skipped
