"""The filters of consumers that a store keeps in ROOT/config/consumerFilter.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.message_store.closing import Closing
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    from pyrocketstore.consumer.consumer_filters import ConsumerFilters
    from pyrocketstore.dispatch.observers import BitMap

__all__ = ["RegisteredFilters"]


class RegisteredFilters:
    """The filters of a store that is open for writing.

    Parameters
    ----------
    closing : Closing, has the filters written and closed

    Threads: those with the `life_lock` of the store.
    """

    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._filters: ConsumerFilters | None = None

    def get(self) -> ConsumerFilters:
        """Return the filters of consumerFilter.json; the first call reads the file.

        Raises StoreCorruptionError, StoreIOError.
        """
        if self._filters is None:
            files = self._closing.files
            config = files.config
            module = imported("pyrocketstore.consumer.consumer_filters")
            found: ConsumerFilters = module.ConsumerFilters(
                files.env,
                files.root,
                config.max_error_rate_of_bloom_filter,
                config.expect_consumer_num_use_filter,
                config.filter_data_clean_time_span,
                files.newest_store_timestamp,
            )
            found.load()
            if files.plan is None or not files.plan.clean:
                found.note_unclean_stop()
            self._closing.at_clean_stop.append(found.end_all)
            self._closing.at_end.append(found.close)
            self._filters = found
        return self._filters

    def bit_map(self) -> BitMap | None:
        """Return the function that makes the filter bit map of a message, None without such maps.

        Raises StoreCorruptionError, StoreIOError.
        """
        if self._closing.files.config.enable_calc_filter_bit_map:
            return self.get().bit_map
        return None
