"""The service of a store's transactions, with another way of its puts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Put = Callable[[Any], Any]


def put_by(service: Any, put: Put) -> Put:
    """Let another callable put the records of transactions; return the one before."""
    before: Put = service._calls.put
    service._calls = service._calls._replace(put=put)
    return before
