"""SQL92 filters of messages by their properties, with the grammar and the answers of 4.9.3.

`grammar.py` parses a text into the tree of `expressions.py`, which answers for one message.
`columns.py` answers for many messages at once, and `sql92.py` is the public class. Every folder
that reads messages may import `sql92`. A filter opens no file, reads no record and no clock; its
input is a mapping or columns of properties. Nothing here may recurse as deep as a text nests, or
answer otherwise for columns than for single messages.
"""
