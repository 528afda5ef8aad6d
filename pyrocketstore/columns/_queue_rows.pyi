from collections.abc import Sequence
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__test__: Final[dict[str, object]]

@final
class QueueRows:
    """Ranges of queues, their units, and the units that records have matched."""

    def __new__(
        cls,
        queues: Sequence[tuple[str, int, int, int]],  # topic, id, queue offsets [low, high)
        phy_offsets: npt.NDArray[np.int64],  # int64[m], bytes
        sizes: npt.NDArray[np.int32],  # int32[m], bytes
        answered: npt.NDArray[np.bool_],  # bool[m], set for each matched unit
    ) -> Self: ...
    def rows(
        self,
        data: Buffer | npt.NDArray[np.generic],
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        phy_offsets: npt.NDArray[np.int64],
        *,
        path: str = "commit log",
    ) -> npt.NDArray[np.bool_]: ...
