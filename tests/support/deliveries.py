"""Open stores without the delivery of delayed messages, where a test knows every record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from pyrocketstore.message_store.start_stop_services import StoreServices


@contextlib.contextmanager
def no_deliveries() -> Iterator[None]:
    """Let stores that are opened meanwhile deliver no delayed message, however long it is due."""
    with mock.patch.object(StoreServices, "start_schedule", lambda services: None):
        yield
