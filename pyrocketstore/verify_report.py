"""What verify found."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

#: What is said of a record whose properties cannot be parsed.
BAD_PROPERTIES = (
    "the properties of the record here are not valid: each must be name U+0001 value U+0002"
)
#: Problems that are kept; the others are only counted.
PROBLEMS_MAX = 100


@dataclasses.dataclass(slots=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    kind : "log", "queue", "ext" or "index"
    path : the file
    position : bytes into the file; -1 where there is none
    text : what is wrong there
    count : how many neighbours (units of a queue) it stands for
    """

    kind: str
    path: str
    position: int
    text: str
    count: int = 1

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}{where}: {self.text}"


class Verdict(abc.ABC):
    """What the counts of a check mean; each kind of report has them under these names."""

    @property
    @abc.abstractmethod
    def problem_count(self) -> int:
        """All problems."""

    @property
    @abc.abstractmethod
    def missing_count(self) -> int:
        """Problems that only say that units or keys are missing."""

    @property
    @abc.abstractmethod
    def not_indexed(self) -> int:
        """Records with keys that lie where no index file is."""

    @property
    @abc.abstractmethod
    def index_unchecked(self) -> str:
        """Why the index was not looked at, "" when it was."""

    @property
    def consistent(self) -> bool:
        """True when nothing that was looked at contradicts anything else."""
        return self.problem_count == self.missing_count

    @property
    def complete(self) -> bool:
        """True when the queues and the index have all that the log asks for; False also where the
        index could not be looked at."""
        return not (self.missing_count or self.not_indexed or self.index_unchecked)

    @property
    def ok(self) -> bool:
        """True when the store is consistent and complete."""
        return self.consistent and self.complete


