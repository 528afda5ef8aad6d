"""Reading messages: by queue, by key, by time and by id; iterators and batches.

Each reader compares the record with its unit or index entry, and reports messages that it omits.
Spark's executors import this folder: it must not import the engine above it, and nothing here
changes a file.
"""
