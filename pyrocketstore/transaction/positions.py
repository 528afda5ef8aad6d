"""The positions of CID_RMQ_SYS_TRANS: messages before them are decided.

The module is compiled, so that no signal handler raises inside of a call.
"""

from __future__ import annotations

from typing import NamedTuple

#: The group whose positions in the half and the op queue a broker keeps.
#: Source: RocketMQ 4.9.3 MixAll#CID_SYS_RMQ_TRANS.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"


class Positions(NamedTuple):
    """Queue offsets of the first half message, and the first op message, that still counts."""

    half: int
    op: int


class TransactionPositions:
    """Move the two positions behind what is decided.

    Parameters
    ----------
    half_start, op_start : int, queue offsets
    decided : set of int, half messages from `half_start` on that are decided
    ops : {queue offset: half message that it names}

    Messages that other threads are putting have offsets that are not noted yet; no position passes
    them.

    Threads: one at a time.
    """

    def __init__(
        self, half_start: int, op_start: int, decided: set[int], ops: dict[int, int]
    ) -> None:
        self._half, self._op = half_start, op_start
        self._decided = decided
        self._ops = ops

    def note_decided(self, half_offset: int) -> None:
        """Note that a half message counts no longer."""
        if half_offset >= self._half:
            self._decided.add(half_offset)

    def note_op(self, op_offset: int, half_offset: int) -> None:
        """Note an op message that was put."""
        if op_offset >= self._op:
            self._ops[op_offset] = half_offset

    def move(self, low: int = 0) -> Positions:
        """Pass what is decided or before the half message `low`, and return the positions."""
        if self._half < low:
            self._decided = {offset for offset in self._decided if offset >= low}
            self._half = low
        while self._half in self._decided:
            self._decided.remove(self._half)
            self._half += 1
        while self._ops.get(self._op, self._half) < self._half:
            del self._ops[self._op]
            self._op += 1
        return Positions(self._half, self._op)
