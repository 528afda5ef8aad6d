"""Columns of calls that return many rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class KeyHits(NamedTuple):
    """Hits of `query_many`, one row a hit: columns of one length.

    `key_index` int64[n], into the requested keys; `phy_offset` int64[n], bytes; `queue_id`
    int32[n]; `queue_offset` int64[n].
    """

    key_index: npt.NDArray[np.int64]
    phy_offset: npt.NDArray[np.int64]
    queue_id: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]
