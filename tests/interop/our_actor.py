"""A process that does to a store what each line of its input says, as the Java driver's "serve".

A line is a JSON object, answered by one (tests/java, ServeCommand): open, put, wait, flush, close,
and {"do": "columns", "topic": T, "rows": [{queue_id, tags, keys, body}, ...]}, which only we have.
An exception is answered with {"error": text}. The end of input ends the process as SIGKILL would.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

# tests/, for random_messages: a child is not run by pytest, which would put it on the path.
sys.path.insert(0, str(Path(__file__).parent.parent))

import pyrocketstore
from pyrocketstore import disk_space
from random_messages import from_line, to_batch, to_inner

DISPATCH_TIMEOUT_S = 60
EXIT_HALTED = 9

#: A full disk of the machine that runs the tests must not make the store refuse puts.
disk_space.WARNING_LEVEL_RATIO = disk_space.CLEAN_FORCIBLY_RATIO = 0.99

Line = dict[str, Any]


class Server:
    """One store at a time; the methods are the commands."""

    def __init__(self) -> None:
        self.stores: list[pyrocketstore.Store] = []

    def open(self, request: Line) -> Line:
        """Load, recover, start."""
        self.stores = [pyrocketstore.open(request["path"], config=request["conf"])]
        return {"open": True}

    def put(self, request: Line) -> Line:
        """One message or batch; what became of it, in the words of the Java driver."""
        spec = from_line(request["spec"])
        engine = self.stores[0].message_store
        if "batch" in spec:
            result = engine.put_messages(to_batch(spec))
        else:
            result = engine.put_message(to_inner(spec))
        return {
            "status": result.status.name,
            "wrote_offset": result.phy_offset,
            "wrote_bytes": result.wrote_bytes,
            "logics_offset": result.queue_offset,
            "msg_num": result.message_count,
            "msg_id": result.msg_id,
            "store_timestamp": result.store_timestamp,
        }

    def columns(self, request: Line) -> Line:
        """Many messages through the face."""
        rows = request["rows"]
        queue_offsets, phy_offsets = self.stores[0].put_many(
            request["topic"],
            [base64.b64decode(row["body"]) for row in rows],
            queue_ids=[row["queue_id"] for row in rows],
            tags=[row["tags"] for row in rows],
            keys=[row["keys"] for row in rows],
            born_host=request["born_host"],
        )
        return {"queue_offsets": queue_offsets.tolist(), "phy_offsets": phy_offsets.tolist()}

    def wait(self, request: Line) -> Line:
        """Until everything is dispatched."""
        if not self.stores[0].wait_dispatched(DISPATCH_TIMEOUT_S):
            raise TimeoutError("dispatch stands still")
        return {"wait": True}

    def flush(self, request: Line) -> Line:
        """Everything put so far on the device."""
        self.stores[0].flush()
        return {"flush": self.stores[0].message_store.get_max_phy_offset()}

    def close(self, request: Line) -> Line:
        """The clean end."""
        self.stores.pop().close()
        return {"close": True}


def main() -> None:
    """Until there are no more lines."""
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except Exception as error:  # noqa: BLE001  the harness hears of every kind
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(EXIT_HALTED)


if __name__ == "__main__":
    main()
