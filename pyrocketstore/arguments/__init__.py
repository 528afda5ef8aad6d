"""Checks of the values that callers pass: each becomes the exact type that is stored.

Every public call converts each argument here, once, and then works with the exact value. A value
that does not fit raises `StoreTypeError` or `StoreFormatError`, which name the allowed values. No
module of this folder opens a file or knows what a message is.
"""
