"""A process that executes commands from its input on a store, like "serve" of the Java driver.

A command is a JSON object on a line, and so is its reply (tests/java, ServeCommand): open, put,
wait, flush, close. The Java driver lacks {"do": "columns", "topic": T, "rows": [...],
"born_host": H}, {"do": "together", "specs": [...]}, and puts through `Store` (face.py).
The reply to an exception is {"error": text}. The end of input ends the process as SIGKILL would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

# pytest, which puts tests/ and this directory on the path, does not run a child.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import face
import pyrocketstore
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.system import disk_space
from support.random_messages import from_line, to_batch, to_inner

DISPATCH_TIMEOUT_S = 60
EXIT_HALTED = 9

#: A full disk of the test machine must not make the store refuse puts.
disk_space.WARNING_LEVEL_RATIO = disk_space.CLEAN_FORCIBLY_RATIO = 0.99

Line = dict[str, Any]


class Server:
    """Holds one store at a time; its methods are the commands."""

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
        """Put one message or batch; return the result in the terms of the Java driver."""
        spec = from_line(request["spec"])
        engine = self.stores[0].message_store
        if "way" in spec:
            result = face.put(self.stores[0], spec)
        elif "batch" in spec:
            result = engine.put_messages(to_batch(spec))
        else:
            result = engine.put_message(to_inner(spec))
        return _answer(result)

    def together(self, request: Line) -> Line:
        """Put many messages at once: those for `Store` by asyncio, the others with futures."""
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
        return {"together": [_answer(result) for result in results]}

    def columns(self, request: Line) -> Line:
        """Put many messages through `Store`."""
        queue_offsets, phy_offsets = face.put_many(
            self.stores[0], request["topic"], request["rows"], request["born_host"]
        )
        return {"queue_offsets": queue_offsets.tolist(), "phy_offsets": phy_offsets.tolist()}

    def wait(self, request: Line) -> Line:
        """Wait until every record is dispatched."""
        if not self.stores[0].wait_dispatched(DISPATCH_TIMEOUT_S):
            raise TimeoutError("dispatch makes no progress")
        return {"wait": True}

    def flush(self, request: Line) -> Line:
        """Flush every message put so far to the device."""
        self.stores[0].flush()
        return {"flush": self.stores[0].message_store.get_max_phy_offset()}

    def close(self, request: Line) -> Line:
        """Close the store."""
        self.stores.pop().close()
        return {"close": True}


def _answer(result: PutMessageResult) -> Line:
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
    """Run commands until the end of input."""
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
