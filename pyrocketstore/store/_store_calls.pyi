import numpy as np
import numpy.typing as npt
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, final
from typing_extensions import disjoint_base

from pyrocketstore.arguments.scalars import Time
from pyrocketstore.commit_log._append import CommitLogCore, GroupCommit
from pyrocketstore.commit_log._puts import Columns, PutMessageResult
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.reading.skipped import MessageReader
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._text import UniqueIds
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.store.api import ReadOptions
from pyrocketstore.system._open_state import StoreState

__test__: Final[dict[str, object]]

@final
class PutPath:
    def __new__(
        cls,
        core: CommitLogCore,
        store_host: object,
        state: StoreState,
        slow: Any,  # SlowPuts
        ids: UniqueIds | None = None,
    ) -> Self: ...
    def wait_in(self, group: GroupCommit) -> None: ...
    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue_id: int,
        tags: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        delay_level: int,
        flag: int,
        born_timestamp: int | None,
        born_host: str | None,
    ) -> PutMessageResult: ...
    def append_columns(
        self,
        columns: Columns,
        queue_offsets: npt.NDArray[np.int64],
        phy_offsets: npt.NDArray[np.int64],
        born_host: object | None = None,
    ) -> tuple[int, int, int | Exception]: ...
    def check_columns(
        self, columns: Columns, first: int = 0, born_host: object | None = None
    ) -> None: ...
    def append_ordinary_batch(
        self, topic: object, messages: object, queue_id: object, tags: object, keys: object
    ) -> tuple[PutMessageResult | None, int, int] | None: ...
    def append_batch(self, columns: Columns) -> tuple[PutMessageResult | None, int, int]: ...

@final
class MessagePuts:
    def __new__(
        cls,
        core: CommitLogCore,
        state: StoreState,
        slow: Any,  # SlowPuts
    ) -> Self: ...
    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult: ...

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
