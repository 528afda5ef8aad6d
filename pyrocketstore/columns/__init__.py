"""Many records to columns: NumPy arrays, and Arrow record batches over the same memory.

The compiled decoders run without the GIL and check each length against the remaining bytes.
Spark's executors import this folder: it must not import the engine above it.
"""
