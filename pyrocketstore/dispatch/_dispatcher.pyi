from collections.abc import Callable, Mapping
from typing import Any, Final, Self, final

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.index._file import IndexFile
from pyrocketstore.results import DispatchRequest
from pyrocketstore.system._env import EnvTable, Event

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

@final
class Dispatcher:
    def __new__(
        cls,
        *args: object,
        on_new_queue: Callable[[str, int], Any],
        on_queue_record: Callable[[DispatchRequest, bool], None],
        on_index_file: Callable[[], IndexFile | None],
        on_index_record: Callable[[DispatchRequest], IndexFile | None],
        on_error: Callable[[str, str, int, int], None],
        delay_levels: Mapping[int, int],
        index_enabled: bool,
        multi_dispatch: bool,
        moved: Event,
        min_offsets: TopicMinOffsets | None = None,
    ) -> Self: ...
    position: int  # bytes
    def wait_for(self, phy_offset: int, timeout_ms: int) -> bool: ...
    def wake(self) -> None: ...
    last_phy_offset: int  # bytes
    logics_timestamp: int  # Unix ms
    delayed: Event | None
    def set_index_file(self, index_file: IndexFile | None) -> None: ...
    @property
    def on_dispatched(self) -> Callable[[DispatchRequest], None] | None: ...
    def call_after(self, on_dispatched: Callable[[DispatchRequest], None] | None) -> None: ...
    def remove_before(self, min_offsets: TopicMinOffsets | None) -> None: ...
    def resume_index(self) -> None: ...
    def forget(self, topic: str, queue_id: int) -> None: ...
    def dispatch_mapped(
        self, log: CommitLogCore, mapped_file: MappedFile, position: int, stop: int
    ) -> tuple[int, int]: ...
    def dispatch_file(
        self,
        env: EnvTable,
        path: str,
        file_from_offset: int,
        position: int,
        stop: int,
        observed: bool = False,
    ) -> tuple[int, int]: ...
    def dispatch_chunk(self, chunk: LogChunk, first: int) -> int: ...
    def queue_chunk(self, chunk: LogChunk, alone: bool) -> bool: ...
    def index_chunk(self, chunk: LogChunk) -> bool: ...
    def pass_chunk(self, chunk: LogChunk) -> None: ...
