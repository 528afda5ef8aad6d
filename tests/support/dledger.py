"""Turns a plain store into one of DLedger mode, byte by byte as dledger 0.2.3 writes it, and
records into those of 5.x."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from support.sizes import SIZES

NODE = "dledger-n0"
MAGIC, V2 = bytes.fromhex("DAA320A7"), bytes.fromhex("DAA320AB")
FILE_SIZE = 1 << 14
INDEX_SIZE = 1 << 16


class Ledger:
    """Writes entries as dledger 0.2.3 does."""

    def __init__(self, root: Path, begin: int = 0) -> None:
        self.node = root / NODE
        self.data, self.index = bytearray(), bytearray()
        self.begin = begin
        self.ends: list[int] = []

    def append(self, record: bytes) -> int:
        """Append an entry; return the physical offset of its record."""
        left = FILE_SIZE - len(self.data) % FILE_SIZE
        if len(record) + 48 + 8 > left:
            self.data += struct.pack(">ii", -1, left) + bytes(left - 8)
        position, number = self.begin + len(self.data), len(self.ends)
        body = bytearray(record)
        struct.pack_into(">q", body, 28, position + 48)
        size = len(body) + 48
        self.data += struct.pack(">iiqqqiiii", 1, size, number, 3, position, 0, 0, 0, len(body))
        self.data += body
        self.index += struct.pack(">iqiqq", 1, position, size, number, 3)
        self.ends.append(position + size)
        return position + 48

    def write(self, committed: int | None, *, last: bytes = b"") -> None:
        """Write all files; entries up to number `committed` are committed."""
        (self.node / "data").mkdir(parents=True, exist_ok=True)
        (self.node / "index").mkdir(exist_ok=True)
        data = bytes(self.data) + last
        data += bytes(-len(data) % FILE_SIZE)
        for at in range(0, len(data), FILE_SIZE):
            name = f"{self.begin + at:020d}"
            (self.node / "data" / name).write_bytes(data[at : at + FILE_SIZE])
        index = bytes(self.index) + bytes(INDEX_SIZE - len(self.index))
        (self.node / "index" / f"{0:020d}").write_bytes(index)
        if committed is not None:
            text = f"#Wed\nendIndex={len(self.ends) - 1}\ncommittedIndex={committed}\n"
            (self.node / "checkpoint").write_text(text)


#: Settings for reading: the files show the size of the log.
SIZES_DLEDGER = {name: value for name, value in SIZES.items() if "commit_log" not in name}


def as_dledger(path: Path, committed: int | None = None, *, last: bytes = b"") -> Ledger:
    """Move the records of a plain store into a DLedger log; queues and index are lost.

    `committed` is the number of the last committed entry; without one there is no checkpoint.
    """
    ledger = Ledger(path)
    for record in records(path):
        ledger.append(record)
    ledger.write(committed, last=last)
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    return ledger


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of the plain log of a store."""
    for file in sorted((path / "commitlog").iterdir()):
        data, at = file.read_bytes(), 0
        while data[at + 4 : at + 8] == MAGIC:
            (size,) = struct.unpack_from(">i", data, at)
            yield data[at : at + size]
            at += size


def as_v2(record: bytes, phy_offset: int, topic: bytes | None = None) -> bytes:
    """Return a record as 5.x stores it for a topic of more than 127 bytes."""
    (body_size,) = struct.unpack_from(">i", record, 84)
    at = 88 + body_size
    old = record[at + 1 : at + 1 + record[at]]
    name = old if topic is None else topic
    rest = record[at + 1 + len(old) :]
    changed = bytearray(record[:at] + struct.pack(">h", len(name)) + name + rest)
    struct.pack_into(">i", changed, 0, len(changed))
    changed[4:8] = V2
    struct.pack_into(">q", changed, 28, phy_offset)
    return bytes(changed)
