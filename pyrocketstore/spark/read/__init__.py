"""Reading on the executors: queue units, records, the log in order, index entries, files.

A task becomes Arrow batches of the columns that Spark requested. The modules read files by pread;
they open no store and recover nothing.

Every folder of `spark/` except `plan/` may import this one. Of the engine it imports only folders
up to `columns/` and `reading/`.
"""
