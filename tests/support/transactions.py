"""The service of a store's transactions with another way of its puts; records of other writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyrocketstore
from pyrocketstore import MessageExt, MessageExtBrokerInner
from pyrocketstore.record._message import properties_to_string

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"

Put = Callable[[Any], Any]


def put_by(service: Any, put: Put) -> Put:
    """Let another callable put the records of transactions; return the one before."""
    before: Put = service._calls.put
    service._calls = service._calls._replace(put=put)
    return before


def half_of_another(
    store: pyrocketstore.Store,
    body: bytes,
    unique_id: str | None,
    *,
    born: int | None = None,
    host: str = "127.0.0.1:0",
    **more: str,
) -> Any:
    """Put a half message as another writer does."""
    named = {"REAL_TOPIC": "t", "REAL_QID": "0", "PGROUP": "g", "TRAN_MSG": "true", **more}
    if unique_id is not None:
        named["UNIQ_KEY"] = unique_id
    text = properties_to_string(named)
    if born is None:
        born = store.message_store.now()
    message = MessageExtBrokerInner(
        HALF, body, properties=named, properties_string=text, born_timestamp=born, born_host=host
    )
    return store.message_store.put_message(message)


def commit_of_another(store: pyrocketstore.Store, half: MessageExt, phy_offset: int) -> None:
    """Put the commit record of a half message, without an op message."""
    message = MessageExtBrokerInner(
        half.properties["REAL_TOPIC"],
        half.body,
        int(half.properties["REAL_QID"]),
        properties=dict(half.properties),
        properties_string=half.properties_string,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        sys_flag=8,
        prepared_transaction_offset=phy_offset,
    )
    assert store.message_store.put_message(message).is_ok()
