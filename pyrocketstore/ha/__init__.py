"""Replication: the log of a master is copied, byte for byte, to the logs of its slaves.

`message_store` and `store` make the services, and pass the log as a `ReplicaLog`. Nothing here
knows a store or an engine, cuts a log, or reports bytes that were not compared with the master's.
"""
