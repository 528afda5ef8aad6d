from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from pyrocketstore.columns._decode import MapColumn

__test__: Final[dict[str, object]]

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
