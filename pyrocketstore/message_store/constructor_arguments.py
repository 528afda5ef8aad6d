"""The types of the arguments of DefaultMessageStore's constructor."""

from __future__ import annotations

from typing import Any

from pyrocketstore.arguments.scalars import check_callable, check_kind, exact_flag
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import imported

__all__ = ["check_arguments"]


def check_arguments(
    config: Any,
    env: Any,
    read_only: Any,
    on_new_queue: Any,
    cleans: Any,
    topics: Any,
    broker_stats_manager: Any,
) -> None:
    """Raise StoreTypeError for an argument of another type than that of its parameter."""
    check_kind("config", config, MessageStoreConfig)
    check_kind("env", env, Env, optional=True)
    exact_flag("read_only", read_only)
    check_callable("on_new_queue", on_new_queue)
    exact_flag("cleans", cleans)
    check_kind("topics", topics, TopicConfigFile, optional=True)
    if broker_stats_manager is not None:  # few programs import it
        kind = imported("pyrocketstore.message_store.broker_stats").BrokerStatsManager
        check_kind("broker_stats_manager", broker_stats_manager, kind, optional=True)
