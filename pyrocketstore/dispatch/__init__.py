"""Dispatch: from the records of the log into consume queues and the index.

`reput.py` is the service thread (ReputMessageService), `_dispatcher.pyx` the loop that it runs
without the GIL. `observers.py` calls the dispatchers and the arriving listener of a program.
Recovery uses the same loop by `replay.py`. No module of this folder decides where the log ends.
"""
