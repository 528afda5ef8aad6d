"""Records and orders of names that RocketMQ 4.9.3 made."""

from __future__ import annotations

import itertools

V4_RECORD = bytes.fromhex(
    "0000006fdaa320a758932aac00000003000000070000000000000000000000000000000000000000"
    "0000018bcfe568007f00000100000001000001a1fbc9e89f7f000001000000020000000200000000"
    "00000000000000026869015400114b455953016b3102544147530154616741"
)
V6_RECORD = bytes.fromhex(
    "0000006adaa320a758932aac00000003000000000000000000000001000000000000006f00000010"
    "0000018bcfe5680020010db800000000000000000000000100000001000001a1fbc9e8bc7f000001"
    "0000000200000000000000000000000000000002686901540000"
)

#: Sixteen names of one hash.
SAME_HASH = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=4)]
#: Their order in java.util.HashMap of Java 17; nine in one bucket make it grow before its time.
JAVA_ORDERS = [
    (
        [*"TAGS KEYS b r a q".split(), *SAME_HASH[:4]],
        [*"a q b r KEYS".split(), *SAME_HASH[:4], "TAGS"],
    ),
    ([*SAME_HASH[:8], "r", "b"], ["r", "b", *SAME_HASH[:8]]),
    ([*SAME_HASH[:9], "r", "b"], ["b", *SAME_HASH[:9], "r"]),
    ([*SAME_HASH[:10], "r", "b"], [*SAME_HASH[:10], "b", "r"]),
    # The ninth is the thirteenth entry: it grows once, not twice.
    ([*SAME_HASH[:8], *"rRbB", SAME_HASH[8]], ["b", "B", *SAME_HASH[:9], "r", "R"]),
]
