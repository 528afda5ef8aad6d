"""Consumers: groups that read the queues of topics, and the positions that they have reached.

`store` makes consumers and passes the callables with which they read, wait and put. A position is
the offset of the next message. No position in ROOT/config may pass a message that is not durable,
since its offset could be given to another message after a power cut.
"""
