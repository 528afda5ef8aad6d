"""Recovery: a plan computed from the files, then applied to them or only held in memory.

`log_end.py` decides where the log ends, `plan.py` computes the plan, `apply.py` cuts log, queues
and index, and `replay.py` dispatches records again that they lack. `repair.py` repeats failed
writes of queues and index later, once their cause has passed. A read-only store applies the plan in
memory: no module of this folder may write to its files.
"""