@dataclasses.dataclass
class VerifyReport(Verdict):
    """What was looked at, and what is wrong.

    `files blanks records bytes keys` are of the log; `bad_properties` records have properties that
    cannot be parsed; `unqueued` records are prepared or rolled back, `unnameable` ones have a topic
    that is no directory name, `repeated` ones have a queue offset that a later record has too. Of
    the `units`, `expired` ones name records that the log has deleted and `pre_blank` ones none at
    all. By the log, `missing_units` and `missing_keys` should be there; `not_indexed` records have
    keys and lie where no index file is: 4.9.3 left them out after a crash, or a file was deleted.
    `rebuilt_units` and `rebuilt_index_entries` are in memory and not on disk (read-only stores).
    `problem_count` counts all problems, `problems` keeps the first ones.
    """

    path: str
    files: int = 0
    blanks: int = 0
    records: int = 0
    bytes: int = 0
    damaged_bytes: int = 0
    undispatched_bytes: int = 0
    bad_properties: int = 0
    keys: int = 0
    unqueued: int = 0
    unnameable: int = 0
    repeated: int = 0
    queues: int = 0
    units: int = 0
    expired: int = 0
    pre_blank: int = 0
    units_in_damage: int = 0
    ext_units: int = 0
    ext_unresolved: int = 0
    missing_units: int = 0
    rebuilt_units: int = 0
    index_files: int = 0
    index_entries: int = 0
    index_expired: int = 0
    entries_in_damage: int = 0
    not_indexed: int = 0
    missing_keys: int = 0
    rebuilt_index_entries: int = 0
    #: why the index was not looked at, "" when it was
    index_unchecked: str = ""
    #: problems that only say that units or keys are missing
    missing_count: int = 0
    problem_count: int = 0
    problems: list[Problem] = dataclasses.field(default_factory=list)
    rebuilt: list[Problem] = dataclasses.field(default_factory=list)
    #: what the opening found and did: the fields of RecoveryPlan
    recovery: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # No fields: `problems` say as much, as far as there is room.
        self.log_is_damaged = self.units_are_wrong = False

    @property
    def advice(self) -> list[str]:
        """What is missing or damaged, and what to do about it: one text for each kind, none where
        the store is `ok`. `problems` name the places."""
        if self.ok:
            return []
        if self.recovery.get("empty") and self.problem_count:
            return ["the log has no file, and nothing can be built from it: restore it from a copy"]
        found = [*self._log_advice(), *self._index_advice(), *self._unit_advice()]
        return found or [
            "the store is damaged where `problems` say: take a copy of it, open it for writing"
            " once, and verify it again"
        ]

    def _log_advice(self) -> Iterator[str]:
        if self.log_is_damaged:
            yield (
                "the log is damaged or has lost files, and nothing else in the store has its"
                " messages: restore the files that `problems` name from a copy, before the store"
                " is opened for writing; that ends the log at the first damage that it meets (in"
                " the last three files after a clean stop, in all of them with `abort` and without"
                " `checkpoint`), and keeps what lies behind in `.broken`; reading with"
                " on_corrupt='skip' gives the messages that are whole"
            )
        if self.bad_properties:
            yield (
                f"{self.bad_properties} messages have properties that are not valid, and nothing"
                " else in the store has these: restore the log from a copy, or put the messages"
                " again; what can be parsed is given as it is"
            )

    def _index_advice(self) -> Iterator[str]:
        if self.index_unchecked:
            yield f"the index was not checked: {self.index_unchecked}"
        if self.not_indexed:
            yield (
                f"{self.not_indexed} messages have keys and lie where no index file is: a query"
                " searches the log for them; open the store for writing once, which puts their"
                " keys into the index"
            )
        if self.missing_keys or any(problem.kind == "index" for problem in self.problems):
            what = f"lacks {self.missing_keys} keys" if self.missing_keys else "is damaged"
            yield (
                f"the index {what}: it is derived from the log; open the store for writing once,"
                " and verify it again; what is still wrong lies in index files that are damaged:"
                " delete the files below `index`, and open it once more, which builds them again"
            )

    def _unit_advice(self) -> Iterator[str]:
        what = []
        if self.missing_units:
            what.append(
                f"{self.missing_units} units of queues are missing, so that reading misses their"
                " messages"
            )
        if self.units_are_wrong:
            what.append("units of queues, or their ext units, are wrong")
        if what and self.log_is_damaged:
            yield (
                f"{', and '.join(what)}: they are derived from the log, which is damaged: restore"
                " it first, and verify the store again"
            )
        elif what:
            yield (
                f"{', and '.join(what)}: they are derived from the log; make an empty file `abort`"
                " in the store, delete `checkpoint`, and open the store for writing once, which"
                " builds them again"
            )
        if what and self.repeated:
            yield (
                f"{self.repeated} messages have a queue offset that a later message of their queue"
                " has too, as where a topic was deleted, or lost its queues, and was put to again:"
                " a queue can name one of the two, and the units of the others stay wrong or"
                " missing; those messages are found by key and by their places in the log"
            )
        if self.rebuilt_units:
            yield (
                f"{self.rebuilt_units} units of queues are missing or wrong on disk, and were built"
                " in memory: open the store for writing once, which writes them"
            )

    def is_like(self, other: VerifyReport | None) -> bool:
        """Whether both found one and the same."""
        return other is not None and (
            self.problem_count == other.problem_count and self.problems == other.problems
        )

    @property
    def has_room(self) -> bool:
        """True while another problem would be kept."""
        return len(self.problems) < PROBLEMS_MAX

    def add(self, problem: Problem, *, missing: bool = False) -> None:
        """Count a problem, and keep it if there is room; `missing`: nothing else is wrong there."""
        self.problem_count += problem.count
        self.missing_count += problem.count if missing else 0
        self._note_kind(problem, missing)
        if self.has_room:
            self.problems.append(problem)

    def add_first(self, problem: Problem) -> None:
        """Count and keep a problem that others come of, in front of them."""
        self.problem_count += problem.count
        self._note_kind(problem, False)
        self.problems = [problem, *self.problems][:PROBLEMS_MAX]

    def _note_kind(self, problem: Problem, missing: bool) -> None:
        if problem.kind == "log" and problem.text != BAD_PROPERTIES:
            self.log_is_damaged = True
        if problem.kind in {"queue", "ext"} and not missing:
            self.units_are_wrong = True

    def add_rebuilt(self, problem: Problem) -> None:
        """Keep what recovery made good, if there is room."""
        if len(self.rebuilt) < PROBLEMS_MAX:
            self.rebuilt.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """Everything, `ok` first, in types that json knows."""
        verdict = {"ok": self.ok, "consistent": self.consistent, "complete": self.complete}
        return {**verdict, **dataclasses.asdict(self)}
