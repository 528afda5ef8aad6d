"""A process that puts a list of messages into a store through DefaultMessageStore.

    python put_child.py STORE BROKER_CONF SPECS.pickle ENDING

It prints one JSON line per put as soon as the put returned. ENDING is "clean"; "kill": SIGKILL to
itself when everything is dispatched; or "linger": print a last line "{}" and wait to be killed.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.message_store import DefaultMessageStore
from random_messages import to_batch, to_inner

DISPATCH_TIMEOUT_S = 60


def put(store: DefaultMessageStore, spec: dict[str, Any]) -> dict[str, Any]:
    """Put one message or batch; what became of it, in the words of the Java driver."""
    if "batch" in spec:
        result = store.put_messages(to_batch(spec))
    else:
        result = store.put_message(to_inner(spec))
    return {
        "status": result.status.name,
        "wrote_offset": result.phy_offset,
        "wrote_bytes": result.wrote_bytes,
        "logics_offset": result.queue_offset,
        "msg_num": result.message_count,
        "msg_id": result.msg_id,
        "store_timestamp": result.store_timestamp,
    }


def main(store_path: str, conf_path: str, specs_path: str, ending: str) -> None:
    """Put everything and end as told."""
    config, _ = MessageStoreConfig.from_broker_conf(conf_path, root=store_path)
    specs = pickle.loads(Path(specs_path).read_bytes())
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    for spec in specs:
        print(json.dumps(put(store, spec)), flush=True)
    if ending == "linger":
        print("{}", flush=True)
        threading.Event().wait()
    if not store.wait_dispatched(DISPATCH_TIMEOUT_S):
        sys.exit("dispatch stands still")
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    store.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
