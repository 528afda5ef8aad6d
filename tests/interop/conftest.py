"""A name server, and a broker that tests start on a store's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import Cluster
from support.java_store import require_java


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A running name server."""
    made = Cluster(require_java(), tmp_path / "home")
    with made.names():
        yield made
