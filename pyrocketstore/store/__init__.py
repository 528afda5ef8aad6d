"""The public API: `pyrocketstore.open` returns a `Store`, which also has an asyncio side.

`Store` checks arguments, calls the engine (`DefaultMessageStore`) and returns answers in the form
that Python callers expect. Its calls `put`, `query` and `read` are compiled (`_store_calls.pyx`,
which also puts the records of transactions). A put path, `puts.py` and a key search are its parts;
all parts share one `StoreState`. No other folder except the command and Spark imports this one.
"""
