"""Client message ids (UNIQ_KEY) in the form of Java's clients."""

from __future__ import annotations

import datetime
import itertools
import os
import time

from pyrocketstore._message import create_message_id

_COUNTER = itertools.count()
#: Java has the hash of a class loader here: a number that tells processes apart.
_LOADER = int.from_bytes(os.urandom(4), "big")


def new_unique_id(host: str) -> str:
    """A new id: address, process, loader, ms since the month began, counter, in upper-case hex.

    Parameters
    ----------
    host : "ip:port"

    Source: RocketMQ 4.9.3 MessageClientIDSetter#createUniqID.
    """
    address = create_message_id(host, 0)[:-24]  # without port and offset
    now = datetime.datetime.fromtimestamp(time.time()).astimezone()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    elapsed = int((now - month).total_seconds() * 1000)
    tail = (
        (os.getpid() & 0xFFFF).to_bytes(2, "big")
        + _LOADER.to_bytes(4, "big")
        + (elapsed & 0xFFFFFFFF).to_bytes(4, "big")
        + (next(_COUNTER) & 0xFFFF).to_bytes(2, "big")
    )
    return address + tail.hex().upper()
