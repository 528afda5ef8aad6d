"""Client message ids (UNIQ_KEY) in the form of Java's clients."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

from pyrocketstore.record._message import create_message_id

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

_COUNTER = itertools.count()
#: Java has the hash of a class loader here: a number that tells processes apart.
_LOADER = uuid.uuid4().int & 0xFFFFFFFF


def new_unique_id(env: Env, host: str) -> str:
    """A new id: address, process, loader, ms since the month began, counter, in upper-case hex.

    Parameters
    ----------
    host : "ip:port"

    Source: RocketMQ 4.9.3 MessageClientIDSetter#createUniqID.
    """
    address = create_message_id(host, 0)[:-24]  # without port and offset
    now = env.now_ms()
    local = env.local_time(now)
    seconds = ((local.tm_mday - 1) * 24 + local.tm_hour) * 3600 + local.tm_min * 60 + local.tm_sec
    elapsed = seconds * 1000 + now % 1000
    tail = (
        (env.process_id() & 0xFFFF).to_bytes(2, "big")
        + _LOADER.to_bytes(4, "big")
        + elapsed.to_bytes(4, "big")
        + (next(_COUNTER) & 0xFFFF).to_bytes(2, "big")
    )
    return address + tail.hex().upper()
