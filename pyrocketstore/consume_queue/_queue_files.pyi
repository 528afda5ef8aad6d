from typing import Final

import numpy
from numpy.typing import NDArray

from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]

def look_at_queues(
    env: EnvTable,
    directories: tuple[bytes, ...],
    file_size: int,
    writable: bool,
    found: NDArray[numpy.int64],
) -> None: ...
def read_files(
    files: tuple[MappedFile, ...],
    position: NDArray[numpy.int64],
    size: NDArray[numpy.int64],
    at: NDArray[numpy.int64],
    target: NDArray[numpy.uint8],
    done: NDArray[numpy.uint8],
) -> None: ...
