"""The stores of these tests begin at 0 or far from it, as the seed chooses."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _anywhere(anywhere: int) -> None:
    pass
