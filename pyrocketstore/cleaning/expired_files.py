"""Services that delete expired files and check whether a disk is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.errors import DiskFullError, StoreError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.system import disk_space
from pyrocketstore.system.env import Env
from pyrocketstore.system.periodic import PeriodicService

__all__ = [
    "CleanCommitLogService",
    "CleanConsumeQueueService",
    "CleanResourceService",
    "DiskCheckService",
    "parse_delete_when",
]

LOG = logger(__name__)

MAX_MANUAL_DELETE_FILE_TIMES = 20
HOUR_MS = 3_600_000
#: The first round after a start, the first check of the disk, and the interval of checks (ms).
FIRST_CLEAN_MS, FIRST_CHECK_MS, CHECK_INTERVAL_MS = 60_000, 1_000, 10_000
DEFAULT_DELETE_HOURS = frozenset({4})


def parse_delete_when(text: str) -> frozenset[int]:
    """Parse the hours of the day (local time) in which expired files are deleted: "04", "02;14".

    Source: RocketMQ 4.9.3 UtilAll#isItTimeToDo.
    Differs: parts that are not numbers are ignored, and without numbers the hour is 04; 4.9.3 then
    deletes nothing any more, not even on a full disk.
    """
    parts = [part.strip() for part in text.rstrip("; ").split(";")]
    numbers = [part for part in parts if part.isascii() and part.isdigit()]
    hours = frozenset(map(int, numbers)) or DEFAULT_DELETE_HOURS
    if len(numbers) < len(parts):
        LOG.warning(
            "deleteWhen=%r: not a list of hours; the hours in use are %s", text, sorted(hours)
        )
    return hours


class CleanCommitLogService:
    """Delete old files of the log: at the configured hours, when the disk fills up, or on request.

    Parameters
    ----------
    queue_path : str, directory of the consume queues
    dispatched : callable that returns the byte of the log up to which records are dispatched
    lock : held while files are deleted, shared with other deletions of expired files

    Attributes: `warning_level_ratio`, `clean_forcibly_ratio`, used parts of a disk;
    `full_store_paths`, directories of the log above the latter.

    Threads: `run` and `is_space_full` from one thread each, the rest from any.
    Source: RocketMQ 4.9.3 DefaultMessageStore#CleanCommitLogService.
    Differs: two disks have two flags; a missing directory does not hide a full one; a file that is
    not dispatched is kept.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        flags: RunningFlags,
        queue_path: str,
        dispatched: Callable[[], int],
        lock: threading.Lock | None = None,
    ) -> None:
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.flags = flags
        self.queue_path = queue_path
        self.dispatched = dispatched
        self.delete_lock = threading.Lock() if lock is None else lock
        self.warning_level_ratio = disk_space.WARNING_LEVEL_RATIO
        self.clean_forcibly_ratio = disk_space.CLEAN_FORCIBLY_RATIO
        self.delete_hours = parse_delete_when(config.delete_when)
        self.full_store_paths: frozenset[str] = frozenset()
        self.clean_immediately = False
        self._manual_tries = 0
        self._lock = threading.RLock()  # a signal handler may request while it is held
        self._last_redelete_ns: int | None = None

    # ---- requests -------------------------------------------------------------------------

    def execute_delete_files_manually(self) -> None:
        """Have the next 20 rounds delete expired files at any hour.

        Source: RocketMQ 4.9.3 CleanCommitLogService#excuteDeleteFilesManualy.
        Differs: concurrent requests do not corrupt the count.
        """
        with self._lock:
            self._manual_tries = MAX_MANUAL_DELETE_FILE_TIMES
        LOG.info("expired files are deleted in the next %d rounds", MAX_MANUAL_DELETE_FILE_TIMES)

    @property
    def manual_tries(self) -> int:
        """Rounds left that delete on request."""
        return self._manual_tries

    def _take_manual_try(self) -> bool:
        with self._lock:
            taken = self._manual_tries > 0
            self._manual_tries -= taken
            return taken

    # ---- one round -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run one round: delete files if it is time, and files that could not be deleted before.

        Raises StoreIOError for a file that cannot be deleted; a later round tries it again.
        Source: RocketMQ 4.9.3 CleanCommitLogService#run.
        """
        try:
            self.delete_expired_files()
        finally:
            self.redelete_hanged_file()

    def delete_expired_files(self) -> int:
        """Delete expired files if it is time; return how many. Raises StoreIOError.

        Source: RocketMQ 4.9.3 CleanCommitLogService#deleteExpiredFiles.
        """
        time_up = self.is_time_to_delete()
        space_full = self.is_space_to_delete()
        manual = self._take_manual_try()
        if not (time_up or space_full or manual):
            return 0
        at_once = self.config.clean_file_forcibly_enable and self.clean_immediately
        with self.delete_lock:
            count = self.commit_log.delete_expired_file(
                self.config.file_reserved_time * HOUR_MS,
                self.config.delete_commit_log_files_interval,
                self.config.destroy_maped_file_interval_forcibly,
                at_once,
                self.dispatched(),
            )
        if count:
            LOG.info("%d files of the log were deleted, the first is at byte %d now%s", count,
                     self.commit_log.get_min_offset(),
                     ", before their time, since the disk fills up" if at_once else "")  # fmt: skip
        elif space_full:
            LOG.warning("the disk fills up, and no file of the log may be deleted")
        return count

    def redelete_hanged_file(self) -> None:
        """Every `redelete_hanged_file_interval` ms, delete the first file if that failed before.

        Raises StoreIOError. Source: RocketMQ 4.9.3 CleanCommitLogService#redeleteHangedFile.
        """
        now, last = self.env.monotonic_ns(), self._last_redelete_ns
        interval_ns = self.config.redelete_hanged_file_interval * 1_000_000
        if last is not None and now - last <= interval_ns:
            return
        self._last_redelete_ns = now
        interval = self.config.destroy_maped_file_interval_forcibly
        with self.delete_lock:
            deleted = self.commit_log.mapped_file_queue.retry_delete_first_file(interval)
        if deleted:
            LOG.info("a file of the log was deleted that could not be deleted before")

    def is_time_to_delete(self) -> bool:
        """Return True in the hours of `delete_when`. Source: RocketMQ 4.9.3 #isTimeToDelete."""
        return self.env.local_time().tm_hour in self.delete_hours

    # ---- disks ---------------------------------------------------------------------------------

    def is_space_to_delete(self) -> bool:
        """Return True when a disk is so full that files must be deleted; set the flags of full
        disks.

        Source: RocketMQ 4.9.3 CleanCommitLogService#isSpaceToDelete.
        """
        self.clean_immediately = False
        path, ratio = self._log_ratio()
        self._judge(path, ratio, self._set_log_disk)
        queue_ratio = disk_space.used_ratio(self.env, self.queue_path)
        self._judge(self.queue_path, queue_ratio, self._set_queue_disk)
        limit = self.config.disk_max_used_space_ratio / 100
        return not (0 <= ratio <= limit and 0 <= queue_ratio <= limit)

    def is_space_full(self) -> bool:
        """Return True when the log's disk is full; set its flag and `full_store_paths`.

        Source: RocketMQ 4.9.3 CleanCommitLogService#isSpaceFull.
        """
        path, ratio = self._log_ratio()
        full = ratio > self.warning_level_ratio
        self._set_log_disk(path, ratio, full)
        return full

    def _log_ratio(self) -> tuple[str, float]:
        """Return the log directory with the emptiest disk, and its ratio; missing ones do not
        count.

        Differs: in 4.9.3 a missing one counts as empty, and hides that the others are full.
        """
        ratios = {p: disk_space.used_ratio(self.env, p) for p in self.config.commit_log_paths}
        full = (path for path, ratio in ratios.items() if ratio > self.clean_forcibly_ratio)
        self.full_store_paths = frozenset(full)
        known = {p: ratio for p, ratio in ratios.items() if ratio >= 0} or ratios
        path = min(known, key=lambda p: known[p])
        return path, known[path]

    def _judge(self, path: str, ratio: float, set_full: Callable[[str, float, bool], None]) -> None:
        """Set or clear the flag; between the two limits it does not change."""
        if ratio > self.warning_level_ratio:
            set_full(path, ratio, True)
        elif ratio <= self.clean_forcibly_ratio:
            set_full(path, ratio, False)
        self.clean_immediately = self.clean_immediately or ratio > self.clean_forcibly_ratio

    def _set_log_disk(self, path: str, ratio: float, full: bool) -> None:
        if full:
            changed = self.flags.get_and_make_disk_full(self._cause(path, ratio))
        else:
            changed = not self.flags.get_and_make_disk_ok()
        self._log(changed, full, "log", path, ratio)

    def _set_queue_disk(self, path: str, ratio: float, full: bool) -> None:
        if full:
            changed = self.flags.get_and_make_logic_disk_full(self._cause(path, ratio))
        else:
            changed = not self.flags.get_and_make_logic_disk_ok()
        self._log(changed, full, "queues", path, ratio)

    def _cause(self, path: str, ratio: float) -> DiskFullError:
        return DiskFullError(path, ratio, self.warning_level_ratio)

    @staticmethod
    def _log(changed: bool, full: bool, whose: str, path: str, ratio: float) -> None:
        if changed and full:
            LOG.error("the disk of the %s is full (%s: %.2f): puts are refused", whose, path, ratio)
        elif changed:
            LOG.warning("the disk of the %s has room again (%s: %.2f)", whose, path, ratio)


