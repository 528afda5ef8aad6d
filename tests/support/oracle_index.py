"""Index files in plain Python, from the format alone: what the compiled code must agree with."""

from __future__ import annotations

import struct

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
INT_MAX = 2**31 - 1


def java_hash(text: str) -> int:
    """Java's String.hashCode."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def key_hash(text: str) -> int:
    """The index's hash of a whole "topic#key"."""
    value = abs(java_hash(text))
    return 0 if value == 2**31 else value


def java_divide(value: int, by: int) -> int:
    """Division that rounds toward zero."""
    return -(-value // by) if value < 0 else value // by


def int32(value: int) -> int:
    """Return a number wrapped to Java's int."""
    return (value + 2**31) % 2**32 - 2**31


def int64(value: int) -> int:
    """Return a number wrapped to Java's long."""
    return (value + 2**63) % 2**64 - 2**63


class OracleIndexFile:
    """One file as bytes in memory."""

    def __init__(self, slots: int, entries: int, end_phy: int = 0, end_time: int = 0) -> None:
        self.slots = slots
        self.entries = entries
        self.data = bytearray(40 + 4 * slots + 20 * entries)
        self.begin_time = self.end_time = max(end_time, 0)
        self.begin_phy = self.end_phy = max(end_phy, 0)
        self.slot_count = 0
        self.count = 1
        struct.pack_into(
            ">qqqq", self.data, 0, self.begin_time, self.end_time, self.begin_phy, self.end_phy
        )

    @classmethod
    def of_bytes(cls, data: bytes, slots: int, entries: int) -> OracleIndexFile:
        """The content of a file; an impossible count is corrected."""
        self = cls(slots, entries)
        self.data[:] = data[: len(self.data)]
        self.begin_time, self.end_time, self.begin_phy, self.end_phy, self.slot_count, count = (
            HEADER.unpack_from(self.data)
        )
        self.count = min(max(count, 1), entries)
        return self

    def slot_at(self, hashed: int) -> int:
        return 40 + 4 * (hashed % self.slots)

    def entry_at(self, number: int) -> int:
        return 40 + 4 * self.slots + 20 * number

    def put(self, hashed: int, phy: int, time: int) -> bool:
        if self.count >= self.entries:
            return False
        slot = self.slot_at(hashed)
        (previous,) = struct.unpack_from(">i", self.data, slot)
        if previous <= 0 or previous > self.count:
            previous = 0
        diff = 0
        if self.begin_time > 0:
            diff = min(max(java_divide(int64(time - self.begin_time), 1000), 0), INT_MAX)
        ENTRY.pack_into(self.data, self.entry_at(self.count), hashed, phy, diff, previous)
        struct.pack_into(">i", self.data, slot, self.count)
        if self.count <= 1:
            self.begin_phy, self.begin_time = phy, time
        self.slot_count = int32(self.slot_count + (previous == 0))
        self.count += 1
        self.end_phy, self.end_time = phy, time
        HEADER.pack_into(
            self.data, 0, self.begin_time, self.end_time, self.begin_phy, self.end_phy,
            self.slot_count, self.count,
        )  # fmt: skip
        return True

    def select(self, hashed: int, max_num: int, begin: int, end: int) -> list[int]:
        found: list[int] = []
        (number,) = struct.unpack_from(">i", self.data, self.slot_at(hashed))
        if number <= 0 or number > self.count or self.count <= 1:
            return found
        while len(found) < max_num and number < self.entries:
            own, phy, diff, previous = ENTRY.unpack_from(self.data, self.entry_at(number))
            if diff < 0:
                break
            time = int64(self.begin_time + diff * 1000)
            if own == hashed and begin <= time <= end:
                found.append(phy)
            if previous <= 0 or previous >= number or time < begin:
                break
            number = previous
        return found

    def time_matched(self, begin: int, end: int) -> bool:
        first, last = self.begin_time, self.end_time
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def stream(seed: int, count: int, distinct: int) -> list[tuple[str, int, int]]:
    """(key, phy_offset, store time) rows that jump ahead and step back, the same everywhere."""
    state = seed
    rows = []
    phy, time = 0, 1_700_000_000_000

    def draw(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    for _ in range(count):
        phy += 91 + draw(4000)
        time += draw(700) if draw(50) else (draw(9) - 2) * 60_000
        key = draw(distinct)
        mark = "é漢😀"[key % 3] if key % 5 == 0 else ""
        rows.append((f"Topic-{key % 3}#k{mark}{key}", phy, time))
    return rows
