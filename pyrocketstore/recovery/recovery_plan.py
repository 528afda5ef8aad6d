"""RecoveryPlan: the result of a recovery's look at the files of a store."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrocketstore.commit_log._chunk_scan import LogChunk

__all__ = ["RecoveryPlan"]

Key = tuple[str, int]
#: (path, position, size)
Ranges = Sequence[tuple[str, int, int]]


@dataclasses.dataclass(frozen=True)
class RecoveryPlan:
    """The changes that recovery must make, and what it has found.

    Parameters
    ----------
    clean : bool, the last exit was clean
    log_end : int, physical offset after the last record that is kept
    ended_by : str, the verdict that ended the log
    scan_from : int, physical offset at which the scan began
    records : int, how many records were scanned
    broken : list of (path, position, size), bytes after the end that hold valid records
    replay_from : int or None, physical offset from which the log is dispatched again
    cut_queues : bool, units of some queue name bytes after the end
    missing_first_file : list of (topic, queue id), queues that are built again from their first
        message on
    mismatched : list of (path, reason), files of a wrong length or name: units of queues are put
        again from the log; files of the log are read up to their end (read-only)
    empty : bool, the log has no file

    The fields after these are no part of the reported plan.
    """

    clean: bool
    log_end: int = 0
    ended_by: str = ""
    scan_from: int = 0
    records: int = 0
    broken: Ranges = dataclasses.field(default_factory=list)
    replay_from: int | None = None
    cut_queues: bool = False
    missing_first_file: Sequence[Key] = dataclasses.field(default_factory=list)
    mismatched: Sequence[tuple[str, str]] = dataclasses.field(default_factory=list)
    empty: bool = False

    #: chunks of the log that the scan has kept, as far as memory allowed;
    #: applying the plan removes them
    chunks: deque[LogChunk] = dataclasses.field(default_factory=deque)
    #: file and position at which the log ends
    end_path: str = ""
    end_position: int = 0
    ends_with_blank: bool = False
    #: byte of the log at which its last record begins; -1 without a record
    last_record: int = -1
    #: physical offset before which everything was durable
    synced_to: int = 0
    #: units that contradict the log, and those behind them: the log gives them again
    repairs: Mapping[Key, range] = dataclasses.field(default_factory=dict)
    #: queues whose units name bytes after the log's end before the cut, and up to which
    beyond: Mapping[Key, int] = dataclasses.field(default_factory=dict)
    #: byte of the log at which the last record of the index of a closed store begins, if it is
    #: after the log's end; else -1
    index_end: int = -1
    #: (path, position, end) of damage in front of the log's end that the scan has passed
    damaged: Ranges = ()
    #: physical offset before which the log may not have been scanned since it was closed, so that
    #: damage before it does not end the log; -1: there is no such part
    unscanned_to: int = -1
    #: what the log has lost at its end, as a text; "" if nothing is known to be lost
    lost: str = ""
    #: bytes of lost messages that are left
    remains: Ranges = ()
    #: warnings of lost messages, also those of an earlier opening that ended before it warned
    loss_notices: Sequence[str] = ()
    #: ranges of the log that no index file covers and that have no keys
    keyless: Sequence[tuple[int, int]] = ()
    #: the log after the end of the index was not searched for keys as a whole
    may_lack_keys: bool = False
    #: queues whose last unit is wrong: bytes of the log that they cover; -1: none
    covered: Mapping[Key, int] = dataclasses.field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Return the fields of the reported plan."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names[: names.index("empty") + 1]}

    @property
    def damage_notices(self) -> list[str]:
        """Warnings of damage in front of the log's end."""
        return [
            f"{path}: no valid record in bytes {position} to {end}, which earlier openings have not"
            " read; reads and `verify` report its messages, later ones are readable"
            for path, position, end in self.damaged
        ]

    @property
    def early_end(self) -> str:
        """The text for a log that ends before valid records: the only damage is at its end."""
        return (
            f"{self.end_path}: the log ends before byte {self.end_position} ({self.ended_by}),"
            " though valid records follow"
        )
