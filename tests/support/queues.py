"""Queues for tests: units in plain Python, a queue of ten units a file, and calls that fail."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import recover_queue
from pyrocketstore.results import DispatchRequest
from pyrocketstore.system.env import Env

UNIT = struct.Struct(">qiq")  # phyOffset, size, tagsCode
PRE_BLANK = (0, 2**31 - 1, 0)
EXT_ADDRESS = -(2**63)
MAX_ADDR = -(2**31) - 1
SIZE = 100  # bytes of each message in the log
FILE_SIZE = 200  # ten units


def pack(rows) -> bytes:
    return b"".join(UNIT.pack(*row) for row in rows)


def unpack(data: bytes):
    return list(UNIT.iter_unpack(data[: len(data) // 20 * 20]))


def oracle_scan(data: bytes, limit: int | None = None) -> tuple[int, int, int]:
    valid, max_phy, address = 0, -1, 1
    for row in unpack(data):
        phy_offset, size, tags_code = row
        if phy_offset < 0 or size <= 0 or (limit is not None and phy_offset >= limit):
            break
        valid += 20
        if row != PRE_BLANK:
            max_phy = phy_offset + size
            address = tags_code if tags_code <= MAX_ADDR else address
    return valid, max_phy, address


def open_queue(path: Path, *, file_size: int = FILE_SIZE, recover: bool = True, **settings):
    env = settings.pop("env", None) or Env()
    queue = ConsumeQueue("T", 0, str(path / "consumequeue"), file_size, env, **settings)
    queue.load()
    if recover:
        recover_queue(queue)
    return queue


def fill(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        assert queue.put_message_position_info(n * SIZE, SIZE, n, n)


def rows_of(queue: ConsumeQueue, start: int = 0):
    return list(zip(*(c.tolist() for c in queue.read_units(start, 1 << 20)), strict=True))


def message(n: int) -> tuple[int, int, int]:
    return (n * SIZE, SIZE, n)


def files_of(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((path / "consumequeue/T/0").glob("*"))}


def poke(path: Path, unit_index: int, data: bytes, file_size: int = FILE_SIZE) -> None:
    position = unit_index * 20
    name = f"{position // file_size * file_size:020d}"
    with open(path / "consumequeue/T/0" / name, "r+b") as file:
        file.seek(position % file_size)
        file.write(data)


def failing(env: Env, name: str, error: int, times: int) -> list[int]:
    """Let a call of the table fail `times` times; the list grows by one for each call."""
    kinds = {"fallocate": (ctypes.c_int, ctypes.c_int64, ctypes.c_int64)}
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *kinds[name])
    calls: list[int] = []

    def call(*arguments: int) -> int:
        calls.append(1)
        return -error if len(calls) <= times else real(*arguments)

    function = kind(call)
    real = kind(env.replace(name, ctypes.cast(function, ctypes.c_void_p).value))
    env.keep = function  # type: ignore[attr-defined]
    return calls


def request_of(n: int, **fields) -> DispatchRequest:
    return DispatchRequest("T", 0, n * SIZE, SIZE, n, 1000 + n, n, **fields)
