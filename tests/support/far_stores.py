"""Small stores whose log begins far from 0, as that of a broker that has run for long."""

from __future__ import annotations

from pathlib import Path

import pyrocketstore

FILE_SIZE = 1 << 16
SIZES = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 400}
#: Around what 31 and 32 bits hold, and where no product of 32 bits gets by chance.
BEGINS = [(1 << 31) - FILE_SIZE, (1 << 32) - FILE_SIZE, 40_000 << 30]


def open_far(root: Path, begin: int) -> pyrocketstore.Store:
    """A new store, the first byte of whose log is `begin`."""
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{begin:020d}").write_bytes(bytes(FILE_SIZE))
    return pyrocketstore.open(root, **SIZES)


def fill_far(root: Path, begin: int, count: int = 700) -> None:
    """Message `i` is the i-th of the log: topic t{i % 3}, queue i % 2, key k{i}, tag T{i % 2}."""
    with open_far(root, begin) as store:
        for i in range(count):
            store.put(f"t{i % 3}", body_of(i), queue_id=i % 2, keys=f"k{i}", tags=f"T{i % 2}")


def damage_body(root: Path, phy_offset: int) -> None:
    """Change bytes of the body of the record there, whose hosts are of IPv4."""
    file = root / "commitlog" / f"{phy_offset - phy_offset % FILE_SIZE:020d}"
    with file.open("r+b") as opened:
        opened.seek(phy_offset % FILE_SIZE + 90)
        opened.write(b"\xff\xff\xff")


def body_of(number: int) -> bytes:
    return b"%d " % number * 40
