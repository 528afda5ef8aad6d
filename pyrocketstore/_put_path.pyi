from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from pyrocketstore._commit_log import CommitLogCore
from pyrocketstore._put_result import PutMessageResult
from pyrocketstore._group_commit import GroupCommit
from pyrocketstore._put_columns import Columns

__test__: Final[dict[str, object]]

@disjoint_base
class PutPath:
    put_fast: bool
    @property
    def core(self) -> CommitLogCore: ...
    def bind_put_path(self, core: CommitLogCore, store_host: object) -> None: ...
    def _wait_in(self, group: GroupCommit) -> None: ...
    def put(
        self,
        topic: str,
        body: Any,  # bytes-like
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
    ) -> PutMessageResult: ...
    def _append_columns(
        self,
        columns: Columns,
        queue_offsets: npt.NDArray[np.int64],
        phy_offsets: npt.NDArray[np.int64],
        born_host: object | None = None,
    ) -> tuple[int, int, int | Exception]: ...

    def _append_batch(self, columns: Columns) -> tuple[PutMessageResult | None, int, int]: ...
