import numpy as np
import numpy.typing as npt
from collections.abc import Sequence
from typing import Final, Self, final
from typing_extensions import Buffer

from pyrocketstore.columns._builder import (
    release_memory as release_memory,
    reusable_bytes as reusable_bytes,
)
from pyrocketstore.record._record import QueueName

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]
MAX_INFLATED_SIZE: Final[int]
COLUMNS: Final[tuple[str, ...]]
PROPERTIES_MAP: Final[str]

# int32, int64, string, binary or map
def column_type(name: str) -> str: ...
def column_names(columns: Sequence[str]) -> tuple[str, ...]: ...
@final
class VarColumn:
    offsets: Final[npt.NDArray[np.int32] | npt.NDArray[np.int64]]  # [n + 1], bytes
    data: Final[npt.NDArray[np.uint8]]
    validity: Final[npt.NDArray[np.uint8] | None]  # bitmap, [(n + 7) // 8]
    null_count: Final[int]
    is_text: Final[bool]
    def __init__(
        self,
        offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64],
        data: npt.NDArray[np.uint8],
        validity: npt.NDArray[np.uint8] | None,
        null_count: int,
        is_text: bool,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str | bytes | None: ...
    def to_list(self) -> list[str | bytes | None]: ...

@final
class MapColumn:
    offsets: Final[npt.NDArray[np.int32]]  # [n + 1], names
    keys: Final[VarColumn]
    values: Final[VarColumn]
    validity: Final[npt.NDArray[np.uint8] | None]  # bitmap, [(n + 7) // 8]
    null_count: Final[int]
    def __init__(
        self,
        offsets: npt.NDArray[np.int32],
        keys: VarColumn,
        values: VarColumn,
        validity: npt.NDArray[np.uint8] | None = None,
        null_count: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> dict[str, str] | None: ...
    def to_list(self) -> list[dict[str, str] | None]: ...

@final
class ColumnPlan:
    """Columns that are decoded, for compiled readers."""

    def __new__(cls, names: tuple[str, ...]) -> Self: ...

@final
class ColumnPass:
    """The columns of one call while they are filled, for compiled readers."""

# The arrays are int32[n] or int64[n].
def decode_records(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    columns: Sequence[str] = ...,
    *,
    phy_offsets: npt.NDArray[np.int64] | None = None,
    check_crc: bool = False,
    path: str = "commit log",
    on_bad_body: str = "raise",
    max_body_bytes: int | None = None,
    queue: QueueName | None = None,
    queue_offsets: npt.NDArray[np.int64] | None = None,
) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.int64] | VarColumn | MapColumn]: ...

# bool[n], or None if no body is compressed
def compressed_records(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
) -> npt.NDArray[np.bool_] | None: ...

# rs_status of each record, uint8[n]
def check_records(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    *,
    phy_offsets: npt.NDArray[np.int64] | None = None,
    check_crc: bool = False,
) -> npt.NDArray[np.uint8]: ...

# positions int64[n], sizes int32[n], bytes
def properties_maps(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
) -> MapColumn: ...

# int64[n]
def tags_codes(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
) -> npt.NDArray[np.int64]: ...
