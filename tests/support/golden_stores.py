"""The stores that RocketMQ 4.9.3 wrote (tests/golden), with its own answers."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
#: The broker.conf of a golden store enables cleaning: without this setting, an opening for writing
#: warns that the messages have expired.
KEPT = {"file_reserved_time": 1_000_000}
UNCLEAN = {"killed", "torn", "x-lmqkilled"}
LOST = {"x-lostfiles"}

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
TRANSACTION_MASK = 0xC
IN_QUEUE_TYPES = {0x0, 0x8}


def unpack(name: str, target: Path) -> Path:
    """Unpack a golden store, with the times of its files."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def expected_lines(name: str) -> list[str]:
    """Return the answers of 4.9.3 over a golden store."""
    return (GOLDEN / f"{name}.jsonl").read_text(encoding="ascii").splitlines()


def scan_log(commit_log: Path) -> Iterator[tuple[str, int, int, int]]:
    """(topic, queue_id, queue_offset, phy_offset) of every record that belongs in a queue."""
    for path in sorted(commit_log.iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic != MESSAGE_MAGIC:
                assert magic in {BLANK_MAGIC, 0}
                break
            queue_id, _, queue_offset, phy_offset, sys_flag = struct.unpack_from(
                ">iiqqi", data, at + 12
            )
            hosts = (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
            body = at + 68 + hosts
            topic_at = body + 4 + struct.unpack_from(">i", data, body)[0]
            topic = data[topic_at + 1 : topic_at + 1 + data[topic_at]].decode()
            if sys_flag & TRANSACTION_MASK in IN_QUEUE_TYPES:
                yield topic, queue_id, queue_offset, phy_offset
            at += size
