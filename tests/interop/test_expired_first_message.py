"""Goal: where the message at byte 0 of the log has expired, `DefaultMessageStore.get_message`
returns the slice that 4.9.3 returns, which is not a record; `Store` returns no message.
Method: the first log file is deleted while the queue still names it; both read copies of the store.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.results import GetMessageStatus
from support.java_store import require_java

pytestmark = pytest.mark.java

FILE_SIZE = 4096
THEIRS = {"mappedFileSizeCommitLog": FILE_SIZE, "mappedFileSizeConsumeQueue": 2000}
OURS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
}


def spec(topic: str, size: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "queue_id": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:2",
        "reconsume_times": 0,
        "sys_flag": 0,
        "flag": 0,
        "body": b"y" * size,
        "properties": [],
    }


def test_the_slice_of_an_expired_message_at_byte_0(tmp_path: Path) -> None:
    java = require_java()
    path, theirs = tmp_path / "store", tmp_path / "theirs"
    put = [spec("t", 1), *(spec("u", 500) for _ in range(29))]
    size = java.put(path, put, THEIRS)[0]["wrote_bytes"]
    (path / "commitlog" / f"{0:020d}").unlink()
    shutil.copytree(path, theirs)
    lines = [json.loads(line) for line in java.dump(theirs, THEIRS)]
    found = [line["undecodable"] for line in lines if "undecodable" in line]
    assert found == [{"phy_offset": FILE_SIZE, "size": size}]
    with pyrocketstore.open(path, read_only=True, **OURS) as store:
        pulled = store.message_store.get_message("g", "t", 0, 0, 32)
        assert pulled is not None and pulled.status is GetMessageStatus.FOUND
        (view,) = pulled.message_mapped_list
        assert {"phy_offset": view.start_offset, "size": view.size} == found[0]
        view.release()
        assert list(store.read("t")) == []
