"""Many messages at once: checked columns, and the rows of them that are written together."""

from typing import Any, Final, Self

from typing_extensions import disjoint_base

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

@disjoint_base
class Columns:
    @property
    def topic(self) -> str: ...
    def __new__(
        cls,
        topic: str,
        bodies: list[Any],  # bytes-like
        queue_ids: list[int | None] | int,
        tags: list[str | None] | None,
        keys: list[Any] | None,
        texts: list[bytes | None] | None,
        flags: list[int] | None = None,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @staticmethod
    def of_items(topic: str, items: list[Any], queue_id: int) -> Columns | None: ...

@disjoint_base
class Chunk: ...
