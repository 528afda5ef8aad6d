from collections.abc import Callable, Iterable
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt

from pyrocketstore._mapped_file import MappedFile
from pyrocketstore._message import MessageExt

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

@final
class RecordBytes:
    """Bytes of commit log files, for compiled readers."""

@final
class MessageIterator:
    def __init__(
        self,
        pieces: Iterable[tuple[MappedFile, npt.NDArray[np.int64], npt.NDArray[np.int32]]],
        tags: frozenset[str] | None,
        check_open: Callable[[], object],
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> MessageExt: ...

def gather_records(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],  # int64[n], bytes
    sizes: npt.NDArray[np.int32],  # int32[n], bytes
    out: npt.NDArray[np.uint8],  # uint8[m]
    position: int,
    *,
    check: bool = True,
    positions: npt.NDArray[np.int64] | None = None,  # int64[n], bytes
) -> None: ...
