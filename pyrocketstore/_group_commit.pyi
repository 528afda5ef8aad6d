from typing import Any, Final, Self, final

from typing_extensions import disjoint_base

from pyrocketstore._commit_log import CommitLogCore

__test__: Final[dict[str, object]]

@final
@disjoint_base
class GroupCommit:
    def __new__(cls, core: CommitLogCore, flush: Any, timeout_ms: int) -> Self: ...
    @property
    def forced(self) -> int: ...
    def wait(self, end: int) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
