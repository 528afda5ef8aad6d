"""The Bloom filter of 4.9.3: which bits of a bit map belong to a name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import mmh3

from pyrocketstore.errors import StoreFormatError


class BloomFilter:
    """Positions of bits for names, and bit maps of them.

    Parameters
    ----------
    error_rate : percent, 1 to 99, of other names that a bit map with `expected` names may hit
    expected : number of names, at least 1

    Attributes
    ----------
    hash_count : int, bits of each name
    bit_count : int, bits of a bit map, a multiple of 8

    Threads: any; nothing changes it.
    Source: RocketMQ 4.9.3 BloomFilter, BitsArray.
    """

    __slots__ = ("bit_count", "hash_count")

    def __init__(self, error_rate: int, expected: int) -> None:
        if not 1 <= error_rate < 100:
            raise StoreFormatError(f"error rate {error_rate}: must be 1 to 99 percent")
        if expected < 1:
            raise StoreFormatError(f"{expected} expected names: must be at least 1")
        rate = error_rate / 100
        self.hash_count = math.ceil(math.log(rate) / math.log(0.5))
        logarithm = math.log(1 / rate) / math.log(2)
        bits = math.ceil(expected * logarithm * (math.log(math.e) / math.log(2)))
        self.bit_count = 8 * math.ceil(bits / 8)

    def positions(self, name: str) -> list[int]:
        """Return the `hash_count` bits of a name, numbers below `bit_count`."""
        # MurmurHash3 with 128 bits, of which the first 64 count, as two int32.
        hashed = mmh3.hash64(name.encode("utf-8", "replace"), 0, x64arch=True, signed=False)[0]
        low, high = hashed & 0xFFFFFFFF, hashed >> 32
        found = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            found.append(
                (combined if combined < 1 << 31 else combined ^ 0xFFFFFFFF) % self.bit_count
            )
        return found

    def bit_map(self, names: Iterable[Sequence[int]]) -> bytes:
        """Return a bit map with the positions of names; bit n is bit n % 8 of byte n // 8."""
        found = bytearray(self.bit_count // 8)
        for positions in names:
            for position in positions:
                found[position >> 3] |= 1 << (position & 7)
        return bytes(found)

    def is_hit(self, positions: Sequence[int], bit_map: bytes) -> bool:
        """Return whether a bit map may have the name with these positions.

        True too for a bit map of another length, which says nothing.
        """
        if len(bit_map) * 8 != self.bit_count:
            return True
        return all(bit_map[position >> 3] & 1 << (position & 7) for position in positions)
