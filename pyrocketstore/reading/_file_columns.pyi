"""Records of a commit log file to columns."""

from collections.abc import Sequence
from typing import Final, Literal, overload

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._builder import ArrowColumns
from pyrocketstore.columns._decode import MapColumn, VarColumn
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._queue_runs import RecordRun
from pyrocketstore.record._record import QueueName

__test__: Final[dict[str, object]]

@overload
def decode_file_records(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    columns: Sequence[str],
    *,
    check_crc: bool = False,
    inflate: Literal[True] = True,
    max_body_bytes: int | None = None,
    queue: QueueName | None = None,
    queue_offsets: npt.NDArray[np.int64] | None = None,
    null_bad_bodies: bool = False,
) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.int64] | VarColumn | MapColumn]: ...
@overload
def decode_file_records(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    columns: Sequence[str],
    *,
    check_crc: bool = False,
    inflate: bool,
    max_body_bytes: int | None = None,
    queue: QueueName | None = None,
    queue_offsets: npt.NDArray[np.int64] | None = None,
    null_bad_bodies: bool = False,
) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.int64] | VarColumn | MapColumn] | None: ...
def decode_run(
    run: RecordRun,
    names: tuple[str, ...],
    queue: QueueName,
    *,
    check_crc: bool = False,
    max_body_bytes: int | None = None,
    null_bad_bodies: bool = False,
) -> ArrowColumns: ...
def no_rows(names: tuple[str, ...]) -> ArrowColumns: ...
