"""Many messages at once: checked columns, and the rows of them that are written together."""

from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from typing_extensions import disjoint_base

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.record._unique_id import UniqueIds

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

_Refusal = TypeVar("_Refusal", bound=StoreFormatError)

def of_message(number: int, error: _Refusal) -> _Refusal: ...
@disjoint_base
class PropertyTexts:
    def __new__(cls, rows: int) -> Self: ...
    def __len__(self) -> int: ...
    @staticmethod
    def of(
        tags: list[Any] | None,
        keys: list[Any] | None,
        properties: list[Any],
        ids: UniqueIds | None,
        write: Callable[[Any, Any, Any], bytes],
    ) -> PropertyTexts: ...
    def add(self, text: bytes) -> None: ...

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
        texts: PropertyTexts | None,
        flags: list[int] | None = None,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @staticmethod
    def of_items(
        topic: str, items: list[Any], queue_id: int, ids: UniqueIds | None = None
    ) -> Columns | None: ...

@disjoint_base
class Chunk: ...
