"""Load the files of a read-only store, whose owner may write meanwhile, and follow the owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreIOError, StoreStateError, without_frames
from pyrocketstore.message_store.current_sizes import load_with_sizes
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.loading import Loading
from pyrocketstore.recovery.clean_stop import locked_ms
from pyrocketstore.recovery.refresh import Follower, owner_of
from pyrocketstore.system._env import Event
from pyrocketstore.system.live_stores import Attempts, was_removed
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
    from pyrocketstore.message_store.topic_config import TopicConfigFile
    from pyrocketstore.schedule.delay_offsets import DelayOffsets
    from pyrocketstore.system.env import Env

__all__ = ["ReadOnlyFiles"]


class ReadOnlyFiles:
    """Loads the files of a read-only store, and finds what their owner has written since.

    Parameters
    ----------
    env, root : of the store
    moved : Event, signalled when messages were found
    topics, delay_offsets : files of `config` that a load reads, or None

    Threads: one at a time, beside readers.
    """

    def __init__(
        self,
        env: Env,
        root: str,
        moved: Event,
        topics: TopicConfigFile | None,
        delay_offsets: DelayOffsets,
    ) -> None:
        self._env, self._root, self._moved = env, root, moved
        self._topics, self._delay_offsets = topics, delay_offsets
        self._identity: tuple[int, int] | None = None
        self._only: TopicBuckets | None = None
        #: None: a refresh loads the files again
        self.follower: Follower | None = None

    def load(self, files: LoadedFiles) -> None:
        """Load the files; the directory that has the path now is the store's from now on.

        Raises StoreCorruptionError, StoreIOError.
        """
        self._env.require_directory(self._root)
        self._identity = self._identity_of_root()
        self._only = files.only
        self.follower = self._load(files, self._topics, self._delay_offsets)

    def check_root(self) -> None:
        """Raise StoreStateError if another directory has the path of the store."""
        if self._identity_of_root() != self._identity:
            raise StoreStateError(
                f"{self._root} was moved or replaced while the store was open; close the store and"
                " open it again"
            )

    def follow(self) -> bool:
        """Make readable what the owner has appended; return False when the files must be loaded
        again. Raises StoreIOError."""
        return self.follower is not None and self.follower.follow()

    def load_again(
        self, settings: Callable[[], MessageStoreConfig], replace: Callable[[LoadedFiles], None]
    ) -> None:
        """Load the files again beside the readers of the present ones, and call `replace` with
        them.

        Parameters
        ----------
        settings : callable(), reads the sizes of the files that are there now

        Raises StoreCorruptionError, StoreIOError.
        """
        followers: list[Follower | None] = []

        def load(config: MessageStoreConfig) -> LoadedFiles:
            fresh = LoadedFiles(
                self._env, config, read_only=True, appended=Event(), only=self._only
            )
            try:
                self._env.require_directory(self._root)
                followers.append(self._load(fresh, None, None))
            except BaseException:
                fresh.close()
                raise
            return fresh

        fresh = load_with_sizes(self._env, settings, load, lambda one: one.plan, LoadedFiles.close)
        try:
            replace(fresh)
        except BaseException:
            fresh.close()
            raise
        self.follower = followers[-1]

    def _load(
        self,
        files: LoadedFiles,
        topics: TopicConfigFile | None,
        delay_offsets: DelayOffsets | None,
    ) -> Follower | None:
        """Load the files; load them again if the owner, another process, has deleted some or opened
        the store meanwhile: files of log and queues must be of the same time.

        Raises the cause if units or keys in memory could not be built: no repair follows.
        """
        flags = files.running_flags
        attempts = Attempts(self._env)
        while True:
            follower = None
            try:
                files.locked_before_ms = locked_ms(self._env, self._root)
                owner = owner_of(self._env, self._root)
                flags.write_error = None  # of the attempt before this one
                flags.begin_repair()  # an error is not tried again: the next opening does that
                Loading(files, self._moved, topics, delay_offsets).load()
                if flags.write_error is not None:
                    raise without_frames(flags.write_error)
                flags.end_repair(True, False, False)
                if files.plan is not None:
                    follower = Follower(files, files.plan, owner)
            except StoreIOError as error:
                if not was_removed(error) or not attempts.another():
                    raise
            else:
                first = files.commit_log.mapped_file_queue.get_first_mapped_file()
                expired = first is not None and not self._env.exists(first.path)
                changed = owner_of(self._env, self._root) != owner
                if not (expired or changed) or not attempts.another():
                    return follower
            check_abandoned()
            files.close()
            files.queue_table.forget()

    def _identity_of_root(self) -> tuple[int, int] | None:
        return self._env.identity_at(f"{self._root}/.")
