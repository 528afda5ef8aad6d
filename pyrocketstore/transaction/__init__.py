"""Transactions: half messages that become visible when they are committed.

`store` makes the service and passes the callables with which it puts and flushes. Nothing here may
put a second commit record of a transaction, or move the position of CID_RMQ_SYS_TRANS past a half
message that is not decided.
"""
