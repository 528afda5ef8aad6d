"""The commands about consumers, delayed messages and transactions."""

from __future__ import annotations

import sys

from pyrocketstore.cli.inspect import has_lost_end
from pyrocketstore.cli.store_command import Target, app, json_option, store_command
from pyrocketstore.record.message import TRANS_HALF_TOPIC

DELAYED_COLUMNS = (
    "level",
    "delay ms",
    "real topic",
    "count",
    "first due time",
    "last due time",
)
TRANSACTION_COLUMNS = (
    "transaction id",
    "group",
    "real topic",
    "queue id",
    "born time",
    "checks",
)
CONSUMER_COLUMNS = ("group", "topic", "queue id", "position", "max offset", "lag")


@app.command()
@store_command
@json_option
def delayed(target: Target) -> None:
    """List the delayed messages that are not delivered yet, by level and real topic.

    They are in SCHEDULE_TOPIC_XXXX; config/delayOffset.json has the next one of each level. A
    message without a real topic, which is never delivered, is listed with an empty topic.
    """
    with target.open() as store:
        target.output.table("delayed", DELAYED_COLUMNS, store.delayed())


@app.command()
@store_command
@json_option
def consumers(target: Target) -> None:
    """List groups, the positions that they have committed, and how far behind they are.

    The positions are those of config/consumerOffset.json, or of config/lmqConsumerOffset.json with
    enableLmq.
    """
    with target.open() as store:
        target.output.table("consumer", CONSUMER_COLUMNS, store.consumer_positions())


@app.command()
@store_command
@json_option
def transactions(target: Target) -> None:
    """List the transactions that are not decided, in the order of their last half messages.

    Their messages are in RMQ_SYS_TRANS_HALF_TOPIC; consumers do not see them.
    """
    with target.open() as store:
        rows = [
            (one.transaction_id, one.group, one.topic, one.queue_id, one.born_timestamp,
             one.check_times)
            for one in store.transactions()
        ]  # fmt: skip
        target.output.table("transaction", TRANSACTION_COLUMNS, rows)
        if has_lost_end(store, TRANS_HALF_TOPIC, 0):
            sys.exit(1)  # the opening has reported it
