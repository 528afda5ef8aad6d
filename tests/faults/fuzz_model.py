"""A plain-Python reader of a store's files: the end of the log, each queue after recovery, and the
record at each offset. `PlainStore` reads the same bytes as the engine without its code. It takes
from the engine the offset from which the log was dispatched again, and which index file continues
from `sync_point`; it requires that the files prove this `sync_point`.
"""

from __future__ import annotations

import itertools
import operator
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from fuzz_tables import plain_checkpoint, wanted_hits
from support import oracle
from support.oracle_index import HEADER

#: Bytes of a checkpoint; a shorter one is damaged.
CHECKPOINT_SIZE = 4096
NAME = re.compile(r"\d{20}")
FOREVER = 2**63 - 1
MAX_FILE_END = 0x7FFFFFFF00000000
#: totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset
HEAD = struct.Struct(">iiiiiqq")
#: The file sync_point without its CRC, as docs/format.md has it.
SYNC_POINT = struct.Struct(">8sqqIiiiI4q32s")
#: A unit is accepted if so many fields of its damaged record agree with it: of totalSize, physical
#: offset, queue offset and queue id.
AGREEING_MIN = 3
NO_BROKER = frozenset({".", "..", ""})


class Row(NamedTuple):
    """A record of the log and its physical offset."""

    phy_offset: int
    record: oracle.Record


