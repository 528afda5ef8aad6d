import numpy as np
import numpy.typing as npt
from typing import Final, final

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

def reusable_bytes(size: int) -> npt.NDArray[np.uint8]: ...
def release_memory() -> int: ...

@final
class ArrowColumns:
    names: Final[tuple[str, ...]]
    large: Final[tuple[str, ...]]
    body_bytes: Final[int]
    def __len__(self) -> int: ...
    @property
    def address(self) -> int: ...
    def child_addresses(self) -> list[int]: ...
    def byte_count(self) -> int: ...
