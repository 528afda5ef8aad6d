from collections.abc import Mapping, Sequence
from typing import Final

from typing_extensions import disjoint_base

from pyrocketstore.arguments.scalars import Time
from pyrocketstore.commit_log._put_result import PutMessageResult
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import MessageReader
from pyrocketstore.record._message import MessageExt
from pyrocketstore.store._put_path import PutPath
from pyrocketstore.system._open_state import StoreState
from pyrocketstore.store.api import ReadOptions

__test__: Final[dict[str, object]]

@disjoint_base
class StoreCalls:
    _put_path: PutPath
    _key_search: KeySearch
    _state: StoreState
    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        light_queues: Sequence[str] | None = None,
    ) -> PutMessageResult: ...
    def query(
        self,
        topic: str,
        key: str,
        *,
        begin: Time = 0,
        end: Time | None = None,
        max_num: int = 32,
        exact: bool = True,
    ) -> list[MessageExt]: ...
    def read(
        self,
        topic: str,
        queue_id: int | None = 0,
        *,
        start: int | None = None,
        stop: int | None = None,
        tags: str | None = "*",
        where: str | Sql92Filter | None = None,
        on_corrupt: str = "raise",
        check_crc: bool = False,
    ) -> MessageReader: ...
    def _messages(
        self,
        topic: str,
        queue_id: int,
        start: int | None,
        stop: int | None,
        options: ReadOptions,
    ) -> MessageIterator: ...
    def _part(
        self,
        topic: str,
        queue_id: int,
        start: int | None,
        stop: int | None,
        options: ReadOptions,
    ) -> tuple[QueueRange, int, int]: ...
