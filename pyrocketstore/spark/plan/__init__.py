"""Planning on the driver: snapshots of stores, queue ends of live stores, tasks, stream offsets.

A batch opens its stores read-only with the recovery that 4.9.3 would make, in memory; a stream
only lists directories and reads parts of files. Both cut the selected messages into tasks.

Only driver code imports this folder. Nothing here writes to a store, and no executor imports it.
"""
