from typing import Any, Final, Self, final

from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.commit_log._put_result import PutMessageResult
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.system._open_state import StoreState

__test__: Final[dict[str, object]]

@final
class MessagePuts:
    def __new__(
        cls,
        core: CommitLogCore,
        state: StoreState,
        slow: Any,  # SlowPuts
    ) -> Self: ...
    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult: ...
