"""A process that does to a store what each line of its input says, as the Java driver's "serve".

A line is a JSON object, answered by one (tests/java, ServeCommand): open, put, wait, flush, close.
Only we have {"do": "columns", "topic": T, "rows": [...], "born_host": H}, {"do": "together",
"specs": [...]}, and puts through the face (face.py).
An exception is answered with {"error": text}. The end of input ends the process as SIGKILL would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

# A child is not run by pytest, which would put tests/ and this directory on the path.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import face
import pyrocketstore
from pyrocketstore import disk_space
from pyrocketstore._put_result import PutMessageResult
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
        store = pyrocketstore.open(
            request["path"],
            config=request["conf"],
            store_host=request.get("store_host"),
            unique_key=request.get("unique_key", False),
        )
        self.stores = [store]
        return {"open": True}

    def put(self, request: Line) -> Line:
        """One message or batch; what became of it, in the words of the Java driver."""
        spec = from_line(request["spec"])
        engine = self.stores[0].message_store
        if "way" in spec:
            result = face.put(self.stores[0], spec)
        elif "batch" in spec:
            result = engine.put_messages(to_batch(spec))
        else:
            result = engine.put_message(to_inner(spec))
        return _told(result)

    def together(self, request: Line) -> Line:
        """Many at once: by asyncio those of the face, the others with futures."""
        specs = [from_line(line) for line in request["specs"]]
        engine = self.stores[0].message_store
        if "way" in specs[0]:
            results = asyncio.run(face.aput_all(self.stores[0], specs))
        else:
            futures = [
                engine.async_put_messages(to_batch(spec))
                if "batch" in spec
                else engine.async_put_message(to_inner(spec))
                for spec in specs
            ]
            results = [future.result(DISPATCH_TIMEOUT_S) for future in futures]
        return {"together": [_told(result) for result in results]}

    def columns(self, request: Line) -> Line:
        """Many messages through the face."""
        queue_offsets, phy_offsets = face.put_many(
            self.stores[0], request["topic"], request["rows"], request["born_host"]
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


def _told(result: PutMessageResult) -> Line:
    return {
        "status": result.status.name,
        "wrote_offset": result.phy_offset,
        "wrote_bytes": result.wrote_bytes,
        "logics_offset": result.queue_offset,
        "msg_num": result.message_count,
        "msg_id": result.msg_id,
        "store_timestamp": result.store_timestamp,
    }


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
