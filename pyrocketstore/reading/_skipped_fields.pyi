from collections.abc import Callable
from typing import Final, Self

from typing_extensions import disjoint_base

from pyrocketstore.reading.skipped import SkippedMessages, SkippedRange

__test__: Final[dict[str, object]]
MAX_RANGES: Final[int]

@disjoint_base
class SkippedFields:
    _count: int
    _max_ranges: int | None
    _ranges: list[SkippedRange]
    def __new__(cls, max_ranges: int | None = 4096) -> Self: ...

@disjoint_base
class DamageFields:
    topic: Final[str]
    queue_id: Final[int]
    skips: Final[bool]
    skipped: Final[SkippedMessages]
    is_replaced: Callable[[], bool] | None
    def __new__(
        cls, topic: str, queue_id: int, on_corrupt: str, skipped: SkippedMessages
    ) -> Self: ...
