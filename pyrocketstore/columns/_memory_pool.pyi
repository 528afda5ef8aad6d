from typing import Final

import numpy as np
import numpy.typing as npt

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

def reusable_bytes(size: int) -> npt.NDArray[np.uint8]: ...
def release_memory() -> int: ...
