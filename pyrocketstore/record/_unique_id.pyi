from typing import Final, Self, final

from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]

@final
class UniqueIds:
    @property
    def host(self) -> object: ...
    def __new__(cls, env: EnvTable, host: object) -> Self: ...
    def new(self) -> str: ...
