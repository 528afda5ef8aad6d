from typing import Final

from typing_extensions import disjoint_base

from pyrocketstore._key_search import KeySearch
from pyrocketstore._message import MessageExt
from pyrocketstore._put_path import PutPath

__test__: Final[dict[str, object]]

@disjoint_base
class Face(PutPath):
    _key_search: KeySearch
    _state: str
    def query(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int | None = None,
        max_num: int = 32,
        exact: bool = True,
    ) -> list[MessageExt]: ...
