from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__test__: Final[dict[str, object]]

# (positions int64[n], sizes int32[n], next_position, status)
def walk_records(
    data: Buffer | npt.NDArray[np.generic],
    position: int,
    stop: int,
    phy_offset: int,
    *,
    end: int | None = None,
    check_crc: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int, int]: ...
