"""Goal: 4.9.3 itself finds in odd texts of properties what our readers find.
Method: our engine stores the texts as they are, and the real store prints the messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyrocketstore import DefaultMessageStore, MessageExtBrokerInner, MessageStoreConfig
from support.java_store import require_java
from support.odd_properties import ODD_TEXTS

pytestmark = pytest.mark.java


def test_4_9_3_finds_the_same_properties(tmp_path: Path) -> None:
    java = require_java()
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6000,
    )
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    for number, (text, _) in enumerate(ODD_TEXTS):
        message = MessageExtBrokerInner("t", b"%d" % number, properties_string=text)
        assert store.put_message(message).status.name == "PUT_OK"
    store.wait_dispatched()
    store.shutdown()
    lines = [json.loads(line) for line in java.dump(tmp_path, sizes)]
    found = {
        line["message"]["queue_offset"]: line["message"]["properties"]
        for line in lines
        if "message" in line
    }
    assert [found[number] for number in sorted(found)] == [wanted for _, wanted in ODD_TEXTS]
