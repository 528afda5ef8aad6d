from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._group_commit import GroupCommit
from pyrocketstore.commit_log._put_columns import Columns
from pyrocketstore.commit_log._put_result import PutMessageResult
from pyrocketstore.record._unique_id import UniqueIds
from pyrocketstore.system._open_state import StoreState

__test__: Final[dict[str, object]]

@final
class PutPath:
    def __new__(
        cls,
        core: CommitLogCore,
        store_host: object,
        state: StoreState,
        slow: Any,  # SlowPuts
        ids: UniqueIds | None = None,
    ) -> Self: ...
    def wait_in(self, group: GroupCommit) -> None: ...
    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue_id: int,
        tags: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        delay_level: int,
        flag: int,
        born_timestamp: int | None,
        born_host: str | None,
    ) -> PutMessageResult: ...
    def append_columns(
        self,
        columns: Columns,
        queue_offsets: npt.NDArray[np.int64],
        phy_offsets: npt.NDArray[np.int64],
        born_host: object | None = None,
    ) -> tuple[int, int, int | Exception]: ...
    def check_columns(
        self, columns: Columns, first: int = 0, born_host: object | None = None
    ) -> None: ...
    def append_ordinary_batch(
        self, topic: object, messages: object, queue_id: object, tags: object, keys: object
    ) -> tuple[PutMessageResult | None, int, int] | None: ...
    def append_batch(self, columns: Columns) -> tuple[PutMessageResult | None, int, int]: ...
