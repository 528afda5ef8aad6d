from pyrocketstore._env import EnvTable

class TopicQueueMap:
    # (topic, queue id) -> (first queue offset, its physical offset, next queue offset, count)
    def seen(self) -> dict[tuple[str, int], tuple[int, int, int, int]]: ...

class FileWindow:
    def __init__(self, env: EnvTable, path: str) -> None: ...
    def close(self) -> None: ...

def scan_file(
    env: EnvTable,
    path: str,
    file_from_offset: int,
    position: int,
    stop: int,
    check_crc: bool,
    seen: TopicQueueMap | None = None,
) -> tuple[int, int, int, int]: ...
def scan_bytes(data: object, phy_offset: int, check_crc: bool) -> tuple[int, int, int]: ...
def status_name(status: int) -> str: ...
def find_valid_record(
    env: EnvTable, path: str, file_from_offset: int, position: int, stop: int
) -> int: ...
