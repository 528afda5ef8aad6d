from collections.abc import Mapping
from typing import Final, Self, final

__test__: Final[dict[str, object]]

@final
class TopicMinOffsets:
    def __new__(cls, table: Mapping[str, int]) -> Self: ...
    def of(self, topic: str) -> int: ...  # bytes of the log
    def by_topic(self) -> dict[str, int]: ...
    def __bool__(self) -> bool: ...
