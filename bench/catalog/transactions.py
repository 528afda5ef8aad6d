"""The group of transactions; see `workers/ours/transactions.py`."""

from __future__ import annotations

from bench.model import Group, Options, java, ours

WORK: Options = {"what": "transact", "body": 128}
JAVA_TRANSACT = (
    "putMessage of the half, the commit and the op message, and lookMessageByOffset of the half "
    "message in between: the calls that a broker makes of its store, without its network, its "
    "metrics and its search for open transactions"
)
OURS_TRANSACT = "Store.prepare and Transaction.commit; a transaction can be found by its id"

TRANSACT_GROUPS = (
    Group(
        "transact",
        "Prepare and commit 128 B with tag and key, async flush, until readable",
        (
            java(WORK, "put + dispatch", JAVA_TRANSACT),
            ours("prepare, commit", WORK, "put + dispatch", OURS_TRANSACT),
        ),
        count=100_000,
        smoke=500,
        unit="transaction",
    ),
)
