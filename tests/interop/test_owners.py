"""Goal: a running store of 4.9.3 and one of ours exclude each other from a directory.
Method: each opens while the other holds the store; between, our process makes a backup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyrocketstore
from actors import JAVA, ActorError, actors, write_conf
from pyrocketstore import StoreStateError
from support.java_store import require_java

pytestmark = pytest.mark.java

CONFIG = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000,
          "maxHashSlotNum": 100, "maxIndexNum": 400}  # fmt: skip


def test_one_keeps_the_other_out(tmp_path: Path) -> None:
    root, conf = tmp_path / "store", write_conf(tmp_path / "conf", CONFIG)
    with actors(require_java()) as pool:
        with pool.start(JAVA) as java:
            assert java.ask("open", path=str(root), conf=str(conf))["open"]
            for _ in range(2):
                with pytest.raises(StoreStateError, match="already open by another process"):
                    pyrocketstore.open(root, config=conf)
            java.ask("close")
        with pyrocketstore.open(root, config=conf) as store:
            store.put("T", b"1")
            shutil.copytree(root, tmp_path / "copy")
            with pool.start(JAVA) as java, pytest.raises(ActorError, match=r"(?i)lock failed"):
                java.ask("open", path=str(root), conf=str(conf))
            store.put("T", b"2")
        with pool.start(JAVA) as java:
            assert java.ask("open", path=str(root), conf=str(conf))["open"]
            java.ask("close")
    with pyrocketstore.open(root, config=conf) as store:
        assert [message.body for message in store.read("T")] == [b"1", b"2"]
