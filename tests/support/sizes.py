"""Settings of small stores: a few messages fill several files of each kind."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
#: Each put is flushed to disk before it returns.
SYNC_SIZES: dict[str, Any] = {
    **SIZES,
    "flush_disk_type": "SYNC_FLUSH",
    "mapped_file_size_commit_log": 1 << 18,
}
#: A file of the log is a page.
TINY_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 20,
    "max_index_num": 40,
}
