from typing import Final, Self, final

from typing_extensions import Buffer

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

@final
class QueueName:
    def __new__(cls, topic: str, queue_id: int) -> Self: ...
    def has(self, data: Buffer, queue_offset: int) -> bool: ...
