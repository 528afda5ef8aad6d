"""Goal: a process that opens a store which another one has open is refused before it reads or
changes any file. Method: the system calls of the second process are recorded."""

from __future__ import annotations

from pathlib import Path

from openings import open_twice


def test_a_refused_opening_touches_nothing(tmp_path: Path) -> None:
    open_twice(tmp_path / "store")
