"""A name server, and a broker that tests start on a store's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import Cluster
from support.java_store import require_java


@pytest.fixture(scope="session")
def name_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a name server for all tests: it forgets a broker when its connection ends."""
    made = Cluster(require_java(), tmp_path_factory.mktemp("names") / "home")
    with made.names():
        yield made.name_port


@pytest.fixture
def cluster(tmp_path: Path, name_port: int) -> Cluster:
    """A broker to start, and a running name server."""
    return Cluster(require_java(), tmp_path / "home", name_port)
