"""The public low-level API: the classes that `DefaultMessageStore` is built from.

They have the methods of their counterparts in RocketMQ 4.9.3, in snake case. Programs that read or
write single files of a store import them from here.
"""

from pyrocketstore.consume_queue.ext import ConsumeQueueExt
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.files.multi_path import MultiPathMappedFileQueue
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index._file import IndexFile
from pyrocketstore.results import DispatchRequest
from pyrocketstore.system.env import Env

__all__ = [
    "ConsumeQueueExt",
    "DispatchRequest",
    "Env",
    "IndexFile",
    "MappedFile",
    "MappedFileQueue",
    "MultiPathMappedFileQueue",
    "StoreCheckpoint",
]
