from collections.abc import Iterable
from typing import Final

import numpy
from numpy.typing import NDArray

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

def index_key_hashes(topic: str, uniq_key: str | None, keys: str | None) -> list[int]: ...
def key_hash_of(topic: str | bytes, key: str | bytes) -> int: ...
def hashes_of_keys(
    keys: Iterable[str | bytes], topic: str | bytes | None = None
) -> NDArray[numpy.int32]: ...
