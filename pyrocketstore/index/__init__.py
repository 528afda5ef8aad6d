"""IndexFile and IndexService: from the hash of "topic#key" to physical offsets in the log.

`_entries.pyx` searches the bytes of one file and puts keys into them, `_file.pyx` is one file with
its header, and `index_service.py` owns the sequence of files; `gaps.py` finds keys that it lacks.
The index holds no message: readers compare each hit with the log (`reading/_by_key.pyx`). No module
of this folder reads the log.
"""