class CleanConsumeQueueService:
    """Delete files of queues and index that name only deleted records.

    Source: RocketMQ 4.9.3 DefaultMessageStore#CleanConsumeQueueService.
    Differs: a queue whose file cannot be deleted does not stop the others.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        consume_queues: Callable[[], Iterable[ConsumeQueue]],
        index_service: IndexService,
        lock: threading.Lock | None = None,
    ) -> None:
        self.env = env
        self.config = config
        self.delete_lock = threading.Lock() if lock is None else lock
        self.commit_log = commit_log
        self.consume_queues = consume_queues
        self.index_service = index_service
        #: called between two queues: True ends the round
        self.is_stopping: Callable[[], bool] = lambda: False
        #: after each queue with a deleted file
        self.pause_ms = config.delete_consume_queue_files_interval
        self._last_physical_min_offset = 0

    def run(self) -> None:
        """Run one round, if the log's minimum has moved since the last complete one.

        The deletion of files of the log is durable then.

        Raises StoreError: the deletions cannot be flushed; the first error of a queue or the index,
        after all were cleaned.
        Source: RocketMQ 4.9.3 CleanConsumeQueueService#deleteExpiredFiles.
        """
        lowest = self.commit_log.get_min_offset()
        if lowest <= self._last_physical_min_offset:
            return
        failure: StoreError | None = None
        pause_ms = self.pause_ms
        # The messages of a file that comes back have their units and keys.
        self.commit_log.flush_deletions()
        for queue in list(self.consume_queues()):
            if self.is_stopping():
                return
            try:
                with self.delete_lock:
                    deleted = queue.delete_expired_file(lowest)
                if deleted and pause_ms > 0:
                    self.env.sleep(pause_ms / 1000)
            except StoreError as error:
                LOG.error("%s/%d: expired files stay: %s", queue.topic, queue.queue_id, error)
                failure = failure or error
        with self.delete_lock:
            self.index_service.delete_expired_file(lowest)
        if failure is not None:
            raise failure
        self._last_physical_min_offset = lowest


class DiskCheckService(PeriodicService):
    """Check every ten seconds whether the log's disk is full.

    Source: RocketMQ 4.9.3 DefaultMessageStore#addScheduleTask.
    """

    def __init__(self, env: Env, clean_commit_log: CleanCommitLogService) -> None:
        super().__init__(env, "DiskCheckService", FIRST_CHECK_MS, CHECK_INTERVAL_MS)
        self._clean_commit_log = clean_commit_log

    def do_once(self) -> None:
        """Check once."""
        self._clean_commit_log.is_space_full()


class CleanResourceService(PeriodicService):
    """Clean the log, then queues and index, every `clean_resource_interval` ms, first after 60 s.

    `newest_ms` is the store time of the newest record when the store was opened, 0 when no queue
    names one. If it is older than `file_reserved_time`, or unknown for a log with records, the
    store may be an archive that was opened with the wrong settings: `notice` warns of that, and the
    first round deletes nothing.

    Threads: one works. Source: RocketMQ 4.9.3 DefaultMessageStore#cleanFilesPeriodically.
    Differs: a thread of its own, joined at the end; the first round over an old store only warns.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        clean_commit_log: CleanCommitLogService,
        clean_consume_queue: CleanConsumeQueueService,
        newest_ms: int,
    ) -> None:
        super().__init__(
            env, "CleanResourceService", FIRST_CLEAN_MS, config.clean_resource_interval
        )
        self.clean_commit_log = clean_commit_log
        self.clean_consume_queue = clean_consume_queue
        self.clean_consume_queue.is_stopping = lambda: self.stopped
        #: warning for the owner before anything is deleted, or None
        self.notice: str | None = None
        age_ms = env.now_ms() - newest_ms
        if newest_ms > 0:
            self._holds_back = age_ms > config.file_reserved_time * HOUR_MS
            newest = f"the newest record is {age_ms // HOUR_MS} hours old"
        else:
            log = clean_commit_log.commit_log
            self._holds_back = log.get_max_offset() > max(0, log.get_min_offset())
            newest = "the age of the newest record is not known"
        if self._holds_back:
            wait_s = (FIRST_CLEAN_MS + config.clean_resource_interval) / 1000
            self.notice = (
                f"{config.store_path_root_dir}: {newest} and file_reserved_time is "
                f"{config.file_reserved_time}: in {wait_s:g} s expired files begin to be deleted"
            )
            LOG.warning("%s", self.notice)

    def do_once(self) -> None:
        """Run one round."""
        if self._holds_back:
            self._holds_back = False
            LOG.warning("%s", self.notice)
            return
        try:
            self.clean_commit_log.run()
        finally:
            self.clean_consume_queue.run()
