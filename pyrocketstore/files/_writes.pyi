from collections.abc import Callable
from typing import Final, Self, final

from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

@final
class WriterBuffer:
    on_free: Callable[[WriterBuffer], None] | None
    def __new__(cls, env: EnvTable, size: int) -> Self: ...
    @property
    def env(self) -> EnvTable: ...
    @property
    def size(self) -> int: ...
    @property
    def locked(self) -> bool: ...
    def lock(self) -> None: ...
    def free(self) -> None: ...
