"""File sequences: files of one size that hold one sequence of bytes; and a store's small files.

`MappedFile` and `MappedFileQueue` map, append, flush and remove files; the allocation service and
the store pool prepare files and buffers ahead. `_writes.pyx` makes files, and writes to a
file and to the device. Checkpoint, abort file, lock file and running flags are here too. No module
of this folder knows what a record, a queue unit or an index entry is.
"""
