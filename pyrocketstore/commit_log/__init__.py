"""CommitLog: append, group commit, and every walk over the records of the log.

`_append.pyx` holds the put lock and assigns offsets. `_scan.pyx` decides whether bytes are a
record, and which record follows damage: recovery, dispatch, verify and Spark call it. `log_end.py`
finds the end of a log, and `appended.py` what another process appends. No module of this folder
writes a consume queue or the index.
"""
