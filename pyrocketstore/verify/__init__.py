"""Verify and dump: log, queues and index of an open store compared with each other.

A problem has a path, an offset and advice. Nothing here changes a file.
"""
