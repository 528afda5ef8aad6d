"""Stores of plain queues, of queues with ext files and of light queues, and bits of their units
that are turned."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.record._message import properties_to_string

UNIT = struct.Struct(">qiq")
LOG_SIZE = 1 << 14
PLAIN: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 4000,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ext": {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 500},
    "light": {"enable_lmq": True, "enable_multi_dispatch": True},
}


def put(store: pyrocketstore.Store, topic: str, number: int, light: bool) -> int:
    """A message whose body says where it belongs; its queue offset."""
    body = b"%s %d" % (topic.encode(), number)
    properties = {"KEYS": f"{topic}-{number}", "TAGS": f"T{number % 3}"}
    if light and topic == "busy":
        properties["INNER_MULTI_DISPATCH"] = "%LMQ%a"
    message = MessageExtBrokerInner(
        topic, body, 0, properties=properties, properties_string=properties_to_string(properties)
    )
    result = store.message_store.put_message(message)
    assert result.status.name == "PUT_OK", result
    return int(result.queue_offset)


def unit_file(root: Path, topic: str, queue_offset: int) -> tuple[Path, int]:
    """Return the file of a unit, and its position there."""
    name = f"{queue_offset * 20 // 400 * 400:020d}"
    return root / "consumequeue" / topic / "0" / name, queue_offset * 20 % 400


def turn_bit(root: Path, topic: str, queue_offset: int, bit: int) -> None:
    """Turn one bit of a unit."""
    path, position = unit_file(root, topic, queue_offset)
    with path.open("r+b") as file:
        file.seek(position + bit // 8)
        byte = file.read(1)[0]
        file.seek(position + bit // 8)
        file.write(bytes([byte ^ (0x80 >> bit % 8)]))
