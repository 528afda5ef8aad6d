"""Flush, commit and group-commit services, and puts that wait for the flush by a future.

The services write buffers to files and files to the device. A failed fsync ends the puts of a
store: `log_flush.py` reports it for the commit log. No module of this folder appends records.
"""
