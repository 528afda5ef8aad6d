from typing import Final, Self, final

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.files.mapped_file_queue import MappedFileQueue

__test__: Final[dict[str, object]]

@final
class StoreTimes:
    def __new__(cls, core: CommitLogCore, mapped_file_queue: MappedFileQueue) -> Self: ...
    def __call__(self, phy_offset: int, size: int) -> int: ...