class PlainQueue:
    """The units of one queue from number `base` on; None in `base` for a queue without files."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.base: int | None = None
        self.rows: list[tuple[int, int, int]] = []
        self.covered = -1
        self.exact = True
        self.is_cut = False  # units that follow a damaged one were dropped
        #: Offset of the first record behind the last message whose queue offset the queue has.
        self.repeated_at: int | None = None

    @property
    def end(self) -> int:
        return (self.base or 0) + len(self.rows)

    def load(self, files: Mapping[int, bytes], unsure_from: int) -> None:
        """Read the files as recovery does.

        It examines the last three files and those with units of records that may not be durable,
        and takes the others as full.
        """
        size = self.file_size
        starts = [n for n in sorted(files) if len(files[n]) == size and n % size == 0]
        mismatched = len(starts) < sum(1 for data in files.values() if data)
        if not starts:
            self.exact = not mismatched
            return
        self.exact = not mismatched and all(b - a == size for a, b in itertools.pairwise(starts))
        self.base = starts[0] // 20
        last = len(starts)
        for i in range(self._first_looked_at(files, starts, unsure_from), len(starts)):
            valid, _ = oracle.scan_units(files[starts[i]])
            # No log is that long: a unit that names the largest offset ends the queue too.
            rows = oracle.decode_units(files[starts[i]][:valid])
            valid = 20 * next((n for n, row in enumerate(rows) if row[0] == FOREVER), len(rows))
            if valid < self.file_size:
                last = i
                self.is_cut = i + 1 < len(starts) or any(files[starts[i]][valid:])
                break
        for start in starts[:last]:
            self.rows += oracle.decode_units(files[start])
        if last < len(starts):
            self.rows += oracle.decode_units(files[starts[last]][:valid])
        self.covered = self.last_end()

    @staticmethod
    def _first_looked_at(files: Mapping[int, bytes], starts: list[int], unsure_from: int) -> int:
        for number in range(max(0, len(starts) - 3), 0, -1):
            rows = oracle.decode_units(files[starts[number]][:20])
            if unsure_from == FOREVER or (rows and rows[0][1] > 0 and rows[0][0] < unsure_from):
                return number
        return 0

    def give_up_torn_end(self, unsure_from: int) -> None:
        """Drop the last unit if it spans two sectors and the log can restore it."""
        at = 20 * (self.end - 1) % self.file_size
        if self.rows and self.covered > unsure_from and at // 512 != (at + 19) // 512:
            self.rows.pop()
            self.covered = self.last_end()

    def last_end(self) -> int:
        """Return the number after that of the last named message, -1 for none."""
        for row in reversed(self.rows):
            if row[0] >= 0 and row[1] > 0 and row != oracle.PRE_BLANK:
                return row[0] + row[1]
        return -1

    def cut(self, log_end: int) -> None:
        """Drop units at or behind the log's end: all units after the last one before the end, and
        pre-blank units there."""
        if 0 <= self.covered <= log_end:
            return
        per_file = self.file_size // 20
        for first in reversed(range(0, max(len(self.rows), 1), per_file)):
            part = self.rows[first : first + per_file]
            kept = max((i + 1 for i, row in enumerate(part) if row != oracle.PRE_BLANK
                        and 0 <= row[0] < log_end and row[1] > 0), default=0)  # fmt: skip
            if kept or not first:
                kept += first
                while kept < len(self.rows) and self.rows[kept] == oracle.PRE_BLANK:
                    kept += 1
            if kept:
                del self.rows[kept:]
                self.covered = self.last_end()
                return
        if self.rows:  # no file remains
            self.base = None
        self.rows, self.covered = [], -1

    def put(self, phy_offset: int, size: int, queue_offset: int) -> None:
        """Dispatch one record."""
        if phy_offset + size <= self.covered:
            return
        if queue_offset < self.end:
            if self.repeated_at is None:
                self.repeated_at = phy_offset
            return
        gap = queue_offset - self.end
        # Units after a cut stay where the log has lost their records: tests/recovery.
        self.exact &= not (gap and self.is_cut)
        if gap > phy_offset // oracle.MIN_RECORD_SIZE + 2 * (self.file_size // 20):
            return
        if self.base is None:
            self.base = queue_offset * 20 // self.file_size * (self.file_size // 20)
        self.rows += [oracle.PRE_BLANK] * (queue_offset - self.end)
        self.rows.append((phy_offset, size, 0))
        self.covered = phy_offset + size

    def restart(self, own: list[Row], *, had_units: bool) -> None:
        """Take the newest message of each queue offset, after a dispatch of the queue's records
        `own`: the queue starts again at a record that its next one follows, or at queue offset 0
        if it had no units."""
        last = -1
        while self.repeated_at is not None:
            begin, self.repeated_at = self.repeated_at, None
            own = [row for row in own if row.phy_offset >= begin and row.record.queue_offset >= 0]
            numbers = [row.record.queue_offset for row in own]
            begins = [i for i, n in enumerate(numbers) if i == 0 or n <= numbers[i - 1]]
            found = [i for i in begins if numbers[i + 1 : i + 2] == [numbers[i] + 1]]
            if not had_units and own and numbers[-1] == 0 and begins[-1] == len(own) - 1:
                found.append(len(own) - 1)
            if not found:
                return
            first = min(reversed(found), key=numbers.__getitem__)
            if own[first].phy_offset <= last:
                return
            last = self.covered = own[first].phy_offset
            del self.rows[max(0, numbers[first] - (self.base or 0)) :]
            if not self.rows:
                self.base = None
            for phy_offset, record in own[first:]:
                self.put(phy_offset, record.total_size or 0, record.queue_offset)

    def ends_expired(self, min_phy_offset: int) -> bool:
        """Return True if only the last unit of a file names a deleted message; a reader may skip
        such a file."""
        per_file = self.file_size // 20
        for first in range(0, len(self.rows), per_file):
            part = [row for row in self.rows[first : first + per_file] if row != oracle.PRE_BLANK]
            if part and part[-1][0] < min_phy_offset <= max(row[0] for row in part):
                return True
        return False

    def first_readable(self, min_phy_offset: int) -> int:
        """Return the number of the first message that is still in the log."""
        per_file = self.file_size // 20
        for first in range(0, len(self.rows), per_file):
            part = self.rows[first : first + per_file]
            if part[-1] != oracle.PRE_BLANK and part[-1][0] < min_phy_offset:
                continue
            for i, row in enumerate(part):
                if row[0] >= min_phy_offset and row != oracle.PRE_BLANK:
                    return (self.base or 0) + first + i
        return self.end


class PlainStore:
    """The files of a store by their paths below its root."""

    def __init__(self, files: Mapping[str, bytes], settings: Mapping[str, Any]) -> None:
        self.files = files
        self.file_size = int(settings["mapped_file_size_commit_log"])
        self.queue_file_size = int(settings["mapped_file_size_consume_queue"])
        self.slots = int(settings["max_hash_slot_num"])
        self.entries = int(settings["max_index_num"])
        self.has_ext = bool(settings.get("enable_consume_queue_ext"))
        self.has_light = bool(settings.get("enable_multi_dispatch"))
        found = self.numbered("commitlog")
        while found and not found[max(found)]:
            del found[max(found)]
        # A file of a wrong length counts with its bytes; a file of a wrong name does not count.
        size = self.file_size
        self.log = {
            name: data[:size]
            for name, data in sorted(found.items())
            if data and name % size == 0 and name + size <= MAX_FILE_END
        }
        self.clean = "abort" not in files
        self.rows: list[Row] = []
        self.scan_from = self.end = 0
        self.verdict = ""
        if self.log:
            self.scan_from = self._start()
            self._scan()

    def numbered(self, folder: str) -> dict[int, bytes]:
        """Return the files of a directory whose names are 20 digits."""
        found = {}
        for path, data in self.files.items():
            head, _, name = path.rpartition("/")
            if head == folder and NAME.fullmatch(name):
                found[int(name)] = data
        return found

    # ---- the log -------------------------------------------------------------------------------

    def _start(self) -> int:
        starts = list(self.log)
        if self.clean:
            return starts[max(0, len(starts) - 3)]
        physic, logics, _ = self._checkpoint()
        limit = max(0, min(physic, logics) - 3000)
        for start in reversed(starts):
            header = self.log[start][:76]
            magic = (oracle.MESSAGE_MAGIC % 2**32).to_bytes(4, "big")
            if len(header) == 76 and header[4:8] == magic:
                at = 68 if header[39] & oracle.BORN_V6 else 56
                stored = int.from_bytes(header[at : at + 8], "big", signed=True)
                if stored != 0 and stored <= limit:
                    return start
        return starts[0]

    def _checkpoint(self) -> tuple[int, int, int]:
        """Return the times of the checkpoint; a file that is too short counts as zeros."""
        data = self.files.get("checkpoint", b"")
        return plain_checkpoint(data if len(data) >= CHECKPOINT_SIZE else b"")

    def _has_damaged_checkpoint(self) -> bool:
        data = self.files.get("checkpoint", b"")
        is_short = 0 < len(data) < CHECKPOINT_SIZE
        return is_short or (any(data) and not any(self._checkpoint()))

    def _proven(self) -> int:
        """Return where the last file begins in which the last unit of a queue names a record."""
        proven = -1
        for phy_offset, size, _ in (
            queue.rows[-1] for queue in self._loaded_queues().values() if queue.rows
        ):
            start = phy_offset - phy_offset % self.file_size
            header = self.log.get(start, b"")[phy_offset - start :][:36]
            magic = (oracle.MESSAGE_MAGIC % 2**32).to_bytes(4, "big")
            is_named = len(header) == 36 and header[4:8] == magic
            own = header[28:36], header[:4]
            if is_named and own == (phy_offset.to_bytes(8, "big"), size.to_bytes(4, "big")):
                proven = max(proven, start)
        return proven

    def _scan(self) -> None:
        starts = [start for start in self.log if start >= self.scan_from]
        proven = self._proven() if self._has_damaged_checkpoint() else -1
        for i, start in enumerate(starts):
            found, verdict, position = oracle.scan_log(self.log[start], start)
            self.verdict = verdict
            self.rows += [Row(start + at, record) for at, record in found]
            self.end = start + position
            has_end = len(self.log[start]) == self.file_size
            if i + 1 == len(starts) or (verdict != "blank" and has_end and start >= proven):
                return

    def rows_from(self, replay_from: int) -> list[Row] | None:
        """Return the records from an offset to the end; None if one before the scan is damaged."""
        if replay_from >= self.scan_from:
            return [row for row in self.rows if row.phy_offset >= replay_from]
        older = []
        for start in [start for start in self.log if start < self.scan_from]:
            found, verdict, _ = oracle.scan_log(self.log[start], start)
            if verdict != "blank" or start + self.file_size not in self.log:
                return None
            older += [Row(start + at, record) for at, record in found]
        return [row for row in older + self.rows if row.phy_offset >= replay_from]

    def file_of(self, phy_offset: int) -> int | None:
        """Return the file that contains a byte before the log's end."""
        start = phy_offset - phy_offset % self.file_size
        kept = [name for name in self.log if name <= self.end]
        return start if start in kept else None

    def record_at(self, phy_offset: int, size: int | None = None) -> oracle.Record | None:
        """Return the record at an offset, in `size` bytes or its stored size; None for none."""
        start = self.file_of(phy_offset) if 0 <= phy_offset <= self.end - 4 else None
        if start is None:
            return None
        at = phy_offset - start
        left = min(self.file_size, self.end - start) - at
        data = self.log[start][at : at + left]
        if size is not None:
            if size > left:
                return None
            data = data[:size]
        verdict, own = oracle.check_record(data, phy_offset, False)
        return oracle.decode_record(data[:own]) if verdict == "ok" else None

    def bytes_at(self, phy_offset: int, size: int) -> bytes:
        start = phy_offset - phy_offset % self.file_size
        return self.log[start][phy_offset - start : phy_offset - start + size]

    # ---- queues --------------------------------------------------------------------------------

    def queues(self, replay_from: int | None) -> dict[tuple[str, int], PlainQueue]:
        """Return every queue after recovery."""
        found = self._loaded_queues()
        if not self._ends_agree(found):
            self._repair(found)
        for queue in found.values():
            if not self.clean:
                queue.give_up_torn_end(self.scan_from)
            queue.exact &= not queue.base  # otherwise its first file may be missing
            # As in `put`, also without a later record of the queue.
            queue.exact &= not queue.is_cut or min(self.log, default=0) == 0
        if max((queue.covered for queue in found.values()), default=-1) >= self.end:
            for queue in found.values():
                queue.cut(self.end)
        if not self.clean and self.has_ext:
            for queue in found.values():
                queue.cut(min(self.scan_from, self.end))
        for queue in found.values():
            queue.covered = min(queue.covered, self.end)
        rows = [] if replay_from is None else self.rows_from(replay_from)
        for key, queue in found.items():
            # If the last unit names another record, recovery searches backwards for a unit that
            # decides what is replayed: tests/consume_queue/test_damaged_units.py.
            queue.exact &= rows is not None and not self._ends_wrong(key, queue)
            queue.exact &= not queue.ends_expired(min(self.log, default=0))
        had_units = {key for key, queue in found.items() if queue.rows}
        of_queue: dict[tuple[str, int], list[Row]] = {}
        for row in rows or []:
            key = self._dispatch(found, row.phy_offset, row.record)
            if key is not None:
                of_queue.setdefault(key, []).append(row)
        for key, own in of_queue.items():
            found[key].restart(own, had_units=key in had_units)
        return found

    def _loaded_queues(self) -> dict[tuple[str, int], PlainQueue]:
        """Return every queue as its files have it."""
        found: dict[tuple[str, int], PlainQueue] = {}
        for folder in {path.rpartition("/")[0] for path in self.files}:
            parts = folder.split("/")
            if parts[0] == "consumequeue" and len(parts) == 3 and parts[2].isdigit():
                queue = found[parts[1], int(parts[2])] = PlainQueue(self.queue_file_size)
                queue.load(self.numbered(folder), FOREVER if self.clean else self.scan_from)
        return found

    def _ends_agree(self, queues: dict[tuple[str, int], PlainQueue]) -> bool:
        """Return whether each queue ends with its last record, after a clean stop."""
        if not self.clean or self.has_light or self.verdict not in ("end", "blank"):
            return False
        seen: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row.record.sys_flag & oracle.TRANSACTION_MASK in (0, oracle.COMMIT):
                key = oracle.java_text(row.record.topic), row.record.queue_id
                seen.setdefault(key, []).append(row)
        for key, queue in queues.items():
            rows = seen.pop(key, [])
            if not rows and queue.covered > self.scan_from:
                return False
            if rows:
                first, last = rows[0].record.queue_offset, rows[-1].record
                end = rows[-1].phy_offset + (last.total_size or 0)
                follows = last.queue_offset - first == len(rows) - 1
                if not follows or (queue.end, queue.covered) != (last.queue_offset + 1, end):
                    return False
        return not seen

    def _repair(self, queues: dict[tuple[str, int], PlainQueue]) -> None:
        """Set the units of the scanned records to those of the log.

        A queue that does not end with a unit of its own afterwards is not exact. If the log must be
        read from before the scan for such a queue, no queue is exact."""
        repairs: dict[tuple[str, int], dict[int, Row]] = {}
        firsts: dict[tuple[tuple[str, int], int], int] = {}
        for row in self.rows:
            key = oracle.java_text(row.record.topic), row.record.queue_id
            # The scan keeps int32 distances from the first queue offset of a chunk, and compares
            # no unit of a record that is farther away.
            place = key, row.phy_offset // self.file_size
            distance = row.record.queue_offset - firsts.setdefault(place, row.record.queue_offset)
            if key in queues and not -(2**31) <= distance < 2**31:
                queues[key].exact = False
            is_put = row.record.sys_flag & oracle.TRANSACTION_MASK in (0, oracle.COMMIT)
            if is_put and key in queues and self._contradicts(row, key, queues[key]):
                repairs.setdefault(key, {})[row.record.queue_offset - (queues[key].base or 0)] = row
        for key, units in repairs.items():
            for at, row in units.items():
                queues[key].rows[at] = row.phy_offset, row.record.total_size or 0, 0
            queues[key].covered = queues[key].last_end()
        for key, queue in queues.items():
            rows = enumerate(queue.rows, queue.base or 0)
            known = [unit for number, unit in rows if self._names(unit, key, number)]
            # Where the log has lost its first files, recovery removes units of other records.
            queue.exact &= min(self.log) == 0 or not any(
                min(self.log) <= unit[0] < self.end and unit not in known for unit in queue.rows
            )
            if queue.rows and queue.rows[-1] not in (*known[-1:], oracle.PRE_BLANK):
                queue.exact = False
                if not known or sum(known[-1][:2]) < self.scan_from:
                    for each in queues.values():
                        each.exact = False

    def _contradicts(self, row: Row, key: tuple[str, int], queue: PlainQueue) -> bool:
        """Return True if a record's queue offset has another unit, and no message of its own."""
        queue_offset = row.record.queue_offset
        at = queue_offset - (queue.base or 0)
        if not 0 <= at < len(queue.rows):
            return False
        unit = queue.rows[at]
        if unit[:2] == (row.phy_offset, row.record.total_size):
            return False
        if unit[0] < min(self.log) and self._names(unit, key, queue_offset):
            # A message that has expired, and the record's queue offset is wrong; or the reverse.
            named = [each[0] for number, each in enumerate(queue.rows) if number != at]
            queue.exact &= row.phy_offset not in named
            return row.phy_offset not in named
        return not self._names(unit, key, queue_offset)

    def _names(self, unit: tuple[int, int, int], key: tuple[str, int], queue_offset: int) -> bool:
        """Return True if a unit names its own record, or the damaged rest of that record."""
        phy_offset, size, _ = unit
        lowest = min(self.log)
        if phy_offset < 0 or size <= 0 or unit == oracle.PRE_BLANK:
            return False
        if phy_offset < lowest:
            return phy_offset + size <= lowest
        record = self.record_at(phy_offset)
        if record is not None:
            return record.total_size == size and oracle.is_queued(record, *key, queue_offset)
        start = self.file_of(phy_offset)
        if start is None or phy_offset + HEAD.size > min(self.end, start + len(self.log[start])):
            return False
        own, _, _, queue_id, _, offset, stored = HEAD.unpack_from(
            self.log[start], phy_offset - start
        )
        wanted = (size, phy_offset, queue_offset, key[1])
        return sum(map(operator.eq, (own, stored, offset, queue_id), wanted)) >= AGREEING_MIN

    def _ends_wrong(self, key: tuple[str, int], queue: PlainQueue) -> bool:
        """Return True if the last unit names a whole record that is not its own."""
        if not queue.rows:
            return False
        phy_offset, size, _ = queue.rows[-1]
        record = self.record_at(phy_offset)
        if record is None:
            return False
        return record.total_size != size or not oracle.is_queued(record, *key, queue.end - 1)

    def _dispatch(
        self, queues: dict[tuple[str, int], PlainQueue], phy_offset: int, record: oracle.Record
    ) -> tuple[str, int] | None:
        """Dispatch one record; return its queue, None for no queue."""
        topic = oracle.java_text(record.topic)
        if record.sys_flag & oracle.TRANSACTION_MASK not in (0, oracle.COMMIT):
            return None
        key = topic, record.queue_id
        if key not in queues:
            if topic in NO_BROKER or "/" in topic or "\0" in topic or record.queue_id < 0:
                return None
            queues[key] = PlainQueue(self.queue_file_size)
        queues[key].put(phy_offset, record.total_size or 0, record.queue_offset)
        return key

    def messages(self, queue: PlainQueue, topic: str, queue_id: int) -> tuple[list[Row], list[int]]:
        """Return the messages that a reader gets, and the queue offsets of those that it cannot
        read: their units name no whole record of this queue, offset and size."""
        found, lost = [], []
        lowest = min(self.log, default=0)
        first = queue.first_readable(lowest)
        for number, row in enumerate(queue.rows[first - (queue.base or 0) :], first):
            phy_offset, size, _ = row
            if row == oracle.PRE_BLANK:
                continue
            record = None
            if phy_offset >= lowest and size > 0:
                record = self.record_at(phy_offset, size)
            whole = record is not None and record.total_size == size
            if whole and oracle.is_queued(record, topic, queue_id, number):
                found.append(Row(phy_offset, record))
            else:
                lost.append(number)
        return found, lost

    # ---- keys ----------------------------------------------------------------------------------

    def query(
        self, names: list[str], topic: str, key: str, max_num: int,
        continued: Collection[str] = (),
    ) -> list[int]:  # fmt: skip
        """Return the offsets of the newest messages with a key in these index files, ascending.

        Searches see the files `continued` with the entries that `sync_point` names, and no other.
        """
        indexes = {name: self.files[f"index/{name}"] for name in names}
        indexes.update((name, self._synced_index(name)) for name in continued)
        found: list[int] = []
        key_hash = oracle.index_key_hash(topic, key)
        by_log = sorted(indexes.values(), key=self._begin_of_index)
        for phy_offset in self._hits(reversed(by_log), key_hash):
            if len(found) == max_num:
                break
            record = None if phy_offset in found else self.record_at(phy_offset)
            if record is not None and self.is_wanted(record, topic, key):
                found.append(phy_offset)
        return sorted(found)

    def _synced_index(self, name: str) -> bytes:
        """Return an index file with the header and the slots that recovery derives from
        `sync_point` and the entries. Requires that `sync_point` is true of log and index."""
        content = self.files["sync_point"]
        assert not self.clean, "sync_point is believed after a clean exit"
        assert zlib.crc32(content[:-4]).to_bytes(4, "big") == content[-4:], "sync_point is damaged"
        _, end, last, record_crc, slots, _, count, entries_crc, *header, raw = SYNC_POINT.unpack(
            content[:-4]
        )
        assert (raw.rstrip(b"\0").decode(), slots) == (name, self.slots), "sync_point names another"
        record = self.record_at(last)
        assert record is not None and record.total_size == end - last, "no record of sync_point"
        assert zlib.crc32(self.bytes_at(last, min(end - last, 4096))) == record_crc
        data = bytearray(self.files[f"index/{name}"])
        first = 40 + 4 * slots + 20
        entries = data[first : first + 20 * (count - 1)]
        assert zlib.crc32(entries) == entries_crc, "the index lacks entries of sync_point"
        data[40 : 40 + 4 * slots] = bytes(4 * slots)
        for number in range(1, count):
            (key_hash,) = struct.unpack_from(">i", entries, 20 * (number - 1))
            struct.pack_into(">i", data, 40 + 4 * (key_hash % slots), number)
        in_use = sum(map(bool, struct.unpack_from(f">{slots}i", data, 40)))
        HEADER.pack_into(data, 0, *header, in_use, count)
        return bytes(data)

    @staticmethod
    def _begin_of_index(data: bytes) -> int:
        """Return the log offset of an index file's first key; a file without keys comes last."""
        _, _, begin, _, _, count = HEADER.unpack_from(data)
        return begin if count > 1 else FOREVER

    def _hits(self, indexes: Iterator[bytes], key_hash: int) -> Iterator[int]:
        for data in indexes:
            for phy_offset, _ in wanted_hits(data, self.slots, self.entries, key_hash, 0, FOREVER):
                yield phy_offset

    @staticmethod
    def is_wanted(record: oracle.Record, topic: str, key: str) -> bool:
        properties = record.properties_map()
        keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
        in_time = record.store_timestamp >= 0
        return in_time and oracle.java_text(record.topic) == topic and key in keys


def newer_than_4(files: Mapping[str, bytes]) -> bool:
    """Return True if a log file begins with a record of 5.x."""
    return any(path.startswith("commitlog/") and data[4:8] == bytes.fromhex("DAA320AB")
               for path, data in files.items())  # fmt: skip
