"""Recovery: a plan computed from the files, then applied to them or only held in memory.

`plan.py` computes the plan, and `apply.py` cuts log, queues and index to it and has them completed
from the log. Each has one class for a reader, whose files stay as they are, and one for a writer.
`refresh.py` follows the owner of a read-only store. `repair.py` repeats failed writes of queues and
index later, once their cause has passed. No module of this folder knows the bytes of a record, a
unit or an index entry: log, queues, index and dispatch do the work.
"""
