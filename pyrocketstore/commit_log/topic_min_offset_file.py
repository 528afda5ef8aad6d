"""ROOT/config/topicMinOffset.json: topics whose removed messages are still in the log.

4.9.3 ignores this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreError
from pyrocketstore.files.checked_file import CheckedFile
from pyrocketstore.files.config_file import BACKUP_SUFFIX, ContentError, table_of
from pyrocketstore.files.planned_changes import PlannedChanges

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.system.env import Env

__all__ = [
    "TOPIC_MIN_OFFSET",
    "RecordProof",
    "TopicMinOffsetFile",
    "TopicMinimum",
    "last_record_before",
    "record_proof",
]

LOG = logger(__name__)

TOPIC_MIN_OFFSET = "topicMinOffset.json"
_TABLE = "topicMinOffsetTable"
_NUMBERS = ("minPhyOffset", "recordPhyOffset", "recordSize", "recordCrc")
_REMEDY = "delete it and its backup: removed messages of topics may then be found again"
#: JSON can have lone surrogates, which UTF-8 cannot encode: no topic has them.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
#: Bound of all numbers of the file: no sum of them overflows an int64.
_NUMBER_MAX = 1 << 62


class ProvingLog(Protocol):
    """The parts of a log that prove which log it is."""

    def get_min_offset(self) -> int:
        """Return the first byte of the log, -1 without files."""
        ...

    def flush_deletions(self) -> None:
        """Make the deletion of files durable, as `CommitLog.flush_deletions` does."""
        ...

    def record_mark(self, phy_offset: int) -> tuple[int, int] | None:
        """Return size and CRC of a record, as `CommitLog.record_mark` does."""
        ...


class RecordProof(NamedTuple):
    """A record that proves which log an entry belongs to.

    phy_offset : int; size, crc : as `CommitLog.record_mark` returns them
    """

    phy_offset: int
    size: int
    crc: int


class TopicMinimum(NamedTuple):
    """The minimum of one topic.

    min_phy_offset : int, messages of the topic before this byte of the log are removed
    proof : RecordProof that ends at or after `min_phy_offset`. If the log has another record there,
        the log was cut before that byte, or is another log
    is_dropping : bool, `drop_topic` was interrupted: the next opening removes the queues
    """

    min_phy_offset: int
    proof: RecordProof
    is_dropping: bool

    def is_proven(self, log: ProvingLog) -> bool:
        """Return whether the log has the record. Raises StoreIOError."""
        return log.record_mark(self.proof.phy_offset) == self.proof[1:]


class TopicMinOffsetFile:
    """The minimums of the topics of one store.

    Parameters
    ----------
    env : Env
    root : the store's root directory

    Threads: one at a time.
    """

    def __init__(self, env: Env, root: str) -> None:
        self._env = env
        self.path = os.path.join(root, "config", TOPIC_MIN_OFFSET)
        self._file = CheckedFile(env, self.path, _TABLE, _valid_part, _REMEDY)
        self._table: dict[str, TopicMinimum] = {}
        self._content: dict[str, Any] = {}
        #: topics that were warned of, and the last warning of a damaged file
        self._unproven: set[str] = set()
        self._warned = ""

    def read(self, changes: PlannedChanges | None = None) -> None:
        """Read the file, or its backup.

        Call this before the files of the log are listed: the log of a live owner then has the
        record of each entry.

        - If the checksum of the file is wrong, the backup counts, which has the same content.
        - If both checksums are wrong or missing, the backup supplies each entry that is damaged in
          the file. A topic without a valid entry has no minimum: its removed messages may be found
          again, with a warning, and the damaged entry remains in the file (see ConfigFile).

        Raises StoreCorruptionError if the file and its backup are damaged; if `changes` accept
        that, a warning is logged, and no message counts as removed. Raises StoreIOError.
        """
        try:
            content = self._file.read()
        except StoreCorruptionError as error:
            (changes or PlannedChanges()).accept(error)
            text = f"{error}: messages that were removed are found again"
            if text != self._warned:
                self._warned = text
                LOG.warning("%s", text)
            content = {}
        self._content = content.get(_TABLE, {})
        for topic, entry in self._file.backup().get(_TABLE, {}).items():
            if self._file.is_damaged(_TABLE, topic):
                self._content[topic] = entry

    def load(self, log: ProvingLog, changes: PlannedChanges | None = None) -> None:
        """Use the entries that `read` has read and that the log proves.

        Other entries are left out with a warning, and entries before the first file of the log
        without one.

        Parameters
        ----------
        log : the store's log; its end may be unknown
        changes : gets the write of the file, if an entry was left out; None: it stays

        Raises StoreIOError.
        """
        found = {topic: _minimum_of(entry) for topic, entry in self._content.items()}
        lowest = log.get_min_offset()
        self._table = {}
        for topic, minimum in found.items():
            if minimum.min_phy_offset <= lowest:
                continue
            if minimum.is_proven(log):
                self._table[topic] = minimum
            elif topic not in self._unproven:
                self._unproven.add(topic)
                LOG.warning(
                    "%s: the log was cut or exchanged since messages of the topic %s were removed:"
                    " those that it still has are found again",
                    self.path,
                    topic,
                )
        if changes is not None and len(self._table) < len(found):
            changes.add(partial(self._write_without_left_out, log))

    def _write_without_left_out(self, log: ProvingLog) -> None:
        try:
            log.flush_deletions()  # a killed process may have deleted files in memory only
            self._write(self._table)
        except StoreError as error:  # the next opening leaves these entries out again
            LOG.warning("%s: cannot be written: %s", self.path, error)

    def offsets(self, log_end: int = _NUMBER_MAX) -> TopicMinOffsets:
        """Return the minimums that records before byte `log_end` of the log prove, in the form for
        loops over records."""
        return TopicMinOffsets(
            {
                topic: minimum.min_phy_offset
                for topic, minimum in self._table.items()
                if minimum.proof.phy_offset + minimum.proof.size <= log_end
            }
        )

    def dropping(self) -> list[str]:
        """Return the topics whose removal was interrupted."""
        return [topic for topic, minimum in self._table.items() if minimum.is_dropping]

    def get(self, topic: str) -> TopicMinimum | None:
        """Return the minimum of a topic, None without one."""
        return self._table.get(topic)

    def put(self, topic: str, minimum: TopicMinimum, log: ProvingLog) -> None:
        """Set the minimum of a topic, and remove the entries before the first byte of the log once
        the deletion of earlier files is durable.

        Durability: durable on return. Raises StoreError: the file has the old or the new content.
        """
        lowest = log.get_min_offset()
        kept = {t: m for t, m in self._table.items() if m.min_phy_offset > lowest}
        if len(kept) < len(self._table):
            log.flush_deletions()
        self._write({**kept, topic: minimum})

    def cut(self, env: Env, log: CommitLog, log_end: int) -> None:
        """Lower the minimums that records after `log_end` prove, before the log is cut there.

        Durability: durable on return. Raises StoreError.
        """
        behind = [t for t, m in self._table.items() if m.proof.phy_offset + m.proof.size > log_end]
        if not behind:
            return
        table = dict(self._table)
        proof = last_record_before(env, log, log_end)
        for topic in behind:
            minimum = table.pop(topic)
            if proof is not None:
                end = min(minimum.min_phy_offset, proof.phy_offset + proof.size)
                table[topic] = TopicMinimum(end, proof, minimum.is_dropping)
        self._write(table)

    def destroy(self) -> None:
        """Delete the file and its backup. Raises StoreIOError."""
        for path in (self.path, self.path + BACKUP_SUFFIX):
            self._env.remove(path)
        self._table = {}

    def _write(self, table: Mapping[str, TopicMinimum]) -> None:
        entries = {topic: _entry_of(minimum) for topic, minimum in sorted(table.items())}
        for _ in range(2):  # the backup then has each entry, too: see `read`
            self._file.write({_TABLE: entries})
        self._table = dict(table)


def record_proof(log: CommitLog, phy_offset: int) -> RecordProof | None:
    """Return the proof of the record at a physical offset, None without a record there.

    Raises StoreIOError.
    """
    mark = None if phy_offset < 0 else log.record_mark(phy_offset)
    return None if mark is None else RecordProof(phy_offset, *mark)


def last_record_before(env: Env, log: CommitLog, end: int, guess: int = -1) -> RecordProof | None:
    """Return the last record of the log that begins before `end`; None without one.

    `guess` is a physical offset at which that record may begin; if it does not, files are scanned.

    Raises StoreIOError.
    """
    proof = record_proof(log, guess)
    if proof is not None and guess + proof.size == end:
        return proof
    for file in reversed(log.mapped_file_queue.mapped_files):
        last = -1
        stop = min(end, file.file_from_offset + file.file_size)
        for chunk in records_between(env, log, file.file_from_offset, stop):
            if chunk.count:
                last = chunk.file_from_offset + chunk.position(chunk.count - 1)
        proof = record_proof(log, last)
        if proof is not None:
            return proof
    return None


def _minimum_of(entry: Mapping[str, Any]) -> TopicMinimum:
    end, phy_offset, size, crc = (entry[name] for name in _NUMBERS)
    return TopicMinimum(end, RecordProof(phy_offset, size, crc), entry["dropping"])


def _entry_of(minimum: TopicMinimum) -> dict[str, Any]:
    numbers = dict(zip(_NUMBERS, (minimum.min_phy_offset, *minimum.proof), strict=True))
    return dict(sorted({**numbers, "dropping": minimum.is_dropping}.items()))


def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content without damaged entries. Raises ContentError."""
    if _TABLE not in content:
        raise ContentError(f"{_TABLE} is missing")
    table = table_of(content, _TABLE)
    valid = {
        topic: entry
        for topic, entry in table.items()
        if topic and _is_entry(entry) and not _LONE_SURROGATE.search(topic)
    }
    return {**content, _TABLE: valid}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or type(entry.get("dropping")) is not bool:
        return False
    numbers: list[Any] = [entry.get(name) for name in _NUMBERS]
    if not all(type(number) is int and 0 <= number < _NUMBER_MAX for number in numbers):
        return False
    end, phy_offset, size, _ = numbers
    return bool(0 < end <= phy_offset + size and size > 0)
