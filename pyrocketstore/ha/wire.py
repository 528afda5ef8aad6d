"""The frames between a slave and its master: docs/replication.md has the layout."""

from __future__ import annotations

import struct

#: A report of the slave: the physical offset where it begins, or up to which it has everything.
REPORT = struct.Struct(">q")
#: The head of a frame of the master: physical offset of its first byte, and size in bytes. A frame
#: of size 0 is a heartbeat, with the offset of the next byte.
HEAD = struct.Struct(">qi")
#: A master that is asked for 0 sends its last file instead of its first byte.
ASK_FOR_LAST_FILE = 0
#: Greater frames are an error: 4.9.3 sends at most `haTransferBatchSize`, by default 32 KiB.
FRAME_MAX = 256 << 20
