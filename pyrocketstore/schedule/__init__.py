"""Delayed messages: wait in SCHEDULE_TOPIC_XXXX, and are put into their real topic when due.

`message_store` starts the service and passes the callables with which it puts and flushes. The
command and read-only stores list what waits. Nothing here may move the offset of a level past a
delivery that is not durable.
"""
