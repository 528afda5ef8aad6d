"""The public API: `pyrocketstore.open` returns a `Store`, which also has an asyncio side.

`Store` checks arguments, calls the engine (`DefaultMessageStore`) and returns answers in the form
that Python callers expect. Its calls `put`, `query` and `read` are compiled (`_store_calls.pyx`). A
put path (`_put_path.pyx`), `puts.py` and a key search are its parts, and `_message_puts.pyx` puts
the records of transactions; all parts share one `StoreState`. No other folder except the command
and Spark imports this one.
"""
