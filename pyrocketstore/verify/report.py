"""The report of verify: problems, counts, and advice."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from pyrocketstore.columns._record_walk import BAD_PROPERTIES

#: The calls that a damaged file of `config` prevents, by the name of the file.
REFUSED_BY = MappingProxyType(
    {
        "topics.json": "an opening for writing",
        "delayOffset.json": "an opening for writing",
        "topicMinOffset.json": "an opening for writing",
        "consumerOffset.json": "a consumer",
        "lmqConsumerOffset.json": "a consumer",
        "subscriptionGroup.json": "a consumer",
        "consumerFilter.json": "a consumer with a filter",
    }
)
#: Problems that are kept; the others are only counted.
PROBLEMS_MAX = 100


@dataclasses.dataclass(slots=True)
class Problem:
    """One contradiction or damage in a store.

    Parameters
    ----------
    kind : "log", "queue", "ext", "index", "checkpoint" or "config"
    path : the file
    position : bytes into the file; -1: no position
    text : the reason
    count : number of consecutive units of a queue that the problem covers
    """

    kind: str
    path: str
    position: int
    text: str
    count: int = 1

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}{where}: {self.text}"


@dataclasses.dataclass(slots=True)
class LostFiles:
    """Files of the log that are missing.

    Parameters
    ----------
    names : of the files; of many, the first and the last one
    text : of the problem that reports them
    after, before : store times, Unix ms, of the last message before the files and the first one
        after them; 0: not known
    """

    names: str
    text: str
    after: int = 0
    before: int = 0


class Verdict(abc.ABC):
    """The verdicts that follow from the counts of a check."""

    @property
    @abc.abstractmethod
    def problem_count(self) -> int:
        """Number of all problems."""

    @property
    @abc.abstractmethod
    def missing_count(self) -> int:
        """Number of missing units and keys."""

    @property
    @abc.abstractmethod
    def not_indexed(self) -> int | None:
        """Number of records with keys in a part of the log that no index file covers; None: it is
        unknown, because the index was not checked."""

    @property
    @abc.abstractmethod
    def index_unchecked(self) -> str:
        """The reason why the index was not checked; "": it was."""

    @property
    @abc.abstractmethod
    def ext_unresolved(self) -> int:
        """Number of units whose ext units were not read."""

    @property
    def consistent(self) -> bool:
        """True if no checked part of the store contradicts another."""
        return self.problem_count == self.missing_count

    @property
    def complete(self) -> bool:
        """True if the queues and the index have every unit and key of the log's records.

        False also if the index or ext units were not checked.
        """
        unchecked = self.index_unchecked or self.ext_unresolved
        return not (self.missing_count or self.not_indexed or unchecked)

    @property
    def ok(self) -> bool:
        """True when the store is consistent and complete."""
        return self.consistent and self.complete


@dataclasses.dataclass
class VerifyReport(Verdict):
    """The counts and problems of one check.

    - `files blanks records bytes keys` count parts of the log. `bad_properties` records have
      properties that were not written completely, and `skipped_properties` ones have items that
      are no property, which readers skip as 4.9.3 does. `unqueued` records are
      prepared or rolled back, `unnameable` records have a topic that is not a valid directory name,
      and `repeated` records have the queue offset of a later record.
    - `messages` are what queues have to read: from the minimum offset of each to its maximum, as
      `info` counts them. Records without a unit are not among them, as those of a transaction that
      is rolled back; a message of several light queues is counted in each.
    - `keys` are index entries that the records require, two for a key that a message names twice.
    - Of the `units`, `expired` ones refer to deleted records and `pre_blank` ones to no record.
    - `missing_units` and `missing_keys` have a record in the log. `not_indexed` records have
      `not_indexed_keys` keys in a part of the log that no index file covers: 4.9.3 left them out
      after a crash, or a file was deleted. Both are None if the index was not checked.
    - `rebuilt_units` and `rebuilt_index_entries` are in memory and not on disk (read-only stores).
    - `problem_count` counts all problems; `problems` has the first PROBLEMS_MAX of them.
    """

    path: str
    files: int = 0
    blanks: int = 0
    records: int = 0
    bytes: int = 0
    damaged_bytes: int = 0
    undispatched_bytes: int = 0
    bad_properties: int = 0
    skipped_properties: int = 0
    keys: int = 0
    unqueued: int = 0
    unnameable: int = 0
    repeated: int = 0
    queues: int = 0
    messages: int = 0
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
    not_indexed: int | None = 0
    not_indexed_keys: int | None = 0
    missing_keys: int = 0
    rebuilt_index_entries: int = 0
    #: the reason why the index was not checked; "": it was
    index_unchecked: str = ""
    #: number of missing units and keys
    missing_count: int = 0
    problem_count: int = 0
    problems: list[Problem] = dataclasses.field(default_factory=list)
    rebuilt: list[Problem] = dataclasses.field(default_factory=list)
    #: the fields of the RecoveryPlan of the opening
    recovery: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Not fields: `problems` shows both, up to PROBLEMS_MAX.
        self.log_is_damaged = self.units_are_wrong = False
        #: files of the log that are missing, in order
        self.lost_files: list[LostFiles] = []
        #: number of records that state another queue offset than the unit that names them
        self.other_offsets = 0
        #: {(topic, queue id): number of units of `missing_units`}
        self.missing_units_of: dict[tuple[str, int], int] = {}
        #: the reason why the log has no bytes; "": it has bytes
        self.no_log = ""
        #: the reason why the store is never opened for writing; "": it may be
        self.only_read = ""
        #: physical offset of the damage at which a read-only opening has ended the log; -1: none
        self.ends_at_damage = -1

    @property
    def advice(self) -> list[str]:
        """One text for each kind of damage, with its remedy; [] if the store is `ok`."""
        if self.ok:
            return []
        if self.no_log and self.problem_count:
            return [f"{self.no_log}, and nothing can be built from it: restore it from a copy"]
        if self.only_read:
            return [*self._log_advice(), *self._ext_advice(), self._only_read_advice]
        found = [*self._log_advice(), *self._index_advice(), *self._unit_advice()]
        found += self._ext_advice()
        if any(problem.kind == "checkpoint" for problem in self.problems):
            found.append(
                f"`checkpoint` is damaged: it is derived from the log; {self._once}, which makes it"
                " again"
            )
        for problem in self.problems:
            if problem.kind == "config":
                name = problem.path.rpartition("/")[2].removesuffix(".bak")
                refused = REFUSED_BY.get(name, "an opening for writing")
                found.append(
                    f"{problem}; until then {refused} is refused, but messages can be read"
                    f"{self._log_first}"
                )
        return found or [
            "the store is damaged where `problems` say: take a copy of it, open it for writing"
            " once, and verify it again"
        ]

    @property
    def _only_read_advice(self) -> str:
        return (
            f"{self.only_read}. Missing units and keys were built in memory, as far as the log has"
            " their messages; the broker that writes this store makes their files"
        )

    def _log_advice(self) -> Iterator[str]:
        if self.log_is_damaged:
            yield (
                "the log is damaged or has lost files, and nothing else in the store has its"
                " messages: restore the files that `problems` name from a copy, before the store"
                " is opened for writing; without a copy, save the messages that can be read before"
                " that opening, as with `cat --json --on-corrupt skip`; it refuses a file of a"
                " wrong length, and its error says what can be done about it; it ends the log at"
                " the first other damage that it meets (in the last three files after a clean"
                " stop, in all with `abort` and without `checkpoint`), and keeps the rest of the"
                " files in `.broken`;"
                f" {self._readable}"
            )
        if self.other_offsets:
            count = self.other_offsets
            what = "1 message states" if count == 1 else f"{count} messages state"
            yield (
                f"{what} another queue offset than the unit that names the message: no checksum"
                " covers this field of a record, and no opening repairs it: restore the files of"
                " the log that `problems` name from a copy; without a copy, nothing is to be done:"
                " `get` with the physical offset, `query` and `dump` return such a message, and"
                " consumers of a broker receive it; `read` and `cat` can report it as damaged"
            )
        if self.bad_properties:
            yield (
                f"{self.bad_properties} messages have properties that are not complete, and nothing"
                " else in the store has these: restore the log from a copy, or put the messages"
                " again; what can be parsed is given as it is"
            )

    @property
    def _readable(self) -> str:
        if self.ends_at_damage < 0:
            return "reading with on_corrupt='skip' returns the undamaged messages"
        return (
            f"a read-only opening ends the log at byte {self.ends_at_damage}, where it meets"
            " damage: reading returns no later message, also with on_corrupt='skip', and does"
            " not count these messages as skipped"
        )

    @property
    def _log_first(self) -> str:
        return "; the log is damaged: restore it first" if self.log_is_damaged else ""

    @property
    def _once(self) -> str:
        """The remedy of derived files: while the log is damaged, no opening, which may cut it."""
        if self.log_is_damaged:
            return "restore the damaged log first; then open the store for writing once"
        return "open the store for writing once"

    def _index_advice(self) -> Iterator[str]:
        if self.index_unchecked:
            yield (
                f"the index was not checked: {self.index_unchecked}; pass these settings with"
                " --config, or with config= or as settings of `open`, and verify the store again:"
                " until then, queries and an opening for writing are refused"
            )
        elif self.not_indexed:
            yield (
                f"no index file covers {self.not_indexed_keys} keys of {self.not_indexed} messages:"
                f" a query searches the log for them; {self._once}, which puts them into the index"
            )
        if self.missing_keys or any(problem.kind == "index" for problem in self.problems):
            what = f"lacks {self.missing_keys} keys" if self.missing_keys else "is damaged"
            yield (
                f"the index {what}: it is derived from the log; {self._once},"
                " and verify it again; any remaining problem is in damaged index files:"
                " delete the files below `index`, and open it once more, which builds them again"
            )

    def _ext_advice(self) -> Iterator[str]:
        if self.ext_unresolved:
            yield (
                f"the ext units of {self.ext_unresolved} units were not checked, because"
                " enableConsumeQueueExt is off: pass enableConsumeQueueExt=true, and the"
                " mappedFileSizeConsumeQueueExt that the store was written with, in --config, or"
                " with config= or as settings of `open`, and verify the store again"
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
                " missing; those messages are found by key and by their physical offsets"
            )
        if self.rebuilt_units:
            yield (
                f"{self.rebuilt_units} units of queues are missing or wrong on disk, and were built"
                f" in memory: {self._once}, which writes them"
            )

    def is_like(self, other: VerifyReport | None) -> bool:
        """Return True if both reports have the same problems."""
        return other is not None and (
            self.problem_count == other.problem_count and self.problems == other.problems
        )

    @property
    def has_room(self) -> bool:
        """True while `problems` is not full."""
        return len(self.problems) < PROBLEMS_MAX

    def add(self, problem: Problem, *, missing: bool = False, repaired: bool = False) -> None:
        """Count a problem, and keep it if there is room; `missing`: only units or keys lack;
        `repaired`: the next opening for writing repairs it after any kind of stop."""
        self.problem_count += problem.count
        self.missing_count += problem.count if missing else 0
        self._note_kind(problem, missing or repaired)
        if self.has_room:
            self.problems.append(problem)

    def add_other_offset(self, problem: Problem) -> None:
        """Count a record that states another queue offset than its unit, and keep the problem if
        there is room."""
        self.other_offsets += 1
        self.problem_count += 1
        if self.has_room:
            self.problems.append(problem)

    def kept(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows whose problems there is room for; count the other problems."""
        room = max(0, PROBLEMS_MAX - len(self.problems))
        self.problem_count += max(0, len(rows) - room)
        return rows[:room]

    def add_first(self, problem: Problem) -> None:
        """Count a problem that causes others, and keep it before them."""
        self.problem_count += problem.count
        self._note_kind(problem, False)
        self.problems = [problem, *self.problems][:PROBLEMS_MAX]

    def _note_kind(self, problem: Problem, needs_no_rebuild: bool) -> None:
        if problem.kind == "log" and problem.text != BAD_PROPERTIES:
            self.log_is_damaged = True
        if problem.kind in {"queue", "ext"} and not needs_no_rebuild:
            self.units_are_wrong = True

    def add_rebuilt(self, problem: Problem) -> None:
        """Keep a problem that recovery repaired, if there is room."""
        if len(self.rebuilt) < PROBLEMS_MAX:
            self.rebuilt.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdicts, `ok` first, and all fields, in types that json accepts."""
        verdict = {"ok": self.ok, "consistent": self.consistent, "complete": self.complete}
        return {**verdict, **dataclasses.asdict(self)}
