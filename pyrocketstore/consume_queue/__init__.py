"""ConsumeQueue: 20-byte units that name the log's record of each message of a queue.

`_units.pyx` writes, reads and scans units. `queue.py` is one queue, `ext.py` its ext units,
`table.py` all queues of a store, `queues_recovery.py` their recovery, and `growth.py` what another
process appends to them. `units.py` reads ranges of units. `queue_recovery.py` finds
the end of a queue, `unit_check.py` compares units with the log, and `mismatched_files.py` repairs
files of a wrong length or name. `many_queues.py` reads the usual queues of a store together when it
is opened. `multi_dispatch.py` puts one record into further queues (LMQ).
The log decides the content of a queue: no module of this folder changes it.
"""
