"""Removal of expired files and of whole queues, and the checks of disk space.

No message may be removed before its retention ends; a full disk shortens the retention as in
4.9.3. No module of this folder changes the content of a file.
"""
