"""The processes that run rounds of work, and how they are built, started and asked.

`workload` is the protocol's side in a worker, `process` that in the measuring process. `ours`,
`peers` and `rust/` are workers; `compiled` builds the compiled ones. A worker imports no catalog:
all that it knows are the words of its command line.
"""
