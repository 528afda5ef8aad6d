from typing import Final

import numpy as np
import numpy.typing as npt

from pyrocketstore._mapped_file import MappedFile
from pyrocketstore._message import MessageExt

__test__: Final[dict[str, object]]

def read_messages(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],  # int64[n], bytes
    sizes: npt.NDArray[np.int32],  # int32[n], bytes
    check_crc: bool = False,
) -> list[MessageExt]: ...
def gather_records(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],  # int64[n], bytes
    sizes: npt.NDArray[np.int32],  # int32[n], bytes
    out: npt.NDArray[np.uint8],  # uint8[m]
    position: int,
) -> None: ...
