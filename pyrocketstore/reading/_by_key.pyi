from collections.abc import Callable, Iterable
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.files._mapped_file import FileSequence
from pyrocketstore.record._message import MessageExt
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.files.mapped_file_queue import MappedFileQueue

__test__: Final[dict[str, object]]

@final
class LogTable:
    def __new__(cls, files: FileSequence, file_size: int) -> LogTable: ...

@final
class KeySearch:
    def __new__(
        cls,
        core: CommitLogCore,
        mapped_file_queue: MappedFileQueue,
        index_service: IndexService,
        dispatcher: Dispatcher | None,
        wait: Callable[[], object],
    ) -> Self: ...
    gaps: Any  # KeyGaps | None
    unreadable: Any  # UnreadableHits | None
    min_offsets: TopicMinOffsets | None
    def query(
        self, topic: str, key: str, begin: int, end: int, max_num: int, exact: bool
    ) -> list[MessageExt]: ...
    def query_many(
        self, topic: str, keys: Iterable[str], begin: int, end: int, max_num: int
    ) -> tuple[
        npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]
    ]: ...
    def message_at(self, phy_offset: int) -> MessageExt | None: ...
    def messages_at(self, phy_offsets: npt.NDArray[np.int64]) -> list[MessageExt | None]: ...
