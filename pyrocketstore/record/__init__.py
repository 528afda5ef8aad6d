"""One message and its one record: encode, parse and decode.

`message.py` has the messages that callers make, `_record.pyx` the record as a struct, and
`_message.pyx` the conversion both ways; `_text.pyx` has Java's text, hosts and hash codes. Every
reader and writer of the store uses these modules. They work on memory that they are given: no
module of this folder opens a file.
"""
