"""Goal: a wrong argument of an opening is a StoreTypeError that names it, before anything is made.
Method: values of other types, and mocks that claim to have the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageStoreConfig, StoreTypeError
from pyrocketstore.message_store.broker_stats import BrokerStatsManager
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines

WRONG = [
    ("config", Mock(spec=MessageStoreConfig), "a MessageStoreConfig, not Mock"),
    ("config", "broker.conf", "a MessageStoreConfig, not str"),
    ("env", Mock(spec=Env), "an Env or None, not Mock"),
    ("read_only", "no", "True or False, not str"),
    ("on_new_queue", 5, "a callable or None, not int"),
    ("cleans", None, "True or False, not NoneType"),
    ("topics", ["t"], "a TopicConfigFile or None, not list"),
    ("topics", Mock(spec=TopicConfigFile), "a TopicConfigFile or None, not Mock"),
    ("broker_stats_manager", Mock(spec=BrokerStatsManager), "BrokerStatsManager or None, not Mock"),
]


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_default_message_store(tmp_path: Path, name: str, value: object, text: str) -> None:
    arguments: dict[str, Any] = {"config": MessageStoreConfig().at_root(tmp_path / "store")}
    with pytest.raises(StoreTypeError, match=f"{name} must be .*{text}"):
        DefaultMessageStore(**(arguments | {name: value}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "kind"), [("config", MessageStoreConfig), ("env", Env)])
def test_mocks_at_open(tmp_path: Path, name: str, kind: type) -> None:
    arguments: dict[str, Any] = {name: Mock(spec=kind)}
    with pytest.raises(StoreTypeError, match=f"{name} must be .*, not Mock"):
        pyrocketstore.open(tmp_path / "store", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_mock_for_a_dump(tmp_path: Path) -> None:
    config: Any = Mock(spec=MessageStoreConfig)
    with pytest.raises(StoreTypeError, match=r"not Mock"):
        list(dump_lines(str(tmp_path), config=config))
