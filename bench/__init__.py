"""The benchmarks; README.md has the method. `python -m bench` measures.

A module imports only what comes earlier in this list, or what is in its own folder: `paths`,
`model`, `workers/` (the processes that run the work), `catalog/` (what is measured), `report/` (the
record and its page), `spark/`, `sizes`, `answers`, `measure`, and the command in `__main__`. The
files `bench_*.py` are pytest-benchmark's.
"""
