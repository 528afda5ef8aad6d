"""DefaultMessageStore: the parts of a store wired together, their life cycle, and statistics.

`engine.py` makes the parts, and `closing.py` ends them. A caller has a `DefaultMessageStore`, which
has the engine; services have the engine or its parts. `loaded_files.py` has the files of a store,
`loading.py` loads them, and `read_only_files.py` follows their owner. `read_calls.py`,
`put_calls.py` and `removal_calls.py` have RocketMQ's methods. `start_stop_services.py` starts and
stops the threads in an order that loses no data, and `end_of_puts.py` ends the puts after a failed
fsync. topics.json is read and written here. Logic of one part belongs to the folder of that part.
"""
