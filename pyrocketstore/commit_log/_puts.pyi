"""Many messages at once: checked columns, and the rows of them that are written together."""
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar
from typing_extensions import disjoint_base

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.record._text import UniqueIds
from pyrocketstore.results import AppendMessageStatus, PutMessageStatus

__test__: Final[dict[str, object]]

@disjoint_base
class PutMessageResult:
    @property
    def status_code(self) -> int: ...
    @property
    def append_status_code(self) -> int: ...
    @property
    def phy_offset(self) -> int: ...  # bytes
    @property
    def queue_offset(self) -> int: ...
    @property
    def wrote_bytes(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...  # Unix ms
    @property
    def message_count(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def status(self) -> PutMessageStatus: ...
    @property
    def put_message_status(self) -> PutMessageStatus: ...
    @property
    def append_message_status(self) -> AppendMessageStatus | None: ...
    def is_ok(self) -> bool: ...
    @property
    def msg_id(self) -> str: ...

def make_result(
    status: int,
    append_status: int = -1,
    phy_offset: int = 0,
    queue_offset: int = 0,
    wrote_bytes: int = 0,
    store_timestamp: int = 0,
    message_count: int = 0,
    positions: list[int] | None = None,
    store_host: object | None = None,
    error: BaseException | None = None,
) -> PutMessageResult: ...
def with_status(
    base: PutMessageResult, status: int, error: BaseException | None = None
) -> PutMessageResult: ...

__pyx_capi__: Final[dict[str, object]]

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
    def rows_alone(self) -> bytes: ...  # uint8[n]
    @staticmethod
    def of_items(
        topic: str, items: list[Any], queue_id: int, ids: UniqueIds | None = None
    ) -> Columns | None: ...

@disjoint_base
class Chunk: ...

@disjoint_base
class ColumnAppends:
    @property
    def failed_row(self) -> int: ...
    def __new__(cls, core: CommitLogCore, store_host: object) -> Self: ...
    def append(
        self,
        columns: Columns,
        first: int,
        stop: int,
        queue_offsets: npt.NDArray[np.int64],
        phy_offsets: npt.NDArray[np.int64],
        born_host: object | None = None,
    ) -> tuple[int, int, int | Exception]: ...
    def check(self, columns: Columns, first: int = 0, born_host: object | None = None) -> None: ...
    def encoded(
        self,
        topics: list[str],
        bodies: list[Any],  # bytes-like
        queue_ids: list[int] | int,
        texts: list[Any] | None,  # str or bytes-like
        flags: list[int] | None,
        sys_flags: list[int] | None,
        born_timestamps: list[int] | None,  # Unix ms
        born_hosts: list[Any] | None,
        *,
        multi: bool,
        is_ordinary: Callable[[str], bool],
    ) -> Columns: ...
