from typing import Final

from typing_extensions import disjoint_base

from pyrocketstore.results import AppendMessageStatus, PutMessageStatus

__test__: Final[dict[str, object]]

@disjoint_base
class PutMessageResult:
    @property
    def status_code(self) -> int: ...
    @property
    def append_status_code(self) -> int: ...
    @property
    def phy_offset(self) -> int: ...  # bytes
    @property
    def queue_offset(self) -> int: ...
    @property
    def wrote_bytes(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...  # Unix ms
    @property
    def message_count(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def status(self) -> PutMessageStatus: ...
    @property
    def put_message_status(self) -> PutMessageStatus: ...
    @property
    def append_message_status(self) -> AppendMessageStatus | None: ...
    def is_ok(self) -> bool: ...
    @property
    def msg_id(self) -> str: ...

def make_result(
    status: int,
    append_status: int = -1,
    phy_offset: int = 0,
    queue_offset: int = 0,
    wrote_bytes: int = 0,
    store_timestamp: int = 0,
    message_count: int = 0,
    positions: list[int] | None = None,
    store_host: object | None = None,
    error: BaseException | None = None,
) -> PutMessageResult: ...
def with_status(
    base: PutMessageResult, status: int, error: BaseException | None = None
) -> PutMessageResult: ...
