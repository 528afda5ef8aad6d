"""Compare a store with the lake's marks, so that another store cannot continue under its label."""

from __future__ import annotations

from collections.abc import Mapping

from pyrocketstore.spark.plan.continuity import RecordMarks
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.task_types import DataLossError, LogFile, Mark


class StoreMarks(RecordMarks):
    """Marks of a lake, compared with a store that is open for planning."""

    def __init__(self, snapshot: StoreSnapshot, log_files: tuple[LogFile, ...]) -> None:
        super().__init__(snapshot, log_files)
        self.label = snapshot.place.broker_name

    def check_store(self, marks: Mapping[str, Mapping[int, Mark]]) -> None:
        """Check that the log has the record of the lake's latest mark.

        Raises DataLossError where this is another store, or one that has lost its end;
        StoreIOError.
        """
        text = self.contradiction(marks)
        if text:
            raise DataLossError(
                f"{self.label}: the lake has {text}: this is another store than the one that was "
                f"{self.label!r} before, or it has lost its end. Each store of a lake needs a "
                "label of its own"
            )
