from collections.abc import Sequence
from typing import Final, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__test__: Final[dict[str, object]]
MAX_INFLATED_SIZE: Final[int]
COLUMNS: Final[tuple[str, ...]]

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

# The arrays are int32[n] or int64[n].
def reusable_bytes(size: int) -> npt.NDArray[np.uint8]: ...
def release_memory() -> int: ...
def decode_records(
    data: Buffer | npt.NDArray[np.generic],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    columns: Sequence[str] = ...,
    *,
    phy_offsets: npt.NDArray[np.int64] | None = None,
    check_crc: bool = False,
    path: str = "commit log",
) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.int64] | VarColumn]: ...
